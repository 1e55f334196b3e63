//! One part that breaks, and what is done about it.

use stoker_reflex::events::What;
use stoker_reflex::table::State;
use stoker_reflex::*;

use crate::fleet::{Fleet, TICK_MS, line, short};

/// Compares what was to be done about parts since the last look.
pub fn check(fleet: &mut Fleet, expect: &[&str]) {
    let mut news = fleet.news();
    news.retain(|line| !line.contains(" objective "));
    assert_eq!(news, expect);
}

/// A fleet of ten nodes that was sound for a while.
pub fn ten() -> Fleet {
    let mut fleet = Fleet::new(short(), &[10], 4);
    fleet.ticks(5);
    check(&mut fleet, &[]);
    fleet
}

#[test]
fn a_slow_drive_is_taken_out_repaired_measured_and_back() {
    let mut fleet = ten();
    fleet.thing("drive/n00:/d1").p99_us = 9_000;
    fleet.ticks(4);
    check(&mut fleet, &["7 reweight drive/n00:/d1 25", "7 stop placing drive/n00:/d1"]);
    fleet.ticks(6);
    check(
        &mut fleet,
        &[
            "10 quarantine drive/n00:/d1",
            "10 open drive/n00:/d1",
            "10 evacuate drive/n00:/d1",
            "14 update drive/n00:/d1",
        ],
    );
    assert_eq!(fleet.state("drive/n00:/d1"), State::Repair);
    fleet.ticks(50);
    check(&mut fleet, &[]);
    fleet.thing("drive/n00:/d1").heal();
    fleet.ticks(20);
    check(
        &mut fleet,
        &[
            "68 gate drive/n00:/d1",
            "70 rejoin drive/n00:/d1",
            "70 reweight drive/n00:/d1 100",
            "70 resume placing drive/n00:/d1",
            "70 close drive/n00:/d1",
        ],
    );
    assert_eq!(fleet.state("drive/n00:/d1"), State::Healthy);
    fleet.invariants.check_all_closed();
}

#[test]
fn the_work_order_says_what_where_and_how_it_is_known() {
    let mut fleet = ten();
    fleet.thing("drive/n03:/d2").warning = true;
    let mut orders = Vec::new();
    for _ in 0..8 {
        fleet.tick += 1;
        fleet.now_ms += TICK_MS;
        let at = Time(fleet.now_ms);
        let warning = Fact::Smart { critical: vec!["media".into(), "spare".into()], used_percent: 3 };
        let mut seen = vec![Observation::fact("drive/n03:/d2".parse().unwrap(), at, warning)];
        for node in &fleet.inventory.nodes {
            seen.push(Observation::fact(PartId::node(&node.node), at, Fact::Presence(Presence::Up)));
        }
        orders.extend(fleet.reflex.step(at, &seen).into_iter().filter_map(|command| match command {
            Command::OpenWorkOrder(order) => Some(order),
            _ => None,
        }));
    }
    let [order] = orders.as_slice() else { panic!("{orders:?}") };
    assert_eq!(
        order.title,
        "drive /d2 of node gpu-0-3: smart of drive/n03:/d2: media, spare, allowed no warning, 5 periods in a row"
    );
    assert_eq!(order.location.detail, "model of /d2");
    assert_eq!((order.location.cell.as_str(), order.location.tor.as_str()), ("r0", "t01"));
    assert_eq!(order.evidence.len(), 1);
    assert_eq!(order.evidence[0].since, Time(order.at.0 - 4 * TICK_MS));
}

#[test]
fn one_good_period_starts_the_count_again() {
    let mut fleet = ten();
    for _ in 0..10 {
        fleet.thing("node/n02").p99_us = 9_000;
        fleet.ticks(4);
        fleet.thing("node/n02").p99_us = 1_000;
        fleet.ticks(1);
    }
    check(&mut fleet, &["7 reweight node/n02 25"]);
}

#[test]
fn what_flaps_has_to_be_good_for_longer_each_time() {
    let mut fleet = ten();
    let mut goods = Vec::new();
    for _ in 0..6 {
        fleet.thing("node/n02").p99_us = 9_000;
        fleet.ticks(3);
        assert_eq!(fleet.state("node/n02"), State::Degraded);
        fleet.thing("node/n02").p99_us = 1_000;
        let start = fleet.tick;
        while fleet.state("node/n02") != State::Healthy {
            fleet.ticks(1);
        }
        goods.push(fleet.tick - start);
    }
    assert_eq!(goods, [3, 6, 12, 24, 48, 48]);
    let reweights = fleet.news();
    assert_eq!(reweights.len(), 12, "{reweights:?}");
}

#[test]
fn four_of_ten_sick_nodes_are_one_quarantine_and_three_escalations() {
    let mut fleet = ten();
    for at in 1..5 {
        fleet.thing(&format!("node/n0{at}")).p99_us = 9_000 + at;
    }
    fleet.ticks(5);
    check(
        &mut fleet,
        &[
            "7 reweight node/n01 25",
            "7 reweight node/n02 25",
            "7 reweight node/n03 25",
            "7 reweight node/n04 25",
            "10 quarantine node/n01",
            "10 cordon node/n01",
            "10 open node/n01",
            "10 evacuate node/n01",
            "10 escalate node/n02 (escalation)",
            "10 escalate node/n03 (escalation)",
            "10 escalate node/n04 (escalation)",
        ],
    );
    fleet.ticks(60);
    check(&mut fleet, &["14 update node/n01"]);
    // The first is repaired and back: there is room for the next one, and only for one.
    fleet.thing("node/n01").heal();
    fleet.ticks(20);
    check(
        &mut fleet,
        &[
            "73 gate node/n01",
            "75 rejoin node/n01",
            "75 reweight node/n01 100",
            "75 uncordon node/n01",
            "75 close node/n01",
            "76 quarantine node/n02",
            "76 cordon node/n02",
            "76 open node/n02",
            "76 evacuate node/n02",
            "80 update node/n02",
        ],
    );
    for at in 1..5 {
        fleet.thing(&format!("node/n0{at}")).heal();
    }
    fleet.ticks(60);
    assert_eq!(fleet.reflex.parts(), []);
    fleet.invariants.check_all_closed();
}

#[test]
fn quarantines_of_one_rack_are_seldom() {
    let mut fleet = Fleet::new(short(), &[40], 2);
    for at in [1, 2, 3, 4] {
        fleet.thing(&format!("node/n0{at}")).p99_us = 9_000;
    }
    fleet.ticks(30);
    let taken: Vec<String> = fleet.news().into_iter().filter(|line| line.contains("quarantine")).collect();
    // Four of forty may be out; a hundred seconds lie between.
    assert_eq!(taken, ["5 quarantine node/n01", "15 quarantine node/n02", "25 quarantine node/n03"]);
}

#[test]
fn a_sick_drive_gets_nothing_new_at_once() {
    let mut fleet = ten();
    fleet.thing("drive/n00:/d1").errors = true;
    fleet.ticks(3);
    check(&mut fleet, &["7 reweight drive/n00:/d1 25", "7 stop placing drive/n00:/d1"]);
    fleet.thing("drive/n00:/d1").errors = false;
    fleet.ticks(5);
    check(&mut fleet, &["11 reweight drive/n00:/d1 100", "11 resume placing drive/n00:/d1"]);
    fleet.thing("drive/n00:/d0").worn = true;
    fleet.ticks(2);
    check(&mut fleet, &["15 reweight drive/n00:/d0 25", "15 stop placing drive/n00:/d0"]);
}

#[test]
fn most_of_a_rack_goes_on_taking_chunks() {
    let mut fleet = ten();
    for at in 0..7 {
        fleet.thing(&format!("drive/n0{at}:/d0")).warning = true;
    }
    fleet.ticks(2);
    let stopped = fleet.news().into_iter().filter(|line| line.contains("stop")).count();
    assert_eq!(stopped, 5);
}

#[test]
fn volumes_keep_the_nodes_that_they_need() {
    let mut fleet = Fleet::new(short(), &[3], 2);
    fleet.inventory.copies_needed = 3;
    fleet.thing("node/n01").p99_us = 9_000;
    fleet.ticks(10);
    check(&mut fleet, &["2 reweight node/n01 25", "5 escalate node/n01 (escalation)"]);
    // A drive of a node with another one may go.
    fleet.thing("node/n01").heal();
    fleet.ticks(30);
    fleet.news();
    fleet.thing("drive/n01:/d0").p99_us = 9_000;
    fleet.ticks(5);
    check(
        &mut fleet,
        &[
            "42 reweight drive/n01:/d0 25",
            "42 stop placing drive/n01:/d0",
            "45 quarantine drive/n01:/d0",
            "45 open drive/n01:/d0",
            "45 evacuate drive/n01:/d0",
        ],
    );
}

#[test]
fn missing_data_is_never_a_breach() {
    let mut fleet = ten();
    fleet.is_mute = true;
    fleet.ticks(500);
    check(&mut fleet, &[]);
    fleet.is_mute = false;
    fleet.ticks(5);
    check(&mut fleet, &[]);
    // Nor does it end one, or go on with one: four bad periods, then nothing for long, then four more.
    fleet.thing("node/n02").p99_us = 9_000;
    fleet.ticks(4);
    let expect = format!("{} reweight node/n02 25", fleet.tick - 2);
    check(&mut fleet, &[&expect]);
    fleet.thing("node/n02").mute = true;
    fleet.ticks(100);
    fleet.thing("node/n02").mute = false;
    fleet.ticks(4);
    check(&mut fleet, &[]);
    assert_eq!(fleet.state("node/n02"), State::Degraded);
}

#[test]
fn nothing_is_enforced_that_was_not_measured_by_the_gate() {
    let mut reflex = Reflex::new(short(), Memory::default());
    let inventory = Fleet::new(short(), &[3], 1).inventory;
    let mut commands = Vec::new();
    for tick in 1..50 {
        let at = Time(tick * TICK_MS);
        let latencies = Latencies::new([(9_000_000, 500)]);
        let fact = Fact::Latencies { indicator: Indicator::CommitP99, latencies };
        let seen =
            [Observation::Inventory(inventory.clone()), Observation::fact(PartId::node("n01"), at, fact)];
        commands.extend(reflex.step(at, &seen));
    }
    assert_eq!(commands, []);
    assert_eq!(reflex.threshold_us(&PartId::node("n01"), Indicator::CommitP99), None);
}

#[test]
fn a_clock_that_jumps_takes_nobody_out() {
    let mut fleet = ten();
    fleet.thing("node/n02").p99_us = 9_000;
    fleet.ticks(3);
    fleet.news();
    // Every jump is longer than all the periods that it takes.
    for jump_ms in [86_400_000_i64, -172_800_000, 3_600_000, -3_600_000, 3_600_000, 86_400_000] {
        fleet.now_ms = fleet.now_ms.saturating_add_signed(jump_ms);
        fleet.ticks(3);
    }
    check(&mut fleet, &[]);
    fleet.ticks(3);
    assert_eq!(fleet.news()[0], format!("{} quarantine node/n02", fleet.tick));
}

#[test]
fn old_and_unknown_facts_are_recorded_once_and_ignored() {
    let mut fleet = ten();
    let at = Time(fleet.now_ms);
    let facts = [
        ("node/nobody", at, Fact::Presence(Presence::Down)),
        ("node/n01", Time(at.0 - 3_600_000), Fact::Presence(Presence::Down)),
        ("node/n01", Time(at.0 + 3_600_000), Fact::Presence(Presence::Down)),
        ("drive/n01:/d0", at, Fact::Counts { indicator: Indicator::CommitP99, good: 0, bad: 9 }),
        ("node/n01", at, Fact::Counts { indicator: Indicator::CommitP99, good: 0, bad: 9 }),
        ("node/n01", at, Fact::Age { indicator: Indicator::Smart, age_us: 9 }),
    ];
    let seen: Vec<Observation> = facts
        .into_iter()
        .map(|(part, at, fact)| Observation::fact(part.parse().unwrap(), at, fact))
        .collect();
    let mut lines = Vec::new();
    for tick in 1..5 {
        let seen = [seen.clone(), vec![Observation::Inventory(Inventory::default())]].concat();
        lines.extend(fleet.reflex.step(Time(at.0 + tick), &seen).iter().map(line));
    }
    assert_eq!(
        lines,
        [
            "record there is no node/nobody",
            "record an observation of node/n01 is not of now",
            "record commit_p99 is not measured like this of drive/n01:/d0",
            "record commit_p99 is not measured like this of node/n01",
            "record smart is not measured like this of node/n01",
            "record an inventory without nodes",
        ]
    );
    assert_eq!(fleet.reflex.parts(), []);
}

#[test]
fn a_drive_that_fails_has_a_work_order_and_no_quarantine() {
    let mut fleet = ten();
    fleet.thing("drive/n00:/d3").presence = Presence::Down;
    fleet.ticks(10);
    check(&mut fleet, &["7 open drive/n00:/d3"]);
    // Another one is put in its place.
    fleet.thing("drive/n00:/d3").heal();
    fleet.ticks(10);
    check(&mut fleet, &["16 gate drive/n00:/d3", "18 close drive/n00:/d3"]);
}

#[test]
fn a_node_that_is_down_is_measured_before_it_takes_chunks() {
    let mut fleet = ten();
    fleet.thing("node/n07").presence = Presence::Suspect;
    fleet.ticks(3);
    assert_eq!(fleet.state("node/n07"), State::Suspect);
    fleet.thing("node/n07").presence = Presence::Down;
    fleet.ticks(5);
    check(&mut fleet, &["10 stop placing node/n07", "10 cordon node/n07", "10 open node/n07"]);
    fleet.thing("node/n07").heal();
    fleet.thing("node/n07").gate_fails = true;
    fleet.ticks(10);
    check(&mut fleet, &["14 gate node/n07", "16 update node/n07"]);
    fleet.thing("node/n07").gate_fails = false;
    fleet.thing("node/n07").says.push(Fact::Repaired);
    fleet.ticks(5);
    check(
        &mut fleet,
        &["24 gate node/n07", "26 resume placing node/n07", "26 uncordon node/n07", "26 close node/n07"],
    );
}

#[test]
fn a_restart_goes_on_and_opens_no_second_work_order() {
    let mut fleet = ten();
    fleet.thing("drive/n00:/d1").p99_us = 9_000;
    fleet.ticks(5);
    assert_eq!(fleet.news().len(), 5);
    for _ in 0..5 {
        fleet.restart();
        fleet.news();
        fleet.ticks(7);
        let news = fleet.news();
        assert!(news.iter().all(|line| line.ends_with("update drive/n00:/d1")), "{news:?}");
    }
    fleet.restart();
    check(
        &mut fleet,
        &["45 reweight drive/n00:/d1 25", "45 stop placing drive/n00:/d1", "45 quarantine drive/n00:/d1"],
    );
    fleet.thing("drive/n00:/d1").heal();
    fleet.ticks(20);
    let news = fleet.news();
    assert!(news.last().unwrap().ends_with("close drive/n00:/d1"), "{news:?}");
    fleet.invariants.check_all_closed();
}

#[test]
fn whoever_overrules_is_not_gone_against() {
    let mut fleet = ten();
    fleet.thing("node/n02").p99_us = 9_000;
    fleet.ticks(8);
    assert_eq!(fleet.state("node/n02"), State::Quarantined);
    fleet.news();
    fleet.thing("node/n02").duty = Duty::Full;
    fleet.ticks(30);
    check(
        &mut fleet,
        &[
            "14 reweight node/n02 100",
            "14 uncordon node/n02",
            "14 close node/n02",
            "16 reweight node/n02 25",
            "19 escalate node/n02 (escalation)",
        ],
    );
    // After a while it is our turn again.
    fleet.ticks(100);
    assert_eq!(fleet.news()[0], "114 quarantine node/n02");
}

#[test]
fn what_could_not_be_carried_out_is_escalated() {
    let mut fleet = ten();
    fleet.thing("node/n02").p99_us = 9_000;
    fleet.thing("node/n02").refuses = true;
    fleet.ticks(7);
    let news = fleet.news();
    assert_eq!(news.last().unwrap(), "11 escalate node/n02 (escalation)");
    fleet.thing("node/n02").heal();
    fleet.ticks(7);
    check(
        &mut fleet,
        &[
            "15 reweight node/n02 100",
            "15 uncordon node/n02",
            "15 close node/n02",
            "15 close node/n02 (escalation)",
        ],
    );
}

#[test]
fn a_node_that_a_person_took_out_counts() {
    let mut fleet = ten();
    fleet.thing("node/n09").duty = Duty::Quarantined;
    fleet.thing("node/n02").p99_us = 9_000;
    fleet.ticks(10);
    check(&mut fleet, &["7 reweight node/n02 25", "10 escalate node/n02 (escalation)"]);
}

#[test]
fn one_who_departs_from_its_peers_is_asked_less_and_never_taken_out() {
    let mut fleet = ten();
    let drive = fleet.thing("drive/n00:/d1");
    // Slow from the first day on: within what the gate measured.
    (drive.baseline_us, drive.p99_us) = (9_000, 9_000);
    fleet.ticks(60);
    check(&mut fleet, &["7 reweight drive/n00:/d1 25"]);
}

#[test]
fn without_act_persons_are_told_and_nothing_is_done() {
    let mut slo = short();
    slo.act = false;
    let mut fleet = Fleet::new(slo, &[10], 2);
    fleet.thing("node/n02").p99_us = 9_000;
    fleet.thing("drive/n05:/d0").presence = Presence::Down;
    fleet.ticks(20);
    check(&mut fleet, &["2 open drive/n05:/d0", "5 escalate node/n02 (escalation)"]);
}

#[test]
fn switched_off_it_does_nothing() {
    let mut slo = short();
    slo.enabled = false;
    let mut fleet = Fleet::new(slo, &[10], 2);
    fleet.thing("node/n02").presence = Presence::Down;
    fleet.ticks(20);
    check(&mut fleet, &[]);
}

#[test]
fn a_budget_that_burns_is_told_once_and_closed() {
    let mut fleet = ten();
    let mut lines = Vec::new();
    for tick in 0..800_u64 {
        fleet.now_ms += TICK_MS;
        let at = Time(fleet.now_ms);
        let age_us = if (60..120).contains(&tick) { 900_000_000 } else { 1 };
        let fact = Fact::Age { indicator: Indicator::DrainLag, age_us };
        let commands = fleet.reflex.step(at, &[Observation::fact(PartId::node("n01"), at, fact)]);
        lines.extend(commands.iter().filter(|command| !matches!(command, Command::Record(_))).map(line));
    }
    assert_eq!(lines, ["escalate objective (escalation)", "close objective (escalation)"]);
    let budgets = fleet.reflex.budgets();
    let (_, lag) = budgets.iter().find(|(indicator, _)| *indicator == Indicator::DrainLag).unwrap();
    assert_eq!((lag.bad, lag.burning), (60, None));
    assert!(lag.left < 0.0, "{lag:?}");
}

#[test]
fn every_step_is_recorded_with_its_reason() {
    let mut fleet = ten();
    fleet.thing("drive/n00:/d1").p99_us = 9_000;
    let mut records = Vec::new();
    for _ in 0..5 {
        fleet.now_ms += TICK_MS;
        let at = Time(fleet.now_ms);
        let drive: PartId = "drive/n00:/d1".parse().unwrap();
        let latencies = Latencies::new([(9_000, 200)]);
        let fact = Fact::Latencies { indicator: Indicator::DriveWriteP99, latencies };
        let mut seen = vec![Observation::fact(drive, at, fact)];
        for node in &fleet.inventory.nodes {
            seen.push(Observation::fact(PartId::node(&node.node), at, Fact::Presence(Presence::Up)));
        }
        let commands = fleet.reflex.step(at, &seen);
        records.extend(commands.into_iter().filter_map(|command| match command {
            Command::Record(recorded) => Some(recorded),
            _ => None,
        }));
    }
    let moves: Vec<String> = records
        .iter()
        .map(|one| match &one.what {
            What::Moved { from, event, to } => {
                format!("{} {} {}: {}", from.word(), event.word(), to.word(), one.reason)
            }
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        moves,
        [
            "healthy slow degraded: slower than it should be: drive_write_p99 9.00 ms (allowed: 1.50 ms)",
            "degraded granted quarantined: it has been bad for many periods, and others can do without it",
        ]
    );
    assert!(records.iter().all(|one| one.incident == 1 && one.evidence.len() == 1));
    let json = serde_json::to_string(&records[0]).unwrap();
    assert_eq!(serde_json::from_str::<events::Recorded>(&json).unwrap(), records[0]);
}

#[test]
fn an_answer_of_an_earlier_gate_lets_nobody_pass() {
    let mut fleet = ten();
    fleet.gate_ticks = 5;
    fleet.thing("drive/n00:/d3").presence = Presence::Down;
    fleet.ticks(3);
    // Run 1 begins, and ends with the next loss.
    fleet.thing("drive/n00:/d3").heal();
    fleet.ticks(1);
    fleet.thing("drive/n00:/d3").presence = Presence::Down;
    fleet.ticks(3);
    fleet.thing("drive/n00:/d3").heal();
    fleet.ticks(1);
    assert_eq!(fleet.state("drive/n00:/d3"), State::Verifying);
    let late = Fact::Gate { run: 1, passed: true, words: "measured before".into() };
    fleet.thing("drive/n00:/d3").says.push(late);
    fleet.ticks(1);
    assert_eq!(fleet.state("drive/n00:/d3"), State::Verifying);
    fleet.ticks(5);
    assert_eq!(fleet.state("drive/n00:/d3"), State::Healthy);
}
