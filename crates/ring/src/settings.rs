//! Numbers that shape a ring. Components (clock, randomness, drive) are given apart.

use stoker_format::BLOCK;

/// How a write becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    /// Every record write carries RWF_DSYNC (FUA where the drive has it).
    Dsync,
    /// Plain writes, then one fdatasync shared by all that finished before it.
    Flush,
}

/// What does the I/O of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoMode {
    /// io_uring, or positional system calls where it is not allowed.
    Auto,
    /// io_uring or an error.
    Uring,
    /// `preadv2`/`pwritev2` on a few threads.
    Psync,
}

/// Settings of one ring; the defaults suit an NVMe drive.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Hard cap on index memory.
    pub index_bytes_max: usize,
    /// Hard cap on cached CRC tables.
    pub tables_bytes_max: usize,
    /// Size of the buffer arena, if the ring makes its own.
    pub pool_bytes: usize,
    /// Payload bytes that may wait for space or for the drive before appenders wait themselves.
    pub queue_bytes_max: usize,
    /// Payload bytes written at the same time.
    pub in_flight_bytes_max: usize,
    /// Batches of small records written at the same time; more means less packing.
    pub batches_in_flight_max: usize,
    /// Bytes packed into one batch.
    pub batch_bytes_max: usize,
    /// Records packed into one batch.
    pub batch_records_max: usize,
    /// Records up to this many bytes are packed.
    pub small_bytes_max: usize,
    /// Segments kept back for relocation (R3).
    pub reserved_segments: u32,
    /// Share of the ring that never-draining volumes may fill.
    pub never_share: f64,
    /// Share of user bytes that second chances may add in flash writes.
    pub rescue_share: f64,
    /// How writes become durable.
    pub sync: SyncMode,
    /// What does the I/O.
    pub io: IoMode,
    /// Entries of the io_uring submission queue.
    pub queue_depth: u32,
    /// A kernel thread polls for submissions; costs a core.
    pub sqpoll: bool,
    /// Completions are polled; needs a drive with poll queues.
    pub iopoll: bool,
    /// Core that the driver thread is pinned to, by absolute number.
    pub core: Option<usize>,
    /// How long the driver looks for more work before it sleeps, in microseconds.
    pub spin_us: u32,
    /// Threads of the fallback engine.
    pub psync_threads: usize,
    /// Lets a test cut the power of the drive.
    #[cfg(feature = "power")]
    pub power: Option<std::sync::Arc<crate::Power>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            index_bytes_max: 256 << 20,
            tables_bytes_max: 64 << 20,
            pool_bytes: 128 << 20,
            queue_bytes_max: 256 << 20,
            in_flight_bytes_max: 64 << 20,
            batches_in_flight_max: 4,
            batch_bytes_max: 256 << 10,
            batch_records_max: 256,
            small_bytes_max: 64 << 10,
            reserved_segments: 2,
            never_share: 0.5,
            rescue_share: 0.1,
            sync: SyncMode::Dsync,
            io: IoMode::Auto,
            queue_depth: 256,
            sqpoll: false,
            iopoll: false,
            core: None,
            spin_us: 30,
            psync_threads: 8,
            #[cfg(feature = "power")]
            power: None,
        }
    }
}

impl Settings {
    /// Entries that the index cap allows.
    pub fn index_entries_max(&self) -> usize {
        self.index_bytes_max / crate::index::ENTRY_BYTES
    }

    /// Upper bound of the memory that a ring with these settings holds.
    pub fn memory_bytes_max(&self) -> usize {
        self.index_bytes_max + self.tables_bytes_max + self.pool_bytes + self.queue_bytes_max
    }

    /// Refuses numbers that cannot work, in words.
    pub fn check(&self, segment_size: u64) -> Result<(), String> {
        if self.small_bytes_max < BLOCK || self.small_bytes_max > 1 << 20 {
            return Err("small_bytes_max must lie between 4 KiB and 1 MiB".into());
        }
        if self.reserved_segments < 2 {
            return Err("reserved_segments must be at least 2, or relocation can deadlock".into());
        }
        if !(0.0..=0.9).contains(&self.never_share) {
            return Err("never_share must lie between 0 and 0.9".into());
        }
        if self.batch_records_max == 0 || self.batches_in_flight_max == 0 || self.queue_depth < 8 {
            return Err("batch_records_max, batches_in_flight_max and queue_depth must be positive".into());
        }
        if self.index_entries_max() < 1024 || segment_size < stoker_format::SEGMENT_SIZE_MIN {
            return Err("index_bytes_max is too small".into());
        }
        Ok(())
    }
}
