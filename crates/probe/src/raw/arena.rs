//! Memory for the raw side: huge pages where the kernel grants them, filled with random bytes once.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::rng::Rng;

const HUGE: usize = 2 << 20;

/// An anonymous mapping.
pub struct Arena {
    mapped: NonNull<u8>,
    mapped_len: usize,
    base: NonNull<u8>,
    len: usize,
}

impl Arena {
    /// Maps `len` bytes, starting on a huge page.
    pub fn new(len: usize) -> io::Result<Arena> {
        let len = len.next_multiple_of(HUGE);
        let mapped_len = len + HUGE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let raw = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), mapped_len, prot, flags, -1, 0)
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = raw.map_addr(|addr| addr.next_multiple_of(HUGE));
        // SAFETY: the range lies in the mapping made just above; the advice changes no contents.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        let none = || io::Error::other("mmap returned null");
        let mut arena = Arena {
            mapped: NonNull::new(raw.cast()).ok_or_else(none)?,
            mapped_len,
            base: NonNull::new(base.cast()).ok_or_else(none)?,
            len,
        };
        Rng::new(0xa7e7a).fill(arena.slot_mut(0, len));
        Ok(arena)
    }

    /// The whole arena, for registration.
    pub fn iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.base.as_ptr().cast(), iov_len: self.len }
    }

    /// Start of a slot.
    pub fn slot(&self, slot: usize, len: usize) -> *mut u8 {
        assert!((slot + 1) * len <= self.len);
        // SAFETY: the slot lies inside the mapping.
        unsafe { self.base.as_ptr().add(slot * len) }
    }

    /// The bytes of a slot that no operation uses.
    pub fn slot_mut(&mut self, slot: usize, len: usize) -> &mut [u8] {
        // SAFETY: the slot lies inside the initialised mapping; `&mut self` makes it the only access of this program,
        // and the queue asks only for slots that the kernel has given back.
        unsafe { std::slice::from_raw_parts_mut(self.slot(slot, len), len) }
    }

    /// Never unmaps, because the kernel may still use it.
    pub fn leak(&mut self) {
        self.mapped_len = 0;
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.mapped_len > 0 {
            // SAFETY: the mapping belongs to this arena, and its queue has reaped the last operation on it.
            unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
        }
    }
}

/// Reserves space for a file.
pub fn allocate(file: &File, len: u64) -> io::Result<()> {
    // SAFETY: fallocate on a descriptor that `file` keeps open.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } {
        0 => Ok(()),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(len),
        _ => Err(io::Error::last_os_error()),
    }
}
