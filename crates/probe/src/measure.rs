//! Rounds of a benchmark and what they add up to; both sides are measured by the same code.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::{clock, sys};

const GIB: f64 = (1u64 << 30) as f64;

/// Measures one round while it runs.
pub struct Meter {
    started: Instant,
    cpu_seconds: f64,
    bytes: u64,
    ops: u64,
    latency_ns: Histogram<u64>,
}

impl Meter {
    /// Starts the clocks.
    pub fn start() -> Meter {
        let latency_ns = Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("bounds of ours");
        Meter { cpu_seconds: sys::cpu_seconds(), bytes: 0, ops: 0, latency_ns, started: clock::now() }
    }

    /// When the clocks started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Seconds since the start.
    pub fn elapsed_s(&self, now: Instant) -> f64 {
        (now - self.started).as_secs_f64()
    }

    /// Notes a finished operation.
    pub fn note(&mut self, bytes: usize, took: Duration) {
        self.bytes += bytes as u64;
        self.ops += 1;
        self.latency_ns.saturating_record(took.as_nanos() as u64);
    }

    /// Stops the clocks.
    pub fn finish(self) -> Round {
        Round {
            seconds: self.elapsed_s(clock::now()),
            cpu_seconds: sys::cpu_seconds() - self.cpu_seconds,
            bytes: self.bytes,
            ops: self.ops,
            latency_ns: self.latency_ns,
        }
    }
}

/// One measured round.
pub struct Round {
    /// From the first operation asked for to the last one done.
    pub seconds: f64,
    /// Of all threads of this process.
    pub cpu_seconds: f64,
    /// Payload bytes.
    pub bytes: u64,
    /// Operations.
    pub ops: u64,
    /// One entry per operation.
    pub latency_ns: Histogram<u64>,
}

impl Round {
    /// Throughput in decimal megabytes.
    pub fn mb_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    /// Operations per second.
    pub fn iops(&self) -> f64 {
        self.ops as f64 / self.seconds
    }
}

/// All rounds of one side of a workload.
#[derive(Default)]
pub struct Side(pub Vec<Round>);

impl Side {
    /// Throughput of the middle round.
    pub fn mb_s(&self) -> f64 {
        median(self.0.iter().map(Round::mb_s))
    }

    /// Operations per second of the middle round.
    pub fn iops(&self) -> f64 {
        median(self.0.iter().map(Round::iops))
    }

    /// Least and greatest throughput.
    pub fn mb_s_range(&self) -> (f64, f64) {
        range(self.0.iter().map(Round::mb_s))
    }

    /// A latency quantile over all rounds, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        let mut rounds = self.0.iter();
        let Some(first) = rounds.next() else { return 0.0 };
        let mut all = first.latency_ns.clone();
        for round in rounds {
            all.add(&round.latency_ns).expect("the same bounds");
        }
        all.value_at_quantile(quantile) as f64 / 1e3
    }

    /// CPU time for a GiB.
    pub fn cpu_s_per_gib(&self) -> f64 {
        let bytes: u64 = self.0.iter().map(|round| round.bytes).sum();
        let cpu: f64 = self.0.iter().map(|round| round.cpu_seconds).sum();
        if bytes == 0 { 0.0 } else { cpu / (bytes as f64 / GIB) }
    }
}

/// The middle value; the mean of the two middle ones if there are two; 0 for none.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Least and greatest value; zeroes for none.
pub fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.map(|v| (v, v)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((0.0, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles_and_ranges() {
        for (values, middle) in [(&[][..], 0.0), (&[3.0], 3.0), (&[4.0, 1.0], 2.5), (&[9.0, 1.0, 2.0], 2.0)] {
            assert_eq!(median(values.iter().copied()), middle);
        }
        assert_eq!(range([2.0, 1.0, 3.0].into_iter()), (1.0, 3.0));
    }
}
