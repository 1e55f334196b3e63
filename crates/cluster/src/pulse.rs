//! Whether the catalog answers, as this node sees it, and since when it does not. (D93)
//!
//! Every call to the catalog goes through here. It is silent as long as calls wait for it and none was answered; who asked on behalf
//! of somebody who does not wait for ever ([`stoker_store::patience`]) is told so. How much of that patience is left is counted from
//! the moment the catalog fell silent, not from the call: otherwise a request that makes five calls would wait five times.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;

/// A catalog that answers nobody for so long is silent: longer than a busy one takes, and short enough that a view still answers
/// within two seconds.
pub const SILENT_AFTER: Duration = Duration::from_millis(1_200);

/// A call is given this long even if the catalog was silent before it: it may be back.
const CALL_MIN: Duration = Duration::from_secs(1);

/// A view of a catalog that is silent already waits this long: whether it is back shows only if somebody asks.
const PROBE: Duration = Duration::from_millis(400);

/// How often a view that is being made asks whether the catalog fell silent.
const POLL_EVERY: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Beat {
    /// Calls that wait for an answer.
    waiting: usize,
    /// Since when nobody was answered who asked.
    since: Option<Moment>,
    /// Since when reads fail, and what was said.
    failing: Option<(Moment, String)>,
}

impl Beat {
    /// A call that began then ended with a refusal.
    fn refused(&mut self, begun: Instant) {
        if begun.elapsed() < SILENT_AFTER {
            self.since = (self.waiting > 0).then(Moment::now);
        }
    }
}

#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    /// Milliseconds since 1970.
    ms: u64,
}

impl Moment {
    fn now() -> Moment {
        Moment { at: Instant::now(), ms: clock::now_ms() }
    }
}

/// A catalog that does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silence {
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
    /// What was said last, if anything was.
    pub last_error: Option<String>,
}

/// Whether the catalog answers.
#[derive(Default)]
pub struct Pulse(Mutex<Beat>);

impl Pulse {
    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins.
    pub fn begin(&self) -> Waiting<'_> {
        let mut beat = self.beat();
        beat.waiting += 1;
        beat.since.get_or_insert_with(Moment::now);
        drop(beat);
        Waiting { pulse: self, begun: Instant::now(), is_over: false }
    }

    /// Whether it does not answer now, and since when.
    pub fn silence(&self) -> Option<Silence> {
        let beat = self.beat();
        let last_error = beat.failing.as_ref().map(|(_, last_error)| last_error.clone());
        let silent = beat.since.filter(|since| since.at.elapsed() >= SILENT_AFTER);
        let since_ms = [silent.map(|since| since.ms), beat.failing.as_ref().map(|(since, _)| since.ms)];
        since_ms.into_iter().flatten().min().map(|since_ms| Silence { since_ms, last_error })
    }

    /// Calls wait and nobody is answered. Not so if it refuses at once: whoever asks learns that by asking.
    pub fn is_silent(&self) -> bool {
        self.beat().since.is_some_and(|since| since.at.elapsed() >= SILENT_AFTER)
    }

    /// Waits until there is no use in waiting for it.
    pub async fn until_silent(&self) {
        if self.is_silent() {
            tokio::time::sleep(PROBE).await;
        }
        while !self.is_silent() {
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// When a call that began then is given up if nobody is answered, for somebody who waits so long.
    fn give_up_at(&self, begun: Instant, limit: Duration) -> Instant {
        let since = self.beat().since.map_or_else(Instant::now, |since| since.at);
        (begun + CALL_MIN.min(limit)).max(since + limit)
    }

    /// Waits for a call as long as whoever asked does; none if it was given up, with the time for which nobody was answered.
    pub async fn within_patience<T>(&self, call: impl Future<Output = T>) -> Result<T, Duration> {
        let Some(limit) = stoker_store::patience() else { return Ok(call.await) };
        let begun = Instant::now();
        let mut call = std::pin::pin!(call);
        loop {
            let end = self.give_up_at(begun, limit);
            tokio::select! {
                biased;
                answer = &mut call => return Ok(answer),
                () = tokio::time::sleep_until(end) => {}
            }
            // Others may have been answered meanwhile.
            if self.give_up_at(begun, limit) <= Instant::now() {
                let since = self.beat().since.map_or(begun, |since| since.at);
                return Err(since.elapsed());
            }
        }
    }
}

/// A call that waits. Dropped without a word, it says nothing of the catalog: whoever asked went away.
pub struct Waiting<'p> {
    pulse: &'p Pulse,
    begun: Instant,
    is_over: bool,
}

impl Waiting<'_> {
    /// It was answered.
    pub fn answered(mut self) {
        let mut beat = self.leave();
        beat.since = (beat.waiting > 0).then(Moment::now);
        beat.failing = None;
    }

    /// It could not be read, and this was said. A refusal at once is an answer of a kind: those behind it are not to be told that
    /// they wait in vain.
    pub fn failed(mut self, last_error: &str) {
        let begun = self.begun;
        let mut beat = self.leave();
        let since = beat.since.unwrap_or_else(Moment::now);
        let since = beat.failing.take().map_or(since, |(since, _)| since);
        beat.failing = Some((since, last_error.to_owned()));
        beat.refused(begun);
    }

    /// It could not be changed, which says nothing of whether it can be read.
    pub fn refused(mut self) {
        let begun = self.begun;
        self.leave().refused(begun);
    }

    fn leave(&mut self) -> MutexGuard<'_, Beat> {
        self.is_over = true;
        let mut beat = self.pulse.beat();
        beat.waiting -= 1;
        beat
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut beat = self.leave();
        let is_short = beat.since.is_some_and(|since| since.at.elapsed() < SILENT_AFTER);
        if beat.waiting == 0 && is_short {
            beat.since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pass(ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_silent_while_calls_wait_and_none_is_answered() {
        let pulse = Pulse::default();
        let first = pulse.begin();
        pass(1_000).await;
        let second = pulse.begin();
        assert!(!pulse.is_silent());
        second.answered();
        pass(1_000).await;
        assert!(!pulse.is_silent(), "another call was answered");
        pass(300).await;
        assert!(pulse.is_silent() && pulse.silence().is_some());
        first.answered();
        assert_eq!((pulse.is_silent(), pulse.silence()), (false, None));
        pass(60_000).await;
        assert!(!pulse.is_silent(), "nobody asks");
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_away_says_nothing_and_who_is_refused_does() {
        let pulse = Pulse::default();
        drop(pulse.begin());
        pass(5_000).await;
        assert_eq!(pulse.silence(), None);
        pulse.begin().failed("connection refused");
        assert!(!pulse.is_silent(), "it says no at once");
        assert_eq!(pulse.silence().unwrap().last_error.as_deref(), Some("connection refused"));
        let call = pulse.begin();
        pass(30_000).await;
        call.failed("no answer");
        assert!(pulse.is_silent());
        pulse.begin().answered();
        assert_eq!(pulse.silence(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn patience_is_counted_from_the_silence_and_not_from_the_call() {
        let pulse = Pulse::default();
        let ask = async || {
            let call = async {
                let waiting = pulse.begin();
                std::future::pending::<()>().await;
                drop(waiting);
            };
            let begun = Instant::now();
            let limit = Some(Duration::from_secs(10));
            let given_up = stoker_store::patiently(limit, pulse.within_patience(call)).await;
            assert!(given_up.is_err());
            begun.elapsed().as_secs()
        };
        let _other = pulse.begin();
        assert_eq!((ask().await, ask().await, ask().await), (10, 1, 1));
        assert_eq!(pulse.within_patience(async { 7 }).await, Ok(7), "who waits as long as it takes");
    }
}
