//! Listing keys in byte order.
//!
//! The tree is walked depth first, one directory after another, with the entries of each directory in the order
//! of the keys below them: a file `a-b` comes before the directory `a`, whose keys begin with `a/`. In memory are
//! the entries of the directories on the way down, in open descriptors only one of them.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::name::{Meaning, Place, meaning, segment_of};
use super::read::etag;
use super::record::Identity;
use super::tree::{descend, open_dir, open_file};
use super::{Inner, fail_key};
use crate::error::{LakeError, Result};
use crate::types::{ListPage, ObjectInfo};

/// Most entries of a page.
const LIMIT_MAX: usize = 10_000;
/// A key of the greatest length, escaped, has fewer pieces.
const PIECES_MAX: usize = 16;
/// How often a listing starts again because directories vanish under it.
const TRIES_MAX: usize = 10;

impl Inner {
    pub(super) fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> Result<ListPage> {
        let fail = fail_key("list", prefix);
        if limit == 0 {
            return Err(LakeError::invalid("a listing of nothing; ask for at least one entry"));
        }
        for _ in 0..TRIES_MAX {
            let walk = Walk {
                inner: self,
                prefix,
                after,
                delimiter,
                limit: limit.min(LIMIT_MAX),
                page: ListPage::default(),
                last: None,
            };
            match walk.run() {
                Ok(page) => return Ok(page),
                Err(Stop::Io(error)) => return Err(fail(error)),
                Err(Stop::Moved | Stop::Full) => {}
            }
        }
        Err(LakeError::busy("directories vanish while they are listed"))
    }
}

/// Why a walk ends early.
enum Stop {
    /// The page is full.
    Full,
    /// A directory was removed or moved while it was read.
    Moved,
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Stop {
        Stop::Io(error.into())
    }
}

struct Walk<'a> {
    inner: &'a Inner,
    prefix: &'a [u8],
    after: Option<&'a [u8]>,
    delimiter: Option<u8>,
    limit: usize,
    page: ListPage,
    /// What the page ends with.
    last: Option<Vec<u8>>,
}

/// One segment below a directory: a file, or a directory of keys that go on.
struct Entry {
    /// The segment; with a slash if it is a directory.
    order: Vec<u8>,
    path: Vec<Vec<u8>>,
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.order.last() == Some(&b'/')
    }
}

impl Walk<'_> {
    fn run(mut self) -> std::result::Result<ListPage, Stop> {
        let root = self.inner.tree.root()?;
        match self.dir(root, &mut Vec::new()) {
            Ok(_) => Ok(self.page),
            Err(Stop::Full) => {
                self.page.next = self.last;
                Ok(self.page)
            }
            Err(stop) => Err(stop),
        }
    }

    /// Walks the directory whose keys begin with `key`, and gives the directory back.
    fn dir(&mut self, mut dir: OwnedFd, key: &mut Vec<u8>) -> std::result::Result<OwnedFd, Stop> {
        let entries = read_entries(&dir, |order| {
            // Most of a large tree is not read at all.
            let len = key.len();
            key.extend_from_slice(order);
            let wanted = self.may_hold(key, order.last() == Some(&b'/'));
            key.truncate(len);
            wanted
        })?;
        let len = key.len();
        for entry in entries {
            key.extend_from_slice(&entry.order);
            if self.may_hold(key, entry.is_dir()) {
                if entry.is_dir() {
                    dir = self.subdir(dir, &entry, key)?;
                } else {
                    self.file(&dir, &entry, key)?;
                }
            }
            key.truncate(len);
        }
        Ok(dir)
    }

    fn subdir(
        &mut self,
        dir: OwnedFd,
        entry: &Entry,
        key: &mut Vec<u8>,
    ) -> std::result::Result<OwnedFd, Stop> {
        let group = self.group(key);
        if group.as_ref().is_some_and(|group| !self.is_new(group)) {
            return Ok(dir);
        }
        let parent = dir_identity(&dir)?;
        let Some(child) = open_child(&dir, &entry.path)? else { return Ok(dir) };
        // Only one directory is open at a time, however deep the keys are.
        drop(dir);
        let child = if let Some(group) = group {
            let (child, has_any) = has_any(child)?;
            if has_any {
                self.push_group(group)?;
            }
            child
        } else {
            self.dir(child, key)?
        };
        let mut dir = child;
        for _ in &entry.path {
            dir = open_dir(&dir, b"..")?.ok_or(Stop::Moved)?;
        }
        if dir_identity(&dir)? != parent {
            return Err(Stop::Moved);
        }
        Ok(dir)
    }

    fn file(&mut self, dir: &OwnedFd, entry: &Entry, key: &[u8]) -> std::result::Result<(), Stop> {
        if let Some(group) = self.group(key) {
            return self.push_group(group);
        }
        let Some(info) = self.info(dir, entry, key)? else { return Ok(()) };
        self.room()?;
        self.page.objects.push(info);
        self.last = Some(key.to_vec());
        Ok(())
    }

    fn info(&self, dir: &OwnedFd, entry: &Entry, key: &[u8]) -> io::Result<Option<ObjectInfo>> {
        let (identity, record) = match open_file(dir, &entry.path) {
            Ok(Some(file)) => {
                let identity = Identity::of(&rustix::fs::fstat(&file)?);
                let record = self.inner.records.read(&file, &identity)?;
                (identity, record)
            }
            Ok(None) => return Ok(None),
            // One file that we may not read does not spoil the listing.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let name = entry.path.last().expect("an entry has a name");
                let Some(dir) = descend(dir, &entry.path)? else { return Ok(None) };
                (Identity::of(&rustix::fs::statat(&dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?), None)
            }
            Err(error) => return Err(error),
        };
        Ok(Some(ObjectInfo {
            key: key.to_vec(),
            size: identity.size,
            etag: etag(&identity, record.as_ref()),
            modified_ms: identity.modified_ms(),
            attributes: None,
            crc64: record.map(|record| record.crc64),
        }))
    }

    /// The group that a key, or every key that begins with it, belongs to.
    fn group(&self, key: &[u8]) -> Option<Vec<u8>> {
        let delimiter = self.delimiter?;
        let rest = key.strip_prefix(self.prefix)?;
        let at = rest.iter().position(|&byte| byte == delimiter)?;
        Some(key[..self.prefix.len() + at + 1].to_vec())
    }

    fn push_group(&mut self, group: Vec<u8>) -> std::result::Result<(), Stop> {
        if !self.is_new(&group) {
            return Ok(());
        }
        self.room()?;
        self.page.prefixes.push(group.clone());
        self.last = Some(group);
        Ok(())
    }

    fn is_new(&self, group: &Vec<u8>) -> bool {
        self.after.is_none_or(|after| group.as_slice() > after) && self.last.as_ref() != Some(group)
    }

    fn room(&self) -> std::result::Result<(), Stop> {
        if self.page.objects.len() + self.page.prefixes.len() == self.limit {
            Err(Stop::Full)
        } else {
            Ok(())
        }
    }

    /// The listing wants this key or, of a directory, perhaps one that begins with it.
    fn may_hold(&self, key: &[u8], is_dir: bool) -> bool {
        let in_prefix = key.starts_with(self.prefix) || is_dir && self.prefix.starts_with(key);
        let is_after = match self.after {
            Some(after) => key > after || is_dir && after.starts_with(key),
            None => true,
        };
        in_prefix && is_after
    }
}

/// The entries of a directory that `wanted` wants, in the order of their keys.
fn read_entries(dir: &OwnedFd, mut wanted: impl FnMut(&[u8]) -> bool) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut beside = Vec::new();
    collect(dir, &mut Vec::new(), &mut |path, is_dir| {
        let Some((mut order, place)) = segment_of(path) else { return };
        if is_dir {
            order.push(b'/');
        }
        if !wanted(&order) {
            return;
        }
        match (place, is_dir) {
            (Place::Own, _) => entries.push(Entry { order, path: path.to_vec() }),
            (Place::Beside, false) => beside.push(Entry { order, path: path.to_vec() }),
            // A directory is never beside anything.
            (Place::Beside, true) => {}
        }
    })?;
    if !beside.is_empty() {
        let own: HashSet<&[u8]> = entries.iter().map(|entry| entry.order.as_slice()).collect();
        beside.retain(|entry| !own.contains(entry.order.as_slice()));
        entries.append(&mut beside);
    }
    entries.sort_unstable_by(|a, b| a.order.cmp(&b.order));
    Ok(entries)
}

/// Calls `found` for every file and directory, also for those whose long names continue below.
fn collect(
    dir: &OwnedFd,
    above: &mut Vec<Vec<u8>>,
    found: &mut impl FnMut(&[Vec<u8>], bool),
) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            },
            kind => kind,
        };
        let is_dir = match kind {
            FileType::Directory => true,
            FileType::RegularFile => false,
            _ => continue,
        };
        above.push(name.to_vec());
        if is_dir && matches!(meaning(name), Meaning::Piece(_)) {
            if above.len() <= PIECES_MAX
                && let Some(child) = open_dir(dir, name)?
            {
                collect(&child, above, found)?;
            }
        } else {
            found(above, is_dir);
        }
        above.pop();
    }
    Ok(())
}

/// A directory holds an object, at whatever depth. Programs that are not Stoker leave empty directories.
fn has_any(dir: OwnedFd) -> std::result::Result<(OwnedFd, bool), Stop> {
    let entries = read_entries(&dir, |_| true)?;
    if entries.iter().any(|entry| !entry.is_dir()) {
        return Ok((dir, true));
    }
    let mut dir = dir;
    for entry in entries {
        let own = dir_identity(&dir)?;
        let Some(child) = open_child(&dir, &entry.path)? else { continue };
        drop(dir);
        let (child, has_any) = has_any(child)?;
        dir = child;
        for _ in &entry.path {
            dir = open_dir(&dir, b"..")?.ok_or(Stop::Moved)?;
        }
        if dir_identity(&dir)? != own {
            return Err(Stop::Moved);
        }
        if has_any {
            return Ok((dir, true));
        }
    }
    Ok((dir, false))
}

fn open_child(dir: &OwnedFd, path: &[Vec<u8>]) -> io::Result<Option<OwnedFd>> {
    match descend(dir, path)? {
        Some(dir) => open_dir(&dir, path.last().expect("an entry has a name")),
        None => Ok(None),
    }
}

fn dir_identity(dir: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}
