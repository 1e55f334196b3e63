//! Which rings a node has, and how large a new one becomes.

use std::path::{Path, PathBuf};

use stoker_node::DriveOptions;
use stoker_ring::{Drive, DriveKind};

use crate::failure::Failure;
use crate::size;

/// Share of the free space that a new ring takes, in percent.
const FREE_SHARE: u64 = 10;
const SIZE_MIN: u64 = 2 << 30;
const SIZE_MAX: u64 = 64 << 30;
/// Folder of the ring on a drive that is given as a directory: what is mounted is rarely quite empty.
const RING_DIR: &str = "stoker-ring";

/// The drive in the node's own directory.
pub fn own(dir: &Path, size: Option<u64>) -> Result<DriveOptions, Failure> {
    sized(dir.join("ring"), size)
}

/// A drive that a person named.
pub fn named(path: &Path, size: Option<u64>) -> Result<DriveOptions, Failure> {
    let absolute = std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e))?;
    if !absolute.exists() {
        let cause = format!("drive {} is not there", absolute.display());
        return Err(Failure::new(cause).hint("mount it, or make the directory"));
    }
    let is_folder = absolute.is_dir() && !holds_ring(&absolute);
    sized(if is_folder { absolute.join(RING_DIR) } else { absolute }, size)
}

fn holds_ring(dir: &Path) -> bool {
    dir.join("superblock").exists()
}

/// Finds a size for a ring that has to be made.
fn sized(path: PathBuf, size: Option<u64>) -> Result<DriveOptions, Failure> {
    let kind = Drive::kind_of(&path).map_err(|e| Failure::io(path.display(), &e))?;
    let is_made = match kind {
        DriveKind::Directory => holds_ring(&path),
        DriveKind::File => path.metadata().is_ok_and(|meta| meta.len() > 0),
        // Whole, if nobody says otherwise.
        DriveKind::Device => true,
    };
    let size_bytes = match size {
        None if !is_made => Some(size_for(&path)?),
        other => other,
    };
    Ok(DriveOptions { path, size_bytes })
}

/// A tenth of what is free, within bounds; refuses where not even the least fits.
fn size_for(path: &Path) -> Result<u64, Failure> {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let (free, _) = stoker_ring::disk_space(existing).map_err(|e| Failure::io(existing.display(), &e))?;
    if free < SIZE_MIN {
        let (free, need) = (size::human(free), size::human(SIZE_MIN));
        let cause = format!("{} has {free} free, a ring takes at least {need}", existing.display());
        return Err(Failure::new(cause).hint("free some space, or choose --dir or a --size"));
    }
    Ok(share_of(free))
}

fn share_of(free: u64) -> u64 {
    (free / 100 * FREE_SHARE).clamp(SIZE_MIN, SIZE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_free_space_within_bounds() {
        let gb = 1_000_000_000;
        for (free, size) in
            [(3 << 30, 2 << 30), (10 * gb, 2 << 30), (100 * gb, 10 * gb), (10_000 * gb, 64 << 30)]
        {
            assert_eq!(share_of(free), size);
        }
    }

    #[test]
    fn a_mounted_drive_gets_a_folder_and_a_ring_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let size = Some(64 << 20);
        assert_eq!(named(dir.path(), size).unwrap().path, dir.path().join("stoker-ring"));
        std::fs::write(dir.path().join("superblock"), "").unwrap();
        let drive = named(dir.path(), None).unwrap();
        assert_eq!((drive.path.as_path(), drive.size_bytes), (dir.path(), None));
        assert!(named(&dir.path().join("typo"), size).is_err());
    }
}
