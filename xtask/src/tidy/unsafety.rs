//! `unsafe` stays in the few files that exist for it, so that a review knows where to look.

use super::tables::{Exception, HERE, UNSAFE, covering};
use super::{Finding, Tree, code};

pub fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, UNSAFE)
}

fn check_against(tree: &Tree, allowed: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.ending(".rs").filter(|file| covering(allowed, &file.path).is_none()) {
        for (line, number) in code::only(&file.text).lines().zip(1..) {
            if code::words(line).any(|word| word == "unsafe") {
                let message = format!(
                    "`unsafe` is not allowed here. A new row in UNSAFE in {HERE} is a decision; today it may live in {}",
                    listed(allowed)
                );
                findings.push(Finding::error(&file.path, number, message));
            }
        }
    }
    findings
}

fn listed(allowed: &[Exception]) -> String {
    let rows = allowed.iter().map(|exception| format!("{}* ({})", exception.prefix, exception.reason));
    rows.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let allowed = [Exception { prefix: "crates/ring/src/uring", reason: "a test" }];
        check_against(&Tree::of(&[(path, text)]), &allowed).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn only_code_counts() {
        let text = "#![forbid(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";\nunsafe { f() }\n";
        assert_eq!(found("crates/format/src/lib.rs", text), [4]);
        assert_eq!(found("crates/format/tests/a.rs", "unsafe impl Send for A {}"), [1]);
    }

    #[test]
    fn listed_files_may() {
        for path in
            ["crates/ring/src/uring.rs", "crates/ring/src/uring/queue.rs", "crates/ring/src/uring_probe.rs"]
        {
            assert!(found(path, "unsafe { f() }").is_empty(), "{path}");
        }
        assert_eq!(found("crates/ring/src/index.rs", "unsafe { f() }"), [1]);
    }
}
