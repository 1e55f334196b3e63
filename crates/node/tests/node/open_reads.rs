//! Files that stay open (R11): an open read is a reference, whatever becomes of its chunks, its name and its object.

use std::sync::Arc;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Attributes, Class, Condition, CopyRequest, ErrorKind, File, RenameMode, Store, VolumeOptions,
    VolumePolicy,
};

const MIB: usize = 1 << 20;
const LEN: usize = 6 * MIB + 11;

fn small_home() -> Home {
    Home { ring_bytes: 64 << 20, ..Home::new(eager()) }
}

async fn start(home: &Home) -> Arc<Node> {
    let mut options = home.options();
    options.chunk_bytes = MIB as u32;
    let node = Node::open(options).await.unwrap();
    match node.volume_create("data", VolumeOptions::default()).await {
        Ok(_) => {}
        Err(fault) => assert_eq!(fault.subject, stoker_store::Subject::Volume, "{fault}"),
    }
    node
}

async fn open(node: &Node, name: &str) -> Box<dyn File> {
    node.open("data", &key(name)).await.unwrap()
}

/// Drains half as much again as the ring holds, so that nothing is left of what was clean before.
async fn go_round(node: &Node, seed: u64) {
    for number in 0..16 {
        let name = format!("filler/{seed}/{number}");
        put(node, &name, &pattern(seed * 100 + number, 8 * MIB)).await;
        drained(node, &name).await;
    }
}

/// Objects that are kept for open reads.
fn kept(home: &Home) -> Vec<String> {
    tree(&home.lake().join("data/.stoker-n.stoker-open"))
}

async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    for _ in 0..600 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("not within 30 s: {what}");
}

async fn is_evicted(node: &Node, name: &str) -> bool {
    node.explain("data", &key(name)).await.unwrap().chunks_local == 0
}

/// Writes until a file has left the ring: which segments go first is for the ring to say.
async fn evict(node: &Node, name: &str) {
    for seed in 50..56 {
        go_round(node, seed).await;
        if is_evicted(node, name).await {
            return;
        }
    }
    panic!("{name} stays in the ring");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_opened_before_its_drain_is_read_after_its_eviction() {
    let home = small_home();
    let node = start(&home).await;
    let bytes = pattern(1, LEN);
    put(&node, "shard", &bytes).await;
    let file = open(&node, "shard").await;
    drained(&node, "shard").await;
    evict(&node, "shard").await;
    assert!(read_all(file.as_ref()).await.unwrap() == bytes);
    // A second one beside it, and the first again.
    assert!(get(&node, "shard").await.unwrap() == bytes);
    assert!(read_all(file.as_ref()).await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_version_is_read_after_it_was_replaced_drained_and_evicted() {
    let home = small_home();
    let node = start(&home).await;
    let old = pattern(1, LEN);
    put(&node, "shard", &old).await;
    // One knows only the rings, the other the object.
    let dirty = open(&node, "shard").await;
    drained(&node, "shard").await;
    let clean = open(&node, "shard").await;
    evict(&node, "shard").await;
    for round in 2..4 {
        let new = pattern(round, LEN - 5);
        put(&node, "shard", &new).await;
        // The new version is not held up by those who read the old one.
        drained(&node, "shard").await;
        assert!(std::fs::read(home.lake().join("data/shard")).unwrap() == new);
        go_round(&node, round).await;
        assert!(read_all(dirty.as_ref()).await.unwrap() == old);
        assert!(read_all(clean.as_ref()).await.unwrap() == old);
        assert!(get(&node, "shard").await.unwrap() == new);
        assert_eq!(names(&node, ".stoker", None).await, [""; 0]);
    }
    assert_eq!(kept(&home).len(), 1);
    drop((dirty, clean));
    until("nothing is kept", || async { kept(&home).is_empty() }).await;
    node.stop().await;
}

/// The copy that is made for readers of what rotted is as rotten: they are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_rotted_before_it_was_kept_is_never_returned() {
    let home = small_home();
    let node = start(&home).await;
    put(&node, "shard", &pattern(1, LEN)).await;
    let file = open(&node, "shard").await;
    drained(&node, "shard").await;
    evict(&node, "shard").await;
    crate::rotted::flip(&home.lake().join("data/shard"), 3 * MIB + 7);
    put(&node, "shard", &pattern(2, LEN)).await;
    drained(&node, "shard").await;
    let read = read_all(file.as_ref()).await;
    assert_eq!(read.unwrap_err().kind, ErrorKind::Corrupt);
    drop(file);
    node.stop().await;
}

/// Where copies for readers lie nobody can put anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_the_cluster_are_nobody_elses() {
    let home = small_home();
    let node = start(&home).await;
    let receipt = put(&node, "shard", &pattern(1, LEN)).await;
    for own in [format!(".stoker-open/{}", receipt.version), ".stoker-alone/x".to_owned()] {
        let refused = |done: stoker_store::Result<()>| {
            let fault = done.expect_err(&own);
            assert!(
                fault.kind == ErrorKind::Invalid && fault.message.contains("the cluster's own"),
                "{fault}"
            );
        };
        refused(put_if(&node, "data", &own, b"x", Condition::default()).await.map(|_| ()));
        refused(node.upload_create("data", &key(&own), Attributes::default(), None).await.map(|_| ()));
        refused(node.rename("data", &key("shard"), &key(&own), RenameMode::Replace).await);
        refused(node.link("data", &key("shard"), &key(&own)).await.map(|_| ()));
        let request = CopyRequest {
            from_volume: "data".into(),
            from: key("shard"),
            from_condition: Condition::default(),
            to_volume: "data".into(),
            to: key(&own),
            condition: Condition::default(),
            attributes: None,
        };
        refused(node.copy(request).await.map(|_| ()));
    }
    put(&node, "dir/a", b"x").await;
    let moved = node.rename("data", &key("dir/"), &key(".stoker-open/"), RenameMode::Replace).await;
    assert!(moved.unwrap_err().message.contains("the cluster's own"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_version_is_read_after_it_was_deleted_and_evicted() {
    let home = small_home();
    let node = start(&home).await;
    let (old, new) = (pattern(1, LEN), pattern(2, LEN));
    put(&node, "shard", &old).await;
    let file = open(&node, "shard").await;
    drained(&node, "shard").await;
    go_round(&node, 1).await;
    assert!(delete(&node, "shard").await.unwrap());
    go_round(&node, 2).await;
    assert!(read_all(file.as_ref()).await.unwrap() == old);
    assert!(node.stat("data", &key("shard")).await.is_err());
    // The name again, and then gone for good.
    put(&node, "shard", &new).await;
    drained(&node, "shard").await;
    assert!(delete(&node, "shard").await.unwrap());
    go_round(&node, 3).await;
    assert!(read_all(file.as_ref()).await.unwrap() == old);
    drop(file);
    until("nothing is kept", || async { kept(&home).is_empty() }).await;
    until("the object is gone", || async { !home.lake().join("data/shard").exists() }).await;
    node.stop().await;
}

/// A delete that waited for readers came to nothing, because the name was used again. The next one under that name waits for its own
/// readers, and not for those of the version before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_delete_waits_for_readers_of_what_it_deletes() {
    let home = small_home();
    let node = start(&home).await;
    let mut readers = Vec::new();
    for round in 1..4 {
        let bytes = pattern(round, LEN);
        put(&node, "shard", &bytes).await;
        drained(&node, "shard").await;
        let reader = open(&node, "shard").await;
        // Whoever read the version before is gone.
        readers.clear();
        delete(&node, "shard").await.unwrap();
        go_round(&node, round).await;
        assert!(read_all(reader.as_ref()).await.unwrap() == bytes, "round {round}");
        readers.push(reader);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_version_follows_its_renames() {
    let home = small_home();
    let node = start(&home).await;
    let bytes = pattern(1, LEN);
    put(&node, "dir/shard", &bytes).await;
    let file = open(&node, "dir/shard").await;
    drained(&node, "dir/shard").await;
    go_round(&node, 1).await;
    assert!(file.read(0, 10).await.unwrap() == bytes[..10]);
    node.rename("data", &key("dir/"), &key("moved/"), RenameMode::Replace).await.unwrap();
    node.rename("data", &key("moved/shard"), &key("last"), RenameMode::Replace).await.unwrap();
    // A reader does not keep the object under the name that it had.
    let lake = home.lake().join("data");
    until("the object moved", || async {
        lake.join("last").exists() && !lake.join("dir/shard").exists() && !lake.join("moved/shard").exists()
    })
    .await;
    assert!(read_all(file.as_ref()).await.unwrap() == bytes);
    // Another file takes the last name.
    put(&node, "other", b"other").await;
    node.rename("data", &key("other"), &key("last"), RenameMode::Replace).await.unwrap();
    until("it is replaced", || async { std::fs::read(lake.join("last")).unwrap() == b"other" }).await;
    go_round(&node, 2).await;
    assert!(read_all(file.as_ref()).await.unwrap() == bytes);
    node.stop().await;
}

/// What is kept for open reads belongs to a boot: after it nobody reads, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_for_open_reads_ends_with_the_node() {
    let home = small_home();
    let node = start(&home).await;
    put(&node, "shard", &pattern(1, LEN)).await;
    drained(&node, "shard").await;
    let file = open(&node, "shard").await;
    put(&node, "shard", b"new").await;
    drained(&node, "shard").await;
    assert_eq!(kept(&home).len(), 1);
    drop(file);
    let node = home.restart(node).await;
    until("nothing is kept", || async { kept(&home).is_empty() }).await;
    assert_eq!(get(&node, "shard").await.unwrap(), b"new");
    node.stop().await;
}

/// Readers of other nodes count, and those of a node that does not answer may be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_node_reads_is_kept_until_it_is_closed() {
    let mut cluster = Cluster::new(2, eager()).await;
    let bytes = pattern(1, LEN);
    let version = put(cluster.node(0), "shard", &bytes).await.version;
    let file = open(cluster.node(1), "shard").await;
    drained(cluster.node(0), "shard").await;
    let kept = |version| {
        let objects = cluster.lake.objects();
        objects.get(format!(".stoker-open/{version}").as_bytes()).map(|object| object.body == bytes)
    };
    let second = put(cluster.node(0), "shard", b"new").await.version;
    drained(cluster.node(0), "shard").await;
    assert_eq!(kept(version), Some(true));
    assert!(read_all(file.as_ref()).await.unwrap() == bytes);
    drop(file);
    cluster.until("nothing is kept", async || kept(version).is_none()).await;
    // Nobody has the second one open, but the other node cannot be asked.
    let one = VolumePolicy { class: Class::One, ..eager() };
    cluster.node(0).volume_set("data", one).await.unwrap();
    let lost = cluster.lose(1);
    put(cluster.node(0), "shard", b"last").await;
    drained(cluster.node(0), "shard").await;
    let is_kept =
        |cluster: &Cluster| cluster.lake.objects().contains_key(format!(".stoker-open/{second}").as_bytes());
    assert!(is_kept(&cluster));
    cluster.heal(1, lost);
    cluster.until("nothing is kept", async || !is_kept(&cluster)).await;
    assert_eq!(get(cluster.node(1), "shard").await.unwrap(), b"last");
    cluster.stop().await;
}
