//! Whether the lake answers. A call is given up only after several tries of half a minute each, and people want to know sooner. (D116)

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Timer;
use crate::error::LakeError;
use crate::types::Silence;

/// A request may take this long, beside the time that its bytes need, and failures may last this long, before anybody is told.
const TOLD_AFTER_US: u64 = 5_000_000;
/// What failed longer ago says nothing of now.
const RECENT_US: u64 = 60_000_000;

/// Requests under way, and what came of the last ones.
#[derive(Default)]
struct Beat {
    last_id: u64,
    /// When each began, and when it should be over.
    waiting: BTreeMap<u64, (u64, u64)>,
    answered_us: Option<u64>,
    failing: Option<Failing>,
}

struct Failing {
    since_us: u64,
    last_us: u64,
    message: String,
}

#[derive(Default)]
pub(super) struct Pulse(Mutex<Beat>);

impl Pulse {
    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins; its bytes need so long on the slowest way that is waited for.
    pub fn begin<'p>(&'p self, timer: &'p dyn Timer, bytes_us: u64) -> Waiting<'p> {
        let begun_us = timer.now_us();
        let mut beat = self.beat();
        beat.last_id += 1;
        let id = beat.last_id;
        beat.waiting.insert(id, (begun_us, begun_us + TOLD_AFTER_US + bytes_us));
        Waiting { pulse: self, timer, id, begun_us }
    }

    /// Since when it does not answer, and what was said last; none if it does, as far as anybody asked.
    pub fn silence(&self, now_us: u64) -> Option<Silence> {
        let beat = self.beat();
        let is_late = |(begun_us, due_us): &(u64, u64)| {
            *due_us < now_us && beat.answered_us.is_none_or(|answered_us| answered_us < *begun_us)
        };
        let late = beat.waiting.values().filter(|one| is_late(one)).map(|(begun_us, _)| *begun_us).min();
        let failing = beat.failing.as_ref().filter(|failing| {
            now_us.saturating_sub(failing.since_us) >= TOLD_AFTER_US
                && now_us.saturating_sub(failing.last_us) < RECENT_US
        });
        let since_us = late.into_iter().chain(failing.map(|failing| failing.since_us)).min()?;
        let message = beat.failing.as_ref().map(|failing| failing.message.clone());
        Some(Silence { for_ms: now_us.saturating_sub(since_us) / 1_000, message })
    }
}

/// A request that waits. Dropped without a word it says nothing of the lake: whoever asked went away.
pub(super) struct Waiting<'p> {
    pulse: &'p Pulse,
    timer: &'p dyn Timer,
    id: u64,
    begun_us: u64,
}

impl Waiting<'_> {
    /// The lake said something.
    pub fn answered(self) {
        let now_us = self.timer.now_us();
        let mut beat = self.pulse.beat();
        beat.answered_us = Some(now_us);
        beat.failing = None;
    }

    /// It could not be reached, or did not answer in time.
    pub fn failed(self, error: &LakeError) {
        let now_us = self.timer.now_us();
        let mut beat = self.pulse.beat();
        let since_us = beat.failing.take().map_or(self.begun_us, |failing| failing.since_us);
        beat.failing = Some(Failing { since_us, last_us: now_us, message: error.message.clone() });
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pulse.beat().waiting.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::types::BoxFuture;

    #[derive(Default)]
    struct Clock(AtomicU64);

    impl Clock {
        fn pass(&self, seconds: u64) {
            self.0.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
        }
    }

    impl Timer for Clock {
        fn now_us(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        fn sleep_ms(&self, _: u64) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn random(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_lake_that_does_not_answer_is_noticed_before_a_call_is_given_up() {
        let (pulse, clock) = (Pulse::default(), Clock::default());
        let silent_s = || pulse.silence(clock.now_us()).map(|silence| silence.for_ms / 1_000);
        let request = pulse.begin(&clock, 0);
        let large = pulse.begin(&clock, 20_000_000);
        clock.pass(4);
        assert_eq!(silent_s(), None);
        clock.pass(2);
        assert_eq!(silent_s(), Some(6));
        drop(request);
        assert_eq!(silent_s(), None, "who goes away says nothing, and the other one has more to send");
        clock.pass(20);
        assert_eq!(silent_s(), Some(26));
        pulse.begin(&clock, 0).answered();
        assert_eq!(silent_s(), None, "another request was answered");
        large.answered();

        let refused = || pulse.begin(&clock, 0).failed(&LakeError::unavailable("no route".to_owned()));
        refused();
        assert_eq!(silent_s(), None, "the next try may work");
        clock.pass(7);
        refused();
        let silence = pulse.silence(clock.now_us()).unwrap();
        assert_eq!((silence.for_ms, silence.message.as_deref()), (7_000, Some("no route")));
        clock.pass(61);
        assert_eq!(silent_s(), None, "nobody asked since");
        refused();
        assert!(silent_s().is_some());
        pulse.begin(&clock, 0).answered();
        assert_eq!(silent_s(), None);
    }
}
