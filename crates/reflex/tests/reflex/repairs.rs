//! What persons do meanwhile: they take out, pull, replace, remove, and forbid. What was done is undone, and nothing else.

use stoker_reflex::table::State;
use stoker_reflex::*;

use crate::fleet::{Fleet, TICK_MS};
use crate::scenes::{check, ten};

/// A fleet in which one part was slow for so long that it is out, empty, and waits for its repair.
fn with_repair_of(part: &str, ticks: u64) -> Fleet {
    let mut fleet = ten();
    fleet.thing(part).p99_us = 9_000;
    fleet.ticks(ticks);
    assert_eq!(fleet.state(part), State::Repair);
    fleet.news();
    fleet
}

/// What a person took out, a person puts back.
#[test]
fn a_persons_decision_is_not_ended() {
    let mut fleet = ten();
    // It goes and comes back while a person has it out: it is measured, and stays out.
    fleet.thing("node/n01").duty = Duty::Quarantined;
    fleet.thing("node/n01").presence = Presence::Down;
    fleet.ticks(5);
    fleet.thing("node/n01").presence = Presence::Up;
    fleet.ticks(10);
    let news = fleet.news();
    assert!(news.iter().any(|line| line.contains("gate node/n01")), "{news:?}");
    assert!(!news.iter().any(|line| line.contains("rejoin")), "{news:?}");
    assert_eq!(fleet.state("node/n01"), State::Healthy);
    // It is slow while a person has it out: less is asked of it, and nobody takes it out a second time.
    fleet.thing("node/n01").p99_us = 9_000;
    fleet.ticks(30);
    let news = fleet.news();
    assert!(news.iter().any(|line| line.contains("reweight node/n01 25")), "{news:?}");
    assert!(!news.iter().any(|line| line.contains("quarantine")), "{news:?}");
    // It is back, and as slow as ever: now it is ours.
    fleet.thing("node/n01").duty = Duty::Full;
    fleet.ticks(2);
    assert_eq!(fleet.state("node/n01"), State::Quarantined);
}

/// What was taken away for good does not keep its rack from taking out another one.
#[test]
fn what_was_taken_away_is_over() {
    let mut fleet = with_repair_of("drive/n00:/d1", 10);
    // For a moment only: another one takes its place.
    fleet.thing("drive/n00:/d1").presence = Presence::Removed;
    fleet.tick();
    fleet.thing("drive/n00:/d1").presence = Presence::Up;
    fleet.tick();
    check(&mut fleet, &[]);
    fleet.thing("drive/n00:/d1").presence = Presence::Removed;
    fleet.ticks(3);
    check(
        &mut fleet,
        &[
            "19 rejoin drive/n00:/d1",
            "19 reweight drive/n00:/d1 100",
            "19 resume placing drive/n00:/d1",
            "19 close drive/n00:/d1",
        ],
    );
    fleet.ticks(20);
    check(&mut fleet, &[]);
    fleet.invariants.check_all_closed();
}

/// From a slow drive work goes elsewhere; the little that it still does is enough to take it out, and was not enough to suspect it.
#[test]
fn little_is_enough_to_judge_one_that_is_in_trouble() {
    let mut fleet = ten();
    let part: PartId = "drive/n00:/d1".parse().unwrap();
    let few = |fleet: &mut Fleet, ticks: u64| {
        for _ in 0..ticks {
            fleet.thing("drive/n00:/d1").mute = true;
            let at = Time(fleet.now_ms + TICK_MS);
            let latencies = Latencies::new([(9_000, 4)]);
            let slow = Fact::Latencies { indicator: Indicator::DriveWriteP99, latencies };
            fleet.extra.push(Observation::fact(part.clone(), at, slow));
            fleet.tick();
        }
    };
    few(&mut fleet, 20);
    check(&mut fleet, &[]);
    fleet.thing("drive/n00:/d1").mute = false;
    fleet.thing("drive/n00:/d1").p99_us = 9_000;
    fleet.ticks(3);
    assert_eq!(fleet.state("drive/n00:/d1"), State::Degraded);
    few(&mut fleet, 10);
    assert_eq!(fleet.state("drive/n00:/d1"), State::Quarantined);
}

/// The usual way: it is empty, somebody pulls it, another one is put in its place, which the gate measures.
#[test]
fn one_that_is_pulled_is_not_taken_for_one_that_a_person_put_back() {
    for is_same in [false, true] {
        let mut fleet = with_repair_of("drive/n00:/d1", 10);
        fleet.thing("drive/n00:/d1").presence = Presence::Down;
        fleet.ticks(30);
        assert_eq!(fleet.state("drive/n00:/d1"), State::Down);
        check(&mut fleet, &["17 update drive/n00:/d1"]);
        if !is_same {
            fleet.thing("drive/n00:/d1").duty = Duty::Full;
        }
        fleet.thing("drive/n00:/d1").heal();
        fleet.ticks(10);
        assert_eq!(fleet.state("drive/n00:/d1"), State::Healthy);
        let news = fleet.news().join(", ");
        // The old one back in its place is still cordoned, and works again; a new one works already.
        assert_eq!(news.contains("rejoin"), is_same, "{news}");
        assert!(news.contains("gate drive") && news.contains("close drive"), "{news}");
        assert!(!news.contains("open"), "{news}");
        fleet.invariants.check_all_closed();
    }
    // A node that is powered off for its repair comes back with what was decided about it.
    let mut fleet = with_repair_of("node/n03", 12);
    fleet.thing("node/n03").presence = Presence::Down;
    fleet.ticks(20);
    fleet.thing("node/n03").heal();
    fleet.ticks(10);
    let news = fleet.news().join(", ");
    assert!(news.contains("rejoin node/n03") && news.contains("uncordon node/n03"), "{news}");
    assert_eq!(news.matches("open ").count(), 0, "{news}");
    assert_eq!(fleet.state("node/n03"), State::Healthy);
}

/// What may be pulled is told; that it may not any more is, too.
#[test]
fn one_that_gets_new_bytes_must_not_be_pulled() {
    let mut fleet = with_repair_of("drive/n00:/d1", 10);
    let part: PartId = "drive/n00:/d1".parse().unwrap();
    let held = Fact::Evacuation { files_left: 1, done: false };
    fleet.extra.push(Observation::fact(part, Time(fleet.now_ms + TICK_MS), held));
    fleet.ticks(3);
    check(&mut fleet, &["16 update drive/n00:/d1", "17 update drive/n00:/d1"]);
}

/// One that cannot be taken out does not keep others of its rack from being.
#[test]
fn one_that_cannot_be_taken_out_is_not_tried_all_the_time() {
    let mut fleet = ten();
    fleet.thing("drive/n00:/d1").refuses = true;
    fleet.thing("drive/n00:/d1").p99_us = 9_000;
    fleet.ticks(7);
    assert_eq!(fleet.state("drive/n00:/d1"), State::Escalated);
    fleet.thing("drive/n04:/d1").p99_us = 9_000;
    fleet.ticks(8);
    assert_eq!(fleet.state("drive/n04:/d1"), State::Quarantined);
    let news = fleet.news().join(", ");
    assert_eq!(news.matches("quarantine drive/n00:/d1").count(), 1, "{news}");
}

/// Without the right to act, what was done before is still undone.
#[test]
fn whoever_may_not_act_still_puts_back() {
    let mut fleet = with_repair_of("node/n03", 12);
    fleet.slo.act = false;
    fleet.restart();
    assert_eq!(fleet.reflex.out().len(), 1);
    fleet.thing("node/n03").heal();
    fleet.ticks(30);
    let news = fleet.news().join(", ");
    assert!(news.contains("rejoin node/n03") && news.contains("uncordon node/n03"), "{news}");
    assert_eq!(fleet.state("node/n03"), State::Healthy);
}
