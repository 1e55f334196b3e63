//! Bytes that a lake lost a bit of: never returned, never kept, told.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use stoker_node::Node;
use stoker_store::{Class, ErrorKind, RenameMode, Store, VolumeOptions, VolumePolicy};

use crate::harness::cluster::Cluster;
use crate::harness::*;

const MIB: usize = 1 << 20;

/// Flips a bit of a file; it looks as before otherwise.
pub fn flip(path: &Path, at: usize) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let times = std::fs::FileTimes::new().set_modified(file.metadata().unwrap().modified().unwrap());
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at as u64).unwrap();
    file.set_times(times).unwrap();
    file.sync_all().unwrap();
}

fn lake_file(home: &Home, name: &str) -> std::path::PathBuf {
    home.lake().join("data").join(name)
}

async fn settled(node: &Arc<Node>) {
    for _ in 0..600 {
        let status = node.status().await.unwrap();
        if status.dirty_files == 0 && status.drains == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("not everything was drained: {:?}", node.status().await.unwrap());
}

/// The node with an empty drive and empty memory: what it has is in the lake.
async fn emptied(home: &Home, node: Arc<Node>) -> Arc<Node> {
    node.stop().await;
    drop(node);
    std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
    home.open_with_new_drives().await
}

async fn read_at(node: &Node, name: &str, at: usize, len: usize) -> stoker_store::Result<Vec<u8>> {
    let file = node.open("data", &key(name)).await?;
    file.read(at as u64, len).await.map(|bytes| bytes.to_vec())
}

/// Nothing gives the bytes at this place, and those of other chunks are right.
async fn is_told(node: &Node, name: &str, bytes: &[u8], at: usize) {
    for (from, len) in [(at, 1), (at - 100, 200), (at / (4 * MIB) * (4 * MIB), 512 << 10)] {
        let fault = read_at(node, name, from, len).await.expect_err(&format!("{name}, {len} at {from}"));
        assert_eq!(fault.kind, ErrorKind::Corrupt, "{name}: {fault}");
        assert!(fault.message.contains(name), "{name}: {fault}");
    }
    assert_eq!(get(node, name).await.unwrap_err().kind, ErrorKind::Corrupt, "{name}");
    assert_eq!(read_at(node, name, 5, 100).await.unwrap(), bytes[5..105], "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_of_a_drained_file_is_never_returned() {
    let home = Home::new(eager());
    let node = home.start().await;
    let (bytes, at) = (pattern(3, 10 * MIB), 5 * MIB + 77);
    for name in ["plain", "renamed-before", "copied", "linked"] {
        put(&node, name, &bytes).await;
    }
    // Parts, of which the lake makes one object.
    let large = pattern(4, 33 * MIB + 5);
    put(&node, "large", &large).await;
    settled(&node).await;
    let renamed = node.rename("data", &key("renamed-before"), &key("renamed"), RenameMode::NoReplace).await;
    renamed.unwrap();
    node.copy(copy_request("copied", "copy")).await.unwrap();
    node.link("data", &key("linked"), &key("link")).await.unwrap();
    append(&node, "copied", b"more").await;
    settled(&node).await;
    for _ in 0..600 {
        if lake_file(&home, "renamed").exists() && !lake_file(&home, "renamed-before").exists() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let node = emptied(&home, node).await;
    let longer = [&bytes[..], b"more"].concat();
    let files =
        [("plain", &bytes), ("renamed", &bytes), ("copied", &longer), ("copy", &bytes), ("link", &bytes)];
    for (name, bytes) in files {
        assert!(read_at(&node, name, at, 9).await.unwrap() == bytes[at..at + 9], "{name}");
    }
    let node = emptied(&home, node).await;
    files.iter().for_each(|(name, _)| flip(&lake_file(&home, name), at));
    flip(&lake_file(&home, "large"), 30 * MIB + 3);
    for (name, bytes) in files {
        is_told(&node, name, bytes, at).await;
    }
    is_told(&node, "large", &large, 30 * MIB + 3).await;
    assert!(read_at(&node, "linked", at, 9).await.unwrap() == bytes[at..at + 9]);
    assert_eq!(node.stage("data", &key("plain")).await.unwrap_err().kind, ErrorKind::Corrupt);
    assert!(counter(&node, "lake_corrupt_reads_total").await >= 6.0);
    // Neither memory nor a drive kept what was bad; whoever puts the object right is believed.
    let node = emptied(&home, node).await;
    flip(&lake_file(&home, "plain"), at);
    assert!(get(&node, "plain").await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_were_there_before_are_known_after_their_first_read() {
    let home = Home::new(eager());
    let node = home.open().await;
    let dir = home.lake().join("data");
    std::fs::create_dir_all(&dir).unwrap();
    let (bytes, at) = (pattern(5, 9 * MIB), 4 * MIB + 900);
    for name in ["read", "unread", "small"] {
        let len = if name == "small" { 5_000 } else { bytes.len() };
        std::fs::write(dir.join(name), &bytes[..len]).unwrap();
    }
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    assert!(get(&node, "read").await.unwrap() == bytes);
    assert!(get(&node, "small").await.unwrap() == bytes[..5_000]);
    let node = emptied(&home, node).await;
    flip(&dir.join("read"), at);
    flip(&dir.join("small"), 4_000);
    is_told(&node, "read", &bytes, at).await;
    assert_eq!(read_at(&node, "small", 1, 10).await.unwrap_err().kind, ErrorKind::Corrupt);
    // Somebody else replaces it: another object, which is believed at first.
    let other = pattern(6, 9 * MIB);
    std::fs::write(dir.join("read"), &other).unwrap();
    let node = emptied(&home, node).await;
    assert!(get(&node, "read").await.unwrap() == other);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lake_lost_comes_back_from_a_copy_on_a_drive() {
    const FILES: usize = 16;
    let mut cluster = Cluster::new(2, VolumePolicy { class: Class::One, ..eager() }).await;
    let names: Vec<String> = (0..FILES).map(|at| format!("f{at}")).collect();
    let contents: Vec<Vec<u8>> = (0..FILES).map(|at| pattern(at as u64, 100_000 + at)).collect();
    for (name, bytes) in names.iter().zip(&contents) {
        put(cluster.node(0), name, bytes).await;
        drained(cluster.node(0), name).await;
        cluster.node(1).stage("data", &key(name)).await.unwrap();
    }
    // The first node loses what it has, and for half of the files it is the one to ask the lake.
    let node = cluster.nodes[0].take().unwrap();
    node.stop().await;
    drop(node);
    std::fs::remove_dir_all(cluster.folder(0).join("ring0")).unwrap();
    cluster.start_with_new_drives(0).await;
    for (name, bytes) in names.iter().zip(&contents) {
        cluster.lake.rot(name.as_bytes(), bytes.len() / 2);
    }
    for (name, bytes) in names.iter().zip(&contents) {
        assert!(get(cluster.node(0), name).await.unwrap() == *bytes, "{name}");
    }
    let found = counter(cluster.node(0), "lake_corrupt_reads_total").await;
    assert!(found >= 1.0, "no file was read from the lake");
    let sound = |at: usize| cluster.lake.objects()[names[at].as_bytes()].body == contents[at];
    cluster
        .until("what was found is right again", async || {
            (0..FILES).filter(|at| sound(*at)).count() as f64 >= found
        })
        .await;
    assert!(counter(cluster.node(0), "lake_repairs_total").await >= 1.0);
    cluster.stop().await;
}
