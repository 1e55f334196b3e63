//! What the kernel believes, and how it is told that it is wrong.
//!
//! The kernel opens a file by a name that it looked up before, reads no further than the length that it was told, and appends
//! there. The answer to an open says neither. So an open that came by something that is not so any more is refused with ESTALE:
//! the kernel then looks all names of the path up again, hears names and properties as they are, and comes back. It does that once
//! for each call of a program, so the second time a thread is let through.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

/// Threads that were refused and are remembered.
const REFUSED_MAX: usize = 4096;

/// The kernel, as far as it does not ask.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: OnceLock<Notifier>,
    /// Threads that will come back.
    refused: Mutex<HashMap<u32, Since>>,
}

/// What a thread wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// A file or a directory that it has looked up.
    Open,
    /// A change of names in a directory.
    Name,
}

/// What a thread heard last.
#[derive(Clone, Copy)]
enum Since {
    Refused,
    /// And then that a name is not there.
    Missed,
}

impl Kernel {
    /// The longest that an answer is under way to the kernel: it believes names for so much longer than it was told to.
    pub const DELAY_MAX: Duration = Duration::from_secs(10);

    /// From here on it can be told.
    pub fn begin(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Whether a thread is to be refused: not if it was, just now. One that cannot be seen from here, as those of another
    /// container, has the number 0 and would not be known again: it is never refused.
    pub fn refuse(&self, thread: u32, call: Call) -> bool {
        if thread == 0 {
            return false;
        }
        match self.refused.lock().unwrap().remove(&thread) {
            Some(Since::Refused) => return false,
            Some(Since::Missed) if call == Call::Name => return false,
            Some(Since::Missed) | None => {}
        }
        self.note_refused(thread);
        true
    }

    /// A thread hears ESTALE for whatever reason, and comes back.
    pub fn note_refused(&self, thread: u32) {
        let mut refused = self.refused.lock().unwrap();
        if refused.len() >= REFUSED_MAX {
            // Of threads that ended. One that is refused a second time shows its program the error.
            refused.clear();
        }
        refused.insert(thread, Since::Refused);
    }

    /// A thread found no such name. It may come back to make it, and does not to open it.
    pub fn note_missed(&self, thread: u32) {
        if let Some(since) = self.refused.lock().unwrap().get_mut(&thread) {
            *since = Since::Missed;
        }
    }

    /// A thread has what it wanted: if it comes back it is for something else.
    pub fn settle(&self, thread: u32) {
        self.refused.lock().unwrap().remove(&thread);
    }

    /// Asks for the properties of an inode when they are needed next. Answers that are under way do not count.
    pub fn forget_attr(&self, ino: u64) {
        self.forget(ino, -1);
    }

    /// The same of its pages. Never in answer to a request that has some of them locked.
    pub fn forget_pages(&self, ino: u64) {
        self.forget(ino, 0);
    }

    fn forget(&self, ino: u64, offset: i64) {
        let Some(notifier) = self.notifier.get() else { return };
        if let Err(error) = notifier.inval_inode(INodeNo(ino), offset, 0) {
            tracing::debug!("inode {ino}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_refused_once_in_a_row() {
        let kernel = Kernel::default();
        let open = |thread| kernel.refuse(thread, Call::Open);
        assert!(open(7));
        assert!(open(8), "another thread");
        assert!(!open(7), "it came back");
        assert!(open(7), "another call");
        kernel.settle(7);
        assert!(open(7), "it had what it wanted, and this is another call");
        kernel.note_missed(7);
        assert!(open(7), "the name was gone, and this is another call");
        kernel.note_missed(7);
        assert!(!kernel.refuse(7, Call::Name), "it makes the name that was gone");
        assert!(!open(0), "it could not be told from others");
    }

    #[test]
    fn those_who_never_come_back_are_forgotten() {
        let kernel = Kernel::default();
        for thread in 1..=3 * REFUSED_MAX as u32 {
            assert!(kernel.refuse(thread, Call::Open));
        }
        assert!(kernel.refused.lock().unwrap().len() <= REFUSED_MAX);
    }
}
