//! No file holds a path that exists on one machine only.

use super::tables::{HERE, PATHS, covering};
use super::{Finding, Tree};

/// First folders of paths that belong to a person or to a build machine. Without slashes, so that
/// this file passes its own rule.
const PERSONAL: &[&str] = &["home", "root", "Users", "work"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let needles: Vec<String> = PERSONAL.iter().map(|folder| format!("/{folder}/")).collect();
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| covering(PATHS, &file.path).is_none()) {
        for (line, number) in file.text.lines().zip(1..) {
            if let Some(needle) = needles.iter().find(|needle| holds_absolute(line, needle)) {
                let message = format!(
                    "holds a path below {needle}, which other machines do not have; make it relative or a variable, or add the file to PATHS in {HERE} with a reason"
                );
                findings.push(Finding::error(&file.path, number, message));
            }
        }
    }
    findings
}

/// True if the needle starts a path, as against being in the middle of one or of a URL.
fn holds_absolute(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = &line[..at];
        before.ends_with("file://")
            || !before.ends_with(|c: char| c.is_alphanumeric() || "_-./~*})>$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    fn check_line(line: &str, folder: &str, expect: bool) {
        let text = line.replace('@', folder);
        assert_eq!(!places(check, &[("a.md", &text)]).is_empty(), expect, "{text}");
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for folder in PERSONAL {
            check_line("/@/me/data", folder, true);
            check_line("path = \"/@/me\"", folder, true);
            check_line("see `/@/me`", folder, true);
            check_line("A=/@/me:/bin", folder, true);
            check_line("file:///@/me", folder, true);
        }
    }

    #[test]
    fn other_paths_are_not() {
        for folder in PERSONAL {
            check_line("https://example.com/@/me", folder, false);
            check_line("./@/me", folder, false);
            check_line("${ROOT}/@/me", folder, false);
            check_line("<bucket>/@/me", folder, false);
            check_line("the /@ folder", folder, false);
        }
        check_line("/mnt/stoker", "", false);
    }
}
