//! The directories of a file lake: finding the file of a key, making and removing directories.
//!
//! Every step opens one name relative to an open directory and follows no symbolic link: keys of any depth
//! work, and no key leads out of the root. Nothing else may make or remove directories of the tree.
//!
//! A file whose place a directory needs moves beside, once and for ever: there is no way back until it is
//! deleted. So a reader that looks at a file's own place first and beside then always finds it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::crash;
use super::lock::Locks;
use super::mode::Modes;
use super::name::{Place, names};
use super::record::Identity;

/// A directory that was made less than this ago may not be durable yet in its parent.
const DIR_YOUNG_S: i64 = 120;

/// The root of a file lake.
pub(super) struct Tree {
    root: OwnedFd,
    modes: Modes,
}

/// A file that was found.
pub(super) struct Found {
    pub file: OwnedFd,
    pub identity: Identity,
    pub place: Place,
}

impl Tree {
    pub fn new(root: OwnedFd, modes: Modes) -> Tree {
        Tree { root, modes }
    }

    /// A descriptor of the root.
    pub fn root(&self) -> io::Result<OwnedFd> {
        self.root.try_clone()
    }

    /// The directory of a key's last segment; `None` if there is none.
    pub fn parent(&self, key: &[u8]) -> io::Result<Option<OwnedFd>> {
        let mut dir = self.root()?;
        for segment in dir_segments(key) {
            for name in names(segment, Place::Own) {
                match open_dir(&dir, &name)? {
                    Some(child) => dir = child,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(dir))
    }

    /// The directory of a key's last segment, made durable if it has to be made.
    ///
    /// Must be called without a lock: a file that is in the way is moved under the lock of its own key.
    pub fn make_parent(&self, key: &[u8], locks: &Locks, now_s: i64) -> io::Result<OwnedFd> {
        let mut dir = self.root()?;
        let mut end = 0;
        for segment in dir_segments(key) {
            end += segment.len();
            let path = names(segment, Place::Own);
            let (last, pieces) = path.split_last().expect("a segment has a name");
            let above = dir.try_clone()?;
            for piece in pieces {
                dir = make_dir(&dir, piece, now_s, self.modes)?;
            }
            if is_file(&dir, last)? {
                let beside = names(segment, Place::Beside);
                let target = descend_making(&above, &beside, now_s, self.modes)?;
                let beside = beside.last().expect("a segment has a name");
                move_beside((&dir, last), (&target, beside), locks, &key[..end], self.modes)?;
            }
            dir = make_dir(&dir, last, now_s, self.modes)?;
            end += 1;
        }
        Ok(dir)
    }

    /// Removes the directories of a key that are empty, from below, never the root.
    pub fn prune(&self, key: &[u8]) -> io::Result<()> {
        let mut above = Vec::new();
        for segment in dir_segments(key) {
            above.extend(names(segment, Place::Own));
        }
        for place in [Place::Beside, Place::Own] {
            let mut path = names(file_segment(key), place);
            path.pop();
            if !path.is_empty() || place == Place::Own {
                path.splice(0..0, above.iter().cloned());
                self.prune_path(&path)?;
            }
        }
        Ok(())
    }

    fn prune_path(&self, path: &[Vec<u8>]) -> io::Result<()> {
        let mut dir = self.root()?;
        let mut depth = 0;
        for name in path {
            match open_dir(&dir, name)? {
                Some(child) => dir = child,
                None => break,
            }
            depth += 1;
        }
        for name in path[..depth].iter().rev() {
            let Some(parent) = open_dir(&dir, b"..")? else { break };
            match rustix::fs::unlinkat(&parent, name.as_slice(), AtFlags::REMOVEDIR) {
                Ok(()) => crash::point("directory removed"),
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
            dir = parent;
        }
        Ok(())
    }
}

/// Opens the file of a key's last segment in its directory.
pub(super) fn find(dir: &OwnedFd, segment: &[u8]) -> io::Result<Option<Found>> {
    for place in [Place::Own, Place::Beside] {
        if let Some(file) = open_file(dir, &names(segment, place))? {
            let identity = Identity::of(&rustix::fs::fstat(&file)?);
            return Ok(Some(Found { file, identity, place }));
        }
    }
    Ok(None)
}

/// The last segment of a key.
pub(super) fn file_segment(key: &[u8]) -> &[u8] {
    key.rsplit(|&byte| byte == b'/').next().expect("a split has a part")
}

/// The directory and the name behind a path of names. The pieces before the last must exist.
pub(super) fn descend(dir: &OwnedFd, path: &[Vec<u8>]) -> io::Result<Option<OwnedFd>> {
    let mut dir = dir.try_clone()?;
    for name in &path[..path.len() - 1] {
        match open_dir(&dir, name)? {
            Some(child) => dir = child,
            None => return Ok(None),
        }
    }
    Ok(Some(dir))
}

/// Like [`descend`], but makes the directories of the pieces.
pub(super) fn descend_making(
    dir: &OwnedFd,
    path: &[Vec<u8>],
    now_s: i64,
    modes: Modes,
) -> io::Result<OwnedFd> {
    let mut dir = dir.try_clone()?;
    for name in &path[..path.len() - 1] {
        dir = make_dir(&dir, name, now_s, modes)?;
    }
    Ok(dir)
}

/// Opens a directory; `None` if there is no directory of that name.
pub(super) fn open_dir(dir: &impl AsFd, name: &[u8]) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(child) => Ok(Some(child)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory of ours, made durable if it has to be made.
pub(super) fn open_or_make_dir(dir: &OwnedFd, name: &[u8], modes: Modes) -> io::Result<OwnedFd> {
    make_dir(dir, name, i64::MIN, modes)
}

/// Opens a file, which may lie below pieces; `None` if there is no file of that name.
pub(super) fn open_file(dir: &OwnedFd, path: &[Vec<u8>]) -> io::Result<Option<OwnedFd>> {
    let Some(dir) = descend(dir, path)? else { return Ok(None) };
    let name = path.last().expect("a segment has a name");
    // Without NONBLOCK a pipe that somebody put here would hold us for ever.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(&dir, name.as_slice(), flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    Ok((kind == FileType::RegularFile).then_some(file))
}

/// Opens or makes a directory. A directory that another writer has just made is made durable here too, because
/// that writer may not have come so far.
fn make_dir(dir: &OwnedFd, name: &[u8], now_s: i64, modes: Modes) -> io::Result<OwnedFd> {
    if let Some(child) = open_dir(dir, name)? {
        if is_young(&child, now_s)? {
            rustix::fs::fsync(dir)?;
        }
        return Ok(child);
    }
    mkdir(dir, name, modes)?;
    crash::point("directory made");
    rustix::fs::fsync(dir)?;
    match open_dir(dir, name)? {
        Some(child) => Ok(child),
        // Somebody removed it again or put a file there.
        None => Err(Errno::NOENT.into()),
    }
}

/// Makes a directory, if there is none.
fn mkdir(dir: &OwnedFd, name: &[u8], modes: Modes) -> io::Result<()> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        // What the lake was told counts, and not what the process happens to have as its umask.
        Ok(()) => match open_dir(dir, name)? {
            Some(made) => Ok(rustix::fs::fchmod(&made, modes.directory())?),
            None => Ok(()),
        },
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_young(dir: &OwnedFd, now_s: i64) -> io::Result<bool> {
    if now_s == i64::MIN {
        return Ok(false);
    }
    let stat = match rustix::fs::statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME) {
        Ok(stat) => stat,
        Err(Errno::NOSYS) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    Ok(!known || now_s.saturating_sub(stat.stx_btime.tv_sec).abs() < DIR_YOUNG_S)
}

fn is_file(dir: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(true),
            FileType::Directory => Ok(false),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "`{}` is a symbolic link or a device, where a directory has to be",
                    String::from_utf8_lossy(name)
                ),
            )),
        },
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Moves a file out of the way of a directory, under the lock of the file's key, and makes the directory.
fn move_beside(
    (dir, name): (&OwnedFd, &[u8]),
    (target, beside): (&OwnedFd, &[u8]),
    locks: &Locks,
    file_key: &[u8],
    modes: Modes,
) -> io::Result<()> {
    let _lock = locks.key(file_key)?;
    if !is_file(dir, name)? {
        return Ok(());
    }
    rustix::fs::renameat(dir, name, target, beside)?;
    crash::point("file moved beside");
    // Durable before the directory that takes its place can hold anything.
    rustix::fs::fsync(target)?;
    mkdir(dir, name, modes)?;
    rustix::fs::fsync(dir)?;
    Ok(())
}

fn dir_segments(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = key.iter().filter(|&&byte| byte == b'/').count();
    key.split(|&byte| byte == b'/').take(count)
}
