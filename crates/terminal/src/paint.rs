//! Colours for a person at a terminal: states good, careful and bad. A pipe, `NO_COLOR` and a dumb terminal get none, and nothing is
//! said by colour alone.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::sync::OnceLock;

/// What a colour means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// All is well.
    Good,
    /// Somebody should look.
    Careful,
    /// Somebody has to act.
    Bad,
    /// Of less interest.
    Faint,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Tone::Good => "32",
            Tone::Careful => "33",
            Tone::Bad => "1;31",
            Tone::Faint => "2",
        }
    }
}

const GOOD: &[&str] =
    &["up", "witness", "live", "published", "clean", "ready", "in sync", "ok", "pass", "yes", "healthy"];
const CAREFUL: &[&str] = &[
    "suspect",
    "leaving",
    "quarantined",
    "evacuating",
    "dirty",
    "open",
    "warn",
    "cordoned",
    "degraded",
    "repair",
    "verifying",
    "starting",
    "stopping",
    "behind",
];
const BAD: &[&str] = &[
    "down", "failed", "fail", "gone", "conflict", "expired", "aborted", "error", "silent", "lost", "killed",
    "no",
];

/// Words inside a sentence that say how something is.
const PHRASES: &[(&str, Tone)] = &[
    ("NOT READY", Tone::Bad),
    ("not ready", Tone::Bad),
    ("LOST NOW", Tone::Bad),
    ("takes no more writes", Tone::Bad),
    ("does not answer", Tone::Bad),
    ("cannot be read now", Tone::Bad),
    (": down", Tone::Bad),
    (" ready", Tone::Good),
    (": up", Tone::Good),
];

/// What a word for a state means; none if it is no such word.
pub fn tone(state: &str) -> Option<Tone> {
    // `silent 12 s`
    let first = state.split_whitespace().next().unwrap_or("");
    let has = |words: &[&str]| words.contains(&state) || (first == "silent" && words.contains(&first));
    match () {
        () if has(GOOD) => Some(Tone::Good),
        () if has(CAREFUL) => Some(Tone::Careful),
        () if has(BAD) => Some(Tone::Bad),
        () => None,
    }
}

/// Whether stdout wants colours.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        wants(std::io::stdout().is_terminal(), no_color.as_deref(), term.as_deref())
    })
}

/// <https://no-color.org>: set and not empty.
fn wants(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// A text in a colour, where there are colours.
pub fn text(text: &str, tone: Tone) -> String {
    if is_on() { coloured(text, tone) } else { text.to_owned() }
}

fn coloured(text: &str, tone: Tone) -> String {
    format!("\x1b[{}m{text}\x1b[0m", tone.code())
}

/// A cell of a table, padded already: in the colour of its state, if it is one.
pub fn cell(padded: &str) -> String {
    match is_on() {
        true => coloured_cell(padded),
        false => padded.to_owned(),
    }
}

fn coloured_cell(padded: &str) -> String {
    let word = padded.trim();
    match tone(word) {
        // The blanks stay outside, so that what is cut from a line is not half an escape.
        Some(tone) => padded.replacen(word, &coloured(word, tone), 1),
        None => padded.to_owned(),
    }
}

/// A sentence, with the first word in it that says how something is in its colour.
pub fn sentence(text: &str) -> String {
    if is_on() { coloured_sentence(text) } else { text.to_owned() }
}

fn coloured_sentence(text: &str) -> String {
    match PHRASES.iter().find(|(phrase, _)| text.contains(phrase)) {
        Some((phrase, tone)) => text.replacen(phrase, &coloured(phrase, *tone), 1),
        None => text.to_owned(),
    }
}

/// A line of a page: each word between two blanks or more that is a state, in its colour.
pub fn table_line(line: &str) -> String {
    if is_on() { coloured_line(line) } else { line.to_owned() }
}

fn coloured_line(line: &str) -> String {
    let mut cells = line.split("  ");
    // The first one is a name.
    let name = cells.next().unwrap_or("").to_owned();
    let is_head = line.chars().any(char::is_alphabetic) && !line.chars().any(char::is_lowercase);
    if is_head {
        return coloured(line, Tone::Faint);
    }
    cells.fold(name, |line, cell| format!("{line}  {}", coloured_sentence(&coloured_cell(cell))))
}

/// Small bars for numbers over time, the newest last: as high as the highest of them.
pub fn sparkline(values: &[Option<f64>], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &values[values.len().saturating_sub(width)..];
    let top = shown.iter().flatten().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let bar = |value: &Option<f64>| match value {
        Some(value) if value.is_finite() && top > 0.0 => {
            BARS[((value.max(0.0) / top * 7.0).round() as usize).min(BARS.len() - 1)]
        }
        Some(_) => BARS[0],
        None => ' ',
    };
    let drawn: String = shown.iter().map(bar).collect();
    format!("{}{drawn}", " ".repeat(width - shown.len()))
}

/// A bar of a share, `width` characters wide whatever the share is.
pub fn bar(share: f64, width: usize) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let mut full = (share * width as f64).round() as usize;
    // Something is more than nothing.
    if share > 0.0 {
        full = full.max(1);
    }
    format!("{}{}", "█".repeat(full.min(width)), "░".repeat(width - full.min(width)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let os = |text| Some(OsStr::new(text));
        assert!(wants(true, None, os("xterm")) && wants(true, os(""), None));
        for (is_terminal, no_color, term) in
            [(false, None, os("xterm")), (true, os("1"), os("xterm")), (true, None, os("dumb"))]
        {
            assert!(!wants(is_terminal, no_color, term));
        }
        // Tests have no terminal.
        assert_eq!(
            (text("up", Tone::Good), cell("up  "), sentence("a: up")),
            ("up".into(), "up  ".into(), "a: up".into())
        );
    }

    #[test]
    fn states_are_coloured_and_nothing_else() {
        assert_eq!(coloured_cell("up    "), "\x1b[32mup\x1b[0m    ");
        assert_eq!(coloured_cell("  failed"), "  \x1b[1;31mfailed\x1b[0m");
        assert_eq!(coloured_cell("silent 12 s"), "\x1b[1;31msilent 12 s\x1b[0m");
        assert_eq!(coloured_cell("update  "), "update  ");
        assert_eq!(
            coloured_sentence("n1, not ready, version 1"),
            "n1, \x1b[1;31mnot ready\x1b[0m, version 1"
        );
        assert_eq!(coloured_sentence("n1, ready"), "n1,\x1b[32m ready\x1b[0m");
        assert_eq!(coloured_sentence("already there"), "already there");
    }

    #[test]
    fn lines_of_a_page_keep_their_width() {
        let line = "up      up     yes   3  silent 4 s";
        let expect = "up      \x1b[32mup\x1b[0m     \x1b[32myes\x1b[0m   3  \x1b[1;31msilent 4 s\x1b[0m";
        assert_eq!(coloured_line(line), expect);
        assert_eq!(coloured_line("NODE  STATE"), "\x1b[2mNODE  STATE\x1b[0m");
        assert_eq!(coloured_line(""), "");
    }

    #[test]
    fn bars_are_as_wide_as_they_should() {
        let check = |values: &[Option<f64>], expect: &str| assert_eq!(sparkline(values, 4), expect);
        check(&[], "    ");
        check(&[Some(0.0), Some(0.0)], "  ▁▁");
        check(&[Some(9.0), Some(0.0), None, Some(5.0), Some(10.0)], "▁ ▅█");
        check(&[Some(f64::NAN), Some(f64::INFINITY), Some(-1.0), Some(1.0)], "▁▁▁█");
        for (share, expect) in
            [(0.0, "░░░░"), (0.001, "█░░░"), (0.5, "██░░"), (1.0, "████"), (7.0, "████"), (f64::NAN, "░░░░")]
        {
            assert_eq!(bar(share, 4), expect, "{share}");
        }
    }
}
