//! Locks as the kernel asks for them. (D193)
//!
//! The library does not pass on whether a program called `flock` or `fcntl`; what the thread is waiting in says so. Nor does it
//! tell that a program was called away by a signal, and the kernel waits for the answer all the same: whether a signal is there that
//! would be handled is looked up while somebody waits.

use std::fs;

use fuser::{INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use stoker_files::{Errno, Lock, LockHeld, LockKind, LockSpace, Result};

use crate::adapter::Adapter;
use crate::convert;

/// The last byte that the kernel has a number for stands for all that will ever be there.
const END: u64 = i64::MAX as u64;

/// Times that a thread is looked at which is just about to go to sleep.
const LOOKS: usize = 50;

/// A call of a program.
pub(crate) struct Asked {
    pub owner: LockOwner,
    pub start: u64,
    pub end: u64,
    pub kind: i32,
    pub pid: u32,
}

impl Asked {
    fn lock(&self, thread: u32) -> Result<Lock> {
        let kind = match self.kind {
            libc::F_RDLCK => Some(LockKind::Shared),
            libc::F_WRLCK => Some(LockKind::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(Errno::EINVAL),
        };
        let is_whole = self.start == 0 && self.end >= END;
        let space = if is_whole && is_in_flock(thread) { LockSpace::Files } else { LockSpace::Ranges };
        let end = if self.end >= END { u64::MAX } else { self.end };
        Ok(Lock { space, owner: self.owner.0, pid: self.pid, kind, start: self.start, end })
    }
}

/// Whether a thread is in a call of `flock`. Where that cannot be seen it is taken for one of `fcntl`: then the two stand in each
/// other's way.
fn is_in_flock(thread: u32) -> bool {
    let path = format!("/proc/{thread}/syscall");
    for _ in 0..LOOKS {
        let Ok(text) = fs::read_to_string(&path) else { return false };
        let number = text.split_whitespace().next().unwrap_or_default();
        if number != "running" {
            return number.parse() == Ok(libc::SYS_flock);
        }
        std::thread::yield_now();
    }
    false
}

/// Whether a signal waits for a thread that it would handle, or end by.
fn is_called_away(thread: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{thread}/status")) else { return false };
    let mask = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

impl Adapter {
    pub(crate) fn test_lock(&self, req: &Request, ino: INodeNo, asked: Asked, reply: ReplyLock) {
        let found = asked.lock(req.pid()).and_then(|lock| {
            // Only `fcntl` asks.
            let lock = Lock { space: LockSpace::Ranges, ..lock };
            self.wait(self.files.test_lock(ino.0, lock))
        });
        match found {
            Ok(None) => reply.locked(asked.start, asked.end, libc::F_UNLCK, 0),
            Ok(Some(held)) => {
                let LockHeld { start, end, kind, pid, .. } = held;
                let kind = if kind == LockKind::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                // A process of another machine has no number here.
                let pid = if self.files.is_foreign(&held) { 0 } else { pid };
                reply.locked(start, end.min(END), kind, pid);
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    pub(crate) fn set_lock(
        &self,
        req: &Request,
        ino: INodeNo,
        asked: Asked,
        may_wait: bool,
        reply: ReplyEmpty,
    ) {
        let (thread, ino) = (req.pid(), ino.0);
        let lock = match asked.lock(thread) {
            Ok(lock) => lock,
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
        if !may_wait || lock.kind.is_none() {
            return settle(self.wait(self.files.lock(ino, lock, None)));
        }
        // The threads of the session have other requests to answer, that of whoever gives the lock back for one.
        let files = self.files.clone();
        self.runtime.spawn(async move {
            let is_called_away = || is_called_away(thread);
            let done = files.lock(ino, lock, Some(&is_called_away)).await;
            tokio::task::spawn_blocking(move || settle(done));
        });
    }

    /// A descriptor of a file was closed.
    pub(crate) fn end_locks(&self, ino: u64, owner: LockOwner, spaces: &[LockSpace]) {
        if self.files.has_locks() {
            for space in spaces {
                self.wait(self.files.end_locks(ino, *space, owner.0));
            }
        }
    }
}
