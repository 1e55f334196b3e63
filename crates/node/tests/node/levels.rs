//! The level of a cluster: it rises when every node can read the next one, and what is written before can be read by the release before.

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_catalog::kv::{Catalog, Commit, Outcome};
use stoker_format::NodeId;
use stoker_node::Node;
use stoker_schema::level::{Level, LevelRow, ReadsRow};
use stoker_schema::rows::{NodeRow, RowValue, keys};
use stoker_store::{ErrorKind, LevelStatus, Order, Report, Store, VolumePolicy};

async fn level(node: &Node) -> LevelStatus {
    told(node.operate(Order::Level).await.unwrap())
}

async fn hold(node: &Node, held: bool) -> LevelStatus {
    told(node.operate(Order::LevelHold { held }).await.unwrap())
}

fn told(report: Report) -> LevelStatus {
    match report {
        Report::Level(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Nodes that run, and a level that a person held before they did.
async fn held_cluster(count: usize) -> Cluster {
    let homes = (0..count).map(|_| Home::new(VolumePolicy::default())).collect();
    let mut cluster = Cluster::of(homes, &vec![""; count]);
    put_level(&cluster, LevelRow { is_held: true, ..LevelRow::default() }).await;
    cluster.start_all().await;
    cluster
}

async fn put_level(cluster: &Cluster, row: LevelRow) {
    commit(cluster, Commit::new().put(keys::LEVEL, row.encode())).await;
}

async fn commit(cluster: &Cluster, change: Commit) {
    let outcome = cluster.catalog.commit(change).await.unwrap();
    assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
}

/// The form in which the row of a node was written.
async fn form(cluster: &Cluster, node: NodeId) -> u8 {
    let row = cluster.catalog.get(&[&keys::node(node)]).await.unwrap().pop().flatten().unwrap();
    NodeRow::of(&row).unwrap();
    row.value[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_alone_writes_the_newest_forms() {
    let home = Home::new(VolumePolicy::default());
    let node = home.start().await;
    let status = level(&node).await;
    assert_eq!((status.level, status.is_held, status.nodes.len()), (Level::NEWEST.0, false, 1));
    assert_eq!(status.nodes[0].holds_up, None);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_held_rises_when_it_is_let_go() {
    let cluster = held_cluster(3).await;
    let id = cluster.node(1).id();
    assert_eq!(level(cluster.node(2)).await.level, 1);
    assert_eq!(form(&cluster, id).await, NodeRow::VERSION - 1, "what the release before reads");
    let status = hold(cluster.node(0), false).await;
    assert_eq!((status.level, status.is_held), (Level::NEWEST.0, false));
    // The others write in the new form once they know.
    cluster
        .until("n2 writes the new form", async || {
            let order = Order::Quarantine { node: "n1".into(), force: true };
            cluster.node(2).operate(order).await.unwrap();
            let order = Order::Rejoin { node: "n1".into() };
            cluster.node(2).operate(order).await.unwrap();
            form(&cluster, id).await == NodeRow::VERSION
        })
        .await;
    // It never falls: a hold keeps it where it is.
    let status = hold(cluster.node(1), true).await;
    assert_eq!((status.level, status.is_held), (Level::NEWEST.0, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_an_older_release_holds_the_level_up() {
    let mut cluster = held_cluster(3).await;
    let id = cluster.node(1).id();
    // One that knows no levels says nothing, and one that went back to it left what it said in an earlier boot.
    let stale = ReadsRow { session: [9; 16], newest: Level::NEWEST, release: "0".into() };
    for change in [Commit::new().delete(keys::reads(id)), Commit::new().put(keys::reads(id), stale.encode())]
    {
        commit(&cluster, change).await;
        let status = hold(cluster.node(0), false).await;
        assert_eq!(status.level, 1);
        let held_up: Vec<_> = status.nodes.iter().filter_map(|node| node.holds_up.as_ref()).collect();
        assert_eq!(held_up.len(), 1, "{status:?}");
        assert!(held_up[0].contains("knows no levels"), "{held_up:?}");
    }
    // A node that is down may come back with any release.
    cluster.lose(1).stop().await;
    cluster.start(1).await;
    cluster.until("the level rises", async || level(cluster.node(2)).await.level == Level::NEWEST.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_does_not_know_the_level_does_not_start() {
    let mut cluster = held_cluster(1).await;
    put_level(&cluster, LevelRow { level: Level(Level::NEWEST.0 + 1), ..LevelRow::default() }).await;
    let refused = cluster.join_as("late").await;
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("knows levels up to"), "{refused}");
}
