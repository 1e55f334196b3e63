//! A lake that refuses, fails, answers late and is written by a zombie: nothing acknowledged is lost, no commit waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, stream};

use crate::harness::*;
use stoker_catalog::Result as CatalogResult;
use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{BoxFuture, Catalog, Commit, Outcome, Page, Range, Row, Watch};
use stoker_format::VersionId;
use stoker_lake::{Attributes, Condition as LakeCondition, Faults, Lake, PutOptions, TwinLake};
use stoker_node::{CatalogChoice, LakeOpener, Node, NodeOptions};
use stoker_schema::rows::{LakeKeyRow, RowValue, keys};
use stoker_store::{
    Condition, CopyRequest, DrainState, ErrorKind, PartChoice, RenameMode, Store, Subject, VolumeOptions,
};

const MIB: usize = 1 << 20;

struct Cell {
    home: Home,
    lake: Arc<TwinLake>,
    catalog: Arc<Memory>,
}

impl Cell {
    fn new(seed: u64) -> Cell {
        Cell {
            home: Home::new(eager()),
            lake: Arc::new(TwinLake::new(seed)),
            catalog: Arc::new(Memory::with_running_clock()),
        }
    }

    fn options(&self) -> NodeOptions {
        let lake = self.lake.clone();
        NodeOptions {
            lake: Some("twin://lake".into()),
            lake_opener: Some(LakeOpener(Arc::new(move |_| lake.clone() as Arc<dyn Lake>))),
            catalog: CatalogChoice::Given(self.catalog.clone()),
            lake_settle_ms: 500,
            ..self.home.options()
        }
    }

    async fn start(&self) -> Arc<Node> {
        let node = Node::open(self.options()).await.unwrap();
        if node.volume("data").await.is_err() {
            node.volume_create("data", Default::default()).await.unwrap();
        }
        node
    }
}

/// Waits until nothing is left to do for the lake.
async fn settled(cell: &Cell, node: &Arc<Node>) {
    for _ in 0..2_000 {
        cell.lake.settle();
        let status = node.status().await.unwrap();
        let rows = |table: &'static [u8]| {
            let catalog = cell.catalog.clone();
            async move { catalog.range(Range::prefix(table, 1)).await.unwrap().rows.len() }
        };
        if status.dirty_files == 0 && rows(b"t").await == 0 && rows(b"R").await == 0 && rows(b"a").await == 0
        {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    for table in [b"t", b"R", b"a", b"L", b"x"] {
        for row in cell.catalog.range(Range::prefix(table, 20)).await.unwrap().rows {
            eprintln!("left: {}", String::from_utf8_lossy(&row.key).escape_debug());
        }
    }
    for conflict in node.conflicts(None).await.unwrap() {
        eprintln!("in conflict: {conflict:?}");
        for row in cell.catalog.range(Range::prefix(b"k", 100)).await.unwrap().rows {
            if row.key.ends_with(conflict.file.key.as_bytes()) {
                eprintln!("claim: {:?}", LakeKeyRow::of(&row).unwrap());
            }
        }
        eprintln!("there: {:?}", cell.lake.head(conflict.file.key.as_bytes()).await);
    }
    panic!("the lake does not settle: {:?}", node.status().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_that_refuses_everything_blocks_no_commit() {
    let mut cell = Cell::new(1);
    cell.home.ring_bytes = 256 << 20;
    let node = cell.start().await;
    cell.lake.refuse_all(true);
    let mut kept = Vec::new();
    // Until the ring is full of bytes that must stay: then writers are told to slow down.
    let full = loop {
        let name = format!("f/{}", kept.len());
        let bytes = pattern(kept.len() as u64, 4 * MIB);
        match put_if(&node, "data", &name, &bytes, Condition::default()).await {
            Ok(receipt) => {
                assert_eq!(receipt.drain, DrainState::Dirty);
                kept.push(name);
            }
            Err(fault) => break fault,
        }
        assert!(kept.len() < 100, "256 MiB cannot hold this");
    };
    assert_eq!(full.kind, ErrorKind::Full, "{full}");
    assert!(kept.len() >= 20, "only {} chunks of 4 MiB fit in 256 MiB", kept.len());
    assert!(node.status().await.unwrap().lake_trouble.is_some());
    assert!(cell.lake.objects().is_empty());
    // A restart in the middle of it changes nothing.
    node.stop().await;
    drop(node);
    let node = cell.start().await;
    for (at, name) in kept.iter().enumerate() {
        assert!(get(&node, name).await.unwrap() == pattern(at as u64, 4 * MIB), "{name}");
    }
    cell.lake.refuse_all(false);
    for name in &kept {
        drained(&node, name).await;
    }
    settled(&cell, &node).await;
    let objects = cell.lake.objects();
    for (at, name) in kept.iter().enumerate() {
        assert!(objects[name.as_bytes()].body == pattern(at as u64, 4 * MIB), "{name}");
    }
    // There is room again.
    put(&node, "after", &pattern(0, 4 * MIB)).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_goes_before_the_lake_has_seen_its_deletes() {
    let cell = Cell::new(4);
    let node = cell.start().await;
    put(&node, "a", b"1").await;
    put(&node, "b", b"2").await;
    drained(&node, "a").await;
    drained(&node, "b").await;
    cell.lake.refuse_all(true);
    delete(&node, "a").await.unwrap();
    let full = node.volume_delete("data").await.unwrap_err();
    assert_eq!((full.kind, full.subject), (ErrorKind::Conflict, Subject::VolumeContents), "{full}");
    delete(&node, "b").await.unwrap();
    node.volume_delete("data").await.unwrap();
    assert_eq!(node.volume("data").await.unwrap_err().kind, ErrorKind::NotFound);
    assert!(node.volumes().await.unwrap().is_empty());
    assert_eq!(get(&node, "a").await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(node.volume_delete("data").await.unwrap_err().kind, ErrorKind::NotFound);
    // Its place is not free for others yet.
    let options = VolumeOptions { lake: Some("twin://lake/data".into()), ..VolumeOptions::default() };
    assert_eq!(node.volume_create("other", options).await.unwrap_err().subject, Subject::Lake);
    // Made again, it is empty and takes files, also after a restart.
    node.stop().await;
    drop(node);
    let node = cell.start().await;
    assert!(names(&node, "", None).await.is_empty());
    put(&node, "b", b"3").await;
    cell.lake.refuse_all(false);
    drained(&node, "b").await;
    settled(&cell, &node).await;
    assert_eq!(cell.lake.objects().into_keys().collect::<Vec<_>>(), [b"b"]);
    // And for good: nothing of it is left in lake and catalog.
    delete(&node, "b").await.unwrap();
    node.volume_delete("data").await.unwrap();
    settled(&cell, &node).await;
    for _ in 0..2_000 {
        let rows = cell.catalog.range(Range::prefix(b"V", 1)).await.unwrap().rows;
        if rows.is_empty() {
            assert!(cell.lake.objects().is_empty());
            return node.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the volume does not leave");
}

/// R10: an upload that another node began and lost its claim on ends up nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zombie_upload_after_takeover() {
    let cell = Cell::new(2);
    let node = cell.start().await;
    let volume = node.volume("data").await.unwrap().id;
    // The zombie claimed the key, recorded its upload, sent a part, and then hung.
    let upload = cell.lake.upload_begin(b"x", Attributes::default()).await.unwrap();
    let part = cell.lake.upload_part(b"x", &upload, 1, vec![pattern(9, 6 * MIB).into()]).await.unwrap();
    let row = LakeKeyRow {
        fence: 7,
        session: [9; 16],
        version: [9; 12],
        upload: Some(upload.clone()),
        part_bytes: 16 << 20,
        ..LakeKeyRow::default()
    };
    let claim = keys::lake_key(volume, b"x");
    let _ = cell.catalog.commit(Commit::new().put(claim.clone(), row.encode())).await.unwrap();
    let zombie_seq = cell.catalog.get(&[&claim]).await.unwrap().pop().flatten().unwrap().seq;
    let bytes = pattern(1, 20 * MIB);
    put(&node, "x", &bytes).await;
    drained(&node, "x").await;
    // It wakes up: its upload is gone, and its claim is not the one in the catalog any more.
    let options = PutOptions { condition: LakeCondition::None, ..PutOptions::default() };
    assert!(cell.lake.upload_complete(b"x", &upload, vec![part], options).await.is_err());
    let late = Commit::new().seq(claim.clone(), zombie_seq).put(claim.clone(), row.encode());
    assert!(matches!(cell.catalog.commit(late).await.unwrap(), stoker_catalog::Outcome::Failed { .. }));
    let now = cell.catalog.get(&[&claim]).await.unwrap().pop().flatten().unwrap();
    assert!(LakeKeyRow::of(&now).unwrap().fence > 7);
    assert!(cell.lake.objects()[&b"x"[..]].body == bytes);
    assert!(cell.lake.uploads().is_empty());
    assert!(get(&node, "x").await.unwrap() == bytes);
    node.stop().await;
}

/// An upload that an earlier boot of this node began goes on where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_an_earlier_boot_is_resumed() {
    let mut cell = Cell::new(3);
    cell.home.policy = lazy();
    let node = cell.start().await;
    let bytes = pattern(4, 40 * MIB);
    let receipt = put(&node, "x", &bytes).await;
    let volume = node.volume("data").await.unwrap().id;
    let upload = cell.lake.upload_begin(b"x", Attributes::default()).await.unwrap();
    let first = bytes[..16 << 20].to_vec();
    cell.lake.upload_part(b"x", &upload, 1, vec![first.into()]).await.unwrap();
    let row = LakeKeyRow {
        fence: 1,
        session: [1; 16],
        version: receipt.version.0,
        upload: Some(upload.clone()),
        part_bytes: 16 << 20,
        ..LakeKeyRow::default()
    };
    let _ = cell.catalog.commit(Commit::new().put(keys::lake_key(volume, b"x"), row.encode())).await.unwrap();
    let before = cell.lake.calls();
    node.drain("data", b"").await.unwrap();
    drained(&node, "x").await;
    assert!(cell.lake.objects()[&b"x"[..]].body == bytes);
    assert!(cell.lake.uploads().is_empty());
    // List the parts, send two, complete, look: no new upload, no abort.
    assert!(cell.lake.calls() - before <= 6, "{} calls", cell.lake.calls() - before);
    node.stop().await;
}

/// Random operations with a lake that fails a part of everything; then it gets well, and both sides agree with the model.
async fn storm(seed: u64) {
    let cell = Cell::new(seed);
    let mut node = cell.start().await;
    cell.lake.set_faults(Faults::evenly(0.25));
    // What is late takes effect within the time that the node waits for it.
    let lake = cell.lake.clone();
    let tide = tokio::spawn(async move {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            lake.settle();
        }
    });
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut state = seed | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for step in 0..120u64 {
        if std::env::var_os("STOKER_TRACE").is_some() {
            eprintln!("step {step}");
        }
        let name = |at: u64| format!("d{}/f{}", at % 3, at % 5);
        let (a, b) = (name(random(15)), name(random(15)));
        match random(12) {
            0..=4 => {
                let len = [10, 5_000, 70_000, 5 * MIB][random(4) as usize];
                let bytes = pattern(seed * 1_000 + step, len);
                put(&node, &a, &bytes).await;
                model.insert(a, bytes);
            }
            5..=6 => {
                assert_eq!(delete(&node, &a).await.unwrap(), model.remove(&a).is_some(), "{a}");
            }
            7 => {
                let request = CopyRequest {
                    from_volume: "data".into(),
                    from: key(&a),
                    from_condition: Condition::default(),
                    to_volume: "data".into(),
                    to: key(&b),
                    condition: Condition::default(),
                    attributes: None,
                };
                if let Some(bytes) = model.get(&a).cloned() {
                    node.copy(request).await.unwrap();
                    model.insert(b, bytes);
                }
            }
            8 => {
                if let Some(bytes) = model.get(&a).cloned() {
                    node.rename("data", &key(&a), &key(&b), RenameMode::Replace).await.unwrap();
                    model.remove(&a);
                    model.insert(b, bytes);
                }
            }
            9 => {
                let (from, to) = (format!("d{}/", random(3)), format!("e{}/", random(3)));
                let moved: Vec<String> =
                    model.keys().filter(|name| name.starts_with(&from)).cloned().collect();
                let taken = model.keys().any(|name| name.starts_with(&to));
                let done = node.rename("data", &key(&from), &key(&to), RenameMode::Replace).await;
                assert_eq!(done.is_ok(), !moved.is_empty() && !taken, "{from} to {to}: {done:?}");
                if done.is_ok() {
                    for name in moved {
                        let bytes = model.remove(&name).unwrap();
                        model.insert(format!("{to}{}", &name[from.len()..]), bytes);
                    }
                }
            }
            10 => {
                if let Some(bytes) = model.get_mut(&a) {
                    // Some of it may be only in the lake by now, which says so.
                    let mut writer = node
                        .create(
                            "data",
                            &key(&a),
                            stoker_store::WriteRequest { append: true, ..Default::default() },
                        )
                        .await
                        .unwrap();
                    write(&mut writer, b"tail").await.unwrap();
                    if writer.finish(Default::default()).await.is_ok() {
                        bytes.extend_from_slice(b"tail");
                    }
                }
            }
            _ => {
                if step % 3 == 0 {
                    node.stop().await;
                    drop(node);
                    node = cell.start().await;
                }
            }
        }
    }
    for (name, bytes) in &model {
        assert!(get(&node, name).await.unwrap() == *bytes, "{name} before the lake is well");
    }
    cell.lake.set_faults(Faults::default());
    settled(&cell, &node).await;
    tide.abort();
    let expect: Vec<&[u8]> = model.keys().map(|name| name.as_bytes()).collect();
    let objects = cell.lake.objects();
    let found: Vec<&[u8]> = objects.keys().map(Vec::as_slice).collect();
    let text =
        |names: &[&[u8]]| names.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect::<Vec<_>>();
    assert_eq!(text(&found), text(&expect), "what the lake holds");
    for (name, bytes) in &model {
        assert!(objects[name.as_bytes()].body == *bytes, "{name} in the lake");
        assert!(get(&node, name).await.unwrap() == *bytes, "{name}");
    }
    assert!(node.conflicts(None).await.unwrap().is_empty());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lake_that_fails_now_and_then_ends_up_right() {
    let first = std::env::var("STOKER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let seeds =
        if std::env::var_os("STOKER_FULL").is_some() { first..first + 40 } else { first..first + 3u64 };
    // The last ones once found an older version written over a newer one, and objects that nobody removed.
    // A few at a time: each waits most of the time, for a lake that settles.
    let storms = seeds.chain([206, 302, 408, 410]).map(|seed| async move {
        tokio::spawn(storm(seed)).await.unwrap_or_else(|_| panic!("seed {seed} failed"));
    });
    stream::iter(storms).buffer_unordered(4).collect::<Vec<()>>().await;
}

/// A catalog in which a file is deleted right before the layout of a version is read for the n-th time.
struct Deleting {
    inner: Arc<Memory>,
    node: std::sync::OnceLock<Arc<Node>>,
    /// How many reads of layouts are still let through; below zero it is over.
    left: std::sync::atomic::AtomicI64,
}

impl Catalog for Deleting {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, CatalogResult<Vec<Option<Row>>>> {
        self.inner.get(keys)
    }

    fn range(&self, range: Range) -> BoxFuture<'_, CatalogResult<Page>> {
        Box::pin(async move {
            if range.start.starts_with(&keys::version_all(VersionId::ZERO)[..1])
                && self.left.fetch_sub(1, Ordering::SeqCst) == 0
                && let Some(node) = self.node.get()
            {
                delete(node, "f").await.unwrap();
            }
            self.inner.range(range).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, CatalogResult<Outcome>> {
        self.inner.commit(commit)
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.inner.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, CatalogResult<u64>> {
        self.inner.seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, CatalogResult<u64>> {
        self.inner.now_ms()
    }

    fn describe(&self) -> String {
        "deleting".into()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_deleted_as_its_drain_begins_is_no_trouble_of_the_lake() {
    let cell = Cell { home: Home::new(lazy()), ..Cell::new(7) };
    let catalog =
        Arc::new(Deleting { inner: cell.catalog.clone(), node: Default::default(), left: (-1).into() });
    let node = NodeOptions { catalog: CatalogChoice::Given(catalog.clone()), ..cell.options() };
    let node = Node::open(node).await.unwrap();
    let _ = catalog.node.set(node.clone());
    node.volume_create("data", VolumeOptions::default()).await.unwrap();
    let mut deleted = 0;
    for before in 0..4 {
        // In two parts, so that its layout has rows of its own.
        let upload = node.upload_create("data", &key("f"), Default::default(), None).await.unwrap().upload;
        let mut parts = Vec::new();
        for (number, len) in [(1, 5 * MIB), (2, 1000)] {
            let size = Some(len as u64);
            let mut writer = node.upload_part("data", &key("f"), &upload, number, size).await.unwrap();
            write(&mut writer, &pattern(before as u64, len)).await.unwrap();
            let etag = writer.finish(Default::default()).await.unwrap().etag;
            parts.push(PartChoice { number, etag, checksum: None });
        }
        let done = Condition::default();
        node.upload_complete("data", &key("f"), &upload, parts, done, Default::default()).await.unwrap();
        catalog.left.store(before, Ordering::SeqCst);
        node.drain("data", b"").await.unwrap();
        settled(&cell, &node).await;
        deleted += usize::from(get(&node, "f").await.is_err());
        catalog.left.store(-1, Ordering::SeqCst);
        assert_eq!(node.status().await.unwrap().lake_trouble, None, "deleted before read {before}");
        let _ = delete(&node, "f").await;
        settled(&cell, &node).await;
    }
    assert!(deleted > 0, "the drain reads layouts");
    node.stop().await;
}
