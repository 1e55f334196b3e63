//! Whether the rows of a catalog fit together.

use std::collections::{BTreeMap, BTreeSet};

use stoker_catalog::kv::Row;
use stoker_format::{DriveId, NodeId, VersionId, VolumeId};
use stoker_schema::names::{Spot, Usage, usage};
use stoker_schema::rows::{
    DirRow, DirtyRow, Drain, EntryRow, FileRow, GarbageRow, HISTORY, LinksRow, NOWHERE, OpenSetRow, ROOT,
    RowValue, SetRow, SetState, SetWork, ShardRow, keys,
};

use crate::fixture::{Fixture, VOLUME};

/// What the catalog holds, by version.
#[derive(Debug, Default)]
pub struct Audit {
    /// Versions that a file refers to.
    pub referenced: BTreeSet<VersionId>,
    /// Versions whose chunks may go.
    pub garbage: BTreeSet<VersionId>,
}

/// Fails if a row lacks its counterpart or contradicts another one.
pub async fn audit(fixture: &Fixture) -> Audit {
    let files = files(fixture).await;
    let referenced = references(fixture, &files).await;
    directories(fixture).await;
    links(fixture, &files).await;
    sets(fixture, &files).await;
    counters(fixture, &files).await;
    let mut garbage = BTreeSet::new();
    for row in fixture.table(b"g").await {
        GarbageRow::of(&row).unwrap();
        garbage.insert(VersionId(row.key[1..13].try_into().unwrap()));
    }
    let both: Vec<_> = garbage.intersection(&referenced).collect();
    assert!(both.is_empty(), "referenced and garbage: {both:?}");
    let mut dirty = BTreeSet::new();
    for row in fixture.table(b"d").await {
        DirtyRow::of(&row).unwrap();
        dirty.insert(keys::dirty_version(&row.key).unwrap());
    }
    for file in files.values().filter(|file| file.drain != Drain::Clean) {
        for holder in &file.holders {
            let key = keys::dirty(NodeId(holder.node), DriveId(holder.drive), file.version());
            assert_eq!(fixture.table(&key).await.len(), 1, "{} has no dirty row", file.etag);
        }
    }
    assert!(dirty.is_subset(&referenced), "dirty rows of versions that nobody has");
    for row in fixture.table(b"v").await {
        let owner = VersionId(row.key[1..13].try_into().unwrap());
        assert!(referenced.contains(&owner), "a layout of a version that nobody has");
    }
    Audit { referenced, garbage }
}

async fn files(fixture: &Fixture) -> BTreeMap<Vec<u8>, FileRow> {
    let mut files = BTreeMap::new();
    for row in fixture.table(b"E").await {
        if let EntryRow::File(file) = EntryRow::of(&row).unwrap() {
            files.insert(row.key.clone(), *file);
        }
    }
    files
}

/// Every file has a reference, every reference a file that says so, every dependent somebody who relies.
async fn references(fixture: &Fixture, files: &BTreeMap<Vec<u8>, FileRow>) -> BTreeSet<VersionId> {
    let mut expect: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut dependents: BTreeSet<Vec<u8>> = BTreeSet::new();
    for (key, file) in files {
        let parent = u64::from_be_bytes(key[5..13].try_into().unwrap());
        expect.insert(keys::reference(file.version(), VOLUME, parent, keys::entry_name(key)));
        if let Some(source) = &file.source {
            let volume = VolumeId(source.volume);
            dependents.insert(keys::dependent(volume, &source.key, file.version(), file.inode));
        }
        if let Some(lake) = file.lake.as_ref().filter(|_| file.drain == Drain::Clean) {
            let spot = Spot { volume: VOLUME, parent, name: keys::entry_name(key).to_vec() };
            if fixture.names.path_of(&spot).await.unwrap().is_some_and(|path| path != lake.key) {
                dependents.insert(keys::dependent(VOLUME, &lake.key, file.version(), file.inode));
            }
        }
    }
    let keys_of = |rows: Vec<Row>| rows.into_iter().map(|row| row.key).collect::<BTreeSet<Vec<u8>>>();
    let found = keys_of(fixture.table(b"r").await);
    assert_eq!(found, expect, "references");
    assert_eq!(keys_of(fixture.table(b"L").await), dependents, "dependents");
    found.iter().map(|key| keys::reference_version(key).unwrap()).collect()
}

/// Names of one file are counted, have one version, and each has a number of its own.
async fn links(fixture: &Fixture, files: &BTreeMap<Vec<u8>, FileRow>) {
    let mut expect: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut counts: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut own: BTreeSet<u64> = BTreeSet::new();
    let mut content: BTreeMap<u64, (VersionId, Vec<u8>)> = BTreeMap::new();
    for (key, file) in files {
        assert!(own.insert(file.inode), "two names with one number");
        let Some(number) = file.links else { continue };
        let parent = u64::from_be_bytes(key[5..13].try_into().unwrap());
        expect.insert(keys::link(VOLUME, number, parent, keys::entry_name(key)));
        *counts.entry(keys::links(VOLUME, number)).or_default() += 1;
        let found = (file.version(), file.properties.clone());
        assert_eq!(*content.entry(number).or_insert(found.clone()), found, "names of one file differ");
    }
    let rows = fixture.table(b"H").await;
    let found: BTreeSet<Vec<u8>> =
        rows.iter().filter(|row| row.value.is_empty()).map(|row| row.key.clone()).collect();
    assert_eq!(found, expect, "links");
    let counted = rows.iter().filter(|row| !row.value.is_empty());
    let counted = counted.map(|row| (row.key.clone(), LinksRow::of(row).unwrap().count));
    assert_eq!(counted.collect::<BTreeMap<_, _>>(), counts, "counts of links");
}

/// Every directory hangs where its entry is, or nowhere if its set does not show it; none that hangs is empty.
async fn directories(fixture: &Fixture) {
    let mut entries: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut parents: BTreeSet<u64> = BTreeSet::new();
    for row in fixture.table(b"E").await {
        parents.insert(u64::from_be_bytes(row.key[5..13].try_into().unwrap()));
        if let EntryRow::Directory(inode) = EntryRow::of(&row).unwrap() {
            assert!(entries.insert(inode, row.key).is_none(), "a directory with two names");
        }
    }
    let mut known = BTreeSet::from([ROOT, HISTORY]);
    for row in fixture.table(b"N").await {
        let inode = u64::from_be_bytes(row.key[5..13].try_into().unwrap());
        let directory = DirRow::of(&row).unwrap();
        known.insert(inode);
        if directory.parent == NOWHERE {
            assert!(!entries.contains_key(&inode), "a directory that hangs nowhere has a name");
            let set = fixture.names.set(VOLUME, inode).await.unwrap().expect("a set");
            assert_ne!(set.row.state, SetState::Published);
        } else {
            let entry = keys::entry(VOLUME, directory.parent, &directory.name);
            assert_eq!(entries.remove(&inode), Some(entry), "a directory hangs elsewhere than its entry");
            assert!(parents.contains(&inode), "an empty directory");
        }
    }
    assert!(entries.is_empty(), "entries of directories that are not there: {entries:?}");
    assert!(parents.is_subset(&known), "entries in directories that are not there");
}

async fn sets(fixture: &Fixture, files: &BTreeMap<Vec<u8>, FileRow>) {
    let mut open = 0;
    let mut known = BTreeSet::new();
    for row in fixture.table(&keys::sets(VOLUME)).await {
        let (id, set) = (keys::set_part(&row.key).unwrap(), SetRow::of(&row).unwrap());
        known.insert(id);
        let work = fixture.table(&keys::set_work(VOLUME, id)).await;
        let work = work.first().map(|row| SetWork::of(row).unwrap());
        match set.state {
            SetState::Open => {
                open += 1;
                assert_eq!(work, Some(SetWork::Expire { deadline_ms: set.deadline_ms }));
                let target = fixture.catalog.get(&[&keys::open_set(VOLUME, &set.target)]).await.unwrap();
                assert_eq!(OpenSetRow::of(target[0].as_ref().unwrap()).unwrap().set, id);
                for (_, shard) in fixture.names.set_shards(id, None, 1_000).await.unwrap().0 {
                    let file = &files[&keys::entry(VOLUME, shard.parent, &shard.name)];
                    assert_eq!(file.version, shard.version);
                }
            }
            SetState::Published => assert!(matches!(work, None | Some(SetWork::Drain))),
            SetState::Aborted(_) => {
                assert!(matches!(work, Some(SetWork::Clear | SetWork::Remember { .. })));
            }
        }
    }
    assert_eq!(fixture.table(b"o").await.len(), open, "open targets");
    for row in fixture.table(b"h").await {
        ShardRow::of(&row).unwrap();
        assert!(known.contains(&u64::from_be_bytes(row.key[1..9].try_into().unwrap())), "a shard of no set");
    }
}

async fn counters(fixture: &Fixture, files: &BTreeMap<Vec<u8>, FileRow>) {
    let bytes = files.values().map(|file| file.size).sum();
    let expect = Usage { files: files.len() as u64, bytes };
    assert_eq!(usage(&*fixture.catalog, VOLUME).await.unwrap(), expect);
}
