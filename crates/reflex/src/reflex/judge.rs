//! What a period was: good, bad, odd, or nothing to go by.

use std::collections::BTreeMap;

use super::Reflex;
use super::correlate;
use super::watch::{Pending, Seen};
use crate::anomaly::{Usual, usual};
use crate::breach::{Finding, Verdict};
use crate::budget::Burn;
use crate::command::Command;
use crate::events::{Evidence, What};
use crate::objective::{Indicator, Measure, Objective, Reaction, SPECS, words_us};
use crate::order::{OrderKind, OrderStatus, Severity, WorkOrder};
use crate::part::{Location, PartId};

impl Reflex {
    /// Verdicts on everything that was measured often enough since the last one.
    pub(super) fn judge_measures(&mut self) {
        let run_ms = self.run_ms();
        let mut ripe: BTreeMap<Indicator, Vec<(PartId, Pending)>> = BTreeMap::new();
        for (part, watch) in &mut self.watches {
            watch.expire(run_ms, &self.rows);
            // From one that is in trouble, work goes elsewhere; what it still does has to be enough.
            let is_troubled = self.memory.incidents.contains_key(part);
            for (indicator, pending) in std::mem::take(&mut watch.pending) {
                let Some(objective) = self.slo.objective(indicator) else { continue };
                let samples = pending.latencies.count().max(pending.good.saturating_add(pending.bad));
                let is_proven = || {
                    let bad_max = (1.0 - objective.target) * objective.samples_min as f64;
                    is_troubled && pending.bad as f64 > bad_max
                };
                if samples < objective.samples_min && !is_proven() {
                    watch.pending.insert(indicator, pending);
                } else if indicator.spec().reaction != Reaction::Tell {
                    ripe.entry(indicator).or_default().push((part.clone(), pending));
                }
            }
        }
        for (indicator, all) in ripe {
            let Some(objective) = self.slo.objective(indicator) else { continue };
            let usual = self.usual(indicator, &all);
            for (part, pending) in all {
                if let Some(verdict) = verdict(indicator, &objective, &pending, usual)
                    && let Some(watch) = self.watches.get_mut(&part)
                {
                    watch.note(indicator, run_ms, verdict, &self.rows);
                }
            }
        }
    }

    /// What is usual of latencies among those who were measured.
    fn usual(&self, indicator: Indicator, all: &[(PartId, Pending)]) -> Option<Usual> {
        let limits = &self.slo.anomaly;
        if !limits.enabled || indicator.spec().measure != Measure::Latency {
            return None;
        }
        let values: Vec<u64> = all.iter().map(|(_, pending)| pending.latencies.p99_us()).collect();
        usual(&values, limits.peers_min.get(), *limits.deviations.get_ref(), *limits.ratio_min.get_ref())
    }

    /// Finds what many parts have in common, and how long that is so.
    pub(super) fn correlate(&mut self) {
        let run_ms = self.run_ms();
        self.causes = correlate::causes(&self.plan, &self.watches, run_ms, &self.rows);
        for (part, watch) in &mut self.watches {
            let now = self.causes.get(part).map(|(cause, _)| *cause);
            watch.cause = now.map(|value| {
                let before = watch.cause.filter(|seen| seen.value == value);
                Seen { value, since_ms: before.map_or(run_ms, |seen| seen.since_ms), last_ms: run_ms }
            });
        }
        let is_blind = correlate::is_blind(&self.plan, &self.watches, run_ms, &self.rows);
        if is_blind != self.is_blind {
            self.is_blind = is_blind;
            let reason = match is_blind {
                true => {
                    "most nodes are silent: this node is more likely cut off than they are gone; nobody is judged"
                }
                false => "most nodes answer again",
            };
            self.record(None, What::HeldBack, reason.to_owned(), Vec::new());
        }
    }

    /// Verdicts on what is so or is not.
    pub(super) fn judge_flags(&mut self) {
        let run_ms = self.run_ms();
        for (part, watch) in &mut self.watches {
            watch.note_flags(part.kind, run_ms, &self.slo, &self.rows);
        }
        // Whoever is cut off sees the same of all.
        let members = if self.is_blind { None } else { Some(&self.plan.members) };
        for (part, members) in members.into_iter().flatten() {
            let has_data = |member: &PartId| {
                let watch = self.watches.get(member);
                watch.is_some_and(|watch| {
                    watch.fresh_presence(run_ms, &self.rows).is_some()
                        || watch.streaks.values().any(|streak| streak.goods() + streak.trouble() > 0)
                })
            };
            let verdict = match self.causes.get(part) {
                Some((_, parts)) => Verdict::Bad(Finding {
                    found: format!("{} parts in trouble at once", parts.len()),
                    limit: String::new(),
                }),
                None if members.iter().any(has_data) => Verdict::Good,
                None => continue,
            };
            if let Some(watch) = self.watches.get_mut(part) {
                watch.note(Indicator::Together, run_ms, verdict, &self.rows);
            }
        }
    }

    /// Tells of objectives whose budget burns too fast, and when that is over.
    pub(super) fn judge_budgets(&mut self) {
        let run_ms = self.run_ms();
        for spec in &SPECS {
            let Some(objective) = self.slo.objective(spec.indicator) else { continue };
            let Some(budget) = self.memory.budgets.get(&spec.indicator) else { continue };
            let before = budget.told;
            let now = match budget.burning(run_ms, objective.target) {
                // Worse is news; better is not, until it is good.
                Some(burn) if before.is_none_or(|before| before < burn) => Some(burn),
                None if before.is_some_and(|before| budget.is_calm(before, run_ms, objective.target)) => None,
                _ => continue,
            };
            let status = budget.status(run_ms, objective.target);
            let since = *self.memory.burning.entry(spec.indicator).or_insert(self.now);
            let rate = |burn: Option<f64>| burn.map_or("no data".to_owned(), |burn| format!("{burn:.1}"));
            let reason = match now {
                Some(_) => format!(
                    "{} uses up its budget {} times as fast as allowed over an hour, {} over five minutes; {:.0} % is left",
                    spec.word,
                    rate(status.burn_1h),
                    rate(status.burn_5m),
                    status.left * 100.0
                ),
                None => format!("{} is within its budget again", spec.word),
            };
            let evidence = vec![Evidence {
                what: spec.word.to_owned(),
                part: "all".to_owned(),
                found: format!("{} bad of {}", status.bad, status.bad.saturating_add(status.good)),
                limit: format!("{:.4} % bad", (1.0 - objective.target) * 100.0),
                since,
                periods: 0,
            }];
            let order = WorkOrder {
                key: WorkOrder::key(OrderKind::Escalation, &self.plan.cluster, spec.word, 0, since),
                kind: OrderKind::Escalation,
                status: match (before, now) {
                    (_, None) => OrderStatus::Closed,
                    (None, _) => OrderStatus::Opened,
                    _ => OrderStatus::Updated,
                },
                severity: if now == Some(Burn::Fast) { Severity::Critical } else { Severity::Warning },
                cluster: self.plan.cluster.clone(),
                incident: 0,
                part: None,
                location: Location::default(),
                title: format!("objective {} of cluster {}: {reason}", spec.word, self.plan.cluster),
                task: "Find out what is slow: `stoker status` shows drives, peers and lakes.".to_owned(),
                reason: reason.clone(),
                opened: since,
                at: self.now,
                evidence: evidence.clone(),
            };
            let what = if now.is_some() { What::Burning } else { What::Calm };
            self.record(None, what, reason, evidence);
            self.push(match now {
                Some(_) => Command::Escalate(order),
                None => Command::CloseWorkOrder(order),
            });
            if now.is_none() {
                self.memory.burning.remove(&spec.indicator);
            }
            if let Some(budget) = self.memory.budgets.get_mut(&spec.indicator) {
                budget.told = now;
            }
        }
    }
}

/// What a period was, if it can be told.
fn verdict(
    indicator: Indicator,
    objective: &Objective,
    pending: &Pending,
    usual: Option<Usual>,
) -> Option<Verdict> {
    let is_latency = indicator.spec().measure == Measure::Latency;
    let p99_us = pending.latencies.p99_us();
    let has_threshold = !is_latency || pending.threshold_us.is_some();
    if has_threshold && objective.is_broken(pending.good, pending.bad) {
        return Some(Verdict::Bad(match pending.threshold_us {
            Some(threshold_us) if is_latency => {
                Finding { found: words_us(p99_us), limit: words_us(threshold_us) }
            }
            _ => Finding {
                found: format!("{} of {} failed", pending.bad, pending.good.saturating_add(pending.bad)),
                limit: format!("{:.4} %", (1.0 - objective.target) * 100.0),
            },
        }));
    }
    if let Some(usual) = usual.filter(|usual| p99_us as f64 > usual.limit) {
        let limit = format!("{} is usual among peers", words_us(usual.median as u64));
        return Some(Verdict::Odd(Finding { found: words_us(p99_us), limit }));
    }
    (has_threshold || usual.is_some()).then_some(Verdict::Good)
}
