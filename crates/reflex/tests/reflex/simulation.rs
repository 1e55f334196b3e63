//! Seeds: parts break and come back at random, persons interfere, the process restarts. Every transition of the table is driven; in the
//! end, when nothing is broken any more, everything is back.

use std::collections::BTreeSet;

use stoker_reflex::table::{Event, State, transitions};
use stoker_reflex::*;

use crate::fleet::{Fleet, short};

/// SplitMix64: one seed, one history.
struct Rng(u64);

impl Rng {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.number() % n as u64) as usize
    }

    fn percent(&mut self, n: u64) -> bool {
        self.number() % 100 < n
    }
}

/// One story: faults for a while, then none.
fn story(seed: u64, faults_ticks: u64) -> Fleet {
    let mut rng = Rng(seed);
    let racks: &[usize] = if seed.is_multiple_of(2) { &[10] } else { &[4, 10] };
    let mut fleet = Fleet::new(short(), racks, 2 + rng.below(3));
    fleet.ticks(3);
    while fleet.tick < faults_ticks {
        if rng.percent(25) {
            fault(&mut fleet, &mut rng);
        }
        fleet.tick();
    }
    // Persons repair everything that is left.
    fleet.is_mute = false;
    let shared: Vec<PartId> = fleet.things.keys().filter(|part| part.kind < PartKind::Node).cloned().collect();
    for part in shared {
        fleet.things.remove(&part);
    }
    for thing in fleet.things.values_mut() {
        thing.heal();
        thing.says.push(Fact::Repaired);
    }
    // The longest doubt, twice, and the pause of what could not be judged.
    fleet.ticks(400);
    let waiting: Vec<PartId> = fleet.reflex.parts().into_iter().map(|status| status.part).collect();
    for part in waiting {
        fleet.things.entry(part).or_default().says.push(Fact::Repaired);
    }
    fleet.ticks(50);
    fleet
}

fn fault(fleet: &mut Fleet, rng: &mut Rng) {
    let node = fleet.inventory.nodes[rng.below(fleet.inventory.nodes.len())].clone();
    let drive = PartId::drive(&node.node, &node.drives[rng.below(node.drives.len())].name);
    let port = PartId::port(&node.node, &node.ports[rng.below(2)].name);
    let node_id = PartId::node(&node.node);
    let holder = if rng.percent(50) { drive.clone() } else { node_id.clone() };
    let mut at = |part: &PartId, change: &dyn Fn(&mut crate::fleet::Thing)| {
        change(fleet.things.entry(part.clone()).or_default());
    };
    match rng.below(22) {
        0 => at(&holder, &|thing| thing.p99_us = 9_000),
        1 => at(&drive, &|thing| thing.errors = true),
        2 => at(&drive, &|thing| thing.warning = true),
        3 => at(&drive, &|thing| thing.worn = true),
        4 => at(&drive, &|thing| thing.presence = Presence::Down),
        5 => at(&node_id, &|thing| thing.presence = Presence::Suspect),
        6 => at(&node_id, &|thing| thing.presence = Presence::Down),
        7 => at(&port, &|thing| thing.presence = Presence::Down),
        8 => at(&port, &|thing| thing.heal()),
        9 | 10 => at(&holder, &|thing| thing.heal()),
        11 => at(&holder, &|thing| thing.gate_fails = !thing.gate_fails),
        12 => at(&holder, &|thing| thing.says.push(Fact::Repaired)),
        13 => at(&holder, &|thing| thing.refuses = true),
        14 => at(&holder, &|thing| thing.duty = Duty::Full),
        15 => at(&holder, &|thing| thing.mute = !thing.mute),
        16 => fleet.restart(),
        17 => shared(fleet, rng, &node),
        18 => {
            // Everything below a switch, or of the rack, in one mood.
            let (mood, wide) = (rng.below(4), rng.percent(50));
            for other in fleet.inventory.nodes.clone() {
                if (wide && other.cell == node.cell) || other.tor == node.tor {
                    let thing = fleet.things.entry(PartId::node(&other.node)).or_default();
                    match mood {
                        0 => thing.p99_us = 9_000,
                        1 => thing.presence = Presence::Down,
                        _ => thing.heal(),
                    }
                }
            }
        }
        19 => {
            let mood = rng.below(3);
            for drive in &node.drives {
                let thing = fleet.things.entry(PartId::drive(&node.node, &drive.name)).or_default();
                match mood {
                    0 => thing.p99_us = 9_000,
                    1 => thing.presence = Presence::Down,
                    _ => thing.heal(),
                }
            }
        }
        20 => {
            // Flapping, for a while.
            let part = if rng.percent(50) { port } else { node_id };
            for beat in 0..12 {
                let down = if part.kind == PartKind::Port { Presence::Down } else { Presence::Suspect };
                let presence = if beat % 2 == 0 { down } else { Presence::Up };
                fleet.things.entry(part.clone()).or_default().presence = presence;
                fleet.tick();
            }
        }
        _ => {
            // Quiet: everything heals, so that the next trouble stands out.
            fleet.things.values_mut().for_each(crate::fleet::Thing::heal);
            fleet.ticks(60);
        }
    }
}

/// Another system says something about a switch or a rack.
fn shared(fleet: &mut Fleet, rng: &mut Rng, node: &NodePlace) {
    let part = if rng.percent(50) { PartId::switch(&node.tor) } else { PartId::rack(&node.cell) };
    let presence = if rng.percent(50) { Presence::Down } else { Presence::Up };
    fleet.things.entry(part).or_default().presence = presence;
}

fn seeds() -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    (number("STOKER_FIRST").unwrap_or(1), number("STOKER_SEEDS").unwrap_or(40))
}

#[test]
fn every_transition_is_driven_and_everything_comes_back() {
    let (first, count) = seeds();
    let mut driven: BTreeSet<(PartKind, State, Event)> = BTreeSet::new();
    let mut quarantines = 0;
    for seed in first..first + count {
        let replay =
            format!("STOKER_FIRST={seed} STOKER_SEEDS=1 cargo test -p stoker-reflex --test reflex every_transition");
        let fleet = std::panic::catch_unwind(|| story(seed, 1_200)).unwrap_or_else(|_| panic!("replay: {replay}"));
        let left = fleet.reflex.parts();
        assert!(left.is_empty(), "{left:#?}\nreplay: {replay}");
        fleet.invariants.check_all_closed();
        quarantines += fleet.invariants.quarantines;
        driven.extend(&fleet.moves);
    }
    if count < 40 {
        return;
    }
    let missing: Vec<(PartKind, State, Event)> = transitions()
        .map(|(kind, from, event, _)| (kind, from, event))
        .filter(|one| !driven.contains(one))
        .collect();
    assert!(missing.is_empty(), "never driven: {missing:#?}");
    assert!(quarantines > 100, "only {quarantines} quarantines in all seeds");
}

#[test]
fn one_seed_is_one_history() {
    let (one, two) = (story(7, 400), story(7, 400));
    assert_eq!(one.log, two.log);
    assert_eq!(one.reflex.memory(), two.reflex.memory());
    assert_ne!(one.log, story(8, 400).log);
}
