//! Another certificate authority for a cluster, while its nodes are stopped: it is made once and goes from node to node in a file.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stoker_fabric::transport::Authority;
use stoker_format::ClusterId;
use stoker_store::{ErrorKind, Result, StoreError};

use crate::broken;
use crate::clock;
use crate::identity::Identity;
use crate::keys::ClusterKeys;

const VERSION: u8 = 1;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What every node has to take over.
#[derive(Serialize, Deserialize)]
struct Renewal {
    authority: Vec<u8>,
    secret: [u8; 32],
}

/// What a change of the authority did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthorityChange {
    /// It was made, is in the file, and this node has it.
    Made,
    /// This node took it out of the file.
    Taken,
    /// This node had it already.
    Known,
}

/// The certificate (DER) of the authority of a node's cluster; none if the node was never a member of one.
pub fn authority_certificate(dir: &Path) -> Result<Option<Vec<u8>>> {
    if !Identity::exists(dir) || !ClusterKeys::exists(dir) {
        return Ok(None);
    }
    let keys = ClusterKeys::load_or_create(dir, Identity::load(dir)?)?;
    let authority =
        Authority::from_bytes(&keys.authority).map_err(|fault| broken("the authority", &fault))?;
    Ok(Some(authority.certificate().to_vec()))
}

/// Gives a stopped node another certificate authority: that in the file, or a new one, which the file gets. Nodes with different ones
/// do not talk to each other.
pub fn authority_rotate(dir: &Path, file: &Path) -> Result<AuthorityChange> {
    if !Identity::exists(dir) || !ClusterKeys::exists(dir) {
        let message = format!("{}: no node of a cluster lives there", dir.display());
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    let identity = Identity::load(dir)?;
    let mut keys = ClusterKeys::load_or_create(dir, identity)?;
    let (renewal, is_new) = match Renewal::read(file)? {
        Some(renewal) => (renewal, false),
        None => (Renewal::make(identity.cluster)?, true),
    };
    let of =
        Authority::from_bytes(&renewal.authority).map_err(|fault| broken("the authority", &fault))?.cluster();
    if of != identity.cluster {
        let message = format!("{} is the authority of another cluster", file.display());
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    if is_new {
        // Before the node has it: one that nobody else could get would be of no use.
        renewal.write(file)?;
    }
    if keys.authority == renewal.authority && keys.secret == renewal.secret {
        return Ok(AuthorityChange::Known);
    }
    keys.renew(renewal.authority, renewal.secret);
    keys.write(dir)?;
    Ok(if is_new { AuthorityChange::Made } else { AuthorityChange::Taken })
}

impl Renewal {
    fn make(cluster: ClusterId) -> Result<Renewal> {
        let authority = Authority::create(cluster, clock::now_ms() / 1_000)
            .map_err(|fault| broken("making an authority", &fault))?;
        Ok(Renewal { authority: authority.to_bytes(), secret: clock::random() })
    }

    /// None if there is no such file.
    fn read(path: &Path) -> Result<Option<Renewal>> {
        let bytes = match std::fs::metadata(path) {
            Ok(meta) if meta.len() > FILE_BYTES_MAX => Ok(Vec::new()),
            Ok(_) => std::fs::read(path),
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(fault) => Err(fault),
        };
        let bytes = bytes.map_err(|fault| broken(&path.display().to_string(), &fault))?;
        let read = match bytes.split_first() {
            Some((&VERSION, body)) => postcard::from_bytes(body).ok(),
            _ => None,
        };
        let no = || broken(&path.display().to_string(), &"this is no file of an authority");
        read.ok_or_else(no).map(Some)
    }

    /// A file that only its owner can read.
    fn write(&self, path: &Path) -> Result<()> {
        let bytes = postcard::to_extend(self, vec![VERSION]).expect("plain data encodes");
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write().map_err(|fault| broken(&path.display().to_string(), &fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_of_a_cluster_takes_the_same_authority() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let file = at("authority");
        assert_eq!(authority_rotate(dir.path(), &file).unwrap_err().kind, ErrorKind::Invalid);
        let cluster = ClusterId([7; 16]);
        for (name, cluster) in [("a", cluster), ("b", cluster), ("c", ClusterId([8; 16]))] {
            std::fs::create_dir(at(name)).unwrap();
            let identity = Identity { node: stoker_format::NodeId([1; 16]), cluster };
            identity.write(&at(name)).unwrap();
            ClusterKeys::load_or_create(&at(name), identity).unwrap();
        }
        let keys = |name: &str| {
            let identity = Identity::load(&at(name)).unwrap();
            let keys = ClusterKeys::load_or_create(&at(name), identity).unwrap();
            (keys.authority, keys.secret)
        };
        let before = keys("a");
        assert_eq!(authority_rotate(&at("a"), &file).unwrap(), AuthorityChange::Made);
        assert!(keys("a") != before);
        assert_eq!(authority_rotate(&at("b"), &file).unwrap(), AuthorityChange::Taken);
        assert!(keys("a") == keys("b"));
        assert_eq!(authority_rotate(&at("b"), &file).unwrap(), AuthorityChange::Known);
        assert_eq!(authority_rotate(&at("c"), &file).unwrap_err().kind, ErrorKind::Invalid);
        std::fs::write(&file, "something").unwrap();
        assert_eq!(authority_rotate(&at("a"), &file).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
