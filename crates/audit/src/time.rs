//! Times of lines: read from the clock here and nowhere else, and written as RFC 3339 in UTC.

#![expect(clippy::disallowed_methods, reason = "a line says when something happened")]

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const DAY_S: u64 = 86_400;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

/// Milliseconds since some moment of this process; never goes back.
pub fn monotonic_ms() -> u64 {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGUN.elapsed().as_millis() as u64
}

/// `2026-11-19T01:02:03.004Z`.
pub fn format(ms: u64) -> String {
    let (days, in_day) = (ms / 1000 / DAY_S, ms / 1000 % DAY_S);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Reads what [`format`] writes, a date alone, a time without fractions, or milliseconds since 1970.
pub fn parse(text: &str) -> Option<u64> {
    if text.len() >= 11 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4)?;
    let (month, day) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    if parts.next().is_some() || !(1970..=9999).contains(&year) {
        return None;
    }
    let days = days_of(year, month, day)?;
    let time = time.strip_suffix('Z').unwrap_or(time);
    let (time, ms) = match time.split_once('.') {
        None => (time, 0),
        Some((time, fraction)) => (time, number(fraction, 3)?),
    };
    let mut parts = time.split(':');
    let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let second = parts.next().map_or(Some(0), |second| number(second, 2))?;
    let is_time = hour < 24 && minute < 60 && second < 60 && parts.next().is_none();
    is_time.then_some(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + ms)
}

fn number(text: &str, digits: usize) -> Option<u64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Year, month and day of a number of days since 1970, in the proleptic Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let from_march = if month > 2 { year } else { year - 1 };
    let (era, year_of_era) = (from_march / 400, from_march % 400);
    let month_shifted = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month_shifted + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = (era * 146_097 + of_era).checked_sub(719_468)?;
    // A day that the month does not have would be one of the next.
    (civil(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_052_096_789, "2026-11-19T01:34:56.789Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(format(ms), text);
            assert_eq!(parse(text), Some(ms));
        }
        assert_eq!(parse("2026-11-19"), parse("2026-11-19T00:00:00Z"));
        assert_eq!(parse("1795052096789"), Some(1_795_052_096_789));
        for bad in [
            "",
            "now",
            "2026-02-30",
            "2026-13-01",
            "2026-11-19T25:00:00Z",
            "2026-11-19T1:2:3",
            "-1",
            "1969-12-31",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
