use std::time::Duration;

use stoker_format::VolumeId;
use stoker_store::{Counter, NodeStatus, PeerStatus, RiskReport, VolumePolicy};

use super::*;
use crate::clock;

fn counter(name: &str, labels: &[(&str, &str)], value: f64) -> Counter {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Counter { name: name.into(), help: String::new(), labels, value }
}

fn node(at: usize) -> NodeInfo {
    NodeInfo {
        node: format!("{at:032}"),
        name: format!("gpu-{at}"),
        cell: "cell-1".into(),
        tor: String::new(),
        power: String::new(),
        state: "up".into(),
        since_ms: 0,
        silent_since_ms: None,
        drives: 8,
        drives_gone: 0,
        undrained_files: 3,
        undrained_bytes: 40 << 20,
        latency_us: 90,
    }
}

fn drive(node: usize, at: usize) -> DriveInfo {
    DriveInfo {
        drive: format!("d{node}-{at}"),
        node: format!("{node:032}"),
        name: format!("gpu-{node}"),
        path: format!("/mnt/a-rather-long-name-of-a-mount-point/nvme{at}/stoker-ring"),
        state: "live".into(),
        why: None,
        incarnation: 1,
        bytes: 1 << 40,
        keep_bytes: 40 << 20,
        clean_bytes: 0,
        undrained_files: 3,
        undrained_bytes: 40 << 20,
    }
}

fn risk(name: &str, lost_bytes: u64, one_copy_bytes: u64) -> Risk {
    Risk {
        node: name.into(),
        name: name.into(),
        state: "up".into(),
        undrained_files: 3,
        undrained_bytes: 40 << 20,
        oldest_age_ms: 12_000,
        one_copy_files: 1,
        one_copy_bytes,
        lost_files: u64::from(lost_bytes > 0),
        lost_bytes,
        ..Risk::default()
    }
}

fn sample(nodes: usize, counters: Vec<Counter>) -> Sample {
    let peer = |at: usize| PeerStatus {
        node: format!("{at:032}"),
        name: format!("gpu-{at}"),
        state: "up".into(),
        suspect: false,
        addresses: Vec::new(),
        cell: String::new(),
        tor: String::new(),
        power: String::new(),
        latency_us: 0,
    };
    let source = SourceStatus {
        kind: "drive".into(),
        name: drive(0, 0).path,
        reads: 7,
        failures: 0,
        small_mean_us: Some(110),
        small_p95_us: Some(240),
        large_mean_us: None,
        large_p95_us: None,
    };
    let volume = |name: &str| VolumeInfo {
        name: name.into(),
        id: VolumeId(1),
        created_ms: 0,
        lake: None,
        policy: VolumePolicy::default(),
        files: 12,
        bytes: 5 << 30,
    };
    Sample {
        status: Some(NodeStatus {
            node: format!("{:032}", 0),
            cluster: String::new(),
            version: "0.1.0".into(),
            started_ms: 0,
            catalog: String::new(),
            nodes: (0..nodes).map(peer).collect(),
            rings: Vec::new(),
            sources: vec![source],
            dirty_files: 3,
            dirty_bytes: 40 << 20,
            dirty_age_ms: 12_000,
            conflicts: 0,
            drains: 2,
            lake_trouble: None,
            cache_bytes: 0,
            ready: true,
            words: Vec::new(),
        }),
        risk: Some(RiskReport {
            nodes: vec![risk("gpu-0", 0, 7 << 20), risk("gpu-1", 5 << 20, 0)],
            cells: Vec::new(),
            lost_files: 0,
            lost_bytes: 0,
            at_least: false,
        }),
        nodes: (0..nodes).map(node).collect(),
        drives: (0..nodes).flat_map(|at| [drive(at, 0), drive(at, 1)]).collect(),
        volumes: vec![volume("data"), volume("models")],
        counters,
        trouble: None,
        at_ms: 90_000,
        ..Sample::of_trouble(String::new())
    }
}

fn counters(scale: f64) -> Vec<Counter> {
    vec![
        counter("publishes_total", &[], 10.0 * scale),
        counter("publish_bytes_total", &[], 40e6 * scale),
        counter("read_bytes_total", &[], 3e9 * scale),
        counter("drained_bytes_total", &[], 20e6 * scale),
        counter("ring_user_bytes_total", &[("drive", "d0-0")], 44e6 * scale),
        counter("ring_user_bytes_total", &[("drive", "d0-1")], 0.0),
    ]
}

/// Two samples, two seconds apart.
fn pair(nodes: usize) -> (Sample, Sample) {
    let before = sample(nodes, counters(1.0));
    let mut now = sample(nodes, counters(3.0));
    now.at = before.at + Duration::from_secs(2);
    (before, now)
}

#[test]
fn everything_fits_a_small_screen() {
    let (before, now) = pair(2);
    let lines = View { before: Some(&before), now: &now }.lines(80, 24);
    assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    let text = lines.join("\n");
    for expect in [
        "stoker 0.1.0  gpu-0 ready, up 1 m 30 s",
        "risk     if gpu-1 dies: 5 MiB lost, 0 B in one copy; undrained 40 MiB for 12 s",
        "drain    3 files, 40 MiB behind by 12 s; 2 uploads under way, 20.0 MB/s",
        "commits  10.0/s, 40.0 MB/s; reads 3000.0 MB/s",
        "gpu-1  up     yes",
        "44.0 MB/s",
        "110 us",
        "models",
    ] {
        assert!(text.contains(expect), "{expect} in\n{text}");
    }
}

#[test]
fn long_lists_leave_room_for_each_other_and_say_what_is_left_out() {
    let (before, now) = pair(200);
    for (columns, rows) in [(80, 24), (40, 10), (200, 50), (1, 1), (0, 0)] {
        let lines = View { before: Some(&before), now: &now }.lines(columns, rows);
        assert!(lines.len() <= rows && lines.iter().all(|line| line.chars().count() <= columns));
    }
    let text = View { before: Some(&before), now: &now }.lines(80, 24).join("\n");
    assert!(text.contains("NODE") && text.contains("DRIVE") && text.contains("models"), "{text}");
    assert!(text.matches("… and ").count() == 2, "{text}");
}

#[test]
fn what_is_not_known_is_not_made_up() {
    let first = sample(1, counters(1.0));
    let text = View { before: None, now: &first }.lines(80, 24).join("\n");
    assert!(text.contains("commits  -, -; reads -"), "{text}");
    let silent = Sample::of_trouble("no such\u{1b}[2Jfile".into());
    let lines = View { before: Some(&first), now: &silent }.lines(80, 24);
    assert!(lines[0].contains("no answer") && lines[1] == "risk     not known", "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
    // A node that started again counts from 0.
    let mut again = sample(1, counters(0.5));
    again.at = first.at + Duration::from_secs(1);
    assert_eq!(again.rate(Some(&first), "publishes_total", None), None);
}

#[test]
fn commits_are_told_by_class_where_the_node_does() {
    let with = |two: f64| {
        vec![
            counter("commits_total", &[("class", "two")], two),
            counter("commits_total", &[("class", "one")], 4.0),
        ]
    };
    let before = sample(1, with(10.0));
    let mut now = sample(1, with(30.0));
    now.at = before.at + Duration::from_secs(2);
    let view = View { before: Some(&before), now: &now };
    assert!(view.traffic().contains("(one 0.0/s, two 10.0/s)"), "{}", view.traffic());
    assert_eq!(view.json()["commits_per_s_by_class"]["two"], 10.0);
}

#[test]
fn what_is_lost_now_comes_first() {
    let mut now = sample(1, Vec::new());
    now.risk.as_mut().unwrap().lost_files = 2;
    assert!(View { before: None, now: &now }.risk().contains("LOST NOW: 2 files"));
    let json = View { before: None, now: &now }.json();
    assert_eq!(
        (&json["risk"]["lost_files"], &json["drives"][0]["latency"]["small_mean_us"]),
        (&2.into(), &110.into())
    );
    assert!(clock::unix_ms() > 0);
}

#[test]
fn rows_are_shared_out() {
    assert_eq!(shares(&[3, 4], 20), [3, 4]);
    assert_eq!(shares(&[100, 3], 10), [7, 3]);
    assert_eq!(shares(&[100, 100], 10), [5, 5]);
    assert_eq!(shares(&[5, 5, 5], 0), [2, 2, 2]);
    assert_eq!(shares(&[], 5), Vec::<usize>::new());
    assert_eq!((end_of("/a/b", 10), end_of("/mnt/nvme0/ring", 8)), ("/a/b".into(), "…e0/ring".into()));
}
