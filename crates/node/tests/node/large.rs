//! Files larger than the rings: chunks that went to the lake before their file was published, and what becomes of them.

use std::sync::Arc;

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Attributes, Condition, DrainPolicy, EditRequest, ErrorKind, Finish, PartChoice, Piece, Receipt, Result,
    Store, Subject, UploadId, VolumeOptions, VolumePolicy, WriteRequest,
};

const RING: u64 = 32 << 20;
const MIB: usize = 1 << 20;

/// Four times the ring; more when all is tried.
fn large() -> usize {
    let times = if std::env::var_os("STOKER_FULL").is_some() { 16 } else { 4 };
    times * RING as usize
}

fn home(policy: VolumePolicy) -> Home {
    Home { ring_bytes: RING, ..Home::new(policy) }
}

async fn alone(policy: VolumePolicy) -> Cluster {
    Cluster::with_rings(&[""], (1, RING), policy).await
}

/// Rows that say that something is left to do or to keep: intents, attempts, tombstones, spills by version and by volume.
async fn left(cluster: &Cluster) -> [usize; 5] {
    let mut all = [0; 5];
    for (count, table) in all.iter_mut().zip([b"i", b"a", b"t", b"w", b"T"]) {
        *count = cluster.rows(table).await;
    }
    all
}

async fn no_object_is_left(cluster: &Cluster, objects: usize) {
    cluster.until("the lake has no more", async || cluster.lake.objects().len() == objects).await;
    cluster.until("nothing is left to do", async || left(cluster).await == [0; 5]).await;
}

async fn nothing_is_left(cluster: &Cluster, objects: usize) {
    no_object_is_left(cluster, objects).await;
    assert!(cluster.lake.uploads().is_empty(), "{:?}", cluster.lake.uploads());
}

/// Bytes of a file without holding all of them twice.
async fn check(node: &Node, name: &str, bytes: &[u8]) {
    let file = node.open("data", &key(name)).await.unwrap();
    let mut at = 0;
    while at < bytes.len() {
        let piece = file.read(at as u64, 4 << 20).await.unwrap();
        assert!(!piece.is_empty() && piece[..] == bytes[at..at + piece.len()], "{name} at {at}");
        at += piece.len();
    }
    assert!(file.read(at as u64, 1).await.unwrap().is_empty());
}

async fn stream(node: &Node, name: &str, bytes: &[u8]) -> Result<Receipt> {
    let mut writer = node.create("data", &key(name), WriteRequest::default()).await?;
    write(&mut writer, bytes).await?;
    writer.finish(Finish::default()).await
}

async fn part(node: &Node, name: &str, upload: &UploadId, number: u32, bytes: &[u8]) -> Result<String> {
    let size = Some(bytes.len() as u64);
    let mut writer = node.upload_part("data", &key(name), upload, number, size).await?;
    write(&mut writer, bytes).await?;
    Ok(writer.finish(Finish::default()).await?.etag)
}

fn choice(number: u32, etag: String) -> PartChoice {
    PartChoice { number, etag, checksum: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_four_rings_goes_through_and_drains() {
    let home = home(lazy());
    let mut node = home.start().await;
    let bytes = pattern(1, large());
    for (name, size) in [("known", Some(bytes.len() as u64)), ("unknown", None)] {
        let request = WriteRequest { size, ..WriteRequest::default() };
        let mut writer = node.create("data", &key(name), request).await.unwrap();
        write(&mut writer, &bytes[..bytes.len() / 2]).await.unwrap();
        // Small ones go on meanwhile, and nobody sees the large one.
        put(&node, "small", &bytes[..100_000]).await;
        assert_eq!(get(&node, name).await.unwrap_err().kind, ErrorKind::NotFound);
        write(&mut writer, &bytes[bytes.len() / 2..]).await.unwrap();
        writer.finish(Finish::default()).await.unwrap();
        assert!(counter(&node, "spilled_bytes_total").await > RING as f64);
        check(&node, name, &bytes).await;
        check(&node, "small", &bytes[..100_000]).await;
        node = home.restart(node).await;
        check(&node, name, &bytes).await;
        node.drain("data", name.as_bytes()).await.unwrap();
        drained(&node, name).await;
        assert!(std::fs::read(home.lake().join("data").join(name)).unwrap() == bytes);
        check(&node, name, &bytes).await;
        let aside = home.lake().join("data/.stoker-alone");
        for _ in 0..1_000 {
            if std::fs::read_dir(&aside).map_or(0, |entries| entries.count()) == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(std::fs::read_dir(&aside).map_or(0, |entries| entries.count()), 0);
        check(&node, name, &bytes).await;
        delete(&node, name).await.unwrap();
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_in_any_order_become_a_file_larger_than_the_ring() {
    let cluster = alone(lazy()).await;
    let node = cluster.node(0);
    let bytes = pattern(2, 2 * RING as usize + 12_345);
    let parts: Vec<&[u8]> = bytes.chunks(6 * MIB).collect();
    let upload = node.upload_create("data", &key("f"), Attributes::default(), None).await.unwrap().upload;
    let mut choices = Vec::new();
    // One that is not chosen, and one that comes twice.
    part(node, "f", &upload, 99, &bytes[..5 * MIB]).await.unwrap();
    for number in (1..=parts.len() as u32).rev() {
        if number == 2 {
            part(node, "f", &upload, number, &bytes[..7 * MIB]).await.unwrap();
        }
        let etag = part(node, "f", &upload, number, parts[number as usize - 1]).await.unwrap();
        choices.insert(0, choice(number, etag));
    }
    assert!(cluster.rows(b"w").await > 3, "most went to the lake");
    let (condition, finish) = (Condition::default(), Finish::default());
    node.upload_complete("data", &key("f"), &upload, choices, condition, finish).await.unwrap();
    check(node, "f", &bytes).await;
    // A copy is a user of the same chunks.
    node.copy(copy_request("f", "g")).await.unwrap();
    node.drain("data", b"f").await.unwrap();
    drained(node, "f").await;
    check(node, "f", &bytes).await;
    delete(node, "f").await.unwrap();
    check(node, "g", &bytes).await;
    node.drain("data", b"g").await.unwrap();
    drained(node, "g").await;
    nothing_is_left(&cluster, 1).await;
    check(node, "g", &bytes).await;
    assert!(cluster.lake.objects()[&b"g"[..]].body == bytes);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_leaves_nothing() {
    let cluster = alone(lazy()).await;
    let node = cluster.node(0);
    let bytes = pattern(3, 2 * RING as usize);
    let mut writer = node.create("data", &key("f"), WriteRequest::default()).await.unwrap();
    write(&mut writer, &bytes).await.unwrap();
    assert!(!cluster.lake.uploads().is_empty());
    drop(writer);
    nothing_is_left(&cluster, 0).await;
    let upload = node.upload_create("data", &key("f"), Attributes::default(), None).await.unwrap().upload;
    for (number, bytes) in (1..).zip(bytes.chunks(5 * MIB)) {
        part(node, "f", &upload, number, bytes).await.unwrap();
    }
    assert!(cluster.rows(b"w").await > 3);
    node.upload_abort("data", &key("f"), &upload).await.unwrap();
    nothing_is_left(&cluster, 0).await;
    // One that is published under a condition that does not hold.
    put(node, "f", b"there").await;
    let condition = Condition::absent();
    let fault = put_if(node, "data", "f", &bytes, condition).await.unwrap_err();
    assert_eq!(fault.subject, Subject::Condition, "{fault}");
    nothing_is_left(&cluster, 0).await;
    // Published, replaced by another large one, and deleted before it was drained.
    stream(node, "f", &bytes).await.unwrap();
    let other = pattern(4, 2 * RING as usize);
    stream(node, "f", &other).await.unwrap();
    check(node, "f", &other).await;
    cluster.until("one of them is left", async || cluster.rows(b"w").await == 1).await;
    delete(node, "f").await.unwrap();
    nothing_is_left(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_in_the_middle_leaves_nothing() {
    let mut cluster = alone(lazy()).await;
    let node = cluster.lose(0);
    node.stop().await;
    drop(node);
    let doomed = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    cluster.start_on(0, doomed.handle()).await;
    let node = cluster.node(0).clone();
    let (done, wait) = tokio::sync::oneshot::channel();
    doomed.spawn(async move {
        let bytes = pattern(5, 3 * RING as usize);
        let mut writer = node.create("data", &key("f"), WriteRequest::default()).await.unwrap();
        write(&mut writer, &bytes).await.unwrap();
        done.send(()).unwrap();
        std::future::pending::<()>().await;
        drop(writer);
    });
    wait.await.unwrap();
    assert!(!cluster.lake.uploads().is_empty());
    drop(cluster.lose(0));
    doomed.shutdown_background();
    cluster.start(0).await;
    assert_eq!(get(cluster.node(0), "f").await.unwrap_err().kind, ErrorKind::NotFound);
    nothing_is_left(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_and_a_lake_that_fails_now_and_then() {
    let cluster = alone(lazy()).await;
    cluster.lake.fault_rate(0.4);
    let node = cluster.node(0);
    let (one, two) = (pattern(6, 2 * RING as usize), pattern(7, 2 * RING as usize));
    // A request whose every try failed fails the write, and it is sent again.
    let send = async |name: &str, bytes: &[u8]| {
        for _ in 0..10 {
            match stream(node, name, bytes).await {
                Ok(_) => return,
                Err(fault) => assert_eq!(fault.kind, ErrorKind::Unavailable, "{fault}"),
            }
        }
        panic!("`{name}` did not get through");
    };
    tokio::join!(send("one", &one), send("two", &two));
    let counts = cluster.lake.fault_counts();
    assert!(counts.busy + counts.reset_before + counts.reset_after + counts.late > 0, "{counts:?}");
    cluster.lake.fault_rate(0.0);
    check(node, "one", &one).await;
    check(node, "two", &two).await;
    for name in ["one", "two"] {
        node.drain("data", name.as_bytes()).await.unwrap();
        drained(node, name).await;
    }
    // Of an upload whose begin nobody answered nobody knows the id.
    no_object_is_left(&cluster, 2).await;
    check(node, "one", &one).await;
    cluster.stop().await;
}

/// Grows a file as a mount does: edits that go on with the version before.
async fn grow(node: &Node, name: &str, bytes: &[u8], step: usize) {
    let mut base = None;
    for (at, bytes) in (0..).step_by(step).zip(bytes.chunks(step)) {
        let mut pieces = vec![Piece::Keep { start: 0, end: at }, Piece::Rest];
        pieces.drain(..usize::from(base.is_none()));
        let request = EditRequest { base, pieces, ..EditRequest::default() };
        let mut writer = node.edit("data", &key(name), request).await.unwrap();
        write(&mut writer, bytes).await.unwrap();
        base = Some(writer.finish(Finish::default()).await.unwrap().version);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_grows_and_is_changed_is_what_it_should_be() {
    let cluster = alone(lazy()).await;
    let node: &Arc<Node> = cluster.node(0);
    let mut bytes = pattern(8, 2 * RING as usize);
    grow(node, "f", &bytes, 10 * MIB).await;
    assert!(cluster.rows(b"w").await > 2);
    check(node, "f", &bytes).await;
    // In the middle of what is only in the lake, and over its end.
    for (at, len) in [(35 * MIB + 5, 100_000), (50 * MIB, 5 * MIB), (64 * MIB - 3, 10_000)] {
        let new = pattern(at as u64, len);
        let base = Some(node.stat("data", &key("f")).await.unwrap().version);
        let size = bytes.len() as u64;
        let mut pieces = vec![Piece::Keep { start: 0, end: at as u64 }, Piece::Take(len as u64)];
        pieces.extend(
            (((at + len) as u64) < size).then_some(Piece::Keep { start: (at + len) as u64, end: size }),
        );
        let request = EditRequest { base, pieces, ..EditRequest::default() };
        let mut writer = node.edit("data", &key("f"), request).await.unwrap();
        write(&mut writer, &new).await.unwrap();
        writer.finish(Finish::default()).await.unwrap();
        bytes.resize(bytes.len().max(at + len), 0);
        bytes[at..at + len].copy_from_slice(&new);
        check(node, "f", &bytes).await;
    }
    append(node, "f", b"the end").await;
    bytes.extend_from_slice(b"the end");
    check(node, "f", &bytes).await;
    node.drain("data", b"f").await.unwrap();
    drained(node, "f").await;
    nothing_is_left(&cluster, 1).await;
    check(node, "f", &bytes).await;
    delete(node, "f").await.unwrap();
    nothing_is_left(&cluster, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_leaves_a_file_that_does_not_fit_is_refused_with_the_size_that_does() {
    let home = home(lazy());
    let node = home.start().await;
    let policy = VolumePolicy { drain: DrainPolicy::Never, ..VolumePolicy::default() };
    let options = VolumeOptions { policy: Some(policy), ..VolumeOptions::default() };
    node.volume_create("kept", options).await.unwrap();
    let bytes = pattern(9, RING as usize);
    for size in [None, Some(bytes.len() as u64)] {
        let request = WriteRequest { size, ..WriteRequest::default() };
        let mut writer = node.create("kept", &key("f"), request).await.unwrap();
        let fault = write(&mut writer, &bytes).await.unwrap_err();
        assert_eq!((fault.kind, fault.subject), (ErrorKind::Full, Subject::Size), "{fault}");
        assert!(fault.message.contains(&(RING / 2).to_string()), "{fault}");
    }
    // What was refused makes room by and by.
    for _ in 0..1_000 {
        if put_if(&node, "kept", "f", &bytes[..10 * MIB], Condition::default()).await.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(get_from(&node, "kept", "f").await.unwrap() == bytes[..10 * MIB]);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cell_every_node_reads_it_and_the_loss_of_the_writer_loses_nothing() {
    let mut cluster = Cluster::with_rings(&["", ""], (1, RING), lazy()).await;
    let bytes = pattern(10, 2 * RING as usize);
    let receipt = stream(cluster.node(0), "f", &bytes).await.unwrap();
    assert_eq!(receipt.copies, 2, "of what is not in the lake");
    check(cluster.node(1), "f", &bytes).await;
    let lost = cluster.lose(0);
    assert!(cluster.node(1).members().declare_down(lost.id(), std::time::Duration::ZERO).await.unwrap());
    check(cluster.node(1), "f", &bytes).await;
    cluster.node(1).drain("data", b"f").await.unwrap();
    drained(cluster.node(1), "f").await;
    check(cluster.node(1), "f", &bytes).await;
    nothing_is_left(&cluster, 1).await;
    lost.stop().await;
    cluster.stop().await;
}
