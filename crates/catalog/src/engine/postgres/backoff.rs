//! Pauses between tries.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pauses up to a bound that doubles, of random length, so that those who wait for the same do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(super) fn new(least: Duration, most: Duration) -> Backoff {
        Backoff { next: least, most }
    }

    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.next.mul_f64(fraction())).await;
        self.next = (self.next * 2).min(self.most);
    }
}

/// A number that differs from call to call and from process to process; good enough to spread things.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

fn fraction() -> f64 {
    (random() >> 11) as f64 / (1u64 << 53) as f64
}
