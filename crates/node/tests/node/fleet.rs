//! Nodes that are taken out of placement or emptied, and what is lost when nodes die.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Class, Condition, ErrorKind, Evacuation, LostFile, NodeInfo, Order, Rebuild, Report, RiskReport, Store,
    VolumeOptions, VolumePolicy,
};

async fn nodes(node: &Node) -> Vec<NodeInfo> {
    match node.operate(Order::Nodes).await.unwrap() {
        Report::Nodes(nodes) => nodes,
        other => panic!("{other:?}"),
    }
}

async fn state(node: &Node, name: &str) -> String {
    nodes(node).await.into_iter().find(|info| info.name == name).unwrap().state
}

async fn risk(node: &Node) -> RiskReport {
    match node.operate(Order::Risk).await.unwrap() {
        Report::Risk(risk) => risk,
        other => panic!("{other:?}"),
    }
}

async fn lost(node: &Node) -> Vec<LostFile> {
    match node.operate(Order::Lost).await.unwrap() {
        Report::Lost(lost) => lost,
        other => panic!("{other:?}"),
    }
}

async fn rebuild(node: &Node) -> Rebuild {
    match node.operate(Order::Rebuild).await.unwrap() {
        Report::Rebuild(rebuild) => rebuild,
        other => panic!("{other:?}"),
    }
}

async fn evacuation(node: &Node, name: &str) -> Evacuation {
    match node.operate(Order::Evacuation { node: name.into() }).await.unwrap() {
        Report::Evacuation(evacuation) => evacuation,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantined_node_is_read_from_and_gets_nothing_new() {
    let mut cluster = Cluster::new(4, lazy()).await;
    let bytes = pattern(1, 200_000);
    put(cluster.node(1), "old", &bytes).await;
    let order = Order::Quarantine { node: "n1".into(), force: false };
    assert_eq!(cluster.node(0).operate(order).await.unwrap(), Report::Done);
    let id = cluster.node(1).id().to_string();
    for at in 0..20 {
        let node = cluster.node([0, 2, 3][at % 3]);
        let known = async || state(node, "n1").await == "quarantined";
        cluster.until("everybody knows", known).await;
        let receipt = put(node, &format!("new/{at}"), &pattern(at as u64, 50_000)).await;
        assert_eq!(receipt.copies, 2);
        assert!(!nodes_of(&receipt).contains(&id), "{at}");
    }
    assert!(get(cluster.node(3), "old").await.unwrap() == bytes);
    // What a person decided outlives a restart.
    let stopped = cluster.lose(1);
    stopped.stop().await;
    drop(stopped);
    cluster.start(1).await;
    assert_eq!(state(cluster.node(0), "n1").await, "quarantined");
    cluster.node(2).operate(Order::Rejoin { node: "n1".into() }).await.unwrap();
    cluster.until("it counts", async || state(cluster.node(0), "n1").await == "up").await;
    let used = async || {
        let receipt = put(cluster.node(0), "more", &bytes).await;
        nodes_of(&receipt).contains(&id)
    };
    cluster.until("it is used again", used).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evacuated_node_holds_nothing_that_counts() {
    let mut cluster = Cluster::new(
        4,
        VolumePolicy { drain_quiet_s: 3600, drain_lag_max_s: 7200, ..VolumePolicy::default() },
    )
    .await;
    let one = VolumePolicy { class: Class::One, ..lazy() };
    let options = VolumeOptions { policy: Some(one), ..VolumeOptions::default() };
    cluster.node(0).volume_create("one", options).await.unwrap();
    for at in 0..12u64 {
        put(cluster.node((at % 4) as usize), &format!("f/{at}"), &pattern(at, 300_000 + at as usize)).await;
    }
    put(cluster.node(0), "empty", b"").await;
    let lonely = pattern(99, 700_000);
    put_if(cluster.node(0), "one", "lonely", &lonely, Condition::default()).await.unwrap();
    let told = evacuation(cluster.node(1), "n0").await;
    assert!(told.files_left > 3 && !told.done, "{told:?}");
    assert_eq!((told.files_only_there, told.bytes_only_there), (1, 700_000), "{told:?}");
    let order = Order::Evacuate { node: "n0".into(), force: false };
    assert!(matches!(cluster.node(1).operate(order).await.unwrap(), Report::Evacuation(_)));
    cluster.until("it is empty", async || evacuation(cluster.node(2), "n0").await.done).await;
    let told = evacuation(cluster.node(3), "n0").await;
    assert_eq!((told.files_left, told.bytes_only_there, told.state.as_str()), (0, 0, "evacuating"));
    let id = cluster.node(0).id().to_string();
    let status = rebuild(cluster.node(1)).await;
    assert!(status.files_left == 0 && status.files_done >= 4 && status.losses.is_empty(), "{status:?}");
    // Nobody misses it.
    let gone = cluster.lose(0);
    for at in 0..12u64 {
        let name = format!("f/{at}");
        let receipt = cluster.node(1).receipt("data", &key(&name)).await.unwrap();
        assert!(receipt.copies >= 2 && !nodes_of(&receipt).contains(&id), "{name}: {receipt:?}");
        assert!(get(cluster.node(2), &name).await.unwrap() == pattern(at, 300_000 + at as usize), "{name}");
    }
    assert!(get_from(cluster.node(3), "one", "lonely").await.unwrap() == lonely);
    assert_eq!(get(cluster.node(3), "empty").await.unwrap(), b"");
    assert_eq!(lost(cluster.node(1)).await, []);
    gone.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_where_there_is_nowhere_to_go() {
    let mut cluster = Cluster::new(2, lazy()).await;
    put(cluster.node(0), "a", b"1").await;
    for order in [
        Order::Evacuate { node: "n1".into(), force: false },
        Order::Quarantine { node: "n1".into(), force: false },
    ] {
        let refused = cluster.node(0).operate(order).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
        assert!(refused.message.contains("commits to 2 nodes") && refused.message.contains("stoker join"));
    }
    assert_eq!(state(cluster.node(0), "n1").await, "up");
    let unknown = cluster.node(0).operate(Order::Rejoin { node: "n9".into() }).await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::NotFound);
    // A node that does not answer has nothing to be read from, one that is down is made up for anyway.
    let gone = cluster.lose(1);
    let evacuate = || Order::Evacuate { node: "n1".into(), force: false };
    let refused = cluster.node(0).operate(evacuate()).await.unwrap_err();
    assert!(refused.message.contains("does not answer"), "{refused}");
    cluster.node(0).members().declare_down(gone.id(), Duration::ZERO).await.unwrap();
    let refused = cluster.node(0).operate(evacuate()).await.unwrap_err();
    assert!(refused.message.contains("stoker rebuild status"), "{refused}");
    gone.stop().await;
    cluster.stop().await;
}

/// Files of three classes, each acknowledged by some node.
async fn write_some(cluster: &Cluster, trial: u64) -> Vec<(&'static str, String, u64)> {
    let mut files = Vec::new();
    for at in 0..6u64 {
        let dice = pattern(trial * 100 + at + 1, 8);
        let volume = ["one", "data", "data", "three"][usize::from(dice[0] % 4)];
        let home = cluster.node(usize::from(dice[1]) % cluster.nodes.len());
        let name = format!("t{trial}/{at}");
        let bytes = pattern(trial * 1_000 + at, 1 + usize::from(dice[2]) * 400);
        put_if(home, volume, &name, &bytes, Condition::default()).await.unwrap();
        files.push((volume, name, bytes.len() as u64));
    }
    files
}

/// Names that no survivor can read.
async fn unreadable(cluster: &Cluster, files: &[(&'static str, String, u64)]) -> (BTreeSet<String>, u64) {
    let (mut names, mut bytes) = (BTreeSet::new(), 0);
    for (volume, name, len) in files {
        let mut read = false;
        for node in cluster.nodes.iter().flatten() {
            read |= get_from(node, volume, name).await.is_ok();
        }
        if !read {
            names.insert(format!("{volume}/{name}"));
            bytes += len;
        }
    }
    (names, bytes)
}

/// What a risk says before a loss is what is then unreadable, for nodes and for whole cells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn risk_says_what_is_then_lost() {
    let mut cluster = Cluster::in_cells(&["a", "a", "a", "b", "b"], lazy()).await;
    for (name, class) in [("one", Class::One), ("three", Class::Three)] {
        let policy = VolumePolicy { class, ..lazy() };
        let options = VolumeOptions { policy: Some(policy), ..VolumeOptions::default() };
        cluster.node(0).volume_create(name, options).await.unwrap();
    }
    let mut losses = 0;
    for trial in 0..100u64 {
        let files = write_some(&cluster, trial).await;
        let dice = pattern(trial + 7, 8);
        let asked = cluster.node(usize::from(dice[1] % 5)).clone();
        let report = risk(&asked).await;
        assert_eq!((report.lost_files, report.at_least), (0, false), "trial {trial}");
        // Now a node, now a whole cell.
        let (said, victims) = match dice[0] % 3 {
            0 => (report.cells.iter().find(|cell| cell.name == "a").unwrap(), vec![0, 1, 2]),
            1 => (report.cells.iter().find(|cell| cell.name == "b").unwrap(), vec![3, 4]),
            _ => {
                let victim = usize::from(dice[2] % 5);
                let name = format!("n{victim}");
                (report.nodes.iter().find(|node| node.name == name).unwrap(), vec![victim])
            }
        };
        let gone: Vec<_> = victims.iter().map(|at| (*at, cluster.lose(*at))).collect();
        let (names, bytes) = unreadable(&cluster, &files).await;
        assert_eq!(said.doubtful_files, 0, "trial {trial}");
        assert_eq!(
            (said.lost_files, said.lost_bytes),
            (names.len() as u64, bytes),
            "trial {trial}: {said:?}"
        );
        // And afterwards they are named.
        let survivor = cluster.nodes.iter().flatten().next().unwrap().clone();
        let told = lost(&survivor).await;
        let told_names: BTreeSet<String> = told
            .iter()
            .map(|file| format!("{}/{}", file.volume, String::from_utf8_lossy(&file.key)))
            .collect();
        assert_eq!(told_names, names, "trial {trial}");
        assert!(told.iter().all(|file| file.whole && file.may_return), "trial {trial}: {told:?}");
        losses += names.len();
        for (at, node) in gone {
            cluster.heal(at, node);
        }
        assert_eq!(unreadable(&cluster, &files).await.0, BTreeSet::new(), "trial {trial}");
        for (volume, name, _) in files {
            let done =
                cluster.node(0).delete(volume, vec![(key(&name), Condition::default())]).await.unwrap();
            assert!(done.into_iter().all(|one| one.is_ok()), "trial {trial}");
        }
    }
    assert!(losses > 30, "the trials lose something: {losses}");
    cluster.stop().await;
}

/// A cell is lost for good: what was only there is named, everything else is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_cell_takes_only_what_was_only_there() {
    let mut cluster = Cluster::in_cells(&["a", "a", "b", "b"], lazy()).await;
    let content = |at: u64| pattern(at, 200_000);
    for at in 0..12u64 {
        put(cluster.node((at % 4) as usize), &format!("f/{at:02}"), &content(at)).await;
    }
    for at in [0, 1, 2] {
        cluster.node(0).drain("data", format!("f/{at:02}").as_bytes()).await.unwrap();
        drained(cluster.node(0), &format!("f/{at:02}")).await;
    }
    let gone = [cluster.lose(0), cluster.lose(1)];
    for node in &gone {
        cluster.node(2).members().declare_down(node.id(), Duration::ZERO).await.unwrap();
    }
    // Homes 0 and 1 were in the lost cell; of their files two were drained.
    let expect: BTreeSet<String> = [4, 5, 8, 9].iter().map(|at| format!("f/{at:02}")).collect();
    for asked in [2, 3] {
        let named = async || {
            let told = lost(cluster.node(asked)).await;
            let names: BTreeSet<String> =
                told.iter().map(|file| String::from_utf8_lossy(&file.key).into_owned()).collect();
            names == expect && told.iter().all(|file| file.bytes == 200_000 && file.nodes == ["n0", "n1"])
        };
        cluster.until("what is lost is named", named).await;
    }
    let counted = async || {
        let status = rebuild(cluster.node(3)).await;
        (status.lost_files, status.lost_bytes) == (4, 800_000)
    };
    cluster.until("what is lost is counted", counted).await;
    for at in 0..12u64 {
        let name = format!("f/{at:02}");
        let read = get(cluster.node(3), &name).await;
        match expect.contains(&name) {
            true => assert!(read.is_err(), "{name}"),
            false => assert!(read.unwrap() == content(at), "{name}"),
        }
    }
    for node in gone {
        node.stop().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_has_the_way_between_two_others_measured() {
    let cluster = Cluster::new(3, lazy()).await;
    let id = |at: usize| cluster.node(at).id().to_string();
    for (asked, from, to) in [(0, 0, 1), (0, 1, 2), (2, 1, 0)] {
        let order = Order::Fabric { from: id(from), to: id(to) };
        let Report::Fabric(leg) = cluster.node(asked).operate(order).await.unwrap() else {
            panic!("another report")
        };
        assert_eq!((leg.from, leg.to), (id(from), id(to)));
        assert!(leg.round_trips > 0 && leg.p50_us <= leg.max_us && leg.bytes > 0 && leg.bytes_per_s > 0);
    }
    // What was sent is kept nowhere.
    for at in 0..3 {
        assert_eq!(counter(cluster.node(at), "ring_append_records_total").await, 0.0);
    }
    let refused = |from: String, to: String| cluster.node(0).operate(Order::Fabric { from, to });
    assert_eq!(refused(id(1), id(1)).await.unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(refused(id(1), "nobody".into()).await.unwrap_err().kind, ErrorKind::NotFound);
    cluster.stop().await;
}
