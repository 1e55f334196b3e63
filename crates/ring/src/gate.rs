//! A byte budget that appenders wait for, so that queues stay bounded.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

struct State {
    used: usize,
    waiters: Vec<Waker>,
}

/// A counting gate.
pub(crate) struct Gate {
    max: usize,
    state: Mutex<State>,
}

impl Gate {
    pub fn new(max: usize) -> Gate {
        Gate { max, state: Mutex::new(State { used: 0, waiters: Vec::new() }) }
    }

    /// Takes `bytes` of the budget if they are there; a single large request is let through when nothing else is.
    fn try_enter(&self, bytes: usize, waker: Option<&Waker>) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.used == 0 || state.used + bytes <= self.max {
            state.used += bytes;
            return true;
        }
        state.waiters.extend(waker.cloned());
        false
    }

    /// Waits for `bytes` of the budget; they come back when the pass is dropped.
    pub async fn enter(self: &Arc<Gate>, bytes: usize) -> Pass {
        std::future::poll_fn(|cx| match self.try_enter(bytes, Some(cx.waker())) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        Pass { gate: self.clone(), bytes }
    }

    fn leave(&self, bytes: usize) {
        let waiters = {
            let mut state = self.state.lock().unwrap();
            state.used -= bytes;
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// A share of a gate's budget. It lives as long as the request does, even if its caller stops waiting.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave(self.bytes);
    }
}
