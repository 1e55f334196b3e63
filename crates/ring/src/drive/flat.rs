//! A flat drive: a file or a block device, superblock first, segments one after the other.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stoker_format::{BLOCK, FLAT_DATA_OFFSET};

use super::{Drive, DriveKind, InitOptions, segments_in, zero_range};
use crate::buffer::Buf;
use crate::error::{ErrorKind, Result, RingError};
use crate::sys::{self, read_exact, write_all};

/// Sizes the file or checks the device; returns the number of segments and the data offset.
pub fn make(path: &Path, kind: DriveKind, options: &InitOptions) -> Result<(u32, u64)> {
    let io_error = |e: io::Error| RingError::io(path.display(), &e);
    if kind == DriveKind::File {
        File::options().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(io_error)?;
    }
    let _lock = super::lock(path, kind)?;
    let (file, _) = sys::open_direct(path, true, kind == DriveKind::Device).map_err(io_error)?;
    let available = match kind {
        DriveKind::Device => {
            let (size, logical) = sys::device_geometry(&file).map_err(io_error)?;
            if logical as usize > BLOCK {
                let message =
                    format!("{} has logical blocks of {logical} bytes, more than 4 KiB", path.display());
                return Err(RingError::new(ErrorKind::Invalid, message));
            }
            size
        }
        _ => options.size,
    };
    let size = if options.size == 0 { available } else { options.size.min(available) };
    let count = segments_in(size.saturating_sub(FLAT_DATA_OFFSET), options)?;
    if !options.force && !looks_empty(&file).map_err(io_error)? {
        let message = format!("{} is not empty (use --force to destroy what is there)", path.display());
        return Err(RingError::new(ErrorKind::Invalid, message));
    }
    let len = FLAT_DATA_OFFSET + u64::from(count) * options.segment_size;
    if kind == DriveKind::File {
        file.set_len(0).map_err(io_error)?;
        sys::allocate(&file, len).map_err(io_error)?;
    }
    // Old segment headers carry another ring id, but a cleared start makes `looks_empty` and other tools agree.
    zero_range(&file, 0, FLAT_DATA_OFFSET).map_err(io_error)?;
    file.sync_all().map_err(io_error)?;
    Ok((count, FLAT_DATA_OFFSET))
}

fn looks_empty(file: &File) -> io::Result<bool> {
    let mut start = Buf::heap(64 << 10);
    match read_exact(file, 0, &mut start) {
        Ok(()) => Ok(start.as_slice().iter().all(|&b| b == 0)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        Err(e) => Err(e),
    }
}

/// The file or device must be as large as its superblock says.
pub fn check_size(drive: &Drive, file: &File) -> Result<()> {
    let io_error = |e: io::Error| RingError::io(drive.path.display(), &e);
    let have = match drive.kind {
        DriveKind::Device => sys::device_geometry(file).map_err(io_error)?.0,
        _ => file.metadata().map_err(io_error)?.len(),
    };
    let superblock = &drive.superblock;
    let want = superblock.data_offset + u64::from(superblock.segment_count) * superblock.segment_size;
    if have == 0 && drive.kind == DriveKind::Device {
        return Err(super::gone(&drive.path));
    }
    if have < want {
        let path = drive.path.display();
        let message =
            format!("{path} has {have} bytes instead of {want}: it was cut short, or is another drive");
        return Err(RingError::new(ErrorKind::Corrupt, message));
    }
    Ok(())
}

/// Zero-writes a segment (on files, so that extents are written; a device has none) and writes its headers.
pub fn prepare(drive: &Drive, segment: u32, header: &[u8]) -> io::Result<()> {
    let (file, start) = drive.file(segment).ok_or_else(|| io::Error::other("no such segment"))?;
    let size = drive.superblock.segment_size;
    if drive.kind == DriveKind::File {
        zero_range(&file, start, size)?;
    }
    let header = Buf::copy_of(header);
    write_all(&file, start, &header)?;
    write_all(&file, start + size - BLOCK as u64, &header)?;
    file.sync_data()
}
