//! Promises about minutes, in real time: only where STOKER_LONG is set.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::*;
use stoker_lake::{Lake, TwinLake};
use stoker_node::{LakeOpener, Node, NodeOptions};
use stoker_store::{DrainState, Store, VolumePolicy};
use tokio::time::Instant;

const MIB: usize = 1 << 20;

fn is_long() -> bool {
    stoker_testing::is_asked(&["STOKER_LONG"])
}

async fn counter(node: &Node, name: &str) -> u64 {
    let counters = node.counters().await.unwrap();
    counters.iter().find(|counter| counter.name == name).unwrap().value as u64
}

/// Does something every second for ten minutes.
async fn each_second<F: Future<Output = ()>>(mut act: impl FnMut(u64) -> F) {
    let begun = Instant::now();
    for second in 0..600 {
        act(second).await;
        let next = begun + Duration::from_secs(second + 1);
        tokio::time::sleep_until(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_minutes_of_appends_to_a_large_file_are_few_uploads() {
    if !is_long() {
        return;
    }
    let mut home = Home::new(VolumePolicy::default());
    home.ring_bytes = 6 << 30;
    let node = home.start().await;
    let mut whole = pattern(1, 1 << 30);
    put(&node, "log", &whole).await;
    let mut lines = Vec::new();
    each_second(|second| {
        let line = pattern(second, 1_000);
        lines.extend_from_slice(&line);
        let node = node.clone();
        async move { drop(append(&node, "log", &line).await) }
    })
    .await;
    whole.extend_from_slice(&lines);
    let during = counter(&node, "drained_files_total").await;
    assert_eq!(drained(&node, "log").await.drain, DrainState::Clean);
    let uploads = counter(&node, "drained_files_total").await;
    eprintln!("uploads during ten minutes of appends: {during}, in all {uploads}");
    assert!(uploads <= 3, "{uploads} uploads");
    assert!(std::fs::read(home.lake().join("data/log")).unwrap() == whole);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_that_refuses_for_ten_minutes_loses_nothing() {
    if !is_long() {
        return;
    }
    let home = Home::new(eager());
    let lake = Arc::new(TwinLake::new(7));
    let given = lake.clone();
    let options = NodeOptions {
        lake: Some("twin://lake".into()),
        lake_opener: Some(LakeOpener(Arc::new(move |_| given.clone() as Arc<dyn Lake>))),
        ..home.options()
    };
    let node = Node::open(options).await.unwrap();
    node.volume_create("data", Default::default()).await.unwrap();
    lake.refuse_all(true);
    each_second(|second| {
        let node = node.clone();
        let name = format!("f/{second}");
        async move { drop(put(&node, &name, &pattern(second, MIB / 4)).await) }
    })
    .await;
    assert!(lake.objects().is_empty());
    lake.refuse_all(false);
    for second in 0..600 {
        drained(&node, &format!("f/{second}")).await;
    }
    let objects = lake.objects();
    for second in 0..600u64 {
        let name = format!("f/{second}");
        assert!(objects[name.as_bytes()].body == pattern(second, MIB / 4), "{name}");
    }
    node.stop().await;
}
