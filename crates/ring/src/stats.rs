//! Plain counters of a ring, cheap to bump and to read; other crates turn them into metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Wakes the thread that drives a ring.
pub trait Wake: Send + Sync {
    /// Makes the driver look again.
    fn wake(&self);
}

/// A wake that does nothing, where one thread drives and reads (simulation).
pub struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

/// A counter.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes away, for gauges.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// Sets the value, for gauges.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

const STEPS: u32 = 4;
const BUCKETS: usize = 40 * STEPS as usize;

/// A latency histogram in microseconds: four buckets per doubling, so a quantile is at most 19 % off.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum_us: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Notes one latency.
    pub fn record_us(&self, us: u64) {
        self.buckets[Self::bucket(us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    fn bucket(us: u64) -> usize {
        if us < u64::from(STEPS) {
            return us as usize;
        }
        let power = us.ilog2();
        let step = (us >> (power - 2)) & 3;
        ((power as usize - 1) * STEPS as usize + step as usize).min(BUCKETS - 1)
    }

    fn upper_us(bucket: usize) -> u64 {
        if bucket < STEPS as usize {
            return bucket as u64;
        }
        let (power, step) = (bucket / 4 + 1, bucket as u64 % 4);
        ((4 + step + 1) << (power - 2)) - 1
    }

    /// Latencies noted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).sum()
    }

    /// Sum of all latencies.
    pub fn sum_us(&self) -> u64 {
        self.sum_us.load(Ordering::Relaxed)
    }

    /// Upper edge and count of every bucket that is not empty.
    pub fn snapshot(&self) -> Vec<(u64, u64)> {
        let counts = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).enumerate();
        counts.filter(|&(_, n)| n > 0).map(|(i, n)| (Self::upper_us(i), n)).collect()
    }

    /// The latency that the share `quantile` of all stays below; zero if there are none.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        let snapshot = self.snapshot();
        let total: u64 = snapshot.iter().map(|&(_, n)| n).sum();
        let rank = (total as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for &(upper, n) in &snapshot {
            seen += n;
            if seen >= rank {
                return upper;
            }
        }
        0
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Everything a ring counts. Sums since it was opened, except those called gauges.
        #[derive(Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: Counter,)+
            /// From hand-over to durable.
            pub append_latency: Histogram,
            /// From hand-over to verified bytes.
            pub read_latency: Histogram,
            /// From submission to completion of a record write.
            pub write_latency: Histogram,
            /// Microseconds during which at least one read was under way.
            pub read_busy_us: Counter,
            /// Microseconds during which at least one record write was under way.
            pub write_busy_us: Counter,
        }

        impl Stats {
            /// Name and value of every counter, for printing and for metrics.
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)+]
            }

            /// The same with what each means.
            pub fn told(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),+).trim_start(), self.$name.get()),)+]
            }
        }
    };
}

counters! {
    /// Records appended for users.
    append_records,
    /// Payload bytes appended for users (write ledger: what the users asked for).
    user_bytes,
    /// Payload bytes written again by the reclaimer (write ledger).
    relocated_bytes,
    /// Header, table, footer and alignment bytes (write ledger).
    padding_bytes,
    /// Zeroes written to prepare segments (write ledger).
    prepared_bytes,
    /// Batches of small records.
    batches,
    /// Record writes submitted.
    writes,
    /// Flushes submitted.
    flushes,
    /// Reads served.
    reads,
    /// Payload bytes read for users.
    read_bytes,
    /// Reads whose CRC table was not cached.
    table_misses,
    /// Blocks that failed their CRC.
    corrupt_blocks,
    /// Records lost because header and payload were both unreadable.
    lost_records,
    /// Clean records dropped to make room.
    evicted_records,
    /// Payload bytes of those.
    evicted_bytes,
    /// Clean records that got a second chance.
    rescued_records,
    /// Segments freed.
    reclaimed_segments,
    /// Segments replaced by a new file because a lease may still show the old one.
    replaced_segments,
    /// Appends refused because the ring was full.
    refused_full,
    /// Failed reads, writes and flushes of the drive.
    io_errors,
    /// Records checked by the scrubber.
    scrubbed_records,
    /// I/O operations in flight now (gauge).
    in_flight,
    /// Payload bytes queued for append now (gauge).
    queued_bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_quantiles_are_within_a_fifth() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|us| histogram.record_us(us));
        for (quantile, exact) in [(0.5, 5_000.0), (0.99, 9_900.0)] {
            let found = histogram.quantile_us(quantile) as f64;
            assert!(found >= exact && found <= exact * 1.2, "{quantile}: {found}");
        }
        assert_eq!(histogram.count(), 10_000);
        for bucket in 0..BUCKETS - 8 {
            assert_eq!(Histogram::bucket(Histogram::upper_us(bucket)), bucket);
        }
    }
}
