//! Locks as the kernel asks for them. (D193)
//!
//! The library does not pass on whether a program called `flock` or `fcntl`; what the thread is waiting in says so, and where that cannot be
//! seen a lock is taken as both. Nor does it tell that a program was called away by a signal, and the kernel waits for the answer all
//! the same: whether a signal is there that would be handled is looked up while somebody waits.

use std::collections::HashMap;
use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use stoker_files::{Errno, Files, Lock, LockHeld, LockKind, LockSpace, Result};
use tokio::time::Instant;

use crate::adapter::Adapter;
use crate::convert;

/// The last byte that the kernel has a number for stands for all that will ever be there.
const END: u64 = i64::MAX as u64;

/// Times that a thread is looked at which is just about to go to sleep.
const LOOKS: usize = 30;

/// After this time of waiting a thread that cannot be seen hears EINTR.
const UNSEEN_WAIT: Duration = Duration::from_secs(30);

/// A call of a program.
pub(crate) struct Asked {
    pub owner: LockOwner,
    pub start: u64,
    pub end: u64,
    pub kind: i32,
    pub pid: u32,
}

impl Asked {
    /// The lock, and in which spaces it is to be taken: one, or both if it cannot be told which one is meant.
    fn lock(&self, thread: u32) -> Result<(Lock, &'static [LockSpace])> {
        let kind = match self.kind {
            libc::F_RDLCK => Some(LockKind::Shared),
            libc::F_WRLCK => Some(LockKind::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(Errno::EINVAL),
        };
        let is_whole = self.start == 0 && self.end >= END;
        let spaces: &[LockSpace] = match is_whole.then(|| is_in_flock(thread)) {
            Some(Some(true)) => &[LockSpace::Files],
            Some(None) => &[LockSpace::Files, LockSpace::Ranges],
            _ => &[LockSpace::Ranges],
        };
        let end = if self.end >= END { u64::MAX } else { self.end };
        let lock =
            Lock { space: spaces[0], owner: self.owner.0, pid: self.pid, kind, start: self.start, end };
        Ok((lock, spaces))
    }
}

/// Whether a thread is in a call of `flock`; none if that cannot be seen, as of threads of another container.
fn is_in_flock(thread: u32) -> Option<bool> {
    let path = format!("/proc/{thread}/syscall");
    for look in 0..LOOKS {
        let text = fs::read_to_string(&path).ok()?;
        let number = text.split_whitespace().next()?;
        if number != "running" {
            return Some(number.parse() == Ok(libc::SYS_flock));
        }
        // It is about to go to sleep.
        match look {
            0..10 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Whether a signal waits for a thread that it would handle, or end by; or the thread is gone. Of one that cannot be seen nobody knows: it
/// is called away from time to time, so that it can be killed.
fn is_called_away(thread: u32, since: Instant) -> bool {
    if thread == 0 {
        return since.elapsed() >= UNSEEN_WAIT;
    }
    let text = match fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(text) => text,
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound,
    };
    let mask = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

/// Takes or gives back a lock in all of these spaces, or in none.
async fn lock_in(
    files: &Files,
    ino: u64,
    lock: Lock,
    spaces: &[LockSpace],
    is_called_away: Option<&(dyn Fn() -> bool + Sync)>,
) -> Result<()> {
    for (at, space) in spaces.iter().enumerate() {
        let done = files.lock(ino, Lock { space: *space, ..lock }, is_called_away).await;
        if done.is_err() && lock.kind.is_some() {
            for space in &spaces[..at] {
                let _ = files.lock(ino, Lock { space: *space, kind: None, ..lock }, None).await;
            }
        }
        done?;
    }
    Ok(())
}

/// Who locked through which descriptor. The kernel tells of the end of an owner only if it keeps the lock itself; of the others, those
/// of a descriptor (`F_OFD_SETLK`) for example, it tells that the descriptor is gone.
#[derive(Default)]
pub(crate) struct Lockers(Mutex<HashMap<u64, Vec<Locker>>>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Locker {
    handle: u64,
    space: LockSpace,
    owner: u64,
}

impl Lockers {
    fn note(&self, ino: u64, locker: Locker) {
        let mut all = self.0.lock().unwrap();
        let of_file = all.entry(ino).or_default();
        if !of_file.contains(&locker) {
            of_file.push(locker);
        }
    }

    /// Takes out whom this is about.
    fn take(&self, ino: u64, is_it: impl Fn(&Locker) -> bool) -> Vec<Locker> {
        let mut all = self.0.lock().unwrap();
        let Some(of_file) = all.get_mut(&ino) else { return Vec::new() };
        let taken = of_file.extract_if(.., |locker| is_it(locker)).collect();
        if of_file.is_empty() {
            all.remove(&ino);
        }
        taken
    }
}

impl Adapter {
    pub(crate) fn test_lock(&self, req: &Request, ino: INodeNo, asked: Asked, reply: ReplyLock) {
        let found = asked.lock(req.pid()).and_then(|(lock, _)| {
            // Only `fcntl` asks.
            let lock = Lock { space: LockSpace::Ranges, ..lock };
            self.wait(self.files.test_lock(ino.0, lock))
        });
        match found {
            Ok(None) => reply.locked(asked.start, asked.end, libc::F_UNLCK, 0),
            Ok(Some(LockHeld { start, end, kind, pid, is_own })) => {
                let kind = if kind == LockKind::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                // A process of another machine has no number here.
                reply.locked(start, end.min(END), kind, if is_own { pid } else { 0 });
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    pub(crate) fn set_lock(
        &self,
        req: &Request,
        (ino, fh): (INodeNo, FileHandle),
        asked: Asked,
        may_wait: bool,
        reply: ReplyEmpty,
    ) {
        let (thread, ino) = (req.pid(), ino.0);
        let (lock, spaces) = match asked.lock(thread) {
            Ok(found) => found,
            Err(errno) => return reply.error(convert::errno(errno)),
        };
        let (files, kernel) = (self.files.clone(), self.kernel.clone());
        let settle = move |done: Result<()>| {
            if done.is_ok() && lock.kind.is_some() {
                // What the one before wrote is read, not what the kernel has.
                if files.has_old_pages(ino) {
                    kernel.forget_pages(ino);
                }
                kernel.forget_attr(ino);
                files.forget_told(ino);
            }
            match done {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(convert::errno(errno)),
            }
        };
        if lock.kind.is_none() {
            return settle(self.wait(lock_in(&self.files, ino, lock, spaces, None)));
        }
        for space in spaces {
            self.lockers.note(ino, Locker { handle: fh.0, space: *space, owner: lock.owner });
        }
        // The threads of the session have other requests to answer: that of whoever gives the lock back, and reads of pages that are
        // to be forgotten.
        let files = self.files.clone();
        self.runtime.spawn(async move {
            let since = Instant::now();
            let is_called_away = || is_called_away(thread, since);
            let waits = may_wait.then_some(&is_called_away as &(dyn Fn() -> bool + Sync));
            let done = lock_in(&files, ino, lock, spaces, waits).await;
            tokio::task::spawn_blocking(move || settle(done));
        });
    }

    /// A process closed a descriptor: it has no locks of ranges on the file any more.
    pub(crate) fn end_locks_of(&self, ino: u64, owner: LockOwner) {
        self.end_lockers(ino, |locker| (locker.space, locker.owner) == (LockSpace::Ranges, owner.0));
    }

    /// The last copy of a descriptor is closed.
    pub(crate) fn end_locks_through(&self, ino: u64, fh: FileHandle) {
        self.end_lockers(ino, |locker| locker.handle == fh.0);
    }

    fn end_lockers(&self, ino: u64, is_it: impl Fn(&Locker) -> bool) {
        for locker in self.lockers.take(ino, is_it) {
            self.wait(self.files.end_locks(ino, locker.space, locker.owner));
        }
    }
}
