//! Every crate that is not ours has one line of reason in `docs/dependencies.md`.

use super::{Finding, Tree, arrows, manifest};

const PAGE: &str = "docs/dependencies.md";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::error(PAGE, 0, "is missing: it holds the reason for each dependency".into())];
    };
    let ours: Vec<String> =
        arrows::members(tree).into_iter().filter_map(|manifest| manifest.package).collect();
    let manifests = manifest::all(tree);
    let foreign = || {
        manifests
            .iter()
            .flat_map(|manifest| {
                manifest.dependencies.iter().map(move |dependency| (manifest.path, dependency))
            })
            .filter(|(_, dependency)| !ours.contains(&dependency.name))
    };

    let mut findings = Vec::new();
    for (path, dependency) in foreign() {
        if !rows(&page.text).any(|(name, _)| name == dependency.name) {
            findings.push(Finding::error(
                path,
                dependency.line,
                format!(
                    "`{0}` has no row in {PAGE}. Add `| `{0}` | where | reason |`, or do without it",
                    dependency.name
                ),
            ));
        }
    }
    for (name, line) in rows(&page.text) {
        if !foreign().any(|(_, dependency)| dependency.name == name) {
            findings.push(Finding::warning(
                PAGE,
                line,
                format!("`{name}` is used by no Cargo.toml; remove its row"),
            ));
        }
    }
    findings
}

/// Crates named in the first cell of a table row, with the line.
fn rows(page: &str) -> impl Iterator<Item = (&str, usize)> {
    page.lines().zip(1..).filter_map(|(line, number)| {
        let (name, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some((name, number))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    const MEMBER: (&str, &str) = (
        "crates/a/Cargo.toml",
        "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\nserde = \"1\"\n",
    );

    #[test]
    fn a_crate_needs_a_row_and_our_own_do_not() {
        let b = ("crates/b/Cargo.toml", "[package]\nname = \"b\"\n");
        assert_eq!(places(check, &[MEMBER, b, (PAGE, "| crate |\n")]), ["error crates/a/Cargo.toml:5"]);
        assert!(places(check, &[MEMBER, b, (PAGE, "| `serde` | a | reads |\n")]).is_empty());
    }

    #[test]
    fn a_mention_in_prose_is_not_a_reason() {
        let page = (PAGE, "We might use `serde`, `b` or `serde_json`.\n| `serde_json` | a | writes |\n");
        assert_eq!(
            places(check, &[MEMBER, page]),
            ["error crates/a/Cargo.toml:4", "error crates/a/Cargo.toml:5", "warning docs/dependencies.md:2",]
        );
    }

    #[test]
    fn the_page_must_exist() {
        assert_eq!(places(check, &[]), ["error docs/dependencies.md:0"]);
    }
}
