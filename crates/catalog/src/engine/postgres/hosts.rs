//! The way to the server: which of the hosts in the address takes changes now.
//!
//! While a database fails over, one host is gone or hangs and another is a standby that becomes the primary. So all are
//! asked at the same time, each for a short while, and the first one that takes changes is the server.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, NoTls, Socket};

use super::fault::Fault;
use crate::error::{CatalogError, Result};

/// Unanswered bytes on the network end a connection after this long.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long one of several hosts may take to let us in, unless the address says so; one that hangs must not use up the
/// time of those who wait.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection and what drives it.
pub(super) type Connected = (Client, tokio_postgres::Connection<Socket, NoTlsStream>);

/// The address of a database, split into its hosts.
#[derive(Debug, Clone)]
pub(super) struct Hosts {
    hosts: Vec<Config>,
    timeout: Duration,
    application: String,
}

impl Hosts {
    /// Reads an address and adds what Stoker always wants of a connection.
    pub(super) fn parse(url: &str, timeout: Duration) -> Result<Hosts> {
        let invalid =
            |why: String| CatalogError::invalid(format!("not an address of a PostgreSQL database: {why}"));
        let config: Config =
            url.parse().map_err(|error: tokio_postgres::Error| invalid(error.to_string()))?;
        let (names, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let count = names.len().max(addresses.len());
        if count == 0 {
            return Err(invalid("it names no host".into()));
        }
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            return Err(invalid(format!("{} hosts and {} hostaddrs", names.len(), addresses.len())));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(invalid(format!("{} ports for {count} hosts", ports.len())));
        }
        let given = config.get_connect_timeout().copied().filter(|given| !given.is_zero());
        let timeout = given.unwrap_or(if count > 1 { timeout.min(HOST_TIMEOUT) } else { timeout });
        let hosts = (0..count).map(|at| {
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            one_host(&config, names.get(at), addresses.get(at).copied(), port, timeout)
        });
        let application = config.get_application_name().unwrap_or("stoker").to_owned();
        Ok(Hosts { hosts: hosts.collect(), timeout, application })
    }

    /// What sessions call themselves.
    pub(super) fn application(&self) -> &str {
        &self.application
    }

    /// Connects to the host that takes changes; the one place where a connection could be wrapped in TLS.
    pub(super) async fn connect(&self) -> std::result::Result<Connected, Fault> {
        let mut tries: FuturesUnordered<_> =
            self.hosts.iter().map(|host| tokio::time::timeout(self.timeout, host.connect(NoTls))).collect();
        let (mut away, mut refused) = (Vec::new(), None);
        while let Some(tried) = tries.next().await {
            match tried {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => match Fault::of_connecting(&error) {
                    Fault::Away(words) => away.push(words),
                    fault => refused = Some(fault),
                },
                Err(_) => away.push(format!(
                    "PostgreSQL did not let us in within {} s; check the server and the network",
                    self.timeout.as_secs()
                )),
            }
        }
        away.sort_unstable();
        away.dedup();
        match refused {
            // Of several, one that comes back may let us in.
            Some(fault) if away.is_empty() => Err(fault),
            _ => Err(Fault::Away(away.join("; "))),
        }
    }

    /// Where the database is, without the password.
    pub(super) fn describe(&self) -> String {
        let host = |config: &Config| match (config.get_hosts().first(), config.get_hostaddrs().first()) {
            (Some(Host::Tcp(name)), _) => name.clone(),
            (Some(Host::Unix(path)), _) => path.display().to_string(),
            (None, address) => address.map(IpAddr::to_string).unwrap_or_default(),
        };
        let mut hosts: Vec<String> = self.hosts.iter().map(host).collect();
        hosts.dedup();
        let first = self.hosts.first();
        let database =
            first.and_then(|config| config.get_dbname().or(config.get_user())).unwrap_or("postgres");
        format!("PostgreSQL, database {database} at {}", hosts.join(", "))
    }
}

/// The same address with one of its hosts.
fn one_host(
    all: &Config,
    name: Option<&Host>,
    address: Option<IpAddr>,
    port: u16,
    timeout: Duration,
) -> Config {
    let mut config = Config::new();
    match name {
        Some(Host::Tcp(name)) => drop(config.host(name)),
        Some(Host::Unix(path)) => drop(config.host_path(path)),
        None => {}
    }
    if let Some(address) = address {
        config.hostaddr(address);
    }
    if let Some(user) = all.get_user() {
        config.user(user);
    }
    if let Some(password) = all.get_password() {
        config.password(password);
    }
    if let Some(database) = all.get_dbname() {
        config.dbname(database);
    }
    if let Some(options) = all.get_options() {
        config.options(options);
    }
    config.application_name(all.get_application_name().unwrap_or("stoker"));
    config.ssl_mode(all.get_ssl_mode()).ssl_negotiation(all.get_ssl_negotiation());
    config.channel_binding(all.get_channel_binding());
    config.port(port).connect_timeout(timeout).tcp_user_timeout(NETWORK_TIMEOUT);
    config.keepalives(all.get_keepalives());
    config.keepalives_idle(NETWORK_TIMEOUT).keepalives_interval(NETWORK_TIMEOUT / 4).keepalives_retries(3);
    // A standby would show an old state.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Hosts {
        Hosts::parse(url, Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn an_address_is_split_into_its_hosts() {
        let hosts = parse("postgresql://u:secret@a:1,b:2/names?connect_timeout=3&application_name=x");
        assert_eq!((hosts.timeout, hosts.application()), (Duration::from_secs(3), "x"));
        let ports: Vec<&[u16]> = hosts.hosts.iter().map(Config::get_ports).collect();
        assert_eq!(ports, [[1], [2]]);
        assert!(hosts.hosts.iter().all(|host| host.get_password() == Some(b"secret")));
        assert_eq!(hosts.describe(), "PostgreSQL, database names at a, b");
        // One that hangs must leave time for the others; one alone may take its time.
        assert_eq!(parse("host=a,b user=u").timeout, HOST_TIMEOUT);
        assert_eq!(parse("host=a user=u").timeout, Duration::from_secs(20));
        assert_eq!(parse("hostaddr=127.0.0.1 user=u").hosts.len(), 1);
    }

    #[test]
    fn an_address_that_contradicts_itself_is_refused() {
        for url in ["user=u", "host=a,b port=1,2,3 user=u", "host=a,b hostaddr=127.0.0.1 user=u"] {
            assert_eq!(
                Hosts::parse(url, NETWORK_TIMEOUT).unwrap_err().kind,
                crate::ErrorKind::Invalid,
                "{url}"
            );
        }
    }
}
