//! What is mounted on this machine: a file for each path, written before the mount is made and removed after it is gone.
//!
//! The mounts themselves are processes of `stoker mount`, which live on when the driver ends. Which of them died while nobody looked is
//! seen by asking the kernel; they are made again on the same path, and what was bound to them is bound anew.

use std::fs;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::answer::Answer;
use crate::record::{Place, hash};
use crate::sys::{self, Limits};

/// Longest path that is taken.
const PATH_LEN_MAX: usize = 4096;
/// Tells boots apart: what was mounted in another one is not mounted any more.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const MOUNTS: &str = "/proc/self/mountinfo";

/// One path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mounted {
    /// The id of the volume.
    pub volume_id: String,
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub what: What,
    /// Nobody changes it by this path.
    pub read_only: bool,
    /// No other target may have it.
    pub single_writer: bool,
    /// In which boot.
    #[serde(default)]
    pub boot: String,
}

/// What is on a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A volume, by a process.
    Staged { place: Place, arguments: Vec<String> },
    /// A volume that goes with its pod, by a process.
    Ephemeral { place: Place, arguments: Vec<String> },
    /// Something that is staged, shown once more.
    Published { staging: PathBuf, directory: Option<String> },
}

/// What the kernel says of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Nothing,
    Alive,
    /// A mount whose process is gone.
    Dead,
}

/// The folder of those files, and the program that mounts.
pub struct Mounts {
    folder: PathBuf,
    program: PathBuf,
    target: Vec<String>,
    boot: String,
}

impl Mounts {
    /// Opens the folder, and makes it.
    pub fn open(state: &Path, program: &Path, target: &[String]) -> io::Result<Mounts> {
        let folder = state.join("mounts");
        fs::create_dir_all(&folder)?;
        let boot = fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        Ok(Mounts { folder, program: program.to_owned(), target: target.to_vec(), boot })
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.folder.join(format!("{}.json", hash(&path.to_string_lossy())))
    }

    /// What was written down of a path in this boot.
    pub fn get(&self, path: &Path) -> Option<Mounted> {
        self.read(&self.file(path))
    }

    fn read(&self, file: &Path) -> Option<Mounted> {
        let text = fs::read(file).ok()?;
        let read: Result<Mounted, _> = serde_json::from_slice(&text);
        match read {
            Ok(mounted) if mounted.boot == self.boot => return Some(mounted),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "a record of a mount cannot be read")
            }
        }
        let _ = fs::remove_file(file);
        None
    }

    /// Everything that was, staged before published.
    pub fn all(&self) -> Vec<Mounted> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|one| one.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        let mut all: Vec<Mounted> = files.filter_map(|file| self.read(&file)).collect();
        all.sort_by_key(|one| (matches!(one.what, What::Published { .. }), one.path.clone()));
        all
    }

    /// Writes one down, durably.
    pub fn put(&self, mounted: &Mounted) -> Answer<()> {
        let mounted = Mounted { boot: self.boot.clone(), ..mounted.clone() };
        let file = self.file(&mounted.path);
        let new = file.with_extension("new");
        let text = serde_json::to_vec(&mounted).map_err(|error| Status::internal(error.to_string()))?;
        let write = || {
            let mut out = fs::File::create(&new)?;
            out.write_all(&text)?;
            out.sync_all()?;
            fs::rename(&new, &file)?;
            fs::File::open(&self.folder)?.sync_all()
        };
        write().map_err(|error: io::Error| failed("writing down", &file, &error))
    }

    /// Forgets one.
    pub fn remove(&self, path: &Path) -> Answer<()> {
        let file = self.file(path);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", &file, &error)),
            _ => Ok(()),
        }
    }

    /// Mounts what is written down.
    pub fn make(&self, mounted: &Mounted) -> Answer<()> {
        match &mounted.what {
            What::Staged { place, arguments } | What::Ephemeral { place, arguments } => {
                self.start(place, &mounted.path, arguments, mounted.read_only)
            }
            What::Published { staging, directory } => {
                let from = directory.as_ref().map_or(staging.clone(), |directory| staging.join(directory));
                if !from.is_dir() {
                    return Err(Status::not_found(format!("{} is gone", from.display())));
                }
                let flags = options(staging).unwrap_or_default();
                let has = |flag: &str| flags.split(',').any(|one| one == flag);
                let limits = Limits {
                    read_only: mounted.read_only,
                    no_suid: has("nosuid"),
                    no_dev: has("nodev"),
                    no_exec: has("noexec"),
                };
                sys::bind(&from, &mounted.path, limits)
                    .map_err(|error| failed("binding", &mounted.path, &error))
            }
        }
    }

    /// Starts the process. It returns when the volume can be used, and the one that serves it goes on.
    fn start(&self, place: &Place, path: &Path, arguments: &[String], read_only: bool) -> Answer<()> {
        let mut mount = Command::new(&self.program);
        mount.arg("mount").args(read_only.then_some("--read-only")).args(arguments).args(&self.target);
        mount.arg("--").arg(&place.volume).arg(path).stdin(Stdio::null());
        let done = mount.output().map_err(|error| failed("starting", &self.program, &error))?;
        if done.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        Err(Status::internal(format!("mounting {} on {}: {}", place.volume, path.display(), said.trim())))
    }

    /// Takes everything on a path away; the path stays.
    pub fn clear(&self, path: &Path) -> Answer<()> {
        for _ in 0..16 {
            match state(path) {
                State::Nothing => break,
                // The bytes of a process that is gone are gone from it, too: nobody waits for them.
                found => sys::unmount(path, found == State::Dead)
                    .map_err(|error| failed("unmounting", path, &error))?,
            }
        }
        Ok(())
    }

    /// Takes everything on a path away, and the path: who publishes makes it, and removes it.
    pub fn clear_target(&self, path: &Path) -> Answer<()> {
        self.clear(path)?;
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, &error)),
            _ => Ok(()),
        }
    }

    /// Mounts what died again. What somebody else took away is forgotten when the orchestrator says so, and not made.
    pub fn repair(&self, mounted: &Mounted) -> Answer<()> {
        if state(&mounted.path) != State::Dead {
            return Ok(());
        }
        tracing::warn!(path = %mounted.path.display(), "a mount whose process is gone is mounted again");
        while state(&mounted.path) == State::Dead {
            sys::unmount(&mounted.path, true).map_err(|error| failed("unmounting", &mounted.path, &error))?;
        }
        self.make(mounted)
    }
}

/// What the kernel says of a path.
pub fn state(path: &Path) -> State {
    if options(path).is_none() {
        return State::Nothing;
    }
    let is_dead =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED));
    match sys::space(path) {
        Err(error) if is_dead(&error) => State::Dead,
        _ => State::Alive,
    }
}

/// Options of the mount on top of a path; none if nothing is mounted there.
fn options(path: &Path) -> Option<String> {
    let table = fs::read_to_string(MOUNTS).unwrap_or_default();
    options_in(&table, path)
}

fn options_in(table: &str, path: &Path) -> Option<String> {
    table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let (place, options) = (fields.nth(4)?, fields.next()?);
        (Path::new(&plain(place)) == path).then(|| options.to_owned())
    })
}

/// A path of the table, in which spaces and their like are octal.
fn plain(field: &str) -> String {
    let mut text = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let octal = (*byte == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(value) => {
                text.push(value);
                rest = &after[3..];
            }
            None => {
                text.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A path of an orchestrator: absolute, without tricks, as the kernel calls it.
pub fn checked(text: &str, what: &str) -> Answer<PathBuf> {
    let wrong = |why: &str| Status::invalid_argument(format!("the {what} path {why}"));
    if text.is_empty() {
        return Err(wrong("is missing"));
    }
    let path = Path::new(text);
    if text.len() > PATH_LEN_MAX || text.contains('\0') {
        return Err(wrong("is no path"));
    }
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(wrong("is not absolute"));
    }
    // The last part may be a dead mount: only what is above it is resolved.
    match (path.parent().map(fs::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => Ok(parent.join(name)),
        _ => Ok(path.components().collect()),
    }
}

pub fn failed(what: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_on_top_counts() {
        let table = "25 1 0:22 / /a ro,nosuid - tmpfs t rw\n26 25 0:50 / /a rw,nodev - fuse.stoker stoker:x rw\n\
                     27 1 0:51 / /with\\040space rw - fuse x rw\nbroken\n";
        assert_eq!(options_in(table, Path::new("/a")).as_deref(), Some("rw,nodev"));
        assert_eq!(options_in(table, Path::new("/with space")).as_deref(), Some("rw"));
        assert_eq!(options_in(table, Path::new("/b")), None);
        assert_eq!(plain("\\0\\999x\\134"), "\\0\\999x\\");
    }

    #[test]
    fn paths_are_absolute() {
        for wrong in ["", "a", "./a", "/a/../b", "/a\0b"] {
            assert_eq!(
                checked(wrong, "target").err().unwrap().code(),
                tonic::Code::InvalidArgument,
                "{wrong:?}"
            );
        }
        assert_eq!(checked("/nowhere/at/all/", "target").ok().unwrap(), Path::new("/nowhere/at/all"));
    }

    #[test]
    fn records_survive_the_driver_and_not_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Mounts::open(folder.path(), Path::new("stoker"), &[]).unwrap();
        let staged = |path: &str| Mounted {
            volume_id: "c/v".into(),
            path: path.into(),
            what: What::Staged { place: Place { volume: "v".into(), directory: None }, arguments: vec![] },
            read_only: false,
            single_writer: false,
            boot: String::new(),
        };
        let what = What::Published { staging: "/s".into(), directory: None };
        open().put(&Mounted { what, ..staged("/a") }).ok().unwrap();
        open().put(&staged("/s")).ok().unwrap();
        let all = open().all();
        assert_eq!(all.iter().map(|one| one.path.to_str().unwrap()).collect::<Vec<_>>(), ["/s", "/a"]);
        let mut other = open();
        other.boot = "another".into();
        assert!(other.get(Path::new("/s")).is_none());
        fs::write(open().file(Path::new("/x")), "{").unwrap();
        assert!(open().get(Path::new("/x")).is_none());
        open().remove(Path::new("/a")).ok().unwrap();
        open().remove(Path::new("/a")).ok().unwrap();
        assert!(open().all().is_empty());
    }
}
