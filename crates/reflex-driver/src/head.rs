//! What whoever leads the loop writes down for the whole cluster: who leads, what every node has to keep to, and what people
//! want to see. The memory of the loop is the note's body; nobody but the next leader reads it. (D68)

use serde::{Deserialize, Serialize};
use stoker_node::{NOTE_BODY_LEN_MAX, NOTE_HEAD_LEN_MAX};
use stoker_reflex::table::State;
use stoker_reflex::{Command, Indicator, Memory, Outbox, PartId, PartKind, PartStatus, Reflex};
use stoker_store::{ErrorKind, PartWeight, StoreError};

use super::hands::Backlog;

/// The name of the note.
pub const NOTE: &str = "reflex";

/// The name of the note in which people tell the loop something, a [`Wish`] in each line.
pub const WISHES: &str = "reflex-wishes";

/// What people tell the loop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// A part was repaired or replaced: the gate may look at it.
    Repaired(PartId),
    /// Send everything that is to be told again, also what was not wanted.
    Retry,
    /// If no node can read what the loop kept, begin without it.
    Reset,
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
    pub weights: Vec<PartWeight>,
    /// Parts that are to be measured by the gate.
    pub gates: Vec<GateAsked>,
    /// Drives that get little or nothing new and have to be tried now and then, by the path on their node.
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
    pub backlog: Backlog,
}

impl Kept {
    /// As it was written. What another release wrote may not be understood.
    pub fn parse(body: &[u8]) -> Result<Kept, StoreError> {
        if body.is_empty() {
            return Ok(Kept::default());
        }
        serde_json::from_slice(body).map_err(|fault| {
            let message = format!(
                "what the break-fix loop kept is not understood ({fault}), so this node does not lead it: start a node of the \
                 release that wrote it, or let it begin without what it kept: `stoker slo reset`"
            );
            StoreError::new(ErrorKind::Corrupt, message)
        })
    }

    /// To be written. If it is too long, what nodes tell again in a moment is left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = serde_json::to_vec(self).expect("our own types are JSON");
        if bytes.len() <= NOTE_BODY_LEN_MAX {
            return bytes;
        }
        let mut shorter = self.clone();
        shorter.memory.shorten();
        serde_json::to_vec(&shorter).expect("our own types are JSON")
    }
}

impl Head {
    /// What nodes have to keep to, as the loop has it now.
    pub fn orders(&mut self, reflex: &Reflex) {
        let (mut weights, mut gates): (Vec<PartWeight>, Vec<GateAsked>) = Default::default();
        for command in reflex.standing() {
            match command {
                Command::Reweight { part, percent } => {
                    if let Some(weight) = weight_of(&mut weights, &part) {
                        weight.percent = percent;
                    }
                }
                Command::StopPlacing { part } => {
                    if let Some(weight) = weight_of(&mut weights, &part) {
                        weight.takes_chunks = false;
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
        let is_tried = |state: State| {
            use State::{Degraded, Escalated, Quarantined, Repair, Verifying};
            matches!(state, Degraded | Escalated | Quarantined | Repair | Verifying)
        };
        let tried = reflex.parts().into_iter().filter(|status| is_tried(status.state));
        let probe = |status: PartStatus| match place_of(&status.part) {
            Some((node, Some(drive))) => Some(ProbeAsked { node, drive }),
            _ => None,
        };
        self.probes = tried.filter_map(probe).collect();
        (self.weights, self.gates) = (weights, gates);
    }

    /// The head as it is written. If it is too long, people see less, and nodes keep to what concerns most of them.
    pub fn fit(&mut self) -> Vec<u8> {
        loop {
            let bytes = serde_json::to_vec(self).expect("our own types are JSON");
            if bytes.len() <= NOTE_HEAD_LEN_MAX {
                return bytes;
            }
            let (parts, notices) = (self.shown.parts.len(), self.shown.notices.len());
            if parts + notices > 0 {
                self.shown.parts.truncate(parts / 2);
                self.shown.parts_more += parts - parts / 2;
                self.shown.notices.truncate(notices / 2);
                continue;
            }
            // Others are cut off the next time, so that everybody is told now and then.
            let by = |len: usize| (self.beat as usize).checked_rem(len).unwrap_or(0);
            let (weights, gates) = (by(self.weights.len()), by(self.gates.len()));
            let probes = by(self.probes.len());
            self.weights.rotate_left(weights);
            self.gates.rotate_left(gates);
            self.probes.rotate_left(probes);
            let longest = self.weights.len().max(self.gates.len()).max(self.probes.len());
            self.weights.truncate(longest / 2);
            self.gates.truncate(longest / 2);
            self.probes.truncate(longest / 2);
            if longest == 0 {
                // Nothing that grows is left; whoever reads refuses it, and says why.
                return bytes;
            }
        }
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

fn weight_of<'a>(all: &'a mut Vec<PartWeight>, part: &PartId) -> Option<&'a mut PartWeight> {
    let (node, drive) = place_of(part)?;
    let at = all.iter().position(|one| one.node == node && one.drive == drive).unwrap_or_else(|| {
        all.push(PartWeight { node, drive, percent: 100, takes_chunks: true });
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

    #[test]
    fn a_head_that_is_too_long_is_cut() {
        let long = "/a/rather/long/path".repeat(60);
        let part = |at: usize| PartStatus {
            part: PartId::drive("ab", &format!("{long}{at}")),
            state: State::Degraded,
            opened: stoker_reflex::Time(1),
            reason: "slow".repeat(50),
            evidence: Vec::new(),
            has_order: false,
        };
        let weight = |at: usize| PartWeight {
            node: "ab".into(),
            drive: Some(format!("{long}{at}")),
            percent: 25,
            takes_chunks: false,
        };
        let mut head = Head { leader: "x".into(), ..Head::default() };
        head.shown.parts = (0..SHOWN_MAX).map(part).collect();
        head.weights = (0..10).map(weight).collect();
        let bytes = head.fit();
        assert!(bytes.len() <= NOTE_HEAD_LEN_MAX);
        let read: Head = serde_json::from_slice(&bytes).unwrap();
        // People see less; nodes are told everything.
        assert_eq!(read.weights.len(), 10);
        assert!(!read.shown.parts.is_empty());
        assert_eq!(read.shown.parts.len() + read.shown.parts_more, SHOWN_MAX);
        head.weights = (0..1_000).map(weight).collect();
        let read: Head = serde_json::from_slice(&head.fit()).unwrap();
        assert!(read.shown.parts.is_empty() && !read.weights.is_empty());
    }

    #[test]
    fn what_is_not_understood_is_not_taken_for_nothing() {
        assert_eq!(Kept::parse(b"").unwrap(), Kept::default());
        let kept = Kept::default();
        assert_eq!(Kept::parse(&kept.to_bytes()).unwrap(), kept);
        let fault = Kept::parse(b"{\"memory\": {\"incidents\": 7}}").unwrap_err();
        assert!(fault.kind == ErrorKind::Corrupt && fault.message.contains("reset"), "{fault}");
    }
}
