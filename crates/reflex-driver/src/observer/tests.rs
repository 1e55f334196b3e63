//! What a look makes of what nodes measured.

use super::*;

fn times(buckets: &[(u64, u64)], bytes: u64) -> Times {
    let sum_us = buckets.iter().map(|(upper, count)| upper * count).sum();
    Times { buckets: buckets.to_vec(), sum_us, bytes, busy_us: 0 }
}

#[test]
fn a_busy_drive_is_not_a_slow_one() {
    let known = Some(Calibration { small_p99_us: 1_000, bytes_per_s: 1 << 30 });
    let none = Times::default();
    // 4 MiB take 3.9 ms at the rate of the gate. Eight at once take eight times as long, for eight seconds of ten.
    let busy = times(&[(32_000, 2_000)], 2_000 * (4 << 20));
    let calm = times(&[(4_900, 200)], 200 * (4 << 20));
    let slow = times(&[(490_000, 20)], 20 * (4 << 20));
    assert!(comparable(&busy, &none, 10_000, known).p99_us() <= 1_500);
    assert!(comparable(&calm, &none, 10_000, known).p99_us() <= 1_500);
    assert!(comparable(&slow, &none, 10_000, known).p99_us() > 50_000);
    // The same load on a drive that does a tenth of it.
    let throttled = times(&[(320_000, 200)], 200 * (4 << 20));
    assert!(comparable(&throttled, &none, 10_000, known).p99_us() > 8_000);
    // A burst of half a second, 32 at once, in a look of ten: the time in which nothing was asked says nothing of the drive.
    let burst = times(&[(16_000, 1_000)], 1_000 * (4 << 10));
    assert!(comparable(&burst, &none, 10_000, known).p99_us() > 8_000);
    let counted = Times { busy_us: 500_000, ..burst };
    assert!(comparable(&counted, &none, 10_000, known).p99_us() <= 1_500);
    // Of a drive that nobody measured only the load is known.
    assert!(comparable(&busy, &none, 10_000, None).p99_us() < 10_000);
}

#[test]
fn counters_that_reset_are_no_debt() {
    let mut observer = Observer::default();
    let part = PartId::node("a");
    assert_eq!(observer.counts(&part, Indicator::CopyErrors, 100, 1), None);
    let fact = |good, bad| Some(Fact::Counts { indicator: Indicator::CopyErrors, good, bad });
    assert_eq!(observer.counts(&part, Indicator::CopyErrors, 150, 3), fact(50, 2));
    assert_eq!(observer.counts(&part, Indicator::CopyErrors, 7, 0), fact(7, 0));
    assert_eq!(observer.counts(&part, Indicator::CopyErrors, 7, 0), None);
    let mut look = |ms: u64, times: &Times| {
        observer.latencies(&part, Indicator::ReadP99, Time(ms), times, None).is_some()
    };
    assert!(!look(1_000, &times(&[(50, 10)], 0)));
    assert!(look(2_000, &times(&[(50, 11)], 0)));
    assert!(!look(3_000, &times(&[(50, 11)], 0)));
    // A clock that goes back says nothing.
    assert!(!look(2_500, &times(&[(50, 12)], 0)));
}

#[test]
fn a_node_that_does_not_answer_keeps_its_parts() {
    let peer = |state, is_suspect| PeerSeen {
        node: "a".into(),
        name: "n1".into(),
        cell: String::new(),
        tor: String::new(),
        power: String::new(),
        state,
        duty: if state == "quarantined" { state } else { "full" },
        is_suspect,
    };
    let drive = DriveMeasures { path: "/d".into(), state: "live".into(), ..DriveMeasures::default() };
    let measures = Measures { node: "a".into(), drives: vec![drive], ..Measures::default() };
    let mut known = Inventory::default();
    let mut observer = Observer::default();
    let mut look = |peers: &[PeerSeen], measures: &[Measures]| {
        let now = Time(1);
        let look = Look {
            now,
            cluster: "c",
            copies_needed: 1,
            peers,
            measures,
            evacuations: &[],
            troubled: &[],
            ordered: &BTreeMap::new(),
        };
        observer.observe(&look, &mut known)
    };
    look(&[peer("up", false)], std::slice::from_ref(&measures));
    let seen = look(&[peer("up", true)], &[]);
    let Observation::Inventory(inventory) = &seen[0] else { panic!("{seen:?}") };
    assert_eq!(inventory.nodes[0].drives[0].name, "/d");
    assert!(seen.contains(&Observation::fact(PartId::node("a"), Time(1), Fact::Presence(Presence::Suspect))));
    // The only drive of a node that is out is out.
    let seen = look(&[peer("quarantined", false)], &[measures]);
    let part = PartId::drive("a", "/d");
    assert!(seen.contains(&Observation::fact(part, Time(1), Fact::Duty(Duty::Quarantined))));
}

fn up(node: &str) -> PeerSeen {
    PeerSeen {
        node: node.into(),
        name: node.into(),
        cell: "c1".into(),
        tor: "t1".into(),
        power: String::new(),
        state: "up",
        duty: "full",
        is_suspect: false,
    }
}

fn drive(path: &str, state: &str, bad: u64) -> DriveMeasures {
    DriveMeasures { path: path.into(), state: state.into(), good: 100 + bad, bad, ..Default::default() }
}

fn look_at(
    peers: &[PeerSeen],
    measures: &[Measures],
    troubled: &[PartId],
    ordered: &BTreeMap<PartId, Target>,
) -> Vec<Observation> {
    let look = Look {
        now: Time(1),
        cluster: "c",
        copies_needed: 1,
        peers,
        measures,
        evacuations: &[("a".into(), 0, true)],
        troubled,
        ordered,
    };
    Observer::default().observe(&look, &mut Inventory::default())
}

fn facts<'a>(seen: &'a [Observation], of: &PartId) -> Vec<&'a Fact> {
    let fact = |one: &'a Observation| match one {
        Observation::Fact { part, fact, .. } if part == of => Some(fact),
        _ => None,
    };
    seen.iter().filter_map(fact).collect()
}

/// A new drive at the path of one that failed is the part from then on.
#[test]
fn two_drives_at_one_path_are_the_one_that_lives() {
    let drives = vec![drive("/d", "failed", 9), drive("/d", "live", 0), drive("/e", "failed", 0)];
    let measures = Measures { node: "a".into(), drives, ..Measures::default() };
    let seen = look_at(&[up("a")], &[measures], &[], &BTreeMap::new());
    let Observation::Inventory(inventory) = &seen[0] else { panic!("{seen:?}") };
    assert_eq!(inventory.nodes[0].drives.len(), 2);
    let present = |part: &PartId| facts(&seen, part).contains(&&Fact::Presence(Presence::Up));
    assert!(present(&PartId::drive("a", "/d")) && !present(&PartId::drive("a", "/e")));
    let gone = &Fact::Presence(Presence::Down);
    assert!(!facts(&seen, &PartId::drive("a", "/d")).contains(&gone));
    assert!(facts(&seen, &PartId::drive("a", "/e")).contains(&gone));
}

/// A node that was taken out for its only drive gets a second one: the first is still out as the node is.
#[test]
fn what_was_taken_out_as_a_node_is_judged_by_the_node() {
    let drives = vec![drive("/d", "live", 0), drive("/e", "live", 0)];
    let measures = Measures { node: "a".into(), drives, ..Measures::default() };
    let (old, new) = (PartId::drive("a", "/d"), PartId::drive("a", "/e"));
    let target = Target { node: "a".into(), name: "a".into(), drive: None, id: Some("x".into()) };
    let ordered = BTreeMap::from([(old.clone(), target)]);
    // It is down, and what was decided about it holds.
    let peer = PeerSeen { state: "down", duty: "evacuating", ..up("a") };
    let seen = look_at(&[peer], &[measures], &[], &ordered);
    assert!(facts(&seen, &old).contains(&&Fact::Duty(Duty::Evacuating)));
    assert!(facts(&seen, &old).contains(&&Fact::Evacuation { files_left: 0, done: true }));
    assert!(facts(&seen, &new).contains(&&Fact::Duty(Duty::Full)));
}

/// Another drive at the path of one that was taken out is not the same one put back by a person.
#[test]
fn one_in_the_place_of_another_is_told() {
    let part = PartId::drive("a", "/d");
    for (id, is_another) in [("old", false), ("new", true)] {
        let live = DriveMeasures { drive: id.into(), ..drive("/d", "live", 0) };
        let drives = vec![live, drive("/e", "live", 0)];
        let measures = Measures { node: "a".into(), drives, ..Measures::default() };
        let target =
            Target { node: "a".into(), name: "a".into(), drive: Some("/d".into()), id: Some("old".into()) };
        let ordered = BTreeMap::from([(part.clone(), target)]);
        let seen = look_at(&[up("a")], &[measures], &[], &ordered);
        assert_eq!(facts(&seen, &part).contains(&&Fact::Replaced), is_another, "{id}");
    }
}

/// A try counts for a drive that does little, and not beside much work of its own.
#[test]
fn tries_of_a_busy_drive_say_nothing() {
    let part = PartId::drive("a", "/d");
    for (ops, counts) in [(5, true), (500, false)] {
        let mut observer = Observer::default();
        let mut known = Inventory::default();
        let mut seen = Vec::new();
        for turn in 0..2u64 {
            let reads = times(&[(100, turn * ops)], 0);
            let tried_reads = times(&[(9_000, turn * 64)], 0);
            let facts = DriveFacts { path: "/d".into(), tried_reads, ..DriveFacts::default() };
            let mut measures = Measures { node: "a".into(), ..Measures::default() };
            measures.drives = vec![DriveMeasures { reads, ..drive("/d", "live", 0) }];
            measures.facts.drives = vec![facts];
            let look = Look {
                now: Time(1_000 + turn * 2_000),
                cluster: "c",
                copies_needed: 1,
                peers: &[up("a")],
                measures: &[measures],
                evacuations: &[],
                troubled: &[],
                ordered: &BTreeMap::new(),
            };
            seen = observer.observe(&look, &mut known);
        }
        let slow =
            |fact: &&&Fact| matches!(fact, Fact::Latencies { latencies, .. } if latencies.p99_us() >= 9_000);
        assert_eq!(facts(&seen, &part).iter().filter(slow).count() > 0, counts, "{ops}");
    }
}

#[test]
fn only_who_knows_says_that_a_part_is_no_more() {
    let measures = Measures { node: "a".into(), drives: vec![drive("/d", "live", 0)], ..Default::default() };
    let troubled = [
        PartId::drive("a", "/d"),
        PartId::drive("a", "/old"),
        PartId::drive("silent", "/d"),
        PartId::drive("gone", "/d"),
        PartId::node("gone"),
        PartId::node("silent"),
        PartId::port("a", "eth7"),
        PartId::switch("t1"),
        PartId::switch("t2"),
        PartId::rack("c2"),
        PartId::rack("c1"),
        PartId::rack(""),
        PartId::power("p1"),
        PartId::power("p2"),
    ];
    let unnamed = PeerSeen { cell: String::new(), power: "p1".into(), ..up("silent") };
    let seen = look_at(&[up("a"), unnamed], &[measures], &troubled, &BTreeMap::new());
    let removed = |part: &&PartId| facts(&seen, part).contains(&&Fact::Presence(Presence::Removed));
    let removed: Vec<String> = troubled.iter().filter(removed).map(PartId::to_string).collect();
    let expect = ["drive/a:/old", "drive/gone:/d", "node/gone", "switch/t2", "rack/c2", "rack/power p2"];
    assert_eq!(removed, expect);
    // Whoever sees nobody knows nothing.
    assert!(facts(&look_at(&[], &[], &troubled, &BTreeMap::new()), &troubled[4]).is_empty());
}
