//! What a file system is told when it begins.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use stoker_store::LockClient;

/// What becomes of changes that wait here when another node or API publishes the file before them. (D75)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Newer {
    /// They are laid over it: each of two writers keeps its bytes. Changes that the node could not publish in time are
    /// dropped, and whoever has the file open hears of it (ESTALE).
    Merge,
    /// They are dropped and counted in [`Options::losses`]. Who asks for them to be durable in that moment gets EAGAIN.
    Drop,
}

/// Numbers and parts.
#[derive(Clone, Debug)]
pub struct Options {
    /// Changes of one file that wait in memory before they are published.
    pub file_bytes_max: usize,
    /// The same of all files.
    pub bytes_max: usize,
    /// A file that grew by this much is sent ahead.
    pub stream_from: u64,
    /// Bytes that are read ahead for all files.
    pub ahead_bytes_max: usize,
    /// Changes wait no longer than this although nobody asks for them.
    pub dirty_max: Duration,
    /// How long a node that is away is waited for.
    pub patience: Duration,
    /// How long a full node is waited for.
    pub full_patience: Duration,
    /// How long a change is tried again that others are in the way of, or a lake that others wrote to.
    pub conflict_patience: Duration,
    /// What becomes of changes that somebody else published before.
    pub newer: Newer,
    /// Counts how often changes were dropped that a caller was told are here. Raised before they are gone.
    pub losses: Arc<AtomicU64>,
    /// Owner and group of what says nothing of them.
    pub owner: (u32, u32),
    /// Tells this file system from others that were here before: what those left unfinished is removed.
    pub place: String,
    /// As whom it locks files among all mounts of the cluster; without, it has no locks.
    pub locks: Option<LockClient>,
    /// The time, nanoseconds since 1970.
    pub now_ns: fn() -> i64,
}

impl Options {
    /// The usual numbers.
    pub fn new(place: impl Into<String>, now_ns: fn() -> i64) -> Options {
        Options {
            file_bytes_max: 128 << 20,
            bytes_max: 256 << 20,
            stream_from: 8 << 20,
            ahead_bytes_max: 128 << 20,
            dirty_max: Duration::from_secs(5),
            patience: Duration::from_secs(24 * 3600),
            full_patience: Duration::from_secs(30),
            conflict_patience: Duration::from_secs(15),
            newer: Newer::Merge,
            losses: Arc::default(),
            owner: (0, 0),
            place: place.into(),
            locks: None,
            now_ns,
        }
    }
}
