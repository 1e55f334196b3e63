//! The bytes of the objects: windows of one block of random bytes, so that every server holds the same, nothing has to be
//! made while the clock runs, and an object taken for its neighbour is noticed.

use crc_fast::{CrcAlgorithm, checksum};

use crate::rng::Rng;

/// Windows start this far apart.
const STEP_BYTES: usize = 4096;
/// Different objects of one size.
const WINDOWS: usize = 1024;

/// Random bytes that all objects are windows of.
pub struct Content(Vec<u8>);

impl Content {
    /// Fills the block; no object is longer than `object_bytes_max`.
    pub fn new(object_bytes_max: usize) -> Content {
        let mut block = vec![0; object_bytes_max + WINDOWS * STEP_BYTES];
        Rng::new(0x0b1ec7).fill(&mut block);
        Content(block)
    }

    /// The bytes of the object with this number.
    pub fn of(&self, number: u64, bytes: usize) -> &[u8] {
        let at = (number % WINDOWS as u64) as usize * STEP_BYTES;
        &self.0[at..at + bytes]
    }

    /// The checksums of the first `count` objects.
    pub fn crcs(&self, count: u64, bytes: usize) -> Vec<u64> {
        (0..count).map(|number| checksum(CrcAlgorithm::Crc64Nvme, self.of(number, bytes))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_differ_and_the_last_window_fits() {
        let content = Content::new(8192);
        assert_ne!(content.of(0, 8192), content.of(1, 8192));
        assert_eq!(content.of(WINDOWS as u64 - 1, 8192).len(), 8192);
        assert_eq!(content.of(WINDOWS as u64, 8192), content.of(0, 8192));
        let crcs = content.crcs(3, 100);
        assert!(crcs[0] != crcs[1] && crcs[1] != crcs[2]);
    }
}
