//! Volumes that keep versions: what a name loses stays, on drives, in the lake, over restarts and rebuilds, and what is locked is let go by nobody.

use std::sync::Arc;

use crate::harness::*;
use stoker_node::Node;
use stoker_store::{
    Attributes, AttributesChange, Condition, CopyRequest, EditRequest, ErrorKind, Finish, Key, LOCK_SETTING,
    Lock, LockChange, NULL_VERSION, Piece, RenameMode, Result, Retention, Store, Subject, VERSIONING_SETTING,
    VersionDelete, VersionDeleted, VersionEntry, VersionsRequest, VolumeOptions, WriteRequest,
};

const MIB: usize = 1 << 20;

/// The clock of expiries is that of the machine in these tests; nobody waits for this.
const FAR_MS: u64 = 4_000_000_000_000;

async fn set(node: &Node, name: &str, document: &str) -> Result<()> {
    node.set_volume_setting("data", name, Some(document.as_bytes().to_vec())).await
}

/// A node that is alone raises the level by itself, within its first moments.
async fn enable(node: &Node) {
    loop {
        match set(node, VERSIONING_SETTING, "enabled").await {
            Err(fault) if fault.kind == ErrorKind::Unavailable => tokio::task::yield_now().await,
            done => return done.unwrap(),
        }
    }
}

async fn start(home: &Home) -> Arc<Node> {
    let node = home.start().await;
    enable(&node).await;
    node
}

fn of(name: &str, id: &str) -> Key {
    Key::version_of(&key(name), id).unwrap()
}

async fn put_id(node: &Node, name: &str, bytes: &[u8]) -> String {
    put(node, name, bytes).await.version_id.unwrap()
}

/// Key, id, whether it is a marker, and whether it is the latest, of all versions in pages of `limit`.
async fn versions(node: &Node, limit: usize) -> Vec<(String, String, bool, bool)> {
    let mut request = VersionsRequest { limit, ..VersionsRequest::default() };
    let mut all = Vec::new();
    loop {
        let page = node.versions("data", request.clone()).await.unwrap();
        for entry in page.entries {
            let VersionEntry::Version { info, version, is_latest } = entry else { panic!("no delimiter") };
            request.after = Some(info.key.as_bytes().to_vec());
            request.after_version = Some(version.id.clone());
            all.push((info.key.to_string(), version.id, version.is_marker, is_latest));
        }
        if !page.more {
            return all;
        }
    }
}

async fn ids(node: &Node, name: &str) -> Vec<String> {
    versions(node, 2).await.into_iter().filter(|line| line.0 == name).map(|line| line.1).collect()
}

async fn read(node: &Node, name: &str, id: &str) -> Result<Vec<u8>> {
    let file = node.open("data", &of(name, id)).await?;
    read_all(file.as_ref()).await
}

async fn remove(node: &Node, name: &str, version: Option<&str>, bypass: bool) -> Result<VersionDeleted> {
    let (key, version, condition) = (key(name), version.map(str::to_owned), Condition::default());
    let delete = VersionDelete { key, version, condition, bypass };
    node.delete_versions("data", vec![delete]).await?.pop().unwrap()
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

/// What the lake has of former versions.
fn in_lake(home: &Home) -> Vec<String> {
    tree(&home.lake().join("data/.stoker-n.stoker-versions"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn former_versions_have_objects_of_their_own_and_the_present_one_its_key() {
    let home = Home::new(eager());
    let node = start(&home).await;
    let bytes: Vec<Vec<u8>> = (0..4).map(|seed| pattern(seed, 3 * MIB + seed as usize)).collect();
    // One that is in the lake when it is replaced, and ones that are not.
    let first = put_id(&node, "dir/a", &bytes[0]).await;
    drained(&node, "dir/a").await;
    let mut all = vec![first];
    for bytes in &bytes[1..] {
        all.push(put_id(&node, "dir/a", bytes).await);
    }
    drained(&node, "dir/a").await;
    until("every version is in the lake", || async { in_lake(&home).len() == 3 }).await;
    assert_eq!(std::fs::read(home.lake().join("data/dir/a")).unwrap(), bytes[3]);
    let node = home.restart(node).await;
    all.reverse();
    assert_eq!(ids(&node, "dir/a").await, all);
    for (id, bytes) in all.iter().zip(bytes.iter().rev()) {
        assert_eq!(&read(&node, "dir/a", id).await.unwrap(), bytes, "{id}");
    }
    // One that is removed by its id takes its object with it, and no other.
    assert!(remove(&node, "dir/a", Some(&all[2]), false).await.unwrap().existed);
    until("its object is gone", || async { in_lake(&home).len() == 2 }).await;
    assert_eq!(read(&node, "dir/a", &all[2]).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(read(&node, "dir/a", &all[3]).await.unwrap(), bytes[0]);
    // Without the present one the one before has the name, and the key in the lake.
    assert!(remove(&node, "dir/a", Some(&all[0]), false).await.unwrap().existed);
    assert_eq!(get(&node, "dir/a").await.unwrap(), bytes[2]);
    until("it moves", || async {
        std::fs::read(home.lake().join("data/dir/a")).is_ok_and(|there| there == bytes[2])
            && in_lake(&home).len() == 1
    })
    .await;
    assert_eq!(names(&node, "", None).await, ["dir/a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_survive_reclaim_and_a_kill() {
    let home = Home { ring_bytes: 64 << 20, ..Home::new(lazy()) };
    let node = start(&home).await;
    let old = put_id(&node, "kept", &pattern(1, MIB)).await;
    put(&node, "kept", &pattern(2, MIB)).await;
    delete(&node, "kept").await.unwrap();
    // Round and round the ring, of what goes for good.
    for turn in 0..24 {
        let bytes = pattern(100 + turn, 4 * MIB);
        let id = loop {
            match put_if(&node, "data", "other", &bytes, Condition::default()).await {
                Ok(receipt) => break receipt.version_id.unwrap(),
                // What was removed is not free yet.
                Err(fault) if fault.kind == ErrorKind::Full => tokio::task::yield_now().await,
                Err(fault) => panic!("{fault}"),
            }
        };
        assert!(remove(&node, "other", Some(&id), false).await.unwrap().existed);
    }
    // As after a kill: nothing of what was in memory is left.
    let node = home.restart(node).await;
    assert_eq!(read(&node, "kept", &old).await.unwrap(), pattern(1, MIB));
    assert_eq!(get(&node, "kept").await.unwrap_err().kind, ErrorKind::NotFound);
    let marker = versions(&node, 10).await.remove(0);
    assert_eq!((marker.0.as_str(), marker.2, marker.3), ("kept", true, true));
    assert!(remove(&node, "kept", Some(&marker.1), false).await.unwrap().is_marker);
    assert_eq!(get(&node, "kept").await.unwrap(), pattern(2, MIB));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_makes_versions() {
    let home = Home::new(eager());
    let node = start(&home).await;
    // An edit and an append go on with chunks of a version that stays.
    let whole = pattern(1, 6 * MIB);
    let first = put_id(&node, "a", &whole).await;
    let second = append(&node, "a", b"more").await.version_id.unwrap();
    let base = node.stat("data", &key("a")).await.unwrap();
    let pieces = vec![Piece::Keep { start: 0, end: 5 * MIB as u64 }, Piece::Take(3)];
    let request = EditRequest { base: Some(base.version), pieces, ..EditRequest::default() };
    let mut writer = node.edit("data", &key("a"), request).await.unwrap();
    write(&mut writer, b"new").await.unwrap();
    let third = writer.finish(Finish::default()).await.unwrap().version_id.unwrap();
    let [longer, edited] = [[&whole[..], b"more"].concat(), [&whole[..5 * MIB], b"new"].concat()];
    for (id, bytes) in [(&first, &whole), (&second, &longer), (&third, &edited)] {
        assert_eq!(&read(&node, "a", id).await.unwrap(), bytes);
    }
    // A rename leaves what was there, under both names.
    let other = put_id(&node, "b", b"b").await;
    node.rename("data", &key("a"), &key("b"), RenameMode::Replace).await.unwrap();
    assert_eq!(names(&node, "", None).await, ["b"]);
    assert_eq!(get(&node, "b").await.unwrap(), edited);
    assert_eq!(read(&node, "b", &other).await.unwrap(), b"b");
    assert_eq!(ids(&node, "a").await[1..], [third.clone(), second.clone(), first.clone()]);
    let taken = node.rename("data", &key("b"), &key("b"), RenameMode::Replace).await;
    taken.unwrap();
    put(&node, "c", b"c").await;
    let refused = node.rename("data", &key("c"), &key("b"), RenameMode::NoReplace).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict);
    assert_eq!(get(&node, "c").await.unwrap(), b"c");
    // With the versions that it shares chunks with gone, each has its bytes still.
    for id in [&first, &third] {
        assert!(remove(&node, "a", Some(id), false).await.unwrap().existed);
    }
    assert_eq!(read(&node, "a", &second).await.unwrap(), longer);
    assert_eq!(get(&node, "b").await.unwrap(), edited);
    // What would go past versions is refused.
    put(&node, "dir/x", b"x").await;
    let fault = node.rename("data", &key("dir/"), &key("moved/"), RenameMode::Replace).await.unwrap_err();
    assert_eq!((fault.kind, fault.subject), (ErrorKind::Invalid, Subject::Quota));
    for fault in [
        node.link("data", &key("b"), &key("link")).await.unwrap_err(),
        set_begin(&node, "set/", 1).await.unwrap_err(),
        node.rename("data", &key("b"), &key("c"), RenameMode::Exchange { inode: None }).await.unwrap_err(),
        put_if(&node, "data", of("b", &other).as_str().unwrap(), b"", Condition::default())
            .await
            .unwrap_err(),
        delete(&node, of("b", &other).as_str().unwrap()).await.unwrap_err(),
    ] {
        assert_eq!(fault.kind, ErrorKind::Invalid, "{fault}");
    }
    assert_eq!(read(&node, "b", &other).await.unwrap(), b"b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_copied_and_its_properties_are_its_own() {
    let home = Home::new(eager());
    let node = start(&home).await;
    let old = put_id(&node, "a", &pattern(1, MIB)).await;
    drained(&node, "a").await;
    let new = put_id(&node, "a", b"new").await;
    let source = of("a", &old);
    let request = |to: &str| CopyRequest { from: source.clone(), ..copy_request("a", to) };
    node.copy(request("copy")).await.unwrap();
    let again = node.copy(request("a")).await.unwrap().version_id.unwrap();
    for name in ["copy", "a"] {
        assert_eq!(get(&node, name).await.unwrap(), pattern(1, MIB));
        drained(&node, name).await;
    }
    assert_eq!(ids(&node, "a").await, [again, new, old.clone()]);
    let tags = vec![("of".to_owned(), "old".to_owned())];
    let change = AttributesChange { tags: Some(tags.clone()), ..AttributesChange::default() };
    node.set_attributes("data", &source, change).await.unwrap();
    assert_eq!(node.stat("data", &source).await.unwrap().attributes.tags, tags);
    assert_eq!(node.stat("data", &key("a")).await.unwrap().attributes.tags, []);
    assert_eq!(ids(&node, "a").await.len(), 3);
    // It goes, and copies of it do not.
    remove(&node, "a", Some(&old), false).await.unwrap();
    assert_eq!(get(&node, "copy").await.unwrap(), pattern(1, MIB));
    let marker = remove(&node, "a", None, false).await.unwrap().version.unwrap();
    let source = of("a", &marker);
    let refused = node.copy(CopyRequest { from: source, ..copy_request("a", "b") }).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_locked_is_let_go_by_no_door() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "before", b"1").await;
    enable(&node).await;
    let refused = set(&node, VERSIONING_SETTING, "off").await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    let lock = |is_compliance| Lock {
        retention: Some(Retention { is_compliance, until_ms: FAR_MS }),
        is_held: false,
    };
    let attributes = |is_compliance| Attributes { lock: Some(lock(is_compliance)), ..Attributes::default() };
    let begun = |name: &str, is_compliance| {
        let (node, name) = (node.clone(), key(name));
        async move {
            let request = WriteRequest { attributes: attributes(is_compliance), ..WriteRequest::default() };
            let mut writer = node.create("data", &name, request).await?;
            write(&mut writer, b"locked").await?;
            writer.finish(Finish::default()).await
        }
    };
    assert_eq!(begun("a", true).await.unwrap_err().subject, Subject::Lock);
    set(&node, LOCK_SETTING, "lock").await.unwrap();
    assert_eq!(set(&node, VERSIONING_SETTING, "suspended").await.unwrap_err().kind, ErrorKind::Conflict);
    let compliance = begun("a", true).await.unwrap().version_id.unwrap();
    let governance = begun("b", false).await.unwrap().version_id.unwrap();
    let is_locked = |found: Result<VersionDeleted>| found.unwrap_err().subject == Subject::Lock;
    assert!(is_locked(remove(&node, "a", Some(&compliance), true).await));
    assert!(is_locked(remove(&node, "b", Some(&governance), false).await));
    // Deletes, overwrites and renames hide it, and it stays.
    put(&node, "a", b"other").await;
    node.rename("data", &key("b"), &key("a"), RenameMode::Replace).await.unwrap();
    delete(&node, "a").await.unwrap();
    for (name, id) in [("a", &compliance), ("b", &governance)] {
        assert_eq!(read(&node, name, id).await.unwrap(), b"locked");
        assert_eq!(node.stat("data", &of(name, id)).await.unwrap().past.unwrap().id, *id);
    }
    assert_eq!(node.volume_delete("data").await.unwrap_err().subject, Subject::VolumeContents);
    let node = home.restart(node).await;
    let change = |retention, bypass| LockChange { retention: Some(retention), is_held: None, bypass };
    let shorter = Some(Retention { is_compliance: true, until_ms: FAR_MS - 1 });
    for wish in [None, shorter, Some(Retention { is_compliance: false, until_ms: FAR_MS + 9 })] {
        let refused =
            node.set_version_lock("data", &of("a", &compliance), change(wish, true)).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Denied, "{wish:?}");
    }
    assert!(is_locked(remove(&node, "a", Some(&compliance), true).await));
    // A hold stands beside a retention, and nobody bypasses it.
    let hold = |is_held| LockChange { is_held: Some(is_held), ..LockChange::default() };
    node.set_version_lock("data", &of("b", &governance), hold(true)).await.unwrap();
    assert!(is_locked(remove(&node, "b", Some(&governance), true).await));
    node.set_version_lock("data", &of("b", &governance), hold(false)).await.unwrap();
    assert!(remove(&node, "b", Some(&governance), true).await.unwrap().existed);
    // One of the time before can be held, too.
    node.set_version_lock("data", &key("before"), hold(true)).await.unwrap();
    assert!(is_locked(remove(&node, "before", Some(NULL_VERSION), true).await));
    // Of what nobody says anything, the volume says how long it stays.
    set(&node, LOCK_SETTING, "lock governance 1 days").await.unwrap();
    let info = {
        put(&node, "default", b"x").await;
        node.stat("data", &key("default")).await.unwrap().past.unwrap()
    };
    assert!(info.retention.is_some_and(|retention| !retention.is_compliance));
    assert!(is_locked(remove(&node, "default", Some(&info.id), false).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_of_a_key_make_two_versions() {
    let home = Home::new(lazy());
    let node = start(&home).await;
    let writers = (0..16).map(|number| {
        let node = node.clone();
        tokio::spawn(async move {
            match number % 4 {
                3 => delete(&node, "k").await.map(|_| None),
                _ => Ok(Some(put_id(&node, "k", format!("{number}").as_bytes()).await)),
            }
        })
    });
    let mut written = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        written.extend(writer.await.unwrap().unwrap());
    }
    let all = versions(&node, 3).await;
    for id in &written {
        assert!(all.iter().any(|line| line.1 == *id), "{id}");
    }
    assert_eq!(all.iter().filter(|line| line.3).count(), 1);
    assert_eq!(all.iter().filter(|line| !line.2).count(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_cannot_keep_versions_says_why() {
    let home = Home::new(eager());
    let node = home.start().await;
    put(&node, "a", b"1").await;
    node.link("data", &key("a"), &key("b")).await.unwrap();
    let fault = loop {
        match set(&node, VERSIONING_SETTING, "enabled").await.unwrap_err() {
            fault if fault.kind == ErrorKind::Unavailable => tokio::task::yield_now().await,
            fault => break fault,
        }
    };
    assert_eq!(fault.kind, ErrorKind::Conflict, "{fault}");
    delete(&node, "b").await.unwrap();
    delete(&node, "a").await.unwrap();
    enable(&node).await;
    let policy = node.volume("data").await.unwrap().policy;
    let shared = stoker_store::VolumePolicy { lake_mode: stoker_store::LakeMode::Shared, ..policy };
    assert_eq!(node.volume_set("data", shared).await.unwrap_err().kind, ErrorKind::Conflict);
    assert!(node.volume_create("other", VolumeOptions::default()).await.is_ok());
    let found =
        node.versions("other", VersionsRequest { limit: 5, ..VersionsRequest::default() }).await.unwrap();
    assert_eq!(found.entries, []);
}
