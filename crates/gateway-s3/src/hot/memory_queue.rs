//! Who gets the memory of a chunk next, when there is not enough for all.
//!
//! The store has so much memory for chunks, and hands it to whoever asks first. Bodies that arrive slowly would hold what the fast
//! ones need, as many as there are of them. So bodies ask one after the other here, and the one that has brought most since it last
//! gave memory back goes first; each fourth time it is the one that waits longest, so that nobody waits for ever. Whoever has memory
//! asks [`MemoryQueue::is_contended`] while its client is quiet, and gives it back early if others wait.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Bodies that ask the store at the same time. Those do not overtake each other.
const ASKING_MAX: usize = 4;
/// Each so many-th time, the longest wait counts and not the progress.
const OLDEST_EACH: u64 = 4;

/// The queue of all bodies of a gateway.
pub(crate) struct MemoryQueue {
    state: Mutex<State>,
    /// Bodies that wait, here or for the store.
    waiting: AtomicUsize,
}

struct State {
    free: usize,
    grants: u64,
    waiters: Vec<Waiter>,
}

struct Waiter {
    progress: u64,
    grant: oneshot::Sender<Permit>,
}

/// The right to ask the store for memory.
pub(crate) struct Permit(Option<Arc<MemoryQueue>>);

impl MemoryQueue {
    /// Nobody waits.
    pub(crate) fn new() -> Arc<MemoryQueue> {
        let state = State { free: ASKING_MAX, grants: 0, waiters: Vec::new() };
        Arc::new(MemoryQueue { state: Mutex::new(state), waiting: AtomicUsize::new(0) })
    }

    /// Whether somebody waits for memory.
    pub(crate) fn is_contended(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for the turn of a body that has brought so many bytes.
    pub(crate) async fn permit(self: &Arc<MemoryQueue>, progress: u64) -> Permit {
        let granted = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Permit(Some(Arc::clone(self)));
            }
            let (grant, granted) = oneshot::channel();
            state.waiters.push(Waiter { progress, grant });
            granted
        };
        match self.counted(granted).await {
            Ok(permit) => permit,
            Err(_) => unreachable!("a waiter is dropped only with its grant"),
        }
    }

    /// Counts as waiting from when the future is not done at once.
    pub(crate) async fn counted<T>(&self, future: impl Future<Output = T>) -> T {
        struct Counted<'a>(&'a AtomicUsize);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let mut future = pin!(future);
        let mut counted = None;
        std::future::poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            if polled.is_pending() && counted.is_none() {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                counted = Some(Counted(&self.waiting));
            }
            polled
        })
        .await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn waiters(&self) -> usize {
        self.lock().waiters.len()
    }
}

impl State {
    /// The next one: the place in the list, which is in the order of arrival.
    fn next(&mut self) -> Option<Waiter> {
        self.waiters.retain(|waiter| !waiter.grant.is_closed());
        let most = || (0..self.waiters.len()).max_by_key(|at| (self.waiters[*at].progress, usize::MAX - at));
        let at = if self.grants % OLDEST_EACH == OLDEST_EACH - 1 { 0 } else { most()? };
        if at >= self.waiters.len() {
            return None;
        }
        self.grants += 1;
        Some(self.waiters.remove(at))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = queue.lock();
                let next = state.next();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some(waiter) = next else { return };
            match waiter.grant.send(Permit(Some(Arc::clone(&queue)))) {
                Ok(()) => return,
                // It went away meanwhile, so this permit is handed on here, and not when that one is dropped.
                Err(mut unused) => drop(unused.0.take()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts waiting, and says so when it was granted.
    async fn wait(queue: &Arc<MemoryQueue>, progress: u64) -> tokio::task::JoinHandle<(u64, Permit)> {
        let (before, own) = (queue.waiters(), Arc::clone(queue));
        let task = tokio::spawn(async move { (progress, own.permit(progress).await) });
        while queue.waiters() == before {
            tokio::task::yield_now().await;
        }
        task
    }

    #[tokio::test]
    async fn who_brought_most_goes_first_and_the_oldest_in_between() {
        let queue = MemoryQueue::new();
        let mut held = Vec::new();
        for _ in 0..ASKING_MAX {
            held.push(queue.permit(0).await);
        }
        assert!(!queue.is_contended());
        let mut tasks = Vec::new();
        for progress in [0, 1, 9, 5, 5, 7] {
            tasks.push(wait(&queue, progress).await);
        }
        assert!(queue.is_contended());
        let mut order = Vec::new();
        while order.len() < tasks.len() {
            drop(held.pop());
            // One is granted for each that is given back.
            while tasks.iter().filter(|task| task.is_finished()).count() == order.len() {
                tokio::task::yield_now().await;
            }
            let new = |at: &usize| tasks[*at].is_finished() && !order.contains(at);
            let at = (0..tasks.len()).find(new).unwrap();
            held.push((&mut tasks[at]).await.unwrap().1);
            order.push(at);
        }
        // Three times the one with most, of two equal ones the older; then the oldest, which has nothing.
        assert_eq!(order, [2, 5, 3, 0, 4, 1]);
        assert!(!queue.is_contended());
        drop(held);
        assert_eq!(queue.lock().free, ASKING_MAX);
    }

    #[tokio::test]
    async fn who_goes_away_takes_nothing_along() {
        let queue = MemoryQueue::new();
        let mut held = Vec::new();
        for _ in 0..ASKING_MAX {
            held.push(queue.permit(0).await);
        }
        let (gone, granted, last) = (wait(&queue, 9).await, wait(&queue, 8).await, wait(&queue, 1).await);
        gone.abort();
        assert!(gone.await.is_err());
        // Granted and never looked at.
        drop(held.pop());
        granted.abort();
        let _ = granted.await;
        drop(held);
        drop(last.await.unwrap());
        assert!(queue.lock().free == ASKING_MAX && !queue.is_contended());
    }
}
