//! Executors: they do what the engine and the readers ask, on a real drive, and know nothing of records.

mod background;
mod psync;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{Io, OpId, Outcome};
use crate::stats::Wake;
use crate::sys;

pub(crate) use background::Background;
pub(crate) use psync::Psync;
pub(crate) use uring::Uring;

/// Who asked for an I/O.
pub(crate) enum Tag {
    /// The engine.
    Engine(OpId),
    /// A reader; the number finds it again.
    Reader(usize),
}

/// One I/O for an executor.
pub(crate) struct Job {
    pub tag: Tag,
    pub io: Io,
}

/// Does I/O on one drive, for one driver thread.
pub(crate) trait Executor: Send {
    /// Words for people: which engine, with which features.
    fn name(&self) -> String;
    /// Takes a job; it starts with the next [`Executor::kick`] at the latest.
    fn submit(&mut self, job: Job);
    /// Hands everything that was submitted to the kernel.
    fn kick(&mut self);
    /// Collects what has finished, without waiting.
    fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>);
    /// Waits until something finished, a wake came, or the time is over.
    fn wait(&mut self, timeout_ms: u32);
    /// Jobs under way.
    fn in_flight(&self) -> usize;
    /// A segment's file was made or replaced.
    fn segment_changed(&mut self, segment: u32);
}

/// Wakes a driver thread; costs nothing while it is awake.
pub(crate) struct EventWake {
    fd: OwnedFd,
    sleeping: AtomicBool,
}

impl EventWake {
    pub fn new() -> io::Result<Arc<EventWake>> {
        Ok(Arc::new(EventWake { fd: sys::eventfd()?, sleeping: AtomicBool::new(false) }))
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Announces sleep; the caller looks for work once more before it really sleeps.
    pub fn about_to_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

impl Wake for EventWake {
    fn wake(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            sys::eventfd_signal(&self.fd);
        }
    }
}
