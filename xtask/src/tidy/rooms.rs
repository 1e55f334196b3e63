//! Every crate says what it is responsible for and what it must not do: in its own first lines, and in ARCHITECTURE.md.

use super::{Finding, Tree};

const MAP: &str = "ARCHITECTURE.md";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let map = tree.get(MAP).map_or("", |page| page.text.as_str());
    for manifest in tree.ending("/Cargo.toml") {
        let Some(folder) =
            manifest.path.strip_suffix("/Cargo.toml").filter(|path| path.starts_with("crates/"))
        else {
            continue;
        };
        let row = format!("| `{folder}` |");
        if !map.lines().any(|line| line.starts_with(&row)) {
            findings.push(Finding::error(MAP, 0, format!("has no row for {folder}")));
        }
        let roots = ["lib.rs", "main.rs"].map(|name| format!("{folder}/src/{name}"));
        let Some(root) = roots.iter().find_map(|path| tree.get(path)) else {
            findings.push(Finding::error(folder, 0, "has neither src/lib.rs nor src/main.rs".into()));
            continue;
        };
        let head: String = root.text.lines().take_while(|line| line.starts_with("//!")).collect();
        if !head.contains("must not") {
            let message =
                "does not say what this crate must not do (\"It must not ...\", in its first lines)";
            findings.push(Finding::error(&root.path, 1, message.into()));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "");
    const ROW: (&str, &str) = ("ARCHITECTURE.md", "| `crates/a` | `stoker-a` | bytes | do I/O |\n");

    #[test]
    fn a_crate_says_what_it_must_not_do() {
        let told = ("crates/a/src/lib.rs", "//! Bytes.\n//!\n//! It must not do I/O.\n");
        assert!(places(check, &[MANIFEST, ROW, told]).is_empty());
        let untold = ("crates/a/src/lib.rs", "//! Bytes.\n\n// It must not do I/O.\n");
        assert_eq!(places(check, &[MANIFEST, ROW, untold]), ["error crates/a/src/lib.rs:1"]);
    }

    #[test]
    fn a_crate_is_on_the_map() {
        let told = ("crates/a/src/main.rs", "//! It must not do I/O.\n");
        assert_eq!(places(check, &[MANIFEST, told]), ["error ARCHITECTURE.md:0"]);
        assert_eq!(places(check, &[MANIFEST, ROW]), ["error crates/a:0"]);
    }
}
