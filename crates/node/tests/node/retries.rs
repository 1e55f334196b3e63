//! Requests of an upload that come twice: parts that a proxy sent late, completions whose answer was lost.

use std::sync::Arc;
use std::time::Duration;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_node::Node;
use stoker_schema::rows::keys;
use stoker_store::{
    Attributes, ChecksumKind, Condition, ErrorKind, Finish, PartChoice, PartSource, Receipt, Store, UploadId,
};

const MIB: usize = 1 << 20;

async fn records(node: &Node) -> u64 {
    node.status().await.unwrap().rings.iter().map(|ring| ring.records).sum()
}

async fn begin(node: &Node, name: &str) -> UploadId {
    node.upload_create("data", &key(name), Attributes::default(), None).await.unwrap().upload
}

async fn part(
    node: &Node,
    name: &str,
    upload: &UploadId,
    number: u32,
    bytes: &[u8],
) -> stoker_store::Result<PartChoice> {
    let mut writer = node.upload_part("data", &key(name), upload, number, Some(bytes.len() as u64)).await?;
    write(&mut writer, bytes).await?;
    let receipt = writer.finish(Finish::default()).await?;
    Ok(PartChoice { number, etag: receipt.etag, checksum: None })
}

async fn complete(
    node: &Node,
    name: &str,
    upload: &UploadId,
    parts: &[PartChoice],
) -> stoker_store::Result<Receipt> {
    let none = (Condition::default(), Finish::default());
    node.upload_complete("data", &key(name), upload, parts.to_vec(), none.0, none.1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_is_answered_again_by_any_node_whatever_became_of_its_file() {
    let mut cluster = Cluster::new(3, lazy()).await;
    let bodies = [pattern(1, 5 * MIB), pattern(2, 1000)];
    let upload = begin(cluster.node(0), "x").await;
    let mut parts = Vec::new();
    for (number, body) in (1..).zip(&bodies) {
        parts.push(part(cluster.node(1), "x", &upload, number, body).await.unwrap());
    }
    let first = complete(cluster.node(2), "x", &upload, &parts).await.unwrap();
    // Nobody heard of it, and the node that did it is gone.
    cluster.lose(2);
    let again = complete(cluster.node(1), "x", &upload, &parts).await.unwrap();
    assert_eq!((&again.etag, again.version, again.size), (&first.etag, first.version, first.size));
    assert_eq!(again.checksums, first.checksums);
    assert_eq!(again.copies, 2);
    put(cluster.node(0), "x", b"newer").await;
    for node in [0, 1] {
        let again = complete(cluster.node(node), "x", &upload, &parts).await.unwrap();
        assert_eq!((&again.etag, again.version, again.copies), (&first.etag, first.version, 0));
        assert_eq!(again.checksums, first.checksums);
    }
    assert_eq!(get(cluster.node(1), "x").await.unwrap(), b"newer");
    delete(cluster.node(1), "x").await.unwrap();
    assert_eq!(complete(cluster.node(0), "x", &upload, &parts).await.unwrap().etag, first.etag);
    assert_eq!(get(cluster.node(0), "x").await.unwrap_err().kind, ErrorKind::NotFound);
    // Another key never had that upload, and a part of it comes too late.
    assert_eq!(complete(cluster.node(0), "y", &upload, &parts).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(part(cluster.node(0), "x", &upload, 1, b"1").await.unwrap_err().kind, ErrorKind::NotFound);
    for table in [keys::COMPLETED, keys::ANSWERS] {
        assert_eq!(cluster.rows(table).await, 1, "one row of each table for an upload");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_that_come_again_while_their_upload_is_completed_harm_nothing() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for round in 0..20u64 {
        let name = format!("x/{round}");
        let upload = begin(&node, &name).await;
        let bodies: Arc<Vec<Vec<u8>>> =
            Arc::new(vec![pattern(round, 5 * MIB), pattern(100 + round, 70_000 + round as usize)]);
        let mut parts = Vec::new();
        for (number, body) in (1..).zip(bodies.iter()) {
            parts.push(part(&node, &name, &upload, number, body).await.unwrap());
        }
        // The same parts once more, from a proxy that kept them back, until the upload is gone.
        let late = {
            let (node, name, upload, bodies) = (node.clone(), name.clone(), upload.clone(), bodies.clone());
            tokio::spawn(async move {
                loop {
                    if part(&node, &name, &upload, 2, &bodies[1]).await.is_err() {
                        return;
                    }
                }
            })
        };
        complete(&node, &name, &upload, &parts).await.unwrap();
        late.await.unwrap();
        assert!(get(&node, &name).await.unwrap() == bodies.concat(), "{name}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_bytes_are_an_equal_part_however_they_came() {
    let mut cluster = Cluster::new(2, lazy()).await;
    let body = pattern(7, 20 * MIB + 5);
    put(cluster.node(0), "source", &body).await;
    let upload = begin(cluster.node(0), "x").await;
    let first = part(cluster.node(0), "x", &upload, 1, &body).await.unwrap();
    assert_eq!(part(cluster.node(1), "x", &upload, 1, &body).await.unwrap(), first);
    assert_ne!(part(cluster.node(1), "x", &upload, 2, &body[1..]).await.unwrap().etag, first.etag);
    for range in [None, Some((0, body.len() as u64)), Some((3, 9 * MIB as u64)), Some((5, 6))] {
        let mut seen = Vec::new();
        for node in [0, 1, 0] {
            let source = PartSource {
                volume: "data".into(),
                key: key("source"),
                condition: Condition::default(),
                range,
            };
            let node = cluster.node(node);
            let receipt = node.upload_part_copy("data", &key("x"), &upload, 3, source).await.unwrap();
            seen.push(receipt.etag);
        }
        assert!(seen.iter().all(|etag| *etag == seen[0]), "{range:?}: {seen:?}");
    }
    // A part can be looked at before it becomes a file.
    let open = cluster.node(1).upload_part_open("data", &key("x"), &upload, 1).await.unwrap();
    assert_eq!(open.info().etag, first.etag);
    assert!(read_all(open.as_ref()).await.unwrap() == body);
    let none = cluster.node(1).upload_part_open("data", &key("x"), &upload, 9).await;
    assert_eq!(none.err().unwrap().kind, ErrorKind::Invalid);
    cluster.lose(0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_comes_again_takes_no_room() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let body = pattern(3, 5 * MIB);
    let upload = begin(&node, "x").await;
    let first = part(&node, "x", &upload, 1, &body).await.unwrap();
    let before = records(&node).await;
    for _ in 0..5 {
        assert_eq!(part(&node, "x", &upload, 1, &body).await.unwrap(), first);
    }
    for _ in 0..1_500 {
        if records(&node).await == before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(records(&node).await, before, "its chunks are gone again");
    complete(&node, "x", &upload, &[first]).await.unwrap();
    assert!(get(&node, "x").await.unwrap() == body);
    let node = home.restart(node).await;
    assert!(get(&node, "x").await.unwrap() == body);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_upload_says_of_its_checksum_is_kept() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let info =
        node.upload_create_full("data", &key("x"), Attributes::default(), ChecksumKind::Crc32).await.unwrap();
    assert!(info.is_full);
    let plain = begin(&node, "y").await;
    let node = home.restart(node).await;
    let page = node.upload_parts("data", &key("x"), &info.upload, 0, 10).await.unwrap();
    assert!(page.upload.is_full && page.upload.checksum == Some(ChecksumKind::Crc32));
    assert!(!node.upload_parts("data", &key("y"), &plain, 0, 10).await.unwrap().upload.is_full);
    let all = node.uploads("data", b"", None, 10).await.unwrap().uploads;
    assert_eq!(all.iter().map(|upload| upload.is_full).collect::<Vec<_>>(), [true, false]);
    node.stop().await;
}
