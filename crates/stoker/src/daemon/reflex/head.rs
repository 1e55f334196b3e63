//! What whoever leads the loop writes down for the whole cluster: who leads, what every node has to keep to, and what people
//! want to see. The memory of the loop is the note's body; nobody but the next leader reads it.

use serde::{Deserialize, Serialize};
use stoker_reflex::table::State;
use stoker_reflex::{Command, Indicator, Memory, Outbox, PartId, PartKind, PartStatus, Reflex};
use stoker_store::Leaning;

/// The name of the note.
pub const NOTE: &str = "reflex";

/// The name of the note in which people tell the loop something, a [`Wish`] in each line.
pub const WISHES: &str = "reflex-wishes";

/// What people tell the loop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// A part was mended or replaced: the gate may look at it.
    Repaired(PartId),
    /// Send everything that is to be told again, also what was not wanted.
    Retry,
}

/// Parts that are shown; the rest is counted.
const SHOWN_MAX: usize = 100;

/// Words that are kept of a reason; all of it is in the events.
const REASON_LEN_MAX: usize = 200;

/// The head of the note.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Head {
    /// Who leads: a name that no other process has.
    pub leader: String,
    /// The leader's node, for people.
    pub node: String,
    /// Changes while the leader lives.
    pub beat: u64,
    /// When it was written, milliseconds since 1970.
    pub at_ms: u64,
    /// Of which parts less is asked.
    pub leanings: Vec<Leaning>,
    /// Parts that are to be measured by the gate.
    pub gates: Vec<GateAsked>,
    /// Drives that are out and have to be tried now and then, by the path on their node.
    pub probes: Vec<ProbeAsked>,
    /// For people.
    pub shown: Shown,
}

/// A part that is to be measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GateAsked {
    pub part: String,
    pub node: String,
    /// The path of the drive; none for the whole node.
    pub drive: Option<String>,
    pub run: u64,
}

/// A drive that is to be tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProbeAsked {
    pub node: String,
    pub drive: String,
}

/// What people want to see.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// Parts that are not healthy.
    pub parts: Vec<PartStatus>,
    /// How many more there are.
    pub parts_more: usize,
    /// How every objective does.
    pub budgets: Vec<BudgetShown>,
    /// Notices that nobody took yet.
    pub notices: Vec<NoticeShown>,
    /// Decisions are carried out.
    pub acts: bool,
}

/// How an objective does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BudgetShown {
    pub indicator: Indicator,
    pub status: stoker_reflex::BudgetStatus,
}

/// A notice that nobody took yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoticeShown {
    pub target: String,
    pub title: String,
    pub tries: u32,
    pub why: Option<String>,
    pub parked: bool,
}

/// The body of the note.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    pub memory: Memory,
    pub outbox: Outbox,
}

impl Head {
    /// What nodes have to keep to, as the loop has it now.
    pub fn orders(&mut self, reflex: &Reflex) {
        let (mut leanings, mut gates): (Vec<Leaning>, Vec<GateAsked>) = Default::default();
        for command in reflex.standing() {
            match command {
                Command::Reweight { part, percent } => {
                    if let Some(leaning) = leaning_of(&mut leanings, &part) {
                        leaning.percent = percent;
                    }
                }
                Command::StopPlacing { part } => {
                    if let Some(leaning) = leaning_of(&mut leanings, &part) {
                        leaning.takes_chunks = false;
                    }
                }
                Command::RunGate { part, run } => {
                    gates.extend(place_of(&part).map(|(node, drive)| GateAsked {
                        part: part.to_string(),
                        node,
                        drive,
                        run,
                    }));
                }
                _ => {}
            }
        }
        let is_out = |state: State| matches!(state, State::Quarantined | State::Repair | State::Verifying);
        let out = reflex.parts().into_iter().filter(|status| is_out(status.state));
        let probe = |status: PartStatus| match place_of(&status.part) {
            Some((node, Some(drive))) => Some(ProbeAsked { node, drive }),
            _ => None,
        };
        self.probes = out.filter_map(probe).collect();
        (self.leanings, self.gates) = (leanings, gates);
    }

    /// What people want to see, as the loop has it now.
    pub fn show(&mut self, reflex: &Reflex, outbox: &Outbox, acts: bool) {
        let mut parts = reflex.parts();
        let parts_more = parts.len().saturating_sub(SHOWN_MAX);
        parts.truncate(SHOWN_MAX);
        for part in &mut parts {
            part.reason = part.reason.chars().take(REASON_LEN_MAX).collect();
            part.evidence.truncate(2);
        }
        let budgets = reflex.budgets();
        let notices = outbox.waiting().iter().take(SHOWN_MAX).map(|notice| NoticeShown {
            target: notice.target.clone(),
            title: notice.order.title.chars().take(REASON_LEN_MAX).collect(),
            tries: notice.tries,
            why: notice.why.clone(),
            parked: notice.parked,
        });
        self.shown = Shown {
            parts,
            parts_more,
            budgets: budgets
                .into_iter()
                .map(|(indicator, status)| BudgetShown { indicator, status })
                .collect(),
            notices: notices.collect(),
            acts,
        };
    }
}

/// The node of a part, and the path of the drive if it is one; none for what is not of a node.
pub fn place_of(part: &PartId) -> Option<(String, Option<String>)> {
    match part.kind {
        PartKind::Node => Some((part.name.clone(), None)),
        PartKind::Drive => {
            let (node, path) = part.name.split_once(':')?;
            Some((node.to_owned(), Some(path.to_owned())))
        }
        _ => None,
    }
}

fn leaning_of<'a>(all: &'a mut Vec<Leaning>, part: &PartId) -> Option<&'a mut Leaning> {
    let (node, drive) = place_of(part)?;
    let at = all.iter().position(|one| one.node == node && one.drive == drive).unwrap_or_else(|| {
        all.push(Leaning { node, drive, percent: 100, takes_chunks: true });
        all.len() - 1
    });
    all.get_mut(at)
}

#[cfg(test)]
mod tests {
    use stoker_reflex::table::{Event, find};

    use super::*;

    /// The console offers to say that a part was repaired where, and only where, something follows from that.
    #[test]
    fn whoever_says_that_it_was_repaired_is_heard() {
        let states = [
            State::Healthy,
            State::Degraded,
            State::Suspect,
            State::Down,
            State::Escalated,
            State::Quarantined,
            State::Repair,
            State::Verifying,
            State::Shadowed,
        ];
        for (kind, state) in PartKind::ALL.into_iter().flat_map(|kind| states.map(|state| (kind, state))) {
            let follows = find(kind, state, Event::Repaired).is_some();
            assert_eq!(
                stoker_admin::can_be_repaired(kind.word(), state.word()),
                follows,
                "{kind:?} {state:?}"
            );
        }
    }
}
