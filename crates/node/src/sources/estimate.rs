//! How long a source takes, by what was seen lately: a small histogram that forgets. Pure: time is an argument.

/// Latencies up to this are all the same to us.
const FIRST_US: u64 = 16;

/// Two buckets for each doubling, up to half a minute.
const BUCKETS: usize = 42;

/// What was seen this long ago counts half, so that a source that slows down is left within seconds, and one that was
/// left is tried again as soon.
const HALF_LIFE_US: u64 = 4_000_000;

/// Forgetting in steps of this is exact enough.
const STEP_US: u64 = 100_000;

/// With less than this nothing is known.
const KNOWN_FROM: f32 = 0.5;

/// With less than this the tail is not known.
const TAIL_KNOWN_FROM: f32 = 10.0;

/// Reads of one size from one source.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    buckets: [f32; BUCKETS],
    count: f32,
    sum_us: f32,
    aged_us: u64,
}

impl Default for Estimate {
    fn default() -> Estimate {
        Estimate { buckets: [0.0; BUCKETS], count: 0.0, sum_us: 0.0, aged_us: 0 }
    }
}

fn bucket(took_us: u64) -> usize {
    let times = took_us / FIRST_US;
    if times == 0 {
        return 0;
    }
    let doublings = times.ilog2() as usize;
    let start_us = FIRST_US << doublings;
    let second = usize::from(took_us - start_us >= start_us / 2);
    (1 + 2 * doublings + second).min(BUCKETS - 1)
}

/// The longest latency of a bucket.
fn upper_us(bucket: usize) -> u64 {
    let doublings = bucket / 2;
    match bucket % 2 {
        0 => FIRST_US << doublings,
        _ => (FIRST_US << doublings) * 3 / 2,
    }
}

impl Estimate {
    /// A read took this long, or at least this long.
    pub fn note(&mut self, took_us: u64, now_us: u64) {
        self.age(now_us);
        self.buckets[bucket(took_us)] += 1.0;
        self.count += 1.0;
        self.sum_us += took_us as f32;
    }

    /// The mean; none if nothing was seen lately.
    pub fn mean_us(&mut self, now_us: u64) -> Option<u64> {
        self.age(now_us);
        (self.count >= KNOWN_FROM).then(|| (self.sum_us / self.count) as u64)
    }

    /// Nineteen of twenty reads take no longer; none if too little was seen lately.
    pub fn p95_us(&mut self, now_us: u64) -> Option<u64> {
        self.age(now_us);
        if self.count < TAIL_KNOWN_FROM {
            return None;
        }
        let enough = self.count * 0.95;
        let mut seen = 0.0;
        let reaches = |held: &f32| {
            seen += held;
            seen >= enough
        };
        let at = self.buckets.iter().position(reaches).unwrap_or(BUCKETS - 1);
        Some(upper_us(at))
    }

    fn age(&mut self, now_us: u64) {
        let passed = now_us.saturating_sub(self.aged_us);
        if passed < STEP_US {
            return;
        }
        self.aged_us = now_us;
        if self.count == 0.0 {
            return;
        }
        let left = (-(passed as f32) / HALF_LIFE_US as f32).exp2();
        self.buckets.iter_mut().for_each(|held| *held *= left);
        self.count *= left;
        self.sum_us *= left;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn buckets_hold_what_they_say() {
        for (took_us, upper) in [
            (0, 16),
            (15, 16),
            (16, 24),
            (23, 24),
            (24, 32),
            (31, 32),
            (100, 128),
            (1_000, 1_024),
            (1_100, 1_536),
        ] {
            assert_eq!(upper_us(bucket(took_us)), upper, "{took_us}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let mut estimate = Estimate::default();
        assert_eq!((estimate.mean_us(0), estimate.p95_us(0)), (None, None));
        estimate.note(300, 0);
        assert_eq!((estimate.mean_us(0), estimate.p95_us(0)), (Some(300), None));
        (0..19).for_each(|_| estimate.note(300, 0));
        assert_eq!((estimate.mean_us(0), estimate.p95_us(0)), (Some(300), Some(384)));
        // Long ago is as good as never.
        assert_eq!((estimate.mean_us(60 * SECOND), estimate.p95_us(60 * SECOND)), (None, None));
    }

    #[test]
    fn a_source_that_slows_down_is_found_out_within_seconds() {
        let mut estimate = Estimate::default();
        (0..1_000).for_each(|at| estimate.note(200, at * SECOND / 100));
        let slow_from = 10 * SECOND;
        (0..20).for_each(|at| estimate.note(50_000, slow_from + at * SECOND / 10));
        assert!(estimate.mean_us(12 * SECOND).unwrap() > 1_000);
        // And forgiven as soon, if it is well again.
        (0..2_000).for_each(|at| estimate.note(200, 12 * SECOND + at * SECOND / 100));
        assert!(estimate.mean_us(32 * SECOND).unwrap() < 1_000);
    }

    proptest! {
        #[test]
        fn the_tail_is_at_least_what_nineteen_of_twenty_took(
            mut took in proptest::collection::vec(0..20_000_000u64, 20..200)
        ) {
            let mut estimate = Estimate::default();
            took.iter().for_each(|&us| estimate.note(us, 0));
            took.sort_unstable();
            let real = took[(took.len() * 95).div_ceil(100) - 1];
            let told = estimate.p95_us(0).unwrap();
            prop_assert!(told >= real, "{told} for {real}");
            prop_assert!(told <= (real * 3 / 2 + 16).max(FIRST_US), "{told} for {real}");
        }
    }
}
