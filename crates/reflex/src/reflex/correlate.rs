//! One cause for the trouble of many. Parts that are in trouble at once and depend on the same thing are not broken each; that
//! thing is.

use std::collections::{BTreeMap, BTreeSet};

use super::watch::{Cause, Watch};
use crate::breach::Rows;
use crate::observation::Presence;
use crate::part::{PartId, PartKind, Plan};

/// Trouble that began within this time began at once.
pub(super) const AT_ONCE_MS: u64 = 600_000;

/// Parts that are the cause of what others show, and those others.
pub(super) type Causes = BTreeMap<PartId, (Cause, BTreeSet<PartId>)>;

/// Of so many, this many must be in trouble: half of them, and never one alone.
fn many(members: usize) -> usize {
    members.div_ceil(2).max(2)
}

/// Finds the causes. A thing that explains no more than a narrower one does is none.
pub(super) fn causes(plan: &Plan, watches: &BTreeMap<PartId, Watch>, run_ms: u64, rows: &Rows) -> Causes {
    let mut found = Causes::new();
    let is_bad = |watch: &Watch| watch.gone_since(run_ms, rows).is_some() || watch.bad_since().is_some();
    if !watches.values().any(is_bad) {
        return found;
    }
    for (part, members) in &plan.members {
        for kind in [PartKind::Node, PartKind::Port, PartKind::Drive] {
            let of_kind: Vec<&PartId> = members.iter().filter(|member| member.kind == kind).collect();
            if let Some(one) = cause(&of_kind, watches, run_ms, rows)
                && found.get(part).is_none_or(|other| (other.0, other.1.len()) < (one.0, one.1.len()))
            {
                found.insert(part.clone(), one);
            }
        }
    }
    narrowest(plan, found)
}

fn cause(
    members: &[&PartId],
    watches: &BTreeMap<PartId, Watch>,
    run_ms: u64,
    rows: &Rows,
) -> Option<(Cause, BTreeSet<PartId>)> {
    let gone = |watch: &Watch| watch.gone_since(run_ms, rows);
    let bad = |watch: &Watch| watch.gone_since(run_ms, rows).or_else(|| watch.bad_since());
    let at_once = |since: &dyn Fn(&Watch) -> Option<u64>| {
        let troubled: Vec<(&PartId, u64)> =
            members.iter().filter_map(|part| Some((*part, since(watches.get(*part)?)?))).collect();
        let last_ms = troubled.iter().map(|(_, since_ms)| *since_ms).max()?;
        let recent = troubled.iter().filter(|(_, since_ms)| last_ms - since_ms <= AT_ONCE_MS);
        let parts: BTreeSet<PartId> = recent.map(|(part, _)| (*part).clone()).collect();
        (parts.len() >= many(members.len())).then_some(parts)
    };
    let lost = at_once(&gone).map(|parts| (Cause::Lost, parts));
    lost.or_else(|| at_once(&bad).map(|parts| (Cause::Slow, parts)))
}

/// Of things above nodes that explain the same, keeps the one that explains most; of equals the one with the fewest members, and of
/// those a switch.
fn narrowest(plan: &Plan, mut found: Causes) -> Causes {
    let mut shared: Vec<PartId> = found.keys().filter(|part| part.kind < PartKind::Node).cloned().collect();
    shared.sort_by_key(|part| {
        let (cause, parts) = &found[part];
        let members = plan.members_of(part, PartKind::Node).count();
        (std::cmp::Reverse((*cause, parts.len())), members, std::cmp::Reverse(part.kind), part.clone())
    });
    let mut explained: BTreeSet<PartId> = BTreeSet::new();
    for part in shared {
        let parts = &found[&part].1;
        if parts.is_subset(&explained) {
            found.remove(&part);
        } else {
            explained.extend(parts.iter().cloned());
        }
    }
    found
}

/// Most of the others seem silent and nobody declared them down: it is more likely that we are cut off.
pub(super) fn is_blind(plan: &Plan, watches: &BTreeMap<PartId, Watch>, run_ms: u64, rows: &Rows) -> bool {
    let nodes = plan.cells.values().flatten();
    let (mut all, mut suspect) = (0, 0);
    for node in nodes {
        all += 1;
        let presence = watches.get(node).and_then(|watch| watch.fresh_presence(run_ms, rows));
        suspect += usize::from(presence.is_some_and(|seen| seen.value == Presence::Suspect));
    }
    suspect * 2 > all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breach::{Finding, Verdict};
    use crate::objective::Indicator;
    use crate::part::{Inventory, NodePlace, Piece};

    const ROWS: Rows = Rows { mitigate: 1, quarantine: 5, recover: 1, stale_ms: 1_000_000 };

    /// Nodes `1..=nodes` in one rack with two switches: odd ones on `t1`, even ones on `t0`; each with two drives.
    fn plan(nodes: usize, switches: usize) -> Plan {
        let piece = |name: &str| Piece { name: name.into(), ..Piece::default() };
        let node = |at: usize| NodePlace {
            node: at.to_string(),
            cell: "a".into(),
            tor: format!("t{}", at % switches),
            drives: vec![piece("x"), piece("y")],
            ..NodePlace::default()
        };
        Plan::new(&Inventory { nodes: (1..=nodes).map(node).collect(), ..Inventory::default() })
    }

    /// Parts that are silent since a time, and parts that are slow. Then the causes.
    fn check(plan: &Plan, silent: &[(usize, u64)], slow: &[&str], expect: &[(&str, Cause)]) {
        let mut watches: BTreeMap<PartId, Watch> = BTreeMap::new();
        for (node, since_ms) in silent {
            watches.entry(PartId::node(node.to_string())).or_default().see(Presence::Suspect, *since_ms);
        }
        for part in slow {
            let watch = watches.entry(part.parse().unwrap()).or_default();
            watch.note(Indicator::DriveErrors, 700_000, Verdict::Bad(Finding::default()), &ROWS);
        }
        let found = causes(plan, &watches, 700_000, &ROWS);
        let found: Vec<(String, Cause)> = found.iter().map(|(part, one)| (part.to_string(), one.0)).collect();
        let expect: Vec<(String, Cause)> =
            expect.iter().map(|(part, one)| ((*part).to_owned(), *one)).collect();
        assert_eq!(found, expect, "{silent:?} {slow:?}");
    }

    #[test]
    fn the_narrowest_thing_that_explains_most() {
        let ten = plan(10, 2);
        check(&ten, &[], &[], &[]);
        check(&ten, &[(1, 0)], &[], &[]);
        check(&ten, &[(1, 0), (3, 0)], &[], &[]);
        check(&ten, &[(1, 0), (3, 0), (5, 5)], &[], &[("switch/t1", Cause::Lost)]);
        check(&ten, &[(1, 0), (3, 0), (5, 0), (7, 0), (9, 0)], &[], &[("switch/t1", Cause::Lost)]);
        let all: Vec<(usize, u64)> = (1..=10).map(|at| (at, 0)).collect();
        check(&ten, &all, &[], &[("rack/a", Cause::Lost)]);
        // A rack with one switch: whoever looks finds out which.
        check(&plan(4, 1), &all[..4], &[], &[("switch/t0", Cause::Lost)]);
    }

    #[test]
    fn what_began_long_apart_has_no_common_cause() {
        check(&plan(4, 1), &[(1, 0), (2, 600_000)], &[], &[("switch/t0", Cause::Lost)]);
        check(&plan(4, 1), &[(1, 0), (2, 600_001)], &[], &[]);
    }

    #[test]
    fn drives_of_a_node_and_slow_nodes() {
        let ten = plan(10, 2);
        check(&ten, &[], &["drive/1:x"], &[]);
        check(&ten, &[], &["drive/1:x", "drive/2:x"], &[]);
        check(&ten, &[], &["drive/1:x", "drive/1:y"], &[("node/1", Cause::Slow)]);
        check(&ten, &[], &["node/1", "node/2", "node/3", "node/4"], &[]);
        check(&ten, &[], &["node/1", "node/2", "node/3", "node/4", "node/5"], &[("rack/a", Cause::Slow)]);
    }

    #[test]
    fn whoever_sees_nobody_is_blind() {
        let four = plan(4, 1);
        let blind = |presences: &[Presence]| {
            let mut watches: BTreeMap<PartId, Watch> = BTreeMap::new();
            for (at, presence) in presences.iter().enumerate() {
                watches.entry(PartId::node((at + 1).to_string())).or_default().see(*presence, 5);
            }
            is_blind(&four, &watches, 5, &ROWS)
        };
        assert!(!blind(&[Presence::Suspect, Presence::Suspect]));
        assert!(blind(&[Presence::Suspect, Presence::Suspect, Presence::Suspect]));
        assert!(!blind(&[Presence::Down, Presence::Down, Presence::Down]));
        assert!(!blind(&[]));
    }
}
