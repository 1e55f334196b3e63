//! What reads and opens took, one by one: whoever asks why loading is slow needs to know what its threads waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Sums over all threads of a reader; they only grow.
#[derive(Debug, Default)]
pub struct Spent {
    opens: AtomicU64,
    open_ns: AtomicU64,
    reads: AtomicU64,
    read_ns: AtomicU64,
}

/// The sums at some moment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sums {
    /// Files that were opened.
    pub opens: u64,
    /// Seconds that took.
    pub open_s: f64,
    /// Reads that ended.
    pub reads: u64,
    /// Seconds that they took.
    pub read_s: f64,
}

#[expect(clippy::disallowed_methods, reason = "the edge: what is told to people is how long it took")]
pub fn now() -> Instant {
    Instant::now()
}

impl Spent {
    pub fn opened(&self, begun: Instant) {
        add(&self.opens, &self.open_ns, begun);
    }

    pub fn read(&self, begun: Instant) {
        add(&self.reads, &self.read_ns, begun);
    }

    pub fn sums(&self) -> Sums {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Sums {
            opens: count(&self.opens),
            open_s: count(&self.open_ns) as f64 * 1e-9,
            reads: count(&self.reads),
            read_s: count(&self.read_ns) as f64 * 1e-9,
        }
    }
}

fn add(count: &AtomicU64, sum: &AtomicU64, begun: Instant) {
    count.fetch_add(1, Ordering::Relaxed);
    sum.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}
