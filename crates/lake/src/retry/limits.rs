//! How fast a lake may be asked, whoever asks: requests and bytes per second.
//!
//! A request is given the first moment that is free and takes its share of the time behind it, so requests leave one after another at the rate that was
//! said, after a burst of at most a second. The rates can change at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::options::RetryOptions;

/// A burst is what one second allows.
const BURST_US: u64 = 1_000_000;

/// The rates of one lake; 0 is no limit.
#[derive(Default)]
pub struct Limits {
    requests_per_s: AtomicU64,
    bytes_per_s: AtomicU64,
    /// When the next request, and the next byte, may leave.
    free_us: Mutex<(u64, u64)>,
}

impl Limits {
    pub fn new(options: &RetryOptions) -> Limits {
        let limits = Limits::default();
        limits.set(options);
        limits
    }

    pub fn set(&self, options: &RetryOptions) {
        self.requests_per_s.store(options.requests_per_s_max, Ordering::Relaxed);
        self.bytes_per_s.store(options.bytes_per_s_max, Ordering::Relaxed);
    }

    /// How long a request that moves so many bytes has to wait.
    pub fn take_us(&self, now_us: u64, bytes: u64) -> u64 {
        let (requests, rate) =
            (self.requests_per_s.load(Ordering::Relaxed), self.bytes_per_s.load(Ordering::Relaxed));
        if requests == 0 && rate == 0 {
            return 0;
        }
        let mut free = self.free_us.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |free_us: &mut u64, units: u64, per_s: u64| {
            let Some(took_us) = units.saturating_mul(1_000_000).checked_div(per_s) else { return 0 };
            let start_us = (*free_us).max(now_us.saturating_sub(BURST_US));
            *free_us = start_us.saturating_add(took_us);
            start_us.saturating_sub(now_us)
        };
        one(&mut free.0, 1, requests).max(one(&mut free.1, bytes, rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_at_the_rate_after_a_burst_of_a_second() {
        let limits = Limits::default();
        assert_eq!(limits.take_us(5, 1 << 40), 0, "nothing was said");
        limits.set(&RetryOptions { requests_per_s_max: 10, ..RetryOptions::default() });
        let now_us = 10_000_000;
        let waits: Vec<u64> = (0..13).map(|_| limits.take_us(now_us, 0)).collect();
        assert!(waits[..11].iter().all(|wait| *wait == 0), "{waits:?}");
        assert_eq!(waits[11..], [100_000, 200_000]);
        limits.set(&RetryOptions { bytes_per_s_max: 1_000, ..RetryOptions::default() });
        assert_eq!(limits.take_us(now_us, 3_000), 0);
        assert_eq!(limits.take_us(now_us, 1), 2_000_000, "what was sent has to be paid first");
    }
}
