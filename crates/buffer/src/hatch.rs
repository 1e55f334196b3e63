//! Memory that two processes of one machine share: one puts bytes in, the other takes them out, and the kernel copies nothing.
//!
//! It is cut into slots. A word for each of them in front counts who needs it; only the two processes of one connection have
//! the memory, and what one of them writes there can spoil nothing but bytes of its own. Whoever takes bytes out copies them first
//! and believes them then, for the other may change them at any time. The memory is made by the side that takes, and sealed: it
//! cannot become shorter under it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::Buf;

/// Most bytes of a slot.
pub const SLOT_LEN: usize = 4 << 20;
/// Where the slots begin; the words are in front.
const WORDS_LEN: usize = 4 << 10;
/// Most slots.
pub const SLOTS_MAX: usize = WORDS_LEN / size_of::<AtomicU32>();

/// One side's view of the memory.
pub struct Hatch {
    base: NonNull<u8>,
    slots: usize,
    /// Where the search for a free slot begins.
    next: AtomicUsize,
}

// SAFETY: the mapping lives as long as this. Words are atomic; a slot belongs to the one who found it free until the other side has
// copied it, and is only ever read and written through raw pointers.
unsafe impl Send for Hatch {}
// SAFETY: as above.
unsafe impl Sync for Hatch {}

impl Hatch {
    /// Makes the memory, and the descriptor by which the other side opens it.
    pub fn make(slots: usize) -> io::Result<(Hatch, OwnedFd)> {
        assert!((1..=SLOTS_MAX).contains(&slots));
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string that ends with a zero.
        let raw = unsafe { libc::memfd_create(c"stoker-hatch".as_ptr(), flags) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made just above, and nobody else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        file.set_len((WORDS_LEN + slots * SLOT_LEN) as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a call with a number on a descriptor that is open.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((Hatch::map(&file, slots)?, file.into()))
    }

    /// Opens what the other side made.
    pub fn open(descriptor: OwnedFd) -> io::Result<Hatch> {
        let file = File::from(descriptor);
        // SAFETY: a call without arguments on a descriptor that is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let len = file.metadata()?.len();
        let slots = usize::try_from(len).unwrap_or(0).saturating_sub(WORDS_LEN) / SLOT_LEN;
        let fits = len == (WORDS_LEN + slots * SLOT_LEN) as u64 && (1..=SLOTS_MAX).contains(&slots);
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !fits {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "that is no memory to pass bytes through",
            ));
        }
        Hatch::map(&file, slots)
    }

    fn map(file: &File, slots: usize) -> io::Result<Hatch> {
        let (prot, len) = (libc::PROT_READ | libc::PROT_WRITE, WORDS_LEN + slots * SLOT_LEN);
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory; the file is as long, and stays so.
        let raw =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(raw.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Hatch { base, slots, next: AtomicUsize::new(0) })
    }

    /// Slots that there are.
    pub fn slots(&self) -> usize {
        self.slots
    }

    fn word(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < self.slots);
        // SAFETY: inside the words, aligned, and nobody accesses it but as an atomic.
        unsafe { &*self.base.as_ptr().cast::<AtomicU32>().add(slot) }
    }

    fn at(&self, slot: usize, offset: usize, len: usize) -> *mut u8 {
        assert!(slot < self.slots && offset <= SLOT_LEN && len <= SLOT_LEN - offset);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.as_ptr().add(WORDS_LEN + slot * SLOT_LEN + offset) }
    }

    /// A slot that nobody needs, which the caller needs from now on.
    fn claim(&self) -> Option<usize> {
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        (0..self.slots).map(|step| start.wrapping_add(step) % self.slots).find(|slot| {
            let word = self.word(*slot);
            word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Memory of a slot, to be filled in place and passed with [`Self::pass`]; none if all are in use.
    pub fn room(self: &Arc<Hatch>) -> Option<Buf> {
        let slot = self.claim()?;
        let memory = NonNull::new(self.at(slot, 0, SLOT_LEN))?;
        let owner = Box::new(Claimed { hatch: self.clone(), slot: slot as u32 });
        // SAFETY: whole blocks inside the mapping, which the owner keeps. The slot is claimed, so nobody of this process has it too;
        // the other side only reads it, and what it wrote there against the rules would be wrong bytes and nothing worse.
        Some(unsafe { Buf::foreign(memory, SLOT_LEN, 0, owner) })
    }

    /// The slot and the offset of bytes that lie in a [`Self::room`], which the other side may take now; none if they lie elsewhere.
    /// They must not change until it has.
    pub fn pass(&self, bytes: &[u8]) -> Option<(u32, u32)> {
        let first = self.base.as_ptr().addr() + WORDS_LEN;
        let from = bytes.as_ptr().addr().checked_sub(first).filter(|from| *from < self.slots * SLOT_LEN)?;
        let (slot, offset) = (from / SLOT_LEN, from % SLOT_LEN);
        assert!(offset + bytes.len() <= SLOT_LEN, "bytes that lie in one slot");
        self.word(slot).fetch_add(1, Ordering::Relaxed);
        Some((slot as u32, offset as u32))
    }

    /// Puts bytes in, [`SLOT_LEN`] at most; returns the slot, none if all are in use.
    pub fn put(&self, bytes: &[u8]) -> Option<u32> {
        assert!(bytes.len() <= SLOT_LEN);
        let slot = self.claim()?;
        let to = self.at(slot, 0, bytes.len());
        // SAFETY: the slot is ours since it was found free, and as long; the source is memory of this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(slot as u32)
    }

    /// Copies bytes of a slot out. They are what the other side put in, if it keeps to its part.
    ///
    /// # Panics
    /// If there is no such slot, or it ends before.
    pub fn take(&self, slot: u32, offset: usize, into: &mut [u8]) {
        let from = self.at(slot as usize, offset, into.len());
        // SAFETY: inside the mapping; the destination is memory of this process alone, and any bytes are good for it.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// What was put in was taken; whoever needs a slot last makes it free.
    pub fn free(&self, slot: u32) {
        self.word(slot as usize).fetch_sub(1, Ordering::Release);
    }
}

/// Keeps a slot.
struct Claimed {
    hatch: Arc<Hatch>,
    slot: u32,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.hatch.free(self.slot);
    }
}

impl Drop for Hatch {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and not used any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), WORDS_LEN + self.slots * SLOT_LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_and_slots_are_used_again() {
        let (taking, descriptor) = Hatch::make(3).unwrap();
        let putting = Hatch::open(descriptor).unwrap();
        assert_eq!(putting.slots(), 3);
        for round in 0..10u8 {
            let full: Vec<u32> = (0..3).map(|n| putting.put(&[round * 3 + n; 5000]).unwrap()).collect();
            assert_eq!(putting.put(&[1]), None, "all are full");
            for (n, slot) in full.into_iter().enumerate() {
                let mut got = [0; 4000];
                taking.take(slot, 1000, &mut got);
                assert_eq!(got, [round * 3 + n as u8; 4000]);
                taking.free(slot);
            }
        }
        let slot = putting.put(&vec![7; SLOT_LEN]).unwrap();
        let mut got = vec![0; SLOT_LEN];
        taking.take(slot, 0, &mut got);
        assert!(got.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn bytes_that_were_made_in_place_pass_and_their_slot_is_free_when_both_sides_are_done() {
        let (taking, descriptor) = Hatch::make(1).unwrap();
        let putting = Arc::new(Hatch::open(descriptor).unwrap());
        let mut room = putting.room().unwrap();
        assert!(putting.room().is_none() && putting.put(&[1]).is_none());
        room.spare_mut()[..3].copy_from_slice(b"abc");
        room.set_len(3);
        assert_eq!(putting.pass(&[1, 2, 3]), None, "elsewhere");
        let (slot, offset) = putting.pass(&room.as_slice()[1..]).unwrap();
        assert_eq!((slot, offset), (0, 1));
        drop(room);
        assert!(putting.room().is_none(), "the other side has not taken it yet");
        let mut got = [0; 2];
        taking.take(slot, offset as usize, &mut got);
        assert_eq!(&got, b"bc");
        taking.free(slot);
        let room = putting.room().unwrap();
        assert!(room.is_empty());
        drop((putting, taking));
        assert_eq!(room.capacity(), SLOT_LEN, "it keeps the memory");
    }

    #[test]
    fn what_may_become_shorter_is_refused() {
        let file = tempfile();
        file.set_len((WORDS_LEN + SLOT_LEN) as u64).unwrap();
        assert_eq!(Hatch::open(file.into()).err().unwrap().kind(), io::ErrorKind::InvalidData);
        let (hatch, descriptor) = Hatch::make(1).unwrap();
        let file = File::from(descriptor);
        assert!(file.set_len(10).is_err() && file.set_len(1 << 30).is_err(), "it is sealed");
        drop(hatch);
        assert!(Hatch::open(file.into()).is_ok());
    }

    fn tempfile() -> File {
        // SAFETY: as in `make`.
        let raw = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(raw >= 0);
        // SAFETY: made just above.
        File::from(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    #[test]
    #[should_panic(expected = "slot < self.slots")]
    fn a_slot_that_is_not_there_is_not_read() {
        let (hatch, _descriptor) = Hatch::make(1).unwrap();
        hatch.take(1, 0, &mut [0]);
    }
}
