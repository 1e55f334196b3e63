//! A module is named after what it is. Names that fit anything attract everything.

use super::{Finding, Tree, code};

const FORBIDDEN: &[&str] = &["utils", "util", "helpers", "helper", "common", "manager", "misc"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.ending(".rs") {
        let Some(inside) = below_src(&file.path) else { continue };
        for part in inside.trim_end_matches(".rs").split('/').filter(|part| is_forbidden(part)) {
            findings.push(finding(&file.path, 0, part));
        }
        for (line, number) in code::only(&file.text).lines().zip(1..) {
            // `mod utils;` is told by the file's own path; this is the module with a body.
            if let Some(name) = inline_module(line).filter(|name| is_forbidden(name)) {
                findings.push(finding(&file.path, number, name));
            }
        }
    }
    findings
}

fn finding(path: &str, line: usize, name: &str) -> Finding {
    let advice = "name it after the thing it holds, or move its parts to the things they belong to";
    Finding::error(path, line, format!("`{name}` says nothing about what is inside; {advice}"))
}

/// The part of a path below the `src` of a crate.
fn below_src(path: &str) -> Option<&str> {
    let (_, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    rest.strip_prefix("src/")
}

fn inline_module(line: &str) -> Option<&str> {
    let mut words = code::words(line).skip_while(|word| *word != "mod");
    words.next().filter(|_| line.contains('{')).and_then(|_| words.next())
}

/// `utils` and `drive_utils`, but not `common_prefix`: the last word says what a thing is.
fn is_forbidden(name: &str) -> bool {
    name.rsplit('_').next().is_some_and(|last| FORBIDDEN.contains(&last))
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    #[test]
    fn files_and_folders() {
        let files = [
            ("crates/a/src/utils.rs", ""),
            ("crates/a/src/common/mod.rs", ""),
            ("crates/a/src/drive_manager.rs", ""),
            ("crates/a/src/common_prefix.rs", ""),
            ("crates/a/src/segment.rs", "mod utils;"),
            ("crates/a/tests/common/mod.rs", ""),
        ];
        assert_eq!(
            places(check, &files),
            [
                "error crates/a/src/utils.rs:0",
                "error crates/a/src/common/mod.rs:0",
                "error crates/a/src/drive_manager.rs:0",
            ]
        );
    }

    #[test]
    fn modules_with_a_body() {
        let text = "// mod misc {}\npub(crate) mod helpers {\n}\nmod tests {}\n";
        assert_eq!(places(check, &[("crates/a/src/lib.rs", text)]), ["error crates/a/src/lib.rs:2"]);
    }
}
