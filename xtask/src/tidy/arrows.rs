//! Dependencies between workspace packages are the ones in the table, and no others.

use super::manifest::{self, Manifest};
use super::tables::{ARROWS, HERE};
use super::{Finding, Tree};

/// Workspaces of their own, which the root excludes.
const EXCLUDED: &[&str] = &["fuzz/"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, ARROWS)
}

fn check_against(tree: &Tree, arrows: &[(&str, &[&str])]) -> Vec<Finding> {
    let manifests = members(tree);
    let packages: Vec<&str> = manifests.iter().filter_map(|manifest| manifest.package.as_deref()).collect();
    let mut findings = Vec::new();
    for manifest in &manifests {
        let Some(package) = &manifest.package else { continue };
        let Some((_, allowed)) = arrows.iter().find(|(name, _)| name == package) else {
            findings.push(Finding::error(
                manifest.path,
                0,
                format!(
                    "package `{package}` has no row in ARROWS in {HERE}. A new crate is a decision: say there what it may depend on, and in ARCHITECTURE.md what it is for"
                ),
            ));
            continue;
        };
        for dependency in &manifest.dependencies {
            let name = dependency.name.as_str();
            if packages.contains(&name) && !allowed.contains(&name) {
                findings.push(Finding::error(
                    manifest.path,
                    dependency.line,
                    format!(
                        "`{package}` -> `{name}` ({}) is a new arrow between crates. An arrow is a decision: if it is meant, add it to ARROWS in {HERE} and write the reason under Decisions in ARCHITECTURE.md",
                        dependency.section
                    ),
                ));
            }
        }
    }
    findings
}

/// Manifests of the workspace's own packages.
pub fn members(tree: &Tree) -> Vec<Manifest<'_>> {
    let mut manifests = manifest::all(tree);
    manifests.retain(|manifest| {
        manifest.package.is_some() && !EXCLUDED.iter().any(|folder| manifest.path.starts_with(folder))
    });
    manifests
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(&str, &[&str])] = &[("low", &[]), ("high", &["low"])];
    const HIGH: &str = "[package]\nname = \"high\"\n[dependencies]\nlow.workspace = true\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let findings = check_against(&Tree::of(files), TABLE);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn listed_arrows_pass() {
        let low = "[package]\nname = \"low\"\n[dependencies]\nserde = \"1\"\n";
        assert!(found(&[("crates/high/Cargo.toml", HIGH), ("crates/low/Cargo.toml", low)]).is_empty());
    }

    #[test]
    fn an_arrow_up_fails_even_in_tests() {
        let low = "[package]\nname = \"low\"\n[dev-dependencies]\nhigh = { path = \"../high\" }\n";
        let files = [("crates/high/Cargo.toml", HIGH), ("crates/low/Cargo.toml", low)];
        assert_eq!(found(&files), ["crates/low/Cargo.toml:4"]);
        let message = &check_against(&Tree::of(&files), TABLE)[0].message;
        assert!(message.contains(HERE) && message.contains("decision"), "{message}");
    }

    #[test]
    fn a_package_without_a_row_fails() {
        assert_eq!(
            found(&[("crates/new/Cargo.toml", "[package]\nname = \"new\"\n")]),
            ["crates/new/Cargo.toml:0"]
        );
    }

    #[test]
    fn the_fuzz_workspace_is_not_a_member() {
        let fuzz = "[package]\nname = \"fuzz\"\n[dependencies]\nlow = { path = \"../crates/low\" }\n";
        assert!(found(&[("fuzz/Cargo.toml", fuzz)]).is_empty());
    }
}
