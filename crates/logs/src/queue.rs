//! What a program said and nobody wrote yet.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Clock;
use crate::frame::MARKS_MAX;

/// What a piece costs beside its bytes: without it many short ones would be free.
const PIECE_COST: usize = 64;
/// A piece that is as long gets no longer: it is dropped as a whole.
const PIECE_LEN: usize = 16 << 10;

/// How much is kept, and what happens when that is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// Most bytes.
    pub bytes_max: usize,
    /// How long the program waits in all until half of the queue is free again, before what is oldest is dropped.
    pub stall_max: Duration,
    /// Wait for as long as it takes, and drop nothing.
    pub is_strict: bool,
}

/// What is taken at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// Bytes.
    pub raw: Vec<u8>,
    /// When those from an offset on were said.
    pub marks: Vec<(usize, u64)>,
    /// Bytes that were dropped before them.
    pub dropped: u64,
}

#[derive(Default)]
struct State {
    /// Bytes, when they were said, and how many of them were taken.
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// With what each piece costs.
    cost: usize,
    dropped: u64,
    dropped_total: u64,
    /// How long the program was made to wait since there was room.
    stalled_ms: u64,
    is_closed: bool,
    /// Nobody takes anything any more.
    is_given_up: bool,
}

/// A bounded queue between a thread that reads and a task that writes.
pub struct Queue {
    options: QueueOptions,
    state: Mutex<State>,
    room: Condvar,
    news: Notify,
}

impl Queue {
    /// An empty one.
    pub fn new(options: QueueOptions) -> Queue {
        Queue { options, state: Mutex::default(), room: Condvar::new(), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was just said; may block for as long as the options allow. False if nobody will write it.
    pub fn push(&self, bytes: &[u8], clock: &dyn Clock) -> bool {
        let at_ms = clock.now_ms();
        let mut state = self.wait_for_room(self.lock(), bytes.len(), clock);
        if state.is_given_up || state.is_closed {
            state.dropped_total += bytes.len() as u64;
            return false;
        }
        while !state.fits(bytes.len(), self.options.bytes_max) && state.drop_oldest() {}
        state.add(at_ms, bytes);
        drop(state);
        self.news.notify_one();
        true
    }

    fn wait_for_room<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        len: usize,
        clock: &dyn Clock,
    ) -> MutexGuard<'a, State> {
        while !state.is_given_up
            && !state.is_closed
            && !state.pieces.is_empty()
            && !state.fits(len, self.options.bytes_max)
        {
            let left = (self.options.stall_max.as_millis() as u64).saturating_sub(state.stalled_ms);
            if !self.options.is_strict && left == 0 {
                break;
            }
            let begun_ms = clock.now_ms();
            // A strict one looks again now and then, so that nothing depends on a single word.
            let span = Duration::from_millis(if self.options.is_strict { 1000 } else { left });
            let (woken, timeout) =
                self.room.wait_timeout(state, span).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            let waited = clock.now_ms().saturating_sub(begun_ms);
            state.stalled_ms +=
                if timeout.timed_out() { waited.max(span.as_millis() as u64) } else { waited };
        }
        state
    }

    /// Nothing more comes: what is pushed all the same is dropped.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_one();
        self.room.notify_all();
    }

    /// Nothing more is taken: what is there and what comes is dropped.
    pub fn give_up(&self) {
        let mut state = self.lock();
        state.is_given_up = true;
        while state.drop_oldest() {}
        drop(state);
        self.room.notify_all();
    }

    /// Waits until there are as many bytes as this, or some that are as old as that, or the end; false at the end, with nothing left.
    pub async fn wait(&self, bytes: usize, age: Duration) -> bool {
        loop {
            let (len, is_closed) = {
                let state = self.lock();
                (state.cost, state.is_closed)
            };
            if is_closed {
                return len > 0;
            }
            if len > 0 {
                return self.linger(bytes, age).await;
            }
            self.news.notified().await;
        }
    }

    async fn linger(&self, bytes: usize, age: Duration) -> bool {
        let filled = async {
            loop {
                {
                    let state = self.lock();
                    if state.is_closed || state.cost >= bytes {
                        return;
                    }
                }
                self.news.notified().await;
            }
        };
        // That it took too long is what this is for.
        let _ = tokio::time::timeout(age, filled).await;
        true
    }

    /// Takes what came first, at most so many bytes.
    pub fn take(&self, bytes_max: usize) -> Batch {
        let mut state = self.lock();
        let mut batch = Batch { dropped: std::mem::take(&mut state.dropped), ..Batch::default() };
        while batch.raw.len() < bytes_max && batch.marks.len() < MARKS_MAX {
            let Some((at_ms, mut bytes)) = state.pieces.pop_front() else { break };
            state.cost -= bytes.len() + PIECE_COST;
            let room = bytes_max - batch.raw.len();
            if bytes.len() > room {
                let rest = bytes.split_off(room);
                state.cost += rest.len() + PIECE_COST;
                state.pieces.push_front((at_ms, rest));
            }
            batch.marks.push((batch.raw.len(), at_ms));
            batch.raw.extend_from_slice(&bytes);
        }
        if state.cost * 2 <= self.options.bytes_max {
            state.stalled_ms = 0;
        }
        drop(state);
        self.room.notify_all();
        batch
    }

    /// What was taken could not be written.
    pub(crate) fn lost(&self, bytes: u64) {
        self.lock().dropped_total += bytes;
    }

    /// Bytes that were dropped so far.
    pub fn dropped_total(&self) -> u64 {
        self.lock().dropped_total
    }

    /// Whether nothing more comes.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

impl State {
    fn fits(&self, len: usize, bytes_max: usize) -> bool {
        self.cost + len + PIECE_COST <= bytes_max
    }

    fn add(&mut self, at_ms: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.pieces.back_mut() {
            Some((last_ms, last)) if *last_ms == at_ms && last.len() < PIECE_LEN => {
                last.extend_from_slice(bytes);
                self.cost += bytes.len();
            }
            _ => {
                self.pieces.push_back((at_ms, bytes.to_vec()));
                self.cost += bytes.len() + PIECE_COST;
            }
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((_, bytes)) = self.pieces.pop_front() else { return false };
        self.cost -= bytes.len() + PIECE_COST;
        self.dropped += bytes.len() as u64;
        self.dropped_total += bytes.len() as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Each look is a millisecond later.
    struct Steps(AtomicU64);

    impl Clock for Steps {
        fn now_ms(&self) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed)
        }
    }

    fn queue(bytes_max: usize, stall_ms: u64) -> Queue {
        Queue::new(QueueOptions { bytes_max, stall_max: Duration::from_millis(stall_ms), is_strict: false })
    }

    #[test]
    fn what_is_oldest_is_dropped_and_counted() {
        let (queue, clock) = (queue(1000, 0), Steps(AtomicU64::new(0)));
        for number in 0..100 {
            assert!(queue.push(format!("{number:010}").as_bytes(), &clock));
        }
        let batch = queue.take(1 << 20);
        assert_eq!(batch.raw.len() as u64 + batch.dropped, 1000);
        assert!(batch.raw.ends_with(b"0000000099"), "the last words of a program are those that matter");
        assert_eq!(queue.dropped_total(), batch.dropped);
        assert_eq!(queue.take(1 << 20), Batch::default(), "what was dropped is told once");
    }

    #[test]
    fn one_that_is_longer_than_the_queue_comes_through() {
        let (queue, clock) = (queue(100, 0), Steps(AtomicU64::new(0)));
        assert!(queue.push(&[7; 5000], &clock));
        assert_eq!(queue.take(3000).raw.len(), 3000);
        assert_eq!(queue.take(3000).raw.len(), 2000);
    }

    #[test]
    fn a_strict_one_waits_for_whoever_takes() {
        let options = QueueOptions { bytes_max: 300, stall_max: Duration::ZERO, is_strict: true };
        let (queue, clock) = (Queue::new(options), Steps(AtomicU64::new(0)));
        let mut taken = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200u32 {
                    assert!(queue.push(&number.to_le_bytes(), &clock));
                }
                queue.close();
            });
            while taken.len() < 800 {
                taken.extend(queue.take(64).raw);
                std::thread::yield_now();
            }
        });
        assert_eq!(taken, (0..200u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        assert_eq!(queue.dropped_total(), 0);
    }

    #[test]
    fn who_waits_for_one_that_gave_up_goes_on() {
        let options = QueueOptions { bytes_max: 100, stall_max: Duration::ZERO, is_strict: true };
        let (queue, clock) = (Queue::new(options), Steps(AtomicU64::new(0)));
        assert!(queue.push(&[1; 90], &clock));
        std::thread::scope(|scope| {
            let pushed = scope.spawn(|| queue.push(&[2; 90], &clock));
            queue.give_up();
            assert!(!pushed.join().unwrap());
        });
        assert_eq!(queue.dropped_total(), 180);
    }

    #[test]
    fn what_comes_after_the_end_is_dropped() {
        let options = QueueOptions { bytes_max: 100, stall_max: Duration::ZERO, is_strict: true };
        let (queue, clock) = (Queue::new(options), Steps(AtomicU64::new(0)));
        assert!(queue.push(&[1; 90], &clock));
        std::thread::scope(|scope| {
            let pushed = scope.spawn(|| queue.push(&[2; 90], &clock));
            queue.close();
            assert!(!pushed.join().unwrap());
        });
        assert!(!queue.push(b"more", &clock));
        assert_eq!((queue.take(1000).raw.len(), queue.dropped_total()), (90, 94));
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_bytes_wait_for_more_and_not_for_long() {
        let (queue, clock) = (queue(1 << 20, 0), Steps(AtomicU64::new(0)));
        queue.push(b"a", &clock);
        let age = Duration::from_secs(1);
        let begun = tokio::time::Instant::now();
        assert!(queue.wait(1000, age).await);
        assert_eq!(begun.elapsed(), age);
        queue.push(&[1; 2000], &clock);
        assert!(queue.wait(1000, age).await);
        assert_eq!(begun.elapsed(), age, "many do not");
        queue.take(1 << 20);
        queue.close();
        assert!(!queue.wait(1000, age).await);
    }
}
