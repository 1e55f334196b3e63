//! A fleet that breaks as it is told, shows what a driver would see, and does what it is ordered.

use std::collections::{BTreeMap, BTreeSet};

use stoker_reflex::events::What;
use stoker_reflex::table::{Event, State};
use stoker_reflex::*;

use crate::invariants::Invariants;

/// Milliseconds of a tick, which is a period.
pub const TICK_MS: u64 = 10_000;

/// What a sound drive and a sound node take, microseconds.
const SOUND_US: u64 = 1_000;

/// A drive, a port, or a node.
#[derive(Clone, Debug)]
pub struct Thing {
    pub presence: Presence,
    pub p99_us: u64,
    pub baseline_us: u64,
    pub errors: bool,
    pub warning: bool,
    pub worn: bool,
    pub duty: Duty,
    /// Nothing is seen of it.
    pub mute: bool,
    /// The gate finds something that nobody else sees.
    pub gate_fails: bool,
    /// The next quarantine cannot be carried out.
    pub refuses: bool,
    evacuated_at: Option<u64>,
    gate_at: Option<(u64, u64)>,
    /// Said in the next tick.
    pub says: Vec<Fact>,
}

impl Default for Thing {
    fn default() -> Thing {
        Thing {
            presence: Presence::Up,
            p99_us: SOUND_US,
            baseline_us: SOUND_US,
            errors: false,
            warning: false,
            worn: false,
            duty: Duty::Full,
            mute: false,
            gate_fails: false,
            refuses: false,
            evacuated_at: None,
            gate_at: None,
            says: Vec::new(),
        }
    }
}

impl Thing {
    pub fn is_sound(&self) -> bool {
        let is_quick = self.p99_us <= self.baseline_us * 3 / 2;
        self.presence == Presence::Up && is_quick && !self.errors && !self.warning && !self.worn
    }

    /// Makes it as good as new; what was decided about it stays.
    pub fn heal(&mut self) {
        let kept = self.clone();
        *self = Thing {
            duty: kept.duty,
            evacuated_at: kept.evacuated_at,
            gate_at: kept.gate_at,
            ..Thing::default()
        };
    }
}

/// The fleet with its loop.
pub struct Fleet {
    pub reflex: Reflex,
    pub slo: Slo,
    pub inventory: Inventory,
    pub things: BTreeMap<PartId, Thing>,
    pub now_ms: u64,
    pub tick: u64,
    /// Nothing at all is seen.
    pub is_mute: bool,
    /// Seen in the next tick beside everything else.
    pub extra: Vec<Observation>,
    /// Ticks until the gate answers.
    pub gate_ticks: u64,
    /// Ticks until a part is empty.
    pub evacuation_ticks: u64,
    /// What was to be done, without records, with the tick.
    pub log: Vec<String>,
    pub moves: BTreeSet<(PartKind, State, Event)>,
    pub invariants: Invariants,
}

/// Settings with short rows, for long stories.
pub fn short() -> Slo {
    let text = "[slo]\nmitigate_periods = 2\nquarantine_periods = 5\nrecover_periods = 3\nsettle_s = 10\ngate_timeout_s = 100\n[slo.quarantine]\nrack_pause_s = 100\noverruled_s = 1000";
    Slo::parse(text).unwrap()
}

impl Fleet {
    /// Racks with so many nodes each, of two switches, with so many drives and two ports each.
    pub fn new(slo: Slo, racks: &[usize], drives: usize) -> Fleet {
        let piece = |name: String| Piece { detail: format!("model of {name}"), name };
        let mut nodes = Vec::new();
        for (rack, count) in racks.iter().enumerate() {
            for at in 0..*count {
                nodes.push(NodePlace {
                    node: format!("n{rack}{at}"),
                    name: format!("gpu-{rack}-{at}"),
                    cell: format!("r{rack}"),
                    tor: format!("t{rack}{}", at % 2),
                    power: String::new(),
                    drives: (0..drives).map(|drive| piece(format!("/d{drive}"))).collect(),
                    ports: (0..2).map(|port| piece(format!("eth{port}"))).collect(),
                });
            }
        }
        let mut things = BTreeMap::new();
        for node in &nodes {
            things.insert(PartId::node(&node.node), Thing::default());
            for drive in &node.drives {
                things.insert(PartId::drive(&node.node, &drive.name), Thing::default());
            }
            for port in &node.ports {
                things.insert(PartId::port(&node.node, &port.name), Thing::default());
            }
        }
        let inventory = Inventory { cluster: "c1".into(), nodes, copies_needed: 2 };
        Fleet {
            reflex: Reflex::new(slo.clone(), Memory::default()),
            invariants: Invariants::new(&slo, &inventory),
            slo,
            inventory,
            things,
            now_ms: 1_700_000_000_000,
            tick: 0,
            is_mute: false,
            extra: Vec::new(),
            gate_ticks: 2,
            evacuation_ticks: 4,
            log: Vec::new(),
            moves: BTreeSet::new(),
        }
    }

    pub fn thing(&mut self, part: &str) -> &mut Thing {
        let id = part.parse().unwrap();
        self.things.entry(id).or_default()
    }

    /// What a driver sees now.
    fn observations(&mut self) -> Vec<Observation> {
        let at = Time(self.now_ms);
        let mut seen = Vec::new();
        if self.is_mute {
            return seen;
        }
        seen.push(Observation::Inventory(self.inventory.clone()));
        let up: BTreeSet<String> = self
            .things
            .iter()
            .filter(|(part, thing)| part.kind == PartKind::Node && thing.presence == Presence::Up)
            .map(|(part, _)| part.name.clone())
            .collect();
        for (part, thing) in &mut self.things {
            let node = part.name.split(':').next().unwrap_or_default();
            let is_reached = part.kind <= PartKind::Node || up.contains(node);
            if thing.mute || !is_reached {
                continue;
            }
            let mut say = |fact: Fact| seen.push(Observation::fact(part.clone(), at, fact));
            thing.says.drain(..).for_each(&mut say);
            if let Some((due, run)) = thing.gate_at.filter(|(due, _)| *due <= self.tick) {
                thing.gate_at = None;
                assert!(due <= self.tick);
                let passed = thing.is_sound() && !thing.gate_fails;
                say(Fact::Gate { run, passed, words: "measured".into() });
            }
            say(Fact::Presence(thing.presence));
            if part.kind < PartKind::Node {
                continue;
            }
            // Of a drive that failed nothing is known.
            if part.kind != PartKind::Drive || thing.presence != Presence::Down {
                say(Fact::Duty(thing.duty));
            }
            if thing.evacuated_at.is_some_and(|due| due <= self.tick) {
                say(Fact::Evacuation { files_left: 0, done: true });
            }
            if thing.presence != Presence::Up {
                continue;
            }
            let latencies = Latencies::new([(thing.p99_us, 200)]);
            match part.kind {
                PartKind::Node => {
                    let indicator = Indicator::CommitP99;
                    say(Fact::Baseline { indicator, p99_us: thing.baseline_us });
                    say(Fact::Latencies { indicator, latencies });
                }
                PartKind::Drive => {
                    let indicator = Indicator::DriveWriteP99;
                    say(Fact::Baseline { indicator, p99_us: thing.baseline_us });
                    say(Fact::Latencies { indicator, latencies });
                    let bad = u64::from(thing.errors) * 5;
                    say(Fact::Counts { indicator: Indicator::DriveErrors, good: 200 - bad, bad });
                    let critical = if thing.warning { vec!["media".to_owned()] } else { Vec::new() };
                    say(Fact::Smart { critical, used_percent: if thing.worn { 95 } else { 5 } });
                }
                _ => {}
            }
        }
        seen
    }

    /// One tick: look, decide, do.
    pub fn tick(&mut self) {
        self.tick += 1;
        self.now_ms += TICK_MS;
        let mut seen = self.observations();
        seen.append(&mut self.extra);
        let commands = self.reflex.step(Time(self.now_ms), &seen);
        self.invariants.check(self.tick, &commands, &self.reflex);
        for command in &commands {
            self.carry_out(command);
        }
    }

    pub fn ticks(&mut self, count: u64) {
        (0..count).for_each(|_| self.tick());
    }

    fn carry_out(&mut self, command: &Command) {
        if let Command::Record(recorded) = command {
            if let (Some(part), What::Moved { from, event, .. }) = (&recorded.part, &recorded.what) {
                self.moves.insert((part.kind, *from, *event));
            }
            return;
        }
        self.log.push(format!("{} {}", self.tick, line(command)));
        let tick = self.tick;
        match command {
            Command::Quarantine { part, .. } => {
                let thing = self.things.entry(part.clone()).or_default();
                match std::mem::take(&mut thing.refuses) {
                    true => thing.says.push(Fact::Refused { why: "no".into() }),
                    false => thing.duty = Duty::Quarantined,
                }
            }
            Command::Evacuate { part } => {
                let thing = self.things.entry(part.clone()).or_default();
                if thing.duty == Duty::Quarantined {
                    (thing.duty, thing.evacuated_at) = (Duty::Evacuating, Some(tick + self.evacuation_ticks));
                }
            }
            Command::RunGate { part, run } => {
                self.things.entry(part.clone()).or_default().gate_at = Some((tick + self.gate_ticks, *run));
            }
            Command::Rejoin { part } => {
                let thing = self.things.entry(part.clone()).or_default();
                (thing.duty, thing.evacuated_at) = (Duty::Full, None);
            }
            _ => {}
        }
    }

    /// Everything is kept, written, read and begun again, as after a restart.
    pub fn restart(&mut self) {
        let text = serde_json::to_string(self.reflex.memory()).unwrap();
        let memory: Memory = serde_json::from_str(&text).unwrap();
        assert_eq!(&memory, self.reflex.memory(), "what is kept is what was");
        self.reflex = Reflex::new(self.slo.clone(), memory);
        for command in self.reflex.standing() {
            self.carry_out(&command);
        }
    }

    pub fn state(&self, part: &str) -> State {
        let id: PartId = part.parse().unwrap();
        self.reflex
            .parts()
            .iter()
            .find(|status| status.part == id)
            .map_or(State::Healthy, |status| status.state)
    }

    /// What was to be done since the last time.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

/// A command in one short line.
pub fn line(command: &Command) -> String {
    let of = |order: &order::WorkOrder| {
        let part = order.part.as_ref().map_or_else(|| "objective".to_owned(), PartId::to_string);
        let kind = if order.kind == order::OrderKind::Escalation { " (escalation)" } else { "" };
        format!("{part}{kind}")
    };
    match command {
        Command::Reweight { part, percent } => format!("reweight {part} {percent}"),
        Command::StopPlacing { part } => format!("stop placing {part}"),
        Command::ResumePlacing { part } => format!("resume placing {part}"),
        Command::Quarantine { part, .. } => format!("quarantine {part}"),
        Command::Evacuate { part } => format!("evacuate {part}"),
        Command::OpenWorkOrder(order) => format!("open {}", of(order)),
        Command::UpdateWorkOrder(order) => format!("update {}", of(order)),
        Command::CloseWorkOrder(order) => format!("close {}", of(order)),
        Command::Escalate(order) => format!("escalate {}", of(order)),
        Command::Cordon { part, .. } => format!("cordon {part}"),
        Command::Uncordon { part } => format!("uncordon {part}"),
        Command::RunGate { part, .. } => format!("gate {part}"),
        Command::Rejoin { part } => format!("rejoin {part}"),
        Command::Record(recorded) => format!("record {}", recorded.reason),
    }
}
