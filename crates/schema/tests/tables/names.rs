//! Names against a model: a sorted map of whole keys, which is what S3 shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{Catalog, Range};
use stoker_format::VolumeId;
use stoker_schema::names::{Found, Names, Plan, Refusal, Removal, Usage, usage};
use stoker_schema::rows::{Drain, FileRow, Layout, RekeyRow};

const VOLUME: VolumeId = VolumeId(3);

#[derive(Clone, Debug)]
enum Op {
    Put(String),
    Remove(String),
    RenameFile(String, String),
    RenameDirectory(String, String),
    Exchange(String, String),
    List { prefix: String, delimiter: Option<&'static str>, after: Option<String>, limit: usize },
}

/// Few names, so that they meet: files beside directories of the same name, empty segments, names around `/`.
fn key() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "a-", "a0", "", ".", "..", "é"]);
    prop::collection::vec(segment, 1..5)
        .prop_map(|segments| segments.join("/"))
        .prop_filter("a key is not empty", |key| !key.is_empty())
}

fn op() -> impl Strategy<Value = Op> {
    let delimiter = prop::sample::select(vec![None, Some("/"), Some("a"), Some("-")]);
    prop_oneof![
        4 => key().prop_map(Op::Put),
        2 => key().prop_map(Op::Remove),
        1 => (key(), key()).prop_map(|(from, to)| Op::RenameFile(from, to)),
        2 => (key(), key()).prop_map(|(from, to)| Op::RenameDirectory(format!("{from}/"), format!("{to}/"))),
        3 => (key(), key(), any::<[bool; 2]>()).prop_map(|(first, second, slashes)| {
            let slash = |key: String, with: bool| if with { format!("{key}/") } else { key };
            Op::Exchange(slash(first, slashes[0]), slash(second, slashes[1]))
        }),
        3 => (prop::option::of(key()), delimiter, prop::option::of(key()), 1..6usize).prop_map(
            |(prefix, delimiter, after, limit)| Op::List { prefix: prefix.unwrap_or_default(), delimiter, after, limit },
        ),
    ]
}

fn rekey() -> RekeyRow {
    RekeyRow { since_ms: 0, name_record: None }
}

fn file(version: u64) -> FileRow {
    let mut id = [0; 12];
    id[..8].copy_from_slice(&version.to_be_bytes());
    FileRow {
        inode: 0,
        version: id,
        size: version,
        etag: version.to_string(),
        modified_ms: version,
        crc64: None,
        layout: Layout::Simple { chunk_len: 1 << 20 },
        holders: Vec::new(),
        drain: Drain::Never,
        lake: None,
        source: None,
        dirty_since_ms: 0,
        publishes: 0,
        name_record: None,
        properties: Vec::new(),
        home: [0; 16],
        links: None,
        past: None,
    }
}

/// What an exchange does to a sorted map; the refusal it deserves otherwise.
fn model_exchange(
    model: &mut BTreeMap<Vec<u8>, u64>,
    first: &[u8],
    second: &[u8],
) -> Result<(), &'static str> {
    let is_there = |model: &BTreeMap<Vec<u8>, u64>, key: &[u8]| match key.ends_with(b"/") {
        true => model.keys().any(|known| known.starts_with(key)),
        false => model.contains_key(key),
    };
    if !is_there(model, first) || !is_there(model, second) {
        return Err("NotFound");
    }
    let nameless = |key: &[u8]| key == b"/" || key.ends_with(b"//");
    if nameless(first) || nameless(second) {
        return Err("Invalid");
    }
    if first == second {
        return Ok(());
    }
    let inside = |key: &[u8], directory: &[u8]| directory.ends_with(b"/") && key.starts_with(directory);
    if inside(first, second) || inside(second, first) {
        return Err("Invalid");
    }
    let to = |key: &[u8], other: &[u8]| {
        let slash: &[u8] = if key.ends_with(b"/") { b"/" } else { b"" };
        [other.strip_suffix(b"/").unwrap_or(other), slash].concat()
    };
    let (to_first, to_second) = (to(first, second), to(second, first));
    if [&to_first, &to_second].iter().any(|key| **key != first && **key != second && is_there(model, key)) {
        return Err("Exists");
    }
    let old = std::mem::take(model);
    for (key, version) in old {
        let moved = |from: &[u8], to: &[u8]| match from.ends_with(b"/") {
            true => key.strip_prefix(from).map(|rest| [to, rest].concat()),
            false => (key == from).then(|| to.to_vec()),
        };
        let now = moved(first, &to_first).or_else(|| moved(second, &to_second)).unwrap_or(key);
        model.insert(now, version);
    }
    Ok(())
}

/// What S3 would answer: the whole listing, then paged by the caller.
fn model_list(
    model: &BTreeMap<Vec<u8>, u64>,
    prefix: &[u8],
    delimiter: Option<&str>,
    after: Option<&[u8]>,
) -> Vec<Vec<u8>> {
    let mut shown = BTreeSet::new();
    for key in model.keys().filter(|key| key.starts_with(prefix)) {
        let rest = &key[prefix.len()..];
        let cut = delimiter.and_then(|delimiter| {
            rest.windows(delimiter.len())
                .position(|window| window == delimiter.as_bytes())
                .map(|at| at + delimiter.len())
        });
        let name = cut.map_or(key.clone(), |cut| key[..prefix.len() + cut].to_vec());
        // A group is shown if any of its keys comes after the mark, unless the mark is the group itself.
        let behind = after.is_none_or(|after| key.as_slice() > after && !(name != *key && name == after));
        if behind {
            shown.insert(name);
        }
    }
    shown.into_iter().collect()
}

async fn run(ops: Vec<Op>) {
    let catalog: Arc<dyn Catalog> = Arc::new(Memory::new());
    let names = Names::new(catalog.clone());
    let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let mut version = 0;
    for op in ops {
        match op {
            Op::Put(key) => {
                version += 1;
                let row = file(version);
                let put = names.publish(VOLUME, key.as_bytes(), &[], |_| {
                    let plan = Plan::simple(row.clone());
                    Box::pin(async move { Ok(plan) })
                });
                put.await.unwrap();
                model.insert(key.into_bytes(), version);
            }
            Op::Remove(key) => {
                let gone =
                    names.remove(VOLUME, key.as_bytes(), &[], |_| Ok(Removal::default())).await.unwrap();
                assert_eq!(gone.map(|gone| gone.file.size), model.remove(key.as_bytes()));
            }
            Op::RenameFile(from, to) => {
                let done = names
                    .rename_file(VOLUME, from.as_bytes(), to.as_bytes(), &[], |_, _| Ok(Vec::new()))
                    .await;
                match model.get(from.as_bytes()).copied() {
                    Some(moved) => {
                        done.unwrap();
                        model.remove(from.as_bytes());
                        model.insert(to.into_bytes(), moved);
                    }
                    None => assert!(matches!(done, Err(Refusal::NotFound))),
                }
            }
            Op::RenameDirectory(from, to) => {
                let (from, to) = (from.into_bytes(), to.into_bytes());
                let done = names.rename_directory(VOLUME, &from, &to, &[], rekey()).await;
                let inside: Vec<Vec<u8>> =
                    model.keys().filter(|key| key.starts_with(&from)).cloned().collect();
                let taken = model.keys().any(|key| key.starts_with(&to));
                if to.starts_with(&from) && to != from {
                    assert!(matches!(done, Err(Refusal::Invalid(_))));
                } else if inside.is_empty() {
                    assert!(matches!(done, Err(Refusal::NotFound)), "{done:?}");
                } else if to == from {
                    done.unwrap();
                } else if taken {
                    assert!(matches!(done, Err(Refusal::Exists)), "{done:?}");
                } else {
                    done.unwrap();
                    for key in inside {
                        let moved = model.remove(&key).unwrap();
                        model.insert([to.as_slice(), &key[from.len()..]].concat(), moved);
                    }
                }
            }
            Op::Exchange(first, second) => {
                let (first, second) = (first.as_bytes(), second.as_bytes());
                let done = names.exchange(VOLUME, first, second, &[], |_, _| Ok(Vec::new())).await;
                let refused = done.err().map(|refusal| match refusal {
                    Refusal::NotFound => "NotFound",
                    Refusal::Invalid(_) => "Invalid",
                    Refusal::Exists => "Exists",
                    other => panic!("{other:?}"),
                });
                assert_eq!(refused, model_exchange(&mut model, first, second).err(), "{first:?} {second:?}");
            }
            Op::List { prefix, delimiter, after, limit } => {
                let expect =
                    model_list(&model, prefix.as_bytes(), delimiter, after.as_ref().map(|a| a.as_bytes()));
                let mut found = Vec::new();
                let mut mark = after.map(String::into_bytes);
                loop {
                    let delimiter = delimiter.map(str::as_bytes);
                    let mut walk =
                        names.walk(VOLUME, prefix.as_bytes(), delimiter, mark.as_deref()).await.unwrap();
                    let mut page = Vec::new();
                    while page.len() < limit {
                        match walk.next().await.unwrap() {
                            Some(next) => page.push(next.name().to_vec()),
                            None => break,
                        }
                    }
                    let Some(last) = page.last() else { break };
                    mark = Some(last.clone());
                    found.extend(page);
                }
                let text = |names: &[Vec<u8>]| {
                    names.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect::<Vec<_>>()
                };
                assert_eq!(text(&found), text(&expect), "prefix {prefix:?} delimiter {delimiter:?}");
            }
        }
        for (key, size) in &model {
            let found = names.lookup(VOLUME, key).await.unwrap().unwrap();
            assert_eq!(found.file.size, *size);
            assert_eq!(names.path_of(&found.spot).await.unwrap().as_ref(), Some(key));
        }
    }
    // Everything goes, and with it every directory, reference and counter.
    for key in model.keys() {
        names.remove(VOLUME, key, &[], |_| Ok(Removal::default())).await.unwrap().unwrap();
    }
    for table in [b"E", b"N", b"r", b"v", b"d"] {
        let rows = catalog.range(Range::prefix(table, 10)).await.unwrap().rows;
        assert!(rows.is_empty(), "table {} has {rows:?}", table[0] as char);
    }
    assert_eq!(usage(&*catalog, VOLUME).await.unwrap(), Usage::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("STOKER_FULL").is_some() { 4_000 } else { 250 }, ..ProptestConfig::default() })]

    #[test]
    fn names_do_what_a_sorted_map_does(ops in prop::collection::vec(op(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(ops));
    }
}

/// Writers, removers and renamers at once: no error but honest refusals, and at the end no trace.
#[test]
fn many_at_once_leave_a_sound_tree() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let catalog: Arc<dyn Catalog> = Arc::new(Memory::new());
        let names = Names::new(catalog.clone());
        let tasks: Vec<_> = (0..8u64)
            .map(|worker| {
                let names = names.clone();
                tokio::spawn(async move {
                    let mut state = worker + 1;
                    for step in 0..300u64 {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let pick = |shift: u32| ["x", "y/z", "y/w/v", "q/"][(state >> shift) as usize % 4];
                        let (a, b) = (
                            format!("d{}/{}", state >> 40 & 1, pick(50)),
                            format!("d{}/{}", state >> 41 & 1, pick(54)),
                        );
                        let refused = match state >> 60 & 7 {
                            // Kinds may differ: directories of one name stand beside files of it.
                            4 | 5 => {
                                let slash = |key: &str, bit: u32| match state >> bit & 1 {
                                    0 => key.to_owned(),
                                    _ => format!("{}/", key.split('/').next().unwrap()),
                                };
                                let (a, b) = (slash(&a, 30), slash(&b, 31));
                                let swap = names
                                    .exchange(VOLUME, a.as_bytes(), b.as_bytes(), &[], |_, _| Ok(Vec::new()));
                                swap.await.err()
                            }
                            0 | 1 => {
                                let row = file(worker * 1_000 + step + 1);
                                let put = names.publish(VOLUME, a.as_bytes(), &[], |_| {
                                    let plan = Plan::simple(row.clone());
                                    Box::pin(async move { Ok(plan) })
                                });
                                put.await.err()
                            }
                            2 => names
                                .remove(VOLUME, a.as_bytes(), &[], |_| Ok(Removal::default()))
                                .await
                                .err(),
                            _ if state >> 59 & 1 == 0 => {
                                let moved =
                                    names.rename_file(VOLUME, a.as_bytes(), b.as_bytes(), &[], |_, _| {
                                        Ok(Vec::new())
                                    });
                                moved.await.err()
                            }
                            _ => {
                                let (from, to) =
                                    (format!("d{}/", state >> 40 & 1), format!("d{}/y/", state >> 41 & 1));
                                names
                                    .rename_directory(VOLUME, from.as_bytes(), to.as_bytes(), &[], rekey())
                                    .await
                                    .err()
                            }
                        };
                        let honest = |refusal: &Refusal| {
                            matches!(
                                refusal,
                                Refusal::NotFound
                                    | Refusal::Exists
                                    | Refusal::Contended
                                    | Refusal::Invalid(_)
                            )
                        };
                        assert!(refused.as_ref().is_none_or(honest), "{refused:?}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut walk = names.walk(VOLUME, b"", None, None).await.unwrap();
        let mut all = Vec::new();
        while let Some(found) = walk.next().await.unwrap() {
            let Found::File { key, spot, .. } = found else { panic!("no delimiter, no groups") };
            assert_eq!(names.path_of(&spot).await.unwrap(), Some(key.clone()));
            all.push(key);
        }
        assert_eq!(usage(&*catalog, VOLUME).await.unwrap().files, all.len() as u64);
        for key in &all {
            assert!(names.remove(VOLUME, key, &[], |_| Ok(Removal::default())).await.unwrap().is_some());
        }
        for table in [b"E", b"N", b"r"] {
            let rows = catalog.range(Range::prefix(table, 10)).await.unwrap().rows;
            assert!(rows.is_empty(), "table {} has {rows:?}", table[0] as char);
        }
    });
}
