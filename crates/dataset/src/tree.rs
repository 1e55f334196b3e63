//! The files below a directory of this machine.
//!
//! Links to files are followed, links to directories are refused: so there are no loops, and nothing is left out quietly.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stoker_store::ErrorKind;
use tokio::sync::oneshot;

use crate::fault::{Fault, Result};
use crate::inputs::{Inputs, Source};
use crate::meter::{self, Meter};

/// Directories in directories that are entered.
const DEPTH_MAX: usize = 512;

/// Finds them on a thread of its own, which ends when nobody waits any more.
pub async fn find(root: PathBuf, meter: Arc<Meter>) -> Result<Inputs> {
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let found = walk(root, &meter, &|| sender.is_closed());
        let _ = sender.send(found);
    });
    receiver
        .await
        .unwrap_or_else(|_| Err(Fault::new("", ErrorKind::Closed, "the search for files was ended")))
}

fn walk(root: PathBuf, meter: &Meter, is_over: &dyn Fn() -> bool) -> Result<Inputs> {
    let mut inputs = Inputs::new(Source::Local(root.clone()));
    let meta = fs::metadata(&root).map_err(Fault::io(shown(&root)))?;
    if !meta.is_dir() {
        let message = "it is no directory: name one with the files to pack, or stoker://VOLUME/PREFIX";
        return Err(Fault::new(shown(&root), ErrorKind::Invalid, message));
    }
    let mut waiting = vec![(root.clone(), 1)];
    while let Some((directory, depth)) = waiting.pop() {
        for entry in fs::read_dir(&directory).map_err(Fault::io(shown(&directory)))? {
            if is_over() {
                return Err(Fault::new(shown(&root), ErrorKind::Closed, "the search for files was ended"));
            }
            let entry = entry.map_err(Fault::io(shown(&directory)))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(Fault::io(shown(&path)))?;
            if kind.is_dir() {
                if depth == DEPTH_MAX {
                    let message = format!("more than {DEPTH_MAX} directories deep");
                    return Err(Fault::new(shown(&path), ErrorKind::Invalid, message));
                }
                waiting.push((path, depth + 1));
                continue;
            }
            let meta = fs::metadata(&path).map_err(Fault::io(shown(&path)))?;
            if !meta.is_file() {
                let message =
                    "neither a file nor a directory: take it away, or pack what it leads to by itself";
                return Err(Fault::new(shown(&path), ErrorKind::Invalid, message));
            }
            let name = path.strip_prefix(&root).unwrap_or(&path).as_os_str().as_bytes();
            inputs.push(name, meta.len(), mtime_ns(&meta), [0; 12])?;
            meter::add(&meter.files, 1);
        }
    }
    Ok(inputs)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// When a file was changed, in nanoseconds since 1970.
pub fn mtime_ns(meta: &fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}
