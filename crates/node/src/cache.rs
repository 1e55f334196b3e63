//! Hot pieces of chunks in memory, within a bound.
//!
//! A piece enters on its second touch, so that a scan over cold data does not push hot pieces out. Bytes were verified
//! when they entered and are not verified again on every hit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::sync::Cache as QuickCache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};
use stoker_format::ChunkId;
use stoker_ring::Pool;
use stoker_store::Buf;

/// Unit of the cache, and of reads from a drive. Readers that go through a file ask for no more at once, so that no piece
/// is read twice.
pub(crate) const PIECE: usize = 512 << 10;

/// Pieces up to this long are copied into memory of their own size; longer ones stay in arena slots.
const SMALL: usize = 256 << 10;

/// A slot holds a piece and the blocks around it.
const SLOT: usize = PIECE + 2 * stoker_format::BLOCK;

/// Slots that are not counted on for keeping: being read into, or given up and still being sent to somebody.
const SLOTS_SPARE: usize = 32;

/// Bytes that an entry costs beside its payload.
const OVERHEAD: u64 = 160;

type PieceId = (ChunkId, u32);

#[derive(Clone)]
struct ByMemory;

impl Weighter<PieceId, Bytes> for ByMemory {
    fn weight(&self, _: &PieceId, bytes: &Bytes) -> u64 {
        let held = if Cache::is_large(bytes.len()) { Pool::slot_bytes(SLOT) } else { bytes.len() };
        held as u64 + OVERHEAD
    }
}

type Pieces = QuickCache<PieceId, Bytes, ByMemory, DefaultHashBuilder, Evictions>;

/// Counts what had to make room.
#[derive(Clone, Default)]
struct Evictions(Arc<AtomicU64>);

impl Lifecycle<PieceId, Bytes> for Evictions {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), _: PieceId, _: Bytes) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The cache. Large and small pieces have memory of their own: an arena that was once filled is not given back.
pub(crate) struct Cache {
    large: Pieces,
    small: Pieces,
    arena: Option<Arc<Pool>>,
    touched: Box<[AtomicU32]>,
    evictions: Evictions,
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
        let enough = bytes >= 4 * SLOTS_SPARE * SLOT;
        let arena = if enough { Some(Pool::new(bytes / 4 * 3)?) } else { None };
        let slots = arena.as_ref().map_or(0, |arena| arena.size() / Pool::slot_bytes(SLOT));
        let large = slots.saturating_sub(SLOTS_SPARE) * (Pool::slot_bytes(SLOT) + OVERHEAD as usize);
        let small = if enough { bytes / 4 } else { 0 };
        let marks = (bytes / PIECE * 64).next_power_of_two().clamp(1 << 12, 1 << 22);
        let evictions = Evictions::default();
        let pieces = |count: usize, bytes: usize| {
            Pieces::with(count, bytes as u64, ByMemory, DefaultHashBuilder::default(), evictions.clone())
        };
        Ok(Cache {
            large: pieces(slots.max(16), large),
            small: pieces((small / SMALL).max(16) * 4, small),
            arena,
            touched: (0..marks).map(|_| AtomicU32::new(0)).collect(),
            evictions,
        })
    }

    fn pieces(&self, len: usize) -> &Pieces {
        if Cache::is_large(len) { &self.large } else { &self.small }
    }

    /// A piece of that length, if it is here.
    pub fn get(&self, chunk: ChunkId, piece: u32, len: usize) -> Option<Bytes> {
        self.pieces(len).get(&(chunk, piece))
    }

    /// Whether it is here, without counting as a use.
    pub fn has(&self, chunk: ChunkId, piece: u32, len: usize) -> bool {
        self.pieces(len).peek(&(chunk, piece)).is_some()
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

    /// Memory for a large piece that is to be kept; none if all of it is in use.
    pub fn slot(&self) -> Option<Buf> {
        self.arena.as_ref()?.take(SLOT)
    }

    /// Keeps a copy of a piece, if there is memory for it.
    pub fn put_copy(&self, chunk: ChunkId, piece: u32, bytes: &[u8]) {
        if !Cache::is_large(bytes.len()) {
            self.small.insert((chunk, piece), Bytes::copy_from_slice(bytes));
        } else if let Some(mut buf) = self.slot() {
            buf.set_len(bytes.len());
            buf.as_mut_slice().copy_from_slice(bytes);
            self.large.insert((chunk, piece), bytes_of(buf, 0..bytes.len()));
        }
    }

    /// Keeps a piece; a large one lies in a slot. Small ones are copied, so that they do not hold a large buffer.
    pub fn put(&self, chunk: ChunkId, piece: u32, bytes: Bytes) -> Bytes {
        let kept = if Cache::is_large(bytes.len()) { bytes } else { Bytes::copy_from_slice(&bytes) };
        self.pieces(kept.len()).insert((chunk, piece), kept.clone());
        kept
    }

    /// Whether pieces of this length are kept in slots.
    pub fn is_large(len: usize) -> bool {
        len > SMALL
    }

    /// Bytes in use.
    pub fn bytes(&self) -> u64 {
        self.large.weight() + self.small.weight()
    }

    /// Bytes that may be in use.
    pub fn bytes_max(&self) -> u64 {
        self.large.capacity() + self.small.capacity()
    }

    /// Pieces that had to make room for others.
    pub fn evictions(&self) -> u64 {
        self.evictions.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use stoker_format::VersionId;

    use super::*;

    fn touch(cache: &Cache, id: u8, piece: u32) {
        let chunk = ChunkId::new(VersionId([id; 12]), 0);
        if cache.get(chunk, piece, PIECE).is_some() {
            return;
        }
        if cache.wants(chunk, piece)
            && let Some(mut buf) = cache.slot()
        {
            buf.set_len(PIECE);
            cache.put(chunk, piece, bytes_of(buf, 0..PIECE));
        }
    }

    #[test]
    fn a_full_cache_goes_on_learning() {
        let cache = Cache::new(256 << 20).unwrap();
        // More than fits, touched twice, as somebody does who reads a large file again and again.
        (0..2).for_each(|_| (0..1_000).for_each(|piece| touch(&cache, 1, piece)));
        assert!(cache.bytes() > 100 << 20 && cache.bytes() <= cache.bytes_max());
        assert!(cache.evictions() > 0);
        (0..6).for_each(|_| (0..50).for_each(|piece| touch(&cache, 2, piece)));
        let chunk = ChunkId::new(VersionId([2; 12]), 0);
        let here = (0..50).filter(|&piece| cache.has(chunk, piece, PIECE)).count();
        assert!(here >= 40, "{here} of 50 hot pieces are kept");
    }

    #[test]
    fn a_piece_is_kept_on_its_second_touch() {
        let cache = Cache::new(256 << 20).unwrap();
        let chunk = ChunkId::new(VersionId([3; 12]), 0);
        assert!(!cache.wants(chunk, 0));
        assert!(cache.wants(chunk, 0));
        assert!(!cache.wants(chunk, 1));
        cache.put(chunk, 0, Bytes::from_static(b"small"));
        assert_eq!(cache.get(chunk, 0, 5).as_deref(), Some(&b"small"[..]));
        cache.put_copy(chunk, 1, &vec![7; PIECE]);
        assert!(cache.get(chunk, 1, PIECE).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 7)));
    }
}
