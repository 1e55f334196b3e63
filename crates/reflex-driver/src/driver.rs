//! Whoever leads the loop: looks at every node, lets the loop decide, writes down what it decided, and carries it out. What cannot be
//! carried out now is tried again; what it did before it died is in the note that the next leader begins with.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use stoker_node::{Node, Note};
use stoker_reflex::order::WorkOrder;
use stoker_reflex::table::State;
use stoker_reflex::{Command, Fact, Inventory, Observation, Outbox, PartId, Reflex, Slo, Time};
use stoker_store::{Measures, Order, Report, Store, StoreError};
use tokio::task::JoinHandle;

use super::hands::{Hands, Known};
use super::head::{Head, Kept, NOTE, WISHES, Wish};
use super::hooks::Hook;
use super::observer::{Look, Observer};
use super::sender::Sender;
use crate::clock;
use stoker_telemetry::{Change, Events, Severity};

/// Longest wait for what a node measured.
const ASK_MAX: Duration = Duration::from_secs(3);

/// Longest wait for the catalog when the note is written.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// Nodes that are asked at once.
const ASKED_MAX: usize = 32;

/// How often the memory is written although nothing was decided.
const KEEP_EVERY_MS: u64 = 60_000;

/// How often the head is written although nothing changed: others see that the leader lives.
const BEAT_EVERY_MS: u64 = 5_000;

/// Pause between two looks how far evacuations are: each goes through everything that is not in the lake.
const EVACUATIONS_EVERY_MS: u64 = 5_000;

/// What a leader needs beside the loop.
pub struct Means {
    pub node: Arc<Node>,
    pub cluster: String,
    pub slo: Slo,
    pub sender: Sender,
    pub hook: Option<Hook>,
    pub events: Events,
}

/// The leader.
pub struct Driver {
    means: Arc<Means>,
    reflex: Reflex,
    outbox: Outbox,
    hands: Hands,
    head: Head,
    seq: u64,
    observer: Observer,
    inventory: Inventory,
    evacuations: Evacuations,
    copies_needed: u32,
    /// Answers to commands, for the next step.
    heard: Vec<Observation>,
    kept_ms: u64,
    beat_ms: u64,
    is_changed: bool,
    /// What should be in force was not looked at yet.
    is_new: bool,
}

/// The leader is another one now.
pub struct Deposed;

impl Driver {
    /// Takes over from whoever led; none if somebody else was quicker. What cannot be read is not overwritten, unless a person said that
    /// it may be.
    pub async fn take_over(
        means: Arc<Means>,
        note: Option<&Note>,
        leader: &str,
        name: &str,
    ) -> Result<Option<Driver>, StoreError> {
        let body = match note {
            Some(note) => match means.node.note_body(NOTE, note).await? {
                Some(body) => body,
                None => return Ok(None),
            },
            None => Vec::new(),
        };
        let kept = match Kept::parse(&body) {
            Err(fault) if !may_reset(&means.node).await => return Err(fault),
            Err(fault) => {
                tracing::warn!("the break-fix loop begins anew, as somebody wished: {fault}");
                Kept::default()
            }
            Ok(kept) => kept,
        };
        let mut outbox = kept.outbox;
        outbox.keep_targets(|target| means.slo.target.iter().any(|known| known.name.get_ref() == target));
        let mut driver = Driver {
            head: Head { leader: leader.to_owned(), node: name.to_owned(), ..Head::default() },
            reflex: Reflex::new(means.slo.clone(), kept.memory),
            hands: Hands::new(means.clone(), kept.backlog),
            means,
            outbox,
            seq: 0,
            observer: Observer::default(),
            inventory: Inventory::default(),
            evacuations: Evacuations::default(),
            copies_needed: 1,
            heard: Vec::new(),
            kept_ms: 0,
            beat_ms: 0,
            is_changed: true,
            is_new: true,
        };
        match driver.write(note.map(|note| note.seq)).await? {
            true => Ok(Some(driver)),
            false => Ok(None),
        }
    }

    /// Whether a note is what this leader wrote last, also if nobody told it that it was written.
    pub fn is_mine(&mut self, note: Option<&Note>, head: &Head) -> bool {
        let Some(note) = note else { return false };
        if head.leader != self.head.leader {
            return false;
        }
        let is_landed = head.beat == self.head.beat;
        if is_landed {
            self.seq = note.seq;
        }
        is_landed || note.seq == self.seq
    }

    /// The commit of the note that this leader wrote last.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// One look, and what follows from it. False if it could not be written down, and so was not done.
    pub async fn step(&mut self) -> Result<bool, Deposed> {
        let now = Time(clock::unix_ms());
        self.hear_wishes(now).await;
        let ended = self.hands.reap(now, &mut self.outbox);
        self.heard.extend(ended);
        let observations = self.look(now).await;
        let (sole, ids) = (self.observer.sole(), self.observer.ids());
        let known = Known { inventory: &self.inventory, sole, ids };
        if std::mem::take(&mut self.is_new) {
            self.hands.resume(self.reflex.standing(), &known);
        }
        for command in self.reflex.step(now, &observations) {
            match command {
                Command::Record(record) => self.means.events.tell(told(&record)),
                Command::OpenWorkOrder(order)
                | Command::UpdateWorkOrder(order)
                | Command::CloseWorkOrder(order)
                | Command::Escalate(order) => notify(&mut self.outbox, &self.means.slo, &order, now),
                command => self.hands.push(command, &known),
            }
            self.is_changed = true;
        }
        self.hands.keep_to(&self.reflex.standing(), &self.reflex.out(), &known);
        let notices = self.hands.choose(&mut self.outbox, now);
        self.is_changed |= self.hands.take_changed() || !notices.is_empty();
        // Before anything is done, so that whoever comes next knows of it.
        let is_due = now.0.abs_diff(self.beat_ms) >= BEAT_EVERY_MS;
        if self.is_changed || is_due {
            let written = tokio::time::timeout(WRITE_MAX, self.write(Some(self.seq))).await;
            if let Ok(Ok(false)) = written {
                return Err(Deposed);
            }
            if !matches!(written, Ok(Ok(true))) {
                if let Ok(Err(fault)) = written {
                    tracing::warn!(
                        "what the loop decided cannot be written down, so it is not done: {fault}"
                    );
                }
                notices.iter().for_each(|notice| self.outbox.not_begun(notice.id));
                return Ok(false);
            }
        }
        self.hands.begin(now);
        self.hands.send(notices, now);
        Ok(true)
    }

    /// Takes what people said. Taken first and done then: a leader that dies between does not do it, and nobody was promised more.
    async fn hear_wishes(&mut self, now: Time) {
        let node = &self.means.node;
        let Ok(Ok(Some(note))) = tokio::time::timeout(ASK_MAX, node.note(WISHES)).await else { return };
        if note.head.is_empty()
            || !matches!(node.write_note(WISHES, Some(note.seq), b"", None).await, Ok(Some(_)))
        {
            return;
        }
        for line in String::from_utf8_lossy(&note.head).lines() {
            match serde_json::from_str(line) {
                Ok(Wish::Repaired(part)) => {
                    self.means.events.tell(Change::new(
                        Severity::Info,
                        "part_repaired",
                        &part.to_string(),
                        "somebody says that it was repaired".into(),
                    ));
                    self.heard.push(Observation::fact(part, now, Fact::Repaired));
                }
                Ok(Wish::Retry) => {
                    self.outbox.retry_all(now);
                    self.is_changed = true;
                }
                // Whoever leads could read it.
                Ok(Wish::Reset) => {}
                Err(fault) => tracing::warn!("a line for the break-fix loop is not understood: {fault}"),
            }
        }
    }

    /// Says by writing that the leader is alive; false if another one leads.
    async fn write(&mut self, seq: Option<u64>) -> Result<bool, StoreError> {
        let now_ms = clock::unix_ms();
        self.head.beat += 1;
        self.head.at_ms = now_ms;
        self.head.orders(&self.reflex);
        self.head.show(&self.reflex, &self.outbox, self.means.slo.act);
        let body = (self.is_changed || now_ms.abs_diff(self.kept_ms) >= KEEP_EVERY_MS).then(|| {
            let kept = Kept {
                memory: self.reflex.memory().clone(),
                outbox: self.outbox.clone(),
                backlog: self.hands.backlog(),
            };
            kept.to_bytes()
        });
        let head = self.head.fit();
        let Some(seq) = self.means.node.write_note(NOTE, seq, &head, body.as_deref()).await? else {
            return Ok(false);
        };
        (self.seq, self.beat_ms) = (seq, now_ms);
        if body.is_some() {
            (self.kept_ms, self.is_changed) = (now_ms, false);
        }
        Ok(true)
    }

    async fn look(&mut self, now: Time) -> Vec<Observation> {
        let node = &self.means.node;
        let peers = node.peers_seen();
        let answering = peers.iter().filter(|peer| peer.state != "down" && !peer.is_suspect);
        let asked: Vec<String> = answering.map(|peer| peer.node.clone()).collect();
        let ask = |id: String| async move {
            let order = Order::Measures { node: Some(id) };
            match tokio::time::timeout(ASK_MAX, node.operate(order)).await {
                Ok(Ok(Report::Measures(measures))) => Some(*measures),
                // Missing data, which is never a breach.
                _ => None,
            }
        };
        let measures: Vec<Option<Measures>> =
            stream::iter(asked).map(ask).buffer_unordered(ASKED_MAX).collect().await;
        let measures: Vec<Measures> = measures.into_iter().flatten().collect();
        if let Ok(Ok(copies)) = tokio::time::timeout(ASK_MAX, node.copies_needed()).await {
            self.copies_needed = copies;
        }
        let evacuating = peers.iter().filter(|peer| peer.duty == "evacuating");
        let evacuating = evacuating.map(|peer| peer.node.clone()).collect();
        let evacuations = self.evacuations.look(node, evacuating, now.0).await;
        let troubled: Vec<PartId> = self.reflex.parts().into_iter().map(|status| status.part).collect();
        let look = Look {
            now,
            cluster: &self.means.cluster,
            copies_needed: self.copies_needed,
            peers: &peers,
            measures: &measures,
            evacuations,
            troubled: &troubled,
            ordered: self.hands.ordered(),
        };
        let mut all = self.observer.observe(&look, &mut self.inventory);
        all.append(&mut self.heard);
        all
    }
}

fn notify(outbox: &mut Outbox, slo: &Slo, order: &WorkOrder, now: Time) {
    tracing::warn!(key = %order.key, "work order: {} ({})", order.title, order.reason);
    for target in &slo.target {
        outbox.push(target.name.get_ref(), order, now);
    }
}

/// Whether a person said that the loop may begin without what it kept.
async fn may_reset(node: &Node) -> bool {
    let Ok(Some(note)) = node.note(WISHES).await else { return false };
    let lines = String::from_utf8_lossy(&note.head);
    lines.lines().any(|line| matches!(serde_json::from_str(line), Ok(Wish::Reset)))
}

/// How far evacuations of nodes are: node, files left, done. Found out beside the looks, because it may take long.
#[derive(Default)]
struct Evacuations {
    found: Vec<(String, u64, bool)>,
    asking: Option<JoinHandle<Vec<(String, u64, bool)>>>,
    asked_ms: u64,
}

impl Evacuations {
    async fn look(
        &mut self,
        node: &Arc<Node>,
        under_way: Vec<String>,
        now_ms: u64,
    ) -> &[(String, u64, bool)] {
        if let Some(asking) = self.asking.take_if(|asking| asking.is_finished()) {
            self.found = asking.await.unwrap_or_default();
        }
        self.found.retain(|(of, ..)| under_way.contains(of));
        let is_due = now_ms.abs_diff(self.asked_ms) >= EVACUATIONS_EVERY_MS;
        if self.asking.is_none() && is_due && !under_way.is_empty() {
            self.asked_ms = now_ms;
            let node = node.clone();
            self.asking = Some(tokio::spawn(async move {
                let found = node.evacuations(&under_way).await.unwrap_or_default();
                found.into_iter().map(|one| (one.node, one.files_left, one.done)).collect()
            }));
        }
        &self.found
    }
}

/// A step of the loop as an event.
fn told(record: &stoker_reflex::events::Recorded) -> Change {
    use stoker_reflex::events::What;
    let subject = record.part.as_ref().map_or_else(|| "cluster".to_owned(), PartId::to_string);
    let (severity, kind, words) = match &record.what {
        What::Moved { from, to, .. } => {
            let severity = match to {
                State::Healthy | State::Shadowed | State::Verifying => Severity::Info,
                State::Escalated | State::Down | State::Quarantined => Severity::Error,
                _ => Severity::Warn,
            };
            (severity, "part_moved", format!("{} -> {}: {}", word(*from), word(*to), record.reason))
        }
        What::HeldBack => (Severity::Warn, "held_back", record.reason.clone()),
        What::Forgot => (Severity::Info, "measures_forgotten", record.reason.clone()),
        What::Ignored => (Severity::Info, "measures_ignored", record.reason.clone()),
        What::Burning => (Severity::Warn, "budget_burning", record.reason.clone()),
        What::Calm => (Severity::Info, "budget_calm", record.reason.clone()),
    };
    let evidence: Vec<String> = record.evidence.iter().map(stoker_reflex::order::words).collect();
    let words = if evidence.is_empty() { words } else { format!("{words} ({})", evidence.join("; ")) };
    Change::new(severity, kind, &subject, words)
}

fn word(state: State) -> String {
    serde_json::to_value(state).ok().and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}
