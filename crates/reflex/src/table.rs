//! The state machine of everything that can break, as one table. Nothing else changes the state of a part.
//!
//! `docs/slo.md` draws it; a test makes the picture from this table.

use serde::{Deserialize, Serialize};

use crate::part::PartKind;

/// How the loop treats a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is wrong that we know of.
    Healthy,
    /// It works badly; less is asked of it.
    Degraded,
    /// A node that missed pings. Nothing moves.
    Suspect,
    /// It is gone.
    Down,
    /// It should be taken out, and may not be. A person has to decide.
    Escalated,
    /// Out of placement; its undrained bytes are being moved away.
    Quarantined,
    /// It waits for somebody who repairs it.
    Repair,
    /// The gate measures it.
    Verifying,
    /// Its trouble has a cause elsewhere, which is treated there.
    Shadowed,
}

/// What is noticed of a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Slow for some periods.
    Slow,
    /// Much slower than its peers for some periods, and still as it should be.
    Odd,
    /// Errors, warnings or flaps for some periods.
    Sick,
    /// It missed pings.
    Silent,
    /// It is gone, and was given time to come back.
    Lost,
    /// It answers again.
    Back,
    /// Good for many periods.
    Recovered,
    /// Bad for many periods; of a part that is not quarantined.
    Sustained,
    /// Bad for many periods, and it may be quarantined.
    Granted,
    /// Bad for many periods, and it may not, or could not, be quarantined.
    Refused,
    /// Nothing is left on it that the lake has not.
    Evacuated,
    /// Somebody says that it was replaced or repaired.
    Repaired,
    /// The gate let it pass.
    GatePassed,
    /// The gate did not, or did not answer.
    GateFailed,
    /// Something that it depends on is the cause.
    Explained,
    /// That is over.
    Cleared,
    /// A person put it into service again.
    Overruled,
    /// Another one is in its place.
    Replaced,
    /// It is no part of the cluster any more.
    Removed,
}

/// What is done. The loop makes commands of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Act {
    /// Ask less of it.
    Reweight,
    /// Ask nothing of it.
    Avoid,
    /// Put nothing new there, unless it is out.
    StopPlacing,
    /// Undo these three, and a cordon.
    Restore,
    /// Take it out.
    Quarantine,
    /// Move its undrained bytes away.
    Evacuate,
    /// Keep jobs away.
    Cordon,
    /// Open a work order, unless the incident has one.
    OpenOrder,
    /// Add to the work order, if there is one.
    UpdateOrder,
    /// Close the work order and the escalation, if there are.
    CloseOrder,
    /// Measure it.
    RunGate,
    /// Put it into service, if it is out by our decision.
    Rejoin,
    /// Tell a person.
    Escalate,
}

/// One row.
#[derive(Debug)]
pub struct Row {
    /// Kinds of parts that it holds for.
    pub kinds: &'static [PartKind],
    /// In these states.
    pub from: &'static [State],
    /// When this is noticed.
    pub event: Event,
    /// It goes to this one.
    pub to: State,
    /// And this is done.
    pub acts: &'static [Act],
}

const fn row(
    kinds: &'static [PartKind],
    from: &'static [State],
    event: Event,
    to: State,
    acts: &'static [Act],
) -> Row {
    Row { kinds, from, event, to, acts }
}

use Act as A;
use Event as E;
use PartKind::{Drive, Node, Port, Rack, Switch};
use State::{Degraded, Down, Escalated, Healthy, Quarantined, Repair, Shadowed, Suspect, Verifying};

/// What holds chunks.
const HOLDERS: &[PartKind] = &[Drive, Node];
/// What many nodes depend on.
const SHARED: &[PartKind] = &[Switch, Rack];

/// The state machine. An event that has no row in a state is no news there.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    // It works badly: ask less of it at once, take it out only if that lasts and may be.
    // A drive that gets nothing new is tried meanwhile; a node shows how it is only by what it is given.
    row(HOLDERS, &[Healthy], E::Odd, Degraded, &[A::Reweight]),
    row(&[Drive], &[Healthy], E::Slow, Degraded, &[A::Reweight, A::StopPlacing]),
    row(&[Drive], &[Degraded], E::Slow, Degraded, &[A::StopPlacing]),
    row(&[Node], &[Healthy], E::Slow, Degraded, &[A::Reweight]),
    row(HOLDERS, &[Healthy], E::Sick, Degraded, &[A::Reweight, A::StopPlacing]),
    row(HOLDERS, &[Degraded], E::Sick, Degraded, &[A::StopPlacing]),
    row(&[Node], &[Escalated], E::Sick, Escalated, &[A::StopPlacing]),
    row(HOLDERS, &[Degraded, Escalated], E::Recovered, Healthy, &[A::Restore, A::CloseOrder]),
    row(&[Drive], &[Degraded, Escalated], E::Granted, Quarantined, &[A::Quarantine, A::OpenOrder, A::Evacuate]),
    row(&[Node], &[Degraded, Escalated], E::Granted, Quarantined, &[A::Quarantine, A::Cordon, A::OpenOrder, A::Evacuate]),
    row(HOLDERS, &[Degraded, Quarantined], E::Refused, Escalated, &[A::Escalate]),
    // It is gone: nobody has to take it out. It is measured before it takes new chunks again.
    row(&[Node], &[Healthy], E::Silent, Suspect, &[]),
    row(&[Node], &[Suspect], E::Back, Healthy, &[]),
    row(&[Drive], &[Healthy, Degraded, Escalated], E::Lost, Down, &[A::OpenOrder]),
    row(&[Node], &[Healthy, Degraded, Escalated, Suspect], E::Lost, Down, &[A::StopPlacing, A::Cordon, A::OpenOrder]),
    row(HOLDERS, &[Quarantined, Repair, Verifying], E::Lost, Down, &[A::UpdateOrder]),
    row(HOLDERS, &[Down], E::Back, Verifying, &[A::RunGate]),
    row(&[Drive], &[Down], E::Repaired, Verifying, &[A::RunGate]),
    // It is out: empty it, have it repaired, measure it, put it back.
    row(HOLDERS, &[Quarantined], E::Evacuated, Repair, &[A::UpdateOrder]),
    row(HOLDERS, &[Repair], E::Evacuated, Repair, &[A::UpdateOrder]),
    row(HOLDERS, &[Quarantined, Repair], E::Recovered, Verifying, &[A::RunGate]),
    row(HOLDERS, &[Quarantined, Repair], E::Repaired, Verifying, &[A::RunGate]),
    row(HOLDERS, &[Verifying], E::GatePassed, Healthy, &[A::Rejoin, A::Restore, A::CloseOrder]),
    row(&[Drive], &[Quarantined, Repair, Verifying, Down], E::Replaced, Verifying, &[A::RunGate]),
    row(HOLDERS, &[Verifying], E::GateFailed, Repair, &[A::StopPlacing, A::UpdateOrder]),
    row(HOLDERS, &[Quarantined, Repair, Verifying], E::Overruled, Healthy, &[A::Restore, A::CloseOrder]),
    // It was taken away for good: nobody waits for it, and what was taken out with it comes back.
    row(HOLDERS, &[Degraded, Down, Escalated, Quarantined, Repair, Verifying], E::Removed, Healthy, &[A::Rejoin, A::Restore, A::CloseOrder]),
    row(&[Node], &[Suspect], E::Removed, Healthy, &[]),
    row(&[Drive, Node, Port, Switch], &[Shadowed], E::Removed, Healthy, &[]),
    row(&[Port], &[Degraded, Down, Repair], E::Removed, Healthy, &[A::Restore, A::CloseOrder]),
    row(SHARED, &[Degraded, Repair, Down], E::Removed, Healthy, &[A::Restore, A::CloseOrder]),
    // A port: go around it.
    row(&[Port], &[Healthy], E::Sick, Degraded, &[A::Reweight]),
    row(&[Port], &[Healthy, Degraded], E::Lost, Down, &[A::Avoid]),
    row(&[Port], &[Degraded, Down], E::Recovered, Healthy, &[A::Restore]),
    row(&[Port], &[Degraded, Down], E::Sustained, Repair, &[A::Avoid, A::OpenOrder]),
    row(&[Port], &[Repair], E::Recovered, Healthy, &[A::Restore, A::CloseOrder]),
    // What many depend on: one cause, one work order, and nobody below it is taken out.
    row(SHARED, &[Healthy], E::Slow, Degraded, &[A::Escalate]),
    row(SHARED, &[Degraded], E::Sustained, Repair, &[A::OpenOrder]),
    row(SHARED, &[Degraded, Repair], E::Recovered, Healthy, &[A::CloseOrder]),
    row(&[Switch], &[Healthy, Degraded, Repair], E::Lost, Down, &[A::Avoid, A::OpenOrder, A::Escalate]),
    row(&[Rack], &[Healthy, Degraded, Repair], E::Lost, Down, &[A::StopPlacing, A::OpenOrder, A::Escalate]),
    row(SHARED, &[Down], E::Recovered, Healthy, &[A::Restore, A::CloseOrder]),
    // The cause is elsewhere.
    row(HOLDERS, &[Degraded, Escalated, Down], E::Explained, Shadowed, &[A::Restore, A::CloseOrder]),
    row(&[Node], &[Suspect], E::Explained, Shadowed, &[]),
    row(&[Port], &[Degraded, Down, Repair], E::Explained, Shadowed, &[A::Restore, A::CloseOrder]),
    row(&[Switch], &[Degraded, Repair, Down], E::Explained, Shadowed, &[A::Restore, A::CloseOrder]),
    row(&[Drive, Node, Port, Switch], &[Shadowed], E::Cleared, Healthy, &[]),
];

/// The row for an event of a part, if it is news.
pub fn find(kind: PartKind, from: State, event: Event) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.event == event && row.kinds.contains(&kind) && row.from.contains(&from))
}

/// Every transition of the table on its own.
pub fn transitions() -> impl Iterator<Item = (PartKind, State, Event, &'static Row)> {
    TABLE.iter().flat_map(|row| {
        row.kinds.iter().flat_map(move |kind| row.from.iter().map(move |from| (*kind, *from, row.event, row)))
    })
}

impl State {
    /// Its word, as in events.
    pub fn word(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Degraded => "degraded",
            State::Suspect => "suspect",
            State::Down => "down",
            State::Escalated => "escalated",
            State::Quarantined => "quarantined",
            State::Repair => "repair",
            State::Verifying => "verifying",
            State::Shadowed => "shadowed",
        }
    }

    /// The part takes no chunks, or is not there: it counts against how many may be out.
    pub fn is_out(self) -> bool {
        matches!(self, State::Down | State::Quarantined | State::Repair | State::Verifying)
    }
}

impl Event {
    /// Its word, as in events.
    pub fn word(self) -> &'static str {
        match self {
            Event::Slow => "slow",
            Event::Odd => "odd",
            Event::Sick => "sick",
            Event::Silent => "silent",
            Event::Lost => "lost",
            Event::Back => "back",
            Event::Recovered => "recovered",
            Event::Sustained => "sustained",
            Event::Granted => "granted",
            Event::Refused => "refused",
            Event::Evacuated => "evacuated",
            Event::Repaired => "repaired",
            Event::GatePassed => "gate_passed",
            Event::GateFailed => "gate_failed",
            Event::Explained => "explained",
            Event::Cleared => "cleared",
            Event::Overruled => "overruled",
            Event::Replaced => "replaced",
            Event::Removed => "removed",
        }
    }
}

impl Act {
    /// Its words in the picture.
    pub fn words(self) -> &'static str {
        match self {
            Act::Reweight => "reweight",
            Act::Avoid => "go around it",
            Act::StopPlacing => "stop placing",
            Act::Restore => "restore",
            Act::Quarantine => "quarantine",
            Act::Evacuate => "evacuate",
            Act::Cordon => "cordon",
            Act::OpenOrder => "open work order",
            Act::UpdateOrder => "update work order",
            Act::CloseOrder => "close work order",
            Act::RunGate => "run gate",
            Act::Rejoin => "rejoin",
            Act::Escalate => "escalate",
        }
    }
}

/// The table of one kind of parts as a Mermaid state diagram.
pub fn picture(kind: PartKind) -> String {
    let mut lines = vec!["stateDiagram-v2".to_owned(), "  [*] --> healthy".to_owned()];
    for (_, from, event, row) in transitions().filter(|(of, ..)| *of == kind) {
        let acts: Vec<&str> = row.acts.iter().map(|act| act.words()).collect();
        let acts = if acts.is_empty() { String::new() } else { format!(" / {}", acts.join(", ")) };
        lines.push(format!("  {} --> {}: {}{acts}", from.word(), row.to.word(), event.word()));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn each_event_has_one_row_at_most() {
        let mut seen = BTreeSet::new();
        for (kind, from, event, _) in transitions() {
            assert!(seen.insert((kind, from, event)), "{kind:?} {from:?} {event:?} twice");
        }
    }

    #[test]
    fn every_state_leads_back_to_healthy() {
        for kind in PartKind::ALL {
            let steps: BTreeSet<(State, State)> = transitions()
                .filter(|(of, ..)| *of == kind)
                .map(|(_, from, _, row)| (from, row.to))
                .collect();
            let states: BTreeSet<State> = steps.iter().flat_map(|(from, to)| [*from, *to]).collect();
            let mut reach: BTreeMap<State, bool> =
                states.iter().map(|state| (*state, *state == State::Healthy)).collect();
            for _ in 0..states.len() {
                for (from, to) in &steps {
                    let leads = reach[to];
                    *reach.get_mut(from).unwrap() |= leads;
                }
            }
            assert!(reach.values().all(|leads| *leads), "{kind:?}: {reach:?}");
        }
    }

    #[test]
    fn only_a_grant_quarantines_and_only_the_gate_rejoins() {
        for (kind, _, event, row) in transitions() {
            assert_eq!(row.acts.contains(&Act::Quarantine), event == Event::Granted, "{kind:?} {row:?}");
            let is_over = event == Event::GatePassed || (event == Event::Removed && kind.holds_chunks());
            assert!(!row.acts.contains(&Act::Rejoin) || is_over, "{kind:?} {row:?}");
            assert!(event != Event::GatePassed || row.acts.contains(&Act::Rejoin), "{kind:?} {row:?}");
            assert!(kind.holds_chunks() || !row.acts.contains(&Act::Quarantine), "{kind:?} {row:?}");
            // Whoever is healthy has no work order left and nothing asked less of.
            let ends = row.to == State::Healthy
                && !matches!(event, Event::Cleared | Event::Back)
                && !row.acts.is_empty();
            let undoes = row.acts.contains(&Act::Restore) || row.acts == [Act::CloseOrder];
            assert!(!ends || undoes, "{kind:?} {row:?}");
        }
    }

    #[test]
    fn words_are_those_of_events() {
        for (_, from, event, row) in transitions() {
            assert_eq!(serde_json::to_value(event).unwrap(), event.word());
            for state in [from, row.to] {
                assert_eq!(serde_json::to_value(state).unwrap(), state.word());
            }
        }
    }
}
