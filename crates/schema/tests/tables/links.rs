//! Files with several names, against a model: names lead to files, and files have a version and properties.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

use proptest::prelude::*;
use stoker_catalog::kv::{Check, Commit, Outcome};
use stoker_schema::names::{LINKS_MAX, Plan, Refusal};
use stoker_schema::rows::{EntryRow, FileRow, RowValue, keys};

use crate::audit::audit;
use crate::fixture::{Fixture, VOLUME, file, on_each, rekey, version};

on_each! {
    a_name_that_is_written_anew_is_a_file_of_its_own,
    there_is_a_limit,
}

#[derive(Clone, Debug)]
enum Op {
    Put(String),
    Copy(String, String),
    Link(String, String),
    Write(String),
    Chmod(String),
    Remove(String),
    Rename(String, String),
    RenameDirectory(String, String),
    Exchange(String, String),
}

/// Few names, so that they meet.
fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "d/a", "d/b", "e/a"]).prop_map(str::to_owned)
}

fn op() -> impl Strategy<Value = Op> {
    let two = || (key(), key());
    let directory = || prop::sample::select(vec!["d/", "e/", "f/"]).prop_map(str::to_owned);
    prop_oneof![
        3 => key().prop_map(Op::Put),
        1 => two().prop_map(|(from, to)| Op::Copy(from, to)),
        6 => two().prop_map(|(from, to)| Op::Link(from, to)),
        3 => key().prop_map(Op::Write),
        2 => key().prop_map(Op::Chmod),
        2 => key().prop_map(Op::Remove),
        3 => two().prop_map(|(from, to)| Op::Rename(from, to)),
        1 => (directory(), directory()).prop_map(|(from, to)| Op::RenameDirectory(from, to)),
        2 => two().prop_map(|(from, to)| Op::Exchange(from, to)),
    ]
}

/// Makes a file one more name.
async fn link(fixture: &Fixture, from: &str, to: &str) -> Result<(), Refusal> {
    let names = &fixture.names;
    let source = names.lookup(VOLUME, from.as_bytes()).await.unwrap().ok_or(Refusal::NotFound)?;
    let linked = names.publish(VOLUME, to.as_bytes(), &[], |present| {
        let mut plan = Plan::simple(FileRow { inode: 0, ..source.file.clone() });
        plan.link = Some(Box::new(source.clone()));
        let is_taken = present.is_some();
        Box::pin(async move { if is_taken { Err(Refusal::Exists) } else { Ok(plan) } })
    });
    linked.await.map(drop)
}

/// Writes a new version of the file that has a name.
async fn write(fixture: &Fixture, key: &str, row: FileRow) {
    let names = fixture.names.clone();
    let written = fixture.names.publish(VOLUME, key.as_bytes(), &[], |present| {
        let (names, row, present) = (names.clone(), row.clone(), present.cloned());
        Box::pin(async move {
            let mut plan = Plan::simple(row.clone());
            if let Some(present) = &present {
                let id = AtomicU8::new(row.version[7]);
                plan.links = names.links(present, || [id.fetch_add(1, Ordering::Relaxed); 12]).await?;
            }
            Ok(plan)
        })
    });
    written.await.unwrap();
}

/// Changes properties under all names of a file, as a node does.
async fn chmod(fixture: &Fixture, key: &str, properties: &[u8]) {
    let located = fixture.names.lookup(VOLUME, key.as_bytes()).await.unwrap().unwrap();
    let mut commit = Commit::new();
    let mut all = vec![located.clone()];
    if let Some(links) = fixture.names.links(&located, || [0; 12]).await.unwrap() {
        commit.checks.push(Check::Seq(keys::links(VOLUME, located.file.number()), links.seq));
        all.extend(links.others.into_iter().map(|(other, _)| other));
    }
    for mut located in all {
        located.file.properties = properties.to_vec();
        let row_key = located.spot.row_key();
        commit = commit.seq(row_key.clone(), located.seq);
        commit = commit.put(row_key, EntryRow::File(Box::new(located.file)).encode());
    }
    assert!(matches!(fixture.catalog.commit(commit).await.unwrap(), Outcome::Done { .. }));
}

#[derive(Default)]
struct Model {
    names: BTreeMap<String, u64>,
    /// Version and properties.
    files: BTreeMap<u64, (u64, u8)>,
}

async fn run(ops: Vec<Op>) {
    let fixture = Fixture::memory();
    let names = &fixture.names;
    let mut model = Model::default();
    let mut next = 0;
    for op in ops {
        next += 1;
        match op.clone() {
            Op::Put(key) => {
                fixture.put(&key, file(next)).await.unwrap();
                model.names.insert(key, next);
                model.files.insert(next, (next, 0));
            }
            Op::Copy(from, to) => {
                let Some(&source) = model.names.get(&from).filter(|_| from != to) else { continue };
                let located = names.lookup(VOLUME, from.as_bytes()).await.unwrap().unwrap();
                let copy = FileRow { inode: 0, name_record: Some([next as u8; 12]), ..located.file };
                fixture.put(&to, copy).await.unwrap();
                model.names.insert(to, next);
                model.files.insert(next, model.files[&source]);
            }
            Op::Link(from, to) => {
                let done = link(&fixture, &from, &to).await;
                match (model.names.get(&from).copied(), model.names.contains_key(&to)) {
                    (None, _) => assert!(matches!(done, Err(Refusal::NotFound))),
                    (Some(_), true) => assert!(matches!(done, Err(Refusal::Exists))),
                    (Some(source), false) => {
                        done.unwrap();
                        model.names.insert(to, source);
                    }
                }
            }
            Op::Write(key) => {
                let Some(id) = model.names.get(&key) else { continue };
                let properties = model.files[id].1;
                write(&fixture, &key, FileRow { properties: vec![properties], ..file(next) }).await;
                model.files.insert(*id, (next, properties));
            }
            Op::Chmod(key) => {
                let Some(id) = model.names.get(&key) else { continue };
                chmod(&fixture, &key, &[next as u8]).await;
                model.files.get_mut(id).unwrap().1 = next as u8;
            }
            Op::Remove(key) => {
                let gone = fixture.remove(&key).await.unwrap();
                assert_eq!(gone.is_some(), model.names.remove(&key).is_some());
            }
            Op::Rename(from, to) => {
                let done =
                    names.rename_file(VOLUME, from.as_bytes(), to.as_bytes(), &[], |_, _| Ok(Vec::new()));
                let done = done.await;
                match (model.names.get(&from).copied(), model.names.get(&to).copied()) {
                    (None, _) => assert!(matches!(done, Err(Refusal::NotFound))),
                    // Names of one file both stay.
                    (Some(source), Some(target)) if source == target => drop(done.unwrap()),
                    (Some(source), _) => {
                        done.unwrap();
                        model.names.remove(&from);
                        model.names.insert(to, source);
                    }
                }
            }
            Op::RenameDirectory(from, to) => {
                let done =
                    names.rename_directory(VOLUME, from.as_bytes(), to.as_bytes(), &[], rekey(0)).await;
                if done.is_ok() && from != to {
                    let old = std::mem::take(&mut model.names);
                    let moved = |key: String| match key.strip_prefix(&from) {
                        Some(rest) => format!("{to}{rest}"),
                        None => key,
                    };
                    model.names = old.into_iter().map(|(key, id)| (moved(key), id)).collect();
                }
            }
            Op::Exchange(first, second) => {
                let done =
                    names.exchange(VOLUME, first.as_bytes(), second.as_bytes(), &[], |_, _| Ok(Vec::new()));
                if done.await.is_ok() {
                    let (a, b) = (model.names[&first], model.names[&second]);
                    model.names.insert(first, b);
                    model.names.insert(second, a);
                }
            }
        }
        compare(&fixture, &model, &op).await;
    }
    let all: Vec<String> = model.names.keys().cloned().collect();
    for key in all {
        fixture.remove(&key).await.unwrap().unwrap();
    }
    for table in [b"E", b"N", b"r", b"H", b"d"] {
        assert!(fixture.table(table).await.is_empty(), "table {}", table[0] as char);
    }
}

async fn compare(fixture: &Fixture, model: &Model, op: &Op) {
    audit(fixture).await;
    assert_eq!(fixture.keys().await, model.names.keys().cloned().collect::<Vec<_>>(), "{op:?}");
    let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
    for (key, id) in &model.names {
        let found = fixture.names.lookup(VOLUME, key.as_bytes()).await.unwrap().unwrap().file;
        let (expect, properties) = model.files[id];
        assert_eq!(found.version(), version(expect), "{op:?}: {key}");
        assert_eq!(found.properties.first().copied().unwrap_or(0), properties, "{op:?}: {key}");
        assert_eq!(*numbers.entry(*id).or_insert(found.number()), found.number(), "{op:?}: {key}");
        let names = model.names.values().filter(|other| *other == id).count() as u32;
        let count = match found.links {
            Some(number) => fixture.names.link_counts(VOLUME, &[number]).await.unwrap()[0],
            None => 1,
        };
        assert_eq!(count, names, "{op:?}: names of {key}");
    }
    let mut distinct: Vec<&u64> = numbers.values().collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), numbers.len(), "{op:?}: two files with one number");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("STOKER_FULL").is_some() { 4_000 } else { 200 }, ..ProptestConfig::default() })]

    #[test]
    fn links_do_what_names_of_one_file_do(ops in prop::collection::vec(op(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(ops));
    }
}

async fn a_name_that_is_written_anew_is_a_file_of_its_own(fixture: Fixture) {
    let first = fixture.put("a", file(1)).await.unwrap().file;
    link(&fixture, "a", "b").await.unwrap();
    link(&fixture, "b", "c").await.unwrap();
    let look = async |key: &str| fixture.names.lookup(VOLUME, key.as_bytes()).await.unwrap().unwrap().file;
    assert_eq!((look("b").await.number(), look("c").await.number()), (first.inode, first.inode));
    let anew = fixture.put("a", file(2)).await.unwrap().file;
    assert_ne!(anew.number(), first.inode, "the number stays with the other names");
    assert_eq!(anew.links, None);
    fixture.remove("b").await.unwrap();
    assert_eq!((look("c").await.version(), look("c").await.number()), (version(1), first.inode));
    write(&fixture, "c", file(3)).await;
    audit(&fixture).await;
    assert_eq!((fixture.shown("a").await, fixture.shown("c").await), (Some(version(2)), Some(version(3))));
}

async fn there_is_a_limit(fixture: Fixture) {
    fixture.put("0", file(1)).await.unwrap();
    for at in 1..LINKS_MAX {
        link(&fixture, "0", &at.to_string()).await.unwrap();
    }
    assert!(matches!(link(&fixture, "7", "more").await, Err(Refusal::TooMany)));
    write(&fixture, "500", file(2)).await;
    assert_eq!(fixture.shown("999").await, Some(version(2)));
    fixture.remove("999").await.unwrap();
    link(&fixture, "7", "more").await.unwrap();
    // One commit has to hold the rows of all names.
    fixture.put("large", FileRow { properties: vec![1; 40_000], ..file(3) }).await.unwrap();
    let mut done = 0;
    while link(&fixture, "large", &format!("large {done}")).await.is_ok() {
        done += 1;
    }
    assert!((10..100).contains(&done), "{done}");
    write(&fixture, "large", FileRow { properties: vec![2; 40_000], ..file(4) }).await;
}
