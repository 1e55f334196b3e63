//! The drives that this node had, by the path where each was: a file beside its keys. A drive that was here before is itself or
//! it is missing; below a mount point whose drive is not mounted nothing is made in its place. (D78)

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stoker_catalog::kv::{Catalog, Range};
use stoker_format::{DriveId, NodeId, RingId};
use stoker_schema::rows::{DriveRow, DriveState, RowValue};
use stoker_store::{DriveInfo, ErrorKind, Result, StoreError};

use crate::census::Census;
use crate::core::Core;
use crate::drives::{Kept, Workshop, refused, undrained_on};
use crate::error;
use crate::identity::write_durable;
use crate::options::{DriveOptions, NodeOptions, RING_DIR};
use crate::rings::Drive;

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
            let message = format!(
                "{}: {fault}; it says which drives this node has. Remove it if they are all there",
                path.display()
            );
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
            (Some((path, known)), None) => missing(
                path,
                known.clone(),
                "there is no ring that can be read, as if it were not mounted".to_owned(),
            ),
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

/// Which of the wanted drives are there or may be made, and which are not where this node had them. An error if none is left.
pub(crate) async fn find_drives(
    options: &NodeOptions,
    wanted: &[DriveOptions],
    node: NodeId,
    catalog: &dyn Catalog,
) -> Result<((KnownDrives, Vec<MissingDrive>), Vec<DriveOptions>)> {
    let mut known = KnownDrives::read(&options.dir)?;
    if options.drive_opener.is_some() {
        return Ok(((known, Vec::new()), wanted.to_vec()));
    }
    options.new_drives.iter().for_each(|path| known.forget_path(path));
    // One that cannot be read is there; opening it says what is wrong.
    let ids = |drive: &DriveOptions| {
        let there = stoker_ring::Drive::superblock_at(&drive.path);
        there.map(|there| there.map(|superblock| (superblock.drive, superblock.ring))).ok()
    };
    let there: Vec<_> = wanted.iter().map(ids).collect();
    let mut lost = live_drives(node, catalog).await?;
    lost.retain(|(id, _)| !there.iter().flatten().flatten().any(|(here, _)| here == id));
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (drive, there) in wanted.iter().zip(there) {
        let is_new = options.new_drives.iter().any(|named| is_named(named, &drive.path));
        let judged = match there {
            Some(there) if !is_new => known.judge(&drive.path, there, &lost),
            // A blank device, or a superblock that rotted: not the drive that is expected here.
            None if !is_new && known.at(&drive.path).is_some() => known.judge(&drive.path, None, &lost),
            _ => Ok(()),
        };
        match judged {
            Ok(()) => found.push(drive.clone()),
            Err(gone) => {
                tracing::error!("{}", gone.summary());
                missing.push(gone);
            }
        }
    }
    match missing.first().filter(|_| found.is_empty()) {
        Some(gone) => Err(gone.refusal()),
        None => Ok(((known, missing), found)),
    }
}

/// Drives that the catalog knows as this node's and that count.
async fn live_drives(node: NodeId, catalog: &dyn Catalog) -> Result<BTreeSet<(DriveId, RingId)>> {
    let (mut live, mut range) = (BTreeSet::new(), Range::prefix(b"D", 1_000));
    loop {
        let page = catalog.range(range.clone()).await.map_err(error::catalog)?;
        for row in &page.rows {
            let id = row.key.get(1..17).and_then(|id| id.try_into().ok()).map(DriveId);
            let value = DriveRow::of(row).map_err(error::catalog)?;
            let is_own = value.node == node.0 && value.state == DriveState::Live;
            live.extend(id.filter(|_| is_own).map(|id| (id, RingId(value.ring))));
        }
        match page.rows.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => return Ok(live),
        }
    }
}

impl Workshop {
    /// Drives that are missing.
    pub fn missing(&self) -> Vec<MissingDrive> {
        self.missing.lock().unwrap().clone()
    }

    /// Remembers a drive that is in service; it is not missing any more.
    pub fn note_drive(&self, drive: &Drive) -> Result<()> {
        if self.opener.is_some() {
            return Ok(());
        }
        self.missing.lock().unwrap().retain(|missing| missing.drive != drive.id.to_string());
        let there = [(drive.path.as_path(), drive.id, RingId(drive.row.ring))];
        KnownDrives::read(&self.dir)?.note(&self.dir, there)
    }

    /// Forgets a drive.
    pub fn forget_drive(&self, drive: &str) -> Result<()> {
        self.missing.lock().unwrap().retain(|missing| missing.drive != drive);
        KnownDrives::read(&self.dir)?.forget(&self.dir, drive)
    }
}

impl Core {
    /// Refuses to make a ring at the path of a drive that is missing: it may only not be mounted.
    pub fn check_not_missing(&self, path: &Path) -> Result<()> {
        let missing = self.workshop.missing();
        let Some(missing) = missing.iter().find(|missing| path.starts_with(&missing.path)) else {
            return Ok(());
        };
        let there = stoker_ring::Drive::superblock_at(path).map_err(error::ring)?;
        if there.is_some_and(|superblock| superblock.drive.to_string() == missing.drive) {
            return Ok(());
        }
        Err(refused(format!(
            "drive {} (ring {}) should be at {}: {}. Mount or plug it in; or, if it is gone for good, give it up first with \
             `stoker drive remove --force`",
            missing.drive,
            missing.ring,
            missing.path.display(),
            missing.why
        )))
    }

    /// Gives a drive up that is missing: nothing looks for it any more.
    pub async fn remove_missing(
        self: &Arc<Core>,
        missing: &MissingDrive,
        force: bool,
    ) -> Result<Vec<DriveInfo>> {
        let census = self.census().await?;
        let info = self.missing_info(missing, &census);
        let id = missing.drive.parse::<DriveId>().unwrap_or(DriveId::ZERO);
        if !force && !self.is_empty_drive(id).await? {
            let what = match info.undrained_files {
                0 => "parts of unfinished uploads".to_owned(),
                files => format!("{files} files that the lake does not have"),
            };
            return Err(refused(format!(
                "drive {} is missing, and {what} were there; with --force they are given up",
                missing.drive
            )));
        }
        let _busy = self.workshop.busy.lock().await;
        Kept::read(&self.workshop.dir)?.without(&missing.path).write(&self.workshop.dir)?;
        self.workshop.forget_drive(&missing.drive)?;
        Ok(vec![info])
    }

    pub fn missing_info(&self, missing: &MissingDrive, census: &Census) -> DriveInfo {
        let id = missing.drive.parse::<DriveId>().unwrap_or(DriveId::ZERO);
        let (undrained_files, undrained_bytes) = undrained_on(census, id);
        DriveInfo {
            drive: missing.drive.clone(),
            node: self.node.to_string(),
            name: self.cell.view().name(self.node),
            path: missing.path.display().to_string(),
            state: "missing".to_owned(),
            why: Some(missing.why.clone()),
            incarnation: 0,
            bytes: 0,
            keep_bytes: 0,
            clean_bytes: 0,
            undrained_files,
            undrained_bytes,
        }
    }
}

/// Whether a person means the ring at a path: by that path, or by the folder that it is in.
fn is_named(named: &Path, path: &Path) -> bool {
    path == named || path == named.join(RING_DIR)
}

/// Refuses a witness that has drives, as the catalog knows it: what is on them would be on no node any more.
pub(crate) async fn check_has_no_drives(catalog: &dyn Catalog, node: NodeId) -> Result<()> {
    let mut range = Range::prefix(b"D", 1_000);
    loop {
        let page = catalog.range(range.clone()).await.map_err(error::catalog)?;
        for row in &page.rows {
            let drive = DriveRow::of(row).map_err(error::catalog)?;
            if drive.node == node.0 && drive.state == DriveState::Live {
                return Err(was_with_drives());
            }
        }
        match page.rows.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => return Ok(()),
        }
    }
}

pub(crate) fn was_with_drives() -> StoreError {
    StoreError::new(
        ErrorKind::Invalid,
        "a witness has no drives, and this is the directory of a node that has some: choose another --dir, or remove this node first with \
         `stoker node remove`, and join with an empty one",
    )
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
