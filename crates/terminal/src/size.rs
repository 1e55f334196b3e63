//! Sizes as people write them.

const UNITS: [(&str, u64); 13] = [
    ("B", 1),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("KB", 1000),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("T", 1 << 40),
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
];

/// Reads `64GiB`, `64G` (the same), `500MB` (decimal), `1.5TiB` or plain bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let unit = if unit.is_empty() { "B" } else { unit };
    let scale = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|&(_, scale)| scale);
    let scale =
        scale.ok_or_else(|| format!("`{unit}` is no unit: use KiB, MiB, GiB, TiB, KB, MB, GB or TB"))?;
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(scale),
        Err(_) => match number.parse::<f64>() {
            Ok(number) if number * (scale as f64) < u64::MAX as f64 => Some((number * scale as f64) as u64),
            Ok(_) => None,
            Err(_) => return Err("expected a number with a unit, such as 64GiB".into()),
        },
    };
    bytes.ok_or_else(|| "that is more than a drive can have".into())
}

/// Writes a size for people: `64 GiB`, `1.5 MiB`, `100 B`.
pub fn human(bytes: u64) -> String {
    for (unit, scale) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= scale {
            let value = format!("{:.1}", bytes as f64 / scale as f64);
            return format!("{} {unit}", value.trim_end_matches(".0"));
        }
    }
    format!("{bytes} B")
}

/// Writes a size as [`parse`] reads it, without loss: `256MiB`, `1536`.
pub fn exact(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = units.into_iter().find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale));
    whole.map_or_else(|| bytes.to_string(), |(unit, scale)| format!("{}{unit}", bytes / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("64GiB", 64 << 30),
            ("64G", 64 << 30),
            ("64 gib", 64 << 30),
            ("500MB", 500_000_000),
            ("4096", 4096),
            ("1.5KiB", 1536),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "12XB", "-1", "1.2.3M", "99999999TiB", "1e9"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in [(100, "100 B"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB"), (4096, "4 KiB")] {
            assert_eq!(human(bytes), text);
        }
        for bytes in [0, 1, 1536, 1 << 20, 3 << 29, (1 << 40) + 1, u64::MAX] {
            assert_eq!(parse(&exact(bytes)), Ok(bytes));
        }
        assert_eq!(exact(3 << 29), "1536MiB");
    }
}
