//! What a document names is there: files, tests, functions. And no document speaks of what is "planned": it tells what is.

use std::collections::HashSet;

use super::links::prose;
use super::{Finding, Tree};

/// Files whose names in a document are taken for paths of this repository.
const ENDINGS: &[&str] = &[".rs", ".py", ".mjs", ".js", ".sh", ".md", ".toml", ".yaml", ".json"];

/// A name with at least so many underscores is one of ours, not a word of somebody else's API.
const UNDERSCORES_MIN: usize = 3;

/// Tells what was, and may name what is gone.
const HISTORY: &str = "CHANGELOG.md";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.files.iter().filter(|file| !file.path.ends_with(".md"));
    let known: HashSet<&str> =
        sources.flat_map(|file| file.text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect();
    let mut findings = Vec::new();
    for page in tree.ending(".md").filter(|page| page.path != HISTORY) {
        for (line, number) in prose(&page.text) {
            for word in line.split('`').skip(1).step_by(2) {
                if is_path(word) && !exists(tree, word) {
                    findings.push(Finding::error(
                        &page.path,
                        number,
                        format!("names `{word}`, which is not there"),
                    ));
                }
                if let Some(name) = name(word)
                    && !known.contains(name)
                {
                    let message = format!("names `{word}`, which no source file holds");
                    findings.push(Finding::error(&page.path, number, message));
                }
            }
            if line.split(|c: char| !c.is_alphanumeric()).any(|word| word.eq_ignore_ascii_case("planned")) {
                let message = "says \"planned\"; a document tells what is, and what is missing";
                findings.push(Finding::error(&page.path, number, message.into()));
            }
        }
    }
    findings
}

/// A relative path to a file of a kind that we have.
fn is_path(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-./".contains(c);
    word.contains('/')
        && !word.starts_with('/')
        && word.chars().all(plain)
        && ENDINGS.iter().any(|ending| word.ends_with(ending))
}

/// From the root, or from somewhere below it, as in `cell/records.rs`.
fn exists(tree: &Tree, path: &str) -> bool {
    let below = format!("/{}", path.trim_start_matches("../"));
    tree.files
        .iter()
        .map(|file| &file.path)
        .chain(&tree.others)
        .any(|held| held == path || held.ends_with(&below))
}

/// The last part of a name like `module::what_a_test_is_called`. Metrics are composed, so no file holds their names; a test of
/// their own compares them with their page. A number at the end (`workers_8`) is one of several.
fn name(word: &str) -> Option<&str> {
    let last = word.rsplit("::").next().unwrap_or(word);
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let counted = last.rsplit_once('_').is_some_and(|(_, end)| end.bytes().all(|byte| byte.is_ascii_digit()));
    (last.chars().all(plain)
        && last.matches('_').count() >= UNDERSCORES_MIN
        && !last.starts_with("stoker_")
        && !counted)
        .then_some(last)
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    const TEST: (&str, &str) = ("crates/a/tests/kill.rs", "fn a_kill_loses_nothing_at_all() {}");

    fn check_line(line: &str, expect: bool) {
        let found = places(check, &[("docs/a.md", line), TEST]);
        assert_eq!(found.is_empty(), expect, "{line}: {found:?}");
    }

    #[test]
    fn files_and_tests_that_are_named_exist() {
        check_line("see `kill::a_kill_loses_nothing_at_all`", true);
        check_line("see `kill::a_kill_loses_next_to_nothing`", false);
        check_line("see `crates/a/tests/kill.rs` and `tests/kill.rs`", true);
        check_line("see `crates/b/tests/kill.rs`", false);
        check_line("see a/b.rs and `/etc/stoker/stoker.toml`, `getaddrinfo`, `ack_timeout_ms`", true);
        check_line("`stoker_ring_flushes_total`, `native_block_workers_8`", true);
    }

    #[test]
    fn fenced_text_and_the_changelog_may() {
        check_line("```\n`crates/b/tests/kill.rs`, planned\n```", true);
        assert!(places(check, &[("CHANGELOG.md", "`crates/b/tests/kill.rs`, planned")]).is_empty());
    }

    #[test]
    fn nothing_is_planned() {
        check_line("| CSI | Planned |", false);
        check_line("a planner plans", true);
    }
}
