//! Sets among files, against a model: a map of visible keys, and shards that wait.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoker_schema::names::{Refusal, SetPublish, SetRequest};
use stoker_schema::rows::SetState;

use crate::audit::audit;
use crate::fixture::{Fixture, VOLUME, file, rekey, request, version};

/// How long a set may take.
const LIFE_MS: u64 = 100;

#[derive(Clone, Debug)]
enum Op {
    Begin { target: usize, expected: u32 },
    Add { target: usize, number: u32, name: usize },
    Publish { target: usize },
    Abort { target: usize },
    Put { key: String },
    Remove { key: String },
    RenameDirectory { from: usize, to: usize },
    Wait { ms: u64 },
    Sweep,
}

/// Few names, so that they meet. Some targets are below others.
const TARGETS: [&str; 5] = ["r/1/", "r/2/", "r/", "q/", "q/1/x/"];
const NAMES: [&str; 4] = ["a", "b", "d/a", "d/e/a"];

fn op() -> impl Strategy<Value = Op> {
    let target = 0..TARGETS.len();
    let key = (0..TARGETS.len(), 0..NAMES.len())
        .prop_map(|(target, name)| format!("{}{}", TARGETS[target], NAMES[name]));
    prop_oneof![
        3 => (target.clone(), 1..4u32).prop_map(|(target, expected)| Op::Begin { target, expected }),
        8 => (target.clone(), 0..3u32, 0..NAMES.len())
            .prop_map(|(target, number, name)| Op::Add { target, number, name }),
        5 => target.clone().prop_map(|target| Op::Publish { target }),
        1 => target.clone().prop_map(|target| Op::Abort { target }),
        1 => key.clone().prop_map(|key| Op::Put { key }),
        3 => key.prop_map(|key| Op::Remove { key }),
        2 => (target.clone(), target).prop_map(|(from, to)| Op::RenameDirectory { from, to }),
        1 => (1..LIFE_MS).prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Sweep),
    ]
}

struct Gathering {
    target: usize,
    expected: u32,
    deadline_ms: u64,
    shards: BTreeMap<u32, (String, u64)>,
    over: bool,
}

/// What the catalog ought to be.
#[derive(Default)]
struct Model {
    now_ms: u64,
    visible: BTreeMap<String, u64>,
    sets: BTreeMap<u64, Gathering>,
    /// The last set that was begun for a target.
    last: BTreeMap<usize, u64>,
    /// Published sets in their order, with the keys of their directories.
    published: Vec<(u64, String)>,
}

impl Model {
    fn is_taken(&self, directory: &str) -> bool {
        self.visible.keys().any(|key| key.starts_with(directory))
    }

    fn is_open(&self, id: u64) -> bool {
        self.sets.get(&id).is_some_and(|set| !set.over && set.deadline_ms > self.now_ms)
    }

    /// A set whose directory is empty is gone.
    fn prune(&mut self) {
        let visible = &self.visible;
        self.published.retain(|(_, path)| visible.keys().any(|key| key.starts_with(path)));
    }

    fn latest(&self, prefix: &str) -> Option<u64> {
        self.published.iter().rev().find(|(_, path)| path.starts_with(prefix)).map(|(id, _)| *id)
    }

    /// Versions that must be there: visible ones, and those of sets that nobody gave up yet.
    fn kept(&self) -> std::collections::BTreeSet<stoker_format::VersionId> {
        let waiting = self.sets.values().filter(|set| !set.over).flat_map(|set| set.shards.values());
        self.visible.values().chain(waiting.map(|(_, id)| id)).map(|id| version(*id)).collect()
    }
}

async fn begin(fixture: &Fixture, model: &mut Model, target: usize, expected: u32) {
    let wish = SetRequest { deadline_ms: model.now_ms + LIFE_MS, ..request(TARGETS[target], expected) };
    let begun = fixture.names.set_begin(VOLUME, &wish, &[], model.now_ms).await;
    let open = model.last.get(&target).copied().filter(|id| model.is_open(*id));
    if let Some(open) = open {
        match model.sets[&open].expected == expected {
            true => assert_eq!(begun.unwrap().id, open),
            false => assert!(matches!(begun, Err(Refusal::Conflict(_)))),
        }
        return;
    }
    // A late one was given up on the way, whether or not the new one begins.
    if let Some(late) = model.last.get(&target) {
        model.sets.get_mut(late).unwrap().over = true;
    }
    if model.is_taken(TARGETS[target]) {
        assert!(matches!(begun, Err(Refusal::Exists)), "{begun:?}");
        return;
    }
    let id = begun.unwrap().id;
    let deadline_ms = model.now_ms + LIFE_MS;
    let set = Gathering { target, expected, deadline_ms, shards: BTreeMap::new(), over: false };
    assert!(model.sets.insert(id, set).is_none());
    model.last.insert(target, id);
}

async fn add(fixture: &Fixture, model: &mut Model, id: u64, number: u32, name: &str, content: u64) {
    let added = fixture.add_at(id, number, name, content, model.now_ms).await;
    let open = model.is_open(id);
    let set = model.sets.get_mut(&id).unwrap();
    let taken = set.shards.iter().any(|(other, (used, _))| *other != number && used == name);
    match added {
        Err(Refusal::Conflict(_)) => assert!(!open),
        // It was published, and all its files were deleted.
        Err(Refusal::NotFound) => assert!(!open && !model.published.iter().any(|(known, _)| *known == id)),
        Err(Refusal::Invalid(_)) => assert!(open && number >= set.expected),
        Err(Refusal::Exists) => assert!(open && taken),
        Ok(added) => {
            assert!(open && number < set.expected && !taken);
            let former = set.shards.insert(number, (name.to_owned(), content));
            let replaced = added.replaced.map(|(old, _)| old.version());
            assert_eq!(replaced, former.map(|(_, id)| version(id)));
        }
        Err(refusal) => panic!("{refusal:?}"),
    }
}

async fn publish(fixture: &Fixture, model: &mut Model, id: u64) {
    let published = fixture.names.set_publish(VOLUME, id, &[], model.now_ms).await;
    let open = model.is_open(id);
    let set = &model.sets[&id];
    let missing: Vec<u32> = (0..set.expected).filter(|number| !set.shards.contains_key(number)).collect();
    match published {
        Err(Refusal::Conflict(_)) => assert!(!open),
        Ok(SetPublish::Waiting(laggards)) => assert!(open && laggards == missing),
        Err(Refusal::Exists) => assert!(open && missing.is_empty() && model.is_taken(TARGETS[set.target])),
        Ok(SetPublish::Done(done)) if !open => {
            assert!(model.published.iter().any(|(published, _)| *published == done.id));
        }
        Ok(SetPublish::Done(_)) => {
            let target = TARGETS[set.target];
            assert!(missing.is_empty() && !model.is_taken(target));
            for (name, content) in set.shards.values() {
                model.visible.insert(format!("{target}{name}"), *content);
            }
            model.published.push((id, target.to_owned()));
            model.sets.get_mut(&id).unwrap().over = true;
        }
        // All its files were deleted.
        Err(Refusal::NotFound) => assert!(!open && !model.published.iter().any(|(known, _)| *known == id)),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

async fn abort(fixture: &Fixture, model: &mut Model, id: u64) {
    let aborted = fixture.names.set_abort(VOLUME, id, &[], model.now_ms).await;
    let published = model.published.iter().any(|(published, _)| *published == id);
    match aborted {
        Ok(set) => {
            assert!(!published && matches!(set.row.state, SetState::Aborted(_)));
            model.sets.get_mut(&id).unwrap().over = true;
        }
        Err(Refusal::Conflict(_)) => assert!(published),
        Err(Refusal::NotFound) => assert!(!published && model.sets[&id].over),
        Err(refusal) => panic!("{refusal:?}"),
    }
}

async fn rename(fixture: &Fixture, model: &mut Model, from: &str, to: &str) {
    let renamed = fixture
        .names
        .rename_directory(VOLUME, from.as_bytes(), to.as_bytes(), &[], rekey(model.now_ms))
        .await;
    if to.starts_with(from) && to != from {
        assert!(matches!(renamed, Err(Refusal::Invalid(_))));
    } else if !model.is_taken(from) {
        assert!(matches!(renamed, Err(Refusal::NotFound)));
    } else if from == to {
        renamed.unwrap();
    } else if model.is_taken(to) {
        assert!(matches!(renamed, Err(Refusal::Exists)));
    } else {
        renamed.unwrap();
        let moved = |path: &str| path.strip_prefix(from).map(|rest| format!("{to}{rest}"));
        let visible = std::mem::take(&mut model.visible);
        model.visible = visible.into_iter().map(|(key, id)| (moved(&key).unwrap_or(key), id)).collect();
        for (_, path) in &mut model.published {
            *path = moved(path).unwrap_or_else(|| path.clone());
        }
    }
}

async fn run(fixture: Fixture, ops: Vec<Op>) {
    let mut model = Model { now_ms: 1_000, ..Model::default() };
    for (step, op) in ops.into_iter().enumerate() {
        let content = step as u64 + 1;
        match op {
            Op::Begin { target, expected } => begin(&fixture, &mut model, target, expected).await,
            Op::Add { target, number, name } => {
                if let Some(id) = model.last.get(&target).copied() {
                    add(&fixture, &mut model, id, number, NAMES[name], content).await;
                }
            }
            Op::Publish { target } => {
                if let Some(id) = model.last.get(&target).copied() {
                    publish(&fixture, &mut model, id).await;
                }
            }
            Op::Abort { target } => {
                if let Some(id) = model.last.get(&target).copied() {
                    abort(&fixture, &mut model, id).await;
                }
            }
            Op::Put { key } => {
                fixture.put(&key, file(content)).await.unwrap();
                model.visible.insert(key, content);
            }
            Op::Remove { key } => {
                let removed = fixture.remove(&key).await.unwrap();
                let removed = removed.map(|removed| removed.file.version());
                assert_eq!(removed, model.visible.remove(&key).map(version));
            }
            Op::RenameDirectory { from, to } => {
                rename(&fixture, &mut model, TARGETS[from], TARGETS[to]).await;
            }
            Op::Wait { ms } => model.now_ms += ms,
            Op::Sweep => {
                fixture.names.sets_sweep(model.now_ms).await.unwrap();
                let now_ms = model.now_ms;
                model
                    .sets
                    .values_mut()
                    .filter(|set| set.deadline_ms <= now_ms)
                    .for_each(|set| set.over = true);
            }
        }
        model.prune();
        assert_eq!(fixture.keys().await, model.visible.keys().cloned().collect::<Vec<_>>());
        for (key, id) in &model.visible {
            assert_eq!(fixture.shown(key).await, Some(version(*id)));
        }
        for prefix in ["", "r", "r/1/", "q/", "q/1/"] {
            let latest = fixture.names.set_latest(VOLUME, prefix.as_bytes()).await.unwrap();
            assert_eq!(latest.map(|set| set.id), model.latest(prefix), "latest of {prefix:?}");
        }
        audit(&fixture).await;
    }
    // Once what was given up is cleared, what is kept is exactly what somebody can still see or publish.
    fixture.names.sets_sweep(model.now_ms).await.unwrap();
    let now_ms = model.now_ms;
    model.sets.values_mut().filter(|set| set.deadline_ms <= now_ms).for_each(|set| set.over = true);
    assert_eq!(audit(&fixture).await.referenced, model.kept());
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
    fn sets_do_what_the_model_does(ops in prop::collection::vec(op(), 1..60)) {
        block_on(run(Fixture::memory(), ops));
    }
}

proptest! {
    #![proptest_config(config(6))]

    #[test]
    fn sets_in_a_file_do_what_the_model_does(ops in prop::collection::vec(op(), 1..40)) {
        block_on(run(Fixture::embedded(), ops));
    }
}
