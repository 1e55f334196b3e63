//! Huge pages for a file of shared memory, as far as the machine gives them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{DATA_ALIGN, Layout};

const HUGE: usize = DATA_ALIGN as usize;

/// The bytes of a file as a mapping that nobody reads or writes through.
pub(super) struct Pages {
    start: NonNull<libc::c_void>,
    len: usize,
    /// Huge pages that were asked for.
    asked: Box<[AtomicBool]>,
}

// SAFETY: the address is only given to the kernel.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(file: &File, layout: Layout) -> io::Result<Pages> {
        let len = usize::try_from(layout.size).map_err(io::Error::other)?;
        let at = libc::off_t::try_from(layout.data).map_err(io::Error::other)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // Room for the alignment of the address: without it no page can be huge.
        // SAFETY: fresh addresses of no content, which belong to nobody.
        let room = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len + HUGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if room == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let skip = room.addr().next_multiple_of(HUGE) - room.addr();
        let wanted = room.wrapping_byte_add(skip);
        // SAFETY: replaces addresses inside of the room above.
        let start = unsafe {
            libc::mmap(wanted, len, rights, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), at)
        };
        // What is in front and behind is not needed any more.
        let end = skip + len.next_multiple_of(4096);
        for (from, size) in [(0, skip), (end, (len + HUGE).next_multiple_of(4096).saturating_sub(end))] {
            if size > 0 {
                // SAFETY: addresses of the room that the file does not have.
                unsafe { libc::munmap(room.wrapping_byte_add(from), size) };
            }
        }
        let start = match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => start,
            _ => return Err(io::Error::last_os_error()),
        };
        let pages = Pages { start, len, asked: (0..len / HUGE).map(|_| AtomicBool::new(false)).collect() };
        // SAFETY: advice on a mapping of ours.
        match unsafe { libc::madvise(start.as_ptr(), len, libc::MADV_HUGEPAGE) } {
            0 => Ok(pages),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has huge pages where whole ones fit, before these bytes are written. What cannot be had is not missed: the write takes
    /// small ones.
    pub fn prepare(&self, offset: u64, len: usize) {
        let first = (offset / HUGE as u64) as usize;
        let last = (offset + len as u64).div_ceil(HUGE as u64) as usize;
        for number in first..last.min(self.asked.len()) {
            if !self.asked[number].swap(true, Ordering::Relaxed) {
                let page = self.start.as_ptr().wrapping_byte_add(number * HUGE);
                // SAFETY: a page of the mapping; it is filled with zeros where the file has nothing, and the kernel reports what
                // cannot be had as an error.
                unsafe { libc::madvise(page, HUGE, libc::MADV_POPULATE_WRITE) };
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once; nobody has a pointer into it.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}
