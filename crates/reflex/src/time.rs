//! Time as an argument, and the time that passed while somebody looked.

use serde::{Deserialize, Serialize};

/// A moment: milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Milliseconds from an earlier moment to this one; zero if it is not earlier.
    pub fn since_ms(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The form of RFC 3339, in UTC.
    pub fn rfc3339(self) -> String {
        let (day, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil(day);
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
    }
}

/// Year, month and day of a day since 1970. Days are counted from a first of March, so that a leap day is the last of its
/// year, and in eras of 400 years, which are all equally long.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_year - (153 * from_march + 2) / 5 + 1)
}

/// What became of time between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passed {
    /// As much as was to be expected.
    Steady,
    /// Nobody looked for long, or somebody set the clock. What was measured before cannot be joined to what comes.
    Gap,
}

/// Counts the time during which somebody looked. Everything that has to last is measured by it, so that neither a clock that
/// is set nor a process that slept makes anything last.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stopwatch {
    wall: Option<Time>,
    run_ms: u64,
}

impl Stopwatch {
    pub fn advance(&mut self, now: Time, gap_ms_max: u64) -> Passed {
        let Some(before) = self.wall.replace(now) else { return Passed::Steady };
        let step_ms = now.since_ms(before);
        if step_ms.max(before.since_ms(now)) > gap_ms_max {
            return Passed::Gap;
        }
        self.run_ms += step_ms;
        Passed::Steady
    }

    pub fn run_ms(&self) -> u64 {
        self.run_ms
    }

    /// The moment at which the count was this.
    pub fn moment(&self, run_ms: u64) -> Time {
        Time(self.wall.unwrap_or_default().0.saturating_sub(self.run_ms.saturating_sub(run_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_people_write_them() {
        for (ms, expect) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_000, "2024-02-29T23:59:59.000Z"),
            (1_735_689_600_001, "2025-01-01T00:00:00.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Time(ms).rfc3339(), expect);
        }
    }

    #[test]
    fn jumps_count_nothing() {
        let mut watch = Stopwatch::default();
        for (now, passed, run_ms) in [
            (1_000, Passed::Steady, 0),
            (2_000, Passed::Steady, 1_000),
            (1_999, Passed::Steady, 1_000),
            (2_999, Passed::Steady, 2_000),
            (3_600_000, Passed::Gap, 2_000),
            (3_601_000, Passed::Steady, 3_000),
            (5, Passed::Gap, 3_000),
            (1_005, Passed::Steady, 4_000),
        ] {
            assert_eq!((watch.advance(Time(now), 60_000), watch.run_ms()), (passed, run_ms), "{now}");
        }
        assert_eq!(watch.moment(3_500), Time(505));
    }
}
