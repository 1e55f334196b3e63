//! The only place that reads clocks, and the calendar that S3's time formats need.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last moment that a date of HTTP can say, milliseconds since 1970: the end of the year 9999.
pub(crate) const HTTP_MS_MAX: u64 = 253_402_300_799_000;

/// Seconds since 1970, now.
pub(crate) fn unix_s() -> i64 {
    i64::try_from(unix().as_secs()).unwrap_or(i64::MAX)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the gateway is the edge: signatures are checked against the wall clock"
)]
fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Milliseconds since 1970 as a point in time.
pub(crate) fn from_unix_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// The wall clock as a point in time.
pub(crate) fn wall() -> SystemTime {
    UNIX_EPOCH + unix()
}

/// Reads `20130524T000000Z` as seconds since 1970.
pub(crate) fn parse_basic(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |from: usize, to: usize| {
        bytes[from..to]
            .iter()
            .try_fold(0i64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
    let sound = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    sound.then(|| days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Reads `2013-05-24T00:00:00Z`, with or without a fraction, as seconds since 1970.
pub(crate) fn parse_extended(text: &str) -> Option<i64> {
    let (whole, fraction) = text.strip_suffix('Z')?.split_once('.').unwrap_or((&text[..text.len() - 1], ""));
    let shape = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        10 => byte == b'T',
        13 | 16 => byte == b':',
        _ => byte.is_ascii_digit(),
    };
    let sound = whole.len() == 19
        && whole.bytes().enumerate().all(shape)
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !sound {
        return None;
    }
    let basic: String = whole.chars().filter(|char| !matches!(char, '-' | ':')).collect();
    parse_basic(&format!("{basic}Z"))
}

/// Days since 1970 of a date in the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_times_are_read_and_written() {
        for (text, unix_s) in [
            ("19700101T000000Z", 0),
            ("20130524T000000Z", 1_369_353_600),
            ("20240229T235959Z", 1_709_251_199),
            ("20000301T000000Z", 951_868_800),
        ] {
            assert_eq!(parse_basic(text), Some(unix_s), "{text}");
            assert_eq!(stoker_sigv4::time_text(unix_s as u64), text);
        }
        for text in [
            "",
            "20130524T000000",
            "20130524 000000Z",
            "2013052aT000000Z",
            "20131324T000000Z",
            "20130524T240000Z",
        ] {
            assert_eq!(parse_basic(text), None, "{text}");
        }
        for text in ["2013-05-24T00:00:00Z", "2013-05-24T00:00:00.000Z"] {
            assert_eq!(parse_extended(text), Some(1_369_353_600));
        }
        for text in [
            "",
            "Z",
            "2013-05-24",
            "2013-05-24T00:00:00",
            "2013-05-24 00:00:00Z",
            "2013-05-24T00:00:00.xZ",
            "ä013-05-24T00:00:0Z",
        ] {
            assert_eq!(parse_extended(text), None, "{text}");
        }
    }
}
