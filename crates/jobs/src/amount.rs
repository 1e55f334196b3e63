//! Amounts as people write them: `500GB`, `2 TiB`, `24h`.

/// Bytes by their unit, as fields of a spec say them: `500GB` is 500 * 10^9, `500GiB` is 500 * 2^30.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size; write 500GB, 1.5TiB or a number of bytes");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "p" | "pb" => 1_000_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "pib" => 1 << 50,
        _ => return Err(wrong()),
    };
    scaled(number, scale).ok_or_else(wrong)
}

/// Milliseconds of a span: `90s`, `10m`, `24h`, `7d`.
pub fn parse_span_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no span of time; write 90s, 10m, 24h or 7d");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let scale = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    scaled(number, scale).ok_or_else(wrong)
}

fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (!number.is_empty()).then_some((number, unit.trim()))
}

/// In whole numbers, so that sizes are exact: at most three digits behind the point.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    if part.is_empty() || part.len() > 3 || whole.is_empty() {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = part.parse::<u64>().ok()? * 10_u64.pow(3 - part.len() as u32);
    let part = u128::from(part) * u128::from(scale) / 1_000;
    whole.checked_mul(scale)?.checked_add(u64::try_from(part).ok()?)
}

/// Bytes for people.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 5] =
        [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, scale)| bytes >= *scale) {
        Some((unit, scale)) => format!("{:.1} {unit}", bytes as f64 / *scale as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        for (text, expect) in [
            ("0", Some(0)),
            ("500GB", Some(500_000_000_000)),
            ("500 GB", Some(500_000_000_000)),
            ("1.5TiB", Some(3 << 39)),
            ("0.001kB", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("99999999PB", None),
            ("", None),
            ("GB", None),
            ("1.GB", None),
            ("1.0001GB", None),
            ("1..5GB", None),
            ("-1", None),
            ("5 apples", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), expect, "{text}");
        }
        for (text, expect) in
            [("90s", Some(90_000)), ("1.5h", Some(5_400_000)), ("7d", Some(604_800_000)), ("9", None)]
        {
            assert_eq!(parse_span_ms(text).ok(), expect, "{text}");
        }
    }
}
