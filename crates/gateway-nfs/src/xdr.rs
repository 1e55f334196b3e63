//! XDR (RFC 4506): big-endian numbers, and bytes that are padded to four. Lengths are checked before anything is taken.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Garbage;

/// Result of reading.
pub type Result<T> = std::result::Result<T, Garbage>;

/// Reads from the front of some bytes, without copying them.
#[derive(Clone, Debug)]
pub struct Reader(Bytes);

impl Reader {
    pub fn new(bytes: Bytes) -> Reader {
        Reader(bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.0.try_get_u32().map_err(|_| Garbage)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.0.try_get_u64().map_err(|_| Garbage)
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// Bytes of a known length.
    pub fn fixed(&mut self, len: usize) -> Result<Bytes> {
        let padded = len.checked_next_multiple_of(4).ok_or(Garbage)?;
        if padded > self.0.len() {
            return Err(Garbage);
        }
        let mut bytes = self.0.split_to(padded);
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Bytes with their length in front, at most so many.
    pub fn opaque(&mut self, len_max: usize) -> Result<Bytes> {
        let len = self.u32()? as usize;
        if len > len_max {
            return Err(Garbage);
        }
        self.fixed(len)
    }

    /// What was not read.
    pub fn rest(self) -> Bytes {
        self.0
    }
}

/// Writes behind what is there.
#[derive(Debug, Default)]
pub struct Writer(BytesMut);

impl Writer {
    pub fn with_capacity(len: usize) -> Writer {
        Writer(BytesMut::with_capacity(len))
    }

    pub fn u32(&mut self, value: u32) {
        self.0.put_u32(value);
    }

    pub fn u64(&mut self, value: u64) {
        self.0.put_u64(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.u32(value.into());
    }

    pub fn fixed(&mut self, bytes: &[u8]) {
        self.0.put_slice(bytes);
        self.0.put_bytes(0, bytes.len().next_multiple_of(4) - bytes.len());
    }

    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.fixed(bytes);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes back what was written behind a length.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub fn freeze(self) -> Bytes {
        self.0.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = Writer::default();
        out.u32(7);
        out.u64(1 << 40);
        out.bool(true);
        out.opaque(b"hello");
        out.fixed(b"xyz");
        assert_eq!(out.len() % 4, 0);
        let mut input = Reader::new(out.freeze());
        assert_eq!((input.u32(), input.u64(), input.bool()), (Ok(7), Ok(1 << 40), Ok(true)));
        assert_eq!(input.opaque(5).unwrap(), "hello");
        assert_eq!(input.fixed(3).unwrap(), "xyz");
        assert!(input.rest().is_empty());
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let read = |bytes: &[u8], len_max| Reader::new(Bytes::copy_from_slice(bytes)).opaque(len_max);
        assert_eq!(read(&[0xff; 4], usize::MAX), Err(Garbage));
        assert_eq!(read(&[0, 0, 0, 5, 1, 2, 3, 4, 5], 16), Err(Garbage), "its padding lacks");
        assert_eq!(read(&[0, 0, 0, 4, 1, 2, 3, 4], 3), Err(Garbage), "longer than it may be");
        assert_eq!(read(&[0, 0], 16), Err(Garbage));
        assert_eq!(Reader::new(Bytes::from_static(&[0, 0, 0, 2])).bool(), Err(Garbage));
        assert_eq!(Reader::new(Bytes::new()).fixed(usize::MAX), Err(Garbage));
    }
}
