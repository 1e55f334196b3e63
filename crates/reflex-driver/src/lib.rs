//! The break-fix loop of a running node. Every node looks after its own parts ([`agent`]); one of them leads ([`driver`]): it
//! measures all, lets `stoker-reflex` decide, and carries out.
//!
//! Who leads is in a note of the catalog, which the leader writes every few seconds, and which is the row of its lease
//! ([`stoker_schema::lead`]). A leader who was replaced finds out when it writes, which it does before it acts.
//!
//! It must not decide what is broken (`stoker-reflex` does), and must not link the benches.

mod agent;
mod driver;
mod hands;
mod head;
mod hooks;
mod observer;
mod part_gate;
mod ports;
mod program;
mod sender;
mod senses;
mod smart;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stoker_admin::Source;
use stoker_node::{Node, Note};
use stoker_reflex::Slo;
use stoker_reflex::table::State;
use stoker_schema::lead::{self, Lease};
use stoker_store::{Counter, ErrorKind, NodeStatus, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use stoker_telemetry::{Change, Events, Http, Severity, pause};
use stoker_terminal::{clock, failure, small_file, sys};

use agent::Agent;
use driver::{Deposed, Driver, Means};
use failure::Failure;
pub use head::{Head, NOTE, WISHES, Wish};
use hooks::Hook;
pub use part_gate::{PartGate, SHORT_US, Sound};
use sender::Sender;
use senses::Senses;

/// Longest wait for the catalog.
const ASK_MAX: Duration = Duration::from_secs(5);

/// What was decided long ago and cannot be looked up any more does not hold.
const FREE_AFTER: Duration = Duration::from_secs(60);

/// Pause between two complaints that the loop cannot be led.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The loop as it runs in this node.
pub struct Reflexes {
    means: Arc<Means>,
    agent: Arc<Agent>,
    senses: Arc<Senses>,
    /// A name that no other process has, and one for people.
    leader: String,
    name: String,
    shown: Arc<Shown>,
}

/// What `/metrics` tells of it.
#[derive(Default)]
struct Shown {
    head: Mutex<Head>,
    leads: AtomicBool,
    steps: AtomicU64,
    troubles: AtomicU64,
    complained: Mutex<Option<Instant>>,
}

impl Reflexes {
    /// Checks what it needs; nothing runs yet.
    pub fn new(
        slo: &Slo,
        dir: &Path,
        node: &Arc<Node>,
        name: &str,
        status: &NodeStatus,
        (http, events): (Http, Events),
        gate: Arc<dyn PartGate>,
    ) -> Result<Reflexes, Failure> {
        let means = Means {
            node: node.clone(),
            cluster: status.cluster.clone(),
            slo: slo.clone(),
            sender: Sender::new(slo, http)?,
            hook: Hook::new(slo),
            events,
        };
        Ok(Reflexes {
            means: Arc::new(means),
            agent: Agent::new(node.clone(), &status.node, dir, gate),
            senses: Arc::new(Senses::new(node.clone(), &status.node)),
            leader: format!("{} {} {}", status.node, status.started_ms, std::process::id()),
            name: name.to_owned(),
            shown: Arc::default(),
        })
    }

    /// Where its numbers come from.
    pub fn source(&self) -> Source {
        let shown = self.shown.clone();
        Box::new(move || shown.counters())
    }

    /// Runs it until told to stop.
    pub fn start(self, stopped: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
        if !self.means.slo.enabled {
            return Vec::new();
        }
        let senses = self.senses.clone().follow(stopped.clone());
        vec![tokio::spawn(senses), tokio::spawn(self.run(stopped.clone()))]
    }

    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let mut lease = Lease::new(clock::now());
        let mut heard = clock::now();
        let mut driver: Option<Driver> = None;
        loop {
            let (agent, senses) = (self.agent.clone(), self.senses.clone());
            let tell = tokio::task::spawn_blocking(move || agent.tell(senses.drives(), senses.ports()));
            let _ = tell.await;
            match tokio::time::timeout(ASK_MAX, self.means.node.note(NOTE)).await {
                Ok(Ok(note)) => {
                    heard = clock::now();
                    self.poll(note, &mut lease, &mut driver).await;
                }
                // The catalog does not answer: nothing is known, so nothing is done.
                _ => {
                    add(&self.shown.troubles);
                    // Another one may lead by now.
                    driver = driver.filter(|_| heard.elapsed() < lead::FRESH);
                    if heard.elapsed() >= FREE_AFTER {
                        self.agent.be_free();
                    }
                }
            }
            self.shown.leads.store(driver.is_some(), Relaxed);
            if pause(lead::POLL_EVERY, &mut stopped).await {
                return;
            }
        }
    }

    /// Says why nothing is led, once a minute: it does not pass by itself.
    fn complain(&self, fault: &StoreError) {
        if fault.kind != ErrorKind::Corrupt {
            return tracing::debug!("the break-fix loop cannot be led: {fault}");
        }
        let mut told = self.shown.complained.lock().unwrap();
        if told.is_none_or(|told: Instant| told.elapsed() >= COMPLAIN_EVERY) {
            *told = Some(clock::now());
            tracing::error!("{fault}");
            let change = Change::new(Severity::Error, "loop_stopped", &self.name, fault.to_string());
            self.means.events.tell(change);
        }
    }

    /// One poll, with the note as it is now.
    async fn poll(&self, note: Option<Note>, lease: &mut Lease, driver: &mut Option<Driver>) {
        let head: Head =
            note.as_ref().and_then(|note| serde_json::from_slice(&note.head).ok()).unwrap_or_default();
        lease.saw(note.as_ref().map(|note| note.seq), clock::now());
        if driver.as_mut().is_some_and(|driver| !driver.is_mine(note.as_ref(), &head)) {
            tracing::info!(leader = %head.node, "another node leads the break-fix loop now");
            *driver = None;
        }
        let is_mine = head.leader == self.leader;
        if driver.is_none() && (is_mine || lease.is_free(clock::now())) {
            let taken = Driver::take_over(self.means.clone(), note.as_ref(), &self.leader, &self.name).await;
            match taken {
                Ok(taken) => {
                    if taken.is_some() {
                        tracing::info!("this node leads the break-fix loop");
                    }
                    *driver = taken;
                }
                Err(fault) => {
                    add(&self.shown.troubles);
                    self.complain(&fault);
                }
            }
        }
        let head = match driver.as_mut() {
            Some(leading) => match leading.step().await {
                Ok(is_written) => {
                    add(if is_written { &self.shown.steps } else { &self.shown.troubles });
                    lease.saw(Some(leading.seq()), clock::now());
                    leading.head().clone()
                }
                Err(Deposed) => {
                    *driver = None;
                    head
                }
            },
            None => head,
        };
        self.agent.keep_to(&head);
        *self.shown.head.lock().unwrap() = head;
    }
}

impl Shown {
    fn counters(&self) -> Vec<Counter> {
        let head = self.head.lock().unwrap();
        let of = |state: State| head.shown.parts.iter().filter(|part| part.state == state).count() as f64;
        let mut all: Vec<Counter> = STATES
            .iter()
            .map(|(state, word)| {
                let help =
                    "Parts of the cluster that are not healthy, by how the break-fix loop treats them.";
                Counter::new("reflex_parts", help, &[("state", word)], of(*state))
            })
            .collect();
        for budget in &head.shown.budgets {
            let labels = [("objective", budget.indicator.word())];
            let help = "Share of the error budget of thirty days that is left; below 0 it is overdrawn.";
            all.push(Counter::new("slo_budget_left_ratio", help, &labels, budget.status.left));
        }
        for budget in &head.shown.budgets {
            let labels = [("objective", budget.indicator.word())];
            let help = "1 while the error budget burns too fast.";
            let burning = f64::from(budget.status.burning.is_some());
            all.push(Counter::new("slo_budget_burning", help, &labels, burning));
        }
        let leads = f64::from(self.leads.load(Relaxed));
        for (name, help, value) in [
            ("reflex_leads", "1 if this node leads the break-fix loop.", leads),
            ("reflex_steps_total", "Looks of this node at the whole cluster.", load(&self.steps)),
            (
                "reflex_troubles_total",
                "Looks that failed because the catalog did not answer.",
                load(&self.troubles),
            ),
            (
                "reflex_notices_waiting",
                "Notices of work orders that nobody took yet.",
                head.shown.notices.len() as f64,
            ),
        ] {
            all.push(Counter::new(name, help, &[], value));
        }
        all
    }
}

/// Every state that a part which is not healthy can have.
const STATES: [(State, &str); 8] = [
    (State::Degraded, "degraded"),
    (State::Suspect, "suspect"),
    (State::Down, "down"),
    (State::Escalated, "escalated"),
    (State::Quarantined, "quarantined"),
    (State::Repair, "repair"),
    (State::Verifying, "verifying"),
    (State::Shadowed, "shadowed"),
];

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

fn load(counter: &AtomicU64) -> f64 {
    counter.load(Relaxed) as f64
}
