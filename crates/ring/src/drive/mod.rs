//! A drive as the operating system shows it: a directory with a file per segment, one large file, or a block device.
//!
//! This module owns the superblock, the lock and the segment files. Everything here blocks; the hot path goes through
//! the executors with the descriptors that [`Drive::file`] hands out.

mod directory;
mod flat;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use stoker_format::{
    Access, BLOCK, ClusterId, DriveId, FORMAT_VERSION, KeyId, Layout, NodeId, RingId, SEGMENT_SIZE_DEFAULT,
    SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, Superblock, negotiate,
};

use crate::buffer::Buf;
use crate::error::{ErrorKind, Result, RingError};
use crate::recovery::{Media, Shape};
use crate::sys::{self, read_exact, write_all};

/// What kind of thing holds the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriveKind {
    /// A directory, one file per segment.
    Directory,
    /// One file.
    File,
    /// A block device.
    Device,
}

/// How a new ring is made.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// Cluster that the drive belongs to.
    pub cluster: ClusterId,
    /// Node that it sits in.
    pub node: NodeId,
    /// Bytes to use; a device is used whole if zero.
    pub size: u64,
    /// Bytes per segment.
    pub segment_size: u64,
    /// A name for people.
    pub label: String,
    /// Make a directory drive even if the path looks like a file name, or a file drive of this kind.
    pub kind: DriveKind,
    /// Overwrite what is there.
    pub force: bool,
}

impl Default for InitOptions {
    fn default() -> InitOptions {
        InitOptions {
            cluster: ClusterId::ZERO,
            node: NodeId::ZERO,
            size: 0,
            segment_size: SEGMENT_SIZE_DEFAULT,
            label: String::new(),
            kind: DriveKind::Directory,
            force: false,
        }
    }
}

/// An open drive.
pub struct Drive {
    path: PathBuf,
    kind: DriveKind,
    superblock: Superblock,
    direct: bool,
    read_only: bool,
    lock: File,
    /// Directory: a file per segment. Otherwise one file for all.
    files: RwLock<Vec<Option<Arc<File>>>>,
}

impl Drive {
    /// What lies at a path; a path that does not exist becomes a directory.
    pub fn kind_of(path: &Path) -> io::Result<DriveKind> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(DriveKind::Directory),
            Ok(meta) if meta.file_type().is_block_device() => Ok(DriveKind::Device),
            Ok(meta) if meta.is_file() => Ok(DriveKind::File),
            Ok(_) => Err(io::Error::other("neither a directory, nor a file, nor a block device")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(DriveKind::Directory),
            Err(e) => Err(e),
        }
    }

    /// Makes a new ring; refuses to overwrite one unless forced.
    pub fn init(path: &Path, options: &InitOptions, created_unix_ms: u64) -> Result<Superblock> {
        check_geometry(options)?;
        let exists = path.exists();
        let kind = match exists {
            true => Drive::kind_of(path).map_err(|e| RingError::io(path.display(), &e))?,
            false => options.kind,
        };
        let (count, data_offset) = match kind {
            DriveKind::Directory => directory::make(path, options)?,
            DriveKind::File | DriveKind::Device => flat::make(path, kind, options)?,
        };
        let superblock = Superblock {
            cluster: options.cluster,
            node: options.node,
            drive: DriveId(sys::random_bytes()),
            ring: RingId(sys::random_bytes()),
            incarnation: 1,
            boot: 0,
            update: 1,
            segment_size: options.segment_size,
            segment_count: count,
            layout: if kind == DriveKind::Directory { Layout::Directory } else { Layout::Flat },
            created_unix_ms,
            data_offset,
            label: options.label.clone(),
            key: KeyId(0),
            format_version: FORMAT_VERSION,
            reader_version_min: 1,
            features_incompat: 0,
            features_ro_compat: 0,
            features_compat: 0,
        };
        let place = superblock_path(path, kind);
        // Nobody may open the ring before it is whole.
        let _lock = lock(path, kind)?;
        let (file, _) =
            sys::open_direct(&place, true, false).map_err(|e| RingError::io(place.display(), &e))?;
        for copy in 0..2 {
            write_superblock(&file, &superblock, copy).map_err(|e| RingError::io(place.display(), &e))?;
        }
        if kind == DriveKind::Directory {
            sync_dir(path).map_err(|e| RingError::io(path.display(), &e))?;
        }
        Ok(superblock)
    }

    /// The superblock of the ring at a path, without its lock; none if there is no ring.
    pub fn superblock_at(path: &Path) -> Result<Option<Superblock>> {
        let io_error = |e: io::Error| RingError::io(path.display(), &e);
        let place = match path.try_exists().map_err(io_error)? {
            true => superblock_path(path, Drive::kind_of(path).map_err(io_error)?),
            false => return Ok(None),
        };
        if !place.try_exists().map_err(io_error)? {
            return Ok(None);
        }
        let (file, _) = sys::open_direct(&place, false, false).map_err(io_error)?;
        read_superblock(&file, &place).map(Some)
    }

    /// Opens a ring for writing: takes the lock, checks identity, notes the boot.
    pub fn open(path: &Path, cluster: Option<ClusterId>) -> Result<Drive> {
        let mut drive = Drive::open_any(path, true)?;
        let found = drive.superblock.cluster;
        if let Some(cluster) = cluster.filter(|c| *c != found) {
            let message = match found {
                ClusterId::ZERO => format!(
                    "{} holds a ring without a cluster (give the empty ring this one: `stoker ring init --force --cluster \
                     {cluster} --size SIZE --dir {0}`, or remove it and let the node make its ring)",
                    path.display()
                ),
                _ => format!(
                    "{} belongs to cluster {found}, not to {cluster}: it is left alone",
                    path.display()
                ),
            };
            return Err(RingError::new(ErrorKind::Foreign, message));
        }
        if drive.read_only {
            let message =
                format!("{} has features that this version can only read: upgrade Stoker", path.display());
            return Err(RingError::new(ErrorKind::Foreign, message));
        }
        drive.note_boot()?;
        drive.settle()?;
        Ok(drive)
    }

    /// Opens a ring for looking only; takes the lock as well, since a running ring moves under one's eyes.
    pub fn open_read_only(path: &Path) -> Result<Drive> {
        Drive::open_any(path, false)
    }

    fn open_any(path: &Path, write: bool) -> Result<Drive> {
        let io_error = |e: io::Error| RingError::io(path.display(), &e);
        if !path.exists() {
            let message = format!("{} does not exist (make a ring with `stoker ring init`)", path.display());
            return Err(RingError::new(ErrorKind::NotFound, message));
        }
        let kind = Drive::kind_of(path).map_err(io_error)?;
        let place = superblock_path(path, kind);
        if !place.exists() {
            let message = format!("{} holds no ring (make one with `stoker ring init`)", path.display());
            return Err(RingError::new(ErrorKind::NotFound, message));
        }
        let lock = lock(path, kind)?;
        let (file, direct) = sys::open_direct(&place, write, kind == DriveKind::Device).map_err(io_error)?;
        let superblock = read_superblock(&file, &place)?;
        let access = negotiate(&superblock)
            .map_err(|e| RingError::new(ErrorKind::Foreign, format!("{}: {e}", path.display())))?;
        let mut drive = Drive {
            path: path.to_owned(),
            kind,
            superblock,
            direct,
            read_only: !write || access == Access::ReadOnly,
            lock,
            files: RwLock::new(Vec::new()),
        };
        drive.files = RwLock::new(match kind {
            DriveKind::Directory => directory::open_segments(&drive, write)?,
            _ => {
                flat::check_size(&drive, &file)?;
                if let (true, Ok(meta)) = (write, file.metadata()) {
                    directory::close_to_others(&file, &meta);
                }
                vec![Some(Arc::new(file))]
            }
        });
        Ok(drive)
    }

    /// What a killed process wrote may be in the drive's cache only, or in the page cache where O_DIRECT is not to be had.
    /// It is made durable before recovery believes it: a power cut must not take back what recovery saw.
    fn settle(&self) -> Result<()> {
        let synced = self.superblock_file().and_then(|file| match self.kind {
            DriveKind::Device => file.sync_all(),
            _ => sys::sync_file_system(&file),
        });
        synced.map_err(|e| RingError::io(self.path.display(), &e))
    }

    fn note_boot(&mut self) -> Result<()> {
        self.superblock.boot += 1;
        self.superblock.update += 1;
        let place = superblock_path(&self.path, self.kind);
        let copy = self.superblock.update % 2;
        let file = sys::open_direct(&place, true, false).map(|(file, _)| file);
        file.and_then(|file| write_superblock(&file, &self.superblock, copy))
            .map_err(|e| RingError::io(place.display(), &e))
    }

    /// The file or device that holds the superblock, for reading.
    pub fn superblock_file(&self) -> io::Result<File> {
        sys::open_direct(&superblock_path(&self.path, self.kind), false, false).map(|(file, _)| file)
    }

    /// Identity and geometry.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Where the drive is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What kind of thing it is.
    pub fn kind(&self) -> DriveKind {
        self.kind
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Geometry for the engine and recovery.
    pub fn shape(&self) -> Shape {
        Shape::of(&self.superblock)
    }

    /// The descriptor that holds the drive's lock. An io_uring must keep it registered: after a kill its writes may still
    /// be on their way, and nobody may open the drive before they have landed.
    pub fn lock_fd(&self) -> RawFd {
        self.lock.as_raw_fd()
    }

    /// The file that holds a segment and where it starts in it.
    pub fn file(&self, segment: u32) -> Option<(Arc<File>, u64)> {
        let files = self.files.read().unwrap();
        match self.kind {
            DriveKind::Directory => files.get(segment as usize)?.clone().map(|file| (file, 0)),
            _ => {
                let superblock = &self.superblock;
                let start = superblock.data_offset + u64::from(segment) * superblock.segment_size;
                files[0].clone().map(|file| (file, start))
            }
        }
    }

    /// Where a segment starts in its file; None if it was not made yet.
    pub fn start_of(&self, segment: u32) -> Option<u64> {
        match self.kind {
            DriveKind::Directory => self.files.read().unwrap().get(segment as usize)?.as_ref().map(|_| 0),
            _ => Some(self.superblock.data_offset + u64::from(segment) * self.superblock.segment_size),
        }
    }

    /// Makes a segment: full size, zero-written, headers in place, all durable.
    pub fn prepare(&self, segment: u32, header: &[u8], replace: bool) -> io::Result<()> {
        match self.kind {
            DriveKind::Directory => {
                let file = directory::prepare(self, segment, header)?;
                self.files.write().unwrap()[segment as usize] = Some(Arc::new(file));
                if replace {
                    directory::unmark_leased(self, segment)?;
                }
                Ok(())
            }
            _ => flat::prepare(self, segment, header),
        }
    }

    /// Segment files that are not at their path any more.
    pub(crate) fn files_gone(&self) -> Vec<PathBuf> {
        match self.kind {
            // While one is replaced it is at its path only after its rename; whoever replaces has the list.
            DriveKind::Directory => directory::files_gone(self, &self.files.read().unwrap()),
            DriveKind::File | DriveKind::Device => Vec::new(),
        }
    }

    /// Where a segment is, for messages.
    pub fn segment_path(&self, segment: u32) -> PathBuf {
        match self.kind {
            DriveKind::Directory => directory::segment_path(self, segment),
            DriveKind::File | DriveKind::Device => self.path.clone(),
        }
    }

    /// Remembers durably that a lease on a segment was given out.
    pub fn mark_leased(&self, segment: u32) -> io::Result<()> {
        match self.kind {
            DriveKind::Directory => directory::mark_leased(self, segment),
            _ => Err(io::Error::other("only directory drives give leases")),
        }
    }

    /// A read-only descriptor of a segment file, to be handed to another process.
    pub fn lease_file(&self, segment: u32) -> io::Result<OwnedFd> {
        let (file, _) = self.file(segment).ok_or_else(|| io::Error::other("no such segment"))?;
        // Opened anew through /proc, so that the holder gets neither our write access nor our file offset.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(sys::open_direct(&path, false, false)?.0.into())
    }
}

impl Media for Drive {
    fn exists(&self, segment: u32) -> Result<bool> {
        Ok(self.file(segment).is_some())
    }

    fn read(&self, segment: u32, offset: u32, buf: &mut Buf) -> io::Result<()> {
        let (file, start) = self.file(segment).ok_or_else(|| io::Error::other("no such segment"))?;
        read_exact(&file, start + u64::from(offset), buf)
    }

    fn leased(&self, segment: u32) -> bool {
        self.kind == DriveKind::Directory && directory::leased_path(self, segment).exists()
    }

    fn foreign_is_error(&self) -> bool {
        self.kind == DriveKind::Directory
    }
}

/// Segments that a ring should have at least, so that reclaim has a choice.
const SEGMENTS_WANTED: u64 = 16;

/// The segment size of a ring for which nobody chose one: the usual one, or less if the ring would have too few.
pub fn segment_size_for(bytes: u64) -> u64 {
    let most = (bytes / SEGMENTS_WANTED).max(SEGMENT_SIZE_MIN);
    SEGMENT_SIZE_DEFAULT.min(1 << most.ilog2())
}

fn check_geometry(options: &InitOptions) -> Result<()> {
    let size = options.segment_size;
    if !(SEGMENT_SIZE_MIN..=SEGMENT_SIZE_MAX).contains(&size) || !size.is_multiple_of(BLOCK as u64) {
        let message = format!(
            "segment size {size} must be whole 4 KiB blocks between {SEGMENT_SIZE_MIN} and {SEGMENT_SIZE_MAX} bytes"
        );
        return Err(RingError::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Number of segments in `bytes`, or an error that says how much is needed.
fn segments_in(bytes: u64, options: &InitOptions) -> Result<u32> {
    let count = bytes / options.segment_size;
    if count < 8 {
        let need = options.segment_size * 8;
        let message = format!("{bytes} bytes are too few: a ring has at least 8 segments, here {need} bytes");
        return Err(RingError::new(ErrorKind::Invalid, message));
    }
    u32::try_from(count)
        .ok()
        .filter(|&count| count <= stoker_format::SEGMENT_COUNT_MAX)
        .ok_or_else(|| RingError::new(ErrorKind::Invalid, format!("{count} segments are too many")))
}

fn superblock_path(path: &Path, kind: DriveKind) -> PathBuf {
    if kind == DriveKind::Directory { path.join("superblock") } else { path.to_owned() }
}

fn lock(path: &Path, kind: DriveKind) -> Result<File> {
    let place = if kind == DriveKind::Directory { path.join("lock") } else { path.to_owned() };
    let mut options = File::options();
    options.read(true).write(true).create(kind == DriveKind::Directory).truncate(false).mode(0o600);
    let file = options.open(&place).map_err(|e| RingError::io(place.display(), &e))?;
    for _ in 0..LOCK_TRIES {
        match sys::try_lock(&file) {
            Ok(true) => return Ok(file),
            // A process that was just killed holds the lock until its last write has landed.
            Ok(false) => std::thread::sleep(LOCK_PAUSE),
            Err(e) => return Err(RingError::io(place.display(), &e)),
        }
    }
    Err(RingError::new(ErrorKind::Locked, format!("{} is in use by another process", path.display())))
}

/// How long the lock of a dying process is waited for: a second.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Whether a read failed because the device behind an open file was taken away: the kernel says so, or has nothing left of it.
fn is_gone(file: &File, error: &io::Error) -> bool {
    let is_empty = || {
        use std::os::unix::fs::FileTypeExt;
        file.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
            && sys::device_geometry(file).is_ok_and(|(bytes, _)| bytes == 0)
    };
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) || is_empty()
}

/// The error for a device that was taken away. Its bytes are not bad: they are elsewhere.
fn gone(place: &Path) -> RingError {
    let message =
        format!("{} is gone: the device was removed, or does not answer (put it back)", place.display());
    RingError::new(ErrorKind::Io, message)
}

fn read_superblock(file: &File, place: &Path) -> Result<Superblock> {
    let mut buf = Buf::heap(2 * BLOCK);
    read_exact(file, 0, &mut buf).map_err(|e| {
        if is_gone(file, &e) {
            return gone(place);
        }
        let hint = match e.raw_os_error() {
            Some(libc::EINVAL) => " (the device's logical block size is larger than 4 KiB: not supported)",
            _ => " (the superblock is cut short)",
        };
        RingError::new(ErrorKind::Foreign, format!("{}: {e}{hint}", place.display()))
    })?;
    let (a, b) = buf.as_slice().split_at(BLOCK);
    Superblock::newest(a, b)
        .map_err(|e| RingError::new(ErrorKind::Foreign, format!("{}: {e}", place.display())))
}

fn write_superblock(file: &File, superblock: &Superblock, copy: u64) -> io::Result<()> {
    write_all(file, copy * BLOCK as u64, &Buf::copy_of(&superblock.encode()))?;
    file.sync_all()
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes zeroes over a range, so that later durable writes find written extents.
fn zero_range(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mut zeroes = Buf::heap(1 << 20);
    let mut done = 0;
    while done < len {
        zeroes.set_len((1 << 20).min(len - done) as usize);
        write_all(file, start + done, &zeroes)?;
        done += zeroes.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rings_get_small_segments() {
        for (ring, segment) in
            [(64 << 30, 256 << 20), (4 << 30, 256 << 20), (2 << 30, 128 << 20), (64 << 20, 4 << 20)]
        {
            assert_eq!(segment_size_for(ring), segment);
        }
        assert_eq!(segment_size_for(0), SEGMENT_SIZE_MIN);
    }

    #[test]
    fn a_device_that_was_removed_is_gone_and_not_damaged() {
        let file = tempfile::tempfile().unwrap();
        for (number, expect) in
            [(libc::ENXIO, true), (libc::ENODEV, true), (libc::EIO, false), (libc::EINVAL, false)]
        {
            assert_eq!(is_gone(&file, &io::Error::from_raw_os_error(number)), expect, "{number}");
        }
        // An empty file is cut short; only a device without bytes is gone.
        assert!(!is_gone(&file, &io::Error::from(io::ErrorKind::UnexpectedEof)));
        let fault = gone(Path::new("/dev/nvme9n1"));
        assert_eq!(fault.kind, ErrorKind::Io);
        assert!(fault.message.contains("/dev/nvme9n1 is gone"), "{}", fault.message);
        let cut = read_superblock(&file, Path::new("f")).unwrap_err();
        assert_eq!(cut.kind, ErrorKind::Foreign, "{}", cut.message);
    }
}
