//! Events to somebody's URL, in their order, each until it was taken.
//!
//! What waits is bounded: beyond the bound the oldest are given up, and counted. The last one that was taken is remembered in a
//! file, and the events behind it are in the journal, so that a restart loses none that the journal has.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use http::{HeaderName, Method};
use serde::{Deserialize, Serialize};
use stoker_store::Counter;
use tokio::sync::watch;

use super::Event;
use crate::clock;
use crate::daemon::place::{read_small, write_small};
use crate::daemon::telemetry::fetch::Http;
use crate::daemon::telemetry::pause;
use crate::failure::Failure;
use crate::rng::Rng;

/// Events that wait.
const WAITING_MAX: usize = 10_000;
/// Pauses after failures: they double from the first to the second.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A receiver that says that it will never take this event is asked so often.
const REFUSALS_MAX: u32 = 5;

/// Signs a body: `t=UNIX_SECONDS,v1=HEX` of HMAC-SHA256 over `UNIX_SECONDS.BODY`.
const SIGNATURE: HeaderName = HeaderName::from_static("stoker-signature");
/// The same for each try.
const EVENT_ID: HeaderName = HeaderName::from_static("stoker-event-id");

/// What signs.
#[derive(Clone)]
pub struct Secret(Arc<hmac::Key>);

/// Reads it from its file; blanks at its ends do not count.
pub fn read_secret(path: &Path) -> Result<Secret, Failure> {
    let text = read_small(path)?.unwrap_or_default();
    let text = text.trim();
    if text.is_empty() {
        return Err(Failure::new(format!("{}: there is no secret for webhooks in it", path.display()))
            .hint("write one there, such as the output of `openssl rand -hex 32`"));
    }
    Ok(Secret(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, text.as_bytes()))))
}

impl Secret {
    fn sign(&self, unix_s: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{unix_s}.").as_bytes());
        context.update(body);
        format!("t={unix_s},v1={}", hex(context.sign().as_ref()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is remembered over restarts.
#[derive(Serialize, Deserialize, Default)]
struct Kept {
    sent_seq: u64,
}

/// One receiver.
pub struct Webhook {
    url: String,
    /// What it is called in numbers.
    label: String,
    /// Where the last event that it took is remembered.
    dir: PathBuf,
    file: String,
    secret: Option<Secret>,
    waiting: Mutex<VecDeque<Event>>,
    sent_seq: AtomicU64,
    sent: AtomicU64,
    failures: AtomicU64,
    given_up: AtomicU64,
    is_up: AtomicBool,
}

/// What came of a try.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Taken,
    /// It may be taken later.
    Failed(String),
    /// The receiver says that it never will.
    Refused(String),
}

impl Webhook {
    /// A receiver, and where it stood when the node stopped. `twins` are those before it that are called the same; one that was
    /// never there before is sent what comes behind `seq`, and not the past.
    pub fn open(dir: &Path, url: &str, twins: usize, secret: Option<Secret>, seq: u64) -> Webhook {
        let print = digest::digest(&digest::SHA256, url.as_bytes());
        let file = format!("webhook-{}.json", hex(&print.as_ref()[..8]));
        // One that cannot be read is begun anew: the receiver knows by its id what it has already.
        let kept: Kept = match read_small(&dir.join(&file)) {
            Ok(Some(text)) => serde_json::from_str(&text).unwrap_or_default(),
            Ok(None) => begin(dir, &file, seq),
            Err(_) => Kept::default(),
        };
        let label = match twins {
            0 => without_secrets(url).to_owned(),
            more => format!("{}#{}", without_secrets(url), more + 1),
        };
        let (waiting, sent, failures, given_up) = Default::default();
        Webhook {
            url: url.to_owned(),
            label,
            dir: dir.to_owned(),
            file,
            secret,
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
        self: Arc<Webhook>,
        http: Http,
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
                    () = super::super::told(&mut stopped) => {}
                }
                continue;
            };
            let outcome = self.send(&http, &event).await;
            refusals = if matches!(outcome, Outcome::Refused(_)) { refusals + 1 } else { 0 };
            match outcome {
                Outcome::Taken => {
                    self.is_up.store(true, Ordering::Relaxed);
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    self.done_with(event.seq).await;
                    tries = 0;
                    continue;
                }
                Outcome::Refused(words) if refusals >= REFUSALS_MAX => {
                    tracing::error!(
                        url = self.url,
                        kind = event.kind,
                        "a webhook does not take an event: {words}"
                    );
                    self.given_up.fetch_add(1, Ordering::Relaxed);
                    self.done_with(event.seq).await;
                    (tries, refusals) = (0, 0);
                    continue;
                }
                Outcome::Failed(words) | Outcome::Refused(words) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    // Told once, when it begins.
                    if self.is_up.swap(false, Ordering::Relaxed) {
                        tracing::warn!(url = self.url, "a webhook takes nothing; events are kept: {words}");
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

    async fn send(&self, http: &Http, event: &Event) -> Outcome {
        let body = match serde_json::to_vec(event) {
            Ok(body) => Bytes::from(body),
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        let mut headers =
            vec![(http::header::CONTENT_TYPE, "application/json".to_owned()), (EVENT_ID, event.id.clone())];
        if let Some(secret) = &self.secret {
            headers.push((SIGNATURE, secret.sign(clock::unix_ms() / 1_000, &body)));
        }
        match http.tell(Method::POST, &self.url, &headers, body).await {
            Ok(status) => outcome_of(status),
            Err(words) => Outcome::Failed(words),
        }
    }

    /// It needs not be sent again.
    async fn done_with(self: &Arc<Webhook>, seq: u64) {
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
            tracing::warn!("what a webhook took cannot be remembered: {}", failure.cause());
        }
    }

    pub fn counters(&self) -> Vec<Counter> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let labels = [("url", self.label.as_str())];
        let waiting = self.waiting.lock().unwrap().len();
        [
            (
                "webhook_up",
                "1 if a webhook took the last event that it was sent.",
                f64::from(self.is_up.load(Ordering::Relaxed)),
            ),
            ("webhook_waiting", "Events that wait for a webhook.", waiting as f64),
            ("webhook_sent_total", "Events that a webhook took.", load(&self.sent)),
            ("webhook_failures_total", "Tries to send an event that failed.", load(&self.failures)),
            (
                "webhook_given_up_total",
                "Events that a webhook refused, or that were too many to wait.",
                load(&self.given_up),
            ),
        ]
        .into_iter()
        .map(|(name, help, value)| Counter::new(name, help, &labels, value))
        .collect()
    }
}

/// Remembers where a receiver begins: a crash before it took something must not move that.
fn begin(dir: &Path, file: &str, seq: u64) -> Kept {
    let kept = Kept { sent_seq: seq };
    let written = serde_json::to_string(&kept).map(|text| write_small(dir, file, &text));
    if let Ok(Err(failure)) = written {
        tracing::warn!("where a webhook begins cannot be remembered: {}", failure.cause());
    }
    kept
}

/// Whether two receivers are called the same in numbers: two channels of one chat service are.
pub fn is_label_same(url: &str, other: &str) -> bool {
    without_secrets(url) == without_secrets(other)
}

/// A url without what may be a secret: chat services have theirs in the path.
fn without_secrets(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    match url[host..end].rfind('@') {
        Some(at) => &url[host + at + 1..end],
        None => &url[..end],
    }
}

fn outcome_of(status: u16) -> Outcome {
    let words = format!("it answers with status {status}");
    match status {
        200..=299 => Outcome::Taken,
        // What the event is, and not who sends it or where to: an expired word or a wrong path is mended by a person, and until
        // then nothing may be lost.
        400 | 406 | 409 | 413 | 415 | 422 => Outcome::Refused(words),
        _ => Outcome::Failed(words),
    }
}

/// Doubles, and is somewhere between half of that and all of it.
fn pause_after(tries: u32, rng: &mut Rng) -> Duration {
    let full = PAUSE_MIN.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX);
    let half_ms = full.as_millis() as u64 / 2;
    Duration::from_millis(half_ms + rng.below(half_ms + 1))
}

#[cfg(test)]
mod tests;
