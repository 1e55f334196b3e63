//! Who follows a primary, and who of them has every acknowledged commit. Decisions only, no I/O.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stoker_format::NodeId;

/// Most standbys of a catalog.
pub const STANDBYS_MAX: usize = 8;

/// What a primary does when fewer standbys than needed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenAlone {
    /// Acknowledges nothing until one is back.
    #[default]
    Refuse,
    /// Goes on, and says so. A crash of its drive then loses commits, and a standby that is promoted
    /// lacks them.
    Serve,
}

/// The standbys of a catalog, as its file records them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in super::super) struct Members {
    /// Every standby that was in sync since it was attached.
    known: BTreeSet<[u8; 16]>,
    /// Those that have every acknowledged commit; a part of `known`.
    in_sync: BTreeSet<[u8; 16]>,
}

/// What is to be done before commits up to some number may be acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Verdict {
    /// Nothing; enough standbys have them.
    Enough,
    /// Wait for those that are in sync.
    Wait,
    /// Record these members, and ask again.
    Change(Members),
    /// Nobody is left who could confirm them.
    Stalled,
}

impl Members {
    pub(in super::super) fn known(&self) -> impl Iterator<Item = NodeId> {
        self.known.iter().copied().map(NodeId)
    }

    pub(in super::super) fn in_sync(&self) -> impl Iterator<Item = NodeId> {
        self.in_sync.iter().copied().map(NodeId)
    }

    /// Who has every acknowledged change, for the log.
    pub(in super::super) fn words(&self) -> String {
        let list = |nodes: Vec<NodeId>| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
        let (in_sync, behind): (Vec<NodeId>, Vec<NodeId>) =
            self.known().partition(|node| self.is_in_sync(*node));
        match (in_sync.is_empty(), behind.is_empty()) {
            (true, true) => "nobody follows the catalog".to_owned(),
            (true, false) => {
                format!("no standby has every change of the catalog: {} must catch up", list(behind))
            }
            (false, true) => format!("these standbys have every change of the catalog: {}", list(in_sync)),
            (false, false) => {
                format!(
                    "these standbys have every change of the catalog: {}; behind: {}",
                    list(in_sync),
                    list(behind)
                )
            }
        }
    }

    pub(in super::super) fn knows(&self, node: NodeId) -> bool {
        self.known.contains(&node.0)
    }

    pub(in super::super) fn is_in_sync(&self, node: NodeId) -> bool {
        self.in_sync.contains(&node.0)
    }

    /// With these standbys, too, in sync.
    pub(in super::super) fn joined(&self, nodes: impl IntoIterator<Item = NodeId>) -> Members {
        let mut members = self.clone();
        for node in nodes {
            if members.known.len() < STANDBYS_MAX || members.knows(node) {
                members.known.insert(node.0);
                members.in_sync.insert(node.0);
            }
        }
        members
    }

    /// Without a standby that is not to come back.
    pub(in super::super) fn without(&self, node: NodeId) -> Members {
        let mut members = self.clone();
        members.known.remove(&node.0);
        members.in_sync.remove(&node.0);
        members
    }

    /// Those of the same standbys that a new primary starts with: nobody is in sync with it yet.
    pub(in super::super) fn promoted(&self, node: NodeId) -> Members {
        Members { in_sync: BTreeSet::new(), ..self.without(node) }
    }

    /// How many must be in sync for an acknowledgement. Where nobody ever followed, nobody is waited for.
    pub(in super::super) fn required(&self, needed: usize) -> usize {
        needed.min(self.known.len())
    }

    /// Whether commits may be acknowledged; `has` says whether a standby has all of them, `late` that those
    /// in sync had their time to answer.
    pub(in super::super) fn verdict(
        &self,
        needed: usize,
        when_alone: WhenAlone,
        late: bool,
        has: impl Fn(NodeId) -> bool,
    ) -> Verdict {
        let lagging = self.in_sync().any(|node| !has(node));
        let required = self.required(needed);
        let alone_is_fine = when_alone == WhenAlone::Serve;
        if !lagging && (self.in_sync.len() >= required || alone_is_fine) {
            return Verdict::Enough;
        }
        if lagging && !late {
            return Verdict::Wait;
        }
        // Only known ones may come in where others go: those that go know of them, and ask them before a
        // promotion.
        let in_sync: BTreeSet<_> = self.known().filter(|node| has(*node)).map(|node| node.0).collect();
        if in_sync != self.in_sync && (in_sync.len() >= required || alone_is_fine) {
            return Verdict::Change(Members { known: self.known.clone(), in_sync });
        }
        if late { Verdict::Stalled } else { Verdict::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId([1; 16]);
    const B: NodeId = NodeId([2; 16]);

    fn members(known: &[NodeId], in_sync: &[NodeId]) -> Members {
        let set = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect();
        Members { known: set(known), in_sync: set(in_sync) }
    }

    #[test]
    fn all_in_sync_confirm_or_go() {
        use WhenAlone::{Refuse, Serve};
        let both = members(&[A, B], &[A, B]);
        let change = |in_sync: &[NodeId]| Verdict::Change(members(&[A, B], in_sync));
        let table: [(Members, WhenAlone, bool, &[NodeId], Verdict); 13] = [
            (members(&[], &[]), Refuse, false, &[], Verdict::Enough),
            (both.clone(), Refuse, false, &[A, B], Verdict::Enough),
            (both.clone(), Refuse, false, &[A], Verdict::Wait),
            (both.clone(), Refuse, true, &[A], change(&[A])),
            (both.clone(), Refuse, true, &[], Verdict::Stalled),
            (both.clone(), Serve, false, &[], Verdict::Wait),
            (both.clone(), Serve, true, &[], change(&[])),
            // Another one that has everything comes in for one that does not answer.
            (members(&[A, B], &[A]), Refuse, true, &[B], change(&[B])),
            (members(&[A, B], &[A]), Refuse, false, &[B], Verdict::Wait),
            // After a promotion nobody is in sync.
            (members(&[A, B], &[]), Refuse, false, &[], Verdict::Wait),
            (members(&[A, B], &[]), Refuse, true, &[], Verdict::Stalled),
            (members(&[A, B], &[]), Refuse, false, &[B], change(&[B])),
            (members(&[A, B], &[]), Serve, false, &[], Verdict::Enough),
        ];
        for (members, when_alone, late, have, expected) in table {
            let verdict = members.verdict(1, when_alone, late, |node| have.contains(&node));
            assert_eq!(verdict, expected, "{members:?} {when_alone:?} late {late}, {have:?} have it");
        }
    }

    #[test]
    fn more_may_be_needed() {
        let both = members(&[A, B], &[A, B]);
        assert_eq!(both.verdict(2, WhenAlone::Refuse, true, |node| node == A), Verdict::Stalled);
        assert_eq!(members(&[A], &[A]).verdict(2, WhenAlone::Refuse, false, |_| true), Verdict::Enough);
    }
}
