//! What tests of several crates share: a test that cannot run here says so, and the gate counts it.
//!
//! It must not be linked into the product, and must not know any part of it.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

/// Names the file to which tests that did not run add a line; the gate reads it.
pub const SKIPPED_FILE: &str = "STOKER_SKIPPED";

/// Says that a test, or a part of one, does not run, and why; the test then returns. Without this it would count as passed: the harness
/// knows no third outcome, and shows nothing of what a test that passes says.
pub fn skipped(why: impl Display) {
    eprintln!("skipped: {why}");
    let Some(file) = std::env::var_os(SKIPPED_FILE) else { return };
    let thread = std::thread::current();
    // The harness runs each test in a thread of its name.
    if let Err(error) = tell(Path::new(&file), thread.name().unwrap_or("a part of a test"), &why.to_string())
    {
        eprintln!("skipped, and could not tell {}: {error}", Path::new(&file).display());
    }
}

/// One write, so that lines of several programs do not mix.
fn tell(file: &Path, test: &str, why: &str) -> std::io::Result<()> {
    let why: String = why.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut file = std::fs::File::options().create(true).append(true).open(file)?;
    file.write_all(format!("{test}\t{why}\n").as_bytes())
}

/// Whether the long tests are asked for. Says that a test is skipped where they are not.
pub fn is_asked(names: &[&str]) -> bool {
    let asked = names.iter().any(|name| std::env::var_os(name).is_some());
    if !asked {
        skipped(format_args!("only with {}", names.join(" or ")));
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_test_that_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("skipped");
        tell(&file, "a", "no\nfuse").unwrap();
        tell(&file, "b", " no network ").unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "a\tno fuse\nb\tno network\n");
    }
}
