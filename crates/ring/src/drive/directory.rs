//! A directory drive: `superblock`, `lock`, and one file per segment.
//!
//! A segment file appears under its name by rename, complete: full size, zero-written, both headers in place. So a
//! short or headerless file under that name is damage, not an interrupted start.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stoker_format::BLOCK;

use super::{Drive, InitOptions, segments_in, sync_dir, zero_range};
use crate::buffer::Buf;
use crate::error::{ErrorKind, Result, RingError};
use crate::sys::{self, write_all};

pub fn segment_path(drive: &Drive, segment: u32) -> PathBuf {
    drive.path.join(format!("segment-{segment:08}"))
}

pub fn leased_path(drive: &Drive, segment: u32) -> PathBuf {
    drive.path.join(format!("segment-{segment:08}.leased"))
}

/// Makes the directory and an empty superblock file; returns the number of segments and the data offset.
pub fn make(path: &Path, options: &InitOptions) -> Result<(u32, u64)> {
    let io_error = |e: io::Error| RingError::io(path.display(), &e);
    let count = segments_in(options.size, options)?;
    let existed = path.exists();
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error)?;
    if path.join("superblock").exists() {
        if !options.force {
            let message = format!("{} holds a ring already (use --force to destroy it)", path.display());
            return Err(RingError::new(ErrorKind::Invalid, message));
        }
        let _lock = super::lock(path, super::DriveKind::Directory)?;
        remove_ring(path).map_err(io_error)?;
    }
    let (free, _) = sys::disk_space(path).map_err(io_error)?;
    let need = u64::from(count) * options.segment_size;
    if need > free {
        if !existed {
            let _ = fs::remove_dir(path);
        }
        let message =
            format!("{}: {need} bytes wanted, {free} are free (choose a smaller --size)", path.display());
        return Err(RingError::new(ErrorKind::Io, message));
    }
    let file = options_private().truncate(true).open(path.join("superblock"));
    file.and_then(|file| file.set_len(2 * BLOCK as u64)).map_err(io_error)?;
    Ok((count, 0))
}

fn remove_ring(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == "superblock" || name.starts_with("segment-") {
            fs::remove_file(entry.path())?;
        }
    }
    sync_dir(path)
}

/// Opens every segment file; one that was cut short is an error.
pub fn open_segments(drive: &Drive, write: bool) -> Result<Vec<Option<Arc<File>>>> {
    let mut files = Vec::with_capacity(drive.superblock.segment_count as usize);
    for segment in 0..drive.superblock.segment_count {
        let path = segment_path(drive, segment);
        if write {
            // Half made when the last process ended.
            let _ = fs::remove_file(path.with_extension("new"));
        }
        let file = match sys::open_direct(&path, write, false) {
            Ok((file, _)) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(RingError::io(path.display(), &e)),
        };
        if let Some(file) = &file {
            let meta = file.metadata().map_err(|e| RingError::io(path.display(), &e))?;
            if write {
                close_to_others(file, &meta);
            }
            let len = meta.len();
            if len != drive.superblock.segment_size {
                let want = drive.superblock.segment_size;
                let message =
                    format!("{} has {len} bytes instead of {want}: it was cut short", path.display());
                return Err(RingError::new(ErrorKind::Corrupt, message));
            }
        }
        files.push(file.map(Arc::new));
    }
    Ok(files)
}

/// Paths of open segment files at which another file lies now, or none.
pub fn files_gone(drive: &Drive, files: &[Option<Arc<File>>]) -> Vec<PathBuf> {
    let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let is_gone = |(segment, file): (usize, &Option<Arc<File>>)| {
        let open = file.as_ref()?.metadata().ok().map(place)?;
        let path = segment_path(drive, segment as u32);
        (fs::metadata(&path).ok().map(place) != Some(open)).then_some(path)
    };
    files.iter().enumerate().filter_map(is_gone).collect()
}

/// Makes a segment file beside the old one and moves it into place.
pub fn prepare(drive: &Drive, segment: u32, header: &[u8]) -> io::Result<File> {
    let path = segment_path(drive, segment);
    let fresh = path.with_extension("new");
    let made = make_file(drive, &fresh, header);
    if made.is_err() {
        // Leave no half-made file behind on a full device.
        let _ = fs::remove_file(&fresh);
    }
    let file = made?;
    fs::rename(&fresh, &path)?;
    sync_dir(&drive.path)?;
    Ok(file)
}

fn make_file(drive: &Drive, path: &Path, header: &[u8]) -> io::Result<File> {
    // One that a crash left may have another mode.
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    options_private().truncate(true).open(path)?;
    let (file, _) = sys::open_direct(path, true, false)?;
    let size = drive.superblock.segment_size;
    sys::allocate(&file, size)?;
    zero_range(&file, 0, size)?;
    let header = Buf::copy_of(header);
    write_all(&file, 0, &header)?;
    write_all(&file, size - BLOCK as u64, &header)?;
    file.sync_all()?;
    Ok(file)
}

/// A file that only its owner can read: records hold what users wrote.
fn options_private() -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).mode(0o600);
    options
}

/// Takes a segment file of an older release away from everybody but its owner.
pub fn close_to_others(file: &File, meta: &fs::Metadata) {
    if meta.is_file() && meta.permissions().mode() & 0o077 != 0 {
        // One that belongs to another user stays as it is, and `stoker doctor` tells.
        let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
    }
}

pub fn mark_leased(drive: &Drive, segment: u32) -> io::Result<()> {
    options_private().truncate(false).open(leased_path(drive, segment))?.sync_all()?;
    sync_dir(&drive.path)
}

pub fn unmark_leased(drive: &Drive, segment: u32) -> io::Result<()> {
    match fs::remove_file(leased_path(drive, segment)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => sync_dir(&drive.path),
    }
}
