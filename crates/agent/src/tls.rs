//! The certificates of the ports that people connect to: from files, or made by the cluster's own authority.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use stoker_client::Server;
use stoker_node::Member;
use stoker_store::StoreError;
use stoker_tls::{Certificate, CertificateSource, Issue, Issued, pem_of};

use super::place::Place;
use super::plan::Plan;
use crate::failure::Failure;
use crate::sys;

/// The certificate of the cluster's authority, for those who are to trust it.
pub const CA: &str = "ca.pem";

/// Names in one certificate; a node with very many containers has thousands of addresses.
const NAMES_MAX: usize = 256;

/// Where the certificate of a port comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsPlan {
    /// Made by the cluster's own authority, for the names and addresses of this machine and these.
    Own {
        /// More names that people use.
        names: Vec<String>,
    },
    /// PEM files, read again when they change.
    Files {
        /// The certificate with those that lead to its root.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
    },
}

type IssueFor = Box<dyn Fn(&[String]) -> Result<Issued, StoreError> + Send + Sync>;

/// Makes certificates for the names that the machine has when each is made.
struct Authority {
    issue: IssueFor,
    names: Vec<String>,
}

impl Issue for Authority {
    fn issue(&self) -> Result<Issued, String> {
        let names = names_of(&self.names, sys::host_name(), sys::interfaces::addresses().unwrap_or_default());
        (self.issue)(&names).map_err(|fault| fault.message)
    }
}

/// Those of this machine, and those that were asked for. What can be no name in a certificate is left out.
fn names_of(wanted: &[String], host: String, addresses: Vec<(String, IpAddr)>) -> Vec<String> {
    let local = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    let addresses = addresses.into_iter().map(|(_, address)| address);
    let mut names: Vec<String> = wanted.to_vec();
    names.extend(["localhost".to_owned(), host]);
    names.extend(local.into_iter().chain(addresses).map(|address| address.to_string()));
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| check_name(name).is_ok() && seen.insert(name.to_ascii_lowercase()));
    names.truncate(NAMES_MAX);
    names
}

/// Refuses what can be no name in a certificate: an address, a host name, or `*.` before one.
pub fn check_name(name: &str) -> Result<(), String> {
    let host = name.strip_prefix("*.").unwrap_or(name);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_host = host.len() <= 253 && host.split('.').all(is_label);
    match name.parse::<IpAddr>().is_ok() || is_host {
        true => Ok(()),
        false => Err(format!("`{name}` is no host name and no address")),
    }
}

/// The names below which buckets are hosts, each with all names below it.
pub fn names_of_domains(domains: &[String]) -> Vec<String> {
    let both = |domain: &String| [domain.clone(), format!("*.{domain}")];
    domains.iter().flat_map(both).collect()
}

/// Where the certificate of a port comes from, by its plan. Writes down the authority's for those who are to trust it.
fn source_of(place: &Place, member: &Member, plan: &TlsPlan) -> Result<CertificateSource, Failure> {
    let names = match plan {
        TlsPlan::Files { cert, key } => {
            return Ok(CertificateSource::Files { cert: cert.clone(), key: key.clone() });
        }
        TlsPlan::Own { names } => names.clone(),
    };
    let authority = member.authority_certificate().to_vec();
    place.write(CA, &pem_of(&authority))?;
    let issue = member.service_issuer();
    let issue = move |names: &[String]| {
        let made = issue(names)?;
        Ok(Issued { chain: vec![made.certificate, authority.clone()], key: made.key })
    };
    Ok(CertificateSource::Issuer(Arc::new(Authority { issue: Box::new(issue), names })))
}

/// The certificates of the ports of a node.
pub(super) struct Certificates {
    pub s3: Option<CertificateSource>,
    pub admin: Option<Arc<Certificate>>,
    pub door: Option<Arc<Certificate>>,
    /// Some are of the cluster's own authority.
    pub is_own: bool,
}

impl Certificates {
    pub fn of(place: &Place, plan: &Plan, member: &Member) -> Result<Certificates, Failure> {
        let source =
            |plan: &Option<TlsPlan>| plan.as_ref().map(|plan| source_of(place, member, plan)).transpose();
        let (s3, rest) = (source(&plan.s3.tls)?, source(&plan.tls)?);
        let load = |what: &str, load: &dyn Fn(CertificateSource) -> io::Result<Certificate>| {
            let loaded = rest.clone().map(load).transpose();
            loaded.map(|certificate| certificate.map(Arc::new)).map_err(|error| bad_certificate(what, &error))
        };
        let has_door = !plan.door.is_empty();
        Ok(Certificates {
            admin: load("admin", &|source| Certificate::load(source, b"http/1.1"))?,
            door: load("door", &Server::certificate)?.filter(|_| has_door),
            is_own: [&plan.s3.tls, &plan.tls].iter().any(|plan| matches!(plan, Some(TlsPlan::Own { .. }))),
            s3,
        })
    }
}

/// The words for a certificate that cannot be used.
pub(super) fn bad_certificate(what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("{what}: {error}")).hint(
        "give PEM files of a certificate that holds and of its key, or `--tls` (`own = true` in [tls]) for one of the cluster's own authority",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_the_names_that_people_use() {
        let addresses = vec![("eth0".to_owned(), "10.0.0.5".parse().unwrap())];
        let wanted = ["s3.example.com".to_owned(), "LOCALHOST".to_owned(), "a b".to_owned()];
        let names = names_of(&wanted, "node-1".to_owned(), addresses);
        assert_eq!(names, ["s3.example.com", "LOCALHOST", "node-1", "127.0.0.1", "::1", "10.0.0.5"]);
        assert_eq!(names_of_domains(&["s3.x".to_owned()]), ["s3.x", "*.s3.x"]);
        for bad in ["", "a..b", "-a", "*.", "a b", "https://h", "h:9000"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
