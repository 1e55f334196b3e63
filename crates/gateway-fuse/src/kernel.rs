//! What the kernel believes, and how it is told that it is wrong. (D74)
//!
//! The kernel opens a file by a name that it looked up before, reads no further than the length that it was told, and appends
//! there. The answer to an open says neither. So an open that came by something that is not so any more is refused with ESTALE:
//! the kernel then looks all names of the path up again, hears names and properties as they are, and comes back. It does that once
//! for each call of a program, so the second time a thread is let through: to what it was refused, or to what it was led to since. What
//! else it comes for is another call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

/// Threads that were refused and are remembered.
const REFUSED_MAX: usize = 4096;

/// Inodes that a thread was led to and that are remembered: the last ones of a path, of which a call is about one or two.
const FOUND_MAX: usize = 16;

/// The kernel, as far as it does not ask.
#[derive(Default)]
pub(crate) struct Kernel {
    notifier: OnceLock<Notifier>,
    /// Threads that will come back.
    refused: Mutex<HashMap<u32, Refused>>,
}

/// What a thread wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// A file or a directory that it has looked up.
    Open,
    /// A change of names in a directory.
    Name,
}

/// A thread that was refused.
struct Refused {
    /// What it may come back for: what it was refused, and behind that what it was led to since.
    inos: VecDeque<u64>,
    /// It heard since that a name is not there.
    is_missed: bool,
}

impl Refused {
    fn may_pass(&self, inos: &[u64], call: Call) -> bool {
        (call == Call::Name || !self.is_missed) && inos.iter().any(|ino| self.inos.contains(ino))
    }
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
    pub fn refuse(&self, thread: u32, inos: &[u64], call: Call) -> bool {
        if thread == 0 {
            return false;
        }
        let before = self.refused.lock().unwrap().remove(&thread);
        if before.is_some_and(|refused| refused.may_pass(inos, call)) {
            return false;
        }
        self.note_refused(thread, inos);
        true
    }

    /// A thread hears ESTALE for whatever reason, and comes back for one of these.
    pub fn note_refused(&self, thread: u32, inos: &[u64]) {
        let mut refused = self.refused.lock().unwrap();
        if refused.len() >= REFUSED_MAX {
            // Of threads that ended. One that is refused a second time shows its program the error.
            refused.clear();
        }
        refused.insert(thread, Refused { inos: inos.iter().copied().collect(), is_missed: false });
    }

    /// A thread looked a name up in a directory and found this, or nothing. Then it may come back to make the name, and does not
    /// to open it.
    pub fn note_lookup(&self, thread: u32, parent: u64, found: Option<u64>) {
        let mut refused = self.refused.lock().unwrap();
        let Some(known) = refused.get_mut(&thread) else { return };
        known.is_missed |= found.is_none();
        for ino in [Some(parent), found].into_iter().flatten() {
            if known.inos.contains(&ino) {
                continue;
            }
            if known.inos.len() >= FOUND_MAX {
                known.inos.pop_front();
            }
            known.inos.push_back(ino);
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
        let open = |thread| kernel.refuse(thread, &[1], Call::Open);
        assert!(open(7));
        assert!(open(8), "another thread");
        assert!(!open(7), "it came back");
        assert!(open(7), "another call");
        kernel.settle(7);
        assert!(open(7), "it had what it wanted, and this is another call");
        kernel.note_lookup(7, 5, None);
        assert!(open(7), "the name was gone, and this is another call");
        kernel.note_lookup(7, 5, None);
        assert!(!kernel.refuse(7, &[5], Call::Name), "it makes the name that was gone");
        assert!(!open(0), "it could not be told from others");
    }

    /// It looks the path up again, and then the kernel ends the call by itself, for want of a right for example.
    #[test]
    fn who_does_not_come_back_has_nothing_for_free() {
        let kernel = Kernel::default();
        let open = |ino| kernel.refuse(7, &[ino], Call::Open);
        assert!(open(1));
        kernel.note_lookup(7, 5, Some(1));
        assert!(open(2), "another file, which it came to by a name that it looked up before");
        kernel.note_lookup(7, 5, Some(3));
        assert!(!open(3), "the name leads elsewhere now");
        assert!(open(4));
        for ino in 100..100 + 2 * FOUND_MAX as u64 {
            kernel.note_lookup(7, ino, Some(ino + 1));
        }
        assert!(kernel.refused.lock().unwrap()[&7].inos.len() <= FOUND_MAX);
        assert!(!open(100 + 2 * FOUND_MAX as u64), "a long way");
    }

    #[test]
    fn those_who_never_come_back_are_forgotten() {
        let kernel = Kernel::default();
        for thread in 1..=3 * REFUSED_MAX as u32 {
            assert!(kernel.refuse(thread, &[1], Call::Open));
        }
        assert!(kernel.refused.lock().unwrap().len() <= REFUSED_MAX);
    }
}
