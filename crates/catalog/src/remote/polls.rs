//! What clients watch: for each of them a set of prefixes, and those of them that changed since its last poll.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::error::{CatalogError, Result};
use crate::kv::Catalog;

/// Most clients that watch; above this the one that polled least recently must begin anew.
const CLIENTS_MAX: usize = 256;
/// A poll ends after this time, changed or not.
const POLL: Duration = Duration::from_secs(10);

pub(super) struct Polls {
    catalog: Arc<dyn Catalog>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clients: HashMap<u128, (u64, Arc<Prefixes>)>,
    clock: u64,
}

/// What one client watches.
struct Prefixes {
    generation: u64,
    changed: Mutex<Changed>,
    news: Notify,
}

#[derive(Default)]
struct Changed {
    watchers: BTreeMap<Vec<u8>, AbortHandle>,
    prefixes: BTreeSet<Vec<u8>>,
    closed: bool,
}

impl Polls {
    pub(super) fn new(catalog: Arc<dyn Catalog>) -> Polls {
        Polls { catalog, state: Mutex::default() }
    }

    /// Watches these prefixes for a client and no others.
    pub(super) fn arm(&self, client: u128, generation: u64, prefixes: Vec<Vec<u8>>) {
        let set = self.find(client, generation).unwrap_or_else(|| self.begin(client, generation));
        let mut changed = set.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: BTreeSet<Vec<u8>> = prefixes.into_iter().collect();
        changed.watchers.retain(|prefix, watcher| {
            let kept = wanted.contains(prefix);
            if !kept {
                watcher.abort();
            }
            kept
        });
        for prefix in wanted {
            changed.watchers.entry(prefix).or_insert_with_key(|prefix| self.watcher(&set, prefix.clone()));
        }
    }

    /// What changed since the last poll, once something has; `None` if nothing is watched in this generation.
    pub(super) async fn poll(&self, client: u128, generation: u64) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(set) = self.find(client, generation) else { return Ok(None) };
        let changed = async {
            loop {
                let news = set.news.notified();
                if let Some(changed) = set.take() {
                    return changed;
                }
                news.await;
            }
        };
        tokio::time::timeout(POLL, changed).await.unwrap_or_else(|_| Ok(Vec::new())).map(Some)
    }

    fn watcher(&self, set: &Arc<Prefixes>, prefix: Vec<u8>) -> AbortHandle {
        // Made here and not in the task: it is there before whoever armed it hears so.
        let mut watch = self.catalog.watch(prefix.clone());
        let set = Arc::downgrade(set);
        let task = tokio::spawn(async move {
            loop {
                let woken = watch.changed().await;
                let Some(set) = set.upgrade() else { return };
                let mut changed = set.changed.lock().unwrap_or_else(PoisonError::into_inner);
                match woken {
                    Ok(()) => drop(changed.prefixes.insert(prefix.clone())),
                    Err(_) => changed.closed = true,
                }
                drop(changed);
                set.news.notify_one();
                if woken.is_err() {
                    return;
                }
            }
        });
        task.abort_handle()
    }

    fn find(&self, client: u128, generation: u64) -> Option<Arc<Prefixes>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clock += 1;
        let clock = state.clock;
        let (used, set) = state.clients.get_mut(&client)?;
        *used = clock;
        Some(Arc::clone(set)).filter(|set| set.generation == generation)
    }

    fn begin(&self, client: u128, generation: u64) -> Arc<Prefixes> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.clients.len() >= CLIENTS_MAX && !state.clients.contains_key(&client) {
            let oldest = state.clients.iter().min_by_key(|(_, (used, _))| *used).map(|(client, _)| *client);
            oldest.map(|client| state.clients.remove(&client));
        }
        let set = Prefixes { generation, changed: Mutex::default(), news: Notify::new() };
        let set = Arc::new(set);
        let used = state.clock;
        state.clients.insert(client, (used, Arc::clone(&set)));
        set
    }
}

impl Prefixes {
    fn take(&self) -> Option<Result<Vec<Vec<u8>>>> {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if changed.closed {
            return Some(Err(CatalogError::unavailable("the catalog behind this server was closed")));
        }
        let prefixes = std::mem::take(&mut changed.prefixes);
        Some(prefixes)
            .filter(|prefixes| !prefixes.is_empty())
            .map(|prefixes| Ok(prefixes.into_iter().collect()))
    }
}

impl Drop for Prefixes {
    fn drop(&mut self) {
        let changed = self.changed.get_mut().unwrap_or_else(PoisonError::into_inner);
        changed.watchers.values().for_each(AbortHandle::abort);
    }
}
