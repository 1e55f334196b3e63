//! The way to the lake and back: drains, deletes, renames, copies, foreign writers, restarts.

use std::sync::Arc;

use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Attributes, Condition, DrainState, ErrorKind, Finish, LakeMode, RenameMode, Resolution, Store, Subject,
    VolumeOptions, VolumePolicy, WriteRequest,
};

const MIB: usize = 1 << 20;

/// Waits until the lake directory of `data` holds exactly these files.
async fn lake_becomes(home: &Home, expect: &[&str]) {
    let dir = home.lake().join("data");
    for _ in 0..600 {
        if tree(&dir) == expect {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the lake has {:?}, expected {expect:?}", tree(&dir));
}

/// Waits until the lake has these bytes under a key of `data`.
async fn lake_has(home: &Home, name: &str, expect: &[u8]) {
    let mut found = Vec::new();
    for _ in 0..600 {
        found = std::fs::read(lake_file(home, name)).unwrap_or_default();
        if found == expect {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the lake has {:?} under {name}", String::from_utf8_lossy(&found));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_become_plain_objects_under_their_keys() {
    let home = Home::new(eager());
    let node = home.start().await;
    let large = pattern(1, 40 * MIB + 3);
    let attributes = Attributes {
        content_type: Some("text/x".into()),
        meta: vec![("a".into(), "b".into())],
        ..Attributes::default()
    };
    let request = WriteRequest { attributes: attributes.clone(), ..WriteRequest::default() };
    let mut writer = node.create("data", &key("dir/large"), request).await.unwrap();
    write(&mut writer, &large).await.unwrap();
    let receipt = writer.finish(Finish::default()).await.unwrap();
    assert_eq!(receipt.drain, DrainState::Dirty);
    put(&node, "small", b"hello").await;
    put(&node, "empty", b"").await;
    let clean = drained(&node, "dir/large").await;
    assert_eq!((clean.drain, clean.version, clean.etag), (DrainState::Clean, receipt.version, receipt.etag));
    drained(&node, "small").await;
    drained(&node, "empty").await;
    assert!(std::fs::read(lake_file(&home, "dir/large")).unwrap() == large);
    assert_eq!(std::fs::read(lake_file(&home, "small")).unwrap(), b"hello");
    assert_eq!(std::fs::read(lake_file(&home, "empty")).unwrap(), b"");
    settled(&node).await;
    let status = node.status().await.unwrap();
    assert_eq!((status.dirty_bytes, status.dirty_age_ms), (0, 0));
    // Deleted here, deleted there.
    assert!(delete(&node, "dir/large").await.unwrap());
    assert!(get(&node, "dir/large").await.is_err());
    lake_becomes(&home, &["empty", "small"]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfinished_drain_goes_on_after_a_restart() {
    let home =
        Home::new(VolumePolicy { drain_quiet_s: 3_600, drain_lag_max_s: 3_600, ..VolumePolicy::default() });
    let node = home.start().await;
    let bytes = pattern(7, 3 * MIB);
    put(&node, "a/b", &bytes).await;
    assert!(tree(&home.lake()).is_empty());
    let node = home.restart(node).await;
    assert_eq!(node.status().await.unwrap().dirty_files, 1);
    assert!(get(&node, "a/b").await.unwrap() == bytes);
    assert_eq!(node.drain("data", b"a/").await.unwrap(), 1);
    drained(&node, "a/b").await;
    assert!(std::fs::read(lake_file(&home, "a/b")).unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_left_the_drive_is_read_from_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    let bytes = pattern(9, 9 * MIB + 17);
    put(&node, "x", &bytes).await;
    drained(&node, "x").await;
    settled(&node).await;
    node.stop().await;
    drop(node);
    // The drive is lost with everything on it; a new one takes its place.
    std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
    let node = home.open_with_new_drives().await;
    assert!(get(&node, "x").await.unwrap() == bytes);
    let explained = node.explain("data", &key("x")).await.unwrap();
    assert_eq!(explained.receipt.drain, DrainState::Clean);
    assert!(node.stage("data", &key("x")).await.is_ok());
    let staged = node.explain("data", &key("x")).await.unwrap();
    assert_eq!(staged.chunks_local, staged.chunks);
    assert!(get(&node, "x").await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renames_are_followed_by_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    for name in ["d/a", "d/e/b", "f"] {
        put(&node, name, name.as_bytes()).await;
        drained(&node, name).await;
    }
    node.rename("data", &key("d/"), &key("new/"), RenameMode::Replace).await.unwrap();
    node.rename("data", &key("f"), &key("g/h"), RenameMode::Replace).await.unwrap();
    // Another file takes an old name at once, while its object still belongs to the renamed one.
    put(&node, "d/a", b"second").await;
    lake_becomes(&home, &["d/a", "g/h", "new/a", "new/e/b"]).await;
    drained(&node, "d/a").await;
    for (name, bytes) in [("d/a", "second"), ("g/h", "f"), ("new/a", "d/a"), ("new/e/b", "d/e/b")] {
        assert_eq!(std::fs::read(lake_file(&home, name)).unwrap(), bytes.as_bytes(), "{name}");
        assert_eq!(get(&node, name).await.unwrap(), bytes.as_bytes(), "{name}");
    }
    assert!(node.conflicts(None).await.unwrap().is_empty());
    node.stop().await;
}

/// Each of two objects is where the other one has to go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanged_names_are_exchanged_in_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    for name in ["a", "b", "d/same", "e/same", "e/other"] {
        put(&node, name, name.as_bytes()).await;
        drained(&node, name).await;
    }
    put(&node, "b", b"b, not drained").await;
    let swap = RenameMode::Exchange { inode: None };
    for (first, second) in [("a", "b"), ("d/", "e/")] {
        node.rename("data", &key(first), &key(second), swap).await.unwrap();
    }
    lake_becomes(&home, &["a", "b", "d/other", "d/same", "e/same"]).await;
    let expect = [
        ("a", "b, not drained"),
        ("b", "a"),
        ("d/same", "e/same"),
        ("d/other", "e/other"),
        ("e/same", "d/same"),
    ];
    for (name, bytes) in expect {
        lake_has(&home, name, bytes.as_bytes()).await;
        assert_eq!(get(&node, name).await.unwrap(), bytes.as_bytes(), "{name}");
    }
    assert!(node.conflicts(None).await.unwrap().is_empty());
    node.stop().await;
}

/// What others put into the lake is exchanged like our own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_were_there_before_are_exchanged() {
    let home = Home::new(eager());
    std::fs::create_dir_all(lake_file(&home, "")).unwrap();
    for name in ["theirs", "also"] {
        std::fs::write(lake_file(&home, name), name).unwrap();
    }
    let node = home.start().await;
    node.volume_set("data", VolumePolicy { lake_mode: LakeMode::Shared, ..eager() }).await.unwrap();
    node.rename("data", &key("theirs"), &key("also"), RenameMode::Exchange { inode: None }).await.unwrap();
    assert_eq!(get(&node, "theirs").await.unwrap(), b"also");
    lake_has(&home, "theirs", b"also").await;
    lake_has(&home, "also", b"theirs").await;
    assert!(node.conflicts(None).await.unwrap().is_empty());
    node.stop().await;
}

/// R11: the source of a copy is overwritten and drained while the copy still needs the old object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwritten_source_of_a_copy() {
    let home = Home::new(eager());
    let node = home.start().await;
    let bytes = pattern(5, 5 * MIB);
    put(&node, "source", &bytes).await;
    drained(&node, "source").await;
    settled(&node).await;
    node.stop().await;
    drop(node);
    // Only the lake has it now.
    std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
    let node = home.open_with_new_drives().await;
    let slow = VolumePolicy { drain_quiet_s: 3_600, drain_lag_max_s: 3_600, ..VolumePolicy::default() };
    node.volume_set("data", slow).await.unwrap();
    let copy = node.copy(copy_request("source", "copy")).await.unwrap();
    assert_eq!(copy.drain, DrainState::Dirty);
    put(&node, "source", b"other bytes").await;
    assert!(get(&node, "copy").await.unwrap() == bytes);
    node.drain("data", b"source").await.unwrap();
    drained(&node, "source").await;
    assert_eq!(std::fs::read(lake_file(&home, "source")).unwrap(), b"other bytes");
    assert!(get(&node, "copy").await.unwrap() == bytes);
    assert!(std::fs::read(lake_file(&home, "copy")).unwrap() == bytes);
    node.stop().await;
}

/// R11 with a delete instead of an overwrite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_source_of_a_copy() {
    let home = Home::new(eager());
    let node = home.start().await;
    let bytes = pattern(6, 5 * MIB);
    put(&node, "source", &bytes).await;
    drained(&node, "source").await;
    settled(&node).await;
    node.stop().await;
    drop(node);
    std::fs::remove_dir_all(home.dir.path().join("ring0")).unwrap();
    let node = home.open_with_new_drives().await;
    node.copy(copy_request("source", "copy")).await.unwrap();
    assert!(delete(&node, "source").await.unwrap());
    drained(&node, "copy").await;
    lake_becomes(&home, &["copy"]).await;
    assert!(get(&node, "copy").await.unwrap() == bytes);
    node.stop().await;
}

/// R10: somebody else changed the object that a drain would replace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_writer_in_the_lake() {
    let home = Home::new(eager());
    let node = home.start().await;
    let cases = [("ours", Resolution::Ours), ("theirs", Resolution::Theirs), ("both", Resolution::KeepBoth)];
    for (name, _) in cases {
        put(&node, name, b"first").await;
        drained(&node, name).await;
        std::fs::write(lake_file(&home, name), b"foreign").unwrap();
        put(&node, name, b"second").await;
        let parked = node.wait("data", &key(name), None, stoker_store::Awaited::Drained).await.unwrap_err();
        assert_eq!((parked.kind, parked.subject), (ErrorKind::Conflict, Subject::Lake));
        assert_eq!(get(&node, name).await.unwrap(), b"second");
        assert_eq!(std::fs::read(lake_file(&home, name)).unwrap(), b"foreign");
    }
    assert_eq!(node.conflicts(Some("data")).await.unwrap().len(), 3);
    // A conflict survives a restart, and so do the bytes.
    let node = home.restart(node).await;
    assert_eq!(node.conflicts(None).await.unwrap().len(), 3);
    for (name, resolution) in cases {
        node.conflict_resolve("data", &key(name), resolution).await.unwrap();
    }
    assert!(node.conflicts(None).await.unwrap().is_empty());
    drained(&node, "ours").await;
    assert_eq!(std::fs::read(lake_file(&home, "ours")).unwrap(), b"second");
    assert_eq!(get(&node, "theirs").await.unwrap(), b"foreign");
    assert_eq!(get(&node, "both").await.unwrap(), b"foreign");
    let aside = names(&node, "both.stoker-", None).await;
    assert_eq!(aside.len(), 1);
    assert_eq!(get(&node, &aside[0]).await.unwrap(), b"second");
    drained(&node, &aside[0]).await;
    assert_eq!(std::fs::read(lake_file(&home, &aside[0])).unwrap(), b"second");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_already_in_the_lake_appear_by_themselves() {
    let home = Home::new(eager());
    let node = home.open().await;
    let dir = home.lake().join("data");
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    std::fs::write(dir.join("old"), b"old bytes").unwrap();
    std::fs::write(dir.join("sub/x"), b"x").unwrap();
    let info = node.volume_create("data", VolumeOptions::default()).await.unwrap();
    assert_eq!(info.policy.lake_mode, LakeMode::ReadOnly);
    assert_eq!(names(&node, "", None).await, ["old", "sub/x"]);
    assert_eq!(names(&node, "", Some("/")).await, ["old", "sub/*"]);
    assert_eq!(get(&node, "old").await.unwrap(), b"old bytes");
    let denied = put_if(&node, "data", "new", b"1", Condition::default()).await.unwrap_err();
    assert_eq!(denied.kind, ErrorKind::Denied);
    assert_eq!(delete(&node, "old").await.unwrap_err().kind, ErrorKind::Denied);
    // Shared: both write.
    node.volume_set("data", VolumePolicy { lake_mode: LakeMode::Shared, ..eager() }).await.unwrap();
    put(&node, "new", b"1").await;
    put(&node, "sub/y", b"y").await;
    assert_eq!(names(&node, "", None).await, ["new", "old", "sub/x", "sub/y"]);
    put(&node, "old", b"replaced").await;
    drained(&node, "old").await;
    assert_eq!(std::fs::read(dir.join("old")).unwrap(), b"replaced");
    assert!(delete(&node, "sub/x").await.unwrap());
    assert!(get(&node, "sub/x").await.is_err());
    assert_eq!(names(&node, "sub/", None).await, ["sub/y"]);
    lake_becomes(&home, &["new", "old", "sub/y"]).await;
    std::fs::write(dir.join("late"), b"late").unwrap();
    assert_eq!(names(&node, "", None).await, ["late", "new", "old", "sub/y"]);
    node.rename("data", &key("late"), &key("moved"), RenameMode::Replace).await.unwrap();
    assert_eq!(get(&node, "moved").await.unwrap(), b"late");
    assert!(get(&node, "late").await.is_err());
    lake_becomes(&home, &["moved", "new", "old", "sub/y"]).await;
    // Owned: after one listing the catalog knows everything.
    std::fs::write(dir.join("more"), b"more").unwrap();
    node.volume_set("data", VolumePolicy { lake_mode: LakeMode::Owned, ..eager() }).await.unwrap();
    for _ in 0..600 {
        if node.volume("data").await.unwrap().files == 5 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(node.volume("data").await.unwrap().files, 5);
    assert_eq!(names(&node, "", None).await, ["more", "moved", "new", "old", "sub/y"]);
    assert_eq!(get(&node, "more").await.unwrap(), b"more");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_drains_stays_and_survives() {
    let home = Home::new(VolumePolicy { drain: stoker_store::DrainPolicy::Never, ..VolumePolicy::default() });
    let node = home.start().await;
    let bytes = pattern(2, 6 * MIB);
    let receipt = put(&node, "x", &bytes).await;
    assert_eq!((receipt.drain, receipt.lake), (DrainState::Never, None));
    let node = home.restart(node).await;
    let node = home.restart(node).await;
    assert!(get(&node, "x").await.unwrap() == bytes);
    assert!(tree(&home.lake()).is_empty());
    let refused = node.wait("data", &key("x"), None, stoker_store::Awaited::Drained).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalog_that_went_back_is_refused() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "a", b"1").await;
    node.stop().await;
    drop(node);
    let catalog = home.dir.path().join("node/catalog.redb");
    let backup = std::fs::read(&catalog).unwrap();
    let node = home.open().await;
    put(&node, "b", b"2").await;
    node.stop().await;
    drop(node);
    std::fs::write(&catalog, backup).unwrap();
    let Err(refused) = Node::open(home.options()).await else { panic!("it opened") };
    assert!(refused.message.contains("went back"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_volumes_do_not_share_a_place_in_the_lake() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let lake = home.lake().display().to_string();
    for url in [
        format!("file://{lake}/data/inner"),
        format!("file://localhost{lake}/%64ata"),
        format!("{lake}/./data//inner"),
        lake.clone(),
    ] {
        let options = VolumeOptions { lake: Some(url.clone()), policy: None };
        let refused = node.volume_create("other", options).await.unwrap_err();
        assert_eq!((refused.kind, refused.subject), (ErrorKind::Conflict, Subject::Lake), "{url}");
    }
    let beside = VolumeOptions { lake: Some(format!("{lake}/data-beside")), policy: None };
    node.volume_create("other", beside).await.unwrap();
    node.stop().await;
}
