//! Time and chance for the retries, so that a simulation can bring its own.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::rng::Rng;
use crate::types::BoxFuture;

/// A clock, a way to wait, and random numbers.
pub trait Timer: Send + Sync + 'static {
    /// Microseconds since any fixed moment.
    fn now_us(&self) -> u64;
    /// Waits.
    fn sleep_ms(&self, ms: u64) -> BoxFuture<'static, ()>;
    /// A random number.
    fn random(&self) -> u64;
}

/// The real clock, inside a tokio runtime.
pub struct RuntimeTimer {
    start: tokio::time::Instant,
    rng: Mutex<Rng>,
}

impl RuntimeTimer {
    /// A timer with a random seed.
    pub fn new() -> RuntimeTimer {
        // Only jitter depends on the seed: without entropy any will do.
        let seed = getrandom::u64().unwrap_or(1);
        RuntimeTimer { start: now(), rng: Mutex::new(Rng::new(seed)) }
    }
}

impl Default for RuntimeTimer {
    fn default() -> RuntimeTimer {
        RuntimeTimer::new()
    }
}

impl Timer for RuntimeTimer {
    fn now_us(&self) -> u64 {
        u64::try_from(now().duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }

    fn sleep_ms(&self, ms: u64) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(ms)))
    }

    fn random(&self) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).next()
    }
}

fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}
