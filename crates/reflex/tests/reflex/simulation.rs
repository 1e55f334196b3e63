//! Seeds: parts break and come back at random, persons interfere, the process restarts. Every transition of the table is driven; in the
//! end, when nothing is broken any more, everything is back.

use std::collections::BTreeSet;

use stoker_reflex::table::{Event, State, transitions};
use stoker_reflex::*;

use crate::fleet::{Fleet, short};

/// Enough to drive every transition of the table.
const SEEDS: u64 = 30;

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
    (fleet.gate_ticks, fleet.evacuation_ticks) = (1 + seed % 6, 2 + seed % 12);
    fleet.ticks(3);
    while fleet.tick < faults_ticks {
        if rng.percent(15) {
            fault(&mut fleet, &mut rng);
        }
        if rng.percent(10) {
            worsen(&mut fleet, &mut rng);
        }
        fleet.tick();
    }
    // Persons repair everything that is left.
    fleet.is_mute = false;
    let shared: Vec<PartId> =
        fleet.things.keys().filter(|part| part.kind < PartKind::Node).cloned().collect();
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
    match rng.below(24) {
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
        21 => unplug(fleet, &node),
        // Slow from the first day on: odd, and within its baseline.
        22 => at(&holder, &|thing| (thing.baseline_us, thing.p99_us) = (9_000, 9_000)),
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
            let part = if rng.percent(50) { port } else { node_id };
            flap(fleet, rng, &part);
        }
        _ => {
            // Quiet: everything heals, so that the next trouble stands out.
            fleet.things.values_mut().for_each(crate::fleet::Thing::heal);
            fleet.ticks(60);
        }
    }
}

/// Something more happens to a part that is in trouble.
fn worsen(fleet: &mut Fleet, rng: &mut Rng) {
    let parts = fleet.reflex.parts();
    if parts.is_empty() {
        return;
    }
    let part = parts[rng.below(parts.len())].part.clone();
    if part.kind < PartKind::Node {
        // It goes, or what it hangs on does.
        let above = fleet.inventory.nodes.iter().find(|node| node.tor == part.name);
        let above = above.map(|node| PartId::rack(&node.cell)).filter(|_| rng.percent(50));
        fleet.things.entry(above.unwrap_or(part)).or_default().presence = Presence::Down;
        return;
    }
    let thing = fleet.things.entry(part.clone()).or_default();
    match rng.below(10) {
        0 => thing.p99_us = 9_000,
        1 => thing.errors = true,
        2 => thing.presence = Presence::Down,
        3 => thing.says.push(Fact::Repaired),
        4 => thing.duty = Duty::Full,
        5 => thing.gate_fails = true,
        6 => thing.refuses = true,
        7 => thing.heal(),
        _ => flap(fleet, rng, &part),
    }
}

/// It comes and goes for a while.
fn flap(fleet: &mut Fleet, rng: &mut Rng, part: &PartId) {
    let gone = if part.kind == PartKind::Node { Presence::Suspect } else { Presence::Down };
    for _ in 0..12 {
        let presence = if rng.percent(50) { gone } else { Presence::Up };
        fleet.things.entry(part.clone()).or_default().presence = presence;
        fleet.tick();
    }
}

/// Ports of a switch go one after the other.
fn unplug(fleet: &mut Fleet, node: &NodePlace) {
    for port in 0..2 {
        for other in fleet.inventory.nodes.clone().iter().filter(|other| other.tor == node.tor) {
            let part = PartId::port(&other.node, &other.ports[port].name);
            fleet.things.entry(part).or_default().presence = Presence::Down;
            if port == 0 && other.node == node.node {
                break;
            }
        }
        fleet.ticks(3);
    }
}

/// Another system says something about a switch or a rack.
fn shared(fleet: &mut Fleet, rng: &mut Rng, node: &NodePlace) {
    let part = if rng.percent(50) { PartId::switch(&node.tor) } else { PartId::rack(&node.cell) };
    let presence = if rng.percent(50) { Presence::Down } else { Presence::Up };
    fleet.things.entry(part).or_default().presence = presence;
}

/// What chance seldom comes upon, on purpose.
fn rare() -> BTreeSet<(PartKind, State, Event)> {
    let mut moves = BTreeSet::new();
    let mut play = |script: &dyn Fn(&mut Fleet)| {
        let mut fleet = Fleet::new(short(), &[10], 2);
        (fleet.gate_ticks, fleet.evacuation_ticks) = (6, 20);
        fleet.ticks(3);
        script(&mut fleet);
        fleet.things.retain(|part, _| part.kind >= PartKind::Node);
        for thing in fleet.things.values_mut() {
            thing.heal();
            thing.says.push(Fact::Repaired);
        }
        fleet.ticks(100);
        assert_eq!(fleet.reflex.parts(), []);
        fleet.invariants.check_all_closed();
        moves.extend(&fleet.moves);
    };
    play(&|fleet| {
        fleet.thing("node/n01").p99_us = 9_000;
        fleet.ticks(7);
        fleet.thing("node/n01").says.push(Fact::Repaired);
        // The gate finds what is wrong, before it is empty.
        fleet.ticks(30);
        fleet.thing("node/n01").says.push(Fact::Repaired);
        fleet.ticks(2);
        assert_eq!(fleet.state("node/n01"), State::Verifying);
        fleet.thing("node/n01").presence = Presence::Down;
        fleet.ticks(4);
        assert_eq!(fleet.state("node/n01"), State::Down);
    });
    for part in ["node/n01", "drive/n02:/d1"] {
        play(&|fleet| {
            fleet.thing(part).p99_us = 9_000;
            fleet.ticks(8);
            fleet.thing(part).says.push(Fact::Repaired);
            fleet.ticks(2);
            assert_eq!(fleet.state(part), State::Verifying);
            fleet.thing(part).duty = Duty::Full;
            fleet.ticks(1);
            assert_eq!(fleet.state(part), State::Healthy);
        });
    }
    play(&|fleet| {
        for beat in 0..6 {
            let presence = if beat % 2 == 0 { Presence::Down } else { Presence::Up };
            fleet.thing("port/n01:eth0").presence = presence;
            fleet.tick();
        }
        assert_eq!(fleet.state("port/n01:eth0"), State::Degraded);
        fleet.thing("port/n01:eth0").presence = Presence::Down;
        fleet.ticks(2);
        assert_eq!(fleet.state("port/n01:eth0"), State::Down);
    });
    play(&|fleet| {
        let drive = fleet.thing("drive/n02:/d1");
        (drive.baseline_us, drive.p99_us) = (9_000, 9_000);
        fleet.ticks(5);
        fleet.thing("drive/n02:/d1").errors = true;
        fleet.ticks(3);
        assert_eq!(fleet.news().last().map(String::as_str), Some("10 stop placing drive/n02:/d1"));
    });
    // Odd from the first day on, and then slow by any measure.
    play(&|fleet| {
        let drive = fleet.thing("drive/n02:/d1");
        (drive.baseline_us, drive.p99_us) = (9_000, 9_000);
        fleet.ticks(5);
        fleet.thing("drive/n02:/d1").p99_us = 90_000;
        fleet.ticks(3);
        assert_eq!(fleet.news().last().map(String::as_str), Some("10 stop placing drive/n02:/d1"));
    });
    for ticks in [3, 15] {
        play(&|fleet| {
            for at in [1, 3, 5] {
                fleet.thing(&format!("node/n0{at}")).p99_us = 9_000;
            }
            fleet.ticks(ticks);
            fleet.thing("switch/t01").presence = Presence::Down;
            fleet.ticks(3);
            assert_eq!(fleet.state("switch/t01"), State::Down);
        });
    }
    // Another one is put in its place.
    for (part, state, script) in taken_away() {
        let is_out = matches!(state, State::Quarantined | State::Repair | State::Verifying | State::Down);
        if part == "drive/n02:/d1" && is_out {
            play(&|fleet| {
                script(fleet);
                fleet.news();
                fleet.thing(part).heal();
                fleet.thing(part).duty = Duty::Full;
                fleet.thing(part).says.push(Fact::Replaced);
                fleet.ticks(1);
                assert_eq!(fleet.state(part), State::Verifying, "{state:?}");
                fleet.ticks(8);
                assert_eq!(fleet.state(part), State::Healthy, "{state:?}");
                let news = fleet.news().join(", ");
                assert!(news.contains("gate drive") && !news.contains("rejoin"), "{news}");
            });
        }
    }
    for (part, state, script) in taken_away() {
        play(&|fleet| {
            script(fleet);
            assert_eq!(fleet.state(part), state, "{part}");
            fleet.thing(part).presence = Presence::Removed;
            fleet.ticks(2);
            assert_eq!(fleet.state(part), State::Healthy, "{part} was {state:?}");
        });
    }
    moves
}

type Script = Box<dyn Fn(&mut Fleet)>;

/// Ways to every state from which parts can be taken away.
fn taken_away() -> Vec<(&'static str, State, Script)> {
    let mut all: Vec<(&'static str, State, Script)> = Vec::new();
    for part in ["node/n01", "drive/n02:/d1"] {
        let slow = move |ticks: u64| -> Script {
            Box::new(move |fleet| {
                fleet.thing(part).p99_us = 9_000;
                fleet.ticks(ticks);
            })
        };
        all.push((part, State::Degraded, slow(3)));
        all.push((part, State::Quarantined, slow(8)));
        all.push((part, State::Repair, slow(40)));
        let verify: Script = Box::new(move |fleet| {
            slow(8)(fleet);
            fleet.thing(part).says.push(Fact::Repaired);
            fleet.ticks(2);
        });
        all.push((part, State::Verifying, verify));
        let refuse: Script = Box::new(move |fleet| {
            fleet.thing(part).refuses = true;
            slow(8)(fleet);
        });
        all.push((part, State::Escalated, refuse));
        all.push((part, State::Down, gone(part, Presence::Down, 4)));
    }
    for part in ["drive/n02:/d1", "port/n02:eth0"] {
        // Its node is measured: whatever it shows is the node's matter.
        let script: Script = Box::new(move |fleet| {
            for beat in 0..6 {
                let presence = if beat % 2 == 0 { Presence::Down } else { Presence::Up };
                gone("port/n02:eth0", presence, 1)(fleet);
            }
            fleet.thing("drive/n02:/d1").p99_us = 9_000;
            fleet.ticks(2);
            gone("node/n02", Presence::Down, 4)(fleet);
            gone("node/n02", Presence::Up, 2)(fleet);
        });
        all.push((part, State::Shadowed, script));
    }
    for (part, above) in [("node/n01", "switch/t01"), ("switch/t01", "rack/r0")] {
        let script: Script = Box::new(move |fleet| {
            for at in [1, 3, 5] {
                fleet.thing(&format!("node/n0{at}")).p99_us = 9_000;
            }
            fleet.ticks(3);
            gone(above, Presence::Down, 3)(fleet);
        });
        all.push((part, State::Shadowed, script));
    }
    all.push(("node/n01", State::Suspect, gone("node/n01", Presence::Suspect, 1)));
    let port = "port/n01:eth0";
    let flaps: Script = Box::new(move |fleet| {
        for beat in 0..6 {
            let presence = if beat % 2 == 0 { Presence::Down } else { Presence::Up };
            gone(port, presence, 1)(fleet);
        }
    });
    all.push((port, State::Degraded, flaps));
    all.push((port, State::Down, gone(port, Presence::Down, 3)));
    all.push((port, State::Repair, gone(port, Presence::Down, 12)));
    for (part, below) in [("switch/t01", &[1, 3, 5][..]), ("rack/r0", &[1, 2, 3, 4, 5, 6, 7, 8][..])] {
        for (state, ticks) in [(State::Degraded, 3), (State::Repair, 15)] {
            let script: Script = Box::new(move |fleet| {
                for at in below {
                    fleet.thing(&format!("node/n0{at}")).p99_us = 9_000;
                }
                fleet.ticks(ticks);
            });
            all.push((part, state, script));
        }
        all.push((part, State::Down, gone(part, Presence::Down, 3)));
    }
    all
}

fn gone(part: &'static str, presence: Presence, ticks: u64) -> Script {
    Box::new(move |fleet| {
        fleet.thing(part).presence = presence;
        fleet.ticks(ticks);
    })
}

fn seeds() -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    (number("STOKER_FIRST").unwrap_or(1), number("STOKER_SEEDS").unwrap_or(SEEDS))
}

#[test]
fn every_transition_is_driven_and_everything_comes_back() {
    let (first, count) = seeds();
    let mut driven = rare();
    let mut quarantines = 0;
    for seed in first..first + count {
        let replay = format!(
            "STOKER_FIRST={seed} STOKER_SEEDS=1 cargo test -p stoker-reflex --test reflex every_transition"
        );
        let fleet =
            std::panic::catch_unwind(|| story(seed, 1_200)).unwrap_or_else(|_| panic!("replay: {replay}"));
        let left = fleet.reflex.parts();
        assert!(left.is_empty(), "{left:#?}\nreplay: {replay}");
        let still_out = fleet.things.iter().filter(|(_, thing)| thing.duty != Duty::Full);
        let still_out: Vec<&PartId> = still_out.map(|(part, _)| part).collect();
        assert!(still_out.is_empty(), "{still_out:?} are out for ever\nreplay: {replay}");
        fleet.invariants.check_all_closed();
        quarantines += fleet.invariants.quarantines;
        driven.extend(&fleet.moves);
    }
    if count < SEEDS {
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
