//! What every node of a cluster knows and nobody else: one file that only its owner can read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stoker_cell::transport::Authority;
use stoker_store::{ErrorKind, Result, StoreError};

use crate::clock;
use crate::identity::{Identity, write_durable};

const FILE: &str = "cluster.keys";
const VERSION: u8 = 1;

/// Secrets that were replaced, newest first, for what they wrapped.
const FORMER_FILE: &str = "cluster.keys.former";
/// Most of them that are kept.
const FORMER_MAX: usize = 8;

/// The secret of a node's cluster and those before it; empty if the node is in no cluster.
pub(crate) fn secrets(dir: &Path) -> Result<Vec<[u8; 32]>> {
    if !Identity::exists(dir) || !ClusterKeys::exists(dir) {
        return Ok(Vec::new());
    }
    let keys = ClusterKeys::load_or_create(dir, Identity::load(dir)?)?;
    Ok([vec![keys.secret], former(dir)?].concat())
}

/// Keeps a secret that is about to be replaced.
pub(super) fn remember_former(dir: &Path, secret: [u8; 32]) -> Result<()> {
    let mut kept = former(dir)?;
    kept.retain(|known| *known != secret);
    kept.insert(0, secret);
    kept.truncate(FORMER_MAX);
    let path = dir.join(FORMER_FILE);
    let written = write_durable(&path, &[&[VERSION][..], kept.as_flattened()].concat());
    written.map_err(|fault| super::broken(&path.display().to_string(), &fault))
}

fn former(dir: &Path) -> Result<Vec<[u8; 32]>> {
    let path = dir.join(FORMER_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(fault) => return Err(super::broken(&path.display().to_string(), &fault)),
    };
    match bytes.split_first().map(|(version, body)| (*version, body.as_chunks::<32>())) {
        Some((VERSION, (secrets, []))) => Ok(secrets.to_vec()),
        _ => Err(super::broken(&path.display().to_string(), &"it is damaged; remove it")),
    }
}

/// Where the catalog is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum CatalogPlace {
    /// With this node.
    Here,
    /// With another one.
    With { node: [u8; 16], addresses: Vec<String> },
    /// In a database.
    Postgres(String),
}

/// The keys of a cluster, and where a node finds it after a start.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ClusterKeys {
    /// Signs certificates.
    pub authority: Vec<u8>,
    /// Seals pings, and proves membership where nothing is encrypted.
    pub secret: [u8; 32],
    /// Whoever has it may join.
    pub token_secret: [u8; 16],
    pub catalog: CatalogPlace,
    /// Where volumes drain that say nothing else.
    pub lake: Option<String>,
    /// Where pings of others went when this was written.
    pub seeds: Vec<String>,
    /// Raised at each start.
    pub boot: u64,
    /// Starts so far.
    pub starts: u32,
}

impl ClusterKeys {
    fn create(identity: Identity) -> Result<ClusterKeys> {
        let authority = Authority::create(identity.cluster, clock::now_ms() / 1_000)
            .map_err(|fault| super::broken("making the keys of a cluster", &fault))?;
        Ok(ClusterKeys {
            authority: authority.to_bytes(),
            secret: clock::random(),
            token_secret: clock::random(),
            catalog: CatalogPlace::Here,
            lake: None,
            seeds: Vec::new(),
            boot: 0,
            starts: 0,
        })
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
            Err(fault) => Err(super::broken(&path.display().to_string(), &fault)),
        }
    }

    /// Replaces the file.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let written = write_durable(&path, &self.encode())
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)));
        written.map_err(|fault| super::broken(&path.display().to_string(), &fault))
    }

    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).expect("plain data encodes")
    }

    pub fn decode(bytes: &[u8]) -> Result<ClusterKeys> {
        match bytes.split_first() {
            Some((&VERSION, body)) => {
                postcard::from_bytes(body).map_err(|fault| super::broken("the keys of the cluster", &fault))
            }
            _ => Err(super::broken("the keys of the cluster", &"written by another release")),
        }
    }
}
