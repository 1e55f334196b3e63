//! Reads rows by their keys, for many callers with one question.
//!
//! As with commits, a few lanes ask for what has gathered while they asked before. One question is one statement and so
//! sees one state, which is newer than whatever its callers knew to be done when they came.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::Asking;
use crate::error::{CatalogError, Result};
use crate::kv::Row;

/// Most keys of one question for several callers; few enough that all their values are no burden.
const BATCH_KEYS_MAX: usize = 256;

type Rows = Vec<Option<Row>>;

struct Waiting {
    keys: Vec<Vec<u8>>,
    answer: oneshot::Sender<Result<Rows>>,
}

/// What the lanes share.
pub(super) struct Reader {
    asking: Arc<Asking>,
    /// `None` once closed.
    waiting: Mutex<Option<VecDeque<Waiting>>>,
    arrived: Notify,
}

impl Reader {
    pub(super) fn new(asking: Arc<Asking>) -> Reader {
        Reader { asking, waiting: Mutex::new(Some(VecDeque::new())), arrived: Notify::new() }
    }

    /// The rows of these keys, in their order.
    pub(super) async fn read(&self, keys: &[&[u8]]) -> Result<Rows> {
        let (answer, rows) = oneshot::channel();
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        match &mut *self.lock() {
            Some(queue) => queue.push_back(Waiting { keys, answer }),
            None => return Err(CatalogError::closed()),
        }
        self.arrived.notify_one();
        rows.await.unwrap_or_else(|_| Err(CatalogError::closed()))
    }

    /// Answers who waits until this is closed; one of several.
    pub(super) async fn lane(self: Arc<Reader>) {
        while let Some(batch) = self.next().await {
            let keys: Vec<&[u8]> =
                batch.iter().flat_map(|waiting| &waiting.keys).map(Vec::as_slice).collect();
            let found = self.asking.rows(&keys).await;
            match found {
                Ok(found) => {
                    let found: HashMap<&[u8], &Row> =
                        found.iter().map(|row| (row.key.as_slice(), row)).collect();
                    for Waiting { keys, answer } in batch {
                        let rows = keys.iter().map(|key| found.get(key.as_slice()).map(|row| (*row).clone()));
                        // Whoever asked may wait no more.
                        let _ = answer.send(Ok(rows.collect()));
                    }
                }
                Err(error) => {
                    for waiting in batch {
                        let _ = waiting.answer.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    async fn next(&self) -> Option<Vec<Waiting>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut queue = self.lock();
                let Some(queue) = &mut *queue else {
                    // For the others who wait here.
                    self.arrived.notify_one();
                    return None;
                };
                let batch = take(queue);
                if !queue.is_empty() {
                    self.arrived.notify_one();
                }
                if !batch.is_empty() {
                    return Some(batch);
                }
            }
            arrived.await;
        }
    }

    /// Refuses who waits and who comes.
    pub(super) fn close(&self) {
        let queue = self.lock().take();
        for waiting in queue.into_iter().flatten() {
            let _ = waiting.answer.send(Err(CatalogError::closed()));
        }
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Waiting>>> {
        // A list that is whole at any moment.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(queue: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let (mut batch, mut keys) = (Vec::new(), 0);
    while let Some(next) = queue.front() {
        keys += next.keys.len();
        if !batch.is_empty() && keys > BATCH_KEYS_MAX {
            break;
        }
        batch.extend(queue.pop_front());
    }
    batch
}
