//! Names survive what their bytes survive: each holder of a file can tell what it is called.

use std::sync::Arc;
use std::time::Duration;

use stoker_lake::Lake;
use stoker_node::{DriveOptions, LakeOpener, Node, NodeOptions};
use stoker_salvage::{SalvageOptions, StoppedNode, Target, salvage};
use stoker_store::{Order, RenameMode, Report, Store};

use crate::harness::cluster::Cluster;
use crate::harness::{copy_request, delete, get, key, lazy, names, pattern, put, set_add, set_begin};

/// What the bytes of a file are made from: the length of the last name that they are to have.
fn seed(name: &str) -> u64 {
    match name {
        "copied-from" => seed("copy"),
        "old name" => seed("new"),
        "dir/in" => seed("folder/in"),
        last => last.len() as u64,
    }
}

/// What a node that lost its catalog finds on its own drive and in the lake.
async fn found_by(cluster: &Cluster, at: usize) -> Vec<String> {
    let folder = cluster.folder(at);
    let lake = cluster.lake.clone();
    let home = StoppedNode {
        dir: folder.join("node"),
        drives: vec![folder.join("ring0")],
        secrets: stoker_node::secrets_kept(&folder.join("node")).unwrap(),
    };
    let options = SalvageOptions {
        home,
        others: Vec::new(),
        target: Target::Embedded,
        backup: None,
        lake_options: Default::default(),
        lake_opener: Some(LakeOpener(Arc::new(move |_| lake.clone() as Arc<dyn Lake>))),
    };
    let report = salvage(&options, &|_, _| ()).await.unwrap();
    assert_eq!(report.lost_files, 0, "{report:?}");
    let node = Node::open(NodeOptions {
        lake: Some("twin://lake".into()),
        lake_opener: options.lake_opener,
        drives: vec![DriveOptions { path: folder.join("ring0"), size_bytes: None }],
        memory_bytes: 512 << 20,
        ..NodeOptions::new(folder.join("node"))
    });
    let node = node.await.unwrap();
    let found = names(&node, "", None).await;
    for name in &found {
        assert!(get(&node, name).await.unwrap() == pattern(seed(name), 100_000), "{name}");
    }
    node.stop().await;
    found
}

/// Names have as many records as their bytes have copies, also after a loss, and whatever was done to them (R6).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_of_a_file_knows_its_name() {
    let mut cluster = Cluster::new(3, lazy()).await;
    for name in ["plain", "old name", "deleted", "dir/in"] {
        put(cluster.node(0), name, &pattern(seed(name), 100_000)).await;
    }
    cluster.node(0).rename("data", &key("old name"), &key("new"), RenameMode::Replace).await.unwrap();
    cluster.node(0).rename("data", &key("dir/"), &key("folder/"), RenameMode::Replace).await.unwrap();
    put(cluster.node(0), "copied-from", &pattern(seed("copied-from"), 100_000)).await;
    cluster.node(0).copy(copy_request("copied-from", "copy")).await.unwrap();
    delete(cluster.node(0), "copied-from").await.unwrap();
    delete(cluster.node(0), "deleted").await.unwrap();
    let gone = cluster.lose(0);
    let id = gone.id().to_string();
    assert!(cluster.node(1).members().declare_down(gone.id(), Duration::ZERO).await.unwrap());
    gone.stop().await;
    drop(gone);
    let all = ["copy", "folder/in", "new", "plain"];
    let is_safe = async || {
        for name in all {
            let receipt = cluster.node(1).receipt("data", &key(name)).await.unwrap();
            if receipt.copies < 2 || receipt.holders.iter().any(|holder| holder.node == id) {
                return false;
            }
        }
        let Ok(Report::Rebuild(status)) = cluster.node(1).operate(Order::Rebuild).await else { return false };
        status.files_left == 0
    };
    cluster.until("everything has two copies again", is_safe).await;
    for at in [1, 2] {
        cluster.lose(at).stop().await;
    }
    for at in [1, 2] {
        // Two nodes knew of each delete, and here both may be lost: what was deleted may come back, and nothing else.
        let mut found = found_by(&cluster, at).await;
        found.retain(|name| name != "deleted" && name != "copied-from");
        assert_eq!(found, all, "node {at}");
    }
}

/// Shards that lost a copy while their set was open are found by either node that has them in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_that_were_copied_again_keep_their_names() {
    let mut cluster = Cluster::new(3, lazy()).await;
    let all = ["s/a/1", "s/b"];
    let set = set_begin(cluster.node(0), "s/", all.len() as u32).await.unwrap().set;
    for (number, name) in (0..).zip(all) {
        set_add(cluster.node(0), set, number, name, &pattern(seed(name), 100_000)).await.unwrap();
    }
    let gone = cluster.lose(0);
    assert!(cluster.node(1).members().declare_down(gone.id(), Duration::ZERO).await.unwrap());
    let rows = stoker_schema::rows::keys::dirty_of(gone.id());
    cluster.until("nothing counts on the lost node", async || cluster.rows(&rows).await == 0).await;
    gone.stop().await;
    drop(gone);
    cluster.node(1).set_publish("data", set).await.unwrap();
    for at in [1, 2] {
        cluster.lose(at).stop().await;
    }
    for at in [1, 2] {
        assert_eq!(found_by(&cluster, at).await, all, "node {at}");
    }
}

/// A node that did nothing for long knows of no commit since. What it writes still comes after what others did before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_comes_after_the_delete_that_another_node_made() {
    let mut cluster = Cluster::new(2, lazy()).await;
    for round in 0..20 {
        put(cluster.node(1), "replaced", &pattern(round, 100_000)).await;
    }
    put(cluster.node(1), "deleted", &pattern(1, 100_000)).await;
    assert!(delete(cluster.node(1), "deleted").await.unwrap());
    for name in ["replaced", "deleted"] {
        put(cluster.node(0), name, &pattern(seed(name), 100_000)).await;
    }
    for at in [0, 1] {
        cluster.lose(at).stop().await;
    }
    for at in [0, 1] {
        assert_eq!(found_by(&cluster, at).await, ["deleted", "replaced"], "node {at}");
    }
}
