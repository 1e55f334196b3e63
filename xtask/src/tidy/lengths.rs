//! A long source file hides a second noun; a long front page is not read.

use super::tables::{Exception, HERE, LONG, covering};
use super::{Finding, Tree};

const SOURCE_LINES_WARN: usize = 600;
const SOURCE_LINES_MAX: usize = 700;

/// Pages and the most lines they may have.
const PAGES: &[(&str, usize)] = &[("README.md", 120), ("ARCHITECTURE.md", 300)];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = sources(tree, LONG);
    for (path, limit) in PAGES {
        let Some(page) = tree.get(path) else {
            findings.push(Finding::error(path, 0, "is missing".into()));
            continue;
        };
        let lines = page.text.lines().count();
        if lines > *limit {
            let message = format!("has {lines} lines, the limit is {limit}; move detail to docs/");
            findings.push(Finding::error(path, 0, message));
        }
    }
    findings
}

fn sources(tree: &Tree, allowed: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.ending(".rs") {
        let lines = file.text.lines().count();
        if lines < SOURCE_LINES_WARN || covering(allowed, &file.path).is_some() {
            continue;
        }
        if lines > SOURCE_LINES_MAX {
            let message = format!(
                "has {lines} lines, the limit is {SOURCE_LINES_MAX}; look for the second noun inside, or add it to LONG in {HERE} with a reason"
            );
            findings.push(Finding::error(&file.path, 0, message));
        } else {
            let message = format!("has {lines} lines; at more than {SOURCE_LINES_MAX} it fails");
            findings.push(Finding::warning(&file.path, 0, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_lines(lines: usize, allowed: &[Exception], expect: &[&str]) {
        let text = "\n".repeat(lines);
        let findings = sources(&Tree::of(&[("crates/a/src/lib.rs", &text), ("b.md", &text)]), allowed);
        let found: Vec<String> = findings.iter().map(|f| format!("{:?} {}", f.severity, f.path)).collect();
        assert_eq!(found, expect, "{lines}");
    }

    #[test]
    fn long_sources_warn_then_fail() {
        check_lines(599, &[], &[]);
        check_lines(600, &[], &["Warning crates/a/src/lib.rs"]);
        check_lines(700, &[], &["Warning crates/a/src/lib.rs"]);
        check_lines(701, &[], &["Error crates/a/src/lib.rs"]);
        check_lines(701, &[Exception { prefix: "crates/a/src/lib.rs", reason: "a test" }], &[]);
    }

    #[test]
    fn pages_have_limits_and_must_exist() {
        let readme = "\n".repeat(121);
        let findings = check(&Tree::of(&[("README.md", &readme)]));
        assert_eq!(findings.len(), 2);
        assert!(check(&Tree::of(&[("README.md", "a"), ("ARCHITECTURE.md", "b")])).is_empty());
    }
}
