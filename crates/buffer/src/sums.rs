//! Sums of bytes, taken while they are copied and still in the processor's cache: reading a chunk again from memory for
//! each checksum would cost as much as the copy.

use crc_fast::{CrcAlgorithm, Digest};
use stoker_format::{BLOCK, crc32c};

/// Copied and summed at once: small enough for the first cache.
pub(crate) const STEP: usize = 16 << 10;

/// What is known of the bytes that were filled in so far.
pub(crate) struct Sums {
    /// CRC32C of every whole block.
    table: Vec<u32>,
    crc64: Digest,
    /// Bytes that count.
    len: usize,
}

impl Sums {
    pub(crate) fn new(capacity: usize) -> Sums {
        let table = Vec::with_capacity(capacity.div_ceil(BLOCK));
        Sums { table, crc64: Digest::new(CrcAlgorithm::Crc64Nvme), len: 0 }
    }

    /// Takes note that `bytes`, all of them so far, grew.
    pub(crate) fn grew(&mut self, bytes: &[u8]) {
        self.crc64.update(&bytes[self.len..]);
        self.len = bytes.len();
        for block in bytes[self.table.len() * BLOCK..].chunks_exact(BLOCK) {
            self.table.push(crc32c(block));
        }
    }

    /// CRC-64/NVME, if these bytes are the ones that were summed.
    pub(crate) fn crc64(&self, len: usize) -> Option<u64> {
        (self.len == len).then(|| self.crc64.clone().finalize())
    }

    /// CRC32C of every block, if these bytes are the ones that were summed.
    pub(crate) fn into_table(mut self, bytes: &[u8]) -> Option<Vec<u32>> {
        let rest = bytes.get(self.table.len() * BLOCK..).filter(|_| self.len == bytes.len())?;
        if !rest.is_empty() {
            self.table.push(crc32c(rest));
        }
        Some(self.table)
    }
}
