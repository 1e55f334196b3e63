//! How far the work is, to be looked at from outside while it goes on.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what was done. Shared with whoever draws a bar.
#[derive(Debug, Default)]
pub struct Meter {
    pub(crate) files: AtomicU64,
    pub(crate) bytes_total: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_verified: AtomicU64,
    pub(crate) shards_total: AtomicU64,
    pub(crate) shards_done: AtomicU64,
}

/// How far it was at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Progress {
    /// Files or samples that were found.
    pub files: u64,
    /// Bytes of all shards; 0 until that is known.
    pub bytes_total: u64,
    /// Bytes of shards that are written, or were there already.
    pub bytes_written: u64,
    /// Bytes of shards that were read back and compared, or had been before.
    pub bytes_verified: u64,
    /// Shards; 0 until that is known.
    pub shards_total: u64,
    /// Shards that are complete.
    pub shards_done: u64,
}

impl Meter {
    /// How far it is now.
    pub fn progress(&self) -> Progress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            files: read(&self.files),
            bytes_total: read(&self.bytes_total),
            bytes_written: read(&self.bytes_written),
            bytes_verified: read(&self.bytes_verified),
            shards_total: read(&self.shards_total),
            shards_done: read(&self.shards_done),
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
