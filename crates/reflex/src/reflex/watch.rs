//! What is known of one part right now. All of it is forgotten when nobody looked for a while.

use std::collections::{BTreeMap, VecDeque};

use crate::breach::{Finding, Rows, Streak, Verdict};
use crate::config::Slo;
use crate::latency::Latencies;
use crate::objective::{Indicator, Reaction};
use crate::observation::{Duty, Presence};
use crate::part::PartKind;

/// Comings and goings that are remembered.
const FLAPS_KEPT_MAX: usize = 64;

/// How long what a drive says about itself holds; it is not asked often.
const SMART_FRESH_MS: u64 = 600_000;

/// Something that was seen, since when it is so and when it was seen last.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Seen<T> {
    pub value: T,
    pub since_ms: u64,
    pub last_ms: u64,
}

/// What was measured since the last verdict.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Pending {
    pub good: u64,
    pub bad: u64,
    pub latencies: Latencies,
    pub from_ms: u64,
    /// What counted as too long; none if nothing does.
    pub threshold_us: Option<u64>,
}

/// What is known of one part.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Watch {
    pub presence: Option<Seen<Presence>>,
    pub duty: Option<Seen<Duty>>,
    pub smart: Option<Seen<(String, u32)>>,
    pub flaps: VecDeque<u64>,
    pub streaks: BTreeMap<Indicator, Streak>,
    pub pending: BTreeMap<Indicator, Pending>,
    /// The cause is here, of what is wrong below; since when, and with how many of them gone.
    pub cause: Option<Seen<Cause>>,
    // What was said in this step.
    pub repaired: bool,
    pub replaced: bool,
    pub refused: Option<String>,
    pub gate: Option<(u64, bool, String)>,
    /// Whether nothing is on it that the lake has not.
    pub is_empty: Option<bool>,
}

/// What many parts below have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Cause {
    /// They work badly.
    Slow,
    /// They are gone.
    Lost,
}

impl Watch {
    /// Notes whether it is there. Going is a flap.
    pub fn see(&mut self, presence: Presence, run_ms: u64) {
        let is_gone = |presence: Presence| matches!(presence, Presence::Suspect | Presence::Down);
        let before = self.presence.map(|seen| seen.value);
        if is_gone(presence) && before == Some(Presence::Up) {
            self.flaps.push_back(run_ms);
            if self.flaps.len() > FLAPS_KEPT_MAX {
                self.flaps.pop_front();
            }
        }
        let since_ms =
            self.presence.filter(|seen| seen.value == presence).map_or(run_ms, |seen| seen.since_ms);
        self.presence = Some(Seen { value: presence, since_ms, last_ms: run_ms });
    }

    /// Whether it is there, unless that is not known.
    pub fn fresh_presence(&self, run_ms: u64, rows: &Rows) -> Option<Seen<Presence>> {
        self.presence.filter(|seen| run_ms.saturating_sub(seen.last_ms) <= rows.stale_ms)
    }

    /// Gone or silent, since when.
    pub fn gone_since(&self, run_ms: u64, rows: &Rows) -> Option<u64> {
        let is_gone = |seen: &Seen<Presence>| matches!(seen.value, Presence::Suspect | Presence::Down);
        self.fresh_presence(run_ms, rows).filter(is_gone).map(|seen| seen.since_ms)
    }

    /// In trouble by measurement, since when.
    pub fn bad_since(&self) -> Option<u64> {
        self.raised().map(|(_, streak)| streak.since_ms()).min()
    }

    /// Indicators that are in trouble and about which something is done.
    pub fn raised(&self) -> impl Iterator<Item = (Indicator, &Streak)> {
        let raised = self.streaks.iter().filter(|(_, streak)| streak.is_raised());
        raised.map(|(indicator, streak)| (*indicator, streak))
    }

    pub fn is_raised(&self, reaction: Reaction) -> bool {
        self.raised().any(|(indicator, _)| indicator.spec().reaction == reaction)
    }

    /// Something is outside its objective for some periods, and not only far from its peers.
    pub fn is_breached(&self, reaction: Reaction, rows: &Rows) -> bool {
        let breached = |streak: &Streak| streak.breaches() >= rows.mitigate;
        self.raised().any(|(indicator, streak)| indicator.spec().reaction == reaction && breached(streak))
    }

    /// Bad ones in a row, of the worst indicator.
    pub fn breaches(&self) -> u32 {
        self.streaks.values().map(Streak::breaches).max().unwrap_or(0)
    }

    pub fn is_sustained(&self, rows: &Rows) -> bool {
        self.streaks.values().any(|streak| streak.is_sustained(rows))
    }

    pub fn note(&mut self, indicator: Indicator, run_ms: u64, verdict: Verdict, rows: &Rows) {
        self.streaks.entry(indicator).or_default().note(run_ms, verdict, rows);
    }

    /// Verdicts on what is so or is not, at the end of a period.
    pub fn note_flags(&mut self, kind: PartKind, run_ms: u64, slo: &Slo, rows: &Rows) {
        if let Some(smart) = self.smart.clone()
            && run_ms.saturating_sub(smart.last_ms) <= SMART_FRESH_MS
        {
            let ((warnings, used), limit) = (smart.value, slo.endurance_percent_max);
            let warned = verdict(!warnings.is_empty(), || (warnings, "no warning".to_owned()));
            self.note(Indicator::Smart, run_ms, warned, rows);
            let worn = verdict(used >= limit, || (format!("{used} % used"), format!("below {limit} %")));
            self.note(Indicator::Endurance, run_ms, worn, rows);
        }
        let Some(presence) = self.fresh_presence(run_ms, rows) else { return };
        if Indicator::Flaps.fits(kind) {
            let window_ms = slo.flap_window_s.get().saturating_mul(1_000);
            self.flaps.retain(|at_ms| run_ms.saturating_sub(*at_ms) < window_ms);
            let (flaps, max) = (self.flaps.len() as u64, u64::from(slo.flaps_max.get()));
            let words =
                || (format!("went {flaps} times in {} s", slo.flap_window_s), format!("fewer than {max}"));
            self.note(Indicator::Flaps, run_ms, verdict(flaps >= max, words), rows);
        }
        if Indicator::Link.fits(kind) {
            let is_down = presence.value == Presence::Down;
            let words = || ("no link".to_owned(), String::new());
            self.note(Indicator::Link, run_ms, verdict(is_down, words), rows);
        }
    }

    /// Something is wrong with it, or with what depends on it.
    pub fn is_troubled(&self, run_ms: u64, rows: &Rows) -> bool {
        self.cause.is_some() || self.gone_since(run_ms, rows).is_some() || self.raised().next().is_some()
    }

    /// Drops what is too old to say anything.
    pub fn expire(&mut self, run_ms: u64, rows: &Rows) {
        for streak in self.streaks.values_mut() {
            streak.expire(run_ms, rows);
        }
        self.pending.retain(|_, pending| run_ms.saturating_sub(pending.from_ms) <= rows.stale_ms);
    }

    /// Forgets measurements: what comes is not a continuation of what was.
    pub fn forget(&mut self) {
        *self = Watch { duty: self.duty, ..Watch::default() };
    }

    /// Ends the step in which something was said.
    pub fn end_step(&mut self) {
        (self.repaired, self.replaced) = (false, false);
        (self.refused, self.gate, self.is_empty) = (None, None, None);
    }
}

/// A verdict on what is so or is not; words only if they are needed.
fn verdict(is_bad: bool, words: impl FnOnce() -> (String, String)) -> Verdict {
    if !is_bad {
        return Verdict::Good;
    }
    let (found, limit) = words();
    Verdict::Bad(Finding { found, limit })
}
