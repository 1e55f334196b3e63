//! The only place that prints: data to stdout, words to stderr.

use std::fmt::Display;
use std::io::{self, Write};

use serde_json::Value;

use crate::failure::Failure;
use crate::paint;

/// Writes bytes to stdout as they are.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::PipeClosed,
        _ => Failure::io("stdout", &error),
    })
}

/// Writes a line of data to stdout.
pub fn line(text: impl Display) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Writes a JSON value to stdout, on one line.
pub fn json(value: &Value) -> Result<(), Failure> {
    line(value)
}

/// Writes `name  value` lines to stdout, values aligned.
pub fn fields(rows: &[(&str, String)]) -> Result<(), Failure> {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().try_for_each(|(name, value)| line(paint::sentence(&field(name, width, value))))
}

/// One row. Whatever is in it was named by somebody else: a key in the address of an object, words of a lake.
fn field(name: &str, width: usize, value: &str) -> String {
    format!("{name:width$}  {}", self::name(value.as_bytes()))
}

/// Writes rows to stdout in aligned columns; the first column is text, the others lie to the right. The last column is
/// text again.
pub fn table(rows: &[Vec<String>]) -> Result<(), Failure> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    rows.iter().try_for_each(|row| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            match column {
                // Somebody else's name is not a state.
                0 => format!("{cell:width$}"),
                _ if column + 1 == columns => paint::cell(&format!("{cell:width$}")),
                _ => paint::cell(&format!("{cell:>width$}")),
            }
        });
        line(cells.collect::<Vec<_>>().join("  ").trim_end())
    })
}

/// Tells a person something on stderr; that nobody listens is no error.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// A number with a space between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Bytes of a name for a terminal: lossy, control characters escaped.
pub fn name(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if !text.contains(char::is_control) {
        return text.into_owned();
    }
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{count, field};

    #[test]
    fn values_are_safe_for_a_terminal() {
        assert_eq!(field("lake", 6, "s3://b/a\x1b]0;x\x07"), "lake    s3://b/a\\u{1b}]0;x\\u{7}");
    }

    #[test]
    fn thousands_are_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (12_345_678, "12 345 678")] {
            assert_eq!(count(number), text);
        }
    }
}
