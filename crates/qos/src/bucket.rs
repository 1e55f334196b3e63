//! A rate with a burst, as one number: the time at which all that was taken would have been earned.

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// One rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    per_s: u64,
    burst_ns: u64,
    /// Earned up to here.
    at: u64,
}

impl Bucket {
    pub fn new(per_s: u64, burst_ns: u64) -> Bucket {
        Bucket { per_s: per_s.max(1), burst_ns, at: 0 }
    }

    /// The same, with what was taken before.
    pub fn following(self, old: Option<&Bucket>) -> Bucket {
        Bucket { at: old.map_or(0, |old| old.at), ..self }
    }

    /// How long it takes to earn this. Rounded up, so that no ceiling is passed by many small requests.
    fn takes(&self, amount: u64) -> u64 {
        // `amount` is below 2^31, or a product that is checked for.
        match amount.checked_mul(SECOND) {
            Some(product) => product.div_ceil(self.per_s),
            None => u64::MAX / 4,
        }
    }

    /// When so much may be taken. What is more than a burst goes when the burst is full.
    pub fn ready_at(&self, amount: u64) -> u64 {
        let takes = self.takes(amount);
        self.at.saturating_add(takes.min(self.burst_ns)).saturating_sub(self.burst_ns)
    }

    pub fn take(&mut self, now: u64, amount: u64) {
        self.at = self.at.max(now).saturating_add(self.takes(amount));
    }

    /// True if nothing of it would be missed.
    pub fn is_full(&self, now: u64) -> bool {
        self.at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        // 1,000 per second and a burst of 10 ms: ten at once.
        let mut bucket = Bucket::new(1_000, 10_000_000);
        let now = 5 * SECOND;
        for _ in 0..10 {
            assert!(bucket.ready_at(1) <= now);
            bucket.take(now, 1);
        }
        assert_eq!(bucket.ready_at(1), now + 1_000_000);
        // Larger than the burst: when it is full.
        assert_eq!(bucket.ready_at(1_000), now + 10_000_000);
        assert!(bucket.ready_at(1 << 30) <= now + 10_000_000);
    }

    #[test]
    fn small_requests_do_not_pass_for_free() {
        let mut bucket = Bucket::new(10_000_000_000_000, 0);
        bucket.take(0, 1);
        assert_eq!(bucket.ready_at(1), 1);
    }
}
