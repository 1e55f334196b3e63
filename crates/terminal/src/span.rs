//! Spans of time as people write them.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads `10s`, `500ms`, `5m`, `2h`, `1d` or plain seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let unit = if unit.is_empty() { "s" } else { unit };
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, scale)| scale);
    let scale = scale.ok_or_else(|| format!("`{unit}` is no unit of time: use ms, s, m, h or d"))?;
    let number: u64 = number.parse().map_err(|_| "expected a number with a unit, such as 10s".to_owned())?;
    number
        .checked_mul(scale)
        .map(Duration::from_millis)
        .ok_or_else(|| "that is longer than anybody waits".into())
}

/// Reads a span of whole seconds.
pub fn parse_seconds(text: &str) -> Result<u32, String> {
    let span = parse(text)?;
    if span.subsec_millis() != 0 {
        return Err("whole seconds only".into());
    }
    u32::try_from(span.as_secs()).map_err(|_| "that is longer than anybody waits".into())
}

/// Writes a span for people: `340 ms`, `12 s`, `3 m 20 s`, `5 h 2 m`, `2 d 3 h`.
pub fn human(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} m {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {minutes} m"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Writes a span as [`parse`] reads it: `30s`, `1500ms`.
pub fn exact(span: Duration) -> String {
    match span.subsec_millis() {
        0 => format!("{}s", span.as_secs()),
        _ => format!("{}ms", span.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written() {
        for (text, ms) in
            [("10s", 10_000), ("10", 10_000), ("500ms", 500), ("5 m", 300_000), ("1d", 86_400_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "10x", "-1s", "1.5s", "99999999999999999d"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_seconds("1500ms").is_err());
        for (ms, text) in [(340, "340 ms"), (12_000, "12 s"), (200_000, "3 m 20 s"), (90_000_000, "1 d 1 h")]
        {
            assert_eq!(human(ms), text);
            assert_eq!(parse(&exact(Duration::from_millis(ms))), Ok(Duration::from_millis(ms)));
        }
    }
}
