//! The text form of golden files: offset, sixteen bytes, their text; `*` for lines like the one before.

use std::fmt::Write;

pub fn render(bytes: &[u8]) -> String {
    let mut out = String::new();
    let mut previous: Option<&[u8]> = None;
    let mut starred = false;
    for (line, row) in bytes.chunks(16).enumerate() {
        if previous == Some(row) {
            if !starred {
                out.push_str("*\n");
            }
            starred = true;
            continue;
        }
        (previous, starred) = (Some(row), false);
        let hex: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String =
            row.iter().map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '.' }).collect();
        writeln!(out, "{:08x}  {:<47}  |{text}|", line * 16, hex.join(" ")).expect("a string grows");
    }
    writeln!(out, "{:08x}", bytes.len()).expect("a string grows");
    out
}

/// Inverse of [`render`]; panics on anything else.
pub fn parse(text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    for line in text.lines().filter(|line| *line != "*") {
        let offset = usize::from_str_radix(&line[..8], 16).expect("an offset");
        while bytes.len() < offset {
            bytes.push(bytes[bytes.len() - 16]);
        }
        let hex = line[8..].split('|').next().unwrap_or_default();
        bytes.extend(hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte")));
    }
    bytes
}

#[test]
fn parse_is_the_inverse_of_render() {
    for bytes in
        [vec![], vec![1, 2, 3], vec![0; 100], [vec![7; 64], (0..=255).collect(), vec![0; 48]].concat()]
    {
        assert_eq!(parse(&render(&bytes)), bytes);
    }
}
