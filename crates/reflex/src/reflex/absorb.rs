//! Taking in what was seen. What is not understood is recorded once and changes nothing.

use super::Reflex;
use super::watch::Seen;
use crate::events::What;
use crate::objective::{Indicator, Measure};
use crate::observation::{Fact, Observation};
use crate::part::{Inventory, PartId, Plan, clip};
use crate::time::Time;

/// Critical warnings of a drive that are kept.
const WARNINGS_MAX: usize = 8;

impl Reflex {
    pub(super) fn absorb(&mut self, observation: &Observation) {
        match observation {
            Observation::Inventory(inventory) => self.take_inventory(inventory),
            Observation::Fact { part, at, fact } => {
                let complaint = match self.complaint(part, *at, fact) {
                    None => return self.take_fact(part, fact),
                    Some(complaint) => complaint,
                };
                self.record_once(What::Ignored, complaint);
            }
        }
    }

    fn take_inventory(&mut self, inventory: &Inventory) {
        if inventory.nodes.is_empty() {
            // Nobody has no nodes; somebody could not read the list.
            return self.record_once(What::Ignored, "an inventory without nodes".to_owned());
        }
        if self.inventory == *inventory {
            return;
        }
        self.inventory.clone_from(inventory);
        let plan = Plan::new(inventory);
        if plan.left_out > 0 {
            let complaint = format!("{} parts are too many or have names that are too long", plan.left_out);
            self.record_once(What::Ignored, complaint);
        }
        self.watches.retain(|part, _| plan.places.contains_key(part));
        for part in plan.places.keys() {
            self.watches.entry(part.clone()).or_default();
        }
        self.plan = plan;
    }

    /// Why a fact says nothing, if so.
    fn complaint(&self, part: &PartId, at: Time, fact: &Fact) -> Option<String> {
        // A part that is out may have left the inventory, and is still heard.
        if !self.plan.places.contains_key(part) && !self.memory.incidents.contains_key(part) {
            return Some(format!("there is no {}", clip(&part.to_string())));
        }
        if at.since_ms(self.now).max(self.now.since_ms(at)) > self.rows.stale_ms {
            return Some(format!("an observation of {part} is not of now"));
        }
        let (indicator, measure) = match fact {
            Fact::Latencies { indicator, .. } | Fact::Baseline { indicator, .. } => {
                (*indicator, Measure::Latency)
            }
            Fact::Counts { indicator, .. } => (*indicator, Measure::Share),
            Fact::Age { indicator, .. } => (*indicator, Measure::Age),
            _ => return None,
        };
        let fits = indicator.fits(part.kind) && indicator.spec().measure == measure;
        (!fits).then(|| format!("{} is not measured like this of {part}", indicator.word()))
    }

    fn take_fact(&mut self, part: &PartId, fact: &Fact) {
        let run_ms = self.run_ms();
        let watch = self.watches.entry(part.clone()).or_default();
        match fact {
            Fact::Latencies { indicator, latencies } => {
                let threshold_us = self.threshold_us(part, *indicator);
                let bad = threshold_us.map_or(0, |threshold_us| latencies.above(threshold_us));
                let good = threshold_us.map_or(0, |_| latencies.count() - bad);
                self.measure(part, *indicator, good, bad);
                let watch = self.watches.entry(part.clone()).or_default();
                if let Some(pending) = watch.pending.get_mut(indicator) {
                    pending.latencies.merge(latencies);
                    pending.threshold_us = threshold_us;
                }
            }
            Fact::Counts { indicator, good, bad } => self.measure(part, *indicator, *good, *bad),
            Fact::Age { indicator, age_us } => {
                if let Some(threshold_us) = self.threshold_us(part, *indicator) {
                    let bad = u64::from(*age_us > threshold_us);
                    self.measure(part, *indicator, 1 - bad, bad);
                }
            }
            Fact::Baseline { indicator, p99_us } => self.memory.set_baseline(part, *indicator, *p99_us),
            Fact::Smart { critical, used_percent } => {
                let words: Vec<String> = critical.iter().take(WARNINGS_MAX).map(|word| clip(word)).collect();
                let value = (words.join(", "), *used_percent);
                watch.smart = Some(Seen { value, since_ms: run_ms, last_ms: run_ms });
            }
            Fact::Presence(presence) => watch.see(*presence, run_ms),
            Fact::Duty(duty) => watch.duty = Some(Seen { value: *duty, since_ms: run_ms, last_ms: run_ms }),
            Fact::Evacuation { done, .. } => watch.is_empty = Some(*done),
            Fact::Gate { run, passed, words } => watch.gate = Some((*run, *passed, clip(words))),
            Fact::Repaired => watch.repaired = true,
            Fact::Replaced => watch.replaced = true,
            Fact::Refused { why } => watch.refused = Some(clip(why)),
        }
    }

    /// Adds to what a part has shown since its last verdict, and to the budget of the objective.
    fn measure(&mut self, part: &PartId, indicator: Indicator, good: u64, bad: u64) {
        if self.slo.objective(indicator).is_none() {
            return;
        }
        let run_ms = self.run_ms();
        self.memory.budgets.entry(indicator).or_default().add(run_ms, good, bad);
        let watch = self.watches.entry(part.clone()).or_default();
        let pending = watch
            .pending
            .entry(indicator)
            .or_insert_with(|| super::watch::Pending { from_ms: run_ms, ..Default::default() });
        pending.good = pending.good.saturating_add(good);
        pending.bad = pending.bad.saturating_add(bad);
    }
}
