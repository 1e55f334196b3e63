//! Joining, and what a node learned by it: the address of this machine by which it reached the cluster, and the name that was free. Where
//! nobody says otherwise, it listens for peers there, and is called so.

use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stoker_node::JoinAs;
use stoker_store::ErrorKind;

use super::PEERS_PORT;
use super::place::{Place, read_small};
use super::ports;
use crate::failure::Failure;
use crate::{out, sys};

/// What a node keeps of how it joined.
pub const FILE: &str = "joined.json";

/// As what a node joined.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// What people call it.
    pub name: String,
    /// An address of this machine that the cluster reaches.
    pub host: IpAddr,
}

impl Joined {
    /// None for a node that did not join another one, and for one that earlier releases made.
    pub fn read(dir: &Path) -> Result<Option<Joined>, Failure> {
        let path = dir.join(FILE);
        let Some(text) = read_small(&path)? else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            Failure::new(format!("{} cannot be read: {error}", path.display()))
                .hint("remove it, and start the node with --peers and --name")
        })
    }

    pub fn write(&self, place: &Place) -> Result<(), Failure> {
        let text = serde_json::to_string(self).map_err(|e| Failure::new(format!("{FILE}: {e}")))?;
        place.write(FILE, &text)
    }
}

/// Makes a directory that of a new node of a cluster; gives the lake that its volumes have by default. One that is a node
/// already is left as it is.
pub fn join(
    place: &Place,
    address: &str,
    token: Option<&str>,
    wanted: &JoinAs,
) -> Result<Option<String>, Failure> {
    if stoker_node::is_node(place.dir()) {
        let same = token.map_or(Ok(()), |token| stoker_node::check_same_cluster(place.dir(), token));
        return same.map(|()| None).map_err(|fault| {
            Failure::new(fault.message).hint(
                "a node stays in its cluster: choose another directory, or move this one away once what it holds is in the lake",
            )
        });
    }
    if address.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(Failure::new(format!("{address} has no port"))
            .hint(format!("nodes listen for others at port {PEERS_PORT}, unless they were told otherwise: {address}:{PEERS_PORT}")));
    }
    let Some(token) = token else {
        return Err(Failure::new("joining a cluster needs a token").hint(
            "make one with `stoker join-token create` on any of its nodes, and give it in STOKER_JOIN_TOKEN or by --token-file",
        ));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::io("runtime", &e))?;
    match runtime.block_on(stoker_node::join(place.dir(), address, token, wanted)) {
        Ok(joined) => {
            if joined.name != wanted.name {
                out::say(format!("{} is the name of another node; this one is {}", wanted.name, joined.name));
            }
            Joined { name: joined.name, host: joined.local }.write(place)?;
            Ok(joined.lake)
        }
        Err(fault) if fault.kind == ErrorKind::Conflict => Ok(None),
        Err(fault) => {
            let failure = Failure::new(format!("joining the cluster at {address}: {}", fault.message));
            Err(match fault.kind {
                ErrorKind::Unavailable => failure.hint(
                    "`stoker up` of any of its nodes prints its address; a node that listens on 127.0.0.1 is reached on its own \
                     machine only: start it with --peers ([peers] listen) at an address of its network, and open that port",
                ),
                _ => failure,
            })
        }
    }
}

/// What a node is called that nobody gave a name.
pub fn default_name(dir: &Path) -> Result<String, Failure> {
    Ok(Joined::read(dir)?.map_or_else(sys::host_name, |joined| joined.name))
}

/// Where a node listens for peers that nobody gave an address for that.
pub fn default_host(dir: &Path) -> Result<IpAddr, Failure> {
    Ok(Joined::read(dir)?.map_or(ports::HOST, |joined| joined.host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::take(dir.path()).unwrap();
        assert_eq!(Joined::read(dir.path()).unwrap(), None);
        assert_eq!(default_name(dir.path()).unwrap(), sys::host_name());
        assert_eq!(default_host(dir.path()).unwrap(), ports::HOST);
        let joined = Joined { name: "gpu-2".into(), host: "10.0.0.2".parse().unwrap() };
        joined.write(&place).unwrap();
        assert_eq!(Joined::read(dir.path()).unwrap(), Some(joined));
        assert_eq!(default_name(dir.path()).unwrap(), "gpu-2");
        assert_eq!(default_host(dir.path()).unwrap().to_string(), "10.0.0.2");
        place.write(FILE, "rubbish").unwrap();
        assert!(Joined::read(dir.path()).is_err());
    }
}
