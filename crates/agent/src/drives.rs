//! Which rings a node has, and how large a new one becomes.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stoker_node::DriveOptions;
use stoker_store::{ErrorKind, StoreError};

use crate::failure::Failure;

/// The drive in the node's own directory.
pub fn own(dir: &Path, size: Option<u64>) -> Result<DriveOptions, Failure> {
    DriveOptions::sized(dir.join("ring"), size).map_err(cannot)
}

/// The drives of a configuration, without those that were taken out while the node ran.
pub fn configured<'p>(
    dir: &Path,
    drives: impl Iterator<Item = (&'p Path, Option<u64>)>,
) -> Result<Vec<DriveOptions>, Failure> {
    let removed = stoker_node::drives_removed(dir)?;
    let mut all = Vec::new();
    for (path, size) in drives {
        let absolute = std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e))?;
        let is_it = |gone: &PathBuf| *gone == absolute || gone.parent() == Some(&absolute);
        if !removed.iter().any(is_it) {
            all.push((absolute, size));
        }
    }
    // Rings that are made on one file system share what is free there.
    let place = |path: &PathBuf| path.metadata().ok().map(|meta| meta.dev());
    let share = |(path, size): &(PathBuf, Option<u64>)| {
        let beside = all.iter().filter(|(other, _)| place(other) == place(path)).count();
        named_among(path, *size, beside)
    };
    all.iter().map(share).collect()
}

/// A drive that a person named.
pub fn named(path: &Path, size: Option<u64>) -> Result<DriveOptions, Failure> {
    named_among(path, size, 1)
}

fn named_among(path: &Path, size: Option<u64>, count: usize) -> Result<DriveOptions, Failure> {
    if !path.exists() {
        let cause = format!("drive {} is not there", path.display());
        return Err(Failure::new(cause).hint("mount it, or make the directory"));
    }
    DriveOptions::named_among(path, size, count).map_err(cannot)
}

/// Why a ring cannot be made. The node says what to do about it behind a colon; nothing drains before there is a ring.
fn cannot(fault: StoreError) -> Failure {
    match fault.message.rsplit_once(": ") {
        Some((cause, advice)) if fault.kind != ErrorKind::Unavailable => Failure::new(cause).hint(advice),
        _ => Failure::new(fault.message),
    }
}

/// Where drives were that a person calls gone for good.
pub fn given_up(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e));
    paths.iter().map(absolute).collect()
}
