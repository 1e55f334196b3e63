//! How many may be out of placement by our decision. A few at a time, seldom, and never so many that a volume finds too few nodes for
//! its class. What may not be is refused, and persons decide.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub rack_percent_max: u32,
    pub rack_pause_ms: u64,
}

/// What the decision is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask<'a> {
    /// The cell that the node is in.
    pub rack: &'a str,
    /// Nodes in the rack.
    pub nodes: usize,
    /// Of these, other nodes that are out, or have a drive that is.
    pub out: usize,
    /// Nodes of the cluster that would still take chunks.
    pub placing_left: usize,
    /// Nodes that the most demanding volume commits to.
    pub copies_needed: usize,
    /// The node itself is out already, or a drive of it.
    pub is_out: bool,
}

/// When somebody was taken out last, by rack.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    last_ms: BTreeMap<String, u64>,
}

impl Ledger {
    /// Why not, if not.
    pub fn refusal(&self, run_ms: u64, ask: &Ask<'_>, limits: &Limits) -> Option<String> {
        let allowed = allowed(ask.nodes, limits.rack_percent_max);
        let name = if ask.rack.is_empty() { "its rack" } else { ask.rack };
        if !ask.is_out && ask.out >= allowed {
            return Some(format!(
                "{} of {} nodes of {name} are out, and {allowed} may be",
                ask.out, ask.nodes
            ));
        }
        if ask.placing_left < ask.copies_needed.max(1) {
            return Some(format!(
                "{} nodes would be left that take chunks, and volumes need {}",
                ask.placing_left,
                ask.copies_needed.max(1)
            ));
        }
        let since_ms = self.last_ms.get(ask.rack).map(|last_ms| run_ms.saturating_sub(*last_ms));
        since_ms.filter(|since_ms| *since_ms < limits.rack_pause_ms).map(|since_ms| {
            let (since_s, pause_s) = (since_ms / 1_000, limits.rack_pause_ms / 1_000);
            format!("the last quarantine in {name} was {since_s} s ago, and {pause_s} s must lie between")
        })
    }

    pub fn grant(&mut self, run_ms: u64, rack: &str) {
        self.last_ms.insert(rack.to_owned(), run_ms);
    }

    /// Takes a grant back that came to nothing.
    pub fn take_back(&mut self, rack: &str, granted_ms: u64) {
        if self.last_ms.get(rack) == Some(&granted_ms) {
            self.last_ms.remove(rack);
        }
    }

    /// Drops racks that do not count any more.
    pub fn forget(&mut self, run_ms: u64, limits: &Limits) {
        self.last_ms.retain(|_, last_ms| run_ms.saturating_sub(*last_ms) < limits.rack_pause_ms);
    }
}

/// Nodes of a rack that may be out at once.
fn allowed(nodes: usize, percent: u32) -> usize {
    (nodes * percent as usize / 100).max(1)
}

/// Whether nothing new may be put on a node for now: most of a rack has to go on taking chunks.
pub(crate) fn may_stop_placing(ask: &Ask<'_>, stopped: usize) -> bool {
    let enough_left = ask.placing_left >= ask.copies_needed.max(1);
    enough_left && (stopped + 1) * 2 <= ask.nodes.max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rack_percent_max: 10, rack_pause_ms: 900_000 };

    fn ask(nodes: usize, out: usize) -> Ask<'static> {
        Ask { rack: "a", nodes, out, placing_left: 9, copies_needed: 2, is_out: false }
    }

    fn check(ask: Ask<'_>, last_ms: Option<u64>, run_ms: u64, expect: Option<&str>) {
        let mut ledger = Ledger::default();
        if let Some(last_ms) = last_ms {
            ledger.grant(last_ms, ask.rack);
        }
        assert_eq!(ledger.refusal(run_ms, &ask, &LIMITS).as_deref(), expect, "{ask:?}");
    }

    #[test]
    fn a_tenth_but_at_least_one() {
        check(ask(3, 0), None, 0, None);
        check(ask(10, 0), None, 0, None);
        check(ask(10, 1), None, 0, Some("1 of 10 nodes of a are out, and 1 may be"));
        check(ask(19, 1), None, 0, Some("1 of 19 nodes of a are out, and 1 may be"));
        check(ask(20, 1), None, 0, None);
        check(ask(72, 6), None, 0, None);
        check(ask(72, 7), None, 0, Some("7 of 72 nodes of a are out, and 7 may be"));
        // A second drive of a node that is out anyway.
        check(Ask { is_out: true, ..ask(10, 1) }, None, 0, None);
    }

    #[test]
    fn never_below_what_volumes_need() {
        let left = |placing_left, copies_needed| Ask { placing_left, copies_needed, ..ask(10, 0) };
        check(left(2, 2), None, 0, None);
        check(left(1, 2), None, 0, Some("1 nodes would be left that take chunks, and volumes need 2"));
        check(left(0, 0), None, 0, Some("0 nodes would be left that take chunks, and volumes need 1"));
    }

    #[test]
    fn seldom() {
        check(
            ask(40, 1),
            Some(1_000),
            1_000,
            Some("the last quarantine in a was 0 s ago, and 900 s must lie between"),
        );
        check(
            ask(40, 1),
            Some(1_000),
            900_999,
            Some("the last quarantine in a was 899 s ago, and 900 s must lie between"),
        );
        check(ask(40, 1), Some(1_000), 901_000, None);
    }

    #[test]
    fn most_of_a_rack_goes_on() {
        for (nodes, stopped, expect) in
            [(10, 0, true), (10, 4, true), (10, 5, false), (2, 0, true), (2, 1, false), (1, 0, true)]
        {
            assert_eq!(may_stop_placing(&ask(nodes, 0), stopped), expect, "{nodes} {stopped}");
        }
        assert!(!may_stop_placing(&Ask { placing_left: 1, ..ask(10, 0) }, 0));
    }
}
