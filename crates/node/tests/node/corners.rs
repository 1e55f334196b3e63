//! Places where names, chunks and the lake meet in unusual ways.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Attributes, AttributesChange, Condition, DrainState, ErrorKind, Finish, LakeMode, PartChoice, PartSource,
    RenameMode, Store, Subject, UploadId, VolumePolicy, WriteRequest,
};

const MIB: usize = 1 << 20;

/// Waits for something to become true.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

async fn records(node: &Node) -> u64 {
    node.status().await.unwrap().rings.iter().map(|ring| ring.records).sum()
}

async fn keep_bytes(node: &Node) -> u64 {
    node.status().await.unwrap().rings.iter().map(|ring| ring.keep_bytes).sum()
}

async fn part(node: &Arc<Node>, name: &str, upload: &UploadId, number: u32, bytes: &[u8]) -> PartChoice {
    let size = Some(bytes.len() as u64);
    let mut writer = node.upload_part("data", &key(name), upload, number, size).await.unwrap();
    write(&mut writer, bytes).await.unwrap();
    let receipt = writer.finish(Finish::default()).await.unwrap();
    PartChoice { number, etag: receipt.etag, checksum: None }
}

async fn complete(
    node: &Node,
    name: &str,
    upload: &UploadId,
    parts: Vec<PartChoice>,
) -> stoker_store::Result<stoker_store::Receipt> {
    node.upload_complete("data", &key(name), upload, parts, Condition::default(), Finish::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_goes_away_while_it_is_published_harms_nothing() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for round in 0..20u64 {
        let (old, new) = (pattern(round, 100_000), pattern(100 + round, 200_000));
        put(&node, "x", &old).await;
        let request = WriteRequest { size: Some(new.len() as u64), ..WriteRequest::default() };
        let mut writer = node.create("data", &key("x"), request).await.unwrap();
        write(&mut writer, &new).await.unwrap();
        let mut finish = writer.finish(Finish::default());
        // As far as it gets in so many polls; then the client hangs up.
        let mut left = round;
        std::future::poll_fn(|cx| match finish.as_mut().poll(cx) {
            Poll::Pending if left > 0 => {
                left -= 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
        drop(finish);
        until("the new version is there", || async { get(&node, "x").await.unwrap() == new }).await;
    }
    let node = home.restart(node).await;
    assert!(get(&node, "x").await.unwrap() == pattern(119, 200_000));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_drains_although_its_source_is_deleted_at_once() {
    let home = Home::new(VolumePolicy { drain_quiet_s: 1, ..VolumePolicy::default() });
    let node = home.start().await;
    put(&node, "a", b"bytes").await;
    node.copy(copy_request("a", "b")).await.unwrap();
    delete(&node, "a").await.unwrap();
    assert_eq!(drained(&node, "b").await.drain, DrainState::Clean);
    put(&node, "c", b"more").await;
    node.rename("data", &key("c"), &key("d"), RenameMode::Replace).await.unwrap();
    assert_eq!(drained(&node, "d").await.drain, DrainState::Clean);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_drains_again_finds_what_was_written_before() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "a", b"bytes").await;
    node.volume_set("data", eager()).await.unwrap();
    assert_eq!(drained(&node, "a").await.drain, DrainState::Clean);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_on_a_drive_that_is_gone_are_not_published() {
    let mut home = Home::new(lazy());
    home.drives = 2;
    let node = home.start().await;
    let upload = node.upload_create("data", &key("x"), Attributes::default(), None).await.unwrap().upload;
    let first = part(&node, "x", &upload, 1, &pattern(1, 20 * MIB)).await;
    node.stop().await;
    drop(node);
    home.drives = 1;
    let node = home.open().await;
    put(&node, "x", b"as it was").await;
    let refused = complete(&node, "x", &upload, vec![first]).await.unwrap_err();
    assert_eq!((refused.kind, refused.subject), (ErrorKind::Invalid, Subject::Part), "{refused}");
    assert!(get(&node, "x").await.unwrap() == b"as it was");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_in_the_lake_is_not_appended_to_before_it_is_here() {
    let home = Home::new(lazy());
    std::fs::create_dir_all(home.lake().join("data")).unwrap();
    std::fs::write(home.lake().join("data/theirs"), pattern(1, 5 * MIB)).unwrap();
    let node = home.start().await;
    node.volume_set("data", VolumePolicy { lake_mode: LakeMode::Owned, ..lazy() }).await.unwrap();
    until("it is listed", || async { !names(&node, "", None).await.is_empty() }).await;
    node.copy(copy_request("theirs", "copy")).await.unwrap();
    let request = WriteRequest { append: true, ..WriteRequest::default() };
    let mut writer = node.create("data", &key("copy"), request).await.unwrap();
    write(&mut writer, b"more").await.unwrap();
    let refused = writer.finish(Finish::default()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
    node.stage("data", &key("copy")).await.unwrap();
    append(&node, "copy", b"more").await;
    assert!(get(&node, "copy").await.unwrap() == [&pattern(1, 5 * MIB)[..], b"more"].concat());
    // Staged, drained, appended to again: everything is here all the time.
    node.drain("data", b"").await.unwrap();
    drained(&node, "copy").await;
    append(&node, "copy", b"again").await;
    assert!(get(&node, "copy").await.unwrap().ends_with(b"moreagain"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_by_reference_shares_chunks_and_outlives_its_source() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let source = pattern(5, 30 * MIB + 77);
    put(&node, "source", &source).await;
    let before = keep_bytes(&node).await;
    let upload = node.upload_create("data", &key("x"), Attributes::default(), None).await.unwrap().upload;
    let ranges = [(0, 8 * MIB), (3 * MIB + 5, 20 * MIB), (20 * MIB, source.len()), (0, source.len())];
    let mut parts = Vec::new();
    for (at, (start, end)) in ranges.into_iter().enumerate() {
        let source = PartSource {
            volume: "data".into(),
            key: key("source"),
            condition: Condition::default(),
            range: Some((start as u64, end as u64)),
        };
        let number = at as u32 + 1;
        let receipt = node.upload_part_copy("data", &key("x"), &upload, number, source).await.unwrap();
        assert_eq!(receipt.size, (end - start) as u64);
        parts.push(PartChoice { number, etag: receipt.etag, checksum: None });
    }
    // Only the bytes in front of the first chunk of the second range were written, and records of names.
    let grown = keep_bytes(&node).await - before;
    assert!(grown < 6 * MIB as u64, "{grown} bytes were written for parts by reference");
    let node = home.restart(node).await;
    complete(&node, "x", &upload, parts.clone()).await.unwrap();
    let expected: Vec<u8> =
        ranges.iter().flat_map(|(start, end)| source[*start..*end].iter().copied()).collect();
    assert!(get(&node, "x").await.unwrap() == expected);
    // A second completion, because the answer to the first was lost, gives the same.
    let again = complete(&node, "x", &upload, parts).await.unwrap();
    assert_eq!(again.size, expected.len() as u64);
    delete(&node, "source").await.unwrap();
    append(&node, "x", b"tail").await;
    let expected = [&expected[..], b"tail"].concat();
    until("the collector was there", || async { records(&node).await < 15 }).await;
    assert!(get(&node, "x").await.unwrap() == expected);
    let node = home.restart(node).await;
    assert!(get(&node, "x").await.unwrap() == expected);
    node.drain("data", b"").await.unwrap();
    drained(&node, "x").await;
    // Nothing has to stay now.
    until("all is clean", || async { keep_bytes(&node).await < 64 << 10 }).await;
    delete(&node, "x").await.unwrap();
    until("all is gone", || async { records(&node).await == 0 }).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_chunks_of_drained_files_need_not_stay() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "a", &pattern(1, 9 * MIB)).await;
    node.copy(copy_request("a", "b")).await.unwrap();
    append(&node, "b", &pattern(2, 3 * MIB)).await;
    drained(&node, "a").await;
    drained(&node, "b").await;
    until("status says so", || async { node.status().await.unwrap().dirty_files == 0 }).await;
    until("all is clean", || async { keep_bytes(&node).await < 64 << 10 }).await;
    let node = home.restart(node).await;
    assert!(get(&node, "b").await.unwrap() == [pattern(1, 9 * MIB), pattern(2, 3 * MIB)].concat());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layout_of_many_rows_is_settled_as_one() {
    let home = Home::new(lazy());
    let node = home.start().await;
    // Enough pieces that their list takes two rows, the first owner on both sides.
    let mut whole = Vec::new();
    let request = || WriteRequest { append: true, ..WriteRequest::default() };
    for round in 0..4u64 {
        let mut writer = node.create("data", &key("log"), request()).await.unwrap();
        for piece in 0..450u64 {
            // Short, then long, so that they do not make one run.
            let bytes = pattern(round * 1_000 + piece, 10 + (piece % 2) as usize);
            let mut buf = writer.buffer().await.unwrap();
            buf.fill(&bytes);
            writer.write(buf).await.unwrap();
            whole.extend_from_slice(&bytes);
        }
        writer.finish(Finish::default()).await.unwrap();
    }
    node.copy(copy_request("log", "then")).await.unwrap();
    let then = whole.clone();
    append(&node, "log", b"more").await;
    whole.extend_from_slice(b"more");
    delete(&node, "then").await.unwrap();
    let settled = records(&node).await;
    until("the record of the copy is gone", || async { records(&node).await < settled.min(1_805) }).await;
    assert!(get(&node, "log").await.unwrap() == whole && then.len() < whole.len());
    delete(&node, "log").await.unwrap();
    until("all is gone", || async { records(&node).await == 0 }).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_names_do_not_pile_up() {
    for policy in [eager(), VolumePolicy { drain: stoker_store::DrainPolicy::Never, ..eager() }] {
        let home = Home::new(policy);
        let node = home.start().await;
        for round in 0..20 {
            put(&node, "empty", b"").await;
            put(&node, "a/file", &pattern(round, 1_000)).await;
            node.copy(copy_request("a/file", "copy")).await.unwrap();
            node.copy(copy_request("copy", "copy")).await.unwrap();
            append(&node, "log", b"line").await;
            node.rename("data", &key("copy"), &key("moved"), RenameMode::Replace).await.unwrap();
            for name in ["a/file", "moved", "empty"] {
                assert!(delete(&node, name).await.unwrap());
            }
        }
        delete(&node, "log").await.unwrap();
        until("nothing is left on the drive", || async { records(&node).await == 0 }).await;
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_of_a_drained_file_reach_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "x", &pattern(1, 3 * MIB)).await;
    drained(&node, "x").await;
    let tags = vec![("team".to_owned(), "blue".to_owned())];
    let change = AttributesChange { tags: Some(tags.clone()), ..AttributesChange::default() };
    node.set_attributes("data", &key("x"), change).await.unwrap();
    drained(&node, "x").await;
    node.stop().await;
    drop(node);
    let keys_path = home.dir.path().join("node/cluster.keys");
    let keys = std::fs::read(&keys_path).unwrap();
    // Another node that knows only the lake: whether it has the keys of the cluster says whether it believes what is there.
    for (has_keys, tags) in [(true, tags), (false, Vec::new())] {
        std::fs::remove_dir_all(home.dir.path().join("node")).unwrap();
        std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
        if has_keys {
            std::fs::create_dir(home.dir.path().join("node")).unwrap();
            std::fs::write(&keys_path, &keys).unwrap();
        }
        let node = home.start().await;
        until("it is listed", || async { !names(&node, "", None).await.is_empty() }).await;
        assert_eq!(node.stat("data", &key("x")).await.unwrap().attributes.tags, tags);
        assert!(get(&node, "x").await.unwrap() == pattern(1, 3 * MIB));
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_several_drives_go_with_the_file() {
    let mut home = Home::new(eager());
    home.drives = 2;
    let node = home.start().await;
    put(&node, "a", b"small").await;
    drained(&node, "a").await;
    node.copy(copy_request("a", "b")).await.unwrap();
    delete(&node, "b").await.unwrap();
    delete(&node, "a").await.unwrap();
    put(&node, "last", b"x").await;
    until("status is right", || async { node.status().await.unwrap().dirty_files == 0 }).await;
    node.stop().await;
}

/// A file without chunks is drained after a restart only if a row says that it is owed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_an_empty_file_is_owed_to_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "a", b"").await;
    drained(&node, "a").await;
    until("nothing is owed", || async { node.status().await.unwrap().dirty_files == 0 }).await;
    node.volume_set("data", lazy()).await.unwrap();
    node.copy(copy_request("a", "b")).await.unwrap();
    let node = home.restart(node).await;
    assert_eq!(node.status().await.unwrap().dirty_files, 1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_others_made_in_a_shared_lake_can_be_replaced_and_deleted() {
    let home = Home::new(VolumePolicy { lake_mode: LakeMode::Shared, ..eager() });
    let node = home.start().await;
    for name in ["kept", "gone"] {
        put(&node, name, b"ours").await;
        drained(&node, name).await;
        std::fs::write(home.lake().join("data").join(name), b"theirs").unwrap();
    }
    // What was looked at is believed for a while.
    let node = home.restart(node).await;
    let theirs = node.stat("data", &key("kept")).await.unwrap().etag;
    assert!(get(&node, "kept").await.unwrap() == b"theirs");
    let condition = Condition { if_match: Some(vec![theirs]), ..Condition::default() };
    put_if(&node, "data", "kept", b"ours again", condition).await.unwrap();
    assert_eq!(drained(&node, "kept").await.drain, DrainState::Clean);
    assert_eq!(std::fs::read(home.lake().join("data/kept")).unwrap(), b"ours again");
    assert!(delete(&node, "gone").await.unwrap());
    until("it is gone from the lake", || async { !home.lake().join("data/gone").exists() }).await;
    assert!(get(&node, "gone").await.is_err());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_that_were_exchanged_are_exchanged_in_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    for name in ["a", "b"] {
        put(&node, name, name.as_bytes()).await;
        drained(&node, name).await;
    }
    for (from, to) in [("a", "t"), ("b", "a"), ("t", "b")] {
        node.rename("data", &key(from), &key(to), RenameMode::NoReplace).await.unwrap();
    }
    let read = |name: &str| std::fs::read(home.lake().join("data").join(name)).unwrap_or_default();
    until("the lake followed", || async { read("a") == b"b" && read("b") == b"a" }).await;
    until("nothing else is there", || async { tree(&home.lake().join("data")) == ["a", "b"] }).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_keeps_the_object_that_it_reads() {
    let home = Home::new(eager());
    std::fs::create_dir_all(home.lake().join("data")).unwrap();
    let theirs = pattern(1, 20 * MIB);
    std::fs::write(home.lake().join("data/x"), &theirs).unwrap();
    let node = home.start().await;
    node.volume_set("data", VolumePolicy { lake_mode: LakeMode::Owned, ..eager() }).await.unwrap();
    until("it is listed", || async { !names(&node, "", None).await.is_empty() }).await;
    let file = node.open("data", &key("x")).await.unwrap();
    put(&node, "x", b"new").await;
    assert!(read_all(file.as_ref()).await.unwrap() == theirs);
    drop(file);
    assert_eq!(drained(&node, "x").await.drain, DrainState::Clean);
    assert_eq!(std::fs::read(home.lake().join("data/x")).unwrap(), b"new");
    node.stop().await;
}
