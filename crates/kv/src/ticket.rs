//! What somebody waits for: blocks that are on their way to the volume.

use std::sync::{Arc, Mutex};

use stoker_store::{Result, StoreError};
use tokio::sync::Notify;

/// Counts what is left, and keeps the first error.
#[derive(Default)]
pub(crate) struct Ticket {
    state: Mutex<(usize, Option<StoreError>)>,
    done: Notify,
}

impl Ticket {
    /// For so many.
    pub fn new(count: usize) -> Arc<Ticket> {
        Arc::new(Ticket { state: Mutex::new((count, None)), done: Notify::new() })
    }

    /// One is through.
    pub fn settle(&self, result: &Result<()>) {
        let mut state = self.state.lock().unwrap();
        state.0 = state.0.saturating_sub(1);
        if let Err(fault) = result {
            state.1.get_or_insert_with(|| fault.clone());
        }
        if state.0 == 0 {
            self.done.notify_waiters();
        }
    }

    /// Waits until all are.
    pub async fn wait(&self) -> Result<()> {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            let state = self.state.lock().unwrap().clone();
            match state {
                (0, None) => return Ok(()),
                (0, Some(fault)) => return Err(fault),
                _ => done.await,
            }
        }
    }
}
