//! A link from one page to another file leads somewhere.

use super::{Finding, Tree};

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in tree.ending(".md") {
        let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (to, line) in links(&page.text).filter(|(to, _)| !to.is_empty() && !to.contains(':')) {
            let target = resolve(folder, to);
            let below = format!("{}/", target.trim_end_matches('/'));
            let mut paths = tree.files.iter().map(|file| &file.path).chain(&tree.others);
            let exists = paths.any(|path| *path == target || path.starts_with(&below));
            if !exists {
                findings.push(Finding::error(
                    &page.path,
                    line,
                    format!("links to `{to}`, which is not there"),
                ));
            }
        }
    }
    findings
}

/// Targets of inline links with their line, without the part after `#`; fenced code holds none.
pub fn links(page: &str) -> impl Iterator<Item = (&str, usize)> {
    prose(page).flat_map(|(line, number)| {
        line.split("](").skip(1).filter_map(move |rest| {
            let (target, _) = rest.split_once(')')?;
            Some((target.split('#').next().unwrap_or(target), number))
        })
    })
}

/// Lines of a page with their number, without fenced code.
pub fn prose(page: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut fenced = false;
    page.lines().zip(1..).filter(move |(line, _)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// A relative link as a path from the repository root.
fn resolve(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::testing::places;
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let readme = "[a](docs/a.md#x) [b](docs/b.md)\n[web](https://example.com/c.md) [here](#part)\n[folder](docs/)\n";
        let a = "[up](../README.md)\n\n```\n[not](a-link.md)\n```\n[gone](c.md)\n";
        assert_eq!(
            places(check, &[("README.md", readme), ("docs/a.md", a)]),
            ["error README.md:1", "error docs/a.md:6",]
        );
    }
}
