//! Where every live record lies, in memory, shared by the engine and all readers.
//!
//! The engine alone inserts, moves and removes entries. Readers look entries up and pin the segment while they hold
//! the shard's lock, so that once the reclaimer has taken a segment's entries out, no new reader can arrive there and
//! it only waits for the pins to drop.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stoker_format::{ChunkId, FooterEntry, Generation, RecordFlags, RecordKind, Seq, VolumeId};

use crate::stats::Wake;

const SHARDS: usize = 64;

/// Bytes one entry costs at the table's worst fill, growth of a shard included; the cap on memory uses it.
pub const ENTRY_BYTES: usize = 136;

/// State of a live record beyond its place; a byte in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks(u8);

impl Marks {
    /// A confirmed lake extent exists; the ring may drop the record.
    pub const CLEAN: Marks = Marks(1);
    /// Belongs to a volume that never drains.
    pub const NEVER: Marks = Marks(2);
    /// Kept by request.
    pub const PINNED: Marks = Marks(4);
    /// Read since it was written or last considered by the reclaimer.
    pub const TOUCHED: Marks = Marks(8);
    /// Already had its second chance.
    pub const RESCUED: Marks = Marks(16);
    /// A name record, not a chunk.
    pub const NAME: Marks = Marks(32);
    /// A block failed its CRC when the record was moved.
    pub const DAMAGED: Marks = Marks(64);
    /// Ciphertext, with a seal in its header.
    pub const SEALED: Marks = Marks(128);

    /// True if all of `other` is set.
    pub fn has(self, other: Marks) -> bool {
        self.0 & other.0 == other.0
    }

    /// These marks and `other`.
    pub fn with(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }

    /// These marks less `other`.
    pub fn without(self, other: Marks) -> Marks {
        Marks(self.0 & !other.0)
    }

    /// `other`, kept for as long as a record with these marks would be.
    pub fn keeping(self, other: Marks) -> Marks {
        let keep = Marks(self.0 & (Marks::NEVER.0 | Marks::PINNED.0));
        if self.has(Marks::CLEAN) { other.with(keep) } else { other.with(keep).without(Marks::CLEAN) }
    }

    /// True if the reclaimer must move the record instead of dropping it.
    pub fn must_keep(self) -> bool {
        !self.has(Marks::CLEAN) || self.has(Marks::PINNED) || self.has(Marks::NEVER)
    }

    /// Marks as a record's flags carry them.
    pub fn from_record(kind: RecordKind, flags: RecordFlags) -> Marks {
        let mut marks = Marks::default();
        for (flag, mark) in [
            (RecordFlags::NEVER_DRAIN, Marks::NEVER),
            (RecordFlags::PINNED, Marks::PINNED),
            (RecordFlags::DAMAGED, Marks::DAMAGED),
            (RecordFlags::RELOCATED, Marks::RESCUED),
            (RecordFlags::ENCRYPTED, Marks::SEALED),
        ] {
            if flags.contains(flag) {
                marks = marks.with(mark);
            }
        }
        if kind == RecordKind::Name {
            marks = marks.with(Marks::NAME);
        }
        marks
    }

    /// Flags of a record that is written with these marks. CLEAN travels as a hint only (R8).
    pub fn to_flags(self) -> RecordFlags {
        let mut flags = RecordFlags(0);
        for (flag, mark) in [
            (RecordFlags::CLEAN_HINT, Marks::CLEAN),
            (RecordFlags::NEVER_DRAIN, Marks::NEVER),
            (RecordFlags::PINNED, Marks::PINNED),
            (RecordFlags::DAMAGED, Marks::DAMAGED),
            (RecordFlags::RELOCATED, Marks::RESCUED),
            (RecordFlags::ENCRYPTED, Marks::SEALED),
        ] {
            if self.has(mark) {
                flags = flags.with(flag);
            }
        }
        flags
    }
}

/// Place and state of one live record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Order among records of the same chunk.
    pub seq: Seq,
    /// Segment number.
    pub segment: u32,
    /// Where the header starts inside the segment.
    pub header_offset: u32,
    /// Where the payload starts inside the segment.
    pub payload_offset: u32,
    /// Payload bytes.
    pub len: u32,
    /// CRC32C of the whole payload.
    pub crc: u32,
    /// Owner.
    pub volume: VolumeId,
    /// State.
    pub marks: Marks,
}

impl Entry {
    /// The entry that a footer line describes, in segment `segment`.
    pub fn from_footer(segment: u32, line: &FooterEntry) -> Entry {
        Entry {
            seq: line.seq,
            segment,
            header_offset: line.header_offset,
            payload_offset: line.payload_offset,
            len: line.len,
            crc: line.payload_crc,
            volume: line.volume,
            marks: Marks::from_record(line.kind, line.flags),
        }
    }

    /// Aux bytes that each of its blocks has in the header.
    pub fn aux(&self) -> u8 {
        stoker_format::seal_aux(self.marks.has(Marks::SEALED))
    }

    /// What kind of record this is.
    pub fn kind(&self) -> RecordKind {
        if self.marks.has(Marks::NAME) { RecordKind::Name } else { RecordKind::Chunk }
    }

    /// True if both describe the same bytes on the drive.
    pub fn same_place(&self, other: &Entry) -> bool {
        (self.segment, self.header_offset, self.seq) == (other.segment, other.header_offset, other.seq)
    }
}

/// What readers and the engine share about one segment.
#[derive(Default)]
pub struct SegmentShare {
    pins: AtomicU32,
    heat: AtomicU32,
    wanted: AtomicBool,
    generation: AtomicU64,
    nonce: AtomicU64,
}

impl SegmentShare {
    /// Readers at present.
    pub fn pins(&self) -> u32 {
        self.pins.load(Ordering::Acquire)
    }

    /// Tells readers which life the segment is in; the engine calls it before any record of that life can be found.
    pub fn set_life(&self, generation: Generation, nonce: u64) {
        self.generation.store(generation.0, Ordering::Release);
        self.nonce.store(nonce, Ordering::Release);
    }

    /// Generation and nonce of the present life; stable while the segment is pinned.
    pub fn life(&self) -> (Generation, u64) {
        (Generation(self.generation.load(Ordering::Acquire)), self.nonce.load(Ordering::Acquire))
    }

    /// Touches of its records since the last cooling.
    pub fn heat(&self) -> u32 {
        self.heat.load(Ordering::Relaxed)
    }

    /// Adds touches that a record had before it came here.
    pub fn warm(&self, touches: u32) {
        self.heat.fetch_add(touches, Ordering::Relaxed);
    }

    /// Halves the heat, so that old popularity fades.
    pub fn cool(&self) {
        let _ = self.heat.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |h| Some(h / 2));
    }

    /// Forgets the heat, for a new life of the segment.
    pub fn reset_heat(&self) {
        self.heat.store(0, Ordering::Relaxed);
    }

    /// Asks the last reader to wake the engine; true if there is none even now.
    pub fn want_unpinned(&self) -> bool {
        self.wanted.store(true, Ordering::SeqCst);
        self.pins.load(Ordering::SeqCst) == 0
    }
}

/// A reader's hold on a segment; while it lives the segment is not reused.
pub struct Pin {
    index: Arc<Index>,
    segment: u32,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let share = &self.index.segments[self.segment as usize];
        if share.pins.fetch_sub(1, Ordering::SeqCst) == 1 && share.wanted.swap(false, Ordering::SeqCst) {
            self.index.wake.wake();
        }
    }
}

/// The chunk index of one ring.
pub struct Index {
    shards: Vec<Mutex<HashMap<ChunkId, Entry, Seed>>>,
    seed: Seed,
    len: AtomicUsize,
    max: usize,
    segments: Vec<SegmentShare>,
    touches: AtomicU64,
    wake: Arc<dyn Wake>,
}

impl Index {
    /// An empty index of at most `max` entries over `segments` segments; `seed` keys its hash.
    pub fn new(max: usize, segments: u32, seed: u64, wake: Arc<dyn Wake>) -> Arc<Index> {
        let seed = Seed(seed);
        Arc::new(Index {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::with_hasher(seed))).collect(),
            seed,
            len: AtomicUsize::new(0),
            max,
            segments: (0..segments).map(|_| SegmentShare::default()).collect(),
            touches: AtomicU64::new(0),
            wake,
        })
    }

    fn shard(&self, chunk: &ChunkId) -> MutexGuard<'_, HashMap<ChunkId, Entry, Seed>> {
        // The high bits choose the shard; the table inside uses the low ones.
        let hash = self.seed.hash_one(chunk);
        self.shards[(hash >> 58) as usize % SHARDS].lock().unwrap()
    }

    /// Live records.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// True if nothing is live.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cap on live records.
    pub fn max(&self) -> usize {
        self.max
    }

    /// What is shared about a segment.
    pub fn segment(&self, segment: u32) -> &SegmentShare {
        &self.segments[segment as usize]
    }

    /// Reads of records since the ring was opened.
    pub fn touches(&self) -> u64 {
        self.touches.load(Ordering::Relaxed)
    }

    /// Looks a record up without touching it.
    pub fn get(&self, chunk: &ChunkId) -> Option<Entry> {
        self.shard(chunk).get(chunk).copied()
    }

    /// Looks a record up for a reader: marks it touched and holds its segment.
    pub fn pin(self: &Arc<Self>, chunk: &ChunkId) -> Option<(Entry, Pin)> {
        let mut shard = self.shard(chunk);
        let entry = shard.get_mut(chunk)?;
        entry.marks = entry.marks.with(Marks::TOUCHED);
        let share = &self.segments[entry.segment as usize];
        share.pins.fetch_add(1, Ordering::SeqCst);
        share.heat.fetch_add(1, Ordering::Relaxed);
        self.touches.fetch_add(1, Ordering::Relaxed);
        Some((*entry, Pin { index: self.clone(), segment: entry.segment }))
    }

    /// Puts an entry unless a newer record of the chunk is known; returns what it replaced, or gives the entry back.
    pub fn insert(&self, chunk: ChunkId, entry: Entry) -> Result<Option<Entry>, Entry> {
        let mut shard = self.shard(&chunk);
        match shard.get_mut(&chunk) {
            Some(old) if old.seq > entry.seq => Err(entry),
            Some(old) => Ok(Some(std::mem::replace(old, entry))),
            None => {
                shard.insert(chunk, entry);
                self.len.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Moves an entry if it still is at the place `from`; marks set meanwhile stay, `marks` are added.
    pub fn relocate(&self, chunk: &ChunkId, from: &Entry, to: Entry) -> Option<Entry> {
        let mut shard = self.shard(chunk);
        let entry = shard.get_mut(chunk).filter(|e| e.same_place(from))?;
        // Marks of the copy are those of the time when it was made; only what the move itself found out is news.
        let found = Marks(to.marks.0 & (Marks::DAMAGED.0 | Marks::RESCUED.0));
        let marks = entry.marks.with(found).without(Marks::TOUCHED);
        *entry = Entry { marks, ..to };
        Some(*entry)
    }

    /// Removes an entry if `condition` holds for it.
    pub fn remove_if(&self, chunk: &ChunkId, condition: impl FnOnce(&Entry) -> bool) -> Option<Entry> {
        let mut shard = self.shard(chunk);
        if !condition(shard.get(chunk)?) {
            return None;
        }
        let gone = shard.remove(chunk);
        self.len.fetch_sub(1, Ordering::Relaxed);
        gone
    }

    /// Changes the marks of an entry; returns the entry before and after.
    pub fn remark(&self, chunk: &ChunkId, change: impl FnOnce(Marks) -> Marks) -> Option<(Entry, Entry)> {
        let mut shard = self.shard(chunk);
        let entry = shard.get_mut(chunk)?;
        let before = *entry;
        entry.marks = change(entry.marks);
        Some((before, *entry))
    }

    /// Visits every entry, shard by shard; entries that change meanwhile may be seen in either state.
    pub fn for_each(&self, mut visit: impl FnMut(&ChunkId, &Entry)) {
        for shard in &self.shards {
            shard.lock().unwrap().iter().for_each(|(chunk, entry)| visit(chunk, entry));
        }
    }

    /// The entries of one shard, for iterating without holding a lock; None past the last shard.
    pub fn page(&self, shard: usize) -> Option<Vec<(ChunkId, Entry)>> {
        let shard = self.shards.get(shard)?.lock().unwrap();
        Some(shard.iter().map(|(c, e)| (*c, *e)).collect())
    }
}

/// A keyed multiply-and-fold hash: chunk ids of foreign origin cannot be chosen to collide.
#[derive(Clone, Copy)]
struct Seed(u64);

impl BuildHasher for Seed {
    type Hasher = Fold;
    fn build_hasher(&self) -> Fold {
        Fold(self.0 ^ 0x9e37_79b9_7f4a_7c15)
    }
}

struct Fold(u64);

impl Fold {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0xa076_1d64_78bd_642f_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(word));
        }
    }
    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word) | 1 << 40);
    }
    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
    fn finish(&self) -> u64 {
        let mut last = Fold(self.0);
        last.mix(0x2d35_8dcc_aa6c_78a5);
        last.0
    }
}
