//! Events to somebody, in their order, each until it was taken.
//!
//! What waits is bounded: beyond the bound the oldest are given up, and counted. The last one that was taken is remembered in a
//! file, and the events behind it are in the journal, so that a restart loses none that the journal has.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};
use stoker_store::{BoxFuture, Counter};
use tokio::sync::watch;

use super::Event;
use crate::clock;
use crate::rng::Rng;
use crate::small_file::{read_small, write_small};
use crate::{pause, told};

/// Events that wait.
const WAITING_MAX: usize = 10_000;
/// Pauses after failures: they double from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A receiver that says that it will never take this event is asked so often.
pub const REFUSALS_MAX: u32 = 5;

/// What came of a try.
#[derive(PartialEq, Eq, Debug)]
pub enum Outcome {
    Taken,
    /// It may be taken later.
    Failed(String),
    /// The receiver says that it never will.
    Refused(String),
}

/// Who takes events.
pub trait Receiver: Send + Sync {
    /// Sends one event, within a bounded time.
    fn send<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Outcome>;
}

/// How a receiver is called.
#[derive(Clone, Copy)]
pub struct Sort {
    /// In names of numbers and files.
    pub name: &'static str,
    /// The label that tells receivers of this sort apart.
    pub label: &'static str,
    /// For people.
    pub words: &'static str,
}

/// What is remembered over restarts.
#[derive(Serialize, Deserialize, Default)]
struct Kept {
    sent_seq: u64,
}

/// Events on their way to one receiver.
pub struct Delivery {
    sort: Sort,
    /// Which receiver, without secrets.
    whose: String,
    receiver: Box<dyn Receiver>,
    /// Where the last event that it took is remembered.
    dir: PathBuf,
    file: String,
    waiting: Mutex<VecDeque<Event>>,
    sent_seq: AtomicU64,
    sent: AtomicU64,
    failures: AtomicU64,
    given_up: AtomicU64,
    is_up: AtomicBool,
}

impl Delivery {
    /// A receiver, and where it stood when the node stopped. `identity` tells it from others of its sort, over restarts, and `whose`
    /// in numbers. One that was never there before is sent what comes behind `seq`, and not the past.
    pub fn open(
        dir: &Path,
        sort: Sort,
        identity: &str,
        whose: String,
        receiver: Box<dyn Receiver>,
        seq: u64,
    ) -> Delivery {
        let print = digest::digest(&digest::SHA256, identity.as_bytes());
        let file = format!("{}-{}.json", sort.name, hex(&print.as_ref()[..8]));
        // One that cannot be read is begun anew: the receiver knows by its id what it has already.
        let kept: Kept = match read_small(&dir.join(&file)) {
            Ok(Some(text)) => serde_json::from_str(&text).unwrap_or_default(),
            Ok(None) => begin(dir, &file, sort, seq),
            Err(_) => Kept::default(),
        };
        let (waiting, sent, failures, given_up) = Default::default();
        Delivery {
            sort,
            whose,
            receiver,
            dir: dir.to_owned(),
            file,
            waiting,
            sent_seq: AtomicU64::new(kept.sent_seq),
            sent,
            failures,
            given_up,
            is_up: AtomicBool::new(true),
        }
    }

    /// The last event that it took.
    pub fn sent_seq(&self) -> u64 {
        self.sent_seq.load(Ordering::Relaxed)
    }

    /// Hands over events.
    pub fn fill(&self, events: impl IntoIterator<Item = Event>) {
        let mut waiting = self.waiting.lock().unwrap();
        for event in events {
            if waiting.len() >= WAITING_MAX {
                waiting.pop_front();
                self.given_up.fetch_add(1, Ordering::Relaxed);
            }
            waiting.push_back(event);
        }
    }

    /// Sends what waits, as long as the node runs. `changed` tells that something may wait.
    pub async fn send_all(
        self: Arc<Delivery>,
        mut changed: watch::Receiver<u64>,
        mut stopped: watch::Receiver<bool>,
    ) {
        // Nodes that saw the same must not knock at the same time.
        let mut rng = Rng::new(clock::unix_ms() ^ u64::from(std::process::id()));
        let (mut tries, mut refusals) = (0u32, 0u32);
        loop {
            changed.mark_unchanged();
            let first = self.waiting.lock().unwrap().front().cloned();
            let Some(event) = first else {
                if *stopped.borrow() {
                    return;
                }
                tokio::select! {
                    biased;
                    // What is told at the end is sent, too, if there is somebody who takes it.
                    woken = changed.changed() => if woken.is_err() { return },
                    () = told(&mut stopped) => {}
                }
                continue;
            };
            let outcome = self.receiver.send(&event).await;
            refusals = if matches!(outcome, Outcome::Refused(_)) { refusals + 1 } else { 0 };
            let (what, to) = (self.sort.words, &self.whose);
            match outcome {
                Outcome::Taken => {
                    self.is_up.store(true, Ordering::Relaxed);
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    self.done_with(event.seq).await;
                    tries = 0;
                    continue;
                }
                Outcome::Refused(words) if refusals >= REFUSALS_MAX => {
                    tracing::error!(to, kind = event.kind, "{what} does not take an event: {words}");
                    self.given_up.fetch_add(1, Ordering::Relaxed);
                    self.done_with(event.seq).await;
                    (tries, refusals) = (0, 0);
                    continue;
                }
                Outcome::Failed(words) | Outcome::Refused(words) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    // Told once, when it begins.
                    if self.is_up.swap(false, Ordering::Relaxed) {
                        tracing::warn!(to, "{what} takes nothing; events are kept: {words}");
                    }
                }
            }
            // Without a receiver nothing is gained by waiting: the next start sends it.
            if *stopped.borrow() || pause(pause_after(tries, &mut rng), &mut stopped).await {
                return;
            }
            tries = tries.saturating_add(1);
        }
    }

    /// It needs not be sent again.
    async fn done_with(self: &Arc<Delivery>, seq: u64) {
        {
            let mut waiting = self.waiting.lock().unwrap();
            // It may have been given up meanwhile, for want of room.
            if waiting.front().is_some_and(|event| event.seq == seq) {
                waiting.pop_front();
            }
        }
        self.sent_seq.store(seq, Ordering::Relaxed);
        let own = self.clone();
        let kept = tokio::task::spawn_blocking(move || {
            let text = serde_json::to_string(&Kept { sent_seq: seq }).unwrap_or_default();
            write_small(&own.dir, &own.file, &text)
        });
        // Otherwise it is sent twice after a restart, with the same id.
        if let Ok(Err(failure)) = kept.await {
            tracing::warn!("what {} took cannot be remembered: {}", self.sort.words, failure.cause());
        }
    }

    pub fn counters(&self) -> Vec<Counter> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let labels = [(self.sort.label, self.whose.as_str())];
        let waiting = self.waiting.lock().unwrap().len();
        let who = self.sort.words;
        [
            (
                "up",
                format!("1 if {who} took the last event that it was sent."),
                f64::from(self.is_up.load(Ordering::Relaxed)),
            ),
            ("waiting", format!("Events that wait for {who}."), waiting as f64),
            ("sent_total", format!("Events that {who} took."), load(&self.sent)),
            ("failures_total", "Tries to send an event that failed.".to_owned(), load(&self.failures)),
            (
                "given_up_total",
                format!("Events that {who} refused, or that were too many to wait."),
                load(&self.given_up),
            ),
        ]
        .into_iter()
        .map(|(name, help, value)| Counter::new(&format!("{}_{name}", self.sort.name), &help, &labels, value))
        .collect()
    }
}

/// Remembers where a receiver begins: a crash before it took something must not move that.
fn begin(dir: &Path, file: &str, sort: Sort, seq: u64) -> Kept {
    let kept = Kept { sent_seq: seq };
    let written = serde_json::to_string(&kept).map(|text| write_small(dir, file, &text));
    if let Ok(Err(failure)) = written {
        tracing::warn!("where {} begins cannot be remembered: {}", sort.words, failure.cause());
    }
    kept
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Doubles, and is somewhere between half of that and all of it.
fn pause_after(tries: u32, rng: &mut Rng) -> Duration {
    let full = PAUSE_MIN.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX);
    let half_ms = full.as_millis() as u64 / 2;
    Duration::from_millis(half_ms + rng.below(half_ms + 1))
}

#[cfg(test)]
pub mod tests;
