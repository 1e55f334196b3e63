//! Whether a lake answers at all. A call that fails is told so only after all of its tries, which takes minutes where each of them
//! hangs; whoever looks meanwhile is told from here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::types::Silence;

/// A request that takes longer than this, and than its bytes may take, is late.
const LATE_US: u64 = 5_000_000;
/// Failures that are younger may be over with the next try.
const FAILING_US_MIN: u64 = 2_000_000;
/// Nobody asked for so long: what failed then says nothing of now.
const FAILING_US_MAX: u64 = 60_000_000;

/// Requests that wait, and how the last ones ended.
#[derive(Default)]
pub(super) struct Silences(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// When each began and how long it may take, in microseconds.
    waiting: BTreeMap<u64, (u64, u64)>,
    /// When the lake last said anything.
    answered_us: u64,
    failing: Option<Failing>,
}

/// Requests that were not answered, without one in between that was.
struct Failing {
    since_us: u64,
    last_us: u64,
    error: String,
}

impl Silences {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins, which moves its bytes within so long.
    pub fn begin(&self, now_us: u64, transfer_us: u64) -> Waiting<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, (now_us, LATE_US.saturating_add(transfer_us)));
        Waiting { silences: self, number, begun_us: now_us }
    }

    /// For how long nothing was answered, if that is too long.
    pub fn silence(&self, now_us: u64) -> Option<Silence> {
        let state = self.lock();
        let failing = state.failing.as_ref().filter(|failing| {
            let is_recent =
                now_us.saturating_sub(failing.last_us) < FAILING_US_MAX || !state.waiting.is_empty();
            is_recent && now_us.saturating_sub(failing.since_us) >= FAILING_US_MIN
        });
        // One that waits behind others which are answered is slow, not silent.
        let late = state.waiting.values().filter_map(|(begun_us, patience_us)| {
            let since_us = (*begun_us).max(state.answered_us);
            (now_us.saturating_sub(since_us) > *patience_us).then_some(since_us)
        });
        let since_us = late.chain(failing.map(|failing| failing.since_us)).min()?;
        let error = failing.map(|failing| failing.error.clone());
        Some(Silence { ms: now_us.saturating_sub(since_us) / 1_000, error })
    }
}

/// A request under way. Dropped without a word, it says nothing of the lake: whoever asked went away.
pub(super) struct Waiting<'s> {
    silences: &'s Silences,
    number: u64,
    begun_us: u64,
}

impl Waiting<'_> {
    /// The lake said something, good or bad.
    pub fn answered(self, now_us: u64) {
        let mut state = self.silences.lock();
        (state.answered_us, state.failing) = (now_us, None);
    }

    /// It could not be reached, or did not answer in time.
    pub fn failed(self, now_us: u64, error: &str) {
        let mut state = self.silences.lock();
        let since_us = state.failing.as_ref().map_or(self.begun_us, |failing| failing.since_us);
        state.failing = Some(Failing { since_us, last_us: now_us, error: error.to_owned() });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.silences.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn ms(silences: &Silences, now_s: u64) -> Option<u64> {
        silences.silence(now_s * S).map(|silence| silence.ms)
    }

    #[test]
    fn it_is_silent_while_requests_wait_and_none_is_answered() {
        let silences = Silences::default();
        let first = silences.begin(10 * S, 0);
        assert_eq!(ms(&silences, 14), None, "it may take a while");
        assert_eq!(ms(&silences, 17), Some(7_000));
        silences.begin(17 * S, 0).answered(18 * S);
        assert_eq!((ms(&silences, 19), ms(&silences, 24)), (None, Some(6_000)), "others are answered");
        let large = silences.begin(24 * S, 60 * S);
        first.answered(24 * S);
        assert_eq!((ms(&silences, 80), ms(&silences, 90)), (None, Some(66_000)), "bytes take their time");
        drop(large);
        assert_eq!(ms(&silences, 900), None, "nobody asks");
    }

    #[test]
    fn failures_count_until_something_is_answered() {
        let silences = Silences::default();
        silences.begin(10 * S, 0).failed(10 * S, "refused");
        assert_eq!(ms(&silences, 11), None, "the next try may work");
        silences.begin(12 * S, 0).failed(12 * S, "no route");
        let silence = silences.silence(13 * S).unwrap();
        assert_eq!((silence.ms, silence.error.as_deref()), (3_000, Some("no route")));
        assert_eq!(ms(&silences, 100), None, "nobody asked since");
        let waiting = silences.begin(100 * S, 0);
        assert_eq!(ms(&silences, 101), Some(91_000));
        waiting.answered(101 * S);
        assert_eq!(ms(&silences, 102), None);
    }
}
