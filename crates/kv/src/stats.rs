//! What a cache counted.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters since the cache was opened, and how much there is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Stats {
    /// Blocks that were found in memory.
    pub hits_memory: u64,
    /// Blocks that were read from the volume.
    pub hits_ring: u64,
    /// Blocks that were asked for and not found; wrong ones are among them.
    pub misses: u64,
    /// Blocks whose bytes did not fit their sum.
    pub corrupt: u64,
    /// Blocks that were put.
    pub puts: u64,
    /// Blocks that were written to the volume.
    pub admitted: u64,
    /// Their bytes.
    pub admitted_bytes: u64,
    /// Blocks that were to be written and stayed in memory, because too many were under way.
    pub skipped: u64,
    /// Bundles that were written.
    pub bundles_written: u64,
    /// Bundles that were deleted to make room.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Blocks that were to be written and could not be.
    pub write_errors: u64,
    /// Times that the bundles were listed.
    pub refreshes: u64,
    /// Blocks in memory.
    pub memory_blocks: u64,
    /// Their bytes.
    pub memory_bytes: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Bundles that are known.
    pub bundles: u64,
    /// Files among them that are damaged or foreign.
    pub bundles_bad: u64,
    /// Blocks that are known in the volume.
    pub blocks: u64,
    /// Bytes of all bundles.
    pub bytes: u64,
}

/// Counters that are counted.
#[derive(Default)]
pub(crate) struct Counters {
    pub hits_memory: AtomicU64,
    pub hits_ring: AtomicU64,
    pub misses: AtomicU64,
    pub corrupt: AtomicU64,
    pub puts: AtomicU64,
    pub admitted: AtomicU64,
    pub admitted_bytes: AtomicU64,
    pub skipped: AtomicU64,
    pub bundles_written: AtomicU64,
    pub evictions: AtomicU64,
    pub evicted_bytes: AtomicU64,
    pub write_errors: AtomicU64,
    pub refreshes: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            hits_memory: of(&self.hits_memory),
            hits_ring: of(&self.hits_ring),
            misses: of(&self.misses),
            corrupt: of(&self.corrupt),
            puts: of(&self.puts),
            admitted: of(&self.admitted),
            admitted_bytes: of(&self.admitted_bytes),
            skipped: of(&self.skipped),
            bundles_written: of(&self.bundles_written),
            evictions: of(&self.evictions),
            evicted_bytes: of(&self.evicted_bytes),
            write_errors: of(&self.write_errors),
            refreshes: of(&self.refreshes),
            ..Stats::default()
        }
    }
}
