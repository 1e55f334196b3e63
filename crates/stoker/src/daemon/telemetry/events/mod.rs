//! What happened, for people and programs: one JSON object for each event, in a file that is always written, to webhooks, and to Kafka.
//!
//! Events are found by comparing the numbers of the node every few seconds, so that no part of it has to know of them: what
//! `/metrics` shows is what events tell of. Each node tells what it sees itself; `about` is the same for the same thing.

mod changes;
mod delivery;
mod journal;
#[cfg(feature = "kafka")]
mod kafka;
mod webhook;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stoker_store::{Counter, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::fetch::Http;
use super::pause;
use crate::clock;
use crate::failure::Failure;
use changes::{Change, Seen};
use delivery::Delivery;
use journal::Journal;

/// How often the node is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for its numbers.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// The file in the node's directory, if nobody says otherwise.
const FILE: &str = "events.jsonl";

/// Who is told.
#[derive(Clone, Debug)]
pub struct EventsPlan {
    /// None: in the node's directory.
    pub file: Option<PathBuf>,
    /// A file that is longer is put aside; one such is kept.
    pub file_bytes_max: u64,
    pub webhooks: Vec<String>,
    /// Signs what webhooks are sent.
    pub webhook_secret_file: Option<PathBuf>,
    pub kafka: Option<KafkaPlan>,
}

/// Where events go in Kafka.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaPlan {
    /// Those that are asked first for the others: `host:port`.
    pub brokers: Vec<String>,
    pub topic: String,
}

impl KafkaPlan {
    /// Refuses what this program cannot do.
    pub fn check() -> Result<(), Failure> {
        match cfg!(feature = "kafka") {
            true => Ok(()),
            false => Err(Failure::new("`kafka` in [events] is set, but this stoker was built without Kafka")
                .hint("build it with `cargo build --release --features kafka`, or leave the setting out")),
        }
    }
}

impl Default for EventsPlan {
    fn default() -> EventsPlan {
        EventsPlan {
            file: None,
            file_bytes_max: 16 << 20,
            webhooks: Vec::new(),
            webhook_secret_file: None,
            kafka: None,
        }
    }
}

/// How much an event matters.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// May become an error.
    Warn,
    /// A person has to act.
    Error,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warn => "warn",
            Severity::Error => "error",
        }
    }
}

/// Whose events they are.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    pub node: String,
    pub node_id: String,
    pub cluster: String,
}

/// One event, as it is written and sent.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Counts the events of a node, over restarts.
    pub seq: u64,
    /// The same each time that the event is sent.
    pub id: String,
    pub time: String,
    #[serde(flatten)]
    pub origin: Origin,
    pub kind: String,
    pub severity: Severity,
    /// What it is about: the same on every node that tells of it.
    pub about: String,
    /// For people.
    pub words: String,
}

/// The events of this node. Clones are the same.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

struct Shared {
    origin: Origin,
    journal: Mutex<Journal>,
    /// By kind and severity; kinds are words of this program, so they are few.
    counts: Mutex<BTreeMap<(String, &'static str), u64>>,
    deliveries: Vec<Arc<Delivery>>,
    /// Grows with each event.
    last_seq: watch::Sender<u64>,
}

impl Events {
    /// Opens the file, and takes up what webhooks and Kafka were not sent before the node stopped.
    pub fn open(dir: &Path, plan: &EventsPlan, origin: Origin, http: &Http) -> Result<Events, Failure> {
        let path = plan.file.clone().unwrap_or_else(|| dir.join(FILE));
        let journal =
            Journal::open(&path, plan.file_bytes_max).map_err(|e| Failure::io(path.display(), &e))?;
        let secret = match &plan.webhook_secret_file {
            Some(path) => Some(webhook::read_secret(path)?),
            None => None,
        };
        let one = |url: &String| webhook::open(dir, url, secret.clone(), http.clone());
        let mut deliveries: Vec<Delivery> = plan.webhooks.iter().map(one).collect();
        deliveries.extend(to_kafka(dir, plan)?);
        let mut last_seq = journal.last_seq();
        for delivery in &deliveries {
            last_seq = last_seq.max(delivery.sent_seq());
            delivery.fill(journal.after(delivery.sent_seq()));
        }
        let deliveries = deliveries.into_iter().map(Arc::new).collect();
        let journal = Mutex::new(journal);
        let last_seq = watch::Sender::new(last_seq);
        Ok(Events(Arc::new(Shared { origin, journal, counts: Mutex::default(), deliveries, last_seq })))
    }

    /// Tells that the node runs, watches it, and sends events, until told to stop.
    pub fn start(&self, store: Arc<dyn Store>, stopped: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
        self.tell(Change::new(Severity::Info, "node_started", &self.0.origin.node, "the node runs".into()));
        let mut tasks = vec![tokio::spawn(self.clone().watch(store, stopped.clone()))];
        for delivery in &self.0.deliveries {
            let changed = self.0.last_seq.subscribe();
            tasks.push(tokio::spawn(delivery.clone().send_all(changed, stopped.clone())));
        }
        tasks
    }

    /// Tells that the node stops.
    pub fn stopping(&self) {
        let words = "the node was asked to stop".into();
        self.tell(Change::new(Severity::Info, "node_stopping", &self.0.origin.node, words));
    }

    async fn watch(self, store: Arc<dyn Store>, mut stopped: watch::Receiver<bool>) {
        let mut before: Option<Seen> = None;
        loop {
            let counters = match tokio::time::timeout(LOOK_MAX, store.counters()).await {
                Ok(Ok(counters)) => Some(counters),
                _ => None,
            };
            let now = Seen::of(counters.as_deref(), before.as_ref());
            if let Some(before) = &before {
                changes::between(before, &now).into_iter().for_each(|change| self.tell(change));
            }
            before = Some(now);
            if pause(LOOK_EVERY, &mut stopped).await {
                return;
            }
        }
    }

    /// Writes an event down and hands it to whoever sends it.
    fn tell(&self, change: Change) {
        let own = &self.0;
        let mut journal = own.journal.lock().unwrap();
        let seq = *own.last_seq.borrow() + 1;
        let now_ms = clock::unix_ms();
        let event = Event {
            seq,
            id: format!("{}-{now_ms:x}-{seq:x}", own.origin.node_id),
            time: clock::rfc3339(now_ms),
            origin: own.origin.clone(),
            kind: change.kind.to_owned(),
            severity: change.severity,
            about: format!("{}/{}", change.kind, change.subject),
            words: change.words,
        };
        // Where it cannot be written it is still sent.
        if let Err(error) = journal.write(&event) {
            tracing::error!("an event cannot be written to its file: {error}");
        }
        drop(journal);
        *own.counts.lock().unwrap().entry((event.kind.clone(), event.severity.as_str())).or_default() += 1;
        for delivery in &own.deliveries {
            delivery.fill([event.clone()]);
        }
        own.last_seq.send_replace(seq);
    }

    /// Numbers of events, and of those who are sent them.
    pub fn counters(&self) -> Vec<Counter> {
        let counts = self.0.counts.lock().unwrap();
        let mut all: Vec<Counter> = Vec::new();
        for ((kind, severity), count) in &*counts {
            let labels = [("kind", kind.as_str()), ("severity", *severity)];
            all.push(Counter::new("events_total", "Events since the start.", &labels, *count as f64));
        }
        drop(counts);
        let failures = self.0.journal.lock().unwrap().failures();
        let help = "Events that could not be written to their file.";
        all.push(Counter::new("events_unwritten_total", help, &[], failures as f64));
        all.extend(self.0.deliveries.iter().flat_map(|delivery| delivery.counters()));
        all
    }
}

#[cfg(feature = "kafka")]
fn to_kafka(dir: &Path, plan: &EventsPlan) -> Result<Option<Delivery>, Failure> {
    Ok(plan.kafka.as_ref().map(|plan| kafka::open(dir, plan)))
}

#[cfg(not(feature = "kafka"))]
fn to_kafka(_: &Path, plan: &EventsPlan) -> Result<Option<Delivery>, Failure> {
    plan.kafka.as_ref().map_or(Ok(None), |_| KafkaPlan::check().map(|()| None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object() {
        let origin = Origin { node: "n1".into(), node_id: "ab".into(), cluster: "c".into() };
        let dir = tempfile::tempdir().unwrap();
        let http = Http::new().unwrap();
        let events = Events::open(dir.path(), &EventsPlan::default(), origin.clone(), &http).unwrap();
        events.stopping();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(object["seq"], 1);
        assert_eq!(object["node_id"], "ab");
        assert_eq!(object["severity"], "info");
        assert_eq!(object["about"], "node_stopping/n1");
        assert_eq!(
            [Severity::Info, Severity::Warn, Severity::Error].map(Severity::as_str),
            ["info", "warn", "error"]
        );
        // The next start counts on.
        drop(events);
        let events = Events::open(dir.path(), &EventsPlan::default(), origin, &http).unwrap();
        events.stopping();
        assert_eq!(*events.0.last_seq.borrow(), 2);
    }
}
