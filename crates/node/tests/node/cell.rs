//! Several nodes in one process: copies before the acknowledgement, reads through any of them, and nodes that die.

use std::collections::HashMap;

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::*;
use stoker_store::{Class, DrainState, ErrorKind, Store, VolumePolicy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_on_two_nodes_before_it_is_acknowledged() {
    let mut cluster = Cluster::new(3, lazy()).await;
    let bytes = pattern(1, 9 << 20);
    let receipt = put(cluster.node(0), "dir/big", &bytes).await;
    assert_eq!((receipt.class, receipt.copies), (Class::Two, 2));
    assert_eq!(nodes_of(&receipt).len(), 2);
    put(cluster.node(1), "small", b"hello").await;
    put(cluster.node(2), "empty", b"").await;
    for node in cluster.nodes.iter().flatten() {
        assert!(get(node, "dir/big").await.unwrap() == bytes);
        assert_eq!(get(node, "small").await.unwrap(), b"hello");
        assert_eq!(get(node, "empty").await.unwrap(), b"");
        assert_eq!(names(node, "", None).await, ["dir/big", "empty", "small"]);
    }
    // What the writer's node alone would have lost is there.
    cluster.lose(0);
    assert!(get(cluster.node(1), "dir/big").await.unwrap() == bytes);
    assert!(get(cluster.node(2), "dir/big").await.unwrap() == bytes);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_gone_is_replaced_within_the_write() {
    let mut cluster = Cluster::new(3, lazy()).await;
    let lost = cluster.lose(1);
    for at in 0..20 {
        let receipt = put(cluster.node(0), &format!("k/{at}"), &pattern(at, 100_000)).await;
        assert_eq!(receipt.copies, 2);
        assert!(!nodes_of(&receipt).contains(&lost.id().to_string()));
    }
    // Two of three are gone: a commit to two nodes is not possible, and says so.
    cluster.lose(2);
    let refused = put_if(cluster.node(0), "data", "x", b"1", Default::default()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    assert_eq!(get(cluster.node(0), "x").await.unwrap_err().kind, ErrorKind::NotFound);
    let one = VolumePolicy { class: Class::One, ..lazy() };
    cluster.node(0).volume_set("data", one).await.unwrap();
    assert_eq!(put(cluster.node(0), "x", b"1").await.copies, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_node_held_is_protected_again_and_drained() {
    let mut cluster = Cluster::new(
        3,
        VolumePolicy { drain_quiet_s: 3600, drain_lag_max_s: 7200, ..VolumePolicy::default() },
    )
    .await;
    let mut kept = HashMap::new();
    for at in 0..12u64 {
        let (name, bytes) = (format!("f/{at}"), pattern(at, 300_000 + at as usize));
        put(cluster.node((at % 3) as usize), &name, &bytes).await;
        kept.insert(name, bytes);
    }
    let lost = cluster.lose(0);
    let id = lost.id();
    assert!(cluster.node(1).members().declare_down(id, std::time::Duration::ZERO).await.unwrap());
    assert!(!cluster.node(2).members().declare_down(id, std::time::Duration::ZERO).await.unwrap());
    // Its session is over: what it publishes now counts for nobody.
    let zombie = put_if(&lost, "data", "zombie", b"1", Default::default()).await;
    assert!(zombie.is_err());
    let prefix = stoker_schema::rows::keys::dirty_of(id);
    cluster.until("nothing counts on the lost node", async || cluster.rows(&prefix).await == 0).await;
    for (name, bytes) in &kept {
        let receipt = cluster.node(1).receipt("data", &key(name)).await.unwrap();
        assert_eq!(receipt.copies, 2, "{name}");
        assert!(!nodes_of(&receipt).contains(&id.to_string()), "{name}");
        assert!(get(cluster.node(2), name).await.unwrap() == *bytes, "{name}");
    }
    // What it owed the lake is drained by others, though it would have waited for an hour.
    cluster
        .until("its drains are taken over", async || {
            let objects = cluster.lake.objects();
            (0..12).step_by(3).all(|at| objects.contains_key(format!("f/{at}").as_bytes()))
        })
        .await;
    lost.stop().await;
    drop(lost);
    // Back, it is an ordinary node again, and nothing is copied.
    cluster.start(0).await;
    for (name, bytes) in &kept {
        assert!(get(cluster.node(0), name).await.unwrap() == *bytes, "{name}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_go_when_the_lake_has_the_bytes() {
    let cluster = Cluster::new(2, eager()).await;
    let bytes = pattern(3, 500_000);
    put(cluster.node(0), "a", &bytes).await;
    cluster.node(0).copy(copy_request("a", "b")).await.unwrap();
    let receipt = drained(cluster.node(0), "a").await;
    assert_eq!(receipt.drain, DrainState::Clean);
    // Asked of the node that does not drain it.
    drained(cluster.node(1), "b").await;
    cluster.until("no row says that it is must-keep", async || cluster.rows(b"d").await == 0).await;
    cluster
        .until("both nodes may drop it", async || {
            let mut dirty = 0;
            for node in cluster.nodes.iter().flatten() {
                dirty += node.status().await.unwrap().rings.iter().map(|ring| ring.keep_bytes).sum::<u64>();
            }
            dirty == 0
        })
        .await;
    assert!(get(cluster.node(1), "b").await.unwrap() == bytes);
    // An append makes them must-keep again, on two nodes.
    let receipt = append(cluster.node(1), "b", b"more").await;
    assert_eq!(receipt.copies, 2);
    let whole = [&bytes[..], b"more"].concat();
    assert!(get(cluster.node(0), "b").await.unwrap() == whole);
    drained(cluster.node(0), "b").await;
    assert!(cluster.lake.objects()[&b"b"[..]].body == whole);
    delete(cluster.node(1), "a").await.unwrap();
    delete(cluster.node(0), "b").await.unwrap();
    cluster.until("garbage is collected", async || cluster.rows(b"g").await == 0).await;
    cluster.until("the lake follows", async || cluster.lake.objects().is_empty()).await;
    cluster.stop().await;
}
