//! Drives that are not where they were, and records that are not on their drives: both are told, and nothing takes their place.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_catalog::engine::Memory;
use stoker_catalog::{Catalog, Counted};
use stoker_node::{CatalogChoice, Node, NodeOptions};
use stoker_schema::rows::MissingRow;
use stoker_store::{DriveInfo, ErrorKind, Finish, LostFile, Order, Report, Store, VolumeOptions};

async fn drives(node: &Node) -> Vec<DriveInfo> {
    match node.operate(Order::Drives { node: None }).await.unwrap() {
        Report::Drives(drives) => drives,
        other => panic!("{other:?}"),
    }
}

async fn lost(node: &Node) -> Vec<LostFile> {
    match node.operate(Order::Lost).await.unwrap() {
        Report::Lost(lost) => lost,
        other => panic!("{other:?}"),
    }
}

/// Leaves an empty folder where a ring was, as below a mount point.
fn unmount(ring: &Path) -> PathBuf {
    let away = ring.with_extension("away");
    std::fs::rename(ring, &away).unwrap();
    std::fs::create_dir(ring).unwrap();
    away
}

fn mount(ring: &Path, away: &Path) {
    std::fs::remove_dir(ring).expect("nothing was made in it");
    std::fs::rename(away, ring).unwrap();
}

fn content(at: u64) -> Vec<u8> {
    pattern(at, 9 << 20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_that_is_not_mounted_is_missing_and_nothing_is_made_there() {
    let home = Home { drives: 2, ..Home::new(lazy()) };
    let node = home.start().await;
    for at in 0..3 {
        put(&node, &format!("f/{at}"), &content(at)).await;
    }
    let ring = home.dir.path().join("ring1");
    let known = drives(&node).await.into_iter().find(|drive| Path::new(&drive.path) == ring).unwrap();
    node.stop().await;
    drop(node);
    let away = unmount(&ring);
    let node = home.open().await;
    let status = node.status().await.unwrap();
    assert!(!status.ready, "{status:?}");
    let named = |text: &String| text.contains(&known.drive) && text.contains(&ring.display().to_string());
    assert!(status.words.iter().any(named), "{:?}", status.words);
    let told = drives(&node).await.into_iter().find(|drive| drive.drive == known.drive).unwrap();
    assert_eq!((told.state.as_str(), told.undrained_files), ("missing", 3), "{told:?}");
    assert_eq!(lost(&node).await.len(), 3);
    node.stop().await;
    drop(node);
    mount(&ring, &away);
    let node = home.open().await;
    assert!(node.status().await.unwrap().ready);
    for at in 0..3 {
        assert!(get(&node, &format!("f/{at}")).await.unwrap() == content(at), "{at}");
    }
    assert_eq!(lost(&node).await, []);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_start_on_an_empty_folder_in_place_of_its_only_drive() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "f", &content(1)).await;
    let known = drives(&node).await.remove(0);
    node.stop().await;
    drop(node);
    let ring = home.dir.path().join("ring0");
    let away = unmount(&ring);
    let refused = Node::open(home.options()).await.err().expect("its drive is missing");
    for part in [known.drive.as_str(), &ring.display().to_string(), "--new-drive", "Mount"] {
        assert!(refused.message.contains(part), "{refused}");
    }
    mount(&ring, &away);
    let node = home.open().await;
    assert!(get(&node, "f").await.unwrap() == content(1));
    node.stop().await;
    drop(node);
    // Who means it gets a new one, and is told what that lost.
    unmount(&ring);
    let node = home.open_with_new_drives().await;
    assert_eq!(lost(&node).await.iter().map(|one| one.key.as_slice()).collect::<Vec<_>>(), [b"f".as_slice()]);
    put(&node, "g", &content(2)).await;
    let node = home.restart(node).await;
    assert!(get(&node, "g").await.unwrap() == content(2));
    node.stop().await;
}

/// The segment files of a ring that hold records.
fn used_segments(ring: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(ring).unwrap().map(|entry| entry.unwrap().path());
    let holds = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_segment = name.starts_with("segment-") && !name.contains('.');
        let mut front = Vec::new();
        std::fs::File::open(path).unwrap().take(1 << 20).read_to_end(&mut front).unwrap();
        is_segment && front.chunks(64).any(|bytes| bytes.starts_with(b"STOKERRC"))
    };
    let mut used: Vec<PathBuf> = files.filter(holds).collect();
    used.sort();
    used
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_segment_file_is_made_up_for_before_the_home_goes() {
    let mut cluster = Cluster::with_drives(&["", "", ""], 1, lazy()).await;
    let receipt = put(cluster.node(0), "f", &content(7)).await;
    let second = (1..3)
        .find(|at| receipt.holders.iter().any(|one| one.node == cluster.node(*at).id().to_string()))
        .unwrap();
    let stopped = cluster.lose(second);
    stopped.stop().await;
    drop(stopped);
    for path in used_segments(&cluster.folder(second).join("ring0")) {
        std::fs::remove_file(path).unwrap();
    }
    cluster.start(second).await;
    let is_whole = async || {
        let explained = cluster.node(second).explain("data", &key("f")).await.unwrap();
        explained.chunks_local == explained.chunks && explained.receipt.copies == 2
    };
    cluster.until("the copy is back", is_whole).await;
    assert_eq!(lost(cluster.node(second)).await, []);
    let home = cluster.lose(0);
    home.stop().await;
    drop(home);
    assert!(get(cluster.node(second), "f").await.unwrap() == content(7));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_lacks_more_chunks_than_a_row_has_room_for_does_not_count_until_all_are_back() {
    const CHUNK: u32 = 4096;
    let homes = (0..2).map(|_| Home { chunk_bytes: CHUNK, ..Home::new(lazy()) }).collect();
    let mut cluster = Cluster::of(homes, &["", ""]);
    cluster.start_all().await;
    let bytes = pattern(8, CHUNK as usize * (MissingRow::CHUNKS_MAX + 20));
    assert_eq!(put(cluster.node(0), "f", &bytes).await.copies, 2);
    let stopped = cluster.lose(1);
    stopped.stop().await;
    drop(stopped);
    for path in used_segments(&cluster.folder(1).join("ring0")) {
        std::fs::remove_file(path).unwrap();
    }
    cluster.start(1).await;
    let explained = async || cluster.node(1).explain("data", &key("f")).await.unwrap();
    let first = explained().await;
    assert_eq!((first.receipt.copies, first.chunks_local), (1, 0));
    cluster.until("the copy counts again", async || explained().await.receipt.copies == 2).await;
    let whole = explained().await;
    assert_eq!(whole.chunks_local, whole.chunks, "it counts, and chunks are missing");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_drive_with_nothing_but_parts_of_uploads_is_not_let_go_quietly() {
    let mut cluster = Cluster::with_drives(&[""], 2, lazy()).await;
    let node = cluster.node(0);
    let upload = node.upload_create("data", &key("x"), Default::default(), None).await.unwrap().upload;
    let mut writer = node.upload_part("data", &key("x"), &upload, 1, None).await.unwrap();
    write(&mut writer, &content(5)).await.unwrap();
    let holders = writer.finish(Finish::default()).await.unwrap().holders;
    assert_eq!(holders.len(), 2, "it is on both drives");
    let ring = cluster.folder(0).join("ring1");
    let known = drives(node).await.into_iter().find(|drive| Path::new(&drive.path) == ring).unwrap();
    let stopped = cluster.lose(0);
    stopped.stop().await;
    drop(stopped);
    unmount(&ring);
    cluster.start(0).await;
    let node = cluster.node(0);
    let status = node.status().await.unwrap();
    assert!(!status.ready, "{status:?}");
    let named = |text: &String| text.contains(&known.drive) && text.contains("parts of unfinished uploads");
    assert!(status.words.iter().any(named), "{:?}", status.words);
    let remove = async |force: bool| {
        let (node_name, drive) = ("n0".to_owned(), known.drive.clone());
        node.operate(Order::DriveRemove { node: node_name, drive, force }).await
    };
    let refused = remove(false).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict);
    assert!(refused.message.contains("--force"), "{refused}");
    remove(true).await.unwrap();
    assert!(node.status().await.unwrap().ready);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_asks_for_undrained_files_in_ranges() {
    const FILES: u64 = 300;
    let home = Home::new(lazy());
    let memory: Arc<dyn Catalog> = Arc::new(Memory::new());
    let open = async |catalog: Arc<dyn Catalog>| {
        Node::open(NodeOptions { catalog: CatalogChoice::Given(catalog), ..home.options() }).await.unwrap()
    };
    let node = open(memory.clone()).await;
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    for at in 0..FILES {
        put(&node, &format!("f/{at}"), b"few bytes").await;
    }
    node.stop().await;
    drop(node);
    let counted = Arc::new(Counted::new(memory));
    let calls = counted.calls();
    let node = open(counted).await;
    let reads = calls.reads.load(Ordering::Relaxed);
    assert!(reads < FILES / 2, "{reads} questions for {FILES} files");
    assert!(get(&node, "f/7").await.unwrap() == b"few bytes");
    node.stop().await;
}
