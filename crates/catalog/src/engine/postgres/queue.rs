//! Commits that wait, which of them go together, and which have to wait for those that are under way.
//!
//! A commit that would stand in the server behind one of ours waits here instead: nothing is lost, and more can go together
//! with it. Those that stand in each other's way keep the order of their arrival, so nobody waits for ever.

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
    state: Mutex<Option<State>>,
    /// Something arrived, or a transaction ended.
    changed: Notify,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// The locks of transactions that are under way, by who runs them.
    running: Vec<(i64, Locks)>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            state: Mutex::new(Some(State::default())),
            changed: Notify::new(),
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
            Some(state) => state.waiting.push_back(waiting),
            None => return Err(CatalogError::closed()),
        }
        self.changed.notify_one();
        let lost = || CatalogError::unknown("the catalog ended during a commit");
        outcome.await.unwrap_or_else(|_| Err(lost()))
    }

    /// The next commits for a lane to run together, as soon as there are any; `None` once closed. They have at most `most`
    /// locks, or are one. Those that the lane took before have ended.
    pub(super) async fn next(&self, lane: i64, most: usize) -> Option<Vec<Waiting>> {
        let mut has_ended = true;
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                let Some(state) = &mut *state else {
                    // For the others who wait here.
                    self.changed.notify_one();
                    return None;
                };
                state.running.retain(|(of, _)| *of != lane);
                let (batch, locks) = take(&mut state.waiting, &state.running, most);
                // Another lane may find something to do, too.
                if !state.waiting.is_empty() && (has_ended || !batch.is_empty()) {
                    self.changed.notify_one();
                }
                if !batch.is_empty() {
                    state.running.push((lane, locks));
                    return Some(batch);
                }
            }
            has_ended = false;
            changed.await;
        }
    }

    /// Refuses who waits and who comes.
    pub(super) fn close(&self) {
        let state = self.lock().take();
        for waiting in state.into_iter().flat_map(|state| state.waiting) {
            let _ = waiting.answer.send(Err(CatalogError::closed()));
        }
        self.room.close();
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        // Lists that are whole at any moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the first commit that nothing under way stands in the way of, and those behind it that have no effect on each
/// other: within a transaction nothing says which of two comes first. Gives their locks, too.
fn take(queue: &mut VecDeque<Waiting>, running: &[(i64, Locks)], most: usize) -> (Vec<Waiting>, Locks) {
    let (mut batch, mut bytes, mut locks) = (Vec::new(), 0, Locks::default());
    let mut left: VecDeque<Waiting> = VecDeque::new();
    // Locks of those who were here before and wait on.
    let mut before = Locks::default();
    while batch.len() < BATCH_COMMITS_MAX && bytes < BATCH_BYTES_MAX && left.len() < BATCH_COMMITS_MAX {
        let Some(next) = queue.pop_front() else { break };
        let fits = batch.is_empty()
            || (bytes + next.bytes <= BATCH_BYTES_MAX && locks.len() + next.locks.len() <= most);
        let is_free = running.iter().all(|(_, running)| !running.stops(&next.locks));
        if fits && is_free && !before.stops(&next.locks) && !locks.conflict(&next.locks) {
            bytes += next.bytes;
            locks.join(&next.locks);
            batch.push(next);
        } else {
            before.join(&next.locks);
            left.push_back(next);
        }
    }
    while let Some(next) = left.pop_back() {
        queue.push_front(next);
    }
    (batch, locks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::changes::Changes;
    use crate::kv::Write;

    fn waiting(commit: Commit) -> Waiting {
        let locks = Locks::of(&commit.checks, &Changes::new(&commit.writes).unwrap(), 100);
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let (bytes, deadline) = (commit.bytes(), Instant::now());
        Waiting { commit, bytes, locks, deadline, answer: oneshot::channel().0, _room: room }
    }

    fn batches(commits: Vec<Commit>, most: usize) -> Vec<usize> {
        let mut queue: VecDeque<Waiting> = commits.into_iter().map(waiting).collect();
        std::iter::from_fn(|| (!queue.is_empty()).then(|| take(&mut queue, &[], most).0.len())).collect()
    }

    #[tokio::test]
    async fn what_has_no_effect_on_each_other_goes_together() {
        let put = |key: &str| Commit::new().absent(key).put(key, "");
        assert_eq!(batches(vec![put("a"), put("b"), put("a"), put("c"), put("a")], 1000), [3, 1, 1]);
        let add = || Commit::new().add("n", 1);
        assert_eq!(batches(vec![add(), add(), add()], 1000), [3]);
        let clear = Commit::new().delete_range("", "z");
        assert_eq!(batches(vec![put("a"), clear, put("b")], 1000), [1, 1, 1]);
        assert_eq!(batches((0..300u32).map(|n| put(&n.to_string())).collect(), 100_000), [128, 128, 44]);
        // Each takes the lock of everything, one of its granule and one of its key.
        assert_eq!(batches(vec![put("a"), put("b"), put("c")], 6), [2, 1]);
        assert_eq!(batches(vec![put("a"), put("b")], 1), [1, 1]);
        let large = |key: &str| Commit::new().put(key, vec![0; 60_000]);
        assert_eq!(batches((0..20).map(|n| large(&n.to_string())).collect(), 1000), [17, 3]);
    }

    #[tokio::test]
    async fn what_would_wait_in_the_server_waits_here_in_its_order() {
        let put = |key: &str| Commit::new().absent(key).put(key, "");
        let locks = |commit: Commit| waiting(commit).locks;
        let taken = |commits: Vec<Commit>, running: Vec<Commit>| {
            let mut queue: VecDeque<Waiting> = commits.into_iter().map(waiting).collect();
            let running: Vec<(i64, Locks)> = (0..).zip(running.into_iter().map(locks)).collect();
            let batch = take(&mut queue, &running, 1000).0;
            batch
                .iter()
                .flat_map(|one| one.commit.writes.clone())
                .map(|write| match write {
                    Write::Put(key, _) | Write::Add(key, _) => String::from_utf8(key).unwrap(),
                    write => format!("{write:?}"),
                })
                .collect::<Vec<String>>()
        };
        assert_eq!(taken(vec![put("a"), put("b")], vec![put("a")]), ["b"]);
        assert_eq!(taken(vec![put("b")], vec![put("a"), put("b")]), Vec::<String>::new());
        // Sums of one counter go together, but not in two transactions at once.
        let add = |key: &str| Commit::new().add(key, 1);
        assert_eq!(taken(vec![add("n"), add("m"), add("m")], vec![add("n")]), ["m", "m"]);
        // Who waits for everybody is not overtaken.
        let clear = Commit::new().delete_range("", "z");
        assert_eq!(taken(vec![clear, put("b")], vec![put("a")]), Vec::<String>::new());
    }
}
