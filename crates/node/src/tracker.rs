//! Counts work under way, so that a stop can wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Default)]
struct State {
    count: AtomicUsize,
    idle: Notify,
}

/// Counts.
#[derive(Clone, Default)]
pub(crate) struct Tracker {
    state: Arc<State>,
}

/// One piece of work; ends when dropped.
pub(crate) struct Work {
    state: Arc<State>,
}

impl Tracker {
    pub fn begin(&self) -> Work {
        self.state.count.fetch_add(1, Ordering::AcqRel);
        Work { state: self.state.clone() }
    }

    /// Waits until nothing is under way.
    pub async fn idle(&self) {
        loop {
            let notified = self.state.idle.notified();
            if self.state.count.load(Ordering::Acquire) == 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.state.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.idle.notify_waiters();
        }
    }
}
