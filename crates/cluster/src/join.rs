//! Joining: a directory becomes that of a new node of a cluster.
//!
//! The way to the cluster says where this node will be found: peers listen on the address of this machine by which it reached the
//! cluster, unless a person says otherwise. What others could not dial is refused before the token is used. (D90)

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use stoker_fabric::transport::{self, Authority, Ends, JoinError, Token};
use stoker_format::NodeId;
use stoker_store::{ErrorKind, Result, StoreError};

use crate::broken;
use crate::clock;
use crate::dial::name_taken;
use crate::identity::Identity;
use crate::keys::ClusterKeys;

/// Longest wait for an answer of the node that one joins.
const JOIN_MAX: Duration = Duration::from_secs(20);

/// Names that are tried for a node that nobody gave one.
const NAMES_MAX: usize = 100;

/// As what a node wants to join.
#[derive(Clone, Debug)]
pub struct JoinAs {
    /// What people call it.
    pub name: String,
    /// A person chose that name; otherwise one like it will do.
    pub is_name_chosen: bool,
    /// Where it will listen for peers, if a person says so.
    pub peers: Option<SocketAddr>,
}

/// As what a node joined.
#[derive(Clone, Debug)]
pub struct JoinedAs {
    /// What people call it.
    pub name: String,
    /// The address of this machine by which it reached the cluster.
    pub local: IpAddr,
    /// The lake that its volumes have by default.
    pub lake: Option<String>,
}

/// What a node says of itself when it wants to join. Releases before this said nothing.
#[derive(Serialize, Deserialize)]
pub(crate) enum JoinPayload {
    Named { name: String },
}

impl JoinPayload {
    /// None if nothing is said, or nothing that this release understands.
    pub fn decode(bytes: &[u8]) -> Option<JoinPayload> {
        postcard::from_bytes(bytes).ok()
    }
}

/// Why others would not reach a node there, if so.
fn unfit(peers: SocketAddr, ends: Ends) -> Option<String> {
    let (local, cluster) = (ends.local.ip(), ends.peer.ip());
    let example = SocketAddr::new(local, if peers.port() == 0 { 9002 } else { peers.port() });
    if peers.ip().is_unspecified() {
        return Some(format!(
            "--peers {peers} is no address that others can dial; leave --peers out, or give `--peers {example}`"
        ));
    }
    // A cluster on this very machine may use whatever its nodes reach.
    let is_local = cluster.is_loopback() || cluster == local;
    (peers.ip().is_loopback() && !is_local).then(|| {
        format!(
            "--peers {peers} is only reached on this machine, and the cluster is at {}; leave --peers out, or give \
             `--peers {example}`",
            ends.peer
        )
    })
}

/// Refuses the token of another cluster than that of the node in a directory. What is no token is not looked at: the node needs none.
pub fn check_same_cluster(dir: &Path, token: &str) -> Result<()> {
    let Ok(token) = token.parse::<Token>() else { return Ok(()) };
    if !ClusterKeys::exists(dir) {
        return Ok(());
    }
    let identity = Identity::load(dir)?;
    let keys = ClusterKeys::load_or_create(dir, identity)?;
    let authority = Authority::from_bytes(&keys.authority).map_err(|fault| broken("keys", &fault))?;
    if authority.fingerprint() == token.fingerprint {
        return Ok(());
    }
    let message = format!(
        "{} is that of a node of cluster {}, and the token is of another one",
        dir.display(),
        identity.cluster
    );
    Err(StoreError::new(ErrorKind::Conflict, message))
}

/// Makes a directory the directory of a node of that cluster. Refuses a directory that is a node already.
pub async fn join(dir: &Path, address: &str, token: &str, wanted: &JoinAs) -> Result<JoinedAs> {
    let wrong = |fault: transport::TokenError| StoreError::new(ErrorKind::Invalid, fault.to_string());
    let token: Token = token.parse().map_err(wrong)?;
    if Identity::exists(dir) {
        let message = format!("{}: the directory already belongs to a node", dir.display());
        return Err(StoreError::new(ErrorKind::Conflict, message));
    }
    let node = NodeId(clock::random());
    let mut names = (1..NAMES_MAX).map(|at| match at {
        1 => wanted.name.clone(),
        at => format!("{}-{at}", wanted.name),
    });
    let (joined, name) = loop {
        let Some(name) = names.next() else {
            return Err(StoreError::new(ErrorKind::Denied, name_taken(&wanted.name)));
        };
        let payload = |ends: Ends| match wanted.peers.and_then(|peers| unfit(peers, ends)) {
            Some(why) => Err(why),
            None => Ok(Bytes::from(encode(&name))),
        };
        match transport::join_knowing(address, &token, node, payload, JOIN_MAX).await {
            Ok(joined) => break (joined, name),
            Err(JoinError::Refused(why)) if !wanted.is_name_chosen && why == name_taken(&name) => {}
            Err(fault) => {
                let kind = match fault {
                    JoinError::Unreachable(_) => ErrorKind::Unavailable,
                    JoinError::Unfit(_) => ErrorKind::Invalid,
                    _ => ErrorKind::Denied,
                };
                return Err(StoreError::new(kind, fault.to_string()));
            }
        }
    };
    let keys = ClusterKeys::decode(&joined.payload)?;
    let cluster = Authority::from_bytes(&keys.authority).map_err(|fault| broken("keys", &fault))?.cluster();
    crate::identity::make_dir(dir).map_err(|fault| broken(&dir.display().to_string(), &fault))?;
    keys.write(dir)?;
    Identity { node, cluster }.write(dir)?;
    Ok(JoinedAs { name, local: joined.ends.local.ip(), lake: keys.lake })
}

fn encode(name: &str) -> Vec<u8> {
    postcard::to_stdvec(&JoinPayload::Named { name: name.to_owned() }).expect("plain data encodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_listen_where_others_reach_them() {
        let check = |peers: &str, local: &str, cluster: &str, fits: bool| {
            let ends = Ends { local: local.parse().unwrap(), peer: cluster.parse().unwrap() };
            let why = unfit(peers.parse().unwrap(), ends);
            assert_eq!(why.is_none(), fits, "{peers} {local} {cluster}: {why:?}");
            assert!(why.is_none_or(|why| why.contains(&format!("--peers {}", ends.local.ip()))), "{peers}");
        };
        check("127.0.0.1:9002", "127.0.0.1:5", "127.0.0.1:9002", true);
        check("127.0.0.1:9002", "10.0.0.2:5", "10.0.0.1:9002", false);
        check("127.0.0.1:0", "10.0.0.1:5", "10.0.0.1:9002", true);
        check("10.0.0.2:0", "10.0.0.2:5", "10.0.0.1:9002", true);
        check("0.0.0.0:9002", "10.0.0.2:5", "10.0.0.1:9002", false);
        check("0.0.0.0:9002", "127.0.0.1:5", "127.0.0.1:9002", false);
    }
}
