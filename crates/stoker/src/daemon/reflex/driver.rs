//! Whoever leads the loop: looks at every node, lets the loop decide, writes down what it decided, and carries it out. What cannot be
//! carried out now is tried again; what it did before it died is in the note that the next leader begins with.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use stoker_node::{Node, Note};
use stoker_reflex::order::WorkOrder;
use stoker_reflex::table::State;
use stoker_reflex::{Command, Fact, Inventory, Observation, Outbox, PartId, Reflex, Slo, Time};
use stoker_store::{ErrorKind, Measures, Order, Report, Store, StoreError};

use super::head::{Head, Kept, NOTE, WISHES, Wish, place_of};
use super::hooks::Hook;
use super::observer::{Look, Observer};
use super::sender::Sender;
use crate::clock;
use crate::daemon::telemetry::{Change, Events, Severity};

/// Longest wait for what a node measured.
const ASK_MAX: Duration = Duration::from_secs(3);

/// Nodes that are asked at once.
const ASKED_MAX: usize = 32;

/// What is tried again at the same time.
const TODO_MAX: usize = 256;

/// Times that a command is tried.
const TRIES_MAX: u32 = 100;

/// How often the memory is written although nothing was decided.
const KEEP_EVERY_MS: u64 = 60_000;

/// How often the head is written although nothing changed: others see that the leader lives.
const BEAT_EVERY_MS: u64 = 5_000;

/// Notices that are sent at once.
const SENDS_MAX: usize = 8;

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
    head: Head,
    seq: u64,
    observer: Observer,
    inventory: Inventory,
    copies_needed: u32,
    todo: Vec<(Command, u32)>,
    /// Answers to commands, for the next step.
    heard: Vec<Observation>,
    kept_ms: u64,
    beat_ms: u64,
    is_changed: bool,
}

/// The leader is another one now.
pub struct Deposed;

impl Driver {
    /// Takes over from whoever led; none if somebody else was quicker.
    pub async fn take_over(
        means: Arc<Means>,
        note: Option<&Note>,
        leader: &str,
        name: &str,
    ) -> Result<Option<Driver>, StoreError> {
        let kept: Kept = match note {
            Some(note) if !note.body.is_empty() => {
                serde_json::from_slice(&note.body).unwrap_or_else(|fault| {
                    tracing::error!("what the loop kept cannot be read, and it begins anew: {fault}");
                    Kept::default()
                })
            }
            _ => Kept::default(),
        };
        let mut outbox = kept.outbox;
        outbox.keep_targets(|target| means.slo.target.iter().any(|known| known.name.get_ref() == target));
        let reflex = Reflex::new(means.slo.clone(), kept.memory);
        let todo = reflex.standing().into_iter().map(|command| (command, 0)).collect();
        let mut driver = Driver {
            head: Head { leader: leader.to_owned(), node: name.to_owned(), ..Head::default() },
            means,
            reflex,
            outbox,
            seq: 0,
            observer: Observer::default(),
            inventory: Inventory::default(),
            copies_needed: 1,
            todo,
            heard: Vec::new(),
            kept_ms: 0,
            beat_ms: 0,
            is_changed: true,
        };
        match driver.write(note.map(|note| note.seq)).await? {
            true => Ok(Some(driver)),
            false => Ok(None),
        }
    }

    /// The commit of the note that this leader wrote last.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// One look, and what follows from it.
    pub async fn step(&mut self) -> Result<(), Deposed> {
        let now = Time(clock::unix_ms());
        self.hear_wishes(now).await;
        let observations = self.look(now).await;
        let commands = self.reflex.step(now, &observations);
        for command in commands {
            match command {
                Command::Record(record) => self.means.events.tell(told(&record)),
                Command::OpenWorkOrder(order)
                | Command::UpdateWorkOrder(order)
                | Command::CloseWorkOrder(order)
                | Command::Escalate(order) => self.notify(&order, now),
                // Every node reads these in the head.
                Command::Reweight { .. }
                | Command::StopPlacing { .. }
                | Command::ResumePlacing { .. }
                | Command::RunGate { .. } => {}
                command => {
                    // What was to be done and what is to be done now may contradict each other: the later one counts.
                    self.todo.retain(|(old, _)| part_of(old) != part_of(&command) || is_other(old, &command));
                    if self.todo.len() < TODO_MAX {
                        self.todo.push((command, 0));
                    }
                }
            }
            self.is_changed = true;
        }
        // Before anything is done, so that whoever comes next knows of it.
        let is_due = now.0.abs_diff(self.beat_ms) >= BEAT_EVERY_MS;
        if (self.is_changed || is_due) && !self.write(Some(self.seq)).await.unwrap_or(true) {
            return Err(Deposed);
        }
        self.carry_out(now).await;
        self.send(now).await;
        Ok(())
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
                Err(fault) => tracing::warn!("a line for the break-fix loop is not understood: {fault}"),
            }
        }
    }

    /// Whether the leader says that it is alive by writing; false if another one leads.
    async fn write(&mut self, seq: Option<u64>) -> Result<bool, StoreError> {
        let now_ms = clock::unix_ms();
        self.head.beat += 1;
        self.head.at_ms = now_ms;
        self.head.orders(&self.reflex);
        self.head.show(&self.reflex, &self.outbox, self.means.slo.act);
        let body = (self.is_changed || now_ms.abs_diff(self.kept_ms) >= KEEP_EVERY_MS).then(|| {
            let kept = Kept { memory: self.reflex.memory().clone(), outbox: self.outbox.clone() };
            serde_json::to_vec(&kept).expect("our own types are JSON")
        });
        let head = serde_json::to_vec(&self.head).expect("our own types are JSON");
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
        let mut evacuations = Vec::new();
        for peer in peers.iter().filter(|peer| peer.state == "evacuating") {
            let order = Order::Evacuation { node: peer.node.clone() };
            if let Ok(Ok(Report::Evacuation(it))) = tokio::time::timeout(ASK_MAX, node.operate(order)).await {
                evacuations.push((peer.node.clone(), it.files_left, it.done));
            }
        }
        let look = Look {
            now,
            cluster: &self.means.cluster,
            copies_needed: self.copies_needed,
            peers: &peers,
            measures: &measures,
            evacuations: &evacuations,
        };
        let mut all = self.observer.observe(&look, &mut self.inventory);
        all.append(&mut self.heard);
        all
    }

    fn notify(&mut self, order: &WorkOrder, now: Time) {
        tracing::warn!(key = %order.key, "work order: {} ({})", order.title, order.reason);
        for target in &self.means.slo.target {
            self.outbox.push(target.name.get_ref(), order, now);
        }
    }

    async fn carry_out(&mut self, now: Time) {
        for (command, tries) in std::mem::take(&mut self.todo) {
            match self.do_it(&command).await {
                Ok(()) => {}
                Err(fault) if is_final(&fault) => {
                    tracing::warn!(?command, "not done: {fault}");
                    if let Command::Quarantine { part, .. } = &command {
                        let fact = Fact::Refused { why: fault.message };
                        self.heard.push(Observation::fact(part.clone(), now, fact));
                    }
                }
                Err(fault) => {
                    tracing::warn!(?command, "not done yet: {fault}");
                    if tries + 1 < TRIES_MAX {
                        self.todo.push((command, tries + 1));
                    }
                }
            }
        }
    }

    /// The node that a decision about a part is about, and the drive if the node has others.
    fn target(&self, part: &PartId) -> Option<(String, Option<String>)> {
        let (node, drive) = place_of(part)?;
        let place = self.inventory.nodes.iter().find(|place| place.node == node);
        let is_sole = place.is_some_and(|place| place.drives.len() == 1);
        Some((node, drive.filter(|_| !is_sole)))
    }

    async fn do_it(&self, command: &Command) -> Result<(), StoreError> {
        let Some(part) = part_of(command) else { return Ok(()) };
        let Some((node, drive)) = self.target(part) else { return Ok(()) };
        let rest = |rests: bool, drive: &str| Order::DriveRest {
            node: node.clone(),
            drive: drive.to_owned(),
            rests,
        };
        let order = match (command, &drive) {
            (Command::Quarantine { .. } | Command::Evacuate { .. }, Some(drive)) => rest(true, drive),
            (Command::Rejoin { .. }, Some(drive)) => rest(false, drive),
            (Command::Quarantine { .. }, None) => Order::Quarantine { node, force: false },
            (Command::Evacuate { .. }, None) => Order::Evacuate { node, force: false },
            (Command::Rejoin { .. }, None) => Order::Rejoin { node },
            (Command::Cordon { reason, .. }, _) => return self.cordon(&node, Some(reason)).await,
            (Command::Uncordon { .. }, _) => return self.cordon(&node, None).await,
            _ => return Ok(()),
        };
        self.means.node.operate(order).await.map(drop)
    }

    async fn cordon(&self, node: &str, reason: Option<&str>) -> Result<(), StoreError> {
        let Some(hook) = &self.means.hook else { return Ok(()) };
        let place = self.inventory.nodes.iter().find(|place| place.node == node);
        let name = place.map_or(node, |place| place.name.as_str());
        let done = match reason {
            Some(reason) => hook.cordon(name, reason).await,
            None => hook.uncordon(name).await,
        };
        match done {
            Ok(words) => {
                let (kind, what) = match reason {
                    Some(_) => ("node_cordoned", "jobs are kept away from it"),
                    None => ("node_uncordoned", "jobs may come again"),
                };
                self.means.events.tell(Change::new(Severity::Info, kind, name, format!("{what}: {words}")));
                Ok(())
            }
            Err(why) => Err(StoreError::new(ErrorKind::Unavailable, why)),
        }
    }

    async fn send(&mut self, now: Time) {
        let due = self.outbox.due(now);
        let sender = &self.means.sender;
        let answers: Vec<_> = stream::iter(due.into_iter().take(SENDS_MAX))
            .map(|notice| async move { (notice.id, sender.send(&notice, now).await) })
            .buffer_unordered(SENDS_MAX)
            .collect()
            .await;
        for (id, answer) in answers {
            self.outbox.answered(id, now, answer);
            self.is_changed = true;
        }
    }
}

fn part_of(command: &Command) -> Option<&PartId> {
    match command {
        Command::Quarantine { part, .. }
        | Command::Evacuate { part }
        | Command::Cordon { part, .. }
        | Command::Uncordon { part }
        | Command::Rejoin { part } => Some(part),
        _ => None,
    }
}

/// Whether two commands about one part are about different things: the scheduler, and chunks.
fn is_other(old: &Command, new: &Command) -> bool {
    let of_jobs = |command: &Command| matches!(command, Command::Cordon { .. } | Command::Uncordon { .. });
    let both_take_out = matches!(old, Command::Quarantine { .. }) && matches!(new, Command::Evacuate { .. });
    of_jobs(old) != of_jobs(new) || both_take_out
}

/// Whether trying again does not help.
fn is_final(fault: &StoreError) -> bool {
    matches!(fault.kind, ErrorKind::Conflict | ErrorKind::Invalid | ErrorKind::NotFound)
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
