//! Numbers for `/metrics`, and the times of operations among them. (D67)
//!
//! There is no registry: whoever counts has plain atomics, and makes a list of [`Counter`] when somebody asks. So counting
//! costs an addition, and what is shown is bounded by what is listed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::measures::Times;

/// A number for `/metrics`: name without prefix `stoker_`, labels, value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Counter {
    /// Name in snake case with its unit; ends in `_total` if it only grows.
    pub name: String,
    /// One line of help.
    pub help: String,
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// Value.
    pub value: f64,
}

impl Counter {
    /// A number with these labels.
    pub fn new(name: &str, help: &str, labels: &[(&str, &str)], value: f64) -> Counter {
        let label = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Counter {
            name: name.to_owned(),
            help: help.to_owned(),
            labels: labels.iter().map(label).collect(),
            value,
        }
    }

    /// The numbers of a histogram: for each bound, in seconds, how many were at most that long; then all of them, and their sum.
    pub fn histogram(
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        below: &[(f64, u64)],
        count: u64,
        sum_s: f64,
    ) -> Vec<Counter> {
        let bucket = |bound: &str, count: u64| {
            let labels = [labels, &[("le", bound)]].concat();
            Counter::new(&format!("{name}_bucket"), help, &labels, count as f64)
        };
        let mut all: Vec<Counter> =
            below.iter().map(|(bound, count)| bucket(&bound.to_string(), *count)).collect();
        all.push(bucket("+Inf", count));
        all.push(Counter::new(&format!("{name}_sum"), help, labels, sum_s));
        all.push(Counter::new(&format!("{name}_count"), help, labels, count as f64));
        all
    }
}

/// Upper bounds of the buckets of a [`Histogram`], in microseconds; what is longer is in one more.
const BOUNDS_US: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 30_000_000,
];

/// How long operations took. To note one costs two additions, from any thread.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    /// Notes one.
    pub fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// How many were noted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Upper edge in microseconds and count of every bucket that is not empty, and the sum of all.
    pub fn times(&self) -> Times {
        let uppers = BOUNDS_US.iter().copied().chain([u64::MAX]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let buckets = uppers.zip(counts).filter(|(_, count)| *count > 0).collect();
        Times { buckets, sum_us: self.sum_us.load(Relaxed), ..Times::default() }
    }

    /// Everything, as of now.
    pub fn list(&self, name: &str, help: &str, labels: &[(&str, &str)]) -> Vec<Counter> {
        let mut count = 0;
        let mut below = Vec::with_capacity(BOUNDS_US.len());
        for (bound_us, bucket) in BOUNDS_US.iter().zip(&self.buckets) {
            count += bucket.load(Relaxed);
            below.push((*bound_us as f64 / 1e6, count));
        }
        count += self.buckets[BOUNDS_US.len()].load(Relaxed);
        let sum_s = self.sum_us.load(Relaxed) as f64 / 1e6;
        Counter::histogram(name, help, labels, &below, count, sum_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_what_is_at_most_as_long_as_a_bound() {
        let histogram = Histogram::default();
        for us in [0, 50, 51, 30_000_000, 30_000_001] {
            histogram.note(Duration::from_micros(us));
        }
        let list = histogram.list("x_seconds", "About x.", &[("op", "get")]);
        let bucket = |bound: &str| {
            let is_it = |counter: &&Counter| counter.labels.last().is_some_and(|(_, value)| value == bound);
            list.iter().find(is_it).map(|counter| counter.value)
        };
        assert_eq!(bucket("0.00005"), Some(2.0));
        assert_eq!(bucket("0.0001"), Some(3.0));
        assert_eq!(bucket("30"), Some(4.0));
        assert_eq!(bucket("+Inf"), Some(5.0));
        let [.., sum, count] = &list[..] else { panic!("{list:?}") };
        assert_eq!((sum.name.as_str(), sum.value), ("x_seconds_sum", 60.000_102));
        assert_eq!((count.name.as_str(), count.value), ("x_seconds_count", 5.0));
        assert_eq!(count.labels, [("op".to_owned(), "get".to_owned())]);
        assert_eq!(histogram.count(), 5);
        // Longer than fits a number of microseconds.
        histogram.note(Duration::MAX);
        assert_eq!(histogram.count(), 6);
    }
}
