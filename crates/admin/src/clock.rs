//! The only place of this crate that reads the wall clock.

#![expect(clippy::disallowed_methods, reason = "people want to know when something happened")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}
