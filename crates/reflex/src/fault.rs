//! A mistake in a configuration, where it is, and what was probably meant.

use std::fmt;
use std::ops::Range;

/// Longest name that is compared with the known ones.
const NAME_LEN_MAX: usize = 64;

/// Letters that two names must share for the longer one to be taken for a form of the shorter one.
const STEM_LEN_MIN: usize = 3;

/// What is wrong and at which bytes of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which bytes.
    pub span: Range<usize>,
    /// What is wrong, as the parser says it.
    pub message: String,
}

/// A [`Fault`] for a person: `LINE:COLUMN: what`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong, with what was probably meant.
    pub message: String,
    /// What is known there.
    pub hint: Option<String>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for Told {}

impl Fault {
    /// At a value.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Fault {
        Fault { span, message: message.into() }
    }

    /// The words for a person who wrote this text.
    pub fn told(&self, text: &str) -> Told {
        let (line, column) = place(text, self.span.start);
        let (message, hint) = explain(&self.message);
        Told { line, column, message, hint }
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

/// The nearest of the known names, if one is near enough to be a slip of the hand or another form of it.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let is_form = |other: &str| {
        let (short, long) = if name.len() < other.len() { (name, other) } else { (other, name) };
        short.len() >= STEM_LEN_MIN && long.starts_with(short)
    };
    let near = known.into_iter().map(|other| (if is_form(other) { 1 } else { distance(name, other) }, other));
    let allowed = (name.chars().count() / 3).max(2);
    near.filter(|(distance, other)| *distance <= allowed && *distance < other.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, other)| other)
}

/// Letters to insert, remove, replace or swap with their neighbour to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for i in 0..=from.len() {
        for j in 0..=to.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
                    let least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
                    if swapped { least.min(rows[i - 2][j - 2] + 1) } else { least }
                }
            };
        }
    }
    rows[from.len()][to.len()]
}
