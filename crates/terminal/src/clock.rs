//! The only place of the binary that reads a clock.

#![expect(clippy::disallowed_methods, reason = "the binary is the edge where time comes from")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time, for durations.
pub fn now() -> Instant {
    Instant::now()
}

/// Wall clock in milliseconds since 1970, for people.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

/// The same in nanoseconds, for times of files.
pub fn unix_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_nanos() as i64)
}

/// A wall clock time as people write it: `2026-07-01T12:00:00Z`.
pub fn rfc3339(unix_ms: u64) -> String {
    let text = stoker_reflex::Time(unix_ms).rfc3339();
    let seconds = text.split_once('.').map_or(text.as_str(), |(seconds, _)| seconds);
    format!("{seconds}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn dates() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(unix_s * 1000), text);
        }
    }
}
