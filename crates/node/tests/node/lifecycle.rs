//! Lifecycle rules: what is due goes by the path of clients, and nothing else does. A day has a millisecond here, or never ends.

use std::sync::Arc;

use crate::harness::*;
use stoker_node::{Node, NodeOptions};
use stoker_store::{
    Attributes, Condition, ErrorKind, Finish, LIFECYCLE_SETTING, Lock, Result, Store, VERSIONING_SETTING,
    VersionDelete, VersionEntry, VersionsRequest, VolumeOptions, WriteRequest,
};

/// A thousand years.
const LONG_MS: u64 = 1_000 * 365 * 86_400_000;

async fn open(home: &Home, lifecycle_day_ms: u64) -> Arc<Node> {
    let node = Node::open(NodeOptions { lifecycle_day_ms, ..home.options() }).await.unwrap();
    match node.volume_create("data", VolumeOptions::default()).await {
        Ok(_) => {}
        Err(fault) => assert_eq!(fault.kind, ErrorKind::Conflict),
    }
    node
}

async fn set(node: &Node, name: &str, document: Option<&str>) -> Result<()> {
    node.set_volume_setting("data", name, document.map(|text| text.as_bytes().to_vec())).await
}

async fn rules(node: &Node, rules: &[&str]) {
    let named =
        rules.iter().enumerate().map(|(number, rule)| format!(r#"{{"id":"{number}","on":true,{rule}}}"#));
    let document = format!(r#"{{"rules":[{}]}}"#, named.collect::<Vec<_>>().join(","));
    set(node, LIFECYCLE_SETTING, Some(&document)).await.unwrap();
}

async fn keep_versions(node: &Node) {
    loop {
        match set(node, VERSIONING_SETTING, Some("enabled")).await {
            Err(fault) if fault.kind == ErrorKind::Unavailable => tokio::task::yield_now().await,
            done => return done.unwrap(),
        }
    }
}

/// Key, and whether it is a marker, of all versions.
async fn versions(node: &Node) -> Vec<(String, bool)> {
    let page =
        node.versions("data", VersionsRequest { limit: 1_000, ..VersionsRequest::default() }).await.unwrap();
    let line = |entry| match entry {
        VersionEntry::Version { info, version, .. } => (info.key.to_string(), version.is_marker),
        VersionEntry::Prefix(_) => panic!("no delimiter"),
    };
    page.entries.into_iter().map(line).collect()
}

async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    for _ in 0..2_400 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("not within 60 s: {what}");
}

async fn tagged(node: &Node, name: &str, bytes: &[u8], attributes: Attributes) {
    let request = WriteRequest { attributes, ..WriteRequest::default() };
    let mut writer = node.create("data", &key(name), request).await.unwrap();
    write(&mut writer, bytes).await.unwrap();
    writer.finish(Finish::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_goes_and_what_a_filter_leaves_out_stays() {
    let home = Home::new(eager());
    let node = open(&home, 1).await;
    for name in ["logs/a", "logs/b/c", "keep/a", "small"] {
        put(&node, name, b"bytes").await;
    }
    put(&node, "large", &pattern(1, 5_000)).await;
    let tags = vec![("of".to_owned(), "old run".to_owned())];
    tagged(&node, "tagged", b"bytes", Attributes { tags, ..Attributes::default() }).await;
    drained(&node, "logs/a").await;
    let upload = node.upload_create("data", &key("logs/up"), Attributes::default(), None).await.unwrap();
    node.upload_create("data", &key("keep/up"), Attributes::default(), None).await.unwrap();
    rules(
        &node,
        &[
            r#""filter":{"prefix":"logs/"},"expiration":{"days":1},"abort_days":1"#,
            r#""filter":{"over":4000},"expiration":{"date":0}"#,
            r#""filter":{"tags":[["of","old run"]]},"expiration":{"days":2}"#,
        ],
    )
    .await;
    until("what is due goes", || async { names(&node, "", None).await == ["keep/a", "small"] }).await;
    until("its object in the lake goes, too", || async { !home.lake().join("data/logs/a").exists() }).await;
    until("its upload is aborted", || async {
        let page = node.uploads("data", b"", None, 10).await.unwrap();
        page.uploads.len() == 1 && page.uploads[0].key == key("keep/up")
    })
    .await;
    assert_eq!(
        node.upload_abort("data", &key("logs/up"), &upload.upload).await.unwrap_err().kind,
        ErrorKind::NotFound
    );
    // What comes later goes with a later pass, over a restart as well.
    node.stop().await;
    drop(node);
    let node = open(&home, 1).await;
    put(&node, "logs/later", b"bytes").await;
    until("what came later goes", || async { names(&node, "", None).await == ["keep/a", "small"] }).await;
    set(&node, LIFECYCLE_SETTING, None).await.unwrap();
    assert_eq!(node.volume_setting("data", LIFECYCLE_SETTING).await.unwrap(), None);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_get_markers_and_former_ones_go_as_far_as_they_are_not_held() {
    let home = Home::new(eager());
    let node = open(&home, 1).await;
    put(&node, "keep", b"before").await;
    keep_versions(&node).await;
    set(&node, "object-lock", Some("lock")).await.unwrap();
    for number in 0..5 {
        put(&node, "a", &pattern(number, 2_000)).await;
    }
    let held = Attributes { lock: Some(Lock { retention: None, is_held: true }), ..Attributes::default() };
    tagged(&node, "held", b"held", held).await;
    put(&node, "held", b"other").await;
    let of = |name: &str| {
        let (node, name) = (node.clone(), name.to_owned());
        async move {
            let lines = versions(&node).await.into_iter().filter(|line| line.0 == name);
            lines.map(|line| line.1).collect::<Vec<_>>()
        }
    };
    rules(&node, &[r#""former":{"days":1,"newer":2}"#]).await;
    until("all former versions but two go", || async { of("a").await == [false; 3] }).await;
    assert_eq!(get(&node, "a").await.unwrap(), pattern(4, 2_000));
    assert_eq!(of("held").await, [false; 2]);
    // A key that is deleted keeps what it had, and a marker goes when nothing is behind it.
    rules(
        &node,
        &[
            r#""filter":{"prefix":"a"},"expiration":{"days":1}"#,
            r#""filter":{"prefix":"a"},"former":{"days":1}"#,
            r#""filter":{"prefix":"held"},"former":{"days":1}"#,
        ],
    )
    .await;
    until("nothing is left of it", || async { of("a").await.is_empty() }).await;
    assert_eq!((of("held").await.len(), of("keep").await.len()), (2, 1), "what is held stays");
    let refused =
        VersionDelete { key: key("held"), version: None, condition: Condition::default(), bypass: false };
    assert!(node.delete_versions("data", vec![refused]).await.unwrap()[0].is_ok());
    rules(&node, &[r#""filter":{"prefix":"held"},"former":{"days":1}"#]).await;
    until("the version that is not held goes", || async { of("held").await == [true, false] }).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_says_when_it_expires_and_stays_until_then() {
    let home = Home::new(eager());
    let node = open(&home, LONG_MS).await;
    put(&node, "logs/a", b"bytes").await;
    put(&node, "b", b"bytes").await;
    for wrong in
        [r#"{"rules":[]}"#, "nonsense", r#"{"rules":[{"id":"a","on":true,"expiration":{"days":0}}]}"#]
    {
        assert_eq!(set(&node, LIFECYCLE_SETTING, Some(wrong)).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    for own in ["lifecycle-pass", "lifecycle/01"] {
        assert_eq!(set(&node, own, Some("{}")).await.unwrap_err().kind, ErrorKind::Invalid);
        assert_eq!(node.volume_setting("data", own).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    // As many rules as S3 allows, with more bytes than a row has room for.
    let far = r#""filter":{"prefix":"logs/"},"expiration":{"days":2}"#;
    let others: Vec<String> = (1..1_000)
        .map(|number| {
            format!(r#""filter":{{"prefix":"{number}{}"}},"expiration":{{"days":1}}"#, "p".repeat(300))
        })
        .collect();
    let all: Vec<&str> = std::iter::once(far).chain(others.iter().map(String::as_str)).collect();
    rules(&node, &all).await;
    let check = |node: Arc<Node>| async move {
        let info = node.stat("data", &key("logs/a")).await.unwrap();
        let expires = info.expires.unwrap();
        assert_eq!((expires.at_ms, &*expires.rule), (info.modified_ms + 2 * LONG_MS, "0"));
        let opened = node.open("data", &key("logs/a")).await.unwrap();
        assert_eq!(opened.info().expires, Some(expires));
        assert_eq!(node.stat("data", &key("b")).await.unwrap().expires, None);
        let kept = node.volume_setting("data", LIFECYCLE_SETTING).await.unwrap().unwrap();
        assert!(kept.len() > 300_000);
        node.stop().await;
    };
    check(node).await;
    check(open(&home, LONG_MS).await).await;
}
