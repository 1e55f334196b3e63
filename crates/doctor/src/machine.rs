//! A machine as a directory: `/` of the one that this runs on, or a tree of files that stands for another.
//!
//! Nothing else in this crate touches a file. Reads are bounded, links never lead out of the root, and what is not a plain
//! file is not opened, so that no pipe can hold the examination up.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Largest file that is read; those of the kernel are far smaller.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Entries of one directory that are looked at.
const ENTRIES_MAX: usize = 16_384;
/// Links on the way to one file, as in the kernel.
const LINKS_MAX: usize = 40;
/// Parts of one path, with those that links bring in.
const PARTS_MAX: usize = 1_024;

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    /// It is not there.
    Missing(PathBuf),
    /// It is there and cannot be read, or makes no sense.
    Unreadable(PathBuf, String),
    /// Whoever asked could not find out.
    Untold(String),
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gap::Missing(path) => write!(f, "{} is not there", path.display()),
            Gap::Unreadable(path, why) => write!(f, "{}: {why}", path.display()),
            Gap::Untold(why) => f.write_str(why),
        }
    }
}

impl Gap {
    /// What is there and makes no sense.
    pub fn senseless(path: impl AsRef<Path>, text: &str) -> Gap {
        let start: String = text.trim().chars().take(40).flat_map(char::escape_default).collect();
        Gap::Unreadable(path.as_ref().to_owned(), format!("`{start}` makes no sense"))
    }

    fn of(path: &Path, error: &io::Error) -> Gap {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Gap::Missing(path.to_owned()),
            _ => Gap::Unreadable(path.to_owned(), error.to_string()),
        }
    }
}

/// Nothing, where a file is not there; an error stays one.
pub fn if_there<T>(read: Result<T, Gap>) -> Result<Option<T>, Gap> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Gap::Missing(_)) => Ok(None),
        Err(gap) => Err(gap),
    }
}

/// Who may do what with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The twelve bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
}

/// A machine, by the directory where its file systems begin.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine whose `/` is that directory.
    pub fn at(root: impl Into<PathBuf>) -> Machine {
        Machine { root: root.into() }
    }

    /// A file as text; what is not UTF-8 is replaced.
    pub fn text(&self, path: impl AsRef<Path>) -> Result<String, Gap> {
        let path = path.as_ref();
        let outside = self.outside(&self.real(path)?);
        let is_file = fs::symlink_metadata(&outside).map_err(|error| Gap::of(path, &error))?.is_file();
        if !is_file {
            return Err(Gap::Unreadable(path.to_owned(), "is not a file".to_owned()));
        }
        let mut bytes = Vec::new();
        let read =
            File::open(&outside).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        read.map_err(|error| Gap::of(path, &error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Gap::Unreadable(path.to_owned(), "is too long".to_owned()));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file without the space around its text, which must not be empty.
    pub fn word(&self, path: impl AsRef<Path>) -> Result<String, Gap> {
        let text = self.text(&path)?;
        match text.trim() {
            "" => Err(Gap::Unreadable(path.as_ref().to_owned(), "is empty".to_owned())),
            word => Ok(word.to_owned()),
        }
    }

    /// A file that holds one value.
    pub fn value<T: FromStr>(&self, path: impl AsRef<Path>) -> Result<T, Gap> {
        let word = self.word(&path)?;
        word.parse().map_err(|_| Gap::senseless(path, &word))
    }

    /// A file that holds one of these words. Others are of a kernel that we do not know, and mean nothing to us.
    pub fn one_of(&self, path: impl AsRef<Path>, known: &[&'static str]) -> Result<&'static str, Gap> {
        let word = self.word(&path)?;
        known.iter().find(|other| **other == word).copied().ok_or_else(|| Gap::senseless(path, &word))
    }

    /// Names in a directory, in order. Names that are no text are left out: the kernel makes none.
    pub fn names(&self, path: impl AsRef<Path>) -> Result<Vec<String>, Gap> {
        let path = path.as_ref();
        let entries = fs::read_dir(self.outside(&self.real(path)?)).map_err(|error| Gap::of(path, &error))?;
        let named = entries.take(ENTRIES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = named.collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        Ok(names)
    }

    /// Whether there is something; not if that cannot be found out.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.real(path.as_ref()).is_ok()
    }

    /// Mode and owner of a file.
    pub fn permissions(&self, path: impl AsRef<Path>) -> Result<Permissions, Gap> {
        let path = path.as_ref();
        let outside = self.outside(&self.real(path)?);
        let meta = fs::symlink_metadata(outside).map_err(|error| Gap::of(path, &error))?;
        Ok(Permissions { mode: meta.mode() & 0o7777, uid: meta.uid() })
    }

    /// The path without links, inside the root.
    pub fn real(&self, path: impl AsRef<Path>) -> Result<PathBuf, Gap> {
        let path = path.as_ref();
        let unreadable = |why: &str| Gap::Unreadable(path.to_owned(), why.to_owned());
        let mut done = PathBuf::from("/");
        let mut left: Vec<OsString> = parts(path);
        let (mut links, mut steps) = (0, 0);
        while let Some(part) = left.pop() {
            steps += 1;
            if steps > PARTS_MAX {
                return Err(unreadable("the path is too long"));
            }
            if part == ".." {
                done.pop();
                continue;
            }
            let next = done.join(&part);
            let outside = self.outside(&next);
            let meta = fs::symlink_metadata(&outside).map_err(|error| Gap::of(path, &error))?;
            if !meta.is_symlink() {
                done = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(unreadable("too many links"));
            }
            let target = fs::read_link(&outside).map_err(|error| Gap::of(path, &error))?;
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            left.extend(parts(&target));
        }
        Ok(done)
    }

    fn outside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// What a path is made of, last first.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().rev().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn machine() -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/a")).unwrap();
        fs::write(dir.path().join("sys/a/value"), " 42\n").unwrap();
        let machine = Machine::at(dir.path());
        (dir, machine)
    }

    #[test]
    fn links_stay_inside() {
        let (dir, machine) = machine();
        symlink("/sys/a/value", dir.path().join("absolute")).unwrap();
        symlink("../../../../sys/a/value", dir.path().join("sys/relative")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        assert_eq!(machine.value::<u32>("/absolute"), Ok(42));
        assert_eq!(machine.value::<u32>("/sys/relative"), Ok(42));
        assert_eq!(machine.real("/absolute"), Ok("/sys/a/value".into()));
        assert!(matches!(machine.text("/loop"), Err(Gap::Unreadable(..))));
    }

    #[test]
    fn what_is_not_known_says_why() {
        let (dir, machine) = machine();
        assert!(matches!(machine.text("/sys/none"), Err(Gap::Missing(_))));
        assert!(matches!(machine.text("/sys/a/value/below"), Err(Gap::Missing(_))));
        assert!(matches!(machine.text("/sys/a"), Err(Gap::Unreadable(..))));
        fs::write(dir.path().join("garbage"), b"\xff\x00 x").unwrap();
        let gap = machine.value::<u32>("/garbage").unwrap_err();
        assert!(gap.to_string().contains("makes no sense"), "{gap}");
        assert_eq!(if_there(machine.text("/sys/none")), Ok(None));
        fs::write(dir.path().join("long"), vec![b'1'; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(machine.text("/long").unwrap_err().to_string().contains("too long"));
    }
}
