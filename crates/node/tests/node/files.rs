//! Files through the door of a real node: bytes, names, conditions, uploads, restarts.

use crate::harness::*;
use stoker_store::{
    Attributes, AttributesChange, Condition, CopyRequest, ErrorKind, Finish, PartChoice, PartSource,
    RenameMode, Store, Subject, UploadId,
};

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_come_back_at_every_size() {
    let home = Home { drives: 2, ..Home::new(lazy()) };
    let node = home.start().await;
    for (at, len) in [0, 1, 4095, 4096, 65_537, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 21 * MIB + 7]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(at as u64, len);
        let name = format!("dir/file-{len}");
        let receipt = put(&node, &name, &bytes).await;
        assert_eq!((receipt.size, receipt.copies), (len as u64, u32::from(len > 0 || receipt.copies > 0)));
        for _ in 0..3 {
            assert!(get(&node, &name).await.unwrap() == bytes, "{name}");
        }
        let file = node.open("data", &key(&name)).await.unwrap();
        for (offset, want) in [(0, 10), (len / 2, 100_000), (len.saturating_sub(3), 10)] {
            let piece = file.read(offset as u64, want).await.unwrap();
            assert!(
                bytes[offset..].starts_with(&piece) && piece.is_empty() == (offset >= len),
                "{name} {offset}"
            );
        }
    }
    let node = home.restart(node).await;
    for (at, len) in [0, 1, 4095, 4096, 65_537, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 21 * MIB + 7]
        .into_iter()
        .enumerate()
    {
        assert!(get(&node, &format!("dir/file-{len}")).await.unwrap() == pattern(at as u64, len), "{len}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_an_open_file_ask_the_catalog_nothing() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let bytes = pattern(1, 5 * MIB);
    put(&node, "f", &bytes).await;
    assert!(counter(&node, "catalog_commits_total").await >= 1.0);
    let file = node.open("data", &key("f")).await.unwrap();
    let before = counter(&node, "catalog_reads_total").await;
    assert!(before >= 1.0);
    let reads = 1_000;
    for at in 0..reads {
        let offset = at * 4096 % bytes.len();
        assert!(bytes[offset..].starts_with(&file.read(offset as u64, 4096).await.unwrap()), "{offset}");
    }
    // What the node does by itself may ask meanwhile; a read that asked would show a thousand times.
    let asked = counter(&node, "catalog_reads_total").await - before;
    assert!(asked < reads as f64 / 2.0, "{asked} reads of the catalog for {reads} of the file");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_list_in_the_order_of_s3() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let mut all = vec![
        "a",
        "a-b",
        "a/",
        "a/b",
        "a/b/c",
        "a//x",
        "a0",
        "foo/bar",
        "foo/bar/xyzzy",
        "foo/",
        "/lead",
        "..",
        "ü/ñ",
        "b\u{1}c",
    ];
    for name in &all {
        put(&node, name, name.as_bytes()).await;
    }
    all.sort_by_key(|name| name.as_bytes());
    assert_eq!(names(&node, "", None).await, all);
    assert_eq!(
        names(&node, "", Some("/")).await,
        ["..", "/*", "a", "a-b", "a/*", "a0", "b\u{1}c", "foo/*", "ü/*"]
    );
    assert_eq!(names(&node, "a/", Some("/")).await, ["a/", "a//*", "a/b", "a/b/*"]);
    assert_eq!(names(&node, "foo/bar", Some("/")).await, ["foo/bar", "foo/bar/*"]);
    assert_eq!(names(&node, "a", Some("b")).await, ["a", "a-b*", "a/", "a//x", "a/b*", "a0"]);
    for name in &all {
        assert_eq!(get(&node, name).await.unwrap(), name.as_bytes(), "{name}");
    }
    for name in &all {
        assert!(delete(&node, name).await.unwrap(), "{name}");
    }
    assert!(names(&node, "", Some("/")).await.is_empty());
    node.volume_delete("data").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_hold_at_publish() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let first = put_if(&node, "data", "x", b"1", Condition::absent()).await.unwrap();
    let again = put_if(&node, "data", "x", b"2", Condition::absent()).await.unwrap_err();
    assert_eq!((again.kind, again.subject), (ErrorKind::Conflict, Subject::Condition));
    let matching = |etag: &str| Condition { if_match: Some(vec![etag.to_owned()]), ..Condition::default() };
    let second = put_if(&node, "data", "x", b"2", matching(&first.etag)).await.unwrap();
    let stale = put_if(&node, "data", "x", b"3", matching(&first.etag)).await.unwrap_err();
    assert_eq!((stale.kind, stale.subject), (ErrorKind::Conflict, Subject::Condition));
    let missing = put_if(&node, "data", "y", b"3", matching("*")).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
    assert_eq!(get(&node, "x").await.unwrap(), b"2");
    let refused = node.delete("data", vec![(key("x"), matching(&first.etag))]).await.unwrap().pop().unwrap();
    assert_eq!(refused.unwrap_err().subject, Subject::Condition);
    let gone = node.delete("data", vec![(key("x"), matching(&second.etag))]).await.unwrap().pop().unwrap();
    assert!(gone.unwrap());
    // Of many writers that want to be the first, one is.
    let tries = (0..20u8).map(|at| {
        let node = node.clone();
        tokio::spawn(async move { put_if(&node, "data", "race", &[at], Condition::absent()).await.is_ok() })
    });
    let mut won = 0;
    for done in tries.collect::<Vec<_>>() {
        won += u32::from(done.await.unwrap());
    }
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_write_leaves_nothing() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "x", b"old").await;
    let mut writer = node.create("data", &key("x"), Default::default()).await.unwrap();
    write(&mut writer, &pattern(1, 9 * MIB)).await.unwrap();
    drop(writer);
    assert_eq!(get(&node, "x").await.unwrap(), b"old");
    let mut short = node
        .create("data", &key("y"), stoker_store::WriteRequest { size: Some(10), ..Default::default() })
        .await
        .unwrap();
    write(&mut short, b"12345").await.unwrap();
    assert_eq!(short.finish(Finish::default()).await.unwrap_err().subject, Subject::Size);
    assert!(get(&node, "y").await.is_err());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renames_move_files_and_whole_directories() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for name in ["d/a", "d/e/b", "d/e/c", "other"] {
        put(&node, name, name.as_bytes()).await;
    }
    node.rename("data", &key("d/"), &key("x/y/"), RenameMode::Replace).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["other", "x/y/a", "x/y/e/b", "x/y/e/c"]);
    assert_eq!(get(&node, "x/y/e/b").await.unwrap(), b"d/e/b");
    node.rename("data", &key("x/y/a"), &key("other"), RenameMode::Replace).await.unwrap();
    assert_eq!(get(&node, "other").await.unwrap(), b"d/a");
    let kept = node.rename("data", &key("x/y/e/b"), &key("other"), RenameMode::NoReplace).await.unwrap_err();
    assert_eq!(kept.kind, ErrorKind::Conflict);
    node.rename("data", &key("x/y/e/b"), &key("x/z/b"), RenameMode::Replace).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["other", "x/y/e/c", "x/z/b"]);
    let inside = node.rename("data", &key("x/"), &key("x/y/w/"), RenameMode::Replace).await.unwrap_err();
    assert_eq!(inside.kind, ErrorKind::Invalid);
    let missing = node.rename("data", &key("nope"), &key("n2"), RenameMode::Replace).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
    // The last file leaves: its directories go, the new ones stay.
    node.rename("data", &key("x/y/e/c"), &key("q/r/c"), RenameMode::Replace).await.unwrap();
    node.rename("data", &key("x/z/b"), &key("q/s/b"), RenameMode::Replace).await.unwrap();
    assert_eq!(names(&node, "", Some("/")).await, ["other", "q/*"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_swap_what_they_are() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for name in ["d/a", "d/e/b", "f", "g", "x/y/h"] {
        put(&node, name, name.as_bytes()).await;
    }
    let swap = |inode| RenameMode::Exchange { inode };
    let number = node.stat("data", &key("f")).await.unwrap().inode;
    node.rename("data", &key("f"), &key("g"), swap(Some(number))).await.unwrap();
    assert_eq!(get(&node, "f").await.unwrap(), b"g");
    assert_eq!(
        (get(&node, "g").await.unwrap(), node.stat("data", &key("g")).await.unwrap().inode),
        (b"f".to_vec(), number)
    );
    // Asked for again because the answer was lost.
    let again = node.rename("data", &key("f"), &key("g"), swap(Some(number))).await.unwrap_err();
    assert_eq!((again.kind, get(&node, "f").await.unwrap()), (ErrorKind::Conflict, b"g".to_vec()));
    node.rename("data", &key("d/"), &key("x/y/"), swap(None)).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["d/h", "f", "g", "x/y/a", "x/y/e/b"]);
    assert_eq!(get(&node, "x/y/e/b").await.unwrap(), b"d/e/b");
    node.rename("data", &key("f"), &key("x/y/"), swap(None)).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["d/h", "f/a", "f/e/b", "g", "x/y"]);
    assert_eq!(get(&node, "x/y").await.unwrap(), b"g");
    for (first, second, kind) in [
        ("g", "nothing", ErrorKind::NotFound),
        ("no/", "f/", ErrorKind::NotFound),
        ("f/", "f/e/", ErrorKind::Invalid),
        ("f/a", "f/", ErrorKind::Invalid),
    ] {
        let refused = node.rename("data", &key(first), &key(second), swap(None)).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{first} {second}: {refused}");
    }
    // A file beside the directory, as only S3 makes them.
    put(&node, "f", b"beside").await;
    let refused = node.rename("data", &key("g"), &key("f/"), swap(None)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
    let node = home.restart(node).await;
    assert_eq!(names(&node, "", None).await, ["d/h", "f", "f/a", "f/e/b", "g", "x/y"]);
    assert_eq!(get(&node, "g").await.unwrap(), b"f");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_names_of_the_same_bytes() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let bytes = pattern(3, 6 * MIB);
    let source = put(&node, "a", &bytes).await;
    let request = |from: &str, to: &str| CopyRequest {
        from_volume: "data".into(),
        from: key(from),
        from_condition: Condition::default(),
        to_volume: "data".into(),
        to: key(to),
        condition: Condition::default(),
        attributes: None,
    };
    let copy = node.copy(request("a", "b")).await.unwrap();
    assert_eq!(copy.version, source.version);
    let attributes = Attributes { content_type: Some("x/y".into()), ..Attributes::default() };
    node.copy(CopyRequest { attributes: Some(attributes), ..request("a", "a") }).await.unwrap();
    assert_eq!(node.stat("data", &key("a")).await.unwrap().attributes.content_type.as_deref(), Some("x/y"));
    // The source goes, the copy stays; after a restart too, when the collector has run.
    put(&node, "a", b"new").await;
    assert!(get(&node, "b").await.unwrap() == bytes);
    assert!(delete(&node, "a").await.unwrap());
    let node = home.restart(node).await;
    assert!(get(&node, "b").await.unwrap() == bytes);
    assert!(get(&node, "a").await.is_err());
    let failed = CopyRequest {
        from_condition: Condition { if_match: Some(vec!["nope".into()]), ..Condition::default() },
        ..request("b", "c")
    };
    assert_eq!(node.copy(failed).await.unwrap_err().subject, Subject::Condition);
    assert_eq!(node.copy(request("zz", "c")).await.unwrap_err().kind, ErrorKind::NotFound);
    node.stop().await;
}

async fn part(
    node: &stoker_node::Node,
    name: &str,
    upload: &UploadId,
    number: u32,
    bytes: &[u8],
) -> PartChoice {
    let mut writer =
        node.upload_part("data", &key(name), upload, number, Some(bytes.len() as u64)).await.unwrap();
    write(&mut writer, bytes).await.unwrap();
    let receipt = writer.finish(Finish::default()).await.unwrap();
    PartChoice { number, etag: receipt.etag, checksum: None }
}

async fn complete(
    node: &stoker_node::Node,
    name: &str,
    upload: &UploadId,
    parts: Vec<PartChoice>,
) -> stoker_store::Result<stoker_store::Receipt> {
    node.upload_complete("data", &key(name), upload, parts, Condition::default(), Finish::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_in_parts_become_one_file() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let name = "big/file";
    let upload = node.upload_create("data", &key(name), Attributes::default(), None).await.unwrap().upload;
    let (one, two, three) = (pattern(1, 5 * MIB), pattern(2, 6 * MIB + 5), pattern(3, 100));
    part(&node, name, &upload, 1, b"replaced").await;
    let first = part(&node, name, &upload, 1, &one).await;
    let third = part(&node, name, &upload, 7, &three).await;
    let second = part(&node, name, &upload, 3, &two).await;
    part(&node, name, &upload, 9, b"never chosen").await;
    // Parts survive a restart (R7).
    let node = home.restart(node).await;
    let page = node.upload_parts("data", &key(name), &upload, 1, 2).await.unwrap();
    assert_eq!(
        (page.parts.iter().map(|part| part.number).collect::<Vec<_>>(), page.more),
        (vec![3, 7], true)
    );
    assert_eq!(node.uploads("data", b"big/", None, 10).await.unwrap().uploads.len(), 1);
    let wrong = |parts: Vec<PartChoice>| {
        let (node, upload) = (node.clone(), upload.clone());
        async move { complete(&node, name, &upload, parts).await.unwrap_err().subject }
    };
    assert_eq!(wrong(vec![second.clone(), first.clone()]).await, Subject::PartOrder);
    assert_eq!(wrong(vec![third.clone(), PartChoice { number: 9, ..third.clone() }]).await, Subject::Part);
    let ninth = node.upload_parts("data", &key(name), &upload, 7, 2).await.unwrap().parts.remove(0);
    let ninth = PartChoice { number: 9, etag: ninth.etag, checksum: None };
    assert_eq!(wrong(vec![third.clone(), ninth]).await, Subject::PartSize);
    assert!(get(&node, name).await.is_err());
    let parts = vec![first, second, third];
    let receipt = complete(&node, name, &upload, parts.clone()).await.unwrap();
    assert!(receipt.etag.ends_with("-3"));
    let whole = [one.clone(), two.clone(), three.clone()].concat();
    assert!(get(&node, name).await.unwrap() == whole);
    let info = node.stat("data", &key(name)).await.unwrap();
    assert_eq!(info.part_sizes, [one.len() as u64, two.len() as u64, three.len() as u64]);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &whole);
    assert_eq!(info.checksums[0].value, crc.to_be_bytes());
    // A client whose answer was lost asks again, and gets it, as long as the file is what the upload became.
    assert_eq!(complete(&node, name, &upload, parts.clone()).await.unwrap().etag, receipt.etag);
    let other = UploadId(receipt.version.to_string());
    assert_eq!(complete(&node, name, &other, parts).await.unwrap_err().subject, Subject::Upload);
    // A part by reference to a range, and an abort.
    let second = node.upload_create("data", &key("other"), Attributes::default(), None).await.unwrap().upload;
    let source = PartSource {
        volume: "data".into(),
        key: key(name),
        condition: Condition::default(),
        range: Some((1_000, 7_000_000)),
    };
    let copied = node.upload_part_copy("data", &key("other"), &second, 1, source).await.unwrap();
    let choice = vec![PartChoice { number: 1, etag: copied.etag, checksum: None }];
    complete(&node, "other", &second, choice).await.unwrap();
    assert!(get(&node, "other").await.unwrap() == whole[1_000..7_000_000]);
    let third = node.upload_create("data", &key("never"), Attributes::default(), None).await.unwrap().upload;
    part(&node, "never", &third, 1, b"x").await;
    node.upload_abort("data", &key("never"), &third).await.unwrap();
    assert_eq!(node.upload_abort("data", &key("never"), &third).await.unwrap_err().subject, Subject::Upload);
    let node = home.restart(node).await;
    assert!(get(&node, name).await.unwrap() == whole);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_add_behind_what_is_there() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let mut whole = Vec::new();
    for at in 0..20 {
        let more = pattern(at, 10_000 + at as usize * 777);
        append(&node, "log", &more).await;
        whole.extend_from_slice(&more);
    }
    assert!(get(&node, "log").await.unwrap() == whole);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &whole);
    assert_eq!(node.stat("data", &key("log")).await.unwrap().checksums[0].value, crc.to_be_bytes());
    // A copy of an earlier state stays what it was.
    let request = CopyRequest {
        from_volume: "data".into(),
        from: key("log"),
        from_condition: Condition::default(),
        to_volume: "data".into(),
        to: key("then"),
        condition: Condition::default(),
        attributes: None,
    };
    node.copy(request).await.unwrap();
    let then = whole.clone();
    append(&node, "log", b"more").await;
    whole.extend_from_slice(b"more");
    assert!(delete(&node, "then").await.is_ok());
    put(&node, "unrelated", b"x").await;
    let node = home.restart(node).await;
    assert!(get(&node, "log").await.unwrap() == whole);
    assert!(then.len() < whole.len());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_and_quota() {
    let home = Home::new(lazy());
    let node = home.start().await;
    put(&node, "x", b"1").await;
    let tags = vec![("a".to_owned(), "b".to_owned())];
    let change =
        AttributesChange { tags: Some(tags.clone()), mode: Some(0o100600), ..AttributesChange::default() };
    let info = node.set_attributes("data", &key("x"), change).await.unwrap();
    assert_eq!((info.attributes.tags, info.attributes.mode), (tags, Some(0o100600)));
    let mut policy = lazy();
    policy.quota_bytes = 1_000;
    node.volume_set("data", policy).await.unwrap();
    let full = put_if(&node, "data", "y", &[0; 2_000], Condition::default()).await.unwrap_err();
    assert_eq!((full.kind, full.subject), (ErrorKind::Full, Subject::Quota));
    put(&node, "y", &[0; 500]).await;
    let info = node.volume("data").await.unwrap();
    assert_eq!((info.files, info.bytes), (2, 501));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_at_once_leave_no_empty_directory() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for round in 0..5 {
        let all: Vec<String> = (0..40).map(|at| format!("tree/{round}/{}/{at}", at % 3)).collect();
        for name in &all {
            put(&node, name, b"x").await;
        }
        let requests = all.iter().map(|name| (key(name), Condition::default())).collect();
        let done = node.delete("data", requests).await.unwrap();
        assert!(done.into_iter().all(|each| each.unwrap()));
        assert!(names(&node, "", Some("/")).await.is_empty(), "round {round}");
    }
    node.stop().await;
}
