//! A mistake in the file, and where it is.

use std::ops::Range;
use std::path::Path;

use super::nearest::nearest;
use crate::failure::Failure;

/// Longest name that is compared with the known ones.
const NAME_LEN_MAX: usize = 64;

/// What is wrong and at which bytes.
#[derive(Debug)]
pub struct Fault {
    span: Range<usize>,
    message: String,
}

impl Fault {
    /// A mistake of ours to find, at a value.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Fault {
        Fault { span, message: message.into() }
    }

    /// The words for a person: `FILE:LINE:COLUMN: what`, then what was probably meant.
    pub fn failure(&self, path: &Path, text: &str) -> Failure {
        let (line, column) = place(text, self.span.start);
        let (message, hint) = explain(&self.message);
        let failure = Failure::new(format!("{}:{line}:{column}: {message}", path.display()));
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure.hint("deploy/stoker.toml shows every setting with its default"),
        }
    }
}

impl From<toml::de::Error> for Fault {
    fn from(error: toml::de::Error) -> Fault {
        Fault { span: error.span().unwrap_or(0..0), message: error.message().trim().replace('\n', ", ") }
    }
}

/// Line and column, both from 1, of a byte; columns are characters.
fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[line_start..]).chars().count() + 1)
}

/// Makes advice of a message about an unknown name: the nearest known one, then all of them.
fn explain(message: &str) -> (String, Option<String>) {
    let unknown =
        ["unknown field `", "unknown variant `"].iter().find_map(|start| message.strip_prefix(start));
    let Some((name, expected)) = unknown.and_then(|rest| rest.split_once("`, expected ")) else {
        return (message.to_string(), None);
    };
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let what = if message.starts_with("unknown field") { "setting" } else { "value" };
    let all = format!("known here: {}", known.join(", "));
    let guess = if name.len() > NAME_LEN_MAX { None } else { nearest(name, known.iter().copied()) };
    let message = match guess {
        Some(guess) => format!("unknown {what} `{name}`; did you mean `{guess}`?"),
        None => format!("unknown {what} `{name}`"),
    };
    (message, Some(all))
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn places_count_from_one_in_characters() {
        let text = "a\nöb = 1\n\nlast";
        for (byte, expect) in
            [(0, (1, 1)), (2, (2, 1)), (4, (2, 2)), (11, (4, 1)), (14, (4, 4)), (99, (4, 5))]
        {
            assert_eq!(place(text, byte), expect, "byte {byte}");
        }
    }
}
