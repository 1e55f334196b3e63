//! Who this node is, and the highest commit that it saw (R9): two small files in its directory.

use std::io::{ErrorKind as IoKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stoker_format::{ClusterId, NodeId, crc32c};
use stoker_schema::level::Level;
use stoker_store::{ErrorKind, Result, StoreError};

use crate::clock;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    node: String,
    cluster: String,
}

/// Identity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
}

fn io(path: &Path, fault: &std::io::Error) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display()))
}

/// Writes a file so that it is there whole after any crash.
pub fn write_durable(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // Of its own for each file: two of them may be written at the same time.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    // For the owner alone from the first byte on: some of these hold keys.
    let mut file =
        std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes the directory of a node, which only its owner can look into.
pub fn make_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Takes the directory of a node away from everybody but its owner: there are keys in it.
fn close_to_others(dir: &Path) {
    const STICKY: u32 = 0o1000;
    let Ok(meta) = std::fs::metadata(dir) else { return };
    let mode = meta.permissions().mode();
    // Where everybody has files of their own, the files themselves are closed.
    if mode & 0o077 == 0 || mode & STICKY != 0 {
        return;
    }
    if let Err(fault) = std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)) {
        tracing::warn!(dir = %dir.display(), %fault, "others can look into the node's directory; run `chmod 700` on it");
    }
}

impl Identity {
    /// Whether a directory belongs to a node.
    pub fn exists(dir: &Path) -> bool {
        dir.join("node.json").exists()
    }

    /// Writes it.
    pub fn write(self, dir: &Path) -> Result<()> {
        let path = dir.join("node.json");
        let text = Text { node: self.node.to_string(), cluster: self.cluster.to_string() };
        let json = serde_json::to_vec_pretty(&text).expect("plain data encodes");
        write_durable(&path, &json).map_err(|fault| io(&path, &fault))
    }

    /// Reads the identity, or makes one.
    pub fn load(dir: &Path) -> Result<Identity> {
        make_dir(dir).map_err(|fault| io(dir, &fault))?;
        let identity = Identity::load_or_make(dir)?;
        close_to_others(dir);
        Ok(identity)
    }

    fn load_or_make(dir: &Path) -> Result<Identity> {
        let path = dir.join("node.json");
        match std::fs::read(&path) {
            Ok(bytes) => {
                let corrupt = |what: String| {
                    let message = format!("{}: {what}; it names this node, restore it", path.display());
                    StoreError::new(ErrorKind::Corrupt, message)
                };
                let text: Text =
                    serde_json::from_slice(&bytes).map_err(|fault| corrupt(fault.to_string()))?;
                Ok(Identity {
                    node: text.node.parse().map_err(|_| corrupt("`node` is not an id".into()))?,
                    cluster: text.cluster.parse().map_err(|_| corrupt("`cluster` is not an id".into()))?,
                })
            }
            Err(fault) if fault.kind() == IoKind::NotFound => {
                let identity =
                    Identity { node: NodeId(clock::random()), cluster: ClusterId(clock::random()) };
                identity.write(dir)?;
                Ok(identity)
            }
            Err(fault) => Err(io(&path, &fault)),
        }
    }
}

/// The level since which the highest commit is written with its sum: a digit that flipped would keep a node from starting, or hide that its
/// catalog went back.
const SUMMED_SINCE: Level = Level(2);

fn seq_text(seq: u64, level: Level) -> String {
    match level < SUMMED_SINCE {
        true => format!("{seq}\n"),
        false => format!("{seq} {:08x}\n", crc32c(seq.to_string().as_bytes())),
    }
}

/// Reads both forms; none if it is damaged.
fn seq_of(text: &str) -> Option<u64> {
    match text.trim().split_once(' ') {
        None => text.trim().parse().ok(),
        Some((seq, sum)) => {
            let is_right = u32::from_str_radix(sum, 16) == Ok(crc32c(seq.as_bytes()));
            seq.parse().ok().filter(|_| is_right)
        }
    }
}

/// The file that remembers the highest commit.
pub struct HighWater {
    path: PathBuf,
    written: u64,
}

impl HighWater {
    /// The highest commit that was written down.
    pub fn read(dir: &Path) -> Result<u64> {
        let path = dir.join("seq");
        match std::fs::read_to_string(&path) {
            Ok(text) => seq_of(&text).ok_or_else(|| {
                let message = format!(
                    "{}: damaged; it holds the highest commit that this node saw. If the catalog is the one that it had (it was not \
                     replaced, and no backup was restored), remove the file",
                    path.display()
                );
                StoreError::new(ErrorKind::Corrupt, message)
            }),
            Err(fault) if fault.kind() == IoKind::NotFound => Ok(0),
            Err(fault) if fault.kind() == IoKind::InvalidData => {
                let message = format!("{}: damaged; it is not text", path.display());
                Err(StoreError::new(ErrorKind::Corrupt, message))
            }
            Err(fault) => Err(io(&path, &fault)),
        }
    }

    /// Opens it; refuses a catalog that went back.
    pub fn open(dir: &Path, catalog_seq: u64) -> Result<HighWater> {
        let path = dir.join("seq");
        let written = HighWater::read(dir)?;
        if catalog_seq < written {
            let message = format!(
                "the catalog is at commit {catalog_seq}, but this node saw commit {written}: it went back, as after its file was \
                 replaced or lost. What was acknowledged since would be lost, so the node does not start; put the right \
                 catalog back, or rebuild it with `stoker catalog salvage --dir {}`",
                dir.display()
            );
            return Err(StoreError::new(ErrorKind::Corrupt, message));
        }
        Ok(HighWater { path, written })
    }

    /// Remembers a commit, durably, in the form that the level allows.
    pub fn raise(&mut self, seq: u64, level: Level) {
        if seq <= self.written {
            return;
        }
        match write_durable(&self.path, seq_text(seq, level).as_bytes()) {
            Ok(()) => self.written = seq,
            Err(fault) => tracing::warn!("{}: {fault}", self.path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_commit_is_written_in_the_form_of_the_level() {
        assert_eq!(seq_text(12, Level(1)), "12\n");
        let summed = seq_text(12, Level(2));
        assert!(summed.len() > 10, "{summed}");
        for text in ["12\n", "12", &summed] {
            assert_eq!(seq_of(text), Some(12), "{text}");
        }
        for damaged in ["", "x", "12 0", &summed.replacen("12", "13", 1), &summed.replacen(' ', "  ", 1)] {
            assert_eq!(seq_of(damaged), None, "{damaged}");
        }
    }
}
