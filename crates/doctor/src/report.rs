//! What an examination came to, for people and for programs.

use std::fmt::Write;

use serde::Serialize;

use crate::finding::{Finding, Notes, Severity, Unseen};
use crate::memory::human;
use crate::reservation::Reservation;

/// Widest line of words; commands are never broken, so that they can be copied.
const WIDTH: usize = 100;

/// Everything that was found, and how much was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
    /// Checks that were made.
    pub checks: usize,
    /// What to reserve for the node, if its plan says what it uses.
    pub reservation: Option<Reservation>,
}

impl Report {
    pub(crate) fn of(notes: Notes, reservation: Option<Reservation>) -> Report {
        let mut findings = notes.findings;
        // Stable: within one severity the order of the checks stays.
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        Report { findings, unseen: notes.unseen, checks: notes.checks, reservation }
    }

    /// How many findings are so bad.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// 0 if nothing is above info, 1 for warnings, 2 for errors. What could not be looked at does not count.
    pub fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None | Some(Severity::Info) => 0,
            Some(Severity::Warning) => 1,
            Some(Severity::Error) => 2,
        }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut rest: &[Finding] = &self.findings;
        while let Some(first) = rest.first() {
            // The same fault of several drives is one paragraph.
            let is_alike = |other: &&Finding| {
                (other.check, other.severity, &other.why) == (first.check, first.severity, &first.why)
            };
            let count = rest.iter().take_while(is_alike).count();
            paragraph(&mut text, &rest[..count]);
            rest = &rest[count..];
        }
        if !self.unseen.is_empty() {
            text.push_str("could not look:\n");
            for unseen in &self.unseen {
                wrapped(&mut text, "  ", &format!("{}: {}", name(unseen.check, &unseen.subject), unseen.why));
            }
            text.push('\n');
        }
        if let Some(reservation) = &self.reservation {
            reserve(&mut text, reservation);
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    /// One line.
    pub fn summary(&self) -> String {
        let of = |severity: Severity, one: &str| match self.count(severity) {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {one}s")),
        };
        let found =
            [of(Severity::Error, "error"), of(Severity::Warning, "warning"), of(Severity::Info, "note")];
        let found: Vec<String> = found.into_iter().flatten().collect();
        let found = if found.is_empty() { "nothing found".to_owned() } else { found.join(", ") };
        let unseen = match self.unseen.len() {
            0 => String::new(),
            count => format!(", {count} could not be made"),
        };
        format!("{} checks made{unseen}: {found}", self.checks)
    }
}

fn name(check: &str, subject: &str) -> String {
    if subject.is_empty() { check.to_owned() } else { format!("{check} {subject}") }
}

/// Findings of one check, of one severity.
fn paragraph(text: &mut String, findings: &[Finding]) {
    let first = &findings[0];
    let _ = writeln!(text, "{}  {}", first.severity.as_str().to_uppercase(), first.check);
    for finding in findings {
        let what = match finding.subject.is_empty() {
            true => finding.what.clone(),
            false => format!("{}: {}", finding.subject, finding.what),
        };
        wrapped(text, "  ", &what);
    }
    wrapped(text, "  why: ", &first.why);
    let mut fixes: Vec<&String> = Vec::new();
    for fix in findings.iter().filter_map(|finding| finding.fix.as_ref()) {
        if !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    fixes.iter().for_each(|fix| {
        let _ = writeln!(text, "  fix: {fix}");
    });
    for evidence in findings.iter().flat_map(|finding| &finding.evidence) {
        let _ = writeln!(text, "  saw: {}", plain(evidence));
    }
    text.push('\n');
}

fn reserve(text: &mut String, reservation: &Reservation) {
    let _ = writeln!(
        text,
        "reserve for Stoker: cores {} (with their siblings {}), {} of memory",
        reservation.cores,
        reservation.cores_with_siblings,
        human(reservation.memory_bytes)
    );
    let _ = writeln!(text, "  systemd: {}", reservation.systemd);
    for line in &reservation.kubelet {
        let _ = writeln!(text, "  kubelet: {line}");
    }
    text.push('\n');
}

/// Text from files of the machine must not steer a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Words with an indent, broken at spaces; what follows the first line is indented as far.
fn wrapped(text: &mut String, indent: &str, words: &str) {
    let (mut line, mut used) = (indent.to_owned(), 0);
    for word in plain(words).split_whitespace() {
        if used > 0 && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(indent.chars().count());
            used = 0;
        }
        if used > 0 {
            line.push(' ');
        }
        line.push_str(word);
        used += 1;
    }
    let _ = writeln!(text, "{line}");
}
