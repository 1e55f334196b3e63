//! Seals among files, against a model: a version is kept while a file or a seal has it, and is garbage afterwards.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_catalog::names::SealFinish;
use stoker_catalog::rows::{Drain, FileRow, LakeRef};
use stoker_format::VersionId;

use crate::audit::audit;
use crate::fixture::{Fixture, NOW, VOLUME, file, version};

const KEYS: [&str; 6] = ["a", "d/a", "d/b", "d/e/a", "d/e/b", "f/a"];
const PREFIXES: [&str; 4] = ["", "d/", "d/e/", "f"];

#[derive(Clone, Debug)]
enum Op {
    Put { key: usize, clean: bool },
    Copy { from: usize, to: usize },
    Remove { key: usize },
    Rename { from: usize, to: usize },
    Seal { prefix: usize, limit: usize, finish: bool },
    Unseal { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS.len();
    prop_oneof![
        4 => (key.clone(), any::<bool>()).prop_map(|(key, clean)| Op::Put { key, clean }),
        2 => (key.clone(), key.clone()).prop_map(|(from, to)| Op::Copy { from, to }),
        4 => key.clone().prop_map(|key| Op::Remove { key }),
        1 => (key.clone(), key).prop_map(|(from, to)| Op::Rename { from, to }),
        2 => (0..PREFIXES.len(), 1..5usize, any::<bool>())
            .prop_map(|(prefix, limit, finish)| Op::Seal { prefix, limit, finish }),
        2 => (0..4usize).prop_map(|which| Op::Unseal { which }),
    ]
}

#[derive(Default)]
struct Model {
    files: BTreeMap<String, FileRow>,
    seals: BTreeMap<u64, BTreeSet<VersionId>>,
    written: BTreeSet<VersionId>,
}

async fn put(fixture: &Fixture, model: &mut Model, key: &str, row: FileRow) {
    fixture.put(key, row.clone()).await.unwrap();
    model.written.insert(row.version());
    model.files.insert(key.to_owned(), row);
}

async fn seal(fixture: &Fixture, model: &mut Model, prefix: &str, limit: usize, finish: Option<u64>) {
    let id = fixture.names.seal_begin(VOLUME, prefix.as_bytes(), &[], NOW).await.unwrap().id;
    let mut found = Vec::new();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let step = fixture.names.seal_step(VOLUME, id, after.as_deref(), limit).await.unwrap();
        found.extend(step.files.into_iter().map(|sealed| (sealed.key, sealed.file.version())));
        after = match step.after {
            Some(after) => Some(after),
            None => break,
        };
    }
    let covered = model.files.iter().filter(|(key, _)| key.starts_with(prefix));
    let expect: Vec<_> = covered.map(|(key, file)| (key.clone().into_bytes(), file.version())).collect();
    assert_eq!(found, expect);
    let mut held: BTreeSet<VersionId> = found.into_iter().map(|(_, version)| version).collect();
    if let Some(manifest) = finish {
        put(fixture, model, "manifest", file(manifest)).await;
        let finish = SealFinish { manifest: b"manifest", files: held.len() as u64, bytes: 0 };
        fixture.names.seal_finish(VOLUME, id, &finish, &[]).await.unwrap();
        held.insert(version(manifest));
    }
    model.seals.insert(id, held);
}

async fn run(fixture: Fixture, ops: Vec<Op>) {
    let mut model = Model::default();
    for (step, op) in ops.into_iter().enumerate() {
        let content = step as u64 + 1;
        match op {
            Op::Put { key, clean } => {
                let mut row = file(content);
                if clean {
                    row.drain = Drain::Clean;
                    row.lake = Some(LakeRef { key: KEYS[key].into(), etag: content.to_string() });
                }
                put(&fixture, &mut model, KEYS[key], row).await;
            }
            Op::Copy { from, to } => {
                if let Some(row) = model.files.get(KEYS[from]).cloned() {
                    put(&fixture, &mut model, KEYS[to], row).await;
                }
            }
            Op::Remove { key } => {
                let removed = fixture.remove(KEYS[key]).await.unwrap().map(|removed| removed.file.version());
                assert_eq!(removed, model.files.remove(KEYS[key]).map(|row| row.version()));
            }
            Op::Rename { from, to } => {
                let (from, to) = (KEYS[from], KEYS[to]);
                let renamed = fixture
                    .names
                    .rename_file(VOLUME, from.as_bytes(), to.as_bytes(), &[], |_, _| Ok(Vec::new()))
                    .await;
                if let Some(row) = model.files.remove(from) {
                    renamed.unwrap();
                    model.files.insert(to.to_owned(), row);
                }
            }
            Op::Seal { prefix, limit, finish } => {
                let manifest = finish.then_some(1_000 + content);
                seal(&fixture, &mut model, PREFIXES[prefix], limit, manifest).await;
            }
            Op::Unseal { which } => {
                if let Some(id) = model.seals.keys().nth(which).copied() {
                    fixture.names.seal_remove(VOLUME, id, &[]).await.unwrap();
                    model.seals.remove(&id);
                }
            }
        }
        let files = model.files.values().map(FileRow::version);
        let kept: BTreeSet<VersionId> = files.chain(model.seals.values().flatten().copied()).collect();
        let rows = audit(&fixture).await;
        assert_eq!(rows.referenced, kept);
        assert_eq!(rows.garbage, model.written.difference(&kept).copied().collect());
    }
    for id in model.seals.keys() {
        fixture.names.seal_remove(VOLUME, *id, &[]).await.unwrap();
    }
    for table in [b"Z", b"z", b"L"] {
        assert!(fixture.table(table).await.is_empty());
    }
}

fn config(cases: u32) -> ProptestConfig {
    let full = std::env::var_os("STOKER_FULL").is_some();
    ProptestConfig { cases: if full { cases * 16 } else { cases }, ..ProptestConfig::default() }
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn versions_are_kept_while_somebody_has_them(ops in prop::collection::vec(op(), 1..50)) {
        block_on(run(Fixture::memory(), ops));
    }
}

proptest! {
    #![proptest_config(config(6))]

    #[test]
    fn versions_in_a_file_are_kept_too(ops in prop::collection::vec(op(), 1..40)) {
        block_on(run(Fixture::embedded(), ops));
    }
}
