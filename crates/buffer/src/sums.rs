//! Sums of bytes, taken while they are copied and still in the processor's cache: reading a chunk again from memory for
//! each checksum would cost as much as the copy. (D30)

use crc_fast::{CrcAlgorithm, Digest};
use stoker_format::{BLOCK, crc32c, crc32c_combine, table_crc};

/// Copied and summed at once: small enough for the first cache.
pub(crate) const STEP: usize = 16 << 10;
/// The same where sums of steps have to be put together: small enough for the second cache.
const WHOLE_STEP: usize = 64 << 10;

/// CRC32C, as it is wanted.
enum Crc32c {
    /// Of every whole block.
    Blocks(Vec<u32>),
    /// Of all bytes.
    Whole(u32),
    /// Not at all.
    Unwanted,
}

/// What is known of the bytes that were filled in so far.
pub(crate) struct Sums {
    crc32c: Crc32c,
    /// None once bytes came that it does not cover.
    crc64: Option<Digest>,
    /// Bytes that count.
    len: usize,
}

impl Sums {
    pub(crate) fn new(capacity: usize) -> Sums {
        let table = Vec::with_capacity(capacity.div_ceil(BLOCK));
        Sums { crc32c: Crc32c::Blocks(table), ..Sums::only_crc64() }
    }

    /// Sums of bytes whose blocks are summed as a whole.
    pub(crate) fn whole() -> Sums {
        Sums { crc32c: Crc32c::Whole(0), crc64: None, len: 0 }
    }

    /// Sums of bytes of which nobody wants a CRC32C.
    pub(crate) fn only_crc64() -> Sums {
        Sums { crc32c: Crc32c::Unwanted, crc64: Some(Digest::new(CrcAlgorithm::Crc64Nvme)), len: 0 }
    }

    /// How many bytes are best copied and summed at once: putting sums together costs something, too.
    pub(crate) fn step(&self) -> usize {
        match self.crc32c {
            Crc32c::Whole(_) => WHOLE_STEP,
            Crc32c::Blocks(_) | Crc32c::Unwanted => STEP,
        }
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
        match &mut self.crc32c {
            Crc32c::Blocks(table) => {
                for block in bytes[table.len() * BLOCK..].chunks_exact(BLOCK) {
                    table.push(crc32c(block));
                }
            }
            Crc32c::Whole(whole) => {
                let new = &bytes[self.len..];
                *whole = crc32c_combine(*whole, crc32c(new), new.len() as u64);
            }
            Crc32c::Unwanted => {}
        }
        self.len = bytes.len();
    }

    /// Whether they are of the blocks of so many bytes.
    pub(crate) fn cover(&self, len: usize) -> bool {
        self.len == len && matches!(self.crc32c, Crc32c::Blocks(_))
    }

    /// CRC-64/NVME, if these bytes are the ones that were summed.
    pub(crate) fn crc64(&self, len: usize) -> Option<u64> {
        let crc64 = self.crc64.as_ref().filter(|_| self.len == len)?;
        Some(crc64.clone().finalize())
    }

    /// CRC32C, if these bytes are the ones that were summed.
    pub(crate) fn crc32c(&self, bytes: &[u8]) -> Option<u32> {
        if self.len != bytes.len() {
            return None;
        }
        match &self.crc32c {
            Crc32c::Blocks(table) => {
                let whole = table.len() * BLOCK;
                let rest = bytes.get(whole..)?;
                Some(crc32c_combine(table_crc(table, whole), crc32c(rest), rest.len() as u64))
            }
            Crc32c::Whole(whole) => Some(*whole),
            Crc32c::Unwanted => None,
        }
    }

    /// CRC32C of every block, if these bytes are the ones that were summed.
    pub(crate) fn into_table(self, bytes: &[u8]) -> Option<Vec<u32>> {
        let Crc32c::Blocks(mut table) = self.crc32c else { return None };
        let rest = bytes.get(table.len() * BLOCK..).filter(|_| self.len == bytes.len())?;
        if !rest.is_empty() {
            table.push(crc32c(rest));
        }
        Some(table)
    }
}
