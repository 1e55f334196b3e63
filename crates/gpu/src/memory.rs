//! Buffers between drive and device: page-aligned, as direct reads want them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::cuda::{Cuda, Pinned};
use crate::error::GpuError;

const PAGE: usize = 4096;

/// A buffer of a lane.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

enum Home {
    Heap(Layout),
    Pinned(#[expect(dead_code, reason = "held for its drop")] Pinned),
}

// SAFETY: owned memory.
unsafe impl Send for Memory {}

impl Memory {
    pub fn heap(len: usize) -> Result<Memory, GpuError> {
        let out = GpuError::OutOfMemory { what: "buffers", bytes: len };
        let layout = Layout::from_size_align(len.max(PAGE), PAGE).map_err(|_| out.clone())?;
        // SAFETY: the layout has a size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(out)?;
        Ok(Memory { start, len, home: Home::Heap(layout) })
    }

    /// The device is entered.
    pub fn pinned(cuda: &Arc<Cuda>, len: usize) -> Result<Memory, GpuError> {
        let pinned = Pinned::new(cuda, len)?;
        let start = pinned.start();
        // A driver's fresh pages hold zeros of the kernel; a test's may not, and reading memory that nobody wrote is undefined.
        // SAFETY: as long as was asked for, and ours alone.
        unsafe { start.as_ptr().write_bytes(0, len) };
        Ok(Memory { start, len, home: Home::Pinned(pinned) })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ours, as long as this, and written to before it was handed out.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Home::Heap(layout) = self.home {
            // SAFETY: allocated with this layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
