//! The drives that this node had, by the path where each was: a file beside its keys. A drive that was here before is itself or
//! it is missing; below a mount point whose drive is not mounted nothing is made in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stoker_format::{DriveId, RingId};
use stoker_store::{ErrorKind, Result, StoreError};

use crate::identity::write_durable;
use crate::options::RING_DIR;

const FILE: &str = "drives-known.json";

/// A drive and the ring on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Known {
    drive: String,
    ring: String,
}

impl Known {
    fn new(drive: DriveId, ring: RingId) -> Known {
        Known { drive: drive.to_string(), ring: ring.to_string() }
    }
}

/// What is known of the drives of a node.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct KnownDrives {
    /// False for a node of a release that did not write it down.
    #[serde(skip)]
    is_written: bool,
    drives: BTreeMap<PathBuf, Known>,
}

/// A drive of this node that is not where it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MissingDrive {
    pub path: PathBuf,
    pub drive: String,
    pub ring: String,
    /// What is there instead.
    pub why: String,
}

impl MissingDrive {
    /// Whether a text means it: its id, or the path where it was.
    pub fn is_named(&self, text: &str) -> bool {
        self.drive == text || self.path == Path::new(text)
    }

    /// What is wrong, and what to do.
    pub fn summary(&self) -> String {
        let (path, drive, ring) = (self.path.display(), &self.drive, &self.ring);
        format!(
            "drive {drive} (ring {ring}) is not at {path}: {}. Nothing was made there. Mount or plug it in and start the node \
             again; or, if it is gone for good, start it once with `--new-drive {path}`",
            self.why
        )
    }

    /// The error of a node that has no other drive.
    pub fn refusal(&self) -> StoreError {
        StoreError::new(ErrorKind::Invalid, self.summary())
    }
}

impl KnownDrives {
    pub fn read(dir: &Path) -> Result<KnownDrives> {
        let path = dir.join(FILE);
        let broken = |fault: &dyn std::fmt::Display| {
            let message =
                format!("{}: {fault}; it says which drives this node has. Remove it if they are all there", path.display());
            StoreError::new(ErrorKind::Corrupt, message)
        };
        match std::fs::read(&path) {
            Ok(bytes) => {
                let known: KnownDrives = serde_json::from_slice(&bytes).map_err(|fault| broken(&fault))?;
                Ok(KnownDrives { is_written: true, ..known })
            }
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => Ok(KnownDrives::default()),
            Err(fault) => Err(broken(&fault)),
        }
    }

    fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let json = serde_json::to_vec_pretty(self).expect("plain data encodes");
        write_durable(&path, &json)
            .map_err(|fault| StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display())))
    }

    /// The drive that was at a path. With its ring at the root of a file system, the path of a new one would be below it.
    fn at(&self, path: &Path) -> Option<(&PathBuf, &Known)> {
        let above = path.parent().filter(|_| path.file_name() == Some(RING_DIR.as_ref()));
        [Some(path), above].into_iter().flatten().find_map(|path| self.drives.get_key_value(path))
    }

    /// Whether what lies at a path may be opened or made. `lost` are drives that the catalog knows as this node's and that
    /// lie at none of its paths.
    pub fn judge(
        &self,
        path: &Path,
        there: Option<(DriveId, RingId)>,
        lost: &BTreeSet<(DriveId, RingId)>,
    ) -> std::result::Result<(), MissingDrive> {
        let missing = |path: &Path, known: Known, why: String| {
            Err(MissingDrive { path: path.to_owned(), drive: known.drive, ring: known.ring, why })
        };
        match (self.at(path), there.map(|(drive, ring)| Known::new(drive, ring))) {
            (Some((_, known)), Some(there)) if *known == there => Ok(()),
            // Paths of drives change places.
            (Some(_), Some(there)) if self.drives.values().any(|known| *known == there) => Ok(()),
            (Some((path, known)), Some(there)) => {
                let why = format!("drive {} (ring {}) is there instead", there.drive, there.ring);
                missing(path, known.clone(), why)
            }
            (Some((path, known)), None) => {
                missing(path, known.clone(), "there is no ring, as if it were not mounted".to_owned())
            }
            (None, Some(_)) => Ok(()),
            (None, None) => match lost.first().filter(|_| !self.is_written) {
                Some((drive, ring)) => {
                    let known = Known::new(*drive, *ring);
                    let why = "there is no ring, and the catalog knows one of this node that is nowhere";
                    missing(path, known, why.to_owned())
                }
                None => Ok(()),
            },
        }
    }

    /// Remembers where drives are, durably.
    pub fn note<'s>(
        &mut self,
        dir: &Path,
        there: impl IntoIterator<Item = (&'s Path, DriveId, RingId)>,
    ) -> Result<()> {
        let before = self.clone();
        for (path, drive, ring) in there {
            let known = Known::new(drive, ring);
            self.drives.retain(|_, other| other.drive != known.drive);
            self.drives.insert(path.to_owned(), known);
        }
        if *self == before && self.is_written {
            return Ok(());
        }
        self.is_written = true;
        self.write(dir)
    }

    /// Forgets a drive, durably.
    pub fn forget(&mut self, dir: &Path, drive: &str) -> Result<()> {
        let before = self.drives.len();
        self.drives.retain(|_, known| known.drive != drive);
        if self.drives.len() == before { Ok(()) } else { self.write(dir) }
    }

    /// Forgets whatever was at a path that a person named.
    pub fn forget_path(&mut self, path: &Path) {
        for path in [path.to_owned(), path.join(RING_DIR)] {
            let path = self.at(&path).map(|(path, _)| path.clone());
            path.map(|path| self.drives.remove(&path));
        }
    }
}

/// Whether a person means the ring at a path: by that path, or by the folder that it is in.
pub(crate) fn is_named(named: &Path, path: &Path) -> bool {
    path == named || path == named.join(RING_DIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Ids = (DriveId, RingId);

    fn ids(at: u8, ring: u8) -> Ids {
        (DriveId([at; 16]), RingId([ring; 16]))
    }

    #[test]
    fn a_drive_is_itself_or_it_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let mut known = KnownDrives::read(dir.path()).unwrap();
        let (one, two, other) = (ids(1, 1), ids(2, 2), ids(3, 3));
        let none = BTreeSet::new();
        // The first start, and one after a release that wrote nothing down.
        assert!(known.judge(Path::new("/a"), None, &none).is_ok());
        let lost = BTreeSet::from([two]);
        assert_eq!(known.judge(Path::new("/a"), None, &lost).unwrap_err().drive, two.0.to_string());
        known.note(dir.path(), [(Path::new("/a"), one.0, one.1), (Path::new("/b"), two.0, two.1)]).unwrap();
        let mut known = KnownDrives::read(dir.path()).unwrap();
        let check = |known: &KnownDrives, path: &str, there: Option<Ids>, expect: Option<Ids>| {
            let missing = known.judge(Path::new(path), there, &none).err().map(|missing| missing.drive);
            assert_eq!(missing, expect.map(|one| one.0.to_string()), "{path}");
        };
        check(&known, "/a", Some(one), None);
        check(&known, "/a", Some(two), None);
        check(&known, "/a", None, Some(one));
        check(&known, "/a/stoker-ring", None, Some(one));
        check(&known, "/a", Some(other), Some(one));
        check(&known, "/a", Some(ids(1, 9)), Some(one));
        check(&known, "/c", None, None);
        check(&known, "/c", Some(other), None);
        // Who means it.
        known.forget_path(Path::new("/a"));
        check(&known, "/a", None, None);
        known.forget(dir.path(), &two.0.to_string()).unwrap();
        check(&KnownDrives::read(dir.path()).unwrap(), "/b", None, None);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(KnownDrives::read(dir.path()).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
