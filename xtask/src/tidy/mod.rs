//! The rules that the compiler does not check. Each rule is a pure function from the tree to findings;
//! what a rule allows stands in `tables`, each row with its reason.

mod arrows;
mod citations;
mod code;
mod dependencies;
mod documents;
mod lengths;
mod links;
mod manifest;
mod names;
mod paths;
mod rooms;
mod tables;
mod tree;
mod unsafety;

use std::fmt;

use crate::Failure;
use crate::workspace::root;
use tree::Tree;

/// Every rule. The order is the order of the output.
const RULES: &[fn(&Tree) -> Vec<Finding>] = &[
    arrows::check,
    dependencies::check,
    names::check,
    lengths::check,
    unsafety::check,
    paths::check,
    documents::check,
    links::check,
    citations::check,
    rooms::check,
];

/// Runs every rule and prints what they found. Warnings do not fail.
pub fn run(args: &[String]) -> Result<(), Failure> {
    if let Some(arg) = args.first() {
        return Err(Failure::Usage(format!("tidy: takes no arguments, got `{arg}`")));
    }
    let tree = match Tree::load(&root()) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read the repository: {error}");
            return Err(Failure::Failed);
        }
    };
    let findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    for finding in &findings {
        eprintln!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let warnings = findings.len() - errors;
    eprintln!("tidy: {} files, {errors} errors, {warnings} warnings", tree.files.len());
    if errors == 0 { Ok(()) } else { Err(Failure::Failed) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

/// One thing that a rule has to say about one place.
#[derive(Debug)]
struct Finding {
    severity: Severity,
    path: String,
    /// Counted from 1; 0 when it is about the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn error(path: &str, line: usize, message: String) -> Finding {
        Finding { severity: Severity::Error, path: path.into(), line, message }
    }

    fn warning(path: &str, line: usize, message: String) -> Finding {
        Finding { severity: Severity::Warning, path: path.into(), line, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        match self.line {
            0 => write!(f, "{severity}: {}: {}", self.path, self.message),
            line => write!(f, "{severity}: {}:{line}: {}", self.path, self.message),
        }
    }
}

#[cfg(test)]
mod testing {
    use super::{Finding, Severity, Tree};

    /// What a rule says about a tree of (path, text), as `error path:line`.
    pub fn places(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        rule(&Tree::of(files)).iter().map(place).collect()
    }

    fn place(finding: &Finding) -> String {
        let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
        format!("{severity} {}:{}", finding.path, finding.line)
    }
}
