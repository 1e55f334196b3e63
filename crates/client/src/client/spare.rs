//! Memory for writers that is used again: fresh pages cost more than the copy into them.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stoker_store::Buf;

/// Room of a writer's buffer where the file is larger.
pub(super) const BUFFER_LEN: usize = 4 << 20;
/// Buffers that are kept while nobody uses them.
const SPARES_MAX: usize = 8;

/// Full-sized buffers between two uses.
#[derive(Default)]
pub(super) struct Spares(Mutex<Vec<Buf>>);

impl Spares {
    /// An empty buffer with room for `len` bytes, [`BUFFER_LEN`] at most.
    pub fn take(&self, len: usize) -> Buf {
        let spare = (len >= BUFFER_LEN).then(|| self.0.lock().unwrap().pop()).flatten();
        let mut buf = spare.unwrap_or_else(|| Buf::heap(len.min(BUFFER_LEN)));
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
        if self.buf.capacity() != BUFFER_LEN {
            return;
        }
        let mut spares = self.home.0.lock().unwrap();
        if spares.len() < SPARES_MAX {
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
    }
}
