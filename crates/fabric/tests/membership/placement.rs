//! What placement promises: balance, weights, minimal movement, the home first, never two copies in one node, and
//! never less spread than demanded without a word.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoker_fabric::placement::*;
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

/// Copies as a write makes them: the home first, then one node after the other, without those that failed.
fn placed(
    candidates: &Candidates,
    key: Key,
    home: NodeId,
    copies: usize,
    spread: Spread,
    failed: &[NodeId],
) -> Vec<NodeId> {
    let mut taken = vec![home];
    while taken.len() < copies {
        let mut takers = candidates.takers(key, &taken, spread).into_iter();
        let Some(next) = takers.find(|node| !failed.contains(node)) else { break };
        taken.push(next);
    }
    taken
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

/// What a node holds: chunks that it took itself, evenly, and copies that others chose it for. 5 % are asked of both together.
#[test]
fn what_nodes_hold_of_class_two_is_equal() {
    let (nodes, keys) = if full() { (512, 1_000_000) } else { (64, 125_000) };
    let candidates = Candidates::new((0..nodes).map(|number| candidate(number, 3)));
    let mut held: BTreeMap<NodeId, u32> = BTreeMap::new();
    for (at, key) in chunks(keys).enumerate() {
        let home = node(at as u32 % nodes);
        let peer = candidates.rank(key).find(|other| *other != home).expect("there are others");
        assert!(full() || Some(&peer) == candidates.takers(key, &[home], Spread::Node).first());
        *held.entry(home).or_default() += 1;
        *held.entry(peer).or_default() += 1;
    }
    let fair = 2.0 * f64::from(keys) / f64::from(nodes);
    let skew = held.values().map(|held| (f64::from(*held) - fair).abs() / fair).fold(0.0, f64::max);
    eprintln!("{nodes} nodes, {keys} chunks of class two: a node is at most {:.2} % off", skew * 100.0);
    assert!(held.len() == nodes as usize && skew < 0.05, "{skew}");
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
fn a_lone_node_has_no_taker() {
    let candidates = Candidates::new([candidate(1, 1)]);
    let key = chunks(1).next().expect("one");
    assert!(candidates.takers(key, &[node(1)], Spread::Node).is_empty());
    assert_eq!(candidates.rank(key).len(), 1);
}

#[test]
fn a_node_without_a_label_is_not_taken_for_a_rack_of_its_own() {
    let candidates = Candidates::new([candidate(1, 1), candidate(2, 1)]);
    let key = chunks(1).next().expect("one");
    assert!(candidates.takers(key, &[node(1)], Spread::Tor).is_empty());
    assert_eq!(candidates.takers(key, &[node(1)], Spread::Node), [node(2)]);
}

#[test]
fn copies_stay_in_their_cell_as_long_as_they_can() {
    let of = |number: u32| {
        let domain = Domain { cell: Some(format!("c{}", number % 2)), ..Domain::default() };
        Candidate { domain, ..candidate(number, 1) }
    };
    let candidates = Candidates::new((0..8).map(of));
    for key in chunks(500) {
        let takers = candidates.takers(key, &[node(3)], Spread::Node);
        assert_eq!(takers.len(), 7);
        let (near, far) = takers.split_at(3);
        let ranked = |even: bool| {
            let number = |id: &NodeId| u32::from_be_bytes(id.0[..4].try_into().expect("four bytes"));
            let of_cell = move |id: &NodeId| (number(id) % 2 == 0) == even && *id != node(3);
            candidates.rank(key).filter(of_cell).collect::<Vec<_>>()
        };
        assert_eq!(near, ranked(false), "its own cell, in the order of the key");
        assert_eq!(far, ranked(true), "then the others");
    }
}

fn label(of: std::ops::Range<u8>) -> impl Strategy<Value = Option<String>> {
    prop_oneof![1 => Just(None), 6 => of.prop_map(|label| Some(label.to_string()))]
}

fn cell() -> impl Strategy<Value = Vec<Candidate>> {
    let member = (0..24_u32, 0..5_u32, label(0..3), label(0..4), label(0..3)).prop_map(
        |(number, weight, cell, tor, power)| Candidate {
            node: node(number),
            weight,
            domain: Domain { cell, tor, power },
        },
    );
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

/// Tells whether so many copies could be placed, by trying all choices.
fn possible(
    chosen: &[NodeId],
    open: &[&Candidate],
    cell: &[Candidate],
    copies: usize,
    spread: Spread,
) -> bool {
    if chosen.len() == copies {
        return true;
    }
    open.iter().any(|next| {
        let more: Vec<NodeId> = chosen.iter().copied().chain([next.node]).collect();
        all_differ(&more, cell, Spread::Node)
            && all_differ(&more, cell, spread)
            && possible(&more, open, cell, copies, spread)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_choice_keeps_its_promises(
        cell in cell(),
        home in 0..24_u32,
        copies in 1..4_usize,
        spread in prop_oneof![Just(Spread::Node), Just(Spread::Tor), Just(Spread::Power)],
        failed in prop::collection::vec(0..24_u32, 0..3),
        index in any::<u32>(),
    ) {
        let key = ChunkId::new(VersionId([1; 12]), index).into();
        let candidates = Candidates::new(cell.clone());
        prop_assume!(cell.iter().any(|c| c.node == node(home) && c.weight > 0));
        let failed: Vec<NodeId> = failed.into_iter().map(node).filter(|n| *n != node(home)).collect();
        let nodes = placed(&candidates, key, node(home), copies, spread, &failed);

        let open: Vec<&Candidate> =
            cell.iter().filter(|c| c.weight > 0 && !failed.contains(&c.node)).collect();
        let can = possible(&nodes[..1], &open, &cell, copies, spread);
        prop_assert_eq!(nodes.len() == copies, can, "as many copies as can be had, and no fewer");
        prop_assert!(nodes.len() <= copies && nodes[0] == node(home));
        prop_assert!(all_differ(&nodes, &cell, Spread::Node), "two nodes");
        prop_assert!(all_differ(&nodes, &cell, spread), "never less spread than demanded");
        prop_assert!(nodes.iter().all(|n| open.iter().any(|c| c.node == *n)));

        // Whoever left the cell had no choice.
        let of = |id: &NodeId| &cell.iter().find(|c| c.node == *id).expect("a candidate").domain.cell;
        for at in 1..nodes.len() {
            let nearer = open.iter().any(|c| {
                let with: Vec<NodeId> = nodes[..at].iter().copied().chain([c.node]).collect();
                c.domain.cell == *of(&nodes[0])
                    && all_differ(&with, &cell, Spread::Node)
                    && all_differ(&with, &cell, spread)
            });
            prop_assert_eq!(of(&nodes[at]) == of(&nodes[0]), nearer);
        }
    }

    #[test]
    fn the_order_of_the_input_decides_nothing(
        mut cell in cell(),
        index in any::<u32>(),
        turn in 0..20_usize,
    ) {
        let key = ChunkId::new(VersionId([2; 12]), index).into();
        let one = Candidates::new(cell.clone());
        let home = cell.first().map(|c| c.node).into_iter().collect::<Vec<_>>();
        let turn = turn.min(cell.len());
        cell.rotate_left(turn);
        let two = Candidates::new(cell);
        prop_assert_eq!(one.takers(key, &home, Spread::Tor), two.takers(key, &home, Spread::Tor));
        prop_assert!(one.rank(key).eq(two.rank(key)));
    }
}

#[test]
fn a_peer_that_failed_is_followed_by_the_next_in_rank() {
    let candidates = Candidates::new((0..20).map(|number| candidate(number, 1)));
    for key in chunks(200) {
        let rank: Vec<NodeId> = candidates.rank(key).filter(|id| *id != node(0)).collect();
        let two = |failed: &[NodeId]| placed(&candidates, key, node(0), 2, Spread::Node, failed);
        assert_eq!(two(&[]), [node(0), rank[0]]);
        assert_eq!(two(&rank[..1]), [node(0), rank[1]]);
    }
}
