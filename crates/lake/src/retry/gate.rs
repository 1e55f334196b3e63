//! How many requests may be under way: fewer when the lake is busy, more when it is not.
//!
//! Additive increase, multiplicative decrease: every answer adds a little, every "busy" halves, but only once
//! for all requests that were sent before the last halving.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The gate of one lake.
pub(super) struct Gate {
    state: Mutex<State>,
    limit_max: f64,
}

struct State {
    limit: f64,
    now: usize,
    waiters: VecDeque<oneshot::Sender<Pass>>,
    /// Counts halvings.
    era: u64,
}

/// The right to send one request. It ends when it is dropped.
pub(super) struct Pass {
    /// `None` once the pass was taken back.
    gate: Option<Arc<Gate>>,
    era: u64,
}

impl Gate {
    pub fn new(limit_max: usize) -> Arc<Gate> {
        let limit_max = limit_max.max(1) as f64;
        let state = State { limit: limit_max, now: 0, waiters: VecDeque::new(), era: 0 };
        Arc::new(Gate { state: Mutex::new(state), limit_max })
    }

    /// Waits for the right to send a request, in order.
    pub async fn pass(self: &Arc<Gate>) -> Pass {
        let receiver = {
            let mut state = self.state();
            if state.waiters.is_empty() && state.has_room() {
                state.now += 1;
                return Pass { gate: Some(self.clone()), era: state.era };
            }
            let (sender, receiver) = oneshot::channel();
            state.waiters.push_back(sender);
            receiver
        };
        receiver.await.expect("the gate outlives whoever waits at it")
    }

    /// Requests under way, and how many may be.
    pub fn load(&self) -> (u64, u64) {
        let state = self.state();
        (state.now as u64, state.limit as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those in who may come now.
    fn admit(self: &Arc<Gate>) {
        loop {
            let (waiter, pass) = {
                let mut state = self.state();
                if !state.has_room() {
                    return;
                }
                let Some(waiter) = state.waiters.pop_front() else { return };
                state.now += 1;
                (waiter, Pass { gate: Some(self.clone()), era: state.era })
            };
            // Whoever does not wait any more gives the pass back by dropping it.
            if let Err(pass) = waiter.send(pass) {
                pass.cancel();
            }
        }
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.now < (self.limit as usize).max(1)
    }
}

impl Pass {
    /// The lake answered.
    pub fn answered(&self) {
        let Some(gate) = &self.gate else { return };
        {
            let mut state = gate.state();
            state.limit = (state.limit + 1.0 / state.limit).min(gate.limit_max);
        }
        gate.admit();
    }

    /// The lake said that it is busy.
    pub fn busy(&self) {
        let Some(gate) = &self.gate else { return };
        let mut state = gate.state();
        if self.era == state.era {
            state.limit = (state.limit / 2.0).max(1.0);
            state.era += 1;
        }
    }

    /// Ends the pass without letting anybody in: whoever calls this is about to do so.
    fn cancel(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.state().now -= 1;
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.state().now -= 1;
            gate.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn the_limit_halves_once_per_era_and_grows_back() {
        let gate = Gate::new(16);
        let passes: Vec<Pass> = (0..16).map(|_| gate.pass().now_or_never().unwrap()).collect();
        assert!(gate.pass().now_or_never().is_none(), "the seventeenth waits");
        passes[0].busy();
        passes[1].busy();
        assert_eq!(gate.load(), (16, 8), "one storm, one halving");
        drop(passes);
        let pass = gate.pass().now_or_never().unwrap();
        for _ in 0..3 {
            gate.pass().now_or_never().unwrap().busy();
        }
        assert_eq!(gate.load(), (1, 1));
        assert!(gate.pass().now_or_never().is_none(), "one at a time is left");
        for _ in 0..200 {
            pass.answered();
        }
        assert_eq!(gate.load(), (1, 16));
    }

    #[test]
    fn who_gives_up_waiting_blocks_nobody() {
        let gate = Gate::new(1);
        let first = gate.pass().now_or_never().unwrap();
        let mut second = Box::pin(gate.pass());
        let mut third = Box::pin(gate.pass());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        drop(first);
        let third = third.now_or_never();
        assert!(third.is_some(), "the pass went to somebody who left");
        drop(third);
        assert_eq!(gate.load().0, 0);
    }

    #[test]
    fn a_pass_that_arrives_too_late_is_given_back() {
        let gate = Gate::new(1);
        let first = gate.pass().now_or_never().unwrap();
        let mut second = Box::pin(gate.pass());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        drop(second);
        assert_eq!(gate.load().0, 0);
        assert!(gate.pass().now_or_never().is_some());
    }
}
