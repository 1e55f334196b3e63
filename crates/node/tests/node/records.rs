//! Names survive what their bytes survive: each holder of a file can tell what it is called.

use std::sync::Arc;
use std::time::Duration;

use stoker_lake::Lake;
use stoker_node::offline::{SalvageOptions, StoppedNode, Target, salvage};
use stoker_node::{DriveOptions, LakeOpener, Node, NodeOptions};
use stoker_store::{Order, RenameMode, Report, Store};

use crate::harness::cluster::Cluster;
use crate::harness::{copy_request, delete, get, key, lazy, names, pattern, put};

/// What a node that lost its catalog finds on its own drive and in the lake.
async fn found_by(cluster: &Cluster, at: usize) -> Vec<String> {
    let folder = cluster.folder(at);
    let lake = cluster.lake.clone();
    let home = StoppedNode { dir: folder.join("node"), drives: vec![folder.join("ring0")] };
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
        assert!(get(&node, name).await.unwrap() == pattern(name.len() as u64, 100_000), "{name}");
    }
    node.stop().await;
    found
}

/// Names have as many records as their bytes have copies, also after a loss, and whatever was done to them (R6).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_of_a_file_knows_its_name() {
    let mut cluster = Cluster::new(3, lazy()).await;
    for name in ["plain", "old name", "deleted", "dir/in"] {
        // By the length of the name that it has in the end.
        let last = name.replace("old name", "new").replace("dir/", "folder/");
        put(cluster.node(0), name, &pattern(last.len() as u64, 100_000)).await;
    }
    cluster.node(0).rename("data", &key("old name"), &key("new"), RenameMode::Replace).await.unwrap();
    cluster.node(0).rename("data", &key("dir/"), &key("folder/"), RenameMode::Replace).await.unwrap();
    put(cluster.node(0), "copied-from", &pattern(4, 100_000)).await;
    cluster.node(0).copy(copy_request("copied-from", "copy")).await.unwrap();
    delete(cluster.node(0), "copied-from").await.unwrap();
    delete(cluster.node(0), "deleted").await.unwrap();
    let gone = cluster.lose(0);
    let id = gone.id().to_string();
    assert!(cluster.node(1).declare_down(gone.id(), Duration::ZERO).await.unwrap());
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
        // Two nodes knew of the delete, and here both may be lost: what was deleted may come back, and nothing else.
        let mut found = found_by(&cluster, at).await;
        found.retain(|name| name != "deleted");
        assert_eq!(found, all, "node {at}");
    }
}
