//! What is mounted on this machine: a file for each path, written before the mount is made and removed after it is gone.
//!
//! The mounts themselves are processes of `stoker mount`, which live on when the driver ends. Which of them died while nobody looked is
//! seen by asking the kernel; they are made again on the same path, and what was bound to them is bound anew.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::answer::Answer;
use crate::record::{Place, hash};
use crate::sys::{self, Limits};
use crate::{NodeOptions, TenantDoor, tenants};

/// Mounts on top of each other: one more each time that a mount died under a pod.
const LAYERS_MAX: usize = 4096;
/// Longest path that is taken.
const PATH_LEN_MAX: usize = 4096;
/// Tells boots apart: what was mounted in another one is not mounted any more.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const MOUNTS: &str = "/proc/self/mountinfo";
/// What the source of a mount of ours begins with; its volume follows.
const SOURCE: &str = "stoker:";

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
    Staged {
        place: Place,
        arguments: Vec<String>,
        /// By the token of a user, not as the driver.
        #[serde(default)]
        by_token: bool,
    },
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

/// What a mount shows, and of whom it asks it.
#[derive(Clone, Copy)]
struct Asked<'a> {
    volume: &'a str,
    target: &'a [String],
}

/// The folder of those files, and the program that mounts.
pub struct Mounts {
    folder: PathBuf,
    tokens: PathBuf,
    program: PathBuf,
    target: Vec<String>,
    tenants: Option<TenantDoor>,
    boot: String,
}

impl Mounts {
    /// Opens the folder, and makes it.
    pub fn open(options: &NodeOptions) -> io::Result<Mounts> {
        let (folder, tokens) = (options.state.join("mounts"), options.state.join("tokens"));
        for folder in [&folder, &tokens] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let boot = fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned();
        Ok(Mounts {
            folder,
            tokens,
            program: options.program.clone(),
            target: options.target.clone(),
            tenants: options.tenants.clone(),
            boot,
        })
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
        if let Some(name) = file.file_stem() {
            let _ = fs::remove_file(self.tokens.join(name));
        }
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

    /// A target that shows what is staged on a path, if there is one.
    pub fn shown_from(&self, path: &Path) -> Option<PathBuf> {
        let is_of = |one: &Mounted| matches!(&one.what, What::Published { staging, .. } if staging == path);
        self.all()
            .into_iter()
            .find(|one| is_of(one) && state(&one.path) != State::Nothing)
            .map(|one| one.path)
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

    /// Keeps the token that a path is mounted with, for the process of the mount and for the one after it.
    pub fn put_token(&self, path: &Path, token: &str) -> Answer<()> {
        let (file, new) = (self.token(path), self.token(path).with_extension("new"));
        let write = || {
            let _ = fs::remove_file(&new);
            let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            out.write_all(token.as_bytes())?;
            fs::rename(&new, &file)
        };
        write().map_err(|error| failed("writing", &file, &error))
    }

    fn token(&self, path: &Path) -> PathBuf {
        self.tokens.join(hash(&path.to_string_lossy()))
    }

    /// Forgets one, and its token.
    pub fn remove(&self, path: &Path) -> Answer<()> {
        for file in [self.token(path), self.broken(path), self.file(path)] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("removing", &file, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Mounts what is written down.
    pub fn make(&self, mounted: &Mounted) -> Answer<()> {
        match &mounted.what {
            What::Ephemeral { place, arguments } => {
                let asked = Asked { volume: &place.volume, target: &self.target };
                self.start(asked, &mounted.path, arguments, mounted.read_only)
            }
            What::Staged { place, arguments, by_token } => {
                let of_tenant = match (by_token, &self.tenants) {
                    (false, _) => None,
                    (true, Some(door)) => Some(door.arguments(&self.token(&mounted.path))),
                    (true, None) => {
                        let why = "tokens of users need --tenant-endpoint of this driver";
                        return Err(Status::failed_precondition(why));
                    }
                };
                let asked = match &of_tenant {
                    None => Asked { volume: &place.volume, target: &self.target },
                    Some(target) => Asked { volume: tenants::own_name(&place.volume), target },
                };
                self.start(asked, &mounted.path, arguments, mounted.read_only)
            }
            What::Published { staging, directory } => {
                // Below a mount that is gone is the machine's own disk, which is nobody's volume.
                if state(staging) != State::Alive {
                    return Err(Status::unavailable(format!("{} is not mounted now", staging.display())));
                }
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
    fn start(&self, asked: Asked<'_>, path: &Path, arguments: &[String], read_only: bool) -> Answer<()> {
        let mut mount = Command::new(&self.program);
        mount.arg("mount").args(read_only.then_some("--read-only")).args(arguments).args(asked.target);
        mount.arg("--").arg(asked.volume).arg(path).stdin(Stdio::null());
        let done = mount.output().map_err(|error| failed("starting", &self.program, &error))?;
        if done.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        Err(Status::internal(format!("mounting {} on {}: {}", asked.volume, path.display(), said.trim())))
    }

    /// Takes everything on a path away; the path stays.
    pub fn clear(&self, path: &Path) -> Answer<()> {
        for _ in 0..LAYERS_MAX {
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

    /// True if a mount died, or was taken away because it died and could not be made again since.
    pub fn is_broken(&self, path: &Path) -> bool {
        match state(path) {
            State::Dead => true,
            State::Nothing => self.broken(path).exists(),
            State::Alive => false,
        }
    }

    fn broken(&self, path: &Path) -> PathBuf {
        self.file(path).with_extension("broken")
    }

    /// Mounts what died again. What somebody else took away is forgotten when the orchestrator says so, and not made.
    pub fn repair(&self, mounted: &Mounted) -> Answer<()> {
        if !self.is_broken(&mounted.path) {
            return Ok(());
        }
        // A dead mount gives errors; without it and without another one a pod would write to what is below.
        if let What::Published { staging, .. } = &mounted.what
            && state(staging) != State::Alive
        {
            return Err(Status::unavailable(format!("{} is not mounted now", staging.display())));
        }
        tracing::warn!(path = %mounted.path.display(), "a mount whose process is gone is mounted again");
        let broken = self.broken(&mounted.path);
        fs::write(&broken, []).map_err(|error| failed("writing", &broken, &error))?;
        // What a pod sees is a copy of a published mount: a new one reaches it only on top of the dead one, which stays below it.
        let is_shown = matches!(mounted.what, What::Published { .. });
        while !is_shown && state(&mounted.path) == State::Dead {
            sys::unmount(&mounted.path, true).map_err(|error| failed("unmounting", &mounted.path, &error))?;
        }
        self.make(mounted)?;
        fs::remove_file(&broken).map_err(|error| failed("removing", &broken, &error))
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
    on_top(&table, path).map(|(options, _)| options.to_owned())
}

/// True if what is on top of a path is a mount of a volume of Stoker.
pub fn is_served_by_us(path: &Path) -> bool {
    let table = fs::read_to_string(MOUNTS).unwrap_or_default();
    on_top(&table, path).is_some_and(|(_, source)| source.starts_with(SOURCE))
}

/// Options and source of the mount on top of a path.
fn on_top<'a>(table: &'a str, path: &Path) -> Option<(&'a str, &'a str)> {
    table.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let (place, options) = (fields.nth(4)?, fields.next()?);
        // Behind a mark, for there may be any number of fields before it.
        let source = fields.skip_while(|field| *field != "-").nth(2)?;
        (Path::new(&plain(place)) == path).then_some((options, source))
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
        assert_eq!(on_top(table, Path::new("/a")), Some(("rw,nodev", "stoker:x")));
        assert_eq!(on_top(table, Path::new("/with space")), Some(("rw", "x")));
        assert_eq!(on_top(table, Path::new("/b")), None);
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
        let options = NodeOptions {
            id: "machine".into(),
            state: folder.path().into(),
            program: "stoker".into(),
            target: vec![],
            tenants: None,
            volumes_max: 1,
            registry: None,
            kubelet_socket: None,
        };
        let open = || Mounts::open(&options).unwrap();
        let staged = |path: &str| Mounted {
            volume_id: "c/v".into(),
            path: path.into(),
            what: What::Staged {
                place: Place { volume: "v".into(), directory: None },
                arguments: vec![],
                by_token: false,
            },
            read_only: false,
            single_writer: false,
            boot: String::new(),
        };
        let what = What::Published { staging: "/s".into(), directory: None };
        open().put(&Mounted { what, ..staged("/a") }).ok().unwrap();
        open().put(&staged("/s")).ok().unwrap();
        for token in ["one", "two"] {
            open().put_token(Path::new("/a"), token).ok().unwrap();
        }
        assert_eq!(fs::read_to_string(open().token(Path::new("/a"))).unwrap(), "two");
        let all = open().all();
        assert_eq!(all.iter().map(|one| one.path.to_str().unwrap()).collect::<Vec<_>>(), ["/s", "/a"]);
        let mut other = open();
        other.boot = "another".into();
        assert!(other.get(Path::new("/s")).is_none());
        fs::write(open().file(Path::new("/x")), "{").unwrap();
        assert!(open().get(Path::new("/x")).is_none());
        open().remove(Path::new("/a")).ok().unwrap();
        open().remove(Path::new("/a")).ok().unwrap();
        assert!(open().all().is_empty() && !open().token(Path::new("/a")).exists());
    }
}
