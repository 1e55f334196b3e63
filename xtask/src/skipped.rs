//! Tests that could not run are counted and named, never told as passed. The harness knows no third outcome, so each adds a line to a
//! file that the gate gives it (`crates/testing` does that).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The variable that `crates/testing` reads.
const VARIABLE: &str = "STOKER_SKIPPED";

/// What test programs say that they skipped. Gone when this is dropped.
pub struct Skipped {
    folder: PathBuf,
}

impl Skipped {
    pub fn new() -> Skipped {
        let folder = std::env::temp_dir().join(format!("stoker-skipped-{}", std::process::id()));
        if let Err(error) = std::fs::create_dir_all(&folder) {
            eprintln!(
                "xtask: cannot make {}: {error}; tests that are skipped will not be told",
                folder.display()
            );
        }
        Skipped { folder }
    }

    /// Has a test program tell what it skips.
    pub fn ask(&self, command: &mut Command, program: &str) {
        command.env(VARIABLE, self.folder.join(program));
    }

    /// Prints how many were skipped, and for each reason which.
    pub fn print(&self) {
        let told: Vec<(String, String)> = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|file| {
                let text = std::fs::read_to_string(file.path()).ok()?;
                Some((file.file_name().to_string_lossy().into_owned(), text))
            })
            .collect();
        eprint!("{}", report(&told));
    }
}

impl Drop for Skipped {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// From programs with their lines to what a person reads.
fn report(told: &[(String, String)]) -> String {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (program, text) in told {
        for (test, why) in text.lines().filter_map(|line| line.split_once('\t')) {
            reasons.entry(why).or_default().push(format!("{program} {test}"));
        }
    }
    let count: usize = reasons.values().map(Vec::len).sum();
    if count == 0 {
        return "no test was skipped\n".into();
    }
    let mut report =
        format!("SKIPPED: {count} tests or parts of one did not run, and are not counted as passed:\n");
    for (why, tests) in &mut reasons {
        tests.sort();
        report.push_str(&format!("  {why}: {}\n", tests.join(", ")));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_is_told_by_reason() {
        assert_eq!(report(&[]), "no test was skipped\n");
        let told = [
            ("nfs".into(), "b\tno python3\na\tno python3\n".into()),
            ("mount".into(), "c\tno fuse\n".into()),
        ];
        let expect = "SKIPPED: 3 tests or parts of one did not run, and are not counted as passed:\n  no fuse: mount c\n  no python3: nfs a, nfs b\n";
        assert_eq!(report(&told), expect);
    }
}
