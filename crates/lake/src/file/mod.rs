//! A directory of a mounted file system as a lake.
//!
//! The parts: [`name`] knows the escape, [`tree`] finds, makes and removes directories, [`record`] keeps what
//! is known beyond the bytes, [`lock`] keeps writers apart, [`read`], [`write`], [`upload`] (with [`body`]) and [`list`] are
//! the operations. All of them block; this file runs them on the blocking threads of the runtime.

mod body;
mod crash;
mod list;
mod lock;
mod mode;
mod name;
mod read;
mod record;
mod tree;
mod upload;
mod write;

#[cfg(test)]
mod crash_tests;

use std::fs::DirBuilder;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::sync::Semaphore;

use crate::error::{LakeError, Result};
use crate::key::{KEY_BYTES_MAX, check_key};
use crate::types::{Attributes, BoxFuture, Capabilities, ListPage, ObjectInfo, PartTag, PutOptions};
use crate::{Lake, LakeOptions};

pub(crate) use mode::Modes;

use body::Bodies;
use lock::{Locks, Session};
use record::Records;
use tree::Tree;

/// Calls that run at the same time; more wait.
const CALLS_MAX: usize = 64;

/// A directory of a mounted file system.
///
/// # Keys and paths
/// The key `a/b/c` is the file `c` in the directory `a/b` below the root, byte for byte, so that `cp`, `ls` and
/// every other program can use the lake. Names that begin with `.stoker-` are ours. A segment (what lies
/// between slashes) that a directory cannot hold has an escaped name:
///
/// | segment | name |
/// |---|---|
/// | empty, `.`, `..`, with a NUL byte, or beginning with `.stoker-` | `.stoker-n` + the segment, in which `%` is `%25` and NUL is `%00` |
/// | longer than 255 bytes | the same, cut into pieces of 240 bytes: directories `.stoker-p` + piece, at last `.stoker-n` + the rest |
/// | the file `foo` when `foo` is a directory, because there is a key `foo/x` | `.stoker-f` + the segment, escaped and cut in the same way |
///
/// So the key `a//b` is `a/.stoker-n/b`, and the key `a/` is `a/.stoker-n`. A file that once stepped aside for a
/// directory stays under its `.stoker-f` name until it is deleted. If both names exist, the plain one counts.
/// Symbolic links and devices are not objects. Empty directories are not objects either; a delete removes
/// those that it leaves empty.
///
/// # Writes
/// An object is written to `.stoker-tmp`, synced, and renamed; then its directory is synced, and every directory
/// that was made for it. Nobody ever sees half an object. Conditions are checked under a lock that all nodes
/// which mount the file system share, if it has locks (`flock`); a program that is not Stoker does not take it.
///
/// # Who can read it
/// Files and directories are the owner's alone, unless the url says otherwise: with `?umask=0027` an object has
/// the mode of its file, without what the umask takes away.
///
/// # Metadata and etags
/// Attributes and checksum lie in the extended attribute `user.stoker.object` of the file, or in a file of
/// `.stoker-meta` where that is not possible. The etag is made of the checksum and a random number. A file that
/// another program wrote or changed has no attributes and no checksum, and an etag made of inode, time and size.
pub struct FileLake {
    inner: Arc<Inner>,
    calls: Arc<Semaphore>,
}

struct Inner {
    path: PathBuf,
    tree: Tree,
    records: Records,
    /// `None` when the directory cannot be written to.
    writer: Option<Writer>,
    modes: Modes,
    mtime_ns_last: AtomicU64,
}

struct Writer {
    tmp: OwnedFd,
    locks: Locks,
    session: Session,
    bodies: Bodies,
}

impl FileLake {
    /// Opens a directory. Removes the temporary files of dead processes.
    pub async fn open(path: &Path, options: &LakeOptions) -> Result<FileLake> {
        let (path, options) = (path.to_path_buf(), options.clone());
        let inner = tokio::task::spawn_blocking(move || Inner::open(path, &options))
            .await
            .map_err(|error| LakeError::unavailable(format!("the runtime stopped: {error}")))??;
        Ok(FileLake { inner: Arc::new(inner), calls: Arc::new(Semaphore::new(CALLS_MAX)) })
    }

    /// Runs a blocking call. Once begun it goes on to its end even if nobody waits for it any more.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.calls.clone().acquire_owned().await.expect("the semaphore is never closed");
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || {
            let answer = work(&inner);
            drop(permit);
            answer
        })
        .await
        .map_err(|error| LakeError::unavailable(format!("the runtime stopped: {error}")))?
    }
}

impl Inner {
    fn open(path: PathBuf, options: &LakeOptions) -> Result<Inner> {
        let modes = options.file_umask.as_deref().map(Modes::parse).transpose()?.unwrap_or_default();
        if options.create_root {
            let make = DirBuilder::new().recursive(true).mode(modes.directory().as_raw_mode()).create(&path);
            make.map_err(|error| fail("make", path.display(), error))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOENT => LakeError::not_found(format!(
                "the lake directory {} does not exist; mount the file system or make the directory",
                path.display()
            )),
            error => fail("open", path.display(), error.into()),
        })?;
        let open = |error| fail("open", path.display(), error);
        let writer = match Writer::open(&root, modes) {
            Ok(writer) => Some(writer),
            Err(error) if is_read_only(&error) => None,
            Err(error) => return Err(open(error)),
        };
        if rustix::fs::statat(&root, ".STOKER-TMP", rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(LakeError::invalid(format!(
                "{} does not tell upper from lower case; keys that differ only in case would overwrite each other",
                path.display()
            )));
        }
        let records = Records::new(root.try_clone().map_err(open)?, options.file_sidecar_only, modes);
        Ok(Inner {
            path,
            tree: Tree::new(root, modes),
            records,
            writer,
            modes,
            mtime_ns_last: AtomicU64::new(0),
        })
    }

    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| {
            LakeError::denied(format!(
                "{} cannot be written to; mount it writable or change its permissions",
                self.path.display()
            ))
        })
    }

    /// A time for a new file that no other file of this process has.
    fn modified_now(&self) -> SystemTime {
        let now_ns = now_ns();
        let mut last = self.mtime_ns_last.load(Ordering::Relaxed);
        loop {
            let next = now_ns.max(last + 1);
            match self.mtime_ns_last.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return SystemTime::UNIX_EPOCH + Duration::from_nanos(next),
                Err(seen) => last = seen,
            }
        }
    }
}

impl Writer {
    fn open(root: &OwnedFd, modes: Modes) -> io::Result<Writer> {
        let tmp = lock::open_tmp(root, modes)?;
        let locks = Locks::open(&tmp, modes)?;
        let session = Session::open(tmp.try_clone()?, now_s(), modes)?;
        Ok(Writer { tmp, locks, session, bodies: Bodies::new(lock::random_u64()?) })
    }
}

impl Lake for FileLake {
    fn head<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<ObjectInfo>>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            self.call(move |inner| inner.head(&key)).await
        })
    }

    fn get<'a>(
        &'a self,
        key: &'a [u8],
        range: Range<u64>,
        if_match: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            let if_match = if_match.map(str::to_owned);
            self.call(move |inner| inner.get(&key, range, if_match.as_deref())).await
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a [u8],
        body: Vec<Bytes>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            self.call(move |inner| inner.put(&key, &body, &options)).await
        })
    }

    fn upload_begin<'a>(&'a self, key: &'a [u8], attributes: Attributes) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            self.call(move |inner| inner.upload_begin(&key, attributes)).await
        })
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        number: u32,
        body: Vec<Bytes>,
    ) -> BoxFuture<'a, Result<PartTag>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            let upload = upload.to_owned();
            self.call(move |inner| inner.upload_part(&key, &upload, number, &body)).await
        })
    }

    fn upload_parts<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<Vec<PartTag>>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            let upload = upload.to_owned();
            self.call(move |inner| inner.upload_parts(&key, &upload)).await
        })
    }

    fn upload_complete<'a>(
        &'a self,
        key: &'a [u8],
        upload: &'a str,
        parts: Vec<PartTag>,
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            let upload = upload.to_owned();
            self.call(move |inner| inner.upload_complete(&key, &upload, &parts, &options)).await
        })
    }

    fn upload_abort<'a>(&'a self, key: &'a [u8], upload: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            let upload = upload.to_owned();
            self.call(move |inner| inner.upload_abort(&key, &upload)).await
        })
    }

    fn copy<'a>(
        &'a self,
        from: &'a [u8],
        if_match: &'a str,
        to: &'a [u8],
        options: PutOptions,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let (from, to) = (check_key(from)?.to_vec(), check_key(to)?.to_vec());
            let if_match = if_match.to_owned();
            self.call(move |inner| inner.copy(&from, &if_match, &to, &options)).await
        })
    }

    fn delete<'a>(&'a self, key: &'a [u8], if_match: Option<&'a str>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let key = check_key(key)?.to_vec();
            let if_match = if_match.map(str::to_owned);
            self.call(move |inner| inner.delete(&key, if_match.as_deref())).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        delimiter: Option<u8>,
        limit: usize,
    ) -> BoxFuture<'a, Result<ListPage>> {
        Box::pin(async move {
            let (prefix, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
            self.call(move |inner| inner.list(&prefix, after.as_deref(), delimiter, limit)).await
        })
    }

    fn capabilities(&self) -> Capabilities {
        let shared = self.inner.writer.as_ref().is_some_and(|writer| writer.locks.are_shared());
        Capabilities {
            part_bytes_min: 1,
            part_bytes_max: 1 << 40,
            parts_max: upload::PARTS_MAX,
            put_bytes_max: 1 << 40,
            conditional_put: shared,
            conditional_complete: shared,
            checksums: true,
            copy_bytes_max: u64::MAX,
            key_bytes_max: KEY_BYTES_MAX,
            meta_bytes_max: usize::MAX,
        }
    }

    fn describe(&self) -> String {
        format!("file://{}", self.inner.path.display())
    }
}

/// An error of the file system, in the caller's kinds.
fn fail(action: &str, what: impl std::fmt::Display, error: io::Error) -> LakeError {
    let message = format!("cannot {action} {what}: {error}");
    if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() {
        return LakeError::invalid(message);
    }
    match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::DQUOT) => LakeError::full(message),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => LakeError::denied(message),
        Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ | Errno::FBIG | Errno::XDEV | Errno::LOOP) => {
            LakeError::invalid(message)
        }
        Some(Errno::MFILE | Errno::NFILE | Errno::BUSY | Errno::AGAIN) => LakeError::busy(message),
        _ => LakeError::unavailable(message),
    }
}

/// An error about one key.
fn fail_key<'k>(action: &'k str, key: &'k [u8]) -> impl Fn(io::Error) -> LakeError + 'k {
    move |error| fail(action, format_args!("`{}`", String::from_utf8_lossy(key)), error)
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ROFS | Errno::ACCESS | Errno::PERM))
}

#[expect(clippy::disallowed_methods, reason = "files carry the time at which they were written")]
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1)
}

fn now_s() -> i64 {
    (now_ns() / 1_000_000_000) as i64
}
