//! Many that break at once, and ports.

use stoker_reflex::Presence;
use stoker_reflex::table::State;

use crate::fleet::{Fleet, short};

fn check(fleet: &mut Fleet, expect: &[&str]) {
    assert_eq!(fleet.news(), expect);
}

#[test]
fn a_port_without_a_link_is_gone_around_and_then_ordered() {
    let mut fleet = Fleet::new(short(), &[10], 2);
    fleet.thing("port/n01:eth0").presence = Presence::Down;
    fleet.ticks(3);
    check(&mut fleet, &["2 reweight port/n01:eth0 0"]);
    fleet.thing("port/n01:eth0").presence = Presence::Up;
    fleet.ticks(5);
    check(&mut fleet, &["6 reweight port/n01:eth0 100"]);
    fleet.thing("port/n01:eth0").presence = Presence::Down;
    fleet.ticks(10);
    check(&mut fleet, &["10 reweight port/n01:eth0 0", "13 open port/n01:eth0"]);
    fleet.thing("port/n01:eth0").presence = Presence::Up;
    fleet.ticks(20);
    check(&mut fleet, &["24 reweight port/n01:eth0 100", "24 close port/n01:eth0"]);
}

#[test]
fn a_port_that_flaps_is_one_incident() {
    let mut fleet = Fleet::new(short(), &[10], 2);
    for tick in 0..60 {
        fleet.thing("port/n01:eth0").presence = if tick % 2 == 0 { Presence::Up } else { Presence::Down };
        fleet.ticks(1);
    }
    let news = fleet.news();
    let opened: Vec<&String> = news.iter().filter(|line| line.contains("open")).collect();
    assert_eq!(opened.len(), 1, "{news:?}");
    assert_eq!(fleet.state("port/n01:eth0"), State::Repair);
}

#[test]
fn a_node_that_flaps_is_sick_and_taken_out() {
    let mut fleet = Fleet::new(short(), &[10], 2);
    for tick in 0..40 {
        fleet.thing("node/n01").presence = if tick % 3 == 2 { Presence::Suspect } else { Presence::Up };
        fleet.ticks(1);
    }
    let news = fleet.news();
    assert!(news.iter().any(|line| line.ends_with("stop placing node/n01")), "{news:?}");
    assert_eq!(news.iter().filter(|line| line.ends_with("quarantine node/n01")).count(), 1, "{news:?}");
    assert_eq!(news.iter().filter(|line| line.ends_with("open node/n01")).count(), 1, "{news:?}");
}

#[test]
fn nodes_of_one_switch_that_vanish_are_one_cause() {
    let mut fleet = Fleet::new(short(), &[10, 10], 2);
    fleet.ticks(2);
    for at in [1, 3, 5, 7, 9] {
        fleet.thing(&format!("node/n0{at}")).presence = Presence::Suspect;
    }
    fleet.ticks(3);
    for at in [1, 3, 5, 7, 9] {
        fleet.thing(&format!("node/n0{at}")).presence = Presence::Down;
    }
    fleet.ticks(20);
    check(
        &mut fleet,
        &["4 reweight switch/t01 0", "4 open switch/t01", "4 escalate switch/t01 (escalation)"],
    );
    assert_eq!(fleet.state("node/n01"), State::Shadowed);
    for at in [1, 3, 5, 7, 9] {
        fleet.thing(&format!("node/n0{at}")).heal();
    }
    fleet.ticks(10);
    check(
        &mut fleet,
        &["28 reweight switch/t01 100", "28 close switch/t01", "28 close switch/t01 (escalation)"],
    );
    assert_eq!(fleet.reflex.parts(), []);
}

#[test]
fn a_rack_without_power_is_one_cause_and_who_stays_dark_is_treated_alone() {
    let mut fleet = Fleet::new(short(), &[4, 10], 2);
    fleet.ticks(2);
    for at in 0..4 {
        fleet.thing(&format!("node/n0{at}")).presence = Presence::Down;
    }
    fleet.ticks(10);
    check(&mut fleet, &["4 stop placing rack/r0", "4 open rack/r0", "4 escalate rack/r0 (escalation)"]);
    for at in 0..3 {
        fleet.thing(&format!("node/n0{at}")).heal();
    }
    fleet.ticks(10);
    check(
        &mut fleet,
        &[
            "15 resume placing rack/r0",
            "15 close rack/r0",
            "15 close rack/r0 (escalation)",
            "15 stop placing node/n03",
            "15 cordon node/n03",
            "15 open node/n03",
        ],
    );
}

#[test]
fn all_drives_of_a_node_are_the_node() {
    let mut fleet = Fleet::new(short(), &[10], 4);
    for drive in 0..4 {
        fleet.thing(&format!("drive/n01:/d{drive}")).p99_us = 9_000;
    }
    fleet.ticks(15);
    let news = fleet.news();
    let decisive: Vec<&String> =
        news.iter().filter(|line| line.contains("quarantine") || line.contains("open")).collect();
    assert_eq!(decisive, ["6 quarantine node/n01", "6 open node/n01"], "{news:?}");
    assert_eq!(fleet.state("drive/n01:/d0"), State::Shadowed);
}

#[test]
fn a_rack_that_is_slow_is_told_and_nobody_is_taken_out() {
    let mut fleet = Fleet::new(short(), &[10], 2);
    for at in 0..10 {
        fleet.thing(&format!("node/n0{at}")).p99_us = 9_000;
    }
    fleet.ticks(30);
    let news = fleet.news();
    assert!(news.iter().all(|line| !line.contains("quarantine node")), "{news:?}");
    assert!(news.iter().any(|line| line.ends_with("escalate rack/r0 (escalation)")), "{news:?}");
    assert_eq!(news.iter().filter(|line| line.contains("open")).count(), 1, "{news:?}");
    for at in 0..10 {
        fleet.thing(&format!("node/n0{at}")).heal();
    }
    fleet.ticks(30);
    assert_eq!(fleet.reflex.parts(), []);
    fleet.invariants.check_all_closed();
}

#[test]
fn whoever_sees_nobody_judges_nobody() {
    let mut fleet = Fleet::new(short(), &[5, 5], 2);
    fleet.ticks(2);
    for at in 0..5 {
        fleet.thing(&format!("node/n0{at}")).presence = Presence::Suspect;
    }
    fleet.thing("node/n10").presence = Presence::Suspect;
    fleet.ticks(100);
    check(&mut fleet, &[]);
    for at in 0..5 {
        fleet.thing(&format!("node/n0{at}")).heal();
    }
    fleet.thing("node/n10").heal();
    fleet.ticks(10);
    check(&mut fleet, &[]);
    assert_eq!(fleet.reflex.parts(), []);
}
