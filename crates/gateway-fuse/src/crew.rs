//! Who of the session's threads waits for the kernel's next request. (D72)
//!
//! The kernel hands requests to the threads that wait for one in turn, and each thread has a buffer of its own: with
//! thirty threads a writer's bytes go through thirty mebibytes of memory, none of which is in a cache when it is its turn
//! again. So only a few more threads wait than have been needed at once lately. The others rest, after their answer was
//! sent, until the last that waits gets a request.

use std::cell::OnceCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that wait beyond those that were needed at once.
const SPARE: usize = 2;

/// Requests after which it is forgotten how many threads were needed.
const WINDOW: u32 = 1024;

/// If there was no request for so long, who rests goes to wait: that costs nothing then, and somebody may have unmounted.
const IDLE: Duration = Duration::from_secs(1);

/// The threads of a session.
#[derive(Clone)]
pub(crate) struct Crew(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    awake: Condvar,
}

struct State {
    /// Threads that wait for a request, or are on their way to.
    waiting: usize,
    working: usize,
    resting: usize,
    /// Of those that rest, how many are to get up.
    called: usize,
    /// Most that worked at once in this window and in the one before.
    peak: usize,
    peak_before: usize,
    /// Requests of this window.
    count: u32,
    /// Requests of all times.
    begun: u64,
    /// Nobody rests any more.
    is_over: bool,
}

impl State {
    fn begin(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        self.working += 1;
        self.begun += 1;
        self.count += 1;
        if self.count == WINDOW {
            (self.peak_before, self.peak, self.count) = (self.peak, self.working, 0);
        }
        self.peak = self.peak.max(self.working);
    }

    /// As many wait as will be needed, without the one that asks.
    fn is_enough(&self) -> bool {
        !self.is_over && self.waiting + self.working >= self.peak.max(self.peak_before) + SPARE
    }

    /// Calls one that rests, if nobody else waits. True if it has to be woken.
    fn call(&mut self) -> bool {
        let is_needed = self.waiting == 0 && self.resting > self.called;
        if is_needed {
            self.called += 1;
            self.waiting += 1;
        }
        is_needed
    }
}

impl Crew {
    /// All of them wait.
    pub fn new(threads: usize) -> Crew {
        let state = State {
            waiting: threads,
            working: 0,
            resting: 0,
            called: 0,
            peak: 0,
            peak_before: 0,
            count: 0,
            begun: 0,
            is_over: false,
        };
        Crew(Arc::new(Inner { state: Mutex::new(state), awake: Condvar::new() }))
    }

    /// A thread has got a request; it has answered when the guard is dropped.
    pub fn begin(&self) -> AtWork {
        let is_needed = {
            let mut state = self.0.lock();
            state.begin();
            state.call()
        };
        if is_needed {
            self.0.awake.notify_one();
        }
        MEMBER.with(|member| {
            member.get_or_init(|| Member(self.0.clone()));
        });
        AtWork(self.0.clone())
    }
}

impl Inner {
    /// There will be no more requests: whoever rests may go.
    fn end(&self) {
        self.lock().is_over = true;
        self.awake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread goes to wait for the next request, at once or later.
    fn next(&self) {
        let mut state = self.lock();
        state.working -= 1;
        if std::thread::panicking() {
            // It will not be back.
            return;
        }
        if !state.is_enough() {
            state.waiting += 1;
            return;
        }
        state.resting += 1;
        loop {
            let begun = state.begun;
            let (held, waited) = self.awake.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = held;
            if state.called > 0 {
                // It was counted by whoever called.
                state.called -= 1;
                break;
            }
            if state.is_over || (waited.timed_out() && state.begun == begun) {
                state.waiting += 1;
                break;
            }
        }
        state.resting -= 1;
    }
}

/// A thread at work on a request.
pub(crate) struct AtWork(Arc<Inner>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.next();
    }
}

/// Tells the others when a thread leaves: it does when the session is over.
struct Member(Arc<Inner>);

thread_local! {
    static MEMBER: OnceCell<Member> = const { OnceCell::new() };
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
