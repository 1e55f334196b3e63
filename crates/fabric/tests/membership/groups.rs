//! Wide groups: never more shards in a domain than may be lost, and no more moves than needed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_fabric::placement::{Candidate, Candidates, Domain, Group, Key, Narrow, Spread};
use stoker_format::{ChunkId, NodeId, VersionId};

/// Node `n` behind a switch; 0 is no label.
fn node(n: usize, tor: usize, weight: u32) -> Candidate {
    let mut id = [3; 16];
    id[..8].copy_from_slice(&(n as u64).to_le_bytes());
    let tor = (tor > 0).then(|| format!("tor{tor}"));
    Candidate { node: NodeId(id), weight, domain: Domain { tor, ..Domain::default() } }
}

/// Nodes behind these switches, all of one weight.
fn nodes(tors: &[usize]) -> Vec<Candidate> {
    tors.iter().enumerate().map(|(n, &tor)| node(n, tor, 1)).collect()
}

fn key(number: u32) -> Key {
    ChunkId::new(VersionId([9; 12]), number).into()
}

fn group(shards: usize, per_domain: usize) -> Group {
    Group { shards, per_domain, spread: Spread::Tor }
}

/// How many shards each switch has.
fn shards_per_tor(all: &[Candidate], holders: &[NodeId]) -> BTreeMap<Option<String>, usize> {
    let mut counts = BTreeMap::new();
    for holder in holders {
        let one = all.iter().find(|one| one.node == *holder).expect("a candidate");
        *counts.entry(one.domain.tor.clone()).or_default() += 1;
    }
    counts
}

fn check(all: &[Candidate], group: Group, holders: &[NodeId]) {
    assert_eq!(holders.iter().collect::<BTreeSet<_>>().len(), group.shards, "a node for each shard");
    for (tor, count) in shards_per_tor(all, holders) {
        assert!(tor.is_some() && count <= group.per_domain, "{count} shards behind {tor:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_group_is_found_whenever_there_is_one(
        tors in prop::collection::vec(0..7usize, 0..40), shards in 2..20usize, per_domain in 1..5usize, number: u32,
    ) {
        let all = nodes(&tors);
        let group = group(shards, per_domain);
        let mut counts = [0; 7];
        tors.iter().for_each(|&tor| counts[tor] += 1);
        let room: usize = counts[1..].iter().map(|&count: &usize| count.min(per_domain)).sum();
        match Candidates::new(all.clone()).group(key(number), group) {
            Ok(holders) => {
                check(&all, group, &holders);
                // The order in which nodes are listed says nothing.
                let backwards = Candidates::new(all.into_iter().rev()).group(key(number), group);
                prop_assert_eq!(backwards, Ok(holders));
            }
            Err(Narrow::Places { possible, unlabelled, .. }) => {
                prop_assert!(room < shards);
                prop_assert_eq!((possible, unlabelled), (room, counts[0]));
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Who joins takes at most one shard of a group, and nothing else moves. Who leaves costs its own shard.
    #[test]
    fn joins_and_losses_move_one_shard(
        tors in prop::collection::vec(1..7usize, 20..40), tor in 1..8usize, weight in 1..4u32, number: u32, lost in 0..10usize,
    ) {
        let mut all = nodes(&tors);
        let group = group(10, 2);
        let Ok(holders) = Candidates::new(all.clone()).group(key(number), group) else { return Ok(()) };
        let joined = node(all.len(), tor, weight);
        all.push(joined.clone());
        let after = Candidates::new(all.clone());
        let moves = after.moves(key(number), group, &holders).unwrap();
        prop_assert!(moves.len() <= 1, "{:?}", moves);
        let mut moved = holders.clone();
        for one in &moves {
            prop_assert_eq!(one.to, joined.node);
            prop_assert_eq!(one.from, holders[one.shard]);
            moved[one.shard] = one.to;
        }
        check(&all, group, &moved);
        prop_assert_eq!(after.moves(key(number), group, &moved), Ok(vec![]), "it is at rest");

        let left = Candidates::new(all.iter().filter(|one| one.node != moved[lost]).cloned());
        let gap: Vec<_> = moved.iter().enumerate().map(|(at, node)| (at != lost).then_some(*node)).collect();
        if let Ok(filled) = left.refill(key(number), group, &gap) {
            check(&all, group, &filled);
            prop_assert!(filled.iter().zip(&moved).enumerate().all(|(at, (one, two))| (at == lost) != (one == two)));
            let again = left.group(key(number), group).unwrap();
            prop_assert_eq!(filled.iter().collect::<BTreeSet<_>>(), again.iter().collect::<BTreeSet<_>>());
        }
    }
}

/// 14+4 over six racks of six: every node holds its share, and a seventh rack takes what it should.
#[test]
fn shares_are_fair_and_joins_take_no_more_than_theirs() {
    let racks = |count: usize| nodes(&(0..count * 6).map(|n| n / 6 + 1).collect::<Vec<_>>());
    let (before, after) = (Candidates::new(racks(6)), Candidates::new(racks(7)));
    let group = group(18, 4);
    let (mut held, mut moved) = (BTreeMap::<NodeId, u32>::new(), 0);
    const STRIPES: u32 = 2000;
    for number in 0..STRIPES {
        let holders = before.group(key(number), group).unwrap();
        holders.iter().for_each(|node| *held.entry(*node).or_default() += 1);
        moved += after.moves(key(number), group, &holders).unwrap().len() as u32;
    }
    let fair = STRIPES * 18 / 36;
    assert!(held.values().all(|&count| count.abs_diff(fair) < fair / 10), "{held:?}");
    let share = STRIPES * 18 / 7;
    assert!(
        moved.abs_diff(share) < share / 10,
        "{moved} shards moved, {share} are the share of the new rack"
    );
}

/// With nodes as domains no labels are needed; a name says why there are too few.
#[test]
fn reasons_are_said() {
    let plain = Candidates::new(nodes(&[0; 9]));
    let by_node = |shards| Group { shards, per_domain: 4, spread: Spread::Node };
    assert_eq!(plain.group(key(1), by_node(9)).map(|holders| holders.len()), Ok(9));
    let reason = |candidates: &Candidates, group| candidates.group(key(1), group).unwrap_err().to_string();
    assert_eq!(reason(&plain, by_node(10)), "10 shards need 10 nodes, there are 9");
    let few = Candidates::new(nodes(&[1, 1, 1, 1, 1, 2, 2, 3, 0, 0]));
    assert_eq!(
        reason(&few, group(10, 2)),
        "10 shards with at most 2 per switch do not fit: there is room for 5 (8 nodes, switch labels: 3); \
         2 nodes have no switch label"
    );
    let gone = NodeId([8; 16]);
    let holders = [Some(gone), None];
    assert_eq!(few.refill(key(1), group(2, 1), &holders), Err(Narrow::Unknown(gone)));
    let kept = plain.refill(key(1), by_node(2), &holders).unwrap();
    assert_eq!(kept[0], gone, "nodes are told apart by their ids alone");
}
