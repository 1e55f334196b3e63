//! The bytes below the store: readable by their owner alone, and checked. (D81)
//!
//! The store keeps a checksum of every page, and looks at them only when it recovers from a crash; after a
//! clean stop it trusts what it finds. So a file is first opened as a *draft*: what the store writes stays in memory
//! while [`file`](super::file) has it check every page that is in use. Only a file that is whole is
//! [settled](Storage::settle), that is, written; one that is damaged stays as it was found.
//!
//! After that each block that is read again is compared with what was read or written before, so that bytes
//! that rot while a node runs are an error and no answer. [`space`](super::space) says what happens when there is no room.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use stoker_format::crc32c;

use super::space::{Room, Space, is_full};

/// What is checked and held as one; a page of the store is one or several of them.
const BLOCK: usize = 4096;
/// Most bytes that a draft may hold: opening writes the store's head and little else.
const DRAFT_BYTES_MAX: usize = 64 << 20;

/// The file of a catalog.
#[derive(Debug)]
pub(super) struct Storage {
    file: FileBackend,
    /// The same open file, for what the store does not ask for.
    handle: File,
    /// Blocks that are not in the file yet.
    held: Mutex<Held>,
    /// The head was written since the last flush, which is then one of a commit.
    head_written: AtomicBool,
    /// Spares reads the lock where nothing is held.
    holding: AtomicBool,
    /// Checksums of blocks, 0 where none is known.
    sums: RwLock<Vec<AtomicU32>>,
    space: Arc<Space>,
    /// Taken by each write, so that a read can wait for one under way.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    /// Everything is held, not only what finds no room.
    draft: bool,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The length that the file will have, if it changed.
    len: Option<u64>,
}

/// The part of the store's head that tells whether an old state is taken for the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The store was closed, so what it wrote last is whole.
    pub clean: bool,
    /// Of the slot in use and of the other one.
    transactions: [u64; 2],
    /// Root page of the tables and its checksum, which covers all of them.
    root: [u8; 24],
}

impl Storage {
    /// Creates a file that only its owner can read. Fails if there is one.
    pub(super) fn create(path: &Path) -> io::Result<Arc<Storage>> {
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Storage::new(file, false, Arc::new(Space::new(path, 0)))
    }

    /// Opens a file as a draft. One that others can read is closed to them first.
    pub(super) fn open_draft(path: &Path, space: &Arc<Space>) -> io::Result<Arc<Storage>> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.permissions().mode() & 0o077 != 0
            && let Err(error) = file.set_permissions(PermissionsExt::from_mode(0o600))
        {
            tracing::warn!(path = %path.display(), %error, "others can read the catalog's file; run `chmod 600` on it");
        }
        let meta = file.metadata()?;
        // About where the store is in its file; it takes the lowest pages first.
        space.written_to.store(meta.len().min(meta.blocks() * 512), Ordering::Release);
        space.reserved_to.store(0, Ordering::Release);
        Storage::new(file, true, Arc::clone(space))
    }

    fn new(file: File, draft: bool, space: Arc<Space>) -> io::Result<Arc<Storage>> {
        let handle = file.try_clone()?;
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Arc::new(Storage {
            file,
            handle,
            held: Mutex::new(Held { draft, ..Held::default() }),
            head_written: AtomicBool::new(false),
            holding: AtomicBool::new(draft),
            sums: RwLock::new(Vec::new()),
            space,
            writing: Mutex::new(()),
        }))
    }

    /// The head of the store as it stands, `None` if the file is too short for one.
    pub(super) fn head(&self) -> io::Result<Option<Head>> {
        let mut bytes = [0; 320];
        if self.length()? < bytes.len() as u64 {
            return Ok(None);
        }
        self.bytes_read(0, &mut bytes)?;
        Ok(Some(Head::decode(&bytes)))
    }

    /// Writes what a draft holds; from here on writes go to the file.
    pub(super) fn settle(&self) -> io::Result<()> {
        let mut held = self.held();
        if let Some(len) = held.len {
            self.handle.set_len(len)?;
        }
        // The head last: it must not name a page that a crash kept from the drive.
        let head = held.blocks.remove(&0);
        for (number, block) in &held.blocks {
            self.handle.write_all_at(block, number * BLOCK as u64)?;
        }
        self.handle.sync_data()?;
        if let Some(head) = head {
            self.handle.write_all_at(&head, 0)?;
            self.handle.sync_data()?;
        }
        *held = Held::default();
        self.head_written.store(false, Ordering::Release);
        self.holding.store(false, Ordering::Release);
        Ok(())
    }

    /// Reserves room for a group of commits; false while there is none.
    pub(super) fn room(&self) -> bool {
        if self.space.get() == Room::Stuck {
            return false;
        }
        let Some(wanted) = self.space.wanted() else { return true };
        let from = self.space.reserved_to.load(Ordering::Acquire);
        for to in wanted.into_iter().filter(|to| *to > from) {
            match rustix::fs::fallocate(&self.handle, FallocateFlags::KEEP_SIZE, from, to - from) {
                Ok(()) => {
                    self.space.reserved_to.store(to, Ordering::Release);
                    break;
                }
                Err(Errno::NOSPC | Errno::DQUOT) => {}
                // It cannot reserve, or says something that a write will say again.
                Err(_) => return self.told(self.has_free()),
            }
        }
        self.told(self.space.is_enough())
    }

    fn told(&self, enough: bool) -> bool {
        self.space.set(if enough { Room::Free } else { Room::Full });
        enough
    }

    fn has_free(&self) -> bool {
        let free = rustix::fs::fstatvfs(&self.handle).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        free.is_ok_and(|free| free >= self.space.free_min())
    }

    /// Writes what found no room before.
    fn held_flush(&self) -> io::Result<()> {
        if !self.holding.load(Ordering::Acquire) {
            return Ok(());
        }
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.held();
        while let Some((number, block)) = held.blocks.first_key_value() {
            self.handle.write_all_at(block, number * BLOCK as u64)?;
            held.blocks.pop_first();
        }
        self.holding.store(false, Ordering::Release);
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self) -> io::Result<u64> {
        let held = self.held().len;
        held.map_or_else(|| self.handle.metadata().map(|file| file.len()), Ok)
    }

    /// Reads bytes as they will be once everything that is held is in the file.
    fn bytes_read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if !self.holding.load(Ordering::Acquire) {
            return self.handle.read_exact_at(out, offset);
        }
        let held = self.held();
        match held.len {
            None => self.handle.read_exact_at(out, offset)?,
            // What a longer file will have at its end is zeros.
            Some(len) => {
                if offset.saturating_add(out.len() as u64) > len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                out.fill(0);
                let there = self.handle.metadata()?.len().min(len).saturating_sub(offset);
                let there = usize::try_from(there).unwrap_or(usize::MAX).min(out.len());
                self.handle.read_exact_at(&mut out[..there], offset)?;
            }
        }
        let end = offset + out.len() as u64;
        let (first, last) = (offset / BLOCK as u64, end.div_ceil(BLOCK as u64));
        for (number, block) in held.blocks.range(first..last) {
            let start = number * BLOCK as u64;
            let (from, to) = (start.max(offset), (start + block.len() as u64).min(end));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&block[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }

    /// Keeps bytes in memory instead of the file.
    fn hold(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        for number in offset / BLOCK as u64..end.div_ceil(BLOCK as u64) {
            let start = number * BLOCK as u64;
            let mut block = vec![0; BLOCK];
            let there =
                usize::try_from(self.length()?.saturating_sub(start)).unwrap_or(usize::MAX).min(BLOCK);
            self.bytes_read(start, &mut block[..there])?;
            let (from, to) = (start.max(offset), (start + BLOCK as u64).min(end));
            block[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            block.truncate(there.max((to - start) as usize));
            let mut held = self.held();
            held.blocks.insert(number, block);
            if held.draft && held.blocks.len() * BLOCK > DRAFT_BYTES_MAX {
                return Err(io::Error::other("opening the catalog's file would rewrite too much of it"));
            }
        }
        Ok(())
    }

    /// Whether whole blocks are what they were before; takes note of those that were never looked at.
    fn agrees(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut sound = true;
        self.blocks(offset, bytes, |known, sum| {
            if let Err(before) = known.compare_exchange(0, sum, Ordering::AcqRel, Ordering::Acquire) {
                sound &= before == sum;
            }
        });
        sound
    }

    /// Forgets blocks of which only a part is written.
    fn forget_partial(&self, offset: u64, len: usize) {
        let sums = self.sums.read().unwrap_or_else(PoisonError::into_inner);
        let end = offset + len as u64;
        for edge in [offset, end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK as u64)) {
            if let Some(known) = sums.get((edge / BLOCK as u64) as usize) {
                known.store(0, Ordering::Release);
            }
        }
    }

    /// Calls `each` with what is known of every whole block and its checksum. The head is none of them: it is
    /// written in parts, and the store checks it itself.
    fn blocks(&self, offset: u64, bytes: &[u8], mut each: impl FnMut(&AtomicU32, u32)) {
        let skipped = usize::try_from(offset.next_multiple_of(BLOCK as u64) - offset).unwrap_or(usize::MAX);
        let bytes = bytes.get(skipped..).unwrap_or_default();
        let first = offset.div_ceil(BLOCK as u64) as usize;
        let end = first + bytes.len() / BLOCK;
        let mut sums = self.sums.read().unwrap_or_else(PoisonError::into_inner);
        if sums.len() < end {
            drop(sums);
            let mut longer = self.sums.write().unwrap_or_else(PoisonError::into_inner);
            let len = longer.len().max(end.next_power_of_two());
            longer.resize_with(len, AtomicU32::default);
            drop(longer);
            sums = self.sums.read().unwrap_or_else(PoisonError::into_inner);
        }
        let known = sums.get(first..end).unwrap_or_default().iter();
        for (known, block) in known.zip(bytes.chunks_exact(BLOCK)).skip(usize::from(first == 0)) {
            each(known, crc32c(block).max(1));
        }
    }
}

impl Head {
    /// Offsets as the store has them: one byte of flags, two slots for the roots.
    fn decode(bytes: &[u8; 320]) -> Head {
        let flags = bytes[9];
        let slot = |number: u8| &bytes[64 + usize::from(number) * 128..][..128];
        let transaction =
            |slot: &[u8]| u64::from_le_bytes(slot[104..112].try_into().expect("eight bytes of a slot"));
        let (used, other) = (slot(flags & 1), slot(1 - (flags & 1)));
        Head {
            clean: flags & 2 == 0,
            transactions: [transaction(used), transaction(other)],
            root: used[8..32].try_into().expect("24 bytes of a slot"),
        }
    }

    /// Whether the slot in use is the last that was written.
    pub(super) fn is_last(&self) -> bool {
        self.transactions[0] >= self.transactions[1]
    }

    /// Whether both are heads of the same rows.
    pub(super) fn same_rows(&self, other: &Head) -> bool {
        self.root == other.root
    }
}

/// The way by which the store gets at the file.
#[derive(Debug)]
pub(super) struct Backend(pub(super) Arc<Storage>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.bytes_read(offset, out)?;
        if self.0.agrees(offset, out) {
            return Ok(());
        }
        // Perhaps a write of this block is under way.
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.bytes_read(offset, out)?;
        match self.0.agrees(offset, out) {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} bytes at {offset} are not those that were written", out.len()),
            )),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut held = self.0.held();
        if held.draft {
            held.len = Some(len);
            held.blocks.retain(|number, _| number * (BLOCK as u64) < len);
        } else {
            self.0.handle.set_len(len)?;
            // What was allocated behind the end may be gone.
            self.0.space.reserved_to.store(0, Ordering::Release);
            self.0.space.written_to.fetch_min(len, Ordering::AcqRel);
        }
        // What was cut off and comes back is zeros.
        let mut sums = self.0.sums.write().unwrap_or_else(PoisonError::into_inner);
        sums.truncate(usize::try_from(len / BLOCK as u64).unwrap_or(usize::MAX));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.0.held().draft {
            return Ok(());
        }
        // The store also flushes a file that it made longer, in the middle of a transaction, and nobody can read
        // meanwhile: that must not wait.
        let commits = self.0.head_written.load(Ordering::Acquire);
        while let (true, Err(error)) = (commits, self.0.held_flush()) {
            if !is_full(&error) {
                return Err(error);
            }
            self.0.space.set(Room::Stuck);
            if !self.0.space.pause() {
                return Err(error);
            }
        }
        if self.0.space.get() == Room::Stuck {
            self.0.space.set(Room::Free);
        }
        self.0.handle.sync_data()?;
        self.0.head_written.store(false, Ordering::Release);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            self.0.head_written.store(true, Ordering::Release);
        }
        // What is held comes before what is written later.
        if self.0.holding.load(Ordering::Acquire) {
            self.0.hold(offset, data)?;
        } else if let Err(error) = self.0.handle.write_all_at(data, offset) {
            if !is_full(&error) || !self.0.space.waits() {
                return Err(error);
            }
            self.0.holding.store(true, Ordering::Release);
            self.0.hold(offset, data)?;
        }
        self.0.space.written_to.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        self.0.forget_partial(offset, data.len());
        self.0.blocks(offset, data, |known, sum| known.store(sum, Ordering::Release));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}
