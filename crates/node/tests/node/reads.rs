//! Reads that do not wait for whoever is slow, and copies that are repaired when a read finds them bad.

use crate::harness::cluster::{Cluster, nodes_of};
use crate::harness::*;
use stoker_node::Body;
use stoker_store::{Class, Condition, ErrorKind, Receipt, Store, VolumeOptions, VolumePolicy};

/// Puts files through the first node until one of them has its copy with the node `at`.
async fn put_on(cluster: &Cluster, at: usize, name: &str, bytes: &[u8]) -> Receipt {
    let id = cluster.node(at).id().to_string();
    for _ in 0..200 {
        let receipt = put(cluster.node(0), name, bytes).await;
        if nodes_of(&receipt).contains(&id) {
            return receipt;
        }
    }
    panic!("no copy ever goes to node {at}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_holds_up_no_read() {
    let cluster = Cluster::new(3, lazy()).await;
    let bytes = pattern(1, 200_000);
    put_on(&cluster, 1, "f", &bytes).await;
    let reader = cluster.node(2);
    cluster.stall_next_read(2);
    assert!(get(reader, "f").await.unwrap() == bytes);
    assert!(counter(reader, "read_hedges_total").await >= 1.0);
    assert!(counter(reader, "read_hedges_won_total").await >= 1.0);
    assert!(counter(reader, "source_reads_total").await >= 1.0);
    // The estimates are there to be seen.
    let sources = reader.status().await.unwrap().sources;
    assert!(
        sources.iter().any(|source| source.kind == "peer" && source.large_mean_us.is_some()),
        "{sources:?}"
    );
    // And why that read took longer than others.
    let words = reader.explain("data", &key("f")).await.unwrap().words.join("\n");
    assert!(words.contains("last slow read, ") && words.contains(" was asked first and was late"), "{words}");
    let words = cluster.node(0).explain("data", &key("f")).await.unwrap().words.join("\n");
    assert!(!words.contains("slow"), "nobody read it there: {words}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_goes_to_the_lake_itself_when_its_peers_hang() {
    let cluster = Cluster::new(3, lazy()).await;
    let bytes = pattern(3, 300_000);
    put_on(&cluster, 1, "f", &bytes).await;
    cluster.node(0).drain("data", b"f").await.unwrap();
    drained(cluster.node(0), "f").await;
    cluster.stall(0);
    cluster.stall(1);
    assert!(get(cluster.node(2), "f").await.unwrap() == bytes);
    cluster.release();
    let lake = cluster.node(2).status().await.unwrap().sources.into_iter().find(|one| one.kind == "lake");
    assert_eq!(lake.unwrap().reads, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_copy_is_replaced_by_the_read_that_finds_it() {
    let mut cluster = Cluster::new(2, lazy()).await;
    let bytes = pattern(4, 700_000);
    put(cluster.node(0), "f", &bytes).await;
    damage(cluster.folder(0), &bytes);
    assert!(get(cluster.node(0), "f").await.unwrap() == bytes);
    let replaced = async || counter(cluster.node(0), "read_repairs_total").await == 1.0;
    cluster.until("the bad copy is replaced", replaced).await;
    // Without its peer and without memory of it, the node has sound bytes, and still keeps them.
    let node = cluster.lose(0);
    node.stop().await;
    drop(node);
    cluster.lose(1);
    cluster.start(0).await;
    assert!(get(cluster.node(0), "f").await.unwrap() == bytes);
    assert!(cluster.node(0).status().await.unwrap().rings[0].keep_bytes >= 700_000);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_repairs_what_a_peer_found_bad_with_it() {
    let cluster = Cluster::new(3, lazy()).await;
    let bytes = pattern(5, 700_000);
    put_on(&cluster, 1, "f", &bytes).await;
    damage(cluster.folder(0), &bytes);
    // The sound copy is held back until the bad one was read.
    cluster.stall(1);
    let reader = cluster.node(2).clone();
    let read = tokio::spawn(async move { get(&reader, "f").await });
    let found = async || counter(cluster.node(0), "ring_corrupt_blocks_total").await >= 1.0;
    cluster.until("the damage is found", found).await;
    cluster.release();
    assert!(read.await.unwrap().unwrap() == bytes);
    let replaced = async || counter(cluster.node(0), "read_repairs_total").await == 1.0;
    cluster.until("the bad copy is replaced", replaced).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_copy_of_what_the_lake_has_is_dropped() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let bytes = pattern(6, 700_000);
    put(&node, "f", &bytes).await;
    node.drain("data", b"f").await.unwrap();
    drained(&node, "f").await;
    damage(home.dir.path(), &bytes);
    assert!(get(&node, "f").await.unwrap() == bytes);
    for _ in 0..1_000 {
        if counter(&node, "read_repair_dropped_total").await == 1.0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(counter(&node, "read_repair_dropped_total").await, 1.0);
    assert!(get(&node, "f").await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_bytes_without_another_copy_are_told() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let bytes = pattern(7, 700_000);
    put(&node, "f", &bytes).await;
    damage(home.dir.path(), &bytes);
    assert_eq!(get(&node, "f").await.unwrap_err().kind, ErrorKind::Corrupt);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_at_home_is_brought_back() {
    let mut cluster = Cluster::new(2, lazy()).await;
    let bytes = pattern(8, 700_000);
    let receipt = put(cluster.node(0), "f", &bytes).await;
    // A peer that is wrong says that nothing refers to the chunk: form 1, message 6, one chunk, its version, index 0.
    let forget = [&[1, 6, 1][..], &receipt.version.0, &[0]].concat();
    cluster.node(0).serve_peer(cluster.node(1).id(), &forget, Body::None).await;
    let records = cluster.node(0).explain("data", &key("f")).await.unwrap().chunks_local;
    assert_eq!(records, 0);
    assert!(get(cluster.node(0), "f").await.unwrap() == bytes);
    let replaced = async || counter(cluster.node(0), "read_repairs_total").await == 1.0;
    cluster.until("the chunk is back", replaced).await;
    cluster.lose(1);
    assert_eq!(cluster.node(0).explain("data", &key("f")).await.unwrap().chunks_local, 1);
    assert!(get(cluster.node(0), "f").await.unwrap() == bytes);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wanted_together_comes_together() {
    const PIECE: usize = 512 << 10;
    let cluster = Cluster::new(2, lazy()).await;
    let policy = VolumePolicy { class: Class::One, ..lazy() };
    let options = VolumeOptions { policy: Some(policy), ..VolumeOptions::default() };
    cluster.node(0).volume_create("one", options).await.unwrap();
    let bytes = pattern(9, 3 * PIECE + 70_000);
    put_if(cluster.node(0), "one", "f", &bytes, Condition::default()).await.unwrap();
    // From a drive here and from a peer; the second time it may be kept, from the third on it comes from memory.
    for node in [cluster.node(0), cluster.node(1)] {
        let file = node.open("one", &key("f")).await.unwrap();
        let read = async |offset: usize, len: usize, comes: usize| {
            let got = file.read(offset as u64, len).await.unwrap();
            assert!(got[..] == bytes[offset..offset + got.len()], "{len} bytes at {offset}");
            assert_eq!(got.len(), comes, "{len} bytes at {offset}");
        };
        read(0, 2 * PIECE, 2 * PIECE).await;
        read(2 * PIECE, 4 * PIECE, PIECE + 70_000).await;
        // Not for a few bytes of the next piece, and not from the middle of one.
        read(PIECE, PIECE + 100, PIECE).await;
        read(PIECE + 100, 2 * PIECE, PIECE - 100).await;
        for _ in 0..3 {
            for piece in 0..3 {
                read(piece * PIECE, PIECE, PIECE).await;
            }
            read(3 * PIECE, PIECE, 70_000).await;
        }
        assert!(counter(node, "cache_hits_total").await > 0.0);
        // What is in memory comes at once, without what is behind it.
        read(0, 2 * PIECE, PIECE).await;
    }
    cluster.stop().await;
}
