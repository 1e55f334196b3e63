//! From what is known of a part to the event that the table knows, and who may be taken out.

use std::collections::BTreeSet;

use super::Reflex;
use super::correlate::AT_ONCE_MS;
use super::memory::{INCIDENTS_MAX, Incident};
use super::watch::{Cause, Watch};
use crate::events::What;
use crate::objective::{Indicator, Measure, Reaction};
use crate::observation::{Duty, Presence};
use crate::part::{PartId, PartKind};
use crate::quarantine::Ask;
use crate::table::{Act, Event, Row, State, find};

/// Times as many good periods of something else that stand for those of a cause nobody measures any more.
const QUIET_TIMES: u32 = 4;

/// Periods before somebody is taken out again who could not be.
const REFUSED_PERIODS: u64 = 30;

/// What a cause higher up explains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Scope {
    /// That a part is slow.
    Slowness,
    /// Everything.
    Everything,
}

impl Reflex {
    /// Lets the table decide about every part: those that others depend on first.
    pub(super) fn react(&mut self) {
        let run_ms = self.run_ms();
        let troubled = self.watches.iter().filter(|(_, watch)| watch.is_troubled(run_ms, &self.rows));
        let parts: BTreeSet<PartId> =
            troubled.map(|(part, _)| part).chain(self.memory.incidents.keys()).cloned().collect();
        let mut lasting = Vec::new();
        for part in parts {
            self.note_duty(&part);
            let events = self.events(&part);
            let state = self.memory.state(&part);
            let news = events.into_iter().find_map(|(event, reason)| {
                let row = find(part.kind, state, event).filter(|row| self.is_news(&part, row))?;
                Some((row, event, reason))
            });
            match news {
                Some((row, event, reason)) => self.apply(&part, row, event, reason),
                None if part.kind.holds_chunks() && self.lasts(&part) => {
                    let breaches = self.watches.get(&part).map_or(0, Watch::breaches);
                    lasting.push((std::cmp::Reverse(breaches), part));
                }
                None => {}
            }
        }
        self.memory.ledger.forget(self.memory.clock.run_ms(), &self.limits());
        // The worst first.
        lasting.sort();
        for (_, part) in lasting {
            self.grant_or_refuse(&part);
        }
    }

    /// A row that leads back to its own state is news only as long as something of it is still to be done.
    fn is_news(&self, part: &PartId, row: &Row) -> bool {
        let Some(incident) = self.memory.incidents.get(part) else {
            let has_room = self.memory.incidents.len() < INCIDENTS_MAX;
            return has_room && row.to != State::Healthy;
        };
        match row.event {
            _ if row.to != incident.state => true,
            Event::Replaced => true,
            Event::Sick | Event::Slow => !incident.applied.placing_stopped && !incident.is_stop_held,
            Event::Evacuated => !incident.is_evacuated,
            _ => false,
        }
    }

    /// Notes that our decision is in force, so that its end is noticed.
    fn note_duty(&mut self, part: &PartId) {
        let duty = self.duty(part);
        let Some(incident) = self.memory.incidents.get_mut(part).filter(|one| one.applied.quarantined) else {
            return;
        };
        incident.is_duty_seen |= matches!(duty, Some(Duty::Quarantined | Duty::Evacuating));
        let watch = self.watches.get(part);
        // It went on in the meantime: nothing is to be undone of what was never done.
        if incident.state != State::Quarantined
            && !incident.is_duty_seen
            && watch.is_some_and(|watch| watch.refused.is_some())
        {
            incident.applied.quarantined = false;
        }
        if incident.is_evacuated && watch.is_some_and(|watch| watch.is_empty == Some(false)) {
            incident.is_evacuated = false;
            incident.reason = "it holds bytes again that the lake has not: do not pull it yet".to_owned();
            let reason = incident.reason.clone();
            self.record(Some(part), What::HeldBack, reason, Vec::new());
            self.tell(part, Act::UpdateOrder);
        }
    }

    /// What was decided about a part, as it was seen last.
    pub(super) fn duty(&self, part: &PartId) -> Option<Duty> {
        self.watches.get(part).and_then(|watch| watch.duty).map(|seen| seen.value)
    }

    /// Everything that holds of a part now, most urgent first.
    fn events(&self, part: &PartId) -> Vec<(Event, String)> {
        let Some(watch) = self.watches.get(part) else { return Vec::new() };
        let mut events = Vec::new();
        let mut add = |event: Event, reason: &str| events.push((event, reason.to_owned()));
        let removed = watch.fresh_presence(self.run_ms(), &self.rows);
        if let Some(seen) = removed.filter(|seen| seen.value == Presence::Removed) {
            // Nothing else that was known of it counts. A drive may be away for a moment while another one takes its place.
            if self.has_settled(seen.since_ms) {
                add(Event::Removed, "it is no part of the cluster any more");
            }
            return events;
        }
        let incident = self.memory.incidents.get(part);
        if let Some(incident) = incident {
            if watch.replaced {
                add(Event::Replaced, "another one is in its place");
            }
            let is_full = watch.duty.is_some_and(|seen| seen.value == Duty::Full);
            if incident.applied.quarantined && incident.is_duty_seen && is_full {
                add(Event::Overruled, "a person put it into service again");
            }
            self.add_answers(watch, incident, &mut add);
        }
        let (run_ms, rows) = (self.run_ms(), &self.rows);
        let cause = self.explanation(part, watch);
        match &cause {
            Some((above, _)) => add(Event::Explained, &format!("the cause is {above}")),
            None => add(Event::Cleared, "what it depends on is sound again"),
        }
        let is_explained = cause.is_some();
        let presence = watch.fresh_presence(run_ms, rows);
        if !is_explained && !self.is_blind {
            if self.is_lost(part, watch) {
                add(
                    Event::Lost,
                    match watch.cause {
                        Some(_) => "many parts that depend on it are gone at once",
                        None => "it is gone, and did not come back at once",
                    },
                );
            }
            if presence.is_some_and(|seen| seen.value == Presence::Suspect) {
                add(Event::Silent, "it missed pings");
            }
        }
        if presence.is_some_and(|seen| seen.value == Presence::Up) {
            add(Event::Back, "it answers again");
        }
        if watch.is_empty == Some(true) {
            add(Event::Evacuated, "nothing is left on it that the lake has not: it may be pulled");
        }
        if watch.repaired {
            add(Event::Repaired, "somebody says that it was repaired");
        }
        if incident.is_some_and(|incident| self.is_recovered(part, watch, incident)) {
            add(Event::Recovered, "everything that was bad is good since many periods");
        }
        if !is_explained {
            if !part.kind.holds_chunks() && watch.is_sustained(rows) {
                add(Event::Sustained, "it has been bad for many periods");
            }
            if watch.is_raised(Reaction::Sick) {
                add(Event::Sick, &format!("errors, warnings or flaps: {}", raised_words(watch)));
            }
            if watch.is_raised(Reaction::Slow) {
                match part.kind.holds_chunks() && !watch.is_breached(Reaction::Slow, rows) {
                    true => add(Event::Odd, &format!("slower than its peers: {}", raised_words(watch))),
                    false => add(Event::Slow, &format!("slower than it should be: {}", raised_words(watch))),
                }
            }
        }
        events
    }

    /// What the driver answered to commands.
    fn add_answers(&self, watch: &Watch, incident: &Incident, add: &mut impl FnMut(Event, &str)) {
        if let Some(why) = watch.refused.as_ref().filter(|_| incident.state == State::Quarantined) {
            add(Event::Refused, &format!("the quarantine could not be carried out: {why}"));
        }
        let waited_ms = self.run_ms().saturating_sub(incident.since_ms);
        match &watch.gate {
            Some((run, passed, words)) if *run == incident.gate_run => match passed {
                true => add(Event::GatePassed, &format!("the gate let it pass: {words}")),
                false => add(Event::GateFailed, &format!("the gate did not let it pass: {words}")),
            },
            _ if waited_ms > self.slo.gate_timeout_s.get().saturating_mul(1_000) => {
                add(Event::GateFailed, "the gate gave no answer");
            }
            _ => {}
        }
    }

    /// Gone for long enough that others which have the same cause would be gone, too.
    fn is_lost(&self, part: &PartId, watch: &Watch) -> bool {
        let (run_ms, rows) = (self.run_ms(), &self.rows);
        let down = watch.fresh_presence(run_ms, rows).filter(|seen| seen.value == Presence::Down);
        // A node answers for itself; of a switch or a rack nobody may know more than what hangs on it.
        let is_shared = part.kind < PartKind::Node;
        let cause = watch.cause.filter(|seen| is_shared && seen.value == Cause::Lost);
        down.is_some_and(|seen| self.has_settled(seen.since_ms))
            || cause.is_some_and(|seen| self.has_settled(seen.since_ms))
    }

    fn has_settled(&self, since_ms: u64) -> bool {
        self.run_ms().saturating_sub(since_ms) >= self.slo.settle_s.saturating_mul(1_000)
    }

    /// What a part depends on and is the cause of its trouble.
    fn explanation(&self, part: &PartId, watch: &Watch) -> Option<(PartId, Scope)> {
        let above = self.plan.above.get(part)?;
        let scope = |above: &PartId| {
            let incident = self.memory.incidents.get(above)?;
            match (above.kind, incident.state) {
                (PartKind::Node, State::Degraded | State::Escalated) => {
                    incident.causes.contains(&Indicator::Together).then_some(Scope::Everything)
                }
                (PartKind::Node, State::Healthy) => None,
                (PartKind::Node, _) | (_, State::Down) => Some(Scope::Everything),
                (_, State::Degraded | State::Repair) => Some(Scope::Slowness),
                _ => None,
            }
        };
        let found = above.iter().filter_map(|above| Some((scope(above)?, above)));
        let (scope, above) = found.max_by_key(|(scope, _)| *scope)?;
        let is_gone = watch.gone_since(self.run_ms(), &self.rows).is_some();
        if scope == Scope::Slowness && (is_gone || watch.is_raised(Reaction::Sick)) {
            return None;
        }
        // What was down before, or was taken out, has a cause of its own.
        let is_own = self.memory.incidents.get(part).is_some_and(|incident| {
            let is_with_it = part.kind == PartKind::Switch
                && incident.since_ms.saturating_add(AT_ONCE_MS)
                    >= self.memory.incidents.get(above).map_or(u64::MAX, |above| above.since_ms);
            let is_of_it =
                is_with_it || self.causes.get(above).is_some_and(|(_, parts)| parts.contains(part));
            incident.state == State::Down && (incident.applied.quarantined || !is_of_it)
        });
        (!is_own).then(|| (above.clone(), scope))
    }

    /// What was bad is good, for longer the more often it was bad lately.
    fn is_recovered(&self, part: &PartId, watch: &Watch, incident: &Incident) -> bool {
        let (run_ms, rows) = (self.run_ms(), &self.rows);
        if watch.gone_since(run_ms, rows).is_some()
            || watch.raised().next().is_some()
            || watch.cause.is_some()
        {
            return false;
        }
        let needed = rows.recover.saturating_mul(self.memory.doubt(part, run_ms));
        let goods = |indicator: &Indicator| watch.streaks.get(indicator).map_or(0, |streak| streak.goods());
        let is_measured = |indicator: &Indicator| {
            watch.streaks.get(indicator).is_some_and(|one| one.goods() + one.trouble() > 0)
        };
        // A part of which less is asked may do nothing at all of what was bad.
        let is_mild = matches!(incident.state, State::Degraded | State::Escalated);
        let is_quiet = || {
            let is_other = |indicator: &Indicator| indicator.spec().measure != Measure::Flag;
            let others = watch.streaks.iter().filter(|(indicator, _)| is_other(indicator));
            others.map(|(_, one)| one.goods()).any(|goods| goods >= needed.saturating_mul(QUIET_TIMES))
        };
        let is_good = |indicator: &Indicator| {
            goods(indicator) >= needed || (is_mild && !is_measured(indicator) && is_quiet())
        };
        !incident.causes.is_empty() && incident.causes.iter().all(is_good)
    }

    /// It is bad for so long that it should be taken out, and has no other cause.
    fn lasts(&self, part: &PartId) -> bool {
        let may = matches!(self.memory.state(part), State::Degraded | State::Escalated);
        // One that a person took out is in their hands.
        let serves = |watch: &&Watch| watch.duty.is_none_or(|seen| seen.value == Duty::Full);
        let watch =
            self.watches.get(part).filter(|watch| may && watch.is_sustained(&self.rows)).filter(serves);
        watch.is_some_and(|watch| self.explanation(part, watch).is_none())
    }

    fn grant_or_refuse(&mut self, part: &PartId) {
        let refusal = self.refusal(part);
        let (event, reason) = match refusal {
            None => {
                (Event::Granted, "it has been bad for many periods, and others can do without it".to_owned())
            }
            Some(why) => (Event::Refused, format!("it should be taken out, and is not: {why}")),
        };
        if let Some(row) = find(part.kind, self.memory.state(part), event) {
            self.apply(part, row, event, reason);
        }
    }

    fn refusal(&self, part: &PartId) -> Option<String> {
        let overruled_ms = self.slo.quarantine.overruled_s.saturating_mul(1_000);
        if !self.slo.act {
            return Some("the configuration says that nothing is done (`act`)".to_owned());
        }
        if self.is_blind {
            return Some("most nodes are silent, so nobody is judged".to_owned());
        }
        if self.memory.is_overruled(part, self.run_ms(), overruled_ms) {
            return Some("a person put it back lately".to_owned());
        }
        let refused_ms = self.memory.incidents.get(part).and_then(|incident| incident.refused_ms);
        let pause_ms = self.limits().rack_pause_ms.max(REFUSED_PERIODS * self.slo.period_ms());
        if refused_ms.is_some_and(|refused_ms| self.run_ms().saturating_sub(refused_ms) < pause_ms) {
            return Some("it could not be taken out lately".to_owned());
        }
        let Some((node, rack)) = self.node_and_rack(part) else {
            return Some("nobody knows where it is".to_owned());
        };
        self.memory.ledger.refusal(self.run_ms(), &self.ask(part, &node, &rack), &self.limits())
    }

    /// The node that a part is in, and its cell.
    pub(super) fn node_and_rack(&self, part: &PartId) -> Option<(PartId, String)> {
        Some((self.plan.node_of(part)?, self.plan.places.get(part)?.cell.clone()))
    }

    /// What a decision about a part is made of.
    pub(super) fn ask<'a>(&self, part: &PartId, node: &PartId, rack: &'a str) -> Ask<'a> {
        let none = BTreeSet::new();
        let nodes = self.plan.cells.get(rack).unwrap_or(&none);
        let is_ours = |one: &PartId| self.any_of(one, |incident| incident.applied.quarantined);
        // A drive that goes leaves its node in placement, if the node has another.
        let drives = self.plan.members_of(node, PartKind::Drive);
        let has_other = part.kind == PartKind::Drive
            && drives.filter(|drive| *drive != part).any(|drive| !self.memory.state(drive).is_out());
        let places = |one: &&PartId| self.places(one) && (has_other || *one != node);
        Ask {
            rack,
            nodes: nodes.len(),
            out: nodes.iter().filter(|one| *one != node && self.is_out(one)).count(),
            placing_left: self.plan.cells.values().flatten().filter(places).count(),
            copies_needed: self.plan.copies_needed as usize,
            is_out: is_ours(node),
        }
    }

    /// Nodes of a rack on which nothing new is put for now.
    pub(super) fn stopped(&self, rack: &str, except: &PartId) -> usize {
        let nodes = self.plan.cells.get(rack).into_iter().flatten();
        let is_stopped = |one: &&PartId| {
            *one != except
                && (self.is_out(one) || self.any_of(one, |incident| incident.applied.placing_stopped))
        };
        nodes.filter(is_stopped).count()
    }

    /// Whether something holds of a node or of one of its drives.
    fn any_of(&self, node: &PartId, holds: impl Fn(&Incident) -> bool) -> bool {
        let parts = std::iter::once(node).chain(self.plan.members_of(node, PartKind::Drive));
        parts.filter_map(|part| self.memory.incidents.get(part)).any(holds)
    }

    /// A node that is out, or has a drive that is, by our decision or by others.
    fn is_out(&self, node: &PartId) -> bool {
        let watch = self.watches.get(node);
        let duty = watch.and_then(|watch| watch.duty).map(|seen| seen.value);
        let presence = watch.and_then(|watch| watch.fresh_presence(self.run_ms(), &self.rows));
        let is_taken_out = matches!(duty, Some(Duty::Quarantined | Duty::Evacuating));
        let is_gone = presence.is_some_and(|seen| matches!(seen.value, Presence::Down | Presence::Left));
        is_taken_out || is_gone || self.any_of(node, |incident| incident.state.is_out())
    }

    /// A node that takes chunks, as far as is known.
    fn places(&self, node: &PartId) -> bool {
        let watch = self.watches.get(node);
        let presence = watch.and_then(|watch| watch.fresh_presence(self.run_ms(), &self.rows));
        let is_full = watch.and_then(|watch| watch.duty).is_none_or(|seen| seen.value == Duty::Full);
        let is_stopped = self.memory.incidents.get(node).is_some_and(|one| one.applied.placing_stopped);
        let is_up = presence.is_some_and(|seen| seen.value == Presence::Up);
        is_up && is_full && !is_stopped && !self.memory.state(node).is_out()
    }

    /// Says that too many are in trouble to open one more incident.
    pub(super) fn tell_full(&mut self) {
        self.record_once(
            What::HeldBack,
            format!("{INCIDENTS_MAX} parts are in trouble; no more are treated"),
        );
    }
}

fn raised_words(watch: &Watch) -> String {
    let words = |(indicator, streak): (Indicator, &crate::breach::Streak)| {
        let finding = streak.finding();
        match finding.limit.is_empty() {
            true => format!("{} {}", indicator.word(), finding.found),
            false => format!("{} {} (allowed: {})", indicator.word(), finding.found, finding.limit),
        }
    };
    watch.raised().map(words).collect::<Vec<String>>().join("; ")
}
