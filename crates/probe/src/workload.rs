//! What is measured: operations, sizes and queue depths, the same for both sides; and the bars for the ring.

/// What the operations are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// Writes, durable when they complete.
    Writes,
    /// Reads.
    Reads,
    /// One of each in turn.
    Half,
}

/// Where they go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// One after the other, from the start again at the end.
    Sequential,
    /// Writes one after the other, reads anywhere.
    RandomReads,
    /// Anywhere.
    Random,
}

/// One kind of load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Job {
    /// Bytes of one operation.
    pub len: usize,
    /// Operations under way at the same time.
    pub depth: usize,
    /// What they are.
    pub mix: Mix,
    /// Where they go.
    pub order: Order,
}

/// When a round ends.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// After this long.
    Seconds(f64),
    /// After this many bytes.
    Bytes(u64),
}

impl Limit {
    /// Tells whether one more operation is started.
    pub fn is_open(self, elapsed_s: f64, issued_bytes: u64) -> bool {
        match self {
            Limit::Seconds(seconds) => elapsed_s < seconds,
            Limit::Bytes(bytes) => issued_bytes < bytes,
        }
    }
}

/// What the ring has to reach against the bare drive.
#[derive(Clone, Copy, Default, Debug)]
pub struct Bars {
    /// Least share of the drive's throughput.
    pub ratio_min: Option<f64>,
    /// Median latency at most this many times the drive's.
    pub p50_max: Option<f64>,
    /// 99th percentile at most this many times the drive's.
    pub p99_max: Option<f64>,
}

/// A named load of `bench ring`.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// As in the table, in JSON and on the command line.
    pub name: &'static str,
    /// What is done.
    pub job: Job,
    /// What is expected.
    pub bars: Bars,
}

/// Size of the chunks that reads go to, whatever part of them they want.
pub const CHUNK: usize = 4 << 20;

/// Name of the workload that is not a load: opening a ring that was left by a kill.
pub const RECOVERY: &str = "recovery";

const NONE: Bars = Bars { ratio_min: None, p50_max: None, p99_max: None };
const LARGE: Bars = Bars { ratio_min: Some(0.95), p99_max: Some(1.2), ..NONE };
const SMALL: Bars = Bars { ratio_min: Some(0.85), ..NONE };

const fn workload(name: &'static str, mix: Mix, len: usize, depth: usize, bars: Bars) -> Workload {
    Workload { name, job: Job { len, depth, mix, order: Order::RandomReads }, bars }
}

/// The loads of `bench ring`, in the order in which they run.
pub const WORKLOADS: [Workload; 10] = [
    workload("append_4m", Mix::Writes, 4 << 20, 8, LARGE),
    workload("append_1m", Mix::Writes, 1 << 20, 16, LARGE),
    workload("append_64k", Mix::Writes, 64 << 10, 16, SMALL),
    workload("append_4k", Mix::Writes, 4 << 10, 64, Bars { ratio_min: Some(3.0), ..NONE }),
    workload("append_4k_qd1", Mix::Writes, 4 << 10, 1, Bars { p50_max: Some(1.3), ..NONE }),
    workload("read_4m", Mix::Reads, 4 << 20, 8, LARGE),
    workload("read_1m", Mix::Reads, 1 << 20, 16, LARGE),
    workload("read_64k", Mix::Reads, 64 << 10, 16, SMALL),
    workload("read_4k", Mix::Reads, 4 << 10, 64, SMALL),
    workload("mixed_4m", Mix::Half, 4 << 20, 8, NONE),
];

/// Sizes and depths of `bench device`, with the names they have there.
pub const DEVICE: [(&str, usize, usize); 5] = [
    ("4m", 4 << 20, 8),
    ("1m", 1 << 20, 16),
    ("64k", 64 << 10, 16),
    ("4k", 4 << 10, 64),
    ("4k_qd1", 4 << 10, 1),
];
