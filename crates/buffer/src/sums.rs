//! Sums of bytes, taken while they are copied and still in the processor's cache: reading a chunk again from memory for
//! each checksum would cost as much as the copy.

use crc_fast::{CrcAlgorithm, Digest};
use stoker_format::{BLOCK, crc32c, crc32c_combine, table_crc};

/// Copied and summed at once: small enough for the first cache.
pub(crate) const STEP: usize = 16 << 10;

/// What is known of the bytes that were filled in so far.
pub(crate) struct Sums {
    /// CRC32C of every whole block.
    table: Vec<u32>,
    /// None once bytes came that it does not cover.
    crc64: Option<Digest>,
    /// CRC32C of all bytes, where nobody asked for that of blocks.
    whole: Option<u32>,
    /// Bytes that count.
    len: usize,
}

impl Sums {
    pub(crate) fn new(capacity: usize) -> Sums {
        let table = Vec::with_capacity(capacity.div_ceil(BLOCK));
        Sums { table, crc64: Some(Digest::new(CrcAlgorithm::Crc64Nvme)), whole: None, len: 0 }
    }

    /// Sums of bytes that are summed as a whole.
    pub(crate) fn whole() -> Sums {
        Sums { table: Vec::new(), crc64: None, whole: Some(0), len: 0 }
    }

    /// Takes note that `bytes`, all of them so far, grew.
    pub(crate) fn grew(&mut self, bytes: &[u8]) {
        if let Some(crc64) = &mut self.crc64 {
            crc64.update(&bytes[self.len..]);
        }
        self.sum_blocks(bytes);
    }

    /// The same without CRC-64, for bytes that a peer summed already.
    pub(crate) fn grew_by_blocks(&mut self, bytes: &[u8]) {
        self.crc64 = None;
        self.sum_blocks(bytes);
    }

    fn sum_blocks(&mut self, bytes: &[u8]) {
        if let Some(whole) = &mut self.whole {
            let new = &bytes[self.len..];
            *whole = crc32c_combine(*whole, crc32c(new), new.len() as u64);
            self.len = bytes.len();
            return;
        }
        self.len = bytes.len();
        for block in bytes[self.table.len() * BLOCK..].chunks_exact(BLOCK) {
            self.table.push(crc32c(block));
        }
    }

    /// Whether they are of the blocks of so many bytes.
    pub(crate) fn cover(&self, len: usize) -> bool {
        self.len == len && self.whole.is_none()
    }

    /// CRC-64/NVME, if these bytes are the ones that were summed.
    pub(crate) fn crc64(&self, len: usize) -> Option<u64> {
        let crc64 = self.crc64.as_ref().filter(|_| self.len == len)?;
        Some(crc64.clone().finalize())
    }

    /// CRC32C, if these bytes are the ones that were summed.
    pub(crate) fn crc32c(&self, bytes: &[u8]) -> Option<u32> {
        if self.whole.is_some() {
            return self.whole.filter(|_| self.len == bytes.len());
        }
        let whole = self.table.len() * BLOCK;
        let rest = bytes.get(whole..).filter(|_| self.len == bytes.len())?;
        Some(crc32c_combine(table_crc(&self.table, whole), crc32c(rest), rest.len() as u64))
    }

    /// CRC32C of every block, if these bytes are the ones that were summed.
    pub(crate) fn into_table(mut self, bytes: &[u8]) -> Option<Vec<u32>> {
        if self.whole.is_some() {
            return None;
        }
        let rest = bytes.get(self.table.len() * BLOCK..).filter(|_| self.len == bytes.len())?;
        if !rest.is_empty() {
            self.table.push(crc32c(rest));
        }
        Some(self.table)
    }
}
