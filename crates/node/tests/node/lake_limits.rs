//! Limits of the lake: told before anything is acknowledged; what breaks one later waits for a person.

use std::sync::Arc;

use crate::harness::*;
use stoker_lake::{Capabilities, Lake, TwinLake};
use stoker_node::{LakeOpener, Node, NodeOptions};
use stoker_store::{
    Attributes, AttributesChange, Awaited, CopyRequest, DrainPolicy, ErrorKind, RenameMode, Resolution,
    Result, Store, StoreError, Subject, VolumeOptions, VolumePolicy, WriteRequest,
};

/// A node whose lake holds keys of 20 bytes and 200 bytes of metadata.
async fn narrow(home: &Home) -> (Arc<Node>, Arc<TwinLake>) {
    let can = TwinLake::new(1).capabilities();
    let can = Capabilities { key_bytes_max: 20, meta_bytes_max: 200, ..can };
    let lake = Arc::new(TwinLake::with_capabilities(1, can));
    let opened = lake.clone();
    let options = NodeOptions {
        lake: Some("twin://lake".into()),
        lake_opener: Some(LakeOpener(Arc::new(move |_| opened.clone() as Arc<dyn Lake>))),
        ..home.options()
    };
    let node = Node::open(options).await.unwrap();
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    (node, lake)
}

#[track_caller]
fn refused<T>(result: Result<T>, limit: &str) {
    let fault: StoreError = result.err().expect("the lake cannot hold it");
    assert_eq!((fault.kind, fault.subject), (ErrorKind::Invalid, Subject::Lake), "{fault}");
    assert!(fault.message.contains(limit), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_lake_cannot_hold_is_refused() {
    let home = Home::new(lazy());
    let (node, _) = narrow(&home).await;
    put(&node, "short", b"1").await;
    let long = "a-key-of-more-than-20-bytes";
    let (keys, meta) = ("at most 20 bytes", "at most 200 bytes of metadata");
    refused(node.create("data", &key(long), WriteRequest::default()).await, keys);
    refused(node.upload_create("data", &key(long), Attributes::default(), None).await, keys);
    refused(node.copy(copy_request("short", long)).await, keys);
    refused(node.rename("data", &key("short"), &key(long), RenameMode::Replace).await, keys);

    let tags: Vec<_> = (0..4).map(|at| (format!("tag-{at}"), "value of a tag".to_owned())).collect();
    let heavy = Attributes { tags: tags.clone(), ..Attributes::default() };
    let request = WriteRequest { attributes: heavy.clone(), ..WriteRequest::default() };
    refused(node.create("data", &key("a"), request.clone()).await, meta);
    refused(node.upload_create("data", &key("a"), heavy.clone(), None).await, meta);
    refused(node.copy(CopyRequest { attributes: Some(heavy), ..copy_request("short", "a") }).await, meta);
    let change = AttributesChange { tags: Some(tags), ..AttributesChange::default() };
    refused(node.set_attributes("data", &key("short"), change).await, meta);
    assert_eq!(names(&node, "", None).await, ["short"]);

    // What never goes to the lake need not fit.
    let policy = VolumePolicy { drain: DrainPolicy::Never, ..lazy() };
    node.volume_set("data", policy).await.unwrap();
    node.create("data", &key(long), request).await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_turns_out_not_to_fit_is_put_aside_with_the_reason() {
    let home = Home::new(lazy());
    let (node, lake) = narrow(&home).await;
    put(&node, "dir/file", b"bytes").await;
    put(&node, "other", b"more").await;
    let there = key("a-long-name-of-a-folder/");
    node.rename("data", &key("dir/"), &there, RenameMode::Replace).await.unwrap();
    assert_eq!(node.drain("data", b"").await.unwrap(), 2);
    drained(&node, "other").await;
    let moved = key("a-long-name-of-a-folder/file");
    let fault = node.wait("data", &moved, None, Awaited::Drained).await.unwrap_err();
    assert_eq!((fault.kind, fault.subject), (ErrorKind::Conflict, Subject::Lake), "{fault}");
    let conflicts = node.conflicts(None).await.unwrap();
    let reason = conflicts[0].refused.as_deref().unwrap();
    assert!(conflicts.len() == 1 && reason.contains("at most 20 bytes"), "{conflicts:?}");
    assert!(get(&node, "a-long-name-of-a-folder/file").await.unwrap() == b"bytes");

    // A person makes it fit and says so.
    node.rename("data", &there, &key("dir/"), RenameMode::Replace).await.unwrap();
    node.conflict_resolve("data", &key("dir/file"), Resolution::Ours).await.unwrap();
    drained(&node, "dir/file").await;
    assert_eq!(node.conflicts(None).await.unwrap(), []);
    assert!(lake.objects().contains_key(&b"dir/file"[..]));
    node.stop().await;
}
