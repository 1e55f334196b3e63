//! A bounded cache of CRC tables, so that a partial read of a large record needs no second read (R2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_format::{ChunkId, Seal};

/// CRC32C of each block of one payload.
pub type Table = Arc<[u32]>;

const SHARDS: usize = 16;

/// Bookkeeping that one cached table costs beside its words.
const SLOT_BYTES: usize = 96;

#[derive(Default)]
struct Shard {
    slots: HashMap<ChunkId, Slot>,
    /// Clock order; entries of removed tables are skipped when the hand meets them.
    clock: std::collections::VecDeque<ChunkId>,
    bytes: usize,
}

/// What a header knows of the blocks of a payload.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// Their CRCs.
    pub table: Table,
    /// What opens them, if they are sealed.
    pub seal: Option<Arc<Seal>>,
    /// CRC of the whole payload: another record of the same chunk may be sealed anew.
    pub crc: u32,
}

impl Blocks {
    fn cost(&self) -> usize {
        let tags = self.seal.as_ref().map_or(0, |seal| size_of::<Seal>() + seal.tags.len());
        self.table.len() * 4 + tags + SLOT_BYTES
    }
}

struct Slot {
    blocks: Blocks,
    used: bool,
}

/// Tables of recently written and read records.
pub struct Tables {
    shards: Vec<Mutex<Shard>>,
    shard_bytes_max: usize,
}

impl Tables {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: usize) -> Tables {
        Tables {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_bytes_max: bytes_max / SHARDS,
        }
    }

    fn shard(&self, chunk: &ChunkId) -> &Mutex<Shard> {
        let bytes = chunk.to_bytes();
        let sum = bytes.iter().fold(0usize, |h, &b| h.wrapping_mul(31).wrapping_add(b as usize));
        &self.shards[sum % SHARDS]
    }

    /// The table of a record whose payload has this CRC, if it is cached.
    pub fn get(&self, chunk: &ChunkId, crc: u32) -> Option<Blocks> {
        let mut shard = self.shard(chunk).lock().unwrap();
        let slot = shard.slots.get_mut(chunk).filter(|slot| slot.blocks.crc == crc)?;
        slot.used = true;
        Some(slot.blocks.clone())
    }

    /// Caches a table; the least recently used ones make room.
    pub fn put(&self, chunk: ChunkId, blocks: Blocks) {
        let cost = blocks.cost();
        if cost > self.shard_bytes_max {
            return;
        }
        let mut shard = self.shard(&chunk).lock().unwrap();
        if let Some(old) = shard.slots.insert(chunk, Slot { blocks, used: false }) {
            shard.bytes -= old.blocks.cost();
        } else {
            shard.clock.push_back(chunk);
        }
        shard.bytes += cost;
        while shard.bytes > self.shard_bytes_max {
            let Some(oldest) = shard.clock.pop_front() else { break };
            match shard.slots.get_mut(&oldest) {
                Some(slot) if slot.used => {
                    slot.used = false;
                    shard.clock.push_back(oldest);
                }
                Some(_) => {
                    let gone = shard.slots.remove(&oldest).expect("just seen");
                    shard.bytes -= gone.blocks.cost();
                }
                None => {}
            }
        }
    }

    /// Forgets a record that is gone.
    pub fn remove(&self, chunk: &ChunkId) {
        let mut shard = self.shard(chunk).lock().unwrap();
        if let Some(gone) = shard.slots.remove(chunk) {
            shard.bytes -= gone.blocks.cost();
        }
        // Without this, puts and removes of ever new records would grow the clock without bound.
        if shard.clock.len() > 2 * shard.slots.len() + 64 {
            let Shard { slots, clock, .. } = &mut *shard;
            clock.retain(|c| slots.contains_key(c));
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|s| s.lock().unwrap().bytes).sum()
    }
}
