//! What placement promises: balance, weights, minimal movement, the home first, never two copies in one node, and
//! never less spread than demanded without a word.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoker_cell::placement::*;
use stoker_format::{ChunkId, NodeId, VersionId};

fn node(number: u32) -> NodeId {
    let mut bytes = [7; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    NodeId(bytes)
}

fn candidate(number: u32, weight: u32) -> Candidate {
    Candidate { node: node(number), weight, domain: Domain::default() }
}

/// Chunks as they come: a few versions with consecutive indexes.
fn chunks(count: u32) -> impl Iterator<Item = Key> {
    (0..count).map(|number| {
        let mut version = [0; 12];
        version[4..8].copy_from_slice(&(number / 256).to_be_bytes());
        ChunkId::new(VersionId(version), number % 256).into()
    })
}

fn full() -> bool {
    std::env::var_os("STOKER_FULL").is_some()
}

fn two(home: Option<NodeId>) -> Demand<'static> {
    Demand { home, copies: 2, spread: Spread::Node, exclude: &[] }
}

fn placed(candidates: &Candidates, key: Key, demand: &Demand) -> Vec<NodeId> {
    match candidates.place(key, demand) {
        Choice::Placed { nodes, .. } => nodes,
        other => panic!("not placed: {other:?}"),
    }
}

/// The largest distance of a node's copies from its fair share, in parts of that share.
fn skew(nodes: u32, keys: u32, weight_of: impl Fn(u32) -> u32) -> f64 {
    let candidates = Candidates::new((0..nodes).map(|number| candidate(number, weight_of(number))));
    let mut copies: BTreeMap<NodeId, u32> = BTreeMap::new();
    for key in chunks(keys) {
        let first = candidates.rank(key).next().expect("there are candidates");
        *copies.entry(first).or_default() += 1;
    }
    let weight_all: f64 = (0..nodes).map(|number| f64::from(weight_of(number))).sum();
    let distance = |number: u32| {
        let fair = f64::from(keys) * f64::from(weight_of(number)) / weight_all;
        (f64::from(copies.get(&node(number)).copied().unwrap_or(0)) - fair).abs() / fair
    };
    (0..nodes).map(distance).fold(0.0, f64::max)
}

/// Five standard deviations of a fair draw: what chance alone can do to the unluckiest node.
fn chance(nodes: u32, keys: u32) -> f64 {
    5.0 / (f64::from(keys) / f64::from(nodes)).sqrt()
}

#[test]
fn nodes_get_equal_shares() {
    let (nodes, keys) = (32, 100_000);
    assert!(skew(nodes, keys, |_| 1) < chance(nodes, keys).max(0.05));
}

/// One million chunks on 512 nodes are 1,953 for each: chance alone is worth 2.3 % at a node and 7 % at the unluckiest.
/// So 5 % are asked of sixteen million, and of one million what chance allows.
#[test]
fn shares_are_equal_in_a_large_cell() {
    let (nodes, sizes) =
        if full() { (512, vec![1_000_000, 16_000_000]) } else { (64, vec![200_000, 1_000_000]) };
    for keys in sizes {
        let skew = skew(nodes, keys, |_| 3);
        eprintln!("{nodes} nodes, {keys} chunks: a node is at most {:.2} % off its share", skew * 100.0);
        assert!(skew < if keys / nodes > 15_000 { 0.05 } else { chance(nodes, keys) });
    }
}

#[test]
fn weights_are_respected() {
    let (nodes, keys) = (24, 200_000);
    let skew = skew(nodes, keys, |number| 1 + number % 4);
    assert!(skew < chance(nodes, keys / 3), "{skew}");
}

#[test]
fn who_joins_or_leaves_moves_only_its_own() {
    let all = Candidates::new((0..40).map(|number| candidate(number, 1 + number % 3)));
    let without = Candidates::new((0..39).map(|number| candidate(number, 1 + number % 3)));
    let mut moved = 0;
    for key in chunks(20_000) {
        let many: Vec<NodeId> = all.rank(key).collect();
        let fewer: Vec<NodeId> = without.rank(key).collect();
        let kept: Vec<NodeId> = many.iter().copied().filter(|n| *n != node(39)).collect();
        assert_eq!(kept, fewer, "the others keep their order");
        moved += u32::from(many[0] == node(39));
    }
    assert!(moved > 0, "a node that joins takes its share");
}

#[test]
fn a_lone_node_is_said_to_be_alone() {
    let candidates = Candidates::new([candidate(1, 1)]);
    let key = chunks(1).next().expect("one");
    assert_eq!(
        candidates.place(key, &two(Some(node(1)))),
        Choice::NotEnough { found: vec![node(1)] },
        "no second node"
    );
    assert_eq!(candidates.rank(key).len(), 1);
}

#[test]
fn a_node_without_a_label_is_not_taken_for_a_rack_of_its_own() {
    let candidates = Candidates::new([candidate(1, 1), candidate(2, 1)]);
    let demand = Demand { spread: Spread::Tor, ..two(Some(node(1))) };
    let choice = candidates.place(chunks(1).next().expect("one"), &demand);
    assert_eq!(choice, Choice::BelowSpread { nodes: vec![node(1), node(2)], spread_reached: Spread::Node });
}

#[test]
fn states_decide_who_takes_writes_and_reads() {
    let check = |state, write, read| {
        let member = Member {
            node: node(1),
            name: "a".into(),
            addresses: vec!["[::1]:7000".parse().expect("an address")],
            weight: 1,
            domain: Domain { tor: Some("t1".into()), power: None },
            state,
        };
        let map = Map { epoch: 3, nodes: vec![member] };
        let row = postcard::to_stdvec(&map).expect("a map is a row");
        let map: Map = postcard::from_bytes(&row).expect("a row is a map");
        assert_eq!(map.candidates(Purpose::Write).len(), write, "{state:?}");
        assert_eq!(map.candidates(Purpose::Read).len(), read, "{state:?}");
    };
    check(State::Up, 1, 1);
    check(State::Suspect, 0, 1);
    check(State::Leaving, 0, 1);
    check(State::Quarantined, 0, 1);
    check(State::Down, 0, 0);
}

fn label(of: std::ops::Range<u8>) -> impl Strategy<Value = Option<String>> {
    prop_oneof![1 => Just(None), 6 => of.prop_map(|label| Some(label.to_string()))]
}

fn cell() -> impl Strategy<Value = Vec<Candidate>> {
    let member = (0..24_u32, 0..5_u32, label(0..4), label(0..3)).prop_map(|(number, weight, tor, power)| {
        Candidate { node: node(number), weight, domain: Domain { tor, power } }
    });
    prop::collection::vec(member, 0..20).prop_map(|mut members| {
        let mut seen = std::collections::BTreeSet::new();
        members.retain(|member| seen.insert(member.node));
        members
    })
}

fn differ(one: &Candidate, two: &Candidate, spread: Spread) -> bool {
    let apart = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
    match spread {
        Spread::Node => one.node != two.node,
        Spread::Tor => apart(&one.domain.tor, &two.domain.tor),
        Spread::Power => apart(&one.domain.power, &two.domain.power),
    }
}

fn all_differ(nodes: &[NodeId], cell: &[Candidate], spread: Spread) -> bool {
    let find = |id: &NodeId| cell.iter().find(|member| member.node == *id).expect("a candidate");
    nodes
        .iter()
        .enumerate()
        .all(|(at, one)| nodes[..at].iter().all(|two| differ(find(one), find(two), spread)))
}

/// Tells whether some choice would satisfy the demand, by trying them all.
fn possible(chosen: &[NodeId], open: &[&Candidate], cell: &[Candidate], demand: &Demand) -> bool {
    if chosen.len() == demand.copies {
        return true;
    }
    open.iter().any(|next| {
        let more: Vec<NodeId> = chosen.iter().copied().chain([next.node]).collect();
        all_differ(&more, cell, Spread::Node)
            && all_differ(&more, cell, demand.spread)
            && possible(&more, open, cell, demand)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_choice_keeps_its_promises(
        cell in cell(),
        home in prop::option::of(0..24_u32),
        copies in 0..4_usize,
        spread in prop_oneof![Just(Spread::Node), Just(Spread::Tor), Just(Spread::Power)],
        failed in prop::collection::vec(0..24_u32, 0..3),
        index in any::<u32>(),
    ) {
        let exclude: Vec<NodeId> = failed.into_iter().map(node).collect();
        let demand = Demand { home: home.map(node), copies, spread, exclude: &exclude };
        let key = ChunkId::new(VersionId([1; 12]), index).into();
        let choice = Candidates::new(cell.clone()).place(key, &demand);

        let open: Vec<&Candidate> =
            cell.iter().filter(|c| c.weight > 0 && !exclude.contains(&c.node)).collect();
        let first: Vec<NodeId> =
            open.iter().map(|c| c.node).filter(|n| Some(*n) == demand.home && copies > 0).collect();
        let can = possible(&first, &open, &cell, &demand);
        let nodes = match &choice {
            Choice::Placed { nodes, spread_reached } => {
                prop_assert!(can);
                prop_assert!(all_differ(nodes, &cell, spread) && *spread_reached >= spread);
                prop_assert!(all_differ(nodes, &cell, *spread_reached));
                nodes
            }
            Choice::BelowSpread { nodes, spread_reached } => {
                prop_assert!(!can, "a choice with the demanded spread exists");
                prop_assert!(*spread_reached < spread && all_differ(nodes, &cell, *spread_reached));
                nodes
            }
            Choice::NotEnough { found } => {
                prop_assert!(open.len() < copies && found.len() == open.len());
                found
            }
        };
        prop_assert!(nodes.len() <= copies && all_differ(nodes, &cell, Spread::Node));
        prop_assert!(nodes.starts_with(&first), "the home is first");
        prop_assert!(nodes.iter().all(|n| open.iter().any(|c| c.node == *n)));
    }

    #[test]
    fn the_order_of_the_input_decides_nothing(
        mut cell in cell(),
        index in any::<u32>(),
        turn in 0..20_usize,
    ) {
        let key = ChunkId::new(VersionId([2; 12]), index).into();
        let demand = Demand { spread: Spread::Tor, ..two(None) };
        let one = Candidates::new(cell.clone());
        let turn = turn.min(cell.len());
        cell.rotate_left(turn);
        let two = Candidates::new(cell);
        prop_assert_eq!(one.place(key, &demand), two.place(key, &demand));
        prop_assert!(one.rank(key).eq(two.rank(key)));
    }
}

#[test]
fn a_peer_that_failed_is_followed_by_the_next_in_rank() {
    let candidates = Candidates::new((0..20).map(|number| candidate(number, 1)));
    for key in chunks(200) {
        let rank: Vec<NodeId> = candidates.rank(key).collect();
        assert_eq!(placed(&candidates, key, &two(None)), rank[..2]);
        let demand = Demand { exclude: &rank[..1], ..two(None) };
        assert_eq!(placed(&candidates, key, &demand), rank[1..3]);
    }
}
