//! Backup, restore and salvage on real nodes: what the catalog knew is noted, the catalog is taken away, and what comes
//! back is compared with the note.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use stoker_catalog::Row;
use stoker_catalog::backup::{Header, Kind, Writer};
use stoker_node::Node;
use stoker_salvage::{
    RestoreOptions, SalvageOptions, SalvageReport, StoppedNode, Target, compare, restore, salvage,
};
use stoker_store::{
    Access, AccessKey, Attributes, AttributesChange, Condition, CopyRequest, ErrorKind, Finish, ListEntry,
    ListRequest, Order, PartChoice, RenameMode, Report, Result, SET_MARKER, Store, VolumeOptions,
    VolumePolicy, WriteRequest,
};

use crate::harness::{
    Home, copy_request, counter, delete, drained, eager, get, get_from, key, lazy, names, pattern, put,
    set_add, set_begin, write,
};

/// Takes no part in telling.
fn quiet(_: &str, _: u64) {}

/// What a user sees of a file.
#[derive(PartialEq, Debug)]
struct Seen {
    content: Vec<u8>,
    etag: String,
    attributes: Attributes,
    parts: Vec<u64>,
}

/// What a user sees of a node.
#[derive(PartialEq, Debug, Default)]
struct State {
    files: BTreeMap<String, Seen>,
    sets: Vec<(u64, String, u32)>,
    keys: Vec<AccessKey>,
    policies: BTreeMap<String, VolumePolicy>,
}

async fn state(node: &Node) -> State {
    let mut state = State { keys: node.access_keys().await.unwrap(), ..State::default() };
    for volume in node.volumes().await.unwrap() {
        let name = volume.name.as_str();
        state.policies.insert(name.to_owned(), volume.policy);
        let mut request = ListRequest { prefix: Vec::new(), delimiter: None, after: None, limit: 100 };
        loop {
            let page = node.list(name, request.clone()).await.unwrap();
            for entry in &page.entries {
                let ListEntry::File(info) = entry else { panic!("no delimiter, no groups") };
                let info = node.stat(name, &info.key).await.unwrap();
                let content = get_from(node, name, &info.key.to_string()).await.unwrap();
                let mut attributes = info.attributes;
                attributes.meta.sort();
                attributes.headers.sort();
                let seen = Seen { content, etag: info.etag, attributes, parts: info.part_sizes };
                state.files.insert(format!("{name}:{}", info.key), seen);
            }
            request.after = page.entries.last().map(|entry| entry.name().to_vec());
            if !page.more {
                break;
            }
        }
        let sets = node.sets(name, None, 100).await.unwrap().sets;
        let mut sets: Vec<_> = sets.into_iter().filter(|set| set.seq > 0).collect();
        sets.sort_by_key(|set| set.seq);
        state.sets.extend(sets.into_iter().map(|set| (set.set.0, set.path.to_string(), set.shards)));
    }
    state
}

fn differences(before: &State, after: &State) -> Vec<String> {
    let mut found = Vec::new();
    for name in before.files.keys().chain(after.files.keys()) {
        match (before.files.get(name), after.files.get(name)) {
            (Some(before), Some(after)) if before != after => found.push(format!(
                "{name}: {} {} {:?} {:?}, then {} {} {:?} {:?}",
                before.content.len(),
                before.etag,
                before.attributes,
                before.parts,
                after.content.len(),
                after.etag,
                after.attributes,
                after.parts
            )),
            (Some(_), None) => found.push(format!("{name} is missing")),
            (None, Some(_)) => found.push(format!("{name} is back from the dead")),
            _ => {}
        }
    }
    if before.sets != after.sets {
        found.push(format!("sets {:?}, then {:?}", before.sets, after.sets));
    }
    if (&before.keys, &before.policies) != (&after.keys, &after.policies) {
        found.push("other keys or policies".to_owned());
    }
    found
}

fn stopped(home: &Home) -> StoppedNode {
    let options = home.options();
    let drives = options.drives.iter().map(|drive| drive.path.clone()).collect();
    let secrets = stoker_node::secrets_kept(&options.dir).unwrap();
    StoppedNode { dir: options.dir, drives, secrets }
}

fn options(home: &Home, backup: Option<PathBuf>) -> SalvageOptions {
    SalvageOptions {
        home: stopped(home),
        others: Vec::new(),
        target: Target::Embedded,
        backup,
        lake_options: home.options().lake_options,
        lake_opener: None,
    }
}

async fn salvaged(home: &Home, backup: Option<PathBuf>) -> SalvageReport {
    salvage(&options(home, backup), &quiet).await.unwrap()
}

fn catalog(home: &Home) -> PathBuf {
    home.options().dir.join("catalog.redb")
}

/// Waits until so many records and chunks are gone.
async fn collected(node: &Node, count: f64) {
    for _ in 0..1_000 {
        if counter(node, "collected_chunks_total").await >= count {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{count} records were to be collected");
}

async fn stop(node: Arc<Node>) {
    node.stop().await;
}

/// A small generator, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn name(&mut self) -> String {
        let folder = ["", "a/", "a/b/", "c/"][self.roll(4) as usize];
        format!("{folder}f{}", self.roll(6))
    }
}

fn attributes(dice: &mut Dice) -> Attributes {
    match dice.roll(2) {
        0 => Attributes::default(),
        _ => Attributes {
            content_type: Some("text/plain".into()),
            headers: vec![("cache-control".into(), format!("max-age={}", dice.roll(100)))],
            meta: vec![("colour".into(), "red".into()), ("a".into(), dice.roll(9).to_string())],
            mode: Some(0o100644),
            owner: Some((1000, 100)),
            ..Attributes::default()
        },
    }
}

/// Something random. What is refused is refused.
async fn act(node: &Node, volume: &str, dice: &mut Dice) -> Result<()> {
    let name = dice.name();
    match dice.roll(15) {
        0..=3 => {
            let bytes =
                pattern(dice.roll(u64::MAX), dice.roll(3) as usize * 300_000 + dice.roll(50) as usize);
            let request = WriteRequest { attributes: attributes(dice), ..WriteRequest::default() };
            let mut writer = node.create(volume, &key(&name), request).await?;
            write(&mut writer, &bytes).await?;
            writer.finish(Finish::default()).await?;
        }
        4 => {
            let request = WriteRequest { append: true, ..WriteRequest::default() };
            let mut writer = node.create(volume, &key(&name), request).await?;
            write(&mut writer, &pattern(dice.roll(u64::MAX), 10_000)).await?;
            writer.finish(Finish::default()).await?;
        }
        5 | 6 => {
            node.delete(volume, vec![(key(&name), Condition::default())]).await?.pop().unwrap()?;
        }
        7 => {
            let to = dice.name();
            node.rename(volume, &key(&name), &key(&to), RenameMode::Replace).await?;
        }
        8 => {
            let (from, to) = (["a/", "a/b/", "c/"][dice.roll(3) as usize], format!("d{}/", dice.roll(3)));
            node.rename(volume, &key(from), &key(&to), RenameMode::Replace).await?;
        }
        12 => {
            let to = dice.name();
            node.rename(volume, &key(&name), &key(&to), RenameMode::Exchange { inode: None }).await?;
        }
        14 => {
            let to = dice.name();
            node.link(volume, &key(&name), &key(&to)).await?;
        }
        13 => {
            let mut pick = || key(["a/", "c/", "d0/", "d1/", "a/b/"][dice.roll(5) as usize]);
            let (first, second) = (pick(), pick());
            node.rename(volume, &first, &second, RenameMode::Exchange { inode: None }).await?;
        }
        9 => {
            let to = dice.name();
            let volume = volume.to_owned();
            let request =
                CopyRequest { from_volume: volume.clone(), to_volume: volume, ..copy_request(&name, &to) };
            node.copy(request).await?;
        }
        10 => {
            let change = AttributesChange {
                tags: Some(vec![("t".into(), dice.roll(100).to_string())]),
                ..AttributesChange::default()
            };
            node.set_attributes(volume, &key(&name), change).await?;
        }
        _ => {
            let upload = node.upload_create(volume, &key(&name), attributes(dice), None).await?;
            let mut parts = Vec::new();
            for number in 1..=2 {
                let mut part = node.upload_part(volume, &key(&name), &upload.upload, number, None).await?;
                write(&mut part, &pattern(dice.roll(u64::MAX), 5 << 20)).await?;
                let etag = part.finish(Finish::default()).await?.etag;
                parts.push(PartChoice { number, etag, checksum: None });
            }
            let (condition, finish) = (Condition::default(), Finish::default());
            node.upload_complete(volume, &key(&name), &upload.upload, parts, condition, finish).await?;
        }
    }
    Ok(())
}

async fn volumes(node: &Node) {
    let never = VolumeOptions { lake: Some("none".into()), policy: None };
    node.volume_create("bare", never).await.unwrap();
    let quick = VolumeOptions { lake: None, policy: Some(eager()) };
    node.volume_create("quick", quick).await.unwrap();
    let access = Access { prefixes: vec!["data".into()], uid: 7, ..Access::default() };
    let secret_key = "secret".to_owned();
    let key = AccessKey { access_key: "KEY".into(), secret_key, access, created_ms: 5 };
    node.access_key_put(key).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn random_changes_are_all_found_again_without_a_catalog() {
    for seed in 0..6 {
        let mut home = Home::new(lazy());
        home.drives = 2;
        let node = home.start().await;
        volumes(&node).await;
        let mut dice = Dice(seed);
        for _ in 0..60 {
            let volume = ["data", "bare", "quick"][dice.roll(3) as usize];
            let _ = act(&node, volume, &mut dice).await;
            if dice.roll(8) == 0 {
                let _ = node.drain("data", b"").await;
            }
        }
        let before = state(&node).await;
        assert!(before.files.len() > 5, "seed {seed}: the test tests something");
        stop(node).await;
        std::fs::rename(catalog(&home), home.dir.path().join("before.redb")).unwrap();
        let refused = Node::open(home.options()).await.err().expect("a catalog that is gone is noticed");
        assert!(refused.message.contains("salvage"), "{refused}");
        std::fs::remove_file(catalog(&home)).unwrap();
        let report = salvaged(&home, None).await;
        let node = home.open().await;
        let found = differences(&before, &state(&node).await);
        assert!(found.is_empty(), "seed {seed}: {found:#?} {report:?}");
        assert_eq!(report.files, before.files.len() as u64, "seed {seed}: {report:?}");
        // And once more: what the first one wrote down is found as well.
        stop(node).await;
        std::fs::remove_file(catalog(&home)).unwrap();
        let report = salvaged(&home, None).await;
        let node = home.open().await;
        let found = differences(&before, &state(&node).await);
        assert!(found.is_empty(), "seed {seed}, again: {found:#?} {report:?}");
        // It is a catalog like any other: what is dirty drains, what is deleted goes.
        put(&node, "after", b"life goes on").await;
        node.drain("data", b"").await.unwrap();
        drained(&node, "after").await;
        stop(node).await;
    }
}

/// The wrapped keys are kept beside the catalog, and open the name records.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_an_encrypted_volume_are_found_again_without_a_catalog() {
    let home = Home::new(lazy());
    let node = home.start().await;
    let order = Order::EncryptedVolume { name: "vault".into(), options: VolumeOptions::default() };
    node.operate(order).await.unwrap();
    let bytes = pattern(1, 5 << 20);
    for name in ["old", "gone", "new"] {
        if name == "new" {
            node.operate(Order::DataKeyRotate { volume: "vault".into() }).await.unwrap();
        }
        let mut writer = node.create("vault", &key(name), WriteRequest::default()).await.unwrap();
        write(&mut writer, &bytes).await.unwrap();
        writer.finish(Finish::default()).await.unwrap();
    }
    node.delete("vault", vec![(key("gone"), Condition::default())]).await.unwrap();
    let before = state(&node).await;
    stop(node).await;
    std::fs::remove_file(catalog(&home)).unwrap();
    // Without the key that wraps them, nothing opens.
    let strange = StoppedNode { secrets: vec![[9; 32]], ..stopped(&home) };
    let report = salvage(&SalvageOptions { home: strange, ..options(&home, None) }, &quiet).await.unwrap();
    assert!(
        report.files == 0 && report.notes.iter().any(|note| note.contains("cannot be opened")),
        "{report:?}"
    );
    std::fs::remove_file(catalog(&home)).unwrap();
    let report = salvaged(&home, None).await;
    assert_eq!((report.files, report.lost_files), (2, 0), "{report:?}");
    let node = home.open().await;
    let found = differences(&before, &state(&node).await);
    assert!(found.is_empty(), "{found:#?} {report:?}");
    stop(node).await;
}

/// What was deleted stays so, although the record of the delete is let go after the first salvage and the drives still have what was
/// deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_does_not_come_back_by_a_second_salvage() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for (at, name) in ["deleted", "replaced", "stays"].into_iter().enumerate() {
        put(&node, name, &pattern(at as u64, 5_000)).await;
    }
    // Whoever reads keeps the dead on the drives.
    let readers = [node.open("data", &key("deleted")).await, node.open("data", &key("replaced")).await];
    assert!(readers.iter().all(Result::is_ok));
    put(&node, "replaced", b"another").await;
    assert!(delete(&node, "deleted").await.unwrap());
    stop(node).await;
    drop(readers);
    for round in 0..3 {
        std::fs::remove_file(catalog(&home)).unwrap();
        let report = salvaged(&home, None).await;
        assert_eq!((report.files, report.lost_files), (2, 0), "{round}: {report:?}");
        let node = home.open().await;
        assert_eq!(names(&node, "", None).await, ["replaced", "stays"], "{round}");
        assert_eq!(get(&node, "replaced").await.unwrap(), b"another", "{round}");
        if round == 0 {
            // The records of the two that are dead, and then that of the delete.
            collected(&node, 3.0).await;
            assert!(delete(&node, "replaced").await.unwrap());
            put(&node, "replaced", b"another").await;
        }
        stop(node).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn published_sets_come_back_in_their_order_and_open_ones_do_not() {
    let home = Home::new(lazy());
    let node = home.start().await;
    for (target, count) in [("ckpt/1/", 2), ("ckpt/2/", 3), ("ckpt/3/", 1)] {
        let set = set_begin(&node, target, count).await.unwrap().set;
        for number in 0..count {
            let (name, bytes) = (format!("{target}s{number}"), pattern(u64::from(number) + 9, 70_000));
            set_add(&node, set, number, &name, &bytes).await.unwrap();
        }
        node.set_publish("data", set).await.unwrap();
        if target == "ckpt/2/" {
            node.drain("data", target.as_bytes()).await.unwrap();
            marked(&node, target).await;
        }
    }
    let open = set_begin(&node, "ckpt/4/", 2).await.unwrap().set;
    set_add(&node, open, 0, "ckpt/4/s0", b"half of it").await.unwrap();
    let before = state(&node).await;
    stop(node).await;
    std::fs::remove_file(catalog(&home)).unwrap();
    let report = salvaged(&home, None).await;
    assert_eq!(report.sets, 3, "{report:?}");
    let node = home.open().await;
    let found = differences(&before, &state(&node).await);
    assert!(found.is_empty(), "{found:#?}");
    let latest = node.set_latest("data", b"ckpt/").await.unwrap().unwrap();
    assert_eq!(latest.path.to_string(), "ckpt/3/");
    // The shards are shards again: a set that was not in the lake gets there, with its marker.
    node.drain("data", b"ckpt/3/").await.unwrap();
    marked(&node, "ckpt/3/").await;
    stop(node).await;
}

/// Waits until the marker of a set is in the lake.
async fn marked(node: &Node, target: &str) {
    let name = format!("{target}{SET_MARKER}");
    while node.stat("data", &key(&name)).await.is_err() {
        tokio::task::yield_now().await;
    }
    drained(node, &name).await;
}

/// Takes a backup as the command line does.
async fn back_up(node: &Node, to: &PathBuf) -> u64 {
    let mut writer = None;
    let (mut state, mut after) = (None, None);
    loop {
        let Report::CatalogRows(page) = node.operate(Order::CatalogRows { state, after }).await.unwrap()
        else {
            panic!("another report")
        };
        let cluster = page.cluster.parse().unwrap();
        let header = Header { kind: Kind::Whole, cluster, seq: page.seq, created_ms: 1 };
        let file = || Writer::begin(std::fs::File::create(to).unwrap(), &header).unwrap();
        let rows: Vec<Row> =
            page.rows.into_iter().map(|row| Row { key: row.key, value: row.value, seq: row.seq }).collect();
        writer.get_or_insert_with(file).rows(&rows).unwrap();
        (state, after) = (Some(page.state), rows.last().map(|row| row.key.clone()));
        if !page.more {
            writer.unwrap().end().unwrap();
            return page.seq;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_too_old_is_noticed_and_salvage_finds_the_rest() {
    let home = Home::new(lazy());
    let node = home.start().await;
    volumes(&node).await;
    for at in 0..5 {
        put(&node, &format!("old/{at}"), &pattern(at, 50_000)).await;
    }
    put(&node, "both", b"before").await;
    let file = home.dir.path().join("backup");
    let seq = back_up(&node, &file).await;
    put(&node, "both", b"after the backup").await;
    put(&node, "new", &pattern(77, 200_000)).await;
    assert!(delete(&node, "old/3").await.unwrap());
    node.rename("data", &key("old/4"), &key("moved"), RenameMode::Replace).await.unwrap();
    let before = state(&node).await;
    stop(node).await;

    let dir = home.options().dir;
    let wish = RestoreOptions {
        dir: dir.clone(),
        target: Target::Embedded,
        file: file.clone(),
        force: false,
        accept_loss: false,
    };
    let refused = restore(&wish, &quiet).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict);
    assert!(refused.message.contains("6 files") && refused.message.contains("--force"), "{refused}");
    let forced = RestoreOptions { force: true, ..wish };
    let report = restore(&forced, &quiet).await.unwrap();
    assert!(report.seq == seq && report.seen_seq > seq && report.base_seq > report.seen_seq, "{report:?}");
    assert!(report.aside.as_ref().is_some_and(|aside| aside.exists()), "nothing is deleted");
    let refused = Node::open(home.options()).await.err().expect("the backup lacks what the node saw");
    assert!(refused.message.contains("salvage"), "{refused}");

    let scratch = home.dir.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let same = compare(&dir, &file, &scratch, 100).await.unwrap();
    assert!(same.is_empty(), "{same:?}");
    salvaged(&home, None).await;
    let node = home.open().await;
    let found = differences(&before, &state(&node).await);
    assert!(found.is_empty(), "{found:#?}");
    stop(node).await;
    let differing = compare(&file, &dir, &scratch, 100).await.unwrap();
    let keys: Vec<&str> = differing.iter().map(|difference| difference.key.as_str()).collect();
    assert_eq!(keys, ["both", "moved", "new", "old/3", "old/4"], "{differing:?}");

    // Whoever does not want that says so, and has what the backup has.
    let lossy = RestoreOptions { accept_loss: true, ..forced };
    restore(&lossy, &quiet).await.unwrap();
    let node = home.open().await;
    assert_eq!(get(&node, "old/1").await.unwrap(), pattern(1, 50_000));
    // Its bytes may have been deleted since.
    match get(&node, "old/3").await {
        Ok(bytes) => assert!(bytes == pattern(3, 50_000)),
        Err(fault) => assert_eq!(fault.kind, ErrorKind::Corrupt, "{fault}"),
    }
    assert!(!names(&node, "", None).await.contains(&"new".to_owned()));
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_file_that_was_deleted_after_the_backup_stays_away() {
    let home = Home::new(lazy());
    let node = home.start().await;
    volumes(&node).await;
    for name in ["gone", "stays"] {
        put(&node, name, b"").await;
    }
    let file = home.dir.path().join("backup");
    back_up(&node, &file).await;
    assert!(delete(&node, "gone").await.unwrap());
    // The delete is done with: its record is on no drive any more.
    collected(&node, 2.0).await;
    stop(node).await;

    let report = salvaged(&home, Some(file)).await;
    assert_eq!((report.lost_files, report.untold), (0, vec!["data/gone".to_owned()]));
    let node = home.open().await;
    assert_eq!(names(&node, "", None).await, ["stays"]);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_key_works_on_for_as_long_as_was_said() {
    let home = Home::new(lazy());
    let node = home.start().await;
    volumes(&node).await;
    let rotate = |access_key: &str, grace_ms| {
        node.operate(Order::KeyRotate { access_key: access_key.to_owned(), grace_ms })
    };
    let Report::Key(second) = rotate("KEY", 3_600_000).await.unwrap() else { panic!("another report") };
    let old = node.access_key("KEY").await.unwrap().expect("the old key works for another hour");
    assert_eq!(old.access, second.access);
    assert_ne!(old.secret_key, second.secret_key);
    let Report::Key(third) = rotate(&second.access_key, 0).await.unwrap() else { panic!("another report") };
    assert!(node.access_key(&second.access_key).await.unwrap().is_none(), "no grace, no key");
    assert!(node.access_key(&third.access_key).await.unwrap().is_some());
    // A time that is over: the shortest there is.
    rotate("KEY", 1).await.unwrap();
    while node.access_key("KEY").await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(rotate("KEY", 0).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(rotate(&third.access_key, u64::MAX).await.unwrap_err().kind, ErrorKind::Invalid);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_went_to_the_lake_before_their_file_are_found_without_a_catalog() {
    let home = Home { ring_bytes: 32 << 20, ..Home::new(lazy()) };
    let node = home.start().await;
    let (one, two) = (pattern(31, 50 << 20), pattern(32, 30 << 20));
    put(&node, "one", &one).await;
    put(&node, "two", &two).await;
    delete(&node, "two").await.unwrap();
    assert!(counter(&node, "spilled_bytes_total").await > f64::from(40 << 20));
    node.stop().await;
    drop(node);
    std::fs::remove_file(catalog(&home)).unwrap();
    let report = salvaged(&home, None).await;
    assert_eq!((report.files, report.lost_files), (1, 0), "{report:?}");
    let node = home.open().await;
    assert!(get(&node, "one").await.unwrap() == one);
    node.drain("data", b"one").await.unwrap();
    drained(&node, "one").await;
    assert!(get(&node, "one").await.unwrap() == one);
    let aside = home.lake().join("data/.stoker-alone");
    let left = || std::fs::read_dir(&aside).map_or(0, |entries| entries.count());
    for _ in 0..1_000 {
        if left() == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(left(), 0, "nothing of either is left beside the file");
    node.stop().await;
}
