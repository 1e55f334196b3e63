//! What a cache is told: numbers, and the clock.

use stoker_store::{ErrorKind, Result, StoreError, Subject};

use crate::bundle::{BLOCK_LEN_MAX, BUNDLE_LEN_MAX, block_span};

/// Time, as an argument.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

/// When a block is written to the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Admit {
    /// When it is put or read a second time.
    #[default]
    SecondUse,
    /// When it is put.
    Always,
}

/// Numbers of a cache.
#[derive(Clone, Debug)]
pub struct Options {
    /// Volume.
    pub volume: String,
    /// Directory in it, without a `/` at its end.
    pub directory: String,
    /// Bytes of all bundles together, at most.
    pub capacity_bytes: u64,
    /// Bytes of blocks in memory, at most.
    pub memory_bytes: u64,
    /// A bundle is closed when it has so many bytes.
    pub bundle_bytes: u64,
    /// How long blocks are good; none for ever.
    pub ttl_ms: Option<u64>,
    /// When blocks are written.
    pub admit: Admit,
    /// Bundles of others are looked for at most this often when something is not found.
    pub refresh_ms: u64,
    /// How long a block that nobody waits for waits for others to share its bundle.
    pub linger_ms: u64,
    /// Blocks that are known in the volume, at most.
    pub blocks_max: usize,
}

/// Bundles of a cache, at most: beyond, the oldest go.
pub(crate) const BUNDLES_MAX: usize = 1 << 16;
/// Keys that left the memory without being written and are remembered.
pub(crate) const GHOSTS_MAX: usize = 1 << 17;
/// Open bundles at once; a node allows a connection 1,024 files.
pub(crate) const FILES_MAX: usize = 512;
/// Reads under way at once, over all callers; a node allows a connection 256 requests.
pub(crate) const READS_MAX: usize = 48;

impl Options {
    /// The usual numbers.
    pub fn new(volume: impl Into<String>, directory: impl Into<String>) -> Options {
        Options {
            volume: volume.into(),
            directory: directory.into(),
            capacity_bytes: 64 << 30,
            memory_bytes: 1 << 30,
            bundle_bytes: 64 << 20,
            ttl_ms: None,
            admit: Admit::SecondUse,
            refresh_ms: 1000,
            linger_ms: 200,
            blocks_max: 8 << 20,
        }
    }

    pub(crate) fn checked(mut self) -> Result<Options> {
        let wrong = |message: String| Err(StoreError::new(ErrorKind::Invalid, message));
        while self.directory.ends_with('/') {
            self.directory.pop();
        }
        if self.directory.is_empty() {
            return wrong("a cache is a directory of a volume: VOLUME/NAME".to_owned());
        }
        if self.capacity_bytes < 1 << 20 {
            return wrong(format!("capacity is at least 1 MiB, not {} bytes", self.capacity_bytes));
        }
        if self.bundle_bytes == 0 || self.bundle_bytes > BUNDLE_LEN_MAX / 2 {
            return wrong(format!(
                "a bundle has 1 to {} bytes, not {}",
                BUNDLE_LEN_MAX / 2,
                self.bundle_bytes
            ));
        }
        if self.ttl_ms == Some(0) || self.blocks_max == 0 {
            return wrong("ttl is more than no time, and the number of blocks more than none".to_owned());
        }
        // A bundle is evicted as a whole: with few of them, half of the cache would go at once.
        self.bundle_bytes = self.bundle_bytes.min(self.capacity_bytes / 8).max(1);
        Ok(self)
    }

    /// Refuses blocks that could never be stored.
    pub(crate) fn check_len(&self, len: usize) -> Result<()> {
        let largest = BLOCK_LEN_MAX.min(usize::try_from(self.capacity_bytes / 2).unwrap_or(BLOCK_LEN_MAX));
        if len == 0 || len > largest || block_span(len as u64) > self.capacity_bytes / 2 {
            let message = format!("a block of this cache has 1 to {largest} bytes, not {len}");
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message));
        }
        Ok(())
    }
}
