//! Hot pieces of chunks in memory, within a bound.
//!
//! A piece enters on its second touch, so that a scan over cold data does not push hot pieces out. Bytes were verified
//! when they entered and are not verified again on every hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache as QuickCache;
use stoker_format::ChunkId;
use stoker_ring::Pool;
use stoker_store::Buf;

/// Unit of the cache, and of reads from a drive.
pub(crate) const PIECE: usize = 1 << 20;

/// Pieces up to this long are copied into memory of their own size; longer ones stay in arena slots.
const SMALL: usize = 128 << 10;

/// Bytes that an entry costs beside its payload.
const OVERHEAD: u64 = 160;

type PieceId = (ChunkId, u32);

#[derive(Clone)]
struct ByLength;

impl Weighter<PieceId, Bytes> for ByLength {
    fn weight(&self, _: &PieceId, bytes: &Bytes) -> u64 {
        // An arena slot is as large as its class, whatever is in it.
        let held = if bytes.len() > SMALL { (PIECE + PIECE / 8) as u64 } else { bytes.len() as u64 };
        held + OVERHEAD
    }
}

/// The cache.
pub(crate) struct Cache {
    pieces: QuickCache<PieceId, Bytes, ByLength>,
    arena: Option<Arc<Pool>>,
    touched: Box<[AtomicU32]>,
}

struct Slot {
    buf: Buf,
    range: std::ops::Range<usize>,
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        &self.buf.as_slice()[self.range.clone()]
    }
}

/// Bytes of a buffer, without a copy; the buffer goes back when the last user is done.
pub(crate) fn bytes_of(buf: Buf, range: std::ops::Range<usize>) -> Bytes {
    Bytes::from_owner(Slot { buf, range })
}

impl Cache {
    /// A cache of at most `bytes`; nothing is cached if that is too little to matter.
    pub fn new(bytes: usize) -> std::io::Result<Cache> {
        let arena = if bytes >= 16 * PIECE { Some(Pool::new(bytes)?) } else { None };
        let weight = if arena.is_some() { bytes as u64 } else { 0 };
        let items = (bytes / PIECE).max(16) * 4;
        let slots = (bytes / PIECE * 64).next_power_of_two().clamp(1 << 12, 1 << 22);
        Ok(Cache {
            pieces: QuickCache::with_weighter(items, weight, ByLength),
            arena,
            touched: (0..slots).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// A piece, if it is here.
    pub fn get(&self, chunk: ChunkId, piece: u32) -> Option<Bytes> {
        self.pieces.get(&(chunk, piece))
    }

    /// Whether it is here, without counting as a use.
    pub fn has(&self, chunk: ChunkId, piece: u32) -> bool {
        self.pieces.peek(&(chunk, piece)).is_some()
    }

    /// Notes a miss; true on the second touch within living memory.
    pub fn wants(&self, chunk: ChunkId, piece: u32) -> bool {
        if self.arena.is_none() {
            return false;
        }
        let id = chunk.to_bytes();
        let hash = stoker_format::crc64(&[&id[..], &piece.to_le_bytes()].concat());
        let slot = &self.touched[(hash as usize) & (self.touched.len() - 1)];
        let print = ((hash >> 32) as u32) | 1;
        slot.swap(print, Ordering::Relaxed) == print
    }

    /// Memory for a piece that is to be kept; none if all of it is in use.
    pub fn slot(&self, len: usize) -> Option<Buf> {
        self.arena.as_ref()?.take(len)
    }

    /// Keeps a piece. Small ones are copied, so that they do not hold a large slot.
    pub fn put(&self, chunk: ChunkId, piece: u32, bytes: Bytes) -> Bytes {
        let kept = if bytes.len() <= SMALL { Bytes::copy_from_slice(&bytes) } else { bytes };
        self.pieces.insert((chunk, piece), kept.clone());
        kept
    }

    /// Whether pieces of this length are kept in slots.
    pub fn is_large(len: usize) -> bool {
        len > SMALL
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.pieces.weight()
    }
}
