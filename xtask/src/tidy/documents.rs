//! Every page of `docs/` can be found from a front page, and the changelog has a place for today.

use super::links::links;
use super::{Finding, Tree};

const FRONT: &[&str] = &["README.md", "ARCHITECTURE.md"];

/// Notes of the laboratory, and the page whose figures they explain.
const NOTES: (&str, &str) = ("docs/lab/", "docs/benchmarks.md");

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let front: Vec<&str> = FRONT
        .iter()
        .filter_map(|path| tree.get(path))
        .flat_map(|page| links(&page.text))
        .map(|(to, _)| to)
        .collect();
    let figures = tree.get(NOTES.1).map_or("", |page| page.text.as_str());
    for page in tree.ending(".md").filter(|file| file.path.starts_with("docs/")) {
        if let Some(name) = page.path.strip_prefix(NOTES.0) {
            if !links(figures).any(|(to, _)| to.strip_prefix("lab/") == Some(name)) {
                findings.push(Finding::error(&page.path, 0, format!("is not linked from {}", NOTES.1)));
            }
            continue;
        }
        if !front.contains(&page.path.as_str()) {
            let message = format!("is linked from neither {}, so nobody will find it", FRONT.join(" nor "));
            findings.push(Finding::error(&page.path, 0, message));
        }
    }
    match tree.get("CHANGELOG.md") {
        None => findings.push(Finding::error("CHANGELOG.md", 0, "is missing".into())),
        Some(changelog) if !changelog.text.lines().any(is_unreleased) => {
            let message = "has no `## [Unreleased]` section, so a change has no place to be told";
            findings.push(Finding::error("CHANGELOG.md", 0, message.into()));
        }
        Some(_) => {}
    }
    findings
}

fn is_unreleased(line: &str) -> bool {
    line.strip_prefix("## ").is_some_and(|title| title.trim_matches(['[', ']', ' ']) == "Unreleased")
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    const CHANGELOG: (&str, &str) = ("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n");

    #[test]
    fn pages_are_linked_from_a_front_page() {
        let page = ("docs/a.md", "");
        assert_eq!(places(check, &[CHANGELOG, page, ("README.md", "docs/a.md")]), ["error docs/a.md:0"]);
        assert!(places(check, &[CHANGELOG, page, ("README.md", "[a](docs/a.md)")]).is_empty());
        assert!(places(check, &[CHANGELOG, page, ("ARCHITECTURE.md", "[a](docs/a.md#part)")]).is_empty());
    }

    #[test]
    fn notes_are_linked_from_the_figures() {
        let (readme, note) = (("README.md", "[b](docs/benchmarks.md)"), ("docs/lab/ring.md", ""));
        let check_page = |text| places(check, &[CHANGELOG, readme, note, ("docs/benchmarks.md", text)]);
        assert!(check_page("[notes](lab/ring.md)").is_empty());
        assert_eq!(check_page("lab/ring.md"), ["error docs/lab/ring.md:0"]);
    }

    #[test]
    fn the_changelog_has_a_place_for_today() {
        assert!(places(check, &[("CHANGELOG.md", "## Unreleased\n")]).is_empty());
        assert_eq!(places(check, &[("CHANGELOG.md", "## 0.1.0\nUnreleased\n")]), ["error CHANGELOG.md:0"]);
        assert_eq!(places(check, &[]), ["error CHANGELOG.md:0"]);
    }
}
