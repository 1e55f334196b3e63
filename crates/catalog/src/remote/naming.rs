//! Names for the commits of a client: numbers that rise, and the lowest that is still waited for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::sessions::SESSION_COMMITS_MAX;
use crate::error::{CatalogError, Result};

/// Hands out names, no more at a time than a server keeps.
#[derive(Debug)]
pub(super) struct Naming {
    state: Arc<Mutex<State>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    client: u128,
    next: u64,
    waiting: BTreeSet<u64>,
}

/// The name of a commit that is waited for, as long as this lives.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) client: u128,
    pub(super) number: u64,
    state: Arc<Mutex<State>>,
    _room: OwnedSemaphorePermit,
}

impl Naming {
    pub(super) fn new(client: u128) -> Naming {
        let state = State { client, next: 0, waiting: BTreeSet::new() };
        // The lowest may wait long while others come and go, so numbers in use span more than their count.
        let room = Semaphore::new(usize::try_from(SESSION_COMMITS_MAX / 4).expect("small"));
        Naming { state: Arc::new(Mutex::new(state)), room: Arc::new(room) }
    }

    /// The client under which commits are sent now.
    pub(super) fn client(&self) -> u128 {
        lock(&self.state).client
    }

    /// A name that no commit had; `None` while the lowest number in use is too far below.
    pub(super) async fn name(&self) -> Result<Option<Name>> {
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| CatalogError::closed())?;
        let mut state = lock(&self.state);
        let lowest = state.waiting.first().copied().unwrap_or(state.next);
        if state.next - lowest >= SESSION_COMMITS_MAX {
            return Ok(None);
        }
        let (client, number) = (state.client, state.next);
        state.next += 1;
        state.waiting.insert(number);
        Ok(Some(Name { client, number, state: Arc::clone(&self.state), _room: room }))
    }

    /// The server forgot this client: later names have another one. Numbers go on, so that none is used twice.
    pub(super) fn rename(&self, gone: u128) {
        let mut state = lock(&self.state);
        if state.client == gone {
            state.client = gone.wrapping_add(1);
        }
    }
}

impl Name {
    /// The lowest number that is waited for.
    pub(super) fn floor(&self) -> u64 {
        let state = lock(&self.state);
        state.waiting.first().copied().unwrap_or(state.next)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        lock(&self.state).waiting.remove(&self.number);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Nothing in here panics half way through a change.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
