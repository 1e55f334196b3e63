//! What every node of a cluster knows and nobody else: one file that only its owner can read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stoker_fabric::transport::Authority;
use stoker_store::{ErrorKind, Result, StoreError};

use crate::clock;
use crate::identity::{Identity, write_durable};

const FILE: &str = "cluster.keys";

/// Replaced secrets that are remembered.
const SECRETS_PAST_MAX: usize = 16;

const VERSION: u8 = 1;
/// The same, with the secrets that went before.
const VERSION_WITH_PAST: u8 = 2;

/// Where the catalog is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CatalogPlace {
    /// With this node.
    Here,
    /// With another one.
    With {
        /// Its id.
        node: [u8; 16],
        /// Where it was reached last.
        addresses: Vec<String>,
    },
    /// In a database.
    Postgres(String),
}

impl CatalogPlace {
    /// Takes the database that the configuration names: its address and password may have changed since it was written down.
    /// A catalog that is with nodes stays there, and a database that is behind what this node has seen is refused when it is opened.
    pub fn configure(&mut self, url: &str) {
        match self {
            CatalogPlace::Here | CatalogPlace::Postgres(_) => *self = CatalogPlace::Postgres(url.to_owned()),
            CatalogPlace::With { .. } => {}
        }
    }
}

/// The keys of a cluster, and where a node finds it after a start.
#[derive(Clone, Serialize, Deserialize)]
pub struct ClusterKeys {
    /// Signs certificates.
    pub authority: Vec<u8>,
    /// Seals pings, and proves membership where nothing is encrypted.
    pub secret: [u8; 32],
    /// In earlier releases whoever had it could join. Nothing uses it; it keeps its place in the file, and is zero.
    pub token_secret: [u8; 16],
    /// Where the catalog is.
    pub catalog: CatalogPlace,
    /// Where volumes drain that say nothing else.
    pub lake: Option<String>,
    /// Where pings of others went when this was written.
    pub seeds: Vec<String>,
    /// Raised at each start.
    pub boot: u64,
    /// Starts so far.
    pub starts: u32,
    /// Secrets that a change of the authority replaced, the newest first. What they signed in the lake is still ours.
    #[serde(skip)]
    pub secrets_past: Vec<[u8; 32]>,
}

impl ClusterKeys {
    fn create(identity: Identity) -> Result<ClusterKeys> {
        let authority = Authority::create(identity.cluster, clock::now_ms() / 1_000)
            .map_err(|fault| crate::broken("making the keys of a cluster", &fault))?;
        Ok(ClusterKeys {
            authority: authority.to_bytes(),
            secret: clock::random(),
            token_secret: [0; 16],
            catalog: CatalogPlace::Here,
            lake: None,
            seeds: Vec::new(),
            boot: 0,
            starts: 0,
            secrets_past: Vec::new(),
        })
    }

    /// Takes another secret; the one that goes is remembered.
    pub fn renew(&mut self, authority: Vec<u8>, secret: [u8; 32]) {
        if self.secret != secret {
            self.secrets_past.insert(0, self.secret);
            self.secrets_past.truncate(SECRETS_PAST_MAX);
        }
        (self.authority, self.secret) = (authority, secret);
    }

    /// All secrets, the newest first.
    pub fn secrets(&self) -> Vec<[u8; 32]> {
        std::iter::once(self.secret).chain(self.secrets_past.iter().copied()).collect()
    }

    /// Whether there are any.
    pub fn exists(dir: &Path) -> bool {
        dir.join(FILE).exists()
    }

    /// Reads them, or makes those of a new cluster.
    pub fn load_or_create(dir: &Path, identity: Identity) -> Result<ClusterKeys> {
        let path = dir.join(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => ClusterKeys::decode(&bytes).map_err(|fault| {
                let message = format!("{}: {}; restore it, or join again", path.display(), fault.message);
                StoreError::new(ErrorKind::Corrupt, message)
            }),
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => {
                let keys = ClusterKeys::create(identity)?;
                keys.write(dir)?;
                Ok(keys)
            }
            Err(fault) => Err(crate::broken(&path.display().to_string(), &fault)),
        }
    }

    /// Replaces the file.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let written = write_durable(&path, &self.encode())
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)));
        written.map_err(|fault| crate::broken(&path.display().to_string(), &fault))
    }

    /// As they are written, and handed to who joins.
    pub fn encode(&self) -> Vec<u8> {
        // As long as nothing was replaced, older releases can read it.
        match self.secrets_past.is_empty() {
            true => postcard::to_extend(self, vec![VERSION]),
            false => postcard::to_extend(&(self, &self.secrets_past), vec![VERSION_WITH_PAST]),
        }
        .expect("plain data encodes")
    }

    /// Reads them back.
    pub fn decode(bytes: &[u8]) -> Result<ClusterKeys> {
        let broken = |fault| crate::broken("the keys of the cluster", &fault);
        match bytes.split_first() {
            Some((&VERSION, body)) => {
                let keys: ClusterKeys = postcard::from_bytes(body).map_err(broken)?;
                Ok(ClusterKeys { token_secret: [0; 16], ..keys })
            }
            Some((&VERSION_WITH_PAST, body)) => {
                let (keys, secrets_past): (ClusterKeys, _) = postcard::from_bytes(body).map_err(broken)?;
                Ok(ClusterKeys { token_secret: [0; 16], secrets_past, ..keys })
            }
            _ => Err(crate::broken("the keys of the cluster", &"written by another release")),
        }
    }
}

/// The secrets that the nodes of a cluster share, the newest first; those of a new cluster if this node has none.
pub fn secrets(dir: &Path, identity: Identity) -> Result<Vec<[u8; 32]>> {
    Ok(ClusterKeys::load_or_create(dir, identity)?.secrets())
}

/// The same of a node that is stopped: none if it has none.
pub fn secrets_kept(dir: &Path) -> Result<Vec<[u8; 32]>> {
    if ClusterKeys::exists(dir) { secrets(dir, Identity::load(dir)?) } else { Ok(Vec::new()) }
}

#[cfg(test)]
mod tests {
    use stoker_format::{ClusterId, NodeId};

    use super::*;

    #[test]
    fn the_configuration_says_where_the_database_is() {
        let (old, new) = ("postgresql://stoker:old@a/stoker", "postgresql://stoker:new@b/stoker");
        let with = CatalogPlace::With { node: [1; 16], addresses: vec!["10.0.0.1:9002".to_owned()] };
        for (mut place, wanted) in [
            (CatalogPlace::Here, CatalogPlace::Postgres(new.to_owned())),
            (CatalogPlace::Postgres(old.to_owned()), CatalogPlace::Postgres(new.to_owned())),
            (with.clone(), with),
        ] {
            place.configure(new);
            assert!(place == wanted);
        }
    }

    #[test]
    fn replaced_secrets_are_remembered_and_the_first_form_stays() {
        let identity = Identity { node: NodeId([1; 16]), cluster: ClusterId([2; 16]) };
        let mut keys = ClusterKeys::create(identity).unwrap();
        let first = keys.secret;
        assert_eq!(keys.encode()[0], VERSION);
        assert_eq!(ClusterKeys::decode(&keys.encode()).unwrap().secrets(), [first]);
        keys.renew(keys.authority.clone(), [9; 32]);
        keys.renew(keys.authority.clone(), [9; 32]);
        assert_eq!(ClusterKeys::decode(&keys.encode()).unwrap().secrets(), [[9; 32], first]);
    }
}
