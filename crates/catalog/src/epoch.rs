//! Who may serve a catalog, in one number that only rises.

use std::fmt;

use serde::{Deserialize, Serialize};
use stoker_format::NodeId;

/// Which epoch of which node a catalog is in. Whoever saw a higher one believes no lower one any more.
///
/// A promotion raises the first field, so that it is above every start of the catalog that it replaces. A start
/// raises the last. Should two nodes be promoted at once, the middle field makes their epochs different, and
/// one of them is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Epoch {
    promotion: u64,
    holder: [u8; 16],
    run: u64,
}

/// What an incarnation of a group counts: more than the terms of one.
const INCARNATION: u64 = 1 << 40;

/// What a second counts in the epoch of a restored catalog, so that its time is above that of four million groups that were begun anew, until the year 2106.
const SECOND: u64 = 1 << 32;

impl Epoch {
    /// The first epoch of a catalog, or of a server whose catalog has no epochs of its own.
    pub fn first(holder: NodeId) -> Epoch {
        Epoch { promotion: 1, holder: holder.0, run: 1 }
    }

    /// The epoch after a start of the same node.
    #[must_use]
    pub fn restarted(self) -> Epoch {
        Epoch { run: self.run.saturating_add(1), ..self }
    }

    /// The epoch in which `holder` takes over; above every restart of this one.
    #[must_use]
    pub fn promoted(self, holder: NodeId) -> Epoch {
        Epoch { promotion: self.promotion.saturating_add(1), holder: holder.0, run: 0 }
    }

    /// The epoch of a catalog that `holder` restored or rebuilt, at this time in seconds since 1970. Nobody may be left
    /// who knows the epochs before: no count of promotions comes near the time, nor of groups that were begun anew, of which one counts
    /// 2^40.
    #[must_use]
    pub fn rebuilt(self, holder: NodeId, now_s: u64) -> Epoch {
        let now = now_s.saturating_mul(SECOND);
        Epoch { promotion: self.promotion.saturating_add(1).max(now), holder: holder.0, run: 0 }
    }

    /// What is counted when a group begins; of two groups that know each other the one that counts more goes on.
    #[must_use]
    pub fn beginning(base: u64, incarnation: u64) -> u64 {
        base.saturating_add(incarnation.saturating_sub(1).saturating_mul(INCARNATION))
    }

    /// The epoch in which `holder` leads a group, by its term and the incarnation of the group; `base` is what was promoted or rebuilt
    /// before there was a group.
    #[must_use]
    pub(crate) fn of_term(base: u64, incarnation: u64, term: u64, holder: NodeId) -> Epoch {
        let begun = Epoch::beginning(base, incarnation);
        Epoch { promotion: begun.saturating_add(term), holder: holder.0, run: 0 }
    }

    /// What is counted in it besides starts.
    pub fn promotions(self) -> u64 {
        self.promotion
    }

    /// The node that serves in this epoch.
    pub fn holder(self) -> NodeId {
        NodeId(self.holder)
    }

    /// Promotions and starts, without the node.
    pub fn number(self) -> String {
        format!("{}.{}", self.promotion, self.run)
    }

    /// Whether no catalog ever had this epoch.
    pub fn is_none(self) -> bool {
        self == Epoch::default()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of node {}", self.number(), NodeId(self.holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_is_above_every_restart() {
        let (a, b) = (NodeId([9; 16]), NodeId([1; 16]));
        let first = Epoch::first(a);
        let restarts = (0..1000).fold(first, |epoch, _| epoch.restarted());
        assert!(Epoch::default() < first && first < restarts);
        assert!(restarts < first.promoted(b) && restarts < first.promoted(a));
        assert_ne!(first.promoted(a), first.promoted(b));
        let rebuilt = first.rebuilt(b, 1_800_000_000);
        assert!(restarts < rebuilt && rebuilt < rebuilt.rebuilt(a, 0));
        let begun_anew = Epoch::of_term(first.promotions(), 1_000_000, 1_000_000, a);
        assert!(first.promoted(b) < begun_anew && begun_anew < rebuilt, "a restored one counts more");
        assert!(Epoch::beginning(3, 2) > Epoch::beginning(4, 1));
        assert!(first.promoted(b).restarted() < first.promoted(b).promoted(a));
    }
}
