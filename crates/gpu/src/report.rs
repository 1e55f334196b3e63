//! What a load did: bytes, reads, and how long they took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Buckets of a histogram: the first is below 2 microseconds, each next one twice as wide, the last is open.
pub const BUCKETS: usize = 24;

/// Counts of one load.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Bytes that were copied to where they belong.
    pub bytes: u64,
    /// Bytes that were read for that.
    pub bytes_read: u64,
    /// Reads, each into one buffer.
    pub reads: u64,
    /// Copies to the device.
    pub copies: u64,
    /// Threads that worked.
    pub threads: usize,
    /// Reads by how long they took, checks included.
    pub read_us: [u64; BUCKETS],
    /// What threads waited for copies to end, summed.
    pub wait_us: u64,
    /// What threads spent in reads, summed.
    pub reading_us: u64,
    /// From begin to end.
    pub elapsed_us: u64,
}

/// A report that threads write.
#[derive(Default)]
pub(crate) struct Counts {
    pub bytes: AtomicU64,
    pub bytes_read: AtomicU64,
    pub reads: AtomicU64,
    pub copies: AtomicU64,
    read_us: [AtomicU64; BUCKETS],
    wait_us: AtomicU64,
    reading_us: AtomicU64,
}

pub(crate) fn add(to: &AtomicU64, count: u64) {
    to.fetch_add(count, Ordering::Relaxed);
}

impl Counts {
    pub fn report(&self, threads: usize, begun: Instant) -> Report {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut read_us = [0; BUCKETS];
        read_us.iter_mut().zip(&self.read_us).for_each(|(to, from)| *to = get(from));
        Report {
            bytes: get(&self.bytes),
            bytes_read: get(&self.bytes_read),
            reads: get(&self.reads),
            copies: get(&self.copies),
            threads,
            read_us,
            wait_us: get(&self.wait_us),
            reading_us: get(&self.reading_us),
            elapsed_us: micros(begun),
        }
    }
}

/// What one thread takes the time with.
pub(crate) struct Clock<'a>(pub &'a Counts);

impl Clock<'_> {
    /// Does a read.
    pub fn reads<T>(&mut self, read: impl FnOnce() -> T) -> T {
        let begun = now();
        let done = read();
        let took = micros(begun);
        add(&self.0.reads, 1);
        add(&self.0.reading_us, took);
        add(&self.0.read_us[bucket(took)], 1);
        done
    }

    /// Waits for a copy.
    pub fn waits<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let begun = now();
        let done = wait();
        add(&self.0.wait_us, micros(begun));
        done
    }
}

/// The bucket of a time.
fn bucket(us: u64) -> usize {
    (us.max(1).ilog2() as usize).min(BUCKETS - 1)
}

fn micros(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "the edge: what is told to people is how long it took")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket() {
        assert_eq!([0, 1, 2, 3, 4, u64::MAX].map(bucket), [0, 0, 1, 1, 2, BUCKETS - 1]);
    }
}
