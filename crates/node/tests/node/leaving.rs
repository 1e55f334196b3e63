//! Nodes that join and cannot be reached, and nodes that leave for good.

use std::time::Duration;

use stoker_node::{Lost, Node};
use stoker_store::{
    Class, Condition, ErrorKind, NodeInfo, Order, Removal, Report, Store, VolumeOptions, VolumePolicy,
};

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::*;

async fn nodes(node: &Node) -> Vec<NodeInfo> {
    match node.operate(Order::Nodes).await.unwrap() {
        Report::Nodes(nodes) => nodes,
        other => panic!("{other:?}"),
    }
}

async fn state(node: &Node, name: &str) -> Option<String> {
    nodes(node).await.into_iter().find(|info| info.name == name).map(|info| info.state)
}

async fn remove(node: &Node, name: &str, accept_loss: bool) -> Removal {
    let order = Order::NodeRemove { node: name.into(), force: false, accept_loss };
    match node.operate(order).await.unwrap() {
        Report::Removal(removal) => *removal,
        other => panic!("{other:?}"),
    }
}

async fn removal(node: &Node, name: Option<&str>) -> Vec<Removal> {
    match node.operate(Order::Removals { node: name.map(str::to_owned) }).await.unwrap() {
        Report::Removals(all) => all,
        other => panic!("{other:?}"),
    }
}

fn one_copy() -> VolumeOptions {
    VolumeOptions { policy: Some(VolumePolicy { class: Class::One, ..lazy() }), ..VolumeOptions::default() }
}

/// A node that joins and that nobody reaches holds nothing, no write waits for it, and everybody says so; once it is reached it counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_counts_once_another_one_has_dialled_it() {
    let mut cluster = Cluster::new(1, lazy()).await;
    put(cluster.node(0), "before", b"before").await;
    let at = cluster.join_unreached(lazy()).await;
    let first = cluster.node(0).clone();
    cluster.until("it is known", async || state(&first, "n1").await.is_some()).await;
    for seed in 0..5 {
        let receipt = put(&first, &format!("f/{seed}"), &pattern(seed, 50_000)).await;
        assert_eq!(receipt.copies, 1, "no write waits for it: {receipt:?}");
    }
    cluster
        .until("the others say so", async || state(&first, "n1").await.as_deref() == Some("unreachable"))
        .await;
    let words = first.status().await.unwrap().words.join("\n");
    assert!(words.contains("n1 cannot be reached at ") && words.contains(" by n0 "), "{words}");
    let own = cluster.node(at).clone();
    cluster.until("it says so itself", async || own.members().unreachable().len() == 1).await;
    assert_eq!(own.members().unreachable()[0].by, "n0");
    // What it writes itself is with somebody whom others reach.
    let receipt = put(&own, "own", &pattern(9, 50_000)).await;
    assert!(nodes_of(&receipt).contains(&first.id().to_string()), "{receipt:?}");

    cluster.plug_in(at);
    cluster.until("it counts", async || state(&first, "n1").await.as_deref() == Some("up")).await;
    assert_eq!(first.members().unreachable(), []);
    assert_eq!(put(&first, "after", b"after").await.copies, 2);
    let raised = async || first.receipt("data", &key("before")).await.unwrap().copies == 2;
    cluster.until("older files get their copies", raised).await;
    cluster.stop().await;
}

/// A live node is emptied, its rows end, it learns that its boot is over, and it cannot start again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_node_is_emptied_and_removed() {
    let mut cluster = Cluster::new(3, lazy()).await;
    cluster.node(0).volume_create("one", one_copy()).await.unwrap();
    for seed in 0..9u64 {
        put(cluster.node((seed % 3) as usize), &format!("f/{seed}"), &pattern(seed, 60_000)).await;
    }
    put_if(cluster.node(2), "one", "lonely", b"lonely", Condition::default()).await.unwrap();
    let lost = cluster.node(2).lost();
    let asked = cluster.node(0).clone();
    let told = remove(&asked, "n2", false).await;
    assert!(told.step == "evacuating" && told.files_left > 0 && told.lost_files == 1, "{told:?}");
    // Nobody has to ask again: the nodes carry it on.
    let step = async || removal(&asked, Some("n2")).await.first().map(|told| told.step.clone());
    assert!(["evacuating", "removed"].contains(&step().await.unwrap().as_str()));
    cluster.until("it is removed", async || step().await.as_deref() == Some("removed")).await;
    assert_eq!(removal(&asked, None).await, []);
    let gone = cluster.nodes[2].clone().unwrap();
    cluster.until("it knows", async || *lost.borrow() == Some(Lost::Removed)).await;
    assert_eq!(nodes(&asked).await.len(), 2);
    for table in [&b"M"[..], b"S", b"D"] {
        assert_eq!(cluster.rows(table).await, 2, "rows of {table:?}");
    }
    // It cannot write any more, and what it held is with the others.
    let late = put_if(&gone, "data", "late", b"late", Condition::default()).await;
    assert!(late.is_err(), "{late:?}");
    cluster.lose(2).stop().await;
    drop(gone);
    for seed in 0..9u64 {
        assert!(get(cluster.node(1), &format!("f/{seed}")).await.unwrap() == pattern(seed, 60_000), "{seed}");
        let receipt = asked.receipt("data", &key(&format!("f/{seed}"))).await.unwrap();
        assert_eq!(receipt.copies, 2, "{receipt:?}");
    }
    assert_eq!(get_from(cluster.node(1), "one", "lonely").await.unwrap(), b"lonely");
    let refused = cluster.start_refused(2).await;
    assert_eq!(refused.kind, ErrorKind::Denied);
    assert!(refused.message.contains("was removed") && refused.message.contains("stoker join"), "{refused}");
    // Asked again, it is what was wanted.
    assert_eq!(remove(&asked, "n2", false).await.step, "removed");
    let unknown = Order::NodeRemove { node: "n9".into(), force: false, accept_loss: false };
    assert_eq!(asked.operate(unknown).await.unwrap_err().kind, ErrorKind::NotFound);
    cluster.stop().await;
}

/// A lost node goes once the others have made up for it; what nobody else has is named, and has to be accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_removed_with_what_is_lost_named() {
    let mut cluster = Cluster::new(3, lazy()).await;
    cluster.node(0).volume_create("one", one_copy()).await.unwrap();
    for seed in 0..6u64 {
        put(cluster.node((seed % 3) as usize), &format!("f/{seed}"), &pattern(seed, 60_000)).await;
    }
    put_if(cluster.node(2), "one", "lonely", &pattern(7, 1_000), Condition::default()).await.unwrap();
    let gone = cluster.lose(2);
    let asked = cluster.node(0).clone();
    let told = remove(&asked, "n2", false).await;
    assert_eq!((told.step.as_str(), told.trouble.is_some()), ("waiting", true), "{told:?}");
    assert_eq!(removal(&asked, None).await, [told]);
    asked.members().declare_down(gone.id(), Duration::ZERO).await.unwrap();
    let step = async || removal(&asked, Some("n2")).await[0].step.clone();
    cluster.until("the rest is protected", async || step().await == "loss").await;
    let told = remove(&asked, "n2", false).await;
    assert_eq!((told.files_left, told.lost_files, told.lost_bytes), (1, 1, 1_000), "{told:?}");
    assert_eq!((told.lost[0].volume.as_str(), told.lost[0].key.as_slice()), ("one", &b"lonely"[..]));
    let told = remove(&asked, "n2", true).await;
    assert_eq!((told.step.as_str(), told.lost_files), ("removed", 1), "{told:?}");
    let other = cluster.node(1).clone();
    cluster.until("everybody knows", async || nodes(&other).await.len() == 2).await;
    for seed in 0..6u64 {
        assert!(get(&other, &format!("f/{seed}")).await.unwrap() == pattern(seed, 60_000), "{seed}");
    }
    assert!(get_from(&other, "one", "lonely").await.is_err());
    let deleted = asked.delete("one", vec![(key("lonely"), Condition::default())]).await;
    assert!(deleted.iter().flatten().all(Result::is_ok), "its name can go: {deleted:?}");
    assert!(cluster.start_refused(2).await.message.contains("was removed"));
    // With the lost one gone for good, what is left counts: two nodes, and after one more one.
    assert_eq!(put(&asked, "now", b"now").await.copies, 2);
    let refused = Order::NodeRemove { node: "n1".into(), force: false, accept_loss: false };
    let refused = asked.operate(refused).await.unwrap_err();
    assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("--force"), "{refused}");
    gone.stop().await;
    cluster.stop().await;
}

/// The last but one goes, and the one that is left commits like one that is alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_nodes_one_is_removed() {
    let mut cluster = Cluster::new(2, lazy()).await;
    put(cluster.node(1), "there", &pattern(1, 70_000)).await;
    let asked = cluster.node(0).clone();
    let order = || Order::NodeRemove { node: "n1".into(), force: true, accept_loss: false };
    let removed = async || match asked.operate(order()).await.unwrap() {
        Report::Removal(removal) => removal.step == "removed",
        other => panic!("{other:?}"),
    };
    cluster.until("it is removed", removed).await;
    cluster.lose(1).stop().await;
    assert_eq!(put(&asked, "alone", b"alone").await.copies, 1);
    assert!(get(&asked, "there").await.unwrap() == pattern(1, 70_000));
    let refused = Order::NodeRemove { node: "n0".into(), force: true, accept_loss: true };
    let refused = asked.operate(refused).await.unwrap_err();
    assert!(refused.message.contains("the only node"), "{refused}");
    cluster.stop().await;
}

/// A removal that is called off goes no further: the node takes copies again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_can_be_called_off() {
    let cluster = Cluster::new(2, lazy()).await;
    let two = VolumePolicy { class: Class::Two, ..lazy() };
    let two = VolumeOptions { policy: Some(two), ..VolumeOptions::default() };
    cluster.node(0).volume_create("two", two).await.unwrap();
    put_if(cluster.node(0), "two", "both", b"both", Condition::default()).await.unwrap();
    let asked = cluster.node(0).clone();
    let order = Order::NodeRemove { node: "n1".into(), force: true, accept_loss: false };
    asked.operate(order).await.unwrap();
    // There is no other node that could take its copy, so it stays as long as nobody calls it off.
    let told = removal(&asked, None).await;
    assert_eq!((told.len(), told[0].step.as_str(), told[0].files_left), (1, "evacuating", 1), "{told:?}");
    assert!(told[0].trouble.as_ref().is_some_and(|why| why.contains("two")), "it says why: {told:?}");
    asked.operate(Order::Rejoin { node: "n1".into() }).await.unwrap();
    assert_eq!(removal(&asked, None).await, []);
    assert_eq!(removal(&asked, Some("n1")).await, []);
    let other = cluster.node(1).clone();
    cluster.until("it takes copies again", async || state(&other, "n1").await.as_deref() == Some("up")).await;
    put_if(&other, "two", "again", b"again", Condition::default()).await.unwrap();
    assert_eq!(nodes(&asked).await.len(), 2);
    cluster.stop().await;
}

/// A new node whose name another one has is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_for_one_node() {
    let mut cluster = Cluster::new(2, lazy()).await;
    let refused = cluster.join_as("n0").await;
    assert_eq!(refused.kind, ErrorKind::Conflict);
    assert!(refused.message.contains("`n0` is taken") && refused.message.contains("--name"), "{refused}");
    assert_eq!(nodes(cluster.node(0)).await.len(), 2);
    cluster.stop().await;
}
