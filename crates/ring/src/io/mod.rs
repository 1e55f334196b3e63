//! Executors: they do what the engine and the readers ask, on a real drive, and know nothing of records.

mod background;
#[cfg(feature = "power")]
mod powered;
mod psync;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::engine::{Io, OpId, Outcome};
use crate::stats::Wake;
use crate::sys;

pub(crate) use background::Background;
#[cfg(feature = "power")]
pub use powered::Power;
#[cfg(feature = "power")]
pub(crate) use powered::Powered;
pub(crate) use psync::Psync;
pub(crate) use uring::Uring;
pub use uring::uring_allowed;

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
    /// Collects up to `max` of what has finished, without waiting.
    fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>, max: usize);
    /// Whether something has finished, without waiting.
    fn ready(&mut self) -> bool;
    /// A descriptor that becomes readable when something finishes, for a driver that is a task; None if the wake does.
    fn completion_event(&mut self) -> io::Result<Option<OwnedFd>>;
    /// Waits until something finished, a wake came, or the time is over.
    fn wait(&mut self, timeout_ms: u32);
    /// Jobs under way.
    fn in_flight(&self) -> usize;
    /// A segment's file was made or replaced.
    fn segment_changed(&mut self, segment: u32);
}

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;

/// Wakes a driver, thread or task; costs nothing while it is awake. A wake that comes while it is awake is kept, so that
/// it looks once more before it sleeps.
pub(crate) struct EventWake {
    fd: OwnedFd,
    state: AtomicU8,
    task: Mutex<Option<Waker>>,
}

impl EventWake {
    pub fn new() -> io::Result<Arc<EventWake>> {
        Ok(Arc::new(EventWake { fd: sys::eventfd()?, state: AtomicU8::new(AWAKE), task: Mutex::new(None) }))
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Announces sleep, as a task or as a thread; false if somebody has something new.
    pub fn may_sleep(&self, task: Option<&Waker>) -> bool {
        if let Some(waker) = task {
            let mut known = self.task.lock().unwrap();
            match &mut *known {
                Some(known) => known.clone_from(waker),
                None => *known = Some(waker.clone()),
            }
        }
        self.state.swap(SLEEPING, Ordering::SeqCst) != NOTIFIED
    }

    pub fn awake(&self) {
        self.state.store(AWAKE, Ordering::SeqCst);
    }
}

impl Wake for EventWake {
    fn wake(&self) {
        if self.state.swap(NOTIFIED, Ordering::SeqCst) != SLEEPING {
            return;
        }
        match &*self.task.lock().unwrap() {
            Some(waker) => waker.wake_by_ref(),
            None => sys::eventfd_signal(&self.fd),
        }
    }
}
