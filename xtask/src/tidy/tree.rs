//! The text files of the repository, in memory, so that the rules are functions of their bytes.

use std::io;
use std::path::Path;
use std::process::Command;

pub struct TextFile {
    /// From the repository root, with `/`.
    pub path: String,
    pub text: String,
}

pub struct Tree {
    /// Sorted by path.
    pub files: Vec<TextFile>,
    /// Paths of pictures and the like.
    pub others: Vec<String>,
}

/// Folders that are never sources; only used where git cannot be asked.
const SKIPPED: &[&str] = &[".git", "target", "corpus", "artifacts", "stoker-data"];

impl Tree {
    /// Reads what git tracks and what it would add; without git, everything but build outputs.
    ///
    /// New files count before they are added: the gate should fail before a commit, not after it.
    pub fn load(root: &Path) -> io::Result<Tree> {
        let paths = match ask_git(root) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths)?;
                paths
            }
        };
        let (mut files, mut others) = (Vec::new(), Vec::new());
        for path in paths {
            let full = root.join(&path);
            // Deleted but still in the index, or a link: nothing to read here.
            if !full.symlink_metadata().is_ok_and(|meta| meta.is_file()) {
                continue;
            }
            let bytes = std::fs::read(full)?;
            if bytes.contains(&0) {
                others.push(path);
            } else {
                files.push(TextFile { path, text: String::from_utf8_lossy(&bytes).into_owned() });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files, others })
    }

    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| TextFile { path: (*path).into(), text: (*text).into() });
        Tree { files: files.collect(), others: Vec::new() }
    }

    pub fn get(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }

    pub fn ending(&self, suffix: &str) -> impl Iterator<Item = &TextFile> {
        self.files.iter().filter(move |file| file.path.ends_with(suffix))
    }
}

fn ask_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let list = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(list.split('\0').filter(|path| !path.is_empty()).map(String::from).collect())
}

fn walk(root: &Path, below: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_file() {
            paths.push(path);
        } else if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
            walk(root, &path, paths)?;
        }
    }
    Ok(())
}
