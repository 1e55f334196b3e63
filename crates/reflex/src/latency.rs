//! Latencies as counts in buckets, which is how rings keep them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets of one measurement; what is beyond is not looked at.
const BUCKETS_MAX: usize = 512;

/// Counts by the upper edge of their bucket, in microseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latencies(BTreeMap<u64, u64>);

impl Latencies {
    /// Of upper edges and counts.
    pub fn new(buckets: impl IntoIterator<Item = (u64, u64)>) -> Latencies {
        let mut all = Latencies::default();
        for (upper_us, count) in buckets {
            all.add(upper_us, count);
        }
        all
    }

    fn add(&mut self, upper_us: u64, count: u64) {
        if count > 0 && (self.0.len() < BUCKETS_MAX || self.0.contains_key(&upper_us)) {
            let sum = self.0.entry(upper_us).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Takes others in.
    pub fn merge(&mut self, other: &Latencies) {
        for (upper_us, count) in &other.0 {
            self.add(*upper_us, *count);
        }
    }

    /// What came since an earlier look at counters that only grow. If they did not, somebody began anew, and all of it is new.
    pub fn since(&self, before: &Latencies) -> Latencies {
        let old = |upper_us: &u64| before.0.get(upper_us).copied().unwrap_or(0);
        if before.0.iter().any(|(upper_us, count)| self.0.get(upper_us).is_none_or(|now| now < count)) {
            return self.clone();
        }
        Latencies::new(self.0.iter().map(|(upper_us, count)| (*upper_us, count - old(upper_us))))
    }

    /// The same, each so many times as long.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Latencies {
        Latencies::new(
            self.0.iter().map(|(upper_us, count)| ((*upper_us as f64 * factor).ceil() as u64, *count)),
        )
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Those that were certainly longer. A bucket is a fifth as wide as its upper edge, so the one that holds the threshold
    /// counts as within.
    pub fn above(&self, threshold_us: u64) -> u64 {
        let is_above = |upper_us: u64| upper_us.saturating_mul(4) / 5 > threshold_us;
        self.0
            .iter()
            .filter(|(upper_us, _)| is_above(**upper_us))
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Ninety-nine of a hundred took no longer; zero if there are none.
    pub fn p99_us(&self) -> u64 {
        let rank = (self.count() as f64 * 0.99).ceil() as u64;
        let mut seen: u64 = 0;
        for (upper_us, count) in &self.0 {
            seen = seen.saturating_add(*count);
            if seen >= rank {
                return *upper_us;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_quantiles() {
        let some = Latencies::new([(100, 98), (1_000, 1), (5_000, 1), (5_000, 0)]);
        assert_eq!((some.count(), some.p99_us()), (100, 1_000));
        // The bucket up to 1000 begins at 800.
        for (threshold_us, expect) in [(10, 100), (100, 2), (799, 2), (800, 1), (3_999, 1), (4_000, 0)] {
            assert_eq!(some.above(threshold_us), expect, "{threshold_us}");
        }
        assert_eq!((Latencies::default().count(), Latencies::default().p99_us()), (0, 0));
        let huge = Latencies::new([(u64::MAX, u64::MAX), (1, u64::MAX)]);
        assert_eq!((huge.count(), huge.above(9)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn what_is_new() {
        let before = Latencies::new([(10, 5), (20, 1)]);
        let now = Latencies::new([(10, 7), (20, 1), (30, 2)]);
        assert_eq!(now.since(&before), Latencies::new([(10, 2), (30, 2)]));
        // A ring that was opened again counts from zero.
        let anew = Latencies::new([(10, 2)]);
        assert_eq!(anew.since(&before), anew);
    }

    #[test]
    fn there_are_only_so_many_buckets() {
        let many = Latencies::new((0..10_000).map(|upper_us| (upper_us, 1)));
        assert_eq!(many.count(), BUCKETS_MAX as u64);
    }
}
