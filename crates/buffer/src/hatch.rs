//! Memory that two processes of one machine share: one puts bytes in, the other takes them out, and the kernel copies nothing. (D66)
//!
//! It is cut into slots. A word for each of them in front counts who needs it: the one who fills it, and each range of it that was passed
//! and not taken yet. Whoever takes bytes out copies them first and believes them then, for the other may change them at any time.
//! The memory is made by the side that takes, and sealed: it cannot become shorter under it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::Buf;

/// Most bytes of a slot.
pub const SLOT_LEN: usize = 4 << 20;
/// Where the slots begin; the words are in front.
const WORDS_LEN: usize = 4 << 10;
/// Most slots.
const SLOTS_MAX: usize = WORDS_LEN / size_of::<AtomicU32>();

/// One side's view of the memory.
struct Mapping {
    base: NonNull<u8>,
    slots: usize,
}

// SAFETY: the mapping lives as long as this. Words are atomic, slots are only reached through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, slots: usize) -> io::Result<Mapping> {
        let (prot, len) = (libc::PROT_READ | libc::PROT_WRITE, WORDS_LEN + slots * SLOT_LEN);
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory; the file is as long, and stays so.
        let raw =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(raw.cast()).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Mapping { base, slots })
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

    /// One who needed the slot does not any more.
    fn free(&self, slot: usize) {
        self.word(slot).fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and not used any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), WORDS_LEN + self.slots * SLOT_LEN) };
    }
}

/// The side that takes bytes out.
pub struct HatchOut(Mapping);

impl HatchOut {
    /// Makes the memory, and the descriptor by which the other side opens it.
    pub fn make(slots: usize) -> io::Result<(HatchOut, OwnedFd)> {
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
        Ok((HatchOut(Mapping::new(&file, slots)?), file.into()))
    }

    /// Slots that there are.
    pub fn slots(&self) -> usize {
        self.0.slots
    }

    /// Copies bytes of a slot out. They are what the other side put in, if it keeps to its part.
    ///
    /// # Panics
    /// If there is no such slot, or it ends before.
    pub fn take(&self, slot: u32, offset: usize, into: &mut [u8]) {
        let from = self.0.at(slot as usize, offset, into.len());
        // SAFETY: inside the mapping; the destination is memory of this process alone, and any bytes are good for it.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// What was passed once was taken; whoever needs a slot last makes it free.
    pub fn free(&self, slot: u32) {
        self.0.free(slot as usize);
    }
}

/// The side that puts bytes in.
pub struct HatchIn {
    mapping: Mapping,
    /// Slots that this process has; the words alone are not believed, for the other side can write them.
    claimed: Box<[AtomicBool]>,
    /// Where the search for a free slot begins.
    next: AtomicUsize,
}

impl HatchIn {
    /// Opens what the other side made, of no more slots than these.
    pub fn open(descriptor: OwnedFd, slots_max: usize) -> io::Result<HatchIn> {
        let file = File::from(descriptor);
        // SAFETY: a call without arguments on a descriptor that is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let len = file.metadata()?.len();
        let slots = usize::try_from(len).unwrap_or(0).saturating_sub(WORDS_LEN) / SLOT_LEN;
        let fits = len == (WORDS_LEN + slots * SLOT_LEN) as u64;
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || !fits || !(1..=slots_max).contains(&slots) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "that is no memory to pass bytes through",
            ));
        }
        let claimed = (0..slots).map(|_| AtomicBool::new(false)).collect();
        Ok(HatchIn { mapping: Mapping::new(&file, slots)?, claimed, next: AtomicUsize::new(0) })
    }

    /// One of the first slots that nobody needs, which the caller needs from now on.
    fn claim(&self, among: usize) -> Option<usize> {
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        (0..among).map(|step| start.wrapping_add(step) % among).find(|slot| {
            let own = &self.claimed[*slot];
            if own.swap(true, Ordering::Acquire) {
                return false;
            }
            let word = self.mapping.word(*slot);
            let is_free = word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if !is_free {
                own.store(false, Ordering::Release);
            }
            is_free
        })
    }

    /// Memory of a slot, to be filled in place and passed with [`Self::pass`]; none if few are left. Some are left for
    /// [`Self::put`], which needs them for a moment only.
    pub fn room(self: &Arc<HatchIn>) -> Option<Buf> {
        let slots = self.mapping.slots;
        let slot = self.claim(slots - slots / 4)?;
        let claimed = Claimed { hatch: self.clone(), slot };
        let memory = NonNull::new(self.mapping.at(slot, 0, SLOT_LEN))?;
        // SAFETY: whole blocks inside the mapping, which the owner keeps. The slot is claimed, so nobody of this process has it too.
        // The other side reads it; if it wrote there, that would be wrong bytes, which any memory that is shared with the
        // kernel can show, too.
        Some(unsafe { Buf::foreign(memory, SLOT_LEN, 0, Box::new(claimed)) })
    }

    /// The slot and the offset of bytes that lie in a [`Self::room`], which the other side may take now; none if they lie elsewhere.
    /// They must not change until it has.
    pub fn pass(&self, bytes: &[u8]) -> Option<(u32, u32)> {
        let first = self.mapping.base.as_ptr().addr() + WORDS_LEN;
        let from = bytes.as_ptr().addr().checked_sub(first)?;
        let (slot, offset) = (from / SLOT_LEN, from % SLOT_LEN);
        if slot >= self.mapping.slots {
            return None;
        }
        assert!(offset + bytes.len() <= SLOT_LEN, "bytes that lie in one slot");
        self.mapping.word(slot).fetch_add(1, Ordering::Relaxed);
        Some((slot as u32, offset as u32))
    }

    /// Puts bytes in, [`SLOT_LEN`] at most; returns the slot, none if all are in use.
    pub fn put(&self, bytes: &[u8]) -> Option<u32> {
        assert!(bytes.len() <= SLOT_LEN);
        let slot = self.claim(self.mapping.slots)?;
        let to = self.mapping.at(slot, 0, bytes.len());
        // SAFETY: the slot is ours since it was claimed, and as long; the source is memory of this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        // The word says that it is full until the other side has taken it.
        self.claimed[slot].store(false, Ordering::Release);
        Some(slot as u32)
    }
}

/// Keeps a slot.
struct Claimed {
    hatch: Arc<HatchIn>,
    slot: usize,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.hatch.mapping.free(self.slot);
        self.hatch.claimed[self.slot].store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(slots: usize) -> (HatchOut, Arc<HatchIn>) {
        let (out, descriptor) = HatchOut::make(slots).unwrap();
        (out, Arc::new(HatchIn::open(descriptor, slots).unwrap()))
    }

    #[test]
    fn bytes_pass_and_slots_are_used_again() {
        let (out, hatch) = pair(3);
        assert_eq!(out.slots(), 3);
        for round in 0..10u8 {
            let full: Vec<u32> = (0..3).map(|n| hatch.put(&[round * 3 + n; 5000]).unwrap()).collect();
            assert_eq!(hatch.put(&[1]), None, "all are full");
            for (n, slot) in full.into_iter().enumerate() {
                let mut got = [0; 4000];
                out.take(slot, 1000, &mut got);
                assert_eq!(got, [round * 3 + n as u8; 4000]);
                out.free(slot);
            }
        }
        let slot = hatch.put(&vec![7; SLOT_LEN]).unwrap();
        let mut got = vec![0; SLOT_LEN];
        out.take(slot, 0, &mut got);
        assert!(got.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn bytes_that_were_made_in_place_pass_and_their_slot_is_free_when_both_sides_are_done() {
        let (out, hatch) = pair(1);
        let mut room = hatch.room().unwrap();
        assert!(hatch.room().is_none() && hatch.put(&[1]).is_none());
        room.spare_mut()[..3].copy_from_slice(b"abc");
        room.set_len(3);
        assert_eq!(hatch.pass(&[1, 2, 3]), None, "elsewhere");
        let (slot, offset) = hatch.pass(&room.as_slice()[1..]).unwrap();
        assert_eq!((slot, offset), (0, 1));
        drop(room);
        assert!(hatch.room().is_none(), "the other side has not taken it yet");
        let mut got = [0; 2];
        out.take(slot, offset as usize, &mut got);
        assert_eq!(&got, b"bc");
        out.free(slot);
        let room = hatch.room().unwrap();
        assert!(room.is_empty());
        drop((hatch, out));
        assert_eq!(room.capacity(), SLOT_LEN, "it keeps the memory");
    }

    #[test]
    fn some_slots_are_left_for_a_moment_and_no_slot_is_given_twice() {
        let (out, hatch) = pair(8);
        let rooms: Vec<Buf> = std::iter::from_fn(|| hatch.room()).collect();
        assert_eq!(rooms.len(), 6);
        assert!(hatch.put(&[1]).is_some());
        // A side that takes what was never passed.
        (0..6).for_each(|slot| out.free(slot));
        assert!(hatch.room().is_none(), "this process has them all");
    }

    #[test]
    fn what_may_become_shorter_or_is_too_much_is_refused() {
        let file = memfd();
        file.set_len((WORDS_LEN + SLOT_LEN) as u64).unwrap();
        assert_eq!(HatchIn::open(file.into(), 1).err().unwrap().kind(), io::ErrorKind::InvalidData);
        let (out, descriptor) = HatchOut::make(2).unwrap();
        let file = File::from(descriptor);
        assert!(file.set_len(10).is_err() && file.set_len(1 << 30).is_err(), "it is sealed");
        drop(out);
        assert!(HatchIn::open(file.try_clone().unwrap().into(), 1).is_err(), "more than was asked for");
        assert!(HatchIn::open(file.into(), 2).is_ok());
    }

    fn memfd() -> File {
        // SAFETY: as in `make`.
        let raw = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(raw >= 0);
        // SAFETY: made just above.
        File::from(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    #[test]
    #[should_panic(expected = "slot < self.slots")]
    fn a_slot_that_is_not_there_is_not_read() {
        let (hatch, _descriptor) = HatchOut::make(1).unwrap();
        hatch.take(1, 0, &mut [0]);
    }
}
