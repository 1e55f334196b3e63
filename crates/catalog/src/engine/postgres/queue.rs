//! Commits that wait, and which of them go together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::locks::Locks;
use crate::error::{CatalogError, Result};
use crate::kv::{Commit, Outcome};

/// Most commits of one transaction.
const BATCH_COMMITS_MAX: usize = 128;
/// A transaction of several commits has at most so many bytes of keys and values.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most bytes of all commits that wait or are under way; who comes later waits before the door.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// What a commit takes besides its keys and values.
const COMMIT_BYTES: usize = 1 << 10;

/// A commit whose caller waits.
pub(super) struct Waiting {
    pub commit: Commit,
    pub bytes: usize,
    pub locks: Locks,
    /// Nobody waits longer for the server to be there.
    pub deadline: Instant,
    pub answer: oneshot::Sender<Result<Outcome>>,
    _room: OwnedSemaphorePermit,
}

/// Commits in the order of their arrival.
pub(super) struct Queue {
    /// `None` once closed.
    waiting: Mutex<Option<VecDeque<Waiting>>>,
    arrived: Notify,
    room: Arc<Semaphore>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            waiting: Mutex::new(Some(VecDeque::new())),
            arrived: Notify::new(),
            room: Arc::new(Semaphore::new(QUEUE_BYTES_MAX)),
        }
    }

    /// Puts a commit at the end and waits for its outcome.
    pub(super) async fn run(&self, commit: Commit, locks: Locks, deadline: Instant) -> Result<Outcome> {
        let bytes = commit.bytes();
        let room = u32::try_from((bytes + COMMIT_BYTES).min(QUEUE_BYTES_MAX)).expect("a small number");
        let room = tokio::time::timeout_at(deadline, Arc::clone(&self.room).acquire_many_owned(room)).await;
        let room = room.map_err(|_| CatalogError::unavailable("PostgreSQL: too many commits wait"))?;
        let room = room.map_err(|_| CatalogError::closed())?;
        let (answer, outcome) = oneshot::channel();
        let waiting = Waiting { commit, bytes, locks, deadline, answer, _room: room };
        match &mut *self.lock() {
            Some(queue) => queue.push_back(waiting),
            None => return Err(CatalogError::closed()),
        }
        self.arrived.notify_one();
        let lost = || CatalogError::unknown("the catalog ended during a commit");
        outcome.await.unwrap_or_else(|_| Err(lost()))
    }

    /// The next commits to run together, as soon as there are any; `None` once closed. They have at most `most` locks, or
    /// are one.
    pub(super) async fn next(&self, most: usize) -> Option<Vec<Waiting>> {
        loop {
            let arrived = self.arrived.notified();
            {
                let mut queue = self.lock();
                let Some(queue) = &mut *queue else {
                    // For the others who wait here.
                    self.arrived.notify_one();
                    return None;
                };
                if !queue.is_empty() {
                    let batch = take(queue, most);
                    if !queue.is_empty() {
                        self.arrived.notify_one();
                    }
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
        self.room.close();
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<Waiting>>> {
        // A list that is whole at any moment.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the first commit, and those behind it that have no effect on each other: within a transaction nothing says which
/// of two comes first.
fn take(queue: &mut VecDeque<Waiting>, most: usize) -> Vec<Waiting> {
    let mut batch: Vec<Waiting> = Vec::new();
    let (mut bytes, mut locks) = (0, Locks::default());
    let mut left = VecDeque::new();
    while batch.len() < BATCH_COMMITS_MAX && bytes < BATCH_BYTES_MAX {
        let Some(next) = queue.pop_front() else { break };
        let fits = bytes + next.bytes <= BATCH_BYTES_MAX && locks.len() + next.locks.len() <= most;
        if batch.is_empty() || (fits && !locks.conflict(&next.locks)) {
            bytes += next.bytes;
            locks.join(&next.locks);
            batch.push(next);
        } else {
            left.push_back(next);
            if left.len() == BATCH_COMMITS_MAX {
                break;
            }
        }
    }
    while let Some(next) = left.pop_back() {
        queue.push_front(next);
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::changes::Changes;

    fn waiting(commit: Commit) -> Waiting {
        let locks = Locks::of(&commit.checks, &Changes::new(&commit.writes).unwrap(), 100);
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let (bytes, deadline) = (commit.bytes(), Instant::now());
        Waiting { commit, bytes, locks, deadline, answer: oneshot::channel().0, _room: room }
    }

    fn batches(commits: Vec<Commit>, most: usize) -> Vec<usize> {
        let mut queue: VecDeque<Waiting> = commits.into_iter().map(waiting).collect();
        std::iter::from_fn(|| (!queue.is_empty()).then(|| take(&mut queue, most).len())).collect()
    }

    #[tokio::test]
    async fn what_has_no_effect_on_each_other_goes_together() {
        let put = |key: &str| Commit::new().absent(key).put(key, "");
        assert_eq!(batches(vec![put("a"), put("b"), put("a"), put("c"), put("a")], 1000), [3, 1, 1]);
        let add = || Commit::new().add("n", 1);
        assert_eq!(batches(vec![add(), add(), add()], 1000), [3]);
        let clear = Commit::new().delete_range("", "z");
        assert_eq!(batches(vec![put("a"), clear, put("b")], 1000), [2, 1]);
        assert_eq!(batches((0..300u32).map(|n| put(&n.to_string())).collect(), 100_000), [128, 128, 44]);
        // Each takes the lock of everything, one of its granule and one of its key.
        assert_eq!(batches(vec![put("a"), put("b"), put("c")], 6), [2, 1]);
        assert_eq!(batches(vec![put("a"), put("b")], 1), [1, 1]);
        let large = |key: &str| Commit::new().put(key, vec![0; 60_000]);
        assert_eq!(batches((0..20).map(|n| large(&n.to_string())).collect(), 1000), [17, 3]);
    }
}
