//! Memory for writers and readers that is used again: fresh pages cost more than the copy into them.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stoker_store::Buf;

/// Room of a writer's buffer where the file is larger.
pub(super) const BUFFER_LEN: usize = 4 << 20;
/// Room of a buffer for what is read ahead: a mebibyte, and what its blocks have in front and behind.
const BLOCK_LEN: usize = (1 << 20) + (16 << 10);
/// Shorter ones come from the allocator.
const SHORT: usize = 256 << 10;
/// Lengths that are kept, and how many of each while nobody uses them.
const KEPT: [(usize, usize); 2] = [(BLOCK_LEN, 32), (BUFFER_LEN, 8)];

/// Buffers between two uses.
#[derive(Default)]
pub(super) struct Spares([Mutex<Vec<Buf>>; KEPT.len()]);

impl Spares {
    /// An empty buffer with room for `len` bytes, [`BUFFER_LEN`] at most.
    pub fn take(&self, len: usize) -> Buf {
        let len = len.min(BUFFER_LEN);
        // A buffer of the next length wastes memory unless it is nearly full.
        let fits = |kept: usize| len <= kept && len > kept / 2 && len > SHORT;
        let mut buf = match KEPT.iter().position(|(kept, _)| fits(*kept)) {
            Some(at) => {
                let spare = self.0[at].lock().unwrap().pop();
                spare.unwrap_or_else(|| Buf::heap(KEPT[at].0))
            }
            None => Buf::heap(len),
        };
        buf.set_len(0);
        buf
    }

    /// The bytes of a buffer, to be sent from where they are; the memory comes back when the last of them is gone.
    pub fn freeze(self: &Arc<Spares>, buf: Buf) -> Bytes {
        Bytes::from_owner(Loan { buf, home: self.clone() })
    }
}

struct Loan {
    buf: Buf,
    home: Arc<Spares>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_slice()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Memory that the node has, too, goes back to where it came from.
        let fits = |(kept, _): &(usize, usize)| *kept == self.buf.capacity() && self.buf.is_heap();
        let Some(at) = KEPT.iter().position(fits) else { return };
        let mut spares = self.home.0[at].lock().unwrap();
        if spares.len() < KEPT[at].1 {
            spares.push(std::mem::replace(&mut self.buf, Buf::none()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_come_back_empty() {
        let spares = Arc::new(Spares::default());
        let mut buf = spares.take(BUFFER_LEN);
        let place = buf.io_ptr(0);
        buf.set_len(BUFFER_LEN);
        drop(spares.freeze(buf).slice(5..9));
        let again = spares.take(usize::MAX);
        assert_eq!((again.io_ptr(0), again.len()), (place, 0));
        assert_eq!(spares.take(10).capacity(), stoker_format::BLOCK);
        // What a reader asks for: a mebibyte that begins and ends inside blocks.
        let mut block = spares.take((1 << 20) + stoker_format::BLOCK);
        let place = block.io_ptr(0);
        block.set_len(1 << 20);
        drop(spares.freeze(block));
        assert_eq!(spares.take(1 << 20).io_ptr(0), place);
        assert_eq!(spares.take(SHORT).capacity(), SHORT);
        assert!(spares.take(2 << 20).capacity() < BUFFER_LEN, "half of it would be wasted");
    }
}
