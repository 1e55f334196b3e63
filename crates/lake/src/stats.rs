//! What a lake was asked and how it answered.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::LakeErrorKind;

/// The calls of a lake, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Looking at an object.
    Head,
    /// Reading bytes.
    Get,
    /// Writing an object or a part.
    Put,
    /// Beginning, listing, completing and aborting uploads.
    Upload,
    /// Copying inside the lake.
    Copy,
    /// Deleting.
    Delete,
    /// Listing keys.
    List,
}

impl Operation {
    /// Every operation, in the order of the counters.
    pub const ALL: [Operation; 7] = [
        Operation::Head,
        Operation::Get,
        Operation::Put,
        Operation::Upload,
        Operation::Copy,
        Operation::Delete,
        Operation::List,
    ];

    /// One word for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Head => "head",
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Upload => "upload",
            Operation::Copy => "copy",
            Operation::Delete => "delete",
            Operation::List => "list",
        }
    }
}

/// Upper bounds of the latency buckets, in milliseconds; there is one more bucket for what is slower.
pub const LATENCY_MS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];

/// Counters of one lake at one moment. They only grow, except the two of the gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LakeStats {
    /// Requests by operation, in the order of [`Operation::ALL`].
    pub operations: [OperationStats; Operation::ALL.len()],
    /// Failed requests by kind, in the order of [`LakeErrorKind::ALL`]. A failure that a retry healed counts.
    pub errors: [u64; LakeErrorKind::ALL.len()],
    /// Requests that were sent again.
    pub retries: u64,
    /// Failures that were not tried again because too many failed before.
    pub retries_refused: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Requests under way now.
    pub requests_now: u64,
    /// Requests that may be under way at the same time now.
    pub requests_limit: u64,
}

/// Counters of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationStats {
    /// Requests that got an answer, good or bad.
    pub requests: u64,
    /// Their time, summed.
    pub latency_us_sum: u64,
    /// Requests by time; see [`LATENCY_MS`].
    pub latency_buckets: [u64; LATENCY_MS.len() + 1],
}

/// The same counters, while they count.
#[derive(Default)]
pub(crate) struct Counters {
    operations: [OperationCounters; Operation::ALL.len()],
    errors: [AtomicU64; LakeErrorKind::ALL.len()],
    retries: AtomicU64,
    retries_refused: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

#[derive(Default)]
struct OperationCounters {
    requests: AtomicU64,
    latency_us_sum: AtomicU64,
    latency_buckets: [AtomicU64; LATENCY_MS.len() + 1],
}

impl Counters {
    pub fn answered(&self, operation: Operation, latency_us: u64, error: Option<LakeErrorKind>) {
        let counters = &self.operations[operation as usize];
        add(&counters.requests, 1);
        add(&counters.latency_us_sum, latency_us);
        add(&counters.latency_buckets[LATENCY_MS.partition_point(|&ms| ms * 1000 < latency_us)], 1);
        if let Some(kind) = error {
            add(&self.errors[kind as usize], 1);
        }
    }

    pub fn read(&self, bytes: u64) {
        add(&self.bytes_read, bytes);
    }

    pub fn written(&self, bytes: u64) {
        add(&self.bytes_written, bytes);
    }

    pub fn retried(&self) {
        add(&self.retries, 1);
    }

    pub fn refused(&self) {
        add(&self.retries_refused, 1);
    }

    pub fn snapshot(&self, requests_now: u64, requests_limit: u64) -> LakeStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LakeStats {
            operations: std::array::from_fn(|index| {
                let counters = &self.operations[index];
                OperationStats {
                    requests: load(&counters.requests),
                    latency_us_sum: load(&counters.latency_us_sum),
                    latency_buckets: std::array::from_fn(|bucket| load(&counters.latency_buckets[bucket])),
                }
            }),
            errors: std::array::from_fn(|index| load(&self.errors[index])),
            retries: load(&self.retries),
            retries_refused: load(&self.retries_refused),
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            requests_now,
            requests_limit,
        }
    }
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}
