//! A lane: the buffers and the stream of one thread.

use std::ops::Range;

use crate::SLACK;
use crate::cuda::{Event, Stream};
use crate::device::Device;
use crate::error::GpuError;
use crate::memory::Memory;
use crate::report::Clock;

const BLOCK: usize = stoker_format::BLOCK;

/// Buffers, one of which is filled while the stream reads the others.
pub(crate) struct Lane {
    buffers: Vec<Buffer>,
    current: usize,
    /// Bytes of the current buffer that copies may still read.
    used: usize,
    stream: Option<Stream>,
}

struct Buffer {
    // Before the memory: whoever drops a lane has waited.
    event: Option<Event>,
    memory: Memory,
    /// Whether the stream may still read it.
    busy: bool,
}

impl Lane {
    /// A lane whose buffers take pieces of this length. The device is entered.
    pub fn new(device: &Device, piece: usize, buffers: usize) -> Result<Lane, GpuError> {
        let len = piece.next_multiple_of(BLOCK) + SLACK;
        let stream = match device {
            Device::Host => None,
            Device::Cuda(cuda) => Some(Stream::new(cuda)?),
        };
        let buffer = |_| match device {
            Device::Host => Ok(Buffer { event: None, memory: Memory::heap(len)?, busy: false }),
            Device::Cuda(cuda) => {
                let event = Some(Event::new(cuda)?);
                Ok(Buffer { event, memory: Memory::pinned(cuda, len)?, busy: false })
            }
        };
        // A host's thread copies by itself: its buffer is free when that is done.
        let count = if stream.is_some() { buffers.max(1) } else { 1 };
        let buffers = (0..count).map(buffer).collect::<Result<Vec<Buffer>, GpuError>>()?;
        Ok(Lane { buffers, current: 0, used: 0, stream })
    }

    /// Memory for a read of `len` bytes and the blocks around them; waits for copies if it has to. It begins at a block.
    pub fn room(&mut self, len: usize, clock: &mut Clock) -> Result<&mut [u8], GpuError> {
        let start = self.used.next_multiple_of(BLOCK);
        let capacity = self.buffers[self.current].memory.len();
        if self.used > 0 && start + len + SLACK > capacity {
            self.turn(clock)?;
        }
        let start = self.used.next_multiple_of(BLOCK);
        Ok(&mut self.buffers[self.current].memory.bytes_mut()[start..])
    }

    /// Takes the next buffer, when the stream has read it.
    fn turn(&mut self, clock: &mut Clock) -> Result<(), GpuError> {
        if let Some(stream) = &self.stream {
            let buffer = &mut self.buffers[self.current];
            if let Some(event) = &buffer.event {
                event.record(stream)?;
                buffer.busy = true;
            }
        }
        self.current = (self.current + 1) % self.buffers.len();
        let buffer = &mut self.buffers[self.current];
        if buffer.busy
            && let Some(event) = &buffer.event
        {
            clock.waits(|| event.wait())?;
            buffer.busy = false;
        }
        self.used = 0;
        Ok(())
    }

    /// Bytes of the room, after a read put them there.
    pub fn bytes(&self, found: Range<usize>) -> &[u8] {
        let start = self.used.next_multiple_of(BLOCK);
        &self.buffers[self.current].memory.bytes()[start..][found]
    }

    /// Has bytes of the room copied.
    ///
    /// # Safety
    /// `to` is memory of the device with as many bytes, which nobody else uses until [`Self::finish`] or the drop of the lane.
    pub unsafe fn copy(&self, to: u64, found: Range<usize>) -> Result<(), GpuError> {
        let from = self.bytes(found);
        match &self.stream {
            // SAFETY: the buffer is not filled again before its event came; the rest is the caller's promise.
            Some(stream) => unsafe { stream.copy(to, from) },
            None => {
                // SAFETY: as the caller promises; a lane's buffer overlaps nothing.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as usize as *mut u8, from.len()) };
                Ok(())
            }
        }
    }

    /// The first bytes of the room are in use by copies from now on.
    pub fn keep(&mut self, len: usize) {
        if self.stream.is_some() {
            self.used = self.used.next_multiple_of(BLOCK) + len;
        }
    }

    /// Waits until all copies are done: then the bytes are on the device.
    pub fn finish(&mut self, clock: &mut Clock) -> Result<(), GpuError> {
        if let Some(stream) = &self.stream
            && let Some(event) = &self.buffers[self.current].event
        {
            // Streams keep their order: the last event is behind everything.
            event.record(stream)?;
            clock.waits(|| event.wait())?;
        }
        self.buffers.iter_mut().for_each(|buffer| buffer.busy = false);
        self.used = 0;
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Some(stream) = &self.stream else { return };
        let Ok(_entered) = stream.cuda().enter() else { return };
        // Neither the buffers nor what they are copied to may go before the last copy: also after an error.
        if let Some(event) = &self.buffers[self.current].event
            && event.record(stream).is_ok()
        {
            let _ = event.wait();
        }
        self.buffers.clear();
        self.stream = None;
    }
}
