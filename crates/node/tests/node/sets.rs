//! Checkpoint sets at the door: all or nothing, on one node and in a cell.

use std::sync::Arc;

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    DrainPolicy, DrainState, ErrorKind, Finish, PartChoice, RenameMode, SET_MARKER, SetId, SetRequest,
    SetState, ShardUpload, Store, StoreError, Subject, VolumePolicy,
};

/// Waits until something holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..1_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

fn about_set(fault: &StoreError, kind: ErrorKind) {
    assert_eq!((fault.kind, fault.subject), (kind, Subject::Set), "{fault}");
}

async fn keep_bytes(node: &Node) -> u64 {
    node.status().await.unwrap().rings.iter().map(|ring| ring.keep_bytes).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_is_seen_whole_or_not_at_all() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "run/other", b"1").await;
    let set = set_begin(&node, "run/step-1/", 3).await.unwrap();
    assert_eq!((set.state, set.shards, set.path.to_string()), (SetState::Open, 3, "run/step-1/".into()));
    // A rank that begins it again gets the same one; another owner does not.
    assert_eq!(set_begin(&node, "run/step-1/", 3).await.unwrap(), set);
    about_set(&set_begin(&node, "run/step-1/", 4).await.unwrap_err(), ErrorKind::Conflict);
    let large = pattern(1, 9 << 20);
    let receipt = set_add(&node, set.set, 0, "run/step-1/a", &large).await.unwrap();
    assert_eq!((receipt.size, receipt.copies, receipt.drain), (9 << 20, 1, DrainState::Dirty));
    set_add(&node, set.set, 2, "run/step-1/deep/c", b"old").await.unwrap();
    assert_eq!(names(&node, "", None).await, ["run/other"]);
    let missing = node.set_publish("data", set.set).await.unwrap_err();
    about_set(&missing, ErrorKind::Conflict);
    assert!(missing.message.contains("1 of 3 shards are missing: 1;"), "{missing}");
    let status = node.set_status("data", set.set).await.unwrap();
    assert_eq!((status.present, status.bytes, status.laggards), (2, (9 << 20) + 3, vec![1]));
    // The same shard again replaces the first.
    set_add(&node, set.set, 2, "run/step-1/deep/c", b"new").await.unwrap();
    set_add(&node, set.set, 1, "run/step-1/b", b"").await.unwrap();
    assert_eq!(get(&node, "run/step-1/a").await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(node.set_latest("data", b"run/").await.unwrap(), None);
    assert_eq!(node.set_find("data", &key("run/step-1/")).await.unwrap(), Some(set.clone()));
    let published = node.set_publish("data", set.set).await.unwrap();
    assert_eq!(published.state, SetState::Published);
    assert_eq!(node.set_publish("data", set.set).await.unwrap(), published);
    let all = ["run/other", "run/step-1/a", "run/step-1/b", "run/step-1/deep/c"];
    assert_eq!(names(&node, "", None).await, all);
    assert!(get(&node, "run/step-1/a").await.unwrap() == large);
    assert_eq!(get(&node, "run/step-1/deep/c").await.unwrap(), b"new");
    // Late for everything.
    about_set(&set_add(&node, set.set, 1, "run/step-1/b", b"x").await.unwrap_err(), ErrorKind::Conflict);
    about_set(&node.set_abort("data", set.set).await.unwrap_err(), ErrorKind::Conflict);
    about_set(&set_begin(&node, "run/step-1/", 1).await.unwrap_err(), ErrorKind::Conflict);
    assert_eq!(node.set_find("data", &key("run/step-1/")).await.unwrap().unwrap(), published);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_under_way_is_late_when_the_set_is_closed() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let set = set_begin(&node, "s/", 1).await.unwrap().set;
    let request = stoker_store::ShardRequest { number: 0, ..Default::default() };
    let mut writer = node.set_shard("data", &key("s/x"), set, request).await.unwrap();
    write(&mut writer, &pattern(3, 5 << 20)).await.unwrap();
    set_add(&node, set, 0, "s/x", b"first").await.unwrap();
    node.set_publish("data", set).await.unwrap();
    about_set(&writer.finish(Finish::default()).await.unwrap_err(), ErrorKind::Conflict);
    assert_eq!(get(&node, "s/x").await.unwrap(), b"first");
    until("its chunks are freed", async || keep_bytes(&node).await < 1 << 20).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latest_is_the_one_that_was_published_last() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let first = set_begin(&node, "run/step-1/", 1).await.unwrap().set;
    let second = set_begin(&node, "run/step-2/", 1).await.unwrap().set;
    let third = set_begin(&node, "other/step-3/", 1).await.unwrap().set;
    for (set, name) in [(second, "run/step-2/x"), (first, "run/step-1/x"), (third, "other/step-3/x")] {
        set_add(&node, set, 0, name, b"1").await.unwrap();
        node.set_publish("data", set).await.unwrap();
    }
    let latest = async |prefix: &[u8]| node.set_latest("data", prefix).await.unwrap().map(|set| set.set);
    assert_eq!(latest(b"run/").await, Some(first));
    assert_eq!(latest(b"").await, Some(third));
    assert_eq!(latest(b"run/step-2").await, Some(second));
    assert_eq!(latest(b"none/").await, None);
    let page = node.sets("data", None, 2).await.unwrap();
    assert_eq!(
        (page.sets.iter().map(|set| set.set).collect::<Vec<_>>(), page.more),
        (vec![first, second], true)
    );
    let page = node.sets("data", Some(second), 2).await.unwrap();
    assert_eq!((page.sets.len(), page.sets[0].set, page.more), (1, third, false));
    // With its last file a set is gone.
    delete(&node, "run/step-1/x").await.unwrap();
    assert_eq!(latest(b"run/").await, Some(second));
    about_set(&node.set_status("data", first).await.unwrap_err(), ErrorKind::NotFound);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_and_a_deadline_free_what_was_written() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let set = set_begin(&node, "a/", 2).await.unwrap().set;
    set_add(&node, set, 0, "a/x", &pattern(1, 6 << 20)).await.unwrap();
    assert!(keep_bytes(&node).await >= 6 << 20);
    let aborted = node.set_abort("data", set).await.unwrap();
    assert_eq!(aborted.state, SetState::Aborted);
    assert_eq!(node.set_abort("data", set).await.unwrap().state, SetState::Aborted);
    about_set(&set_add(&node, set, 1, "a/y", b"late").await.unwrap_err(), ErrorKind::Conflict);
    about_set(&node.set_publish("data", set).await.unwrap_err(), ErrorKind::Conflict);
    until("the chunks of the aborted set are freed", async || keep_bytes(&node).await < 1 << 20).await;
    let request = SetRequest { target: key("b/"), owner: "job".into(), shards: 2, deadline_s: Some(4) };
    let short = node.set_begin("data", request).await.unwrap().set;
    set_add(&node, short, 0, "b/x", &pattern(2, 6 << 20)).await.unwrap();
    until("the set is given up", async || {
        node.set_status("data", short).await.unwrap().info.state == SetState::Expired
    })
    .await;
    until("its chunks are freed", async || keep_bytes(&node).await < 1 << 20).await;
    assert!(names(&node, "", None).await.is_empty());
    assert_eq!(node.volume("data").await.unwrap().files, 0);
    // An open set keeps its volume; aborted ones do not.
    let last = set_begin(&node, "c/", 1).await.unwrap().set;
    assert_eq!(node.volume_delete("data").await.unwrap_err().subject, Subject::VolumeContents);
    node.set_abort("data", last).await.unwrap();
    node.volume_delete("data").await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_set_outlives_a_restart() {
    let home = Home::new(eager());
    let node = home.start().await;
    let set = set_begin(&node, "s/", 2).await.unwrap().set;
    let bytes = pattern(5, 5 << 20);
    set_add(&node, set, 0, "s/a", &bytes).await.unwrap();
    let node = home.restart(node).await;
    // Must-keep although no name leads to it, and not drained although it is old enough.
    assert!(keep_bytes(&node).await >= 5 << 20);
    set_add(&node, set, 1, "s/b", b"2").await.unwrap();
    put(&node, "other", b"3").await;
    drained(&node, "other").await;
    assert_eq!(tree(&home.lake().join("data")), ["other"]);
    node.set_publish("data", set).await.unwrap();
    let node = home.restart(node).await;
    assert!(get(&node, "s/a").await.unwrap() == bytes);
    until("it is in the lake", async || {
        node.set_status("data", set).await.unwrap().drain == DrainState::Clean
    })
    .await;
    assert!(std::fs::read(home.lake().join("data/s/a")).unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_in_a_volume_that_never_drains() {
    let home = Home::new(VolumePolicy { drain: DrainPolicy::Never, ..VolumePolicy::default() });
    let node = home.start().await;
    let set = set_begin(&node, "s/", 2).await.unwrap().set;
    let bytes = pattern(6, 5 << 20);
    set_add(&node, set, 0, "s/a", &bytes).await.unwrap();
    let node = home.restart(node).await;
    set_add(&node, set, 1, "s/b", b"2").await.unwrap();
    node.set_publish("data", set).await.unwrap();
    let node = home.restart(node).await;
    assert!(get(&node, "s/a").await.unwrap() == bytes);
    assert_eq!(node.set_status("data", set).await.unwrap().drain, DrainState::Never);
    assert_eq!(names(&node, "", None).await, ["s/a", "s/b"]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_refused() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let begin = async |target: &str, shards: u32, deadline_s: Option<u32>, owner: String| {
        let request = SetRequest { target: key(target), owner, shards, deadline_s };
        node.set_begin("data", request).await
    };
    for (target, shards, deadline_s, owner) in [
        ("no-slash", 1, None, String::new()),
        ("d/", 0, None, String::new()),
        ("d/", 100_001, None, String::new()),
        ("d/", 1, Some(0), String::new()),
        ("d/", 1, Some(u32::MAX), String::new()),
        ("d/", 1, None, "x".repeat(1_000)),
    ] {
        about_set(&begin(target, shards, deadline_s, owner).await.unwrap_err(), ErrorKind::Invalid);
    }
    let set = begin("d/", 2, None, String::new()).await.unwrap().set;
    for (number, name) in [(2, "d/x"), (0, "e/x"), (0, "d/"), (0, "d/x/"), (0, &format!("d/{SET_MARKER}"))] {
        about_set(&set_add(&node, set, number, name, b"1").await.unwrap_err(), ErrorKind::Invalid);
    }
    set_add(&node, set, 0, "d/x", b"1").await.unwrap();
    about_set(&set_add(&node, set, 1, "d/x", b"1").await.unwrap_err(), ErrorKind::Conflict);
    about_set(&set_add(&node, SetId(u64::MAX), 1, "d/x", b"1").await.unwrap_err(), ErrorKind::NotFound);
    about_set(&node.set_publish("data", SetId(1)).await.unwrap_err(), ErrorKind::NotFound);
    about_set(&node.set_find("data", &key("d")).await.unwrap_err(), ErrorKind::Invalid);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_an_upload_become_a_shard() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let set = set_begin(&node, "s/", 1).await.unwrap().set;
    let name = key("s/big");
    let upload = node.upload_create("data", &name, Default::default(), None).await.unwrap().upload;
    let bytes = pattern(8, 7 << 20);
    let mut parts = Vec::new();
    for (number, piece) in [(1, &bytes[..5 << 20]), (2, &bytes[5 << 20..])] {
        let size = Some(piece.len() as u64);
        let mut writer = node.upload_part("data", &name, &upload, number, size).await.unwrap();
        write(&mut writer, piece).await.unwrap();
        let etag = writer.finish(Finish::default()).await.unwrap().etag;
        parts.push(PartChoice { number, etag, checksum: None });
    }
    let shard = ShardUpload { number: 0, writer: "rank 0".into(), upload, parts, finish: Finish::default() };
    let receipt = node.set_shard_complete("data", &name, set, shard.clone()).await.unwrap();
    // An answer that was lost is given again, also after the publish.
    assert_eq!(node.set_shard_complete("data", &name, set, shard.clone()).await.unwrap(), receipt);
    assert!(names(&node, "", None).await.is_empty());
    let node = home.restart(node).await;
    node.set_publish("data", set).await.unwrap();
    assert_eq!(node.set_shard_complete("data", &name, set, shard).await.unwrap(), receipt);
    assert!(get(&node, "s/big").await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marker_comes_last_and_a_plain_copy_of_the_lake_is_the_set() {
    let cluster =
        Cluster::new(1, VolumePolicy { drain_quiet_s: 3_600, drain_lag_max_s: 7_200, ..eager() }).await;
    let node = cluster.node(0);
    let set = set_begin(node, "ck/step-1/", 3).await.unwrap().set;
    let mut kept = Vec::new();
    for number in 0..3u32 {
        let (name, bytes) = (format!("ck/step-1/d/{number}"), pattern(u64::from(number), 700_000));
        set_add(node, set, number, &name, &bytes).await.unwrap();
        kept.push((name, bytes));
    }
    node.set_publish("data", set).await.unwrap();
    let marker = format!("ck/step-1/{SET_MARKER}");
    for (at, (name, _)) in kept.iter().enumerate() {
        assert_eq!(node.drain("data", name.as_bytes()).await.unwrap(), 1);
        drained(node, name).await;
        if at < 2 {
            assert_eq!(get(node, &marker).await.unwrap_err().kind, ErrorKind::NotFound);
            assert_eq!(node.set_status("data", set).await.unwrap().drain, DrainState::Dirty);
        }
    }
    until("the set is in the lake", async || {
        node.set_status("data", set).await.unwrap().drain == DrainState::Clean
    })
    .await;
    let objects = cluster.lake.objects();
    let said: serde_json::Value = serde_json::from_slice(&objects[marker.as_bytes()].body).unwrap();
    assert_eq!(said["directory"], "ck/step-1/");
    assert_eq!(said["seq"], node.set_status("data", set).await.unwrap().info.seq);
    let shards = said["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 3);
    for ((number, shard), (name, bytes)) in shards.iter().enumerate().zip(&kept) {
        let key = format!("ck/step-1/{}", shard["key"].as_str().unwrap());
        assert_eq!((&key, shard["shard"].as_u64()), (name, Some(number as u64)));
        assert_eq!(shard["size"], bytes.len());
        assert_eq!(shard["crc64nvme"], format!("{:016x}", stoker_format::crc64(bytes)));
        assert!(objects[key.as_bytes()].body == *bytes);
    }
    // It is a file like any other: it goes where its directory goes.
    let (from, to) = (key("ck/step-1/"), key("best/"));
    node.rename("data", &from, &to, RenameMode::NoReplace).await.unwrap();
    cluster
        .until("the lake follows", async || {
            let objects = cluster.lake.objects();
            objects.len() == 4 && objects.keys().all(|key| key.starts_with(b"best/"))
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_come_from_any_node_and_appear_on_all_at_once() {
    let mut cluster = Cluster::new(3, eager()).await;
    let set = set_begin(cluster.node(0), "run/step-1/", 4).await.unwrap().set;
    let mut kept = Vec::new();
    for number in 0..4u32 {
        let (name, bytes) = (format!("run/step-1/{number}"), pattern(u64::from(number), 5 << 20));
        let receipt = set_add(cluster.node(number as usize % 2), set, number, &name, &bytes).await.unwrap();
        assert_eq!((receipt.copies, nodes_of(&receipt).len()), (2, 2));
        kept.push((name, bytes));
    }
    for node in cluster.nodes.iter().flatten() {
        assert!(names(node, "", None).await.is_empty());
        assert_eq!(node.set_status("data", set).await.unwrap().present, 4);
    }
    // Nothing of it is in the lake, although everything here drains at once.
    assert!(cluster.lake.objects().is_empty());
    cluster.node(2).set_publish("data", set).await.unwrap();
    for node in cluster.nodes.iter().flatten() {
        assert_eq!(
            names(node, "run/step-1/", None).await.iter().filter(|name| !name.ends_with("json")).count(),
            4
        );
        for (name, bytes) in &kept {
            assert!(get(node, name).await.unwrap() == *bytes, "{name}");
        }
    }
    let marker = format!("run/step-1/{SET_MARKER}");
    cluster
        .until("its homes drain it", async || cluster.lake.objects().contains_key(marker.as_bytes()))
        .await;
    for (name, bytes) in &kept {
        assert!(cluster.lake.objects()[name.as_bytes()].body == *bytes, "{name}");
    }
    cluster.until("no row says that it is must-keep", async || cluster.rows(b"d").await == 0).await;
    cluster.lose(1);
    assert!(get(cluster.node(2), "run/step-1/1").await.unwrap() == kept[1].1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_of_an_open_set_survive_the_loss_of_their_node() {
    let mut cluster = Cluster::new(3, eager()).await;
    let set = set_begin(cluster.node(0), "s/", 3).await.unwrap().set;
    let mut kept = Vec::new();
    for number in 0..2u32 {
        let (name, bytes) = (format!("s/{number}"), pattern(u64::from(number), 300_000));
        set_add(cluster.node(0), set, number, &name, &bytes).await.unwrap();
        kept.push((name, bytes));
    }
    let lost = cluster.lose(0);
    assert!(cluster.node(1).members().declare_down(lost.id(), std::time::Duration::ZERO).await.unwrap());
    // Its session is over: no shard of it counts any more.
    assert!(set_add(&lost, set, 2, "s/2", b"zombie").await.is_err());
    let rows = stoker_schema::rows::keys::dirty_of(lost.id());
    cluster.until("nothing counts on the lost node", async || cluster.rows(&rows).await == 0).await;
    set_add(cluster.node(2), set, 2, "s/2", b"last").await.unwrap();
    assert!(cluster.lake.objects().is_empty());
    cluster.node(1).set_publish("data", set).await.unwrap();
    for (name, bytes) in &kept {
        assert_eq!(cluster.node(1).receipt("data", &key(name)).await.unwrap().copies, 2);
        assert!(get(cluster.node(2), name).await.unwrap() == *bytes);
    }
    // Whoever took the drains over carries them out.
    let marker = format!("s/{SET_MARKER}");
    cluster.until("it is in the lake", async || cluster.lake.objects().contains_key(marker.as_bytes())).await;
    lost.stop().await;
    drop(lost);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_do_not_get_in_each_others_way() {
    let cluster = Cluster::new(3, lazy()).await;
    let set = set_begin(cluster.node(0), "wide/", 60).await.unwrap().set;
    let nodes: Vec<Arc<Node>> = cluster.nodes.iter().flatten().cloned().collect();
    let ranks = (0..60u32).map(|number| {
        let node = nodes[number as usize % 3].clone();
        tokio::spawn(async move {
            let joined = set_begin(&node, "wide/", 60).await.unwrap().set;
            let name = format!("wide/{:02}/shard-{number}", number % 7);
            set_add(&node, joined, number, &name, &pattern(u64::from(number), 40_000)).await.unwrap();
            joined
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        assert_eq!(rank.await.unwrap(), set);
    }
    // Many publish at once; one commit does it, and all are told the same.
    let publishes = nodes.iter().map(|node| node.set_publish("data", set));
    let ends: Vec<_> = futures_util::future::join_all(publishes).await;
    let seqs: std::collections::HashSet<u64> = ends.iter().map(|end| end.as_ref().unwrap().seq).collect();
    assert_eq!(seqs.len(), 1);
    assert_eq!(names_of(&nodes[1], "data", "wide/", None, 1_000).await.len(), 60);
    assert_eq!(delete(&nodes[0], "wide/00/shard-0").await, Ok(true));
    drop(nodes);
    cluster.stop().await;
}
