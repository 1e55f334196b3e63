//! Who may change a key, and which temporary files are alive.
//!
//! A writer holds the lock of its key while it looks at the object and gives it its new place. There are a
//! few lock files, shared by many keys; a thread holds at most one at a time, so they cannot deadlock. Between
//! threads of this process a mutex does the same.
//!
//! A session is the directory of temporary files of one open lake. It is locked as long as the lake is open;
//! what a session left that is not locked any more is removed by the next that opens.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::mode::Modes;
use super::name::TMP;
use super::tree::{open_dir, open_or_make_dir};
use super::upload::{KEY_FILE, RECORD_FILE};

const STRIPES: usize = 64;
const LOCK_DIR: &[u8] = b"lock";
const SESSION_PREFIX: &[u8] = b"session-";
const SESSION_LOCK: &[u8] = b"lock";
/// A session that has no lock file yet may be about to make it.
const SESSION_YOUNG_S: i64 = 3600;
/// What the directory of an upload begins with.
pub(super) const UPLOAD_PREFIX: &str = "upload-";
/// An upload that got no part for so long is dropped.
const UPLOAD_AGE_S_MAX: i64 = 30 * 24 * 3600;
/// One that never got a part holds nothing that anybody could miss: whoever began it may have died before it could say so.
const UPLOAD_EMPTY_AGE_S_MAX: i64 = 3600;

/// The locks of all keys of one lake.
pub(super) struct Locks {
    stripes: Vec<Mutex<Option<File>>>,
    dir: OwnedFd,
    /// The file system has no locks; only threads of this process are kept apart.
    local_only: bool,
    modes: Modes,
}

/// Holds one lock until it is dropped.
pub(super) struct KeyLock<'a> {
    stripe: MutexGuard<'a, Option<File>>,
    local_only: bool,
}

impl Locks {
    pub fn open(tmp: &OwnedFd, modes: Modes) -> io::Result<Locks> {
        let dir = open_or_make_dir(tmp, LOCK_DIR, modes)?;
        let stripes = (0..STRIPES).map(|_| Mutex::new(None)).collect();
        let mut locks = Locks { stripes, dir, local_only: false, modes };
        let probe = locks.lock_file(0)?;
        match probe.try_lock() {
            Ok(()) => probe.unlock()?,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(_)) => locks.local_only = true,
        }
        Ok(locks)
    }

    /// Other processes and other nodes that use the same directory are kept apart too.
    pub fn are_shared(&self) -> bool {
        !self.local_only
    }

    /// Waits for the lock of a key.
    pub fn key(&self, key: &[u8]) -> io::Result<KeyLock<'_>> {
        let index = (stoker_format::crc64(key) % STRIPES as u64) as usize;
        let mut stripe = self.stripes[index].lock().unwrap_or_else(PoisonError::into_inner);
        if !self.local_only {
            if stripe.is_none() {
                *stripe = Some(self.lock_file(index)?);
            }
            stripe.as_ref().expect("opened above").lock()?;
        }
        Ok(KeyLock { stripe, local_only: self.local_only })
    }

    fn lock_file(&self, index: usize) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let name = format!("{index:02}");
        Ok(File::from(rustix::fs::openat(&self.dir, name, flags, self.modes.file())?))
    }
}

impl Drop for KeyLock<'_> {
    fn drop(&mut self) {
        if !self.local_only
            && let Some(file) = self.stripe.as_ref()
            && file.unlock().is_err()
        {
            // A closed file holds no lock.
            *self.stripe = None;
        }
    }
}

/// The temporary files of one open lake.
pub(super) struct Session {
    tmp: OwnedFd,
    name: String,
    dir: OwnedFd,
    _lock: File,
    files: AtomicU64,
}

impl Session {
    /// Removes what dead sessions left and begins a new one.
    pub fn open(tmp: OwnedFd, now_s: i64, modes: Modes) -> io::Result<Session> {
        sweep(&tmp, now_s)?;
        loop {
            let name = format!("session-{:016x}", random_u64()?);
            let dir = open_or_make_dir(&tmp, name.as_bytes(), modes)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = File::from(rustix::fs::openat(&dir, SESSION_LOCK, flags, modes.file())?);
            match lock.try_lock() {
                // Another that opens just now took the file for one of the dead before it was locked.
                Err(TryLockError::WouldBlock) => continue,
                Ok(()) if rustix::fs::fstat(&lock)?.st_nlink == 0 => continue,
                // Without locks on this file system no session is ever taken for dead.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            return Ok(Session { tmp, name, dir, _lock: lock, files: AtomicU64::new(0) });
        }
    }

    /// A new temporary file. It is removed when it is dropped, unless it has got a name by then.
    pub fn file(&self) -> io::Result<TempFile> {
        let name = format!("{}", self.files.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let dir = self.dir.try_clone()?;
        let file = File::from(rustix::fs::openat(&dir, &name, flags, Mode::RUSR | Mode::WUSR)?);
        Ok(TempFile { dir, name, file, is_placed: false, stays: false })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Best effort; the next session does it otherwise.
        let _ = remove_tree(&self.tmp, self.name.as_bytes());
    }
}

/// A file that has no key yet.
pub(super) struct TempFile {
    dir: OwnedFd,
    name: String,
    pub file: File,
    is_placed: bool,
    /// It is not removed when it is dropped.
    stays: bool,
}

impl TempFile {
    /// A file that is not temporary, to be given its place.
    pub fn named(dir: OwnedFd, name: String, file: File) -> TempFile {
        TempFile { dir, name, file, is_placed: false, stays: true }
    }

    /// Gives the file its place, atomically, instead of what is there.
    pub fn rename_to(&mut self, dir: &OwnedFd, name: &[u8]) -> io::Result<()> {
        rustix::fs::renameat(&self.dir, &self.name, dir, name)?;
        self.is_placed = true;
        Ok(())
    }

    /// The file has a place.
    pub fn is_placed(&self) -> bool {
        self.is_placed
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.is_placed && !self.stays {
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Opens the directory of temporary files, which is made if need be.
pub(super) fn open_tmp(root: &OwnedFd, modes: Modes) -> io::Result<OwnedFd> {
    open_or_make_dir(root, TMP.as_bytes(), modes)
}

/// Removes a directory of ours with the files in it; one that is gone is fine.
pub(super) fn remove_tree(parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let Some(dir) = open_dir(parent, name)? else { return Ok(()) };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        if entry.file_type() != FileType::Directory {
            match rustix::fs::unlinkat(&dir, entry.file_name(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A number that nobody else has.
pub(super) fn random_u64() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

fn sweep(tmp: &OwnedFd, now_s: i64) -> io::Result<()> {
    for entry in Dir::read_from(tmp)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_session = name.starts_with(SESSION_PREFIX);
        if !is_session && !name.starts_with(UPLOAD_PREFIX.as_bytes()) {
            continue;
        }
        let Some(dir) = open_dir(tmp, name)? else { continue };
        let is_over = match is_session {
            true => is_dead(&dir, now_s)?,
            false if is_empty_upload(&dir)? => age_s(&dir, now_s)? > UPLOAD_EMPTY_AGE_S_MAX,
            false => age_s(&dir, now_s)? > UPLOAD_AGE_S_MAX,
        };
        if is_over {
            remove_tree(tmp, name)?;
        }
    }
    Ok(())
}

/// Nothing is there but what the upload began with.
fn is_empty_upload(dir: &OwnedFd) -> io::Result<bool> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && name != KEY_FILE && name != RECORD_FILE {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_dead(dir: &OwnedFd, now_s: i64) -> io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(dir, SESSION_LOCK, flags, Mode::empty()) {
        Ok(lock) => match File::from(lock).try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(_)) => Ok(false),
        },
        Err(Errno::NOENT) => Ok(age_s(dir, now_s)? > SESSION_YOUNG_S),
        Err(error) => Err(error.into()),
    }
}

fn age_s(dir: &OwnedFd, now_s: i64) -> io::Result<i64> {
    Ok(now_s.saturating_sub(rustix::fs::fstat(dir)?.st_mtime))
}
