//! The loop: detect, mitigate, quarantine, evacuate, repair, verify, rejoin. Observations and time in, commands out; nothing else
//! decides what is done about a part that breaks.
//!
//! What has to last is measured in time during which somebody looked ([`crate::time::Stopwatch`]), so that neither missing data nor
//! a clock that jumps is ever a breach.

mod absorb;
mod acts;
mod correlate;
mod judge;
mod memory;
mod react;
mod watch;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::breach::Rows;
use crate::budget::BudgetStatus;
use crate::command::Command;
use crate::config::Slo;
use crate::events::{Evidence, Recorded, What};
use crate::objective::{Indicator, SPECS};
use crate::observation::Observation;
use crate::part::{Inventory, PartId, Plan};
use crate::quarantine::Limits;
use crate::table::State;
use crate::time::{Passed, Time};

pub use memory::{INCIDENTS_MAX, Memory};

use correlate::Causes;
use watch::Watch;

/// Different complaints that are told once each.
const TOLD_MAX: usize = 64;

/// A part that is not healthy, for people and programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartStatus {
    /// Which.
    pub part: PartId,
    /// How it is treated.
    pub state: State,
    /// Since when it is not healthy.
    pub opened: Time,
    /// Why it is in this state.
    pub reason: String,
    /// How that is known.
    pub evidence: Vec<Evidence>,
    /// It has an open work order.
    pub has_order: bool,
}

/// The loop.
#[derive(Debug)]
pub struct Reflex {
    slo: Slo,
    rows: Rows,
    memory: Memory,
    inventory: Inventory,
    plan: Plan,
    watches: BTreeMap<PartId, Watch>,
    causes: Causes,
    /// Others seem silent because we are cut off.
    is_blind: bool,
    period_end_ms: u64,
    now: Time,
    told: BTreeSet<String>,
    commands: Vec<Command>,
}

impl Reflex {
    /// Begins, or goes on with what was kept by [`Reflex::memory`].
    pub fn new(slo: Slo, memory: Memory) -> Reflex {
        let rows = Rows {
            mitigate: slo.mitigate_periods.get(),
            quarantine: slo.quarantine_periods.get_ref().get(),
            recover: slo.recover_periods.get(),
            stale_ms: slo.stale_ms(),
        };
        Reflex {
            slo,
            rows,
            memory,
            inventory: Inventory::default(),
            plan: Plan::default(),
            watches: BTreeMap::new(),
            causes: Causes::new(),
            is_blind: false,
            period_end_ms: 0,
            now: Time::default(),
            told: BTreeSet::new(),
            commands: Vec::new(),
        }
    }

    /// Takes what was seen and says what is to be done. Called every few seconds, also when nothing was seen.
    ///
    /// The driver keeps [`Reflex::memory`] durably before it carries anything out; what it could not carry out because it died is
    /// in [`Reflex::standing`] of the next life.
    pub fn step(&mut self, now: Time, observations: &[Observation]) -> Vec<Command> {
        if !self.slo.enabled {
            return Vec::new();
        }
        self.now = now;
        let is_gap = self.memory.clock.advance(now, self.rows.stale_ms) == Passed::Gap;
        if is_gap {
            self.watches.values_mut().for_each(Watch::forget);
            self.period_end_ms = self.run_ms().saturating_add(self.slo.period_ms());
            let reason = "the clock was set, or nobody looked for a while; measurements begin anew";
            self.record(None, What::Forgot, reason.to_owned(), Vec::new());
        }
        for observation in observations {
            self.absorb(observation);
        }
        if is_gap {
            // Nobody knows over what time this was measured; it must not make the next period longer.
            self.watches.values_mut().for_each(|watch| watch.pending.clear());
        }
        let is_period_over = self.run_ms() >= self.period_end_ms;
        if is_period_over {
            self.period_end_ms = self.run_ms().saturating_add(self.slo.period_ms());
            self.judge_measures();
        }
        self.correlate();
        if is_period_over {
            self.judge_flags();
            self.judge_budgets();
        }
        self.react();
        self.watches.values_mut().for_each(Watch::end_step);
        std::mem::take(&mut self.commands)
    }

    /// What has to be kept for the next life.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Every part that is not healthy.
    pub fn parts(&self) -> Vec<PartStatus> {
        let status = |(part, incident): (&PartId, &memory::Incident)| PartStatus {
            part: part.clone(),
            state: incident.state,
            opened: incident.opened,
            reason: incident.reason.clone(),
            evidence: incident.evidence.clone(),
            has_order: incident.has_order,
        };
        self.memory.incidents.iter().map(status).collect()
    }

    /// How every objective does.
    pub fn budgets(&self) -> Vec<(Indicator, BudgetStatus)> {
        let run_ms = self.run_ms();
        let status = |indicator: Indicator| {
            let target = self.slo.objective(indicator)?.target;
            let budget = self.memory.budgets.get(&indicator).cloned().unwrap_or_default();
            Some((indicator, budget.status(run_ms, target)))
        };
        SPECS.iter().filter_map(|spec| status(spec.indicator)).collect()
    }

    /// Parts that are out of placement by our decision.
    pub fn out(&self) -> BTreeSet<PartId> {
        let is_out = |incident: &memory::Incident| incident.applied.quarantined;
        let incidents = self.memory.incidents.iter().filter(|(_, incident)| is_out(incident));
        incidents.map(|(part, _)| part.clone()).collect()
    }

    /// The threshold that is enforced of a part; none if nothing is.
    pub fn threshold_us(&self, part: &PartId, indicator: Indicator) -> Option<u64> {
        let objective = self.slo.objective(indicator)?;
        objective.threshold_us(self.memory.baseline_us(part, indicator), self.slo.factor())
    }

    /// What should be in force, in commands that change nothing if it is. For the first moment of a new life.
    pub fn standing(&self) -> Vec<Command> {
        let mut commands = Vec::new();
        for (part, incident) in &self.memory.incidents {
            let (part, applied) = (part.clone(), &incident.applied);
            if applied.percent != 100 {
                commands.push(Command::Reweight { part: part.clone(), percent: applied.percent });
            }
            if applied.placing_stopped {
                commands.push(Command::StopPlacing { part: part.clone() });
            }
            if applied.quarantined {
                commands.push(Command::Quarantine { part: part.clone(), reason: incident.reason.clone() });
                if !incident.is_evacuated && incident.state != State::Down {
                    commands.push(Command::Evacuate { part: part.clone() });
                }
            }
            if applied.cordoned {
                commands.push(Command::Cordon { part: part.clone(), reason: incident.reason.clone() });
            }
            if incident.state == State::Verifying {
                commands.push(Command::RunGate { part, run: incident.gate_run });
            }
        }
        commands.retain(|command| self.may(command));
        commands
    }

    fn run_ms(&self) -> u64 {
        self.memory.clock.run_ms()
    }

    fn limits(&self) -> Limits {
        Limits {
            rack_percent_max: *self.slo.quarantine.rack_percent_max.get_ref(),
            rack_pause_ms: self.slo.quarantine.rack_pause_s.saturating_mul(1_000),
        }
    }

    /// Whether a command is wanted: without `act` only those that tell, measure, or end what was done before.
    fn may(&self, command: &Command) -> bool {
        let ends = matches!(
            command,
            Command::Rejoin { .. } | Command::Uncordon { .. } | Command::ResumePlacing { .. }
        );
        self.slo.act || ends || !command.acts() || matches!(command, Command::RunGate { .. })
    }

    fn push(&mut self, command: Command) {
        if self.may(&command) {
            self.commands.push(command);
        }
    }

    fn record(&mut self, part: Option<&PartId>, what: What, reason: String, evidence: Vec<Evidence>) {
        self.memory.record_last += 1;
        let incident =
            part.and_then(|part| self.memory.incidents.get(part)).map_or(0, |incident| incident.number);
        self.push(Command::Record(Recorded {
            number: self.memory.record_last,
            at: self.now,
            part: part.cloned(),
            incident,
            what,
            reason,
            evidence,
        }));
    }

    /// Records a complaint, the first time.
    fn record_once(&mut self, what: What, complaint: String) {
        if self.told.len() < TOLD_MAX && self.told.insert(complaint.clone()) {
            self.record(None, what, complaint, Vec::new());
        }
    }
}
