//! A machine as a text, unpacked into a directory. `fixtures/healthy.txt` tells the form.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use stoker_doctor::{Machine, Plan, Report, examine};

/// A time at which the certificates of the plans hold.
pub const NOW_S: u64 = 1_800_000_000;

/// An unpacked machine.
pub struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// A fixture by its name.
    pub fn of(name: &str) -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap() };
        tree.load(name);
        tree
    }

    fn load(&self, name: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.txt"));
        self.apply(&fs::read_to_string(path).unwrap());
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn machine(&self) -> Machine {
        Machine::at(self.root())
    }

    pub fn examine(&self, plan: &Plan) -> Report {
        examine(&self.machine(), plan, NOW_S)
    }

    fn outside(&self, path: &str) -> PathBuf {
        assert!(path.starts_with('/'), "not absolute: {path}");
        self.root().join(&path[1..])
    }

    /// Makes, replaces and (`- path`) removes what the text says.
    pub fn apply(&self, text: &str) {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix("include ") {
                self.load(name);
            } else if let Some(path) = line.strip_prefix("- ") {
                remove(&self.outside(path));
            } else if let Some((path, target)) = line.split_once(" -> ") {
                let path = self.outside(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                remove(&path);
                symlink(target, path).unwrap();
            } else if let Some((path, content)) = line.split_once(": ") {
                let content = match content {
                    "<<<" => lines
                        .by_ref()
                        .take_while(|line| *line != ">>>")
                        .map(|line| format!("{line}\n"))
                        .collect(),
                    content => format!("{content}\n"),
                };
                let (path, mode) = moded(path);
                let path = self.outside(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, content).unwrap();
                set_mode(&path, mode);
            } else {
                let (path, mode) = moded(line);
                let path =
                    self.outside(path.strip_suffix('/').unwrap_or_else(|| panic!("what is `{line}`?")));
                fs::create_dir_all(&path).unwrap();
                set_mode(&path, mode);
            }
        }
    }
}

fn remove(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// `path (0600)`
fn moded(text: &str) -> (&str, Option<u32>) {
    let split = text.strip_suffix(')').and_then(|text| text.rsplit_once(" ("));
    match split.and_then(|(path, mode)| Some((path, u32::from_str_radix(mode, 8).ok()?))) {
        Some((path, mode)) => (path, Some(mode)),
        None => (text, None),
    }
}

fn set_mode(path: &Path, mode: Option<u32>) {
    if let Some(mode) = mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// What was found, one line each: `severity check subject`.
pub fn lines(report: &Report) -> Vec<String> {
    let line = |severity: &str, check: &str, subject: &str| {
        format!("{severity} {check} {subject}").trim_end().to_owned()
    };
    report.findings.iter().map(|one| line(one.severity.as_str(), one.check, &one.subject)).collect()
}

/// What could not be looked at, one line each: `check subject`.
pub fn unseen(report: &Report) -> Vec<String> {
    report.unseen.iter().map(|one| format!("{} {}", one.check, one.subject).trim_end().to_owned()).collect()
}
