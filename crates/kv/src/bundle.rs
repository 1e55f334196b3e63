//! The bytes of a bundle: blocks, then an index, then a trailer. Does no I/O; no bytes make it panic.
//!
//! Nothing of a foreign file is believed before both checksums and all bounds were checked. `docs/kv.md` draws it.

use std::fmt;

use stoker_format::crc64;

use crate::digest::Digest;

/// Blocks start at multiples of this.
pub const ALIGN: u64 = 4096;
/// Bytes of a record of the index.
pub const RECORD_LEN: usize = 56;
/// Bytes of the trailer.
pub const TRAILER_LEN: usize = 64;
/// Longest block.
pub const BLOCK_LEN_MAX: usize = 256 << 20;
/// Longest file that is taken for a bundle.
pub const BUNDLE_LEN_MAX: u64 = 1 << 30;
/// The end of the names of bundles.
pub const SUFFIX: &str = ".kv";
/// What a block has that does not expire.
pub const NEVER: u64 = u64::MAX;

const MAGIC: &[u8; 8] = b"STKRKVBN";
const VERSION: u32 = 1;

/// A block in a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it is called.
    pub digest: Digest,
    /// Where it starts.
    pub offset: u64,
    /// Its length.
    pub len: u32,
    /// CRC-64/NVME of its digest and bytes.
    pub sum: u64,
    /// When it was put, in milliseconds since 1970.
    pub written_ms: u64,
    /// From when on it is not found any more; [`NEVER`] for no such time.
    pub expires_ms: u64,
}

/// What the end of a bundle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Where the index starts.
    pub index_at: u64,
    /// Records in it.
    pub count: usize,
    /// When the bundle was written, in milliseconds since 1970.
    pub written_ms: u64,
    index_sum: u64,
}

/// Why a file is no bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is damaged, or something else.
    Damaged(&'static str),
    /// A newer release wrote it.
    TooNew(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Damaged(how) => write!(f, "not a bundle: {how}"),
            Fault::TooNew(version) => write!(f, "a bundle of a newer release (version {version})"),
        }
    }
}

impl std::error::Error for Fault {}

/// What a block takes of a bundle.
pub fn block_span(len: u64) -> u64 {
    len.next_multiple_of(ALIGN)
}

/// Bytes of index and trailer of so many blocks.
pub fn tail_len(count: usize) -> usize {
    count * RECORD_LEN + TRAILER_LEN
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u64_at(bytes, at) as u32
}

/// Index and trailer of blocks that end at `index_at`.
pub fn encode_tail(records: &[Record], index_at: u64, written_ms: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(tail_len(records.len()));
    for record in records {
        out.extend_from_slice(&record.digest.0);
        out.extend_from_slice(&record.offset.to_le_bytes());
        out.extend_from_slice(&record.len.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&record.sum.to_le_bytes());
        out.extend_from_slice(&record.written_ms.to_le_bytes());
        out.extend_from_slice(&record.expires_ms.to_le_bytes());
    }
    let index_sum = crc64(&out);
    let trailer_at = out.len();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&index_at.to_le_bytes());
    out.extend_from_slice(&(records.len() as u64).to_le_bytes());
    out.extend_from_slice(&index_sum.to_le_bytes());
    out.extend_from_slice(&written_ms.to_le_bytes());
    out.extend_from_slice(&(index_at + (trailer_at + TRAILER_LEN) as u64).to_le_bytes());
    let sum = crc64(&out[trailer_at..]);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// Reads the trailer: `tail` is the end of a file of `size` bytes.
pub fn decode_trailer(tail: &[u8], size: u64) -> Result<Trailer, Fault> {
    if size > BUNDLE_LEN_MAX {
        return Err(Fault::Damaged("it is too long"));
    }
    let at = tail.len().checked_sub(TRAILER_LEN).ok_or(Fault::Damaged("it is too short"))?;
    let trailer = &tail[at..];
    if &trailer[..8] != MAGIC {
        return Err(Fault::Damaged("it does not end like one"));
    }
    if crc64(&trailer[..56]) != u64_at(trailer, 56) {
        return Err(Fault::Damaged("the checksum of its trailer does not hold"));
    }
    let version = u32_at(trailer, 8);
    if version != VERSION || u32_at(trailer, 12) != 0 {
        return Err(Fault::TooNew(version));
    }
    let (index_at, count) = (u64_at(trailer, 16), u64_at(trailer, 24));
    // Each block takes a multiple of the alignment, so this bounds what is read and kept of a file by its size.
    let fits = index_at.is_multiple_of(ALIGN) && index_at <= size && count <= index_at / ALIGN;
    let len = fits.then(|| index_at + count * RECORD_LEN as u64 + TRAILER_LEN as u64);
    if len != Some(size) || u64_at(trailer, 48) != size {
        return Err(Fault::Damaged("its lengths contradict each other"));
    }
    let (index_sum, written_ms) = (u64_at(trailer, 32), u64_at(trailer, 40));
    Ok(Trailer { index_at, count: count as usize, written_ms, index_sum })
}

impl Trailer {
    /// Bytes of the index.
    pub fn index_len(&self) -> usize {
        self.count * RECORD_LEN
    }

    /// Reads the index.
    pub fn decode_index(&self, index: &[u8]) -> Result<Vec<Record>, Fault> {
        if index.len() != self.index_len() || crc64(index) != self.index_sum {
            return Err(Fault::Damaged("the checksum of its index does not hold"));
        }
        let mut records = Vec::with_capacity(self.count);
        let mut end = 0;
        for bytes in index.chunks_exact(RECORD_LEN) {
            let mut digest = [0; 16];
            digest.copy_from_slice(&bytes[..16]);
            let record = Record {
                digest: Digest(digest),
                offset: u64_at(bytes, 16),
                len: u32_at(bytes, 24),
                sum: u64_at(bytes, 32),
                written_ms: u64_at(bytes, 40),
                expires_ms: u64_at(bytes, 48),
            };
            let len = record.len as usize;
            let is_placed =
                record.offset.is_multiple_of(ALIGN) && record.offset >= end && record.offset < self.index_at;
            if !is_placed || len == 0 || len > BLOCK_LEN_MAX || u32_at(bytes, 28) != 0 {
                return Err(Fault::Damaged("a block of its index is not where one can be"));
            }
            end = record.offset + block_span(u64::from(record.len));
            if end > self.index_at {
                return Err(Fault::Damaged("a block of its index reaches over its end"));
            }
            records.push(record);
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests;
