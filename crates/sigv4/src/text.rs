//! The forms of bytes and times in what is signed.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// What S3 encodes in a query: everything but letters, digits and `-._~`.
const STRICT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The same in a path, whose slashes stay.
const PATH: &AsciiSet = &STRICT.remove(b'/');

/// What becomes of slashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Slash {
    /// They stay: in a path.
    Keep,
    /// They are encoded: in a query.
    Encode,
}

/// Percent-encodes everything but letters, digits and `-._~`, and slashes where they are kept.
pub fn percent_encode(bytes: &[u8], slash: Slash) -> String {
    let set = if slash == Slash::Keep { PATH } else { STRICT };
    percent_encoding::percent_encode(bytes, set).to_string()
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    text
}

/// Seconds since 1970 as `20130524T000000Z`.
pub fn time_text(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The Gregorian date of a day since 1970, by the rule that years begin in March.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Without blanks at the ends, and with one where there are many.
pub(crate) fn squeeze(value: &str) -> String {
    value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (unix_s, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
            (1_700_000_000, "20231114T221320Z"),
        ] {
            assert_eq!(time_text(unix_s), text);
        }
    }

    #[test]
    fn keys_are_encoded_strictly() {
        assert_eq!(percent_encode("a/../b c+é%\0".as_bytes(), Slash::Keep), "a/../b%20c%2B%C3%A9%25%00");
        assert_eq!(percent_encode(b"a/~_", Slash::Encode), "a%2F~_");
        assert_eq!(hex(&[0, 0x9f, 255]), "009fff");
    }
}
