//! Two cells with one catalog: copies stay inside, reads go everywhere.

use std::collections::HashSet;

use stoker_lake::{Lake, PutOptions};
use stoker_store::{Class, Spread, Store, VolumeOptions, VolumePolicy};

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::*;

const CELLS: [&str; 5] = ["a", "a", "a", "b", "b"];

fn of_cell(cluster: &Cluster, cell: &str) -> HashSet<String> {
    let nodes = cluster.nodes.iter().zip(CELLS).filter(|(_, own)| *own == cell);
    nodes.filter_map(|(node, _)| Some(node.as_ref()?.id().to_string())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_cell_wrote_is_read_from_the_other_before_it_drains() {
    let cluster = Cluster::in_cells(&CELLS, lazy()).await;
    let (a, b) = (of_cell(&cluster, "a"), of_cell(&cluster, "b"));
    for round in 0..10 {
        let (in_a, in_b) = (format!("a{round}"), format!("b{round}"));
        let bytes = pattern(round, 300_000);
        let held = nodes_of(&put(cluster.node(0), &in_a, &bytes).await);
        assert!(held.len() == 2 && held.is_subset(&a), "copies stay in their cell: {held:?}");
        let held = nodes_of(&put(cluster.node(3), &in_b, &bytes).await);
        assert!(held.len() == 2 && held.is_subset(&b), "copies stay in their cell: {held:?}");
        for node in cluster.nodes.iter().flatten() {
            assert!(get(node, &in_a).await.unwrap() == bytes);
            assert!(get(node, &in_b).await.unwrap() == bytes);
        }
    }
    // Nothing is in the lake, and people see where the bytes came from.
    assert_eq!(counter(cluster.node(4), "lake_read_bytes_total").await, 0.0);
    let sources = cluster.node(4).status().await.unwrap().sources;
    assert!(sources.iter().any(|one| one.name.ends_with(" of cell a") && one.reads > 0), "{sources:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_leaves_its_cell_only_when_it_must() {
    let mut cluster = Cluster::in_cells(&CELLS, lazy()).await;
    let (a, b) = (of_cell(&cluster, "a"), of_cell(&cluster, "b"));
    let home = cluster.node(3).id().to_string();

    // A cell of two that demands two switches finds them, here or elsewhere, and never does with less.
    let apart = VolumePolicy { spread: Spread::Tor, class: Class::Three, ..lazy() };
    cluster.node(3).volume_set("data", apart).await.unwrap();
    put_if(cluster.node(3), "data", "three", b"three", Default::default()).await.unwrap_err();
    cluster.node(3).volume_set("data", lazy()).await.unwrap();

    // Its only neighbour is silent: better in another cell than once, and the receipt says so.
    let lost = cluster.lose(4);
    let receipt = put(cluster.node(3), "far", b"far").await;
    let held = nodes_of(&receipt);
    assert!(held.contains(&home) && held.intersection(&a).count() == 1, "{held:?}");

    // What a lost node held is taken over within its cell.
    let inside = put(cluster.node(0), "inside", &pattern(3, 100_000)).await;
    drop(lost);
    let gone = cluster.nodes[..3]
        .iter()
        .flatten()
        .position(|node| {
            nodes_of(&inside).contains(&node.id().to_string()) && node.id() != cluster.node(0).id()
        })
        .unwrap();
    let lost = cluster.lose(gone);
    cluster.node(0).members().declare_down(lost.id(), std::time::Duration::ZERO).await.unwrap();
    let node = cluster.node(0);
    let whole = async || {
        let receipt = node.receipt("data", &key("inside")).await.unwrap();
        let held = nodes_of(&receipt);
        held.len() == 2 && held.is_subset(&a) && !held.contains(&lost.id().to_string())
    };
    cluster.until("both copies are in the cell again", whole).await;
    assert!(b.contains(&home));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_chunk_comes_from_the_lake_once_for_all_cells() {
    let cluster = Cluster::in_cells(&CELLS, lazy()).await;
    let bytes = pattern(9, 9_000_000);
    cluster.lake.put(b"f", vec![bytes.clone().into()], PutOptions::default()).await.unwrap();
    cluster.node(0).volume_create("cold", VolumeOptions::default()).await.unwrap();
    for node in cluster.nodes.iter().flatten() {
        let listed = async || get_from(node, "cold", "f").await.is_ok_and(|got| got == bytes);
        cluster.until("the file is known and whole", listed).await;
    }
    let mut from_lake = 0.0;
    for node in cluster.nodes.iter().flatten() {
        from_lake += counter(node, "lake_read_bytes_total").await;
    }
    assert_eq!(from_lake, bytes.len() as f64, "one lake request for each chunk");
    cluster.stop().await;
}
