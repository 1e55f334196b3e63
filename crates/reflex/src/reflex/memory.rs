//! What outlives a restart: incidents, budgets, baselines. Measurements do not; they are made anew, and until there are enough of
//! them nothing is decided.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::events::Evidence;
use crate::objective::Indicator;
use crate::part::{Location, PartId};
use crate::quarantine::Ledger;
use crate::table::State;
use crate::time::{Stopwatch, Time};

/// Incidents at once; more is one cause that nobody saw, and a person has to look.
pub const INCIDENTS_MAX: usize = 4_096;

/// Parts of which something is kept although nothing is wrong with them.
const KEPT_MAX: usize = 65_536;

/// How long an incident makes the next one of the same part last longer.
const PAST_MS: u64 = 86_400_000;

/// Doublings of what a part has to show before it is trusted again.
const DOUBLINGS_MAX: u32 = 4;

/// Everything that is kept.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub(crate) clock: Stopwatch,
    pub(crate) incidents: BTreeMap<PartId, Incident>,
    pub(crate) ledger: Ledger,
    pub(crate) budgets: BTreeMap<Indicator, Budget>,
    pub(crate) baselines: BTreeMap<PartId, BTreeMap<Indicator, u64>>,
    /// When persons put parts back that we had taken out.
    pub(crate) overruled: BTreeMap<PartId, u64>,
    pub(crate) past: BTreeMap<PartId, Past>,
    /// Counts incidents, gate runs and records.
    pub(crate) incident_last: u64,
    pub(crate) gate_last: u64,
    pub(crate) record_last: u64,
    /// When the alert of an objective was raised.
    pub(crate) burning: BTreeMap<Indicator, Time>,
}

/// Incidents of a part that are over.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Past {
    count: u32,
    last_ms: u64,
}

/// A part that is not healthy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Incident {
    pub number: u64,
    pub state: State,
    pub opened: Time,
    /// When it came to this state.
    pub since_ms: u64,
    pub reason: String,
    pub evidence: Vec<Evidence>,
    pub location: Location,
    /// What has to be good again.
    pub causes: BTreeSet<Indicator>,
    pub applied: Applied,
    pub has_order: bool,
    pub has_escalation: bool,
    pub is_evacuated: bool,
    /// Our decision was seen to be in force, so that its absence is somebody else's decision.
    pub is_duty_seen: bool,
    /// New chunks go on being put there, because too few others are left.
    pub is_stop_held: bool,
    pub gate_run: u64,
    /// When it could not be taken out although it should have been.
    #[serde(default)]
    pub refused_ms: Option<u64>,
}

/// What was done to a part and has to be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub percent: u8,
    pub placing_stopped: bool,
    pub quarantined: bool,
    pub cordoned: bool,
}

impl Incident {
    /// What was known and done of the old one does not hold of the new one.
    pub fn is_another(&mut self) {
        (self.applied.quarantined, self.is_duty_seen, self.is_evacuated) = (false, false, false);
    }
}

impl Default for Applied {
    fn default() -> Applied {
        Applied { percent: 100, placing_stopped: false, quarantined: false, cordoned: false }
    }
}

impl Memory {
    /// Leaves out what is told again: what the gate measured of parts, and how trouble was known.
    pub fn shorten(&mut self) {
        self.baselines.clear();
        for incident in self.incidents.values_mut() {
            incident.evidence.truncate(1);
        }
    }

    pub(crate) fn state(&self, part: &PartId) -> State {
        self.incidents.get(part).map_or(State::Healthy, |incident| incident.state)
    }

    pub(crate) fn baseline_us(&self, part: &PartId, indicator: Indicator) -> Option<u64> {
        self.baselines.get(part)?.get(&indicator).copied()
    }

    pub(crate) fn set_baseline(&mut self, part: &PartId, indicator: Indicator, p99_us: u64) {
        if self.baselines.len() < KEPT_MAX || self.baselines.contains_key(part) {
            self.baselines.entry(part.clone()).or_default().insert(indicator, p99_us);
        }
    }

    /// How many times as long as usual a part has to be good before it is trusted: it is more for one that was in trouble lately.
    pub(crate) fn doubt(&self, part: &PartId, run_ms: u64) -> u32 {
        let recent = |past: &&Past| run_ms.saturating_sub(past.last_ms) < PAST_MS;
        self.past.get(part).filter(recent).map_or(1, |past| 1 << past.count.min(DOUBLINGS_MAX))
    }

    pub(crate) fn note_end(&mut self, part: &PartId, run_ms: u64) {
        self.past.retain(|_, past| run_ms.saturating_sub(past.last_ms) < PAST_MS);
        if self.past.len() < KEPT_MAX || self.past.contains_key(part) {
            let past = self.past.entry(part.clone()).or_default();
            (past.count, past.last_ms) = (past.count.saturating_add(1), run_ms);
        }
    }

    pub(crate) fn note_overruled(&mut self, part: &PartId, run_ms: u64, lasts_ms: u64) {
        self.overruled.retain(|_, at_ms| run_ms.saturating_sub(*at_ms) < lasts_ms);
        self.overruled.insert(part.clone(), run_ms);
    }

    pub(crate) fn is_overruled(&self, part: &PartId, run_ms: u64, lasts_ms: u64) -> bool {
        self.overruled.get(part).is_some_and(|at_ms| run_ms.saturating_sub(*at_ms) < lasts_ms)
    }
}
