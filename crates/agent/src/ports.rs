//! Ports of a node that nobody chose: the usual ones if they are free, and the same ones after every restart.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::place::{Place, read_small};
use crate::failure::Failure;
use crate::out;

/// Its name in the node's directory.
pub const FILE: &str = "ports.json";
/// Where doors listen if nobody says otherwise.
pub const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Ports that were used last.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ports {
    /// Of S3.
    pub s3: Option<u16>,
    /// Of the admin API.
    pub admin: Option<u16>,
    /// Of other nodes.
    #[serde(default)]
    pub peers: Option<u16>,
}

impl Ports {
    /// Those of the last start; none are no error, and neither is a file that cannot be understood.
    pub fn read(place: &Place) -> Result<Ports, Failure> {
        Ports::read_in(place.dir())
    }

    /// Those of a node that somebody else may use.
    pub fn read_in(dir: &Path) -> Result<Ports, Failure> {
        let text = read_small(&dir.join(FILE))?.unwrap_or_default();
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Keeps them for the next start.
    pub fn write(&self, place: &Place) -> Result<(), Failure> {
        let text = serde_json::to_string(self).map_err(|e| Failure::new(format!("{FILE}: {e}")))?;
        place.write(FILE, &text)
    }
}

/// Addresses to try, best first; port 0 takes any that is free. One that another program has now is left out, in words
/// if it was ours.
pub fn candidates(what: &str, kept: Option<u16>, usual: u16) -> Vec<SocketAddr> {
    candidates_on(HOST, what, kept, usual)
}

/// The same on another address of this machine.
pub fn candidates_on(host: IpAddr, what: &str, kept: Option<u16>, usual: u16) -> Vec<SocketAddr> {
    let wanted = kept.unwrap_or(usual);
    let mut list = Vec::new();
    if is_free(SocketAddr::new(host, wanted)) {
        list.push(SocketAddr::new(host, wanted));
    } else if kept.is_some() {
        out::say(format!(
            "{what}: port {wanted} of the last start is taken by another program; another one is used"
        ));
    }
    list.push(SocketAddr::new(host, 0));
    list
}

/// Whether nobody listens there. A door may share its port with others on purpose, so the question is asked in a way
/// that does not share.
fn is_free(address: SocketAddr) -> bool {
    !matches!(TcpListener::bind(address), Err(error) if error.kind() == io::ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_passed_over() {
        let taken = TcpListener::bind((HOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(candidates("s3", Some(port), 9000), [SocketAddr::new(HOST, 0)]);
        assert_eq!(candidates("s3", None, port), [SocketAddr::new(HOST, 0)]);
        drop(taken);
        assert_eq!(candidates("s3", Some(port), 9000)[0], SocketAddr::new(HOST, port));
    }

    #[test]
    fn ports_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::take(dir.path()).unwrap();
        assert_eq!(Ports::read(&place).unwrap(), Ports::default());
        let ports = Ports { s3: Some(9000), admin: Some(9001), peers: Some(9002) };
        ports.write(&place).unwrap();
        assert_eq!(Ports::read(&place).unwrap(), ports);
        place.write(FILE, "rubbish").unwrap();
        assert_eq!(Ports::read(&place).unwrap(), Ports::default());
    }
}
