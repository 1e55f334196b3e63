//! Huge-page memory from the kernel.

use std::io;
use std::ptr::NonNull;

/// Maps anonymous memory aligned to `align`, with huge pages where the kernel grants them.
pub fn map_arena(size: usize, align: usize) -> io::Result<NonNull<u8>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let raw = unsafe { libc::mmap(std::ptr::null_mut(), size, prot, flags | libc::MAP_HUGETLB, -1, 0) };
    if raw != libc::MAP_FAILED {
        return NonNull::new(raw.cast()).ok_or_else(|| io::Error::other("mmap returned null"));
    }
    // SAFETY: as above.
    let raw = unsafe { libc::mmap(std::ptr::null_mut(), size + align, prot, flags, -1, 0) };
    if raw == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = raw.addr();
    let aligned = start.next_multiple_of(align);
    // SAFETY: trims the unaligned ends of the mapping made just above; nobody uses them yet.
    unsafe {
        if aligned > start {
            libc::munmap(raw, aligned - start);
        }
        let (end, mapped_end) = (aligned + size, start + size + align);
        if mapped_end > end {
            libc::munmap(raw.with_addr(end), mapped_end - end);
        }
        libc::madvise(raw.with_addr(aligned), size, libc::MADV_HUGEPAGE);
    }
    NonNull::new(raw.with_addr(aligned).cast()).ok_or_else(|| io::Error::other("mmap returned null"))
}

/// Unmaps what [`map_arena`] mapped.
pub fn unmap_arena(arena: NonNull<u8>, size: usize) {
    // SAFETY: the pool that calls this owns the mapping and is being dropped.
    unsafe { libc::munmap(arena.as_ptr().cast(), size) };
}
