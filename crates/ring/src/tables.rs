//! A bounded cache of CRC tables, so that a partial read of a large record needs no second read (R2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_format::ChunkId;

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

struct Slot {
    table: Table,
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

    /// The table of a record, if it is cached.
    pub fn get(&self, chunk: &ChunkId) -> Option<Table> {
        let mut shard = self.shard(chunk).lock().unwrap();
        let slot = shard.slots.get_mut(chunk)?;
        slot.used = true;
        Some(slot.table.clone())
    }

    /// Caches a table; the least recently used ones make room.
    pub fn put(&self, chunk: ChunkId, table: Table) {
        let cost = table.len() * 4 + SLOT_BYTES;
        if cost > self.shard_bytes_max {
            return;
        }
        let mut shard = self.shard(&chunk).lock().unwrap();
        if let Some(old) = shard.slots.insert(chunk, Slot { table, used: false }) {
            shard.bytes -= old.table.len() * 4 + SLOT_BYTES;
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
                    shard.bytes -= gone.table.len() * 4 + SLOT_BYTES;
                }
                None => {}
            }
        }
    }

    /// Forgets a record that is gone.
    pub fn remove(&self, chunk: &ChunkId) {
        let mut shard = self.shard(chunk).lock().unwrap();
        if let Some(gone) = shard.slots.remove(chunk) {
            shard.bytes -= gone.table.len() * 4 + SLOT_BYTES;
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
