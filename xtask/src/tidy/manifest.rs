//! Reads from a Cargo.toml what the rules need: the package's name and its dependencies. It knows the
//! forms that cargo accepts for these, not TOML.

use super::tree::{TextFile, Tree};

#[derive(Debug)]
pub struct Manifest<'a> {
    /// Of the file, from the repository root.
    pub path: &'a str,
    pub package: Option<String>,
    pub dependencies: Vec<Dependency>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The name on crates.io or of the workspace package, with renames resolved.
    pub name: String,
    /// `dependencies`, `dev-dependencies`, `build-dependencies` or `workspace.dependencies`.
    pub section: String,
    /// Counted from 1.
    pub line: usize,
}

/// Every manifest of the tree, with `name.workspace = true` resolved against the root's renames.
pub fn all(tree: &Tree) -> Vec<Manifest<'_>> {
    let files =
        tree.files.iter().filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml"));
    let renames = tree.get("Cargo.toml").map_or(Vec::new(), |root| parse(root).1);
    let resolve = |file| {
        let mut manifest = parse(file).0;
        for dependency in &mut manifest.dependencies {
            if let Some((_, real)) = renames.iter().find(|(alias, _)| *alias == dependency.name) {
                dependency.name.clone_from(real);
            }
        }
        manifest
    };
    files.map(resolve).collect()
}

/// The manifest and the renames (`alias`, `real name`) of its `[workspace.dependencies]`.
fn parse(file: &TextFile) -> (Manifest<'_>, Vec<(String, String)>) {
    let mut manifest = Manifest { path: &file.path, package: None, dependencies: Vec::new() };
    let mut renames = Vec::new();
    let mut section = Section::Other;
    let mut lines = file.text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut statement = without_comment(line).trim().to_string();
        // A value that spans lines is one statement.
        while open_brackets(&statement) > 0 {
            let Some((more, _)) = lines.next() else { break };
            statement.push(' ');
            statement.push_str(without_comment(more).trim());
        }
        if let Some(header) = statement.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = Section::of(header);
            if let Section::OneDependency(kind, name) = &section {
                manifest.dependencies.push(Dependency {
                    name: name.clone(),
                    section: kind.clone(),
                    line: number,
                });
            }
            continue;
        }
        let Some((key, value)) = statement.split_once('=') else { continue };
        let (key, value) = (key.trim(), value.trim());
        match &section {
            Section::Package if key == "name" => manifest.package = Some(unquoted(value)),
            Section::Dependencies(kind) => {
                // `a = ..`, `"a" = ..` and `a.workspace = true` all name `a`.
                let alias = unquoted(key.split_once('.').map_or(key, |(first, _)| first));
                let renamed =
                    if key.ends_with(".package") { Some(unquoted(value)) } else { inline_package(value) };
                if let (Some(real), "workspace.dependencies") = (&renamed, kind.as_str()) {
                    renames.push((alias.clone(), real.clone()));
                }
                let name = renamed.unwrap_or(alias);
                manifest.dependencies.push(Dependency { name, section: kind.clone(), line: number });
            }
            Section::OneDependency(kind, alias) if key == "package" => {
                if kind == "workspace.dependencies" {
                    renames.push((alias.clone(), unquoted(value)));
                }
                if let Some(last) = manifest.dependencies.last_mut() {
                    last.name = unquoted(value);
                }
            }
            _ => {}
        }
    }
    (manifest, renames)
}

enum Section {
    Package,
    /// `[dependencies]`, also below `[target.'cfg(..)']` or `[workspace]`.
    Dependencies(String),
    /// `[dependencies.name]`.
    OneDependency(String, String),
    Other,
}

impl Section {
    fn of(header: &str) -> Section {
        if header == "package" {
            return Section::Package;
        }
        for kind in ["workspace.dependencies", "dev-dependencies", "build-dependencies", "dependencies"] {
            let below_target = header.starts_with("target.") && header.ends_with(&format!(".{kind}"));
            if header == kind || below_target {
                return Section::Dependencies(kind.into());
            }
            let one = match header.strip_prefix("target.") {
                Some(target) => target.split_once(&format!(".{kind}.")).map(|(_, name)| name),
                None => header.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.')),
            };
            if let Some(name) = one {
                return Section::OneDependency(kind.into(), unquoted(name));
            }
        }
        Section::Other
    }
}

/// The value of `package` in `{ package = "name", .. }`.
fn inline_package(value: &str) -> Option<String> {
    let fields = value.strip_prefix('{')?.strip_suffix('}')?;
    fields.split(',').find_map(|field| {
        let (key, value) = field.split_once('=')?;
        (key.trim() == "package").then(|| unquoted(value.trim()))
    })
}

fn unquoted(text: &str) -> String {
    text.trim_matches(['"', '\'']).into()
}

/// The line up to a `#` that is not inside a string.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') => return &line[..at],
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    line
}

/// How many brackets and braces a statement leaves open, outside strings.
fn open_brackets(statement: &str) -> i32 {
    let mut quote = None;
    let mut depth = 0;
    for c in statement.chars() {
        match (quote, c) {
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth -= 1,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what a manifest depends on, given as `section name:line`.
    fn check(root: &str, manifest: &str, expect: &[&str]) {
        let tree = Tree::of(&[("Cargo.toml", root), ("crates/a/Cargo.toml", manifest)]);
        let manifests = all(&tree);
        let found: Vec<String> = manifests[1]
            .dependencies
            .iter()
            .map(|dependency| format!("{} {}:{}", dependency.section, dependency.name, dependency.line))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn plain_forms() {
        check(
            "",
            "[package]\nname = \"a\"\n[dependencies]\nb = \"1\" # why\nc.workspace = true\n\"d\" = { path = \"../d\" }\n[lints]\nworkspace = true",
            &["dependencies b:4", "dependencies c:5", "dependencies d:6"],
        );
    }

    #[test]
    fn values_over_several_lines_are_one_dependency() {
        check(
            "",
            "[dependencies]\nb = { version = \"1\", features = [\n  \"x\", # ]\n  \"y=z\",\n] }\nc = \"2\"",
            &["dependencies b:2", "dependencies c:6"],
        );
    }

    #[test]
    fn tables_targets_and_kinds() {
        check(
            "",
            "[dependencies.b]\nversion = \"1\"\n[target.'cfg(unix)'.dependencies]\nc = \"1\"\n[dev-dependencies]\nd = \"1\"\n[target.'cfg(unix)'.build-dependencies.e]\nversion = \"1\"",
            &["dependencies b:1", "dependencies c:4", "dev-dependencies d:6", "build-dependencies e:7"],
        );
    }

    #[test]
    fn renames_do_not_hide_the_real_name() {
        check(
            "[workspace.dependencies]\nb = { package = \"real-b\", version = \"1\" }",
            "[dependencies]\nb.workspace = true\nc = { package = \"real-c\", version = \"1\" }\n[dependencies.d]\npackage = \"real-d\"",
            &["dependencies real-b:2", "dependencies real-c:3", "dependencies real-d:4"],
        );
    }

    #[test]
    fn the_package_is_named() {
        let tree =
            Tree::of(&[("crates/a/Cargo.toml", "[package]\nname = \"stoker-a\"\n[[bin]]\nname = \"b\"")]);
        assert_eq!(all(&tree)[0].package.as_deref(), Some("stoker-a"));
    }
}
