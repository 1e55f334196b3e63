//! The host cache: verified bytes of files in shared memory of the machine, for all processes of one user.
//!
//! One file for each version, in a directory of a memory file system: a page that says what it is, a table of CRC32C, one for
//! each block, and the bytes. It is written beside its name while a load reads the drive, and gets its name when it is whole;
//! who is killed meanwhile leaves a part that the next one removes. Whoever reads holds a shared lock on the file, so that the
//! oldest files, which go when there is no room, are those that nobody reads. Bytes are read by the kernel's copy into the
//! buffer and checked there: what was damaged in memory is not used, its file goes, and the bytes come from the drive.
//!
//! Bytes are never read or written through a mapping, so a file that somebody cuts short is an error and no signal. A mapping is
//! only used to ask for huge pages, which halve what a copy costs and which such file systems give to mappings alone.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stoker_format::{crc32c, crc64};

use pages::Pages;

mod pages;

/// Bytes that one checksum covers. Two of them fit the slack of a buffer.
pub const BLOCK: usize = 64 << 10;
/// What is read before it is checked: still near the core then.
const STEP: usize = 4 * BLOCK;

const MAGIC: [u8; 8] = *b"StkrGpuC";
const HEAD: usize = 4096;
const NAME_MAX: usize = 2048;
/// Where the length of the identity is.
const NAME_AT: usize = 28;
/// Bytes begin at a multiple of this, so that huge pages fit.
const DATA_ALIGN: u64 = 2 << 20;
/// Files larger than this have a table that is not worth it.
const SIZE_MAX: u64 = 4 << 40;
/// Entries of the directory that are looked at.
const FILES_MAX: usize = 4096;

const WHOLE: &str = "weights";
const PART: &str = "part";

/// Names of parts, within a process.
static PARTS: AtomicU64 = AtomicU64::new(0);

/// A directory of the cache.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    capacity: u64,
}

/// Where things are in a file.
#[derive(Clone, Copy)]
struct Layout {
    size: u64,
    blocks: usize,
    data: u64,
}

impl Layout {
    fn of(size: u64) -> Option<Layout> {
        let blocks = usize::try_from(size.div_ceil(BLOCK as u64)).ok()?;
        let data = (HEAD as u64 + 4 * blocks as u64).next_multiple_of(DATA_ALIGN);
        (0 < size && size <= SIZE_MAX).then_some(Layout { size, blocks, data })
    }

    fn whole(self) -> u64 {
        self.data + self.size
    }

    /// Bytes of a block.
    fn block(self, number: usize) -> Range<u64> {
        let start = number as u64 * BLOCK as u64;
        start..(start + BLOCK as u64).min(self.size)
    }
}

fn head(layout: Layout, identity: &str, table: &[u8]) -> Vec<u8> {
    let mut head = vec![0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&layout.size.to_le_bytes());
    head[16..20].copy_from_slice(&(BLOCK as u32).to_le_bytes());
    head[20..28].copy_from_slice(&crc64(table).to_le_bytes());
    head[NAME_AT..NAME_AT + 4].copy_from_slice(&(identity.len() as u32).to_le_bytes());
    head[NAME_AT + 4..NAME_AT + 4 + identity.len()].copy_from_slice(identity.as_bytes());
    let sum = crc64(&head[..HEAD - 8]);
    head[HEAD - 8..].copy_from_slice(&sum.to_le_bytes());
    head
}

impl Cache {
    /// A directory, made if it is not there. It belongs to this user and is closed to all others: what is in it was read with
    /// the rights of this user.
    pub fn open(dir: &Path, capacity: u64) -> io::Result<Cache> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let meta = fs::symlink_metadata(dir)?;
        // SAFETY: asks for a number.
        let user = unsafe { libc::geteuid() };
        if !meta.is_dir() || meta.uid() != user || meta.permissions().mode() & 0o077 != 0 {
            let message = format!("{} is not a directory of this user alone (mode 0700)", dir.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Cache { dir: dir.to_owned(), capacity })
    }

    fn path(&self, identity: &str, size: u64) -> PathBuf {
        self.dir.join(format!("{:016x}-{size:x}.{WHOLE}", crc64(identity.as_bytes())))
    }

    /// The bytes of a version, if they are here whole.
    pub fn find(&self, identity: &str, size: u64) -> Option<Hit> {
        let layout = Layout::of(size)?;
        let path = self.path(identity, size);
        let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
        // Whoever takes it away has it locked alone.
        file.try_lock_shared().ok()?;
        let mut table = vec![0; 4 * layout.blocks];
        let (mut found, mut said) = (vec![0; HEAD], [0; 8]);
        let is_whole = file.metadata().is_ok_and(|meta| meta.len() == layout.whole());
        if !is_whole
            || file.read_exact_at(&mut found, 0).is_err()
            || file.read_exact_at(&mut table, HEAD as u64).is_err()
        {
            return None;
        }
        said.copy_from_slice(&found[..8]);
        if said != MAGIC || found != head(layout, identity, &table) {
            let _ = fs::remove_file(&path);
            return None;
        }
        touch(&file);
        let table =
            table.chunks_exact(4).map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])).collect();
        Some(Hit { file, path, layout, table, is_damaged: AtomicBool::new(false) })
    }

    /// Begins to keep a version; the error says why it is not.
    pub fn begin(&self, identity: &str, size: u64) -> Result<Fill, String> {
        let layout = Layout::of(size).ok_or("its size is none that is cached")?;
        if identity.len() > NAME_MAX {
            return Err("its name is too long".to_owned());
        }
        let lock =
            File::options().write(true).create(true).truncate(false).mode(0o600).open(self.dir.join("lock"));
        let lock = lock.and_then(|file| file.lock().map(|()| file)).map_err(|error| error.to_string())?;
        self.make_room(layout.whole())?;
        let number = PARTS.fetch_add(1, Ordering::Relaxed);
        let part = self.dir.join(format!("{}-{number}.{PART}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&part);
        let file = file.map_err(|error| error.to_string())?;
        let fill = Fill {
            part,
            whole: self.path(identity, size),
            identity: identity.to_owned(),
            layout,
            sums: (0..layout.blocks).map(|_| AtomicU64::new(0)).collect(),
            failed: AtomicU32::new(0),
            pages: OnceLock::new(),
            file,
        };
        // Before the lock goes: a part that nobody holds is a leftover.
        let made = fill.file.lock_shared().and_then(|()| fill.file.set_len(layout.whole()));
        made.map_err(|error| error.to_string())?;
        drop(lock);
        Ok(fill)
    }

    /// Removes leftovers, and the files that were not used for the longest time until so many bytes fit.
    fn make_room(&self, bytes: u64) -> Result<(), String> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|error| error.to_string())?.take(FILES_MAX).flatten() {
            let path = entry.path();
            let is_part = path.extension().is_some_and(|kind| kind == PART);
            let is_whole = path.extension().is_some_and(|kind| kind == WHOLE);
            let Ok(meta) = entry.metadata() else { continue };
            if is_part && is_unused(&path) {
                let _ = fs::remove_file(&path);
            } else if is_part || is_whole {
                files.push(((meta.mtime(), meta.mtime_nsec()), meta.len(), path, is_whole));
            }
        }
        files.sort();
        let mut held: u64 = files.iter().map(|file| file.1).sum();
        for (_, len, path, is_whole) in files {
            if held.saturating_add(bytes) <= self.capacity {
                break;
            }
            if is_whole && is_unused(&path) && fs::remove_file(&path).is_ok() {
                held -= len;
            }
        }
        match held.saturating_add(bytes) <= self.capacity {
            true => Ok(()),
            false => Err(format!(
                "it has {bytes} bytes, the cache takes {} and {held} of them are in use",
                self.capacity
            )),
        }
    }
}

/// Whether nobody holds a file.
fn is_unused(path: &Path) -> bool {
    let Ok(file) = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path) else { return false };
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Says that a file was used now.
fn touch(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: an open descriptor, and no times: the kernel takes its own.
    let _ = unsafe { libc::futimens(file.as_raw_fd(), std::ptr::null()) };
}

/// A version that is here.
#[derive(Debug)]
pub struct Hit {
    file: File,
    path: PathBuf,
    layout: Layout,
    table: Vec<u32>,
    is_damaged: AtomicBool,
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes", self.size)
    }
}

impl Hit {
    /// Verified bytes as a source gives them; none if they cannot be had here any more.
    pub fn read(&self, offset: u64, len: usize, room: &mut [u8]) -> Option<Range<usize>> {
        if self.is_damaged.load(Ordering::Relaxed) || offset >= self.layout.size {
            return None;
        }
        let first = (offset / BLOCK as u64) as usize;
        let start = self.layout.block(first).start;
        let skip = (offset - start) as usize;
        let len = len.min((self.layout.size - offset) as usize).min(room.len().saturating_sub(skip));
        // Whole blocks, as many as there is room for.
        let last = (start + (skip + len) as u64).div_ceil(BLOCK as u64) as usize;
        let fits = |number: &usize| (self.layout.block(*number).end - start) as usize <= room.len();
        let last = (first..last).rev().find(fits)?;
        let end = (self.layout.block(last).end - start) as usize;
        let mut at = 0;
        while at < end {
            let step = &mut room[at..end.min(at + STEP)];
            let number = first + at / BLOCK;
            let read = self.file.read_exact_at(step, self.layout.data + start + at as u64);
            let good = |(block, sum): (&[u8], &u32)| crc32c(block) == *sum;
            if read.is_err() || !step.chunks(BLOCK).zip(&self.table[number..]).all(good) {
                self.distrust();
                return None;
            }
            at += step.len();
        }
        Some(skip..end.min(skip + len))
    }

    /// Nobody shall find it again.
    fn distrust(&self) {
        if !self.is_damaged.swap(true, Ordering::Relaxed) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Whether bytes were found that are not what was put.
    pub fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }
}

/// A sum that is known: above the 32 bits of the sum itself.
const KNOWN: u64 = 1 << 32;

/// A version that is being read.
pub struct Fill {
    file: File,
    part: PathBuf,
    whole: PathBuf,
    identity: String,
    layout: Layout,
    sums: Box<[AtomicU64]>,
    failed: AtomicU32,
    pages: OnceLock<Option<Pages>>,
}

impl Fill {
    /// Keeps verified bytes. Blocks that are in it only in part are read once more at the end.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        if self.failed.load(Ordering::Relaxed) != 0
            || offset.saturating_add(bytes.len() as u64) > self.layout.size
        {
            return;
        }
        let pages = self.pages.get_or_init(|| Pages::new(&self.file, self.layout).ok());
        if let Some(pages) = pages {
            pages.prepare(offset, bytes.len());
        }
        let mut number = offset.div_ceil(BLOCK as u64) as usize;
        while number < self.layout.blocks {
            let block = self.layout.block(number);
            let Some(found) =
                bytes.get((block.start - offset) as usize..(block.end.max(offset) - offset) as usize)
            else {
                break;
            };
            if self.file.write_all_at(found, self.layout.data + block.start).is_err() {
                // No more memory: the load goes on without.
                self.failed.store(1, Ordering::Relaxed);
                return;
            }
            self.sums[number].store(KNOWN | u64::from(crc32c(found)), Ordering::Release);
            number += 1;
        }
    }

    /// Gives it its name. `read` fills memory with the bytes at an offset: for blocks that came in parts.
    pub fn finish<E>(mut self, mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>) -> Result<(), String> {
        let missing: Vec<usize> = (0..self.layout.blocks)
            .filter(|number| self.sums[*number].load(Ordering::Acquire) == 0)
            .collect();
        if self.failed.load(Ordering::Relaxed) != 0 {
            return Err("there is no memory for it".to_owned());
        }
        if missing.len() > self.layout.blocks / 8 + 64 {
            return Err("too little of it was read".to_owned());
        }
        let mut block = vec![0; BLOCK];
        for number in missing {
            let range = self.layout.block(number);
            let bytes = &mut block[..(range.end - range.start) as usize];
            if read(range.start, bytes).is_err() {
                return Err("the rest of it cannot be read".to_owned());
            }
            self.put(range.start, bytes);
        }
        let table: Vec<u8> =
            self.sums.iter().flat_map(|sum| (sum.load(Ordering::Acquire) as u32).to_le_bytes()).collect();
        let named = self
            .file
            .write_all_at(&table, HEAD as u64)
            .and_then(|()| self.file.write_all_at(&head(self.layout, &self.identity, &table), 0))
            .and_then(|()| self.file.flush())
            .and_then(|()| fs::rename(&self.part, &self.whole));
        match (self.failed.load(Ordering::Relaxed), named) {
            (0, Ok(())) => {
                self.part.clear();
                Ok(())
            }
            (_, Err(error)) => Err(error.to_string()),
            _ => Err("there is no memory for it".to_owned()),
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.part.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.part);
        }
    }
}
