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

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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
pub use changes::Change;
use changes::Seen;
use delivery::Delivery;
use journal::Journal;

/// How often the node is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for its numbers.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// Events that are remembered for those who ask; the file has more.
const RECENT_MAX: usize = 1_000;
/// The file in the node's directory, if nobody says otherwise.
const FILE: &str = "events.jsonl";

/// Who is told.
#[derive(Clone, Debug)]
pub struct EventsPlan {
    /// None: in the node's directory.
    pub file: Option<PathBuf>,
    /// A file that is longer is put aside; one such is kept.
    pub file_bytes_max: u64,
    /// URLs that each event is posted to.
    pub webhooks: Vec<String>,
    /// Signs what webhooks are sent.
    pub webhook_secret_file: Option<PathBuf>,
    /// None: not to Kafka.
    pub kafka: Option<KafkaPlan>,
}

/// Where events go in Kafka.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KafkaPlan {
    /// Those that are asked first for the others: `host:port`.
    pub brokers: Vec<String>,
    /// The topic.
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
    /// Its name.
    pub node: String,
    /// Its id.
    pub node_id: String,
    /// The id of its cluster.
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

impl Event {
    /// When it happened, milliseconds since 1970.
    fn at_ms(&self) -> u64 {
        self.id.rsplit('-').nth(1).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
    }

    /// As the API shows it.
    fn shown(&self) -> stoker_admin::Event {
        let subject = self.about.split_once('/').map_or("", |(_, subject)| subject);
        stoker_admin::Event {
            seq: self.seq,
            at_ms: self.at_ms(),
            level: self.severity.as_str().to_owned(),
            subject: self.kind.clone(),
            name: subject.to_owned(),
            words: self.words.clone(),
        }
    }
}

/// The events of this node. Clones are the same.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

struct Shared {
    origin: Origin,
    journal: Mutex<Journal>,
    /// Events that could not be written. Not the journal's own: who writes may hang, and numbers must not hang with it.
    unwritten: AtomicU64,
    /// The last ones, also from before the start.
    recent: Mutex<VecDeque<Event>>,
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
        let seq = journal.last_seq();
        let mut deliveries = Vec::new();
        for (at, url) in plan.webhooks.iter().enumerate() {
            let twins = plan.webhooks[..at].iter().filter(|other| webhook::is_label_same(other, url)).count();
            deliveries.push(webhook::open(dir, url, twins, secret.clone(), http.clone(), seq));
        }
        deliveries.extend(to_kafka(dir, plan, seq)?);
        let mut last_seq = seq;
        for delivery in &deliveries {
            last_seq = last_seq.max(delivery.sent_seq());
            delivery.fill(journal.after(delivery.sent_seq()));
        }
        let deliveries = deliveries.into_iter().map(Arc::new).collect();
        let mut recent = VecDeque::from(journal.after(0));
        recent.drain(..recent.len().saturating_sub(RECENT_MAX));
        Ok(Events(Arc::new(Shared {
            origin,
            journal: Mutex::new(journal),
            unwritten: AtomicU64::new(0),
            recent: Mutex::new(recent),
            counts: Mutex::default(),
            deliveries,
            last_seq: watch::Sender::new(last_seq),
        })))
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
            // What was bad before the first look was never told by this process.
            let then = before.take().unwrap_or_else(|| now.calm());
            let all = changes::between(&then, &now);
            if !all.is_empty() {
                let own = self.clone();
                // A disk may take its time.
                let told = tokio::task::spawn_blocking(move || all.into_iter().for_each(|one| own.tell(one)));
                let _ = told.await;
            }
            before = Some(now);
            if pause(LOOK_EVERY, &mut stopped).await {
                return;
            }
        }
    }

    /// Writes an event down and hands it to whoever sends it.
    pub fn tell(&self, change: Change) {
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
            own.unwritten.fetch_add(1, Ordering::Relaxed);
        }
        let mut recent = own.recent.lock().unwrap();
        if recent.len() >= RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(event.clone());
        drop(recent);
        *own.counts.lock().unwrap().entry((event.kind.clone(), event.severity.as_str())).or_default() += 1;
        for delivery in &own.deliveries {
            delivery.fill([event.clone()]);
        }
        own.last_seq.send_replace(seq);
        // Until here: two events at the same time must not have one number.
        drop(journal);
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
        let failures = self.0.unwritten.load(Ordering::Relaxed);
        let help = "Events that could not be written to their file.";
        all.push(Counter::new("events_unwritten_total", help, &[], failures as f64));
        all.extend(self.0.deliveries.iter().flat_map(|delivery| delivery.counters()));
        all
    }
}

impl stoker_admin::Events for Events {
    fn events(&self, after: u64, limit: usize) -> Vec<stoker_admin::Event> {
        let recent = self.0.recent.lock().unwrap();
        let newest: Vec<&Event> =
            recent.iter().rev().take_while(|event| event.seq > after).take(limit).collect();
        newest.into_iter().rev().map(Event::shown).collect()
    }
}

#[cfg(feature = "kafka")]
fn to_kafka(dir: &Path, plan: &EventsPlan, seq: u64) -> Result<Option<Delivery>, Failure> {
    Ok(plan.kafka.as_ref().map(|plan| kafka::open(dir, plan, seq)))
}

#[cfg(not(feature = "kafka"))]
fn to_kafka(_: &Path, plan: &EventsPlan, _: u64) -> Result<Option<Delivery>, Failure> {
    plan.kafka.as_ref().map_or(Ok(None), |_| KafkaPlan::check().map(|()| None))
}

#[cfg(test)]
mod tests {
    use stoker_admin::Events as _;

    use super::*;

    fn open(dir: &Path, plan: &EventsPlan, origin: Origin) -> Events {
        Events::open(dir, plan, origin, &Http::new().unwrap()).unwrap()
    }

    #[test]
    fn whoever_asks_gets_the_newest_also_those_of_before_a_restart() {
        let origin = Origin { node: "n1".into(), node_id: "a-b".into(), cluster: "c".into() };
        let dir = tempfile::tempdir().unwrap();
        let begun_ms = clock::unix_ms();
        let open = || open(dir.path(), &EventsPlan::default(), origin.clone());
        let events = open();
        events.tell(Change::new(Severity::Error, "drive_failed", "d/1", "it failed".into()));
        drop(events);
        let events = open();
        (0..RECENT_MAX).for_each(|_| events.stopping());
        assert_eq!(events.events(0, usize::MAX).len(), RECENT_MAX, "what is remembered is bounded");
        let last = RECENT_MAX as u64 + 1;
        let seqs =
            |after, limit| events.events(after, limit).iter().map(|event| event.seq).collect::<Vec<_>>();
        assert_eq!(seqs(0, 2), [last - 1, last], "the newest, oldest first");
        assert_eq!(seqs(last - 1, 9), [last]);
        assert_eq!(seqs(last, 9), [0; 0]);
        let failed = open().0.journal.lock().unwrap().after(0)[0].shown();
        assert_eq!((failed.seq, failed.level.as_str()), (1, "error"));
        assert_eq!((failed.subject.as_str(), failed.name.as_str()), ("drive_failed", "d/1"));
        assert!(failed.at_ms >= begun_ms && failed.at_ms <= clock::unix_ms(), "{failed:?}");
    }

    #[test]
    fn two_at_the_same_time_have_two_numbers() {
        let origin = Origin { node: "n1".into(), node_id: "ab".into(), cluster: "c".into() };
        let dir = tempfile::tempdir().unwrap();
        let events = open(dir.path(), &EventsPlan::default(), origin);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| events.stopping()));
            }
        });
        let seqs: Vec<u64> =
            events.0.journal.lock().unwrap().after(0).iter().map(|event| event.seq).collect();
        assert_eq!(seqs, (1..=400).collect::<Vec<_>>());
    }

    fn a_new_receiver_is_not_sent_the_past(plan: &EventsPlan, waiting: &str) {
        let origin = Origin { node: "n1".into(), node_id: "ab".into(), cluster: "c".into() };
        let dir = tempfile::tempdir().unwrap();
        let open = |plan: &EventsPlan| open(dir.path(), plan, origin.clone());
        let events = open(&EventsPlan::default());
        (0..3).for_each(|_| events.stopping());
        drop(events);
        let waiting =
            |events: &Events| events.counters().into_iter().find(|one| one.name == waiting).unwrap().value;
        let events = open(plan);
        assert_eq!(waiting(&events), 0.0);
        events.stopping();
        drop(events);
        // It is not new any more: what it missed waits for it.
        assert_eq!(waiting(&open(plan)), 1.0);
    }

    #[test]
    fn a_webhook_that_is_new_is_not_sent_the_past() {
        let plan = EventsPlan { webhooks: vec!["http://127.0.0.1:1/".to_owned()], ..EventsPlan::default() };
        a_new_receiver_is_not_sent_the_past(&plan, "webhook_waiting");
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn a_topic_that_is_new_is_not_sent_the_past() {
        let kafka = Some(KafkaPlan { brokers: vec!["127.0.0.1:1".into()], topic: "events".into() });
        a_new_receiver_is_not_sent_the_past(&EventsPlan { kafka, ..EventsPlan::default() }, "kafka_waiting");
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let origin = Origin { node: "n1".into(), node_id: "ab".into(), cluster: "c".into() };
        let dir = tempfile::tempdir().unwrap();
        let events = open(dir.path(), &EventsPlan::default(), origin.clone());
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
        let events = open(dir.path(), &EventsPlan::default(), origin);
        events.stopping();
        assert_eq!(*events.0.last_seq.borrow(), 2);
    }
}
