//! What was found, what was looked at, and what could not be.

use serde::Serialize;

use crate::machine::Gap;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Slower, or weaker, than it could be.
    Warning,
    /// It does not work, or acknowledged bytes are in danger.
    Error,
}

impl Severity {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One thing that is wrong with one part of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check found it, as `family.check`.
    pub check: &'static str,
    /// The drive, interface, file or core that it is about; empty for the machine.
    pub subject: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is so.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// The command that fixes it, if one does.
    pub fix: Option<String>,
    /// Where it was read, and what stood there.
    pub evidence: Vec<String>,
}

/// A check that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// Which check.
    pub check: &'static str,
    /// About what; empty for the machine.
    pub subject: String,
    /// Why not.
    pub why: String,
}

/// What a check says if it finds something.
#[derive(Clone, Debug)]
pub struct Fault {
    severity: Severity,
    what: String,
    why: String,
    fix: Option<String>,
    evidence: Vec<String>,
}

impl Fault {
    fn new(severity: Severity, what: impl Into<String>, why: impl Into<String>) -> Fault {
        Fault { severity, what: what.into(), why: why.into(), fix: None, evidence: Vec::new() }
    }

    /// It does not work, or acknowledged bytes are in danger.
    pub fn error(what: impl Into<String>, why: impl Into<String>) -> Fault {
        Fault::new(Severity::Error, what, why)
    }

    /// Slower or weaker than it could be.
    pub fn warning(what: impl Into<String>, why: impl Into<String>) -> Fault {
        Fault::new(Severity::Warning, what, why)
    }

    /// Good to know.
    pub fn info(what: impl Into<String>, why: impl Into<String>) -> Fault {
        Fault::new(Severity::Info, what, why)
    }

    /// The command that ends it.
    pub fn fix(mut self, command: impl Into<String>) -> Fault {
        self.fix = Some(command.into());
        self
    }

    /// Where it was seen.
    pub fn saw(mut self, place: impl std::fmt::Display, text: impl std::fmt::Display) -> Fault {
        self.evidence.push(format!("{place}: {text}"));
        self
    }
}

/// What one check comes to: a fault, nothing, or why it could not be made.
pub type Verdict = Result<Option<Fault>, Gap>;

/// The book that all checks write into.
#[derive(Default, Debug)]
pub struct Notes {
    /// What was found.
    pub findings: Vec<Finding>,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
    /// Checks that were made, whatever they found.
    pub checks: usize,
}

impl Notes {
    /// Enters what a check came to.
    pub fn judge(&mut self, check: &'static str, subject: impl Into<String>, verdict: Verdict) {
        let subject = subject.into();
        match verdict {
            Ok(fault) => {
                self.checks += 1;
                self.findings.extend(fault.map(|fault| Finding {
                    check,
                    subject,
                    severity: fault.severity,
                    what: fault.what,
                    why: fault.why,
                    fix: fault.fix,
                    evidence: fault.evidence,
                }));
            }
            Err(gap) => self.unseen.push(Unseen { check, subject, why: gap.to_string() }),
        }
    }
}
