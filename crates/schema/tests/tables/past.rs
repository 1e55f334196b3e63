//! Versions that their names lost: what is kept, what goes, and in which order it is listed.

use stoker_catalog::kv::Write;
use stoker_format::{PastId, VersionId};
use stoker_schema::names::{Forgotten, Keeping, Plan, Published, Refusal, Removal, Which, id_of};
use stoker_schema::rows::{Drain, FileRow, LakeRef, PastRow, RetentionRow, keys};

use crate::audit::audit;
use crate::fixture::{Fixture, VOLUME, file, version};

const NOW_MS: u64 = 1_000;

fn keeping(key: &str, is_suspended: bool) -> Keeping {
    Keeping { key: key.as_bytes().to_vec(), is_suspended, now_ms: NOW_MS }
}

impl Fixture {
    async fn put_kept(&self, key: &str, row: FileRow, is_suspended: bool) -> Result<Published, Refusal> {
        let plan = Plan { keeping: Some(keeping(key, is_suspended)), ..Plan::simple(row) };
        let put = self.names.publish(VOLUME, key.as_bytes(), &[], |_| {
            let plan = plan.clone();
            Box::pin(async move { Ok(plan) })
        });
        put.await
    }

    async fn delete_kept(&self, key: &str, marker: u64, is_suspended: bool) {
        let keep = keeping(key, is_suspended);
        let content = version(marker);
        let removed = self.names.remove(VOLUME, key.as_bytes(), &[], |_| {
            Ok(Removal { keeping: Some((keep.clone(), content)), ..Removal::default() })
        });
        if removed.await.unwrap().is_none() {
            self.names.mark_deleted(VOLUME, &keep, content, &[]).await.unwrap().unwrap();
        }
    }

    /// Removes a version; says whether there was one.
    async fn drop_version(&self, key: &str, which: Which, bypass: bool) -> Result<bool, Refusal> {
        let gone = self.names.remove_version(VOLUME, key.as_bytes(), which, bypass, &[], |_| {
            Ok((Vec::<Write>::new(), NOW_MS))
        });
        Ok(gone.await?.is_some())
    }

    /// All versions of all keys as they are listed, the latest of a key first: content, and whether it is a marker.
    async fn versions(&self) -> Vec<(String, u64, bool, Which)> {
        let (pasts, more) = self.names.pasts(VOLUME, b"", b"", 1_000).await.unwrap();
        assert!(!more);
        let line = |key: &[u8], file: &FileRow| {
            let is_marker = file.past.as_ref().is_some_and(|past| past.is_marker);
            let content = u64::from_be_bytes(file.version[..8].try_into().unwrap());
            let which = id_of(file).map_or(Which::Null, Which::Id);
            (String::from_utf8(key.to_vec()).unwrap(), content, is_marker, which)
        };
        let mut lines: Vec<_> = pasts
            .iter()
            .map(|past| line(keys::past_name_parts(&past.spot.name).unwrap().0, &past.file))
            .collect();
        for key in self.keys().await {
            let present = self.names.lookup(VOLUME, key.as_bytes()).await.unwrap().unwrap();
            let at = lines.iter().position(|(of, ..)| *of >= key).unwrap_or(lines.len());
            lines.insert(at, line(key.as_bytes(), &present.file));
        }
        lines
    }

    async fn shows(&self, expect: &[(&str, u64)]) {
        let found = self.versions().await;
        let found: Vec<(&str, u64)> =
            found.iter().map(|(key, content, ..)| (key.as_str(), *content)).collect();
        assert_eq!(found, expect);
        audit(self).await;
    }
}

#[tokio::test]
async fn what_a_name_loses_stays_until_it_is_removed_by_its_id() {
    let fixture = Fixture::memory();
    fixture.put("a", file(1)).await.unwrap();
    let second = fixture.put_kept("a", file(2), false).await.unwrap();
    let (former, fate) = second.replaced.unwrap();
    assert_eq!((former.version(), fate), (version(1), Forgotten::Shared(version(1))));
    fixture.put_kept("a/b", file(3), false).await.unwrap();
    fixture.put_kept("a-b", file(4), false).await.unwrap();
    fixture.delete_kept("a", 9, false).await;
    fixture.shows(&[("a", 9), ("a", 2), ("a", 1), ("a-b", 4), ("a/b", 3)]).await;
    assert_eq!(fixture.keys().await, ["a-b", "a/b"]);
    assert!(audit(&fixture).await.garbage.is_empty());

    // Without its marker the version before is the present one again.
    let all = fixture.versions().await;
    assert!(fixture.drop_version("a", all[0].3, false).await.unwrap());
    assert_eq!(fixture.shown("a").await, Some(version(2)));
    // So it is when the present one is removed by its id; the one of the time before has none.
    assert!(fixture.drop_version("a", all[1].3, false).await.unwrap());
    assert_eq!(fixture.shown("a").await, Some(version(1)));
    assert!(!fixture.drop_version("a", all[1].3, false).await.unwrap());
    fixture.shows(&[("a", 1), ("a-b", 4), ("a/b", 3)]).await;
    assert_eq!(audit(&fixture).await.garbage, [version(2), version(9)].into());
    assert!(fixture.drop_version("a", Which::Null, false).await.unwrap());
    fixture.shows(&[("a-b", 4), ("a/b", 3)]).await;
}

#[tokio::test]
async fn while_versions_are_suspended_one_has_no_id() {
    let fixture = Fixture::memory();
    fixture.put_kept("k", file(1), false).await.unwrap();
    fixture.put_kept("k", file(2), true).await.unwrap();
    // It takes the place of the one that has none either.
    fixture.put_kept("k", file(3), true).await.unwrap();
    fixture.shows(&[("k", 3), ("k", 1)]).await;
    fixture.put_kept("k", file(4), false).await.unwrap();
    fixture.shows(&[("k", 4), ("k", 3), ("k", 1)]).await;
    let found = fixture.names.version_of(VOLUME, b"k", Which::Null).await.unwrap().unwrap();
    assert_eq!((found.0.file.version(), found.1), (version(3), false));
    // A marker without an id does so, too, wherever that one is.
    fixture.delete_kept("k", 9, true).await;
    fixture.shows(&[("k", 9), ("k", 4), ("k", 1)]).await;
    fixture.delete_kept("k", 10, true).await;
    fixture.shows(&[("k", 10), ("k", 4), ("k", 1)]).await;
    fixture.put_kept("k", file(5), true).await.unwrap();
    fixture.shows(&[("k", 5), ("k", 4), ("k", 1)]).await;
}

#[tokio::test]
async fn the_lake_object_of_a_kept_version_is_relied_on_until_it_has_one_of_its_own() {
    let fixture = Fixture::memory();
    let lake = Some(LakeRef { key: b"k".to_vec(), etag: "e1".into() });
    let clean = FileRow { drain: Drain::Clean, lake: lake.clone(), ..file(1) };
    fixture.put_kept("k", clean, false).await.unwrap();
    let second = fixture.put_kept("k", FileRow { drain: Drain::Dirty, ..file(2) }, false).await.unwrap();
    // What the lake shows under the name is to be replaced there, once the former version has an object of its own.
    assert_eq!(second.file.lake, lake);
    let kept = second.kept.unwrap();
    assert_eq!((kept.file.drain, kept.file.lake.clone()), (Drain::Clean, lake));
    assert_ne!(kept.file.inode, second.file.inode);
    let dependents = fixture.table(&keys::dependents(VOLUME, b"k")).await;
    let parts = keys::dependent_parts(&dependents[0].key).unwrap();
    assert_eq!((dependents.len(), parts), (1, (version(1), kept.file.inode)));
    assert_eq!(fixture.table(&keys::rekey_file(VOLUME, version(1))).await.len(), 1);
    let path = fixture.names.path_of(&kept.spot).await.unwrap().unwrap();
    let id = id_of(&kept.file).unwrap();
    assert_eq!(path, format!(".stoker-versions/k/{id}").into_bytes());
    // Its key finds it, as that of any file.
    let found = fixture.names.lookup(VOLUME, &path).await.unwrap().unwrap();
    assert_eq!(found.file, kept.file);
    assert_eq!(fixture.keys().await, ["k"]);
    audit(&fixture).await;
}

#[tokio::test]
async fn what_has_to_stay_is_taken_out_by_nobody() {
    let mut fixture = Fixture::memory();
    let clock = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(100));
    let time = clock.clone();
    fixture.names =
        fixture.names.releasing(std::sync::Arc::new(move || time.load(std::sync::atomic::Ordering::SeqCst)));
    let past = |is_compliance, until_ms, is_held| {
        let retention = Some(RetentionRow { is_compliance, until_ms });
        Some(PastRow { retention, is_held, ..PastRow::default() })
    };
    for (base, (key, past, bypassed)) in [
        (100, ("governance", past(false, 200, false), true)),
        (200, ("compliance", past(true, 200, false), false)),
        (300, ("held", past(false, 0, true), false)),
    ] {
        let first = fixture.put_kept(key, FileRow { past, ..file(base + 1) }, false).await.unwrap();
        let id = Which::Id(id_of(&first.file).unwrap());
        let locked = |found: Result<bool, Refusal>| matches!(found, Err(Refusal::Locked));
        assert!(locked(fixture.drop_version(key, id, false).await), "{key} as the present one");
        // Nor by a change that keeps nothing.
        assert!(matches!(fixture.put(key, file(base + 2)).await, Err(Refusal::Locked)), "{key} replaced");
        assert!(matches!(fixture.remove(key).await, Err(Refusal::Locked)), "{key} removed");
        fixture.put_kept(key, file(base + 2), false).await.unwrap();
        fixture.delete_kept(key, base + 9, false).await;
        assert!(locked(fixture.drop_version(key, id, false).await), "{key} as a former one");
        assert_eq!(fixture.drop_version(key, id, true).await.is_ok(), bypassed, "{key}");
        audit(&fixture).await;
    }
    clock.store(200, std::sync::atomic::Ordering::SeqCst);
    let all = fixture.versions().await;
    let first = |key: &str| all.iter().find(|line| line.0 == key && line.1 % 100 == 1).map(|line| line.3);
    assert_eq!(first("governance"), None);
    assert!(fixture.drop_version("compliance", first("compliance").unwrap(), false).await.unwrap());
    assert!(fixture.drop_version("held", first("held").unwrap(), true).await.is_err());
    audit(&fixture).await;
}

/// The versions of a key as S3 has them: the latest last.
#[derive(Default, Clone)]
struct Model(Vec<(u64, bool, bool)>);

impl Model {
    fn add(&mut self, content: u64, is_marker: bool, is_null: bool) {
        if is_null {
            self.0.retain(|(.., null)| !null);
        }
        self.0.push((content, is_marker, is_null));
    }
}

#[tokio::test]
async fn versions_are_those_of_a_model() {
    let seeds = 30;
    for seed in 1..=seeds {
        let fixture = Fixture::memory();
        let names = ["a", "a/b", "a!"];
        let mut models = vec![Model::default(); names.len()];
        let mut state: u64 = seed;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for content in 1..=40 {
            let at = next(names.len() as u64) as usize;
            let (key, model) = (names[at], &mut models[at]);
            let is_suspended = next(3) == 0;
            match next(10) {
                0..=4 => {
                    fixture.put_kept(key, file(content), is_suspended).await.unwrap();
                    model.add(content, false, is_suspended);
                }
                5..=6 => {
                    fixture.delete_kept(key, content, is_suspended).await;
                    model.add(content, true, is_suspended);
                }
                _ if model.0.is_empty() => {}
                _ => {
                    let gone = next(model.0.len() as u64) as usize;
                    let (content, ..) = model.0.remove(gone);
                    let all = fixture.versions().await;
                    let line = all.iter().find(|line| line.0 == key && line.1 == content).unwrap();
                    assert!(fixture.drop_version(key, line.3, false).await.unwrap());
                }
            }
            let mut expect: Vec<(String, u64, bool)> = Vec::new();
            for (key, model) in
                [(0, &models[0]), (2, &models[2]), (1, &models[1])].map(|(at, m)| (names[at], m))
            {
                expect.extend(
                    model.0.iter().rev().map(|(content, is_marker, _)| (key.into(), *content, *is_marker)),
                );
                let shown = model
                    .0
                    .last()
                    .filter(|(_, is_marker, _)| !is_marker)
                    .map(|(content, ..)| version(*content));
                assert_eq!(fixture.shown(key).await, shown, "seed {seed}: {key}");
            }
            let found = fixture.versions().await;
            let found: Vec<_> =
                found.into_iter().map(|(key, content, is_marker, _)| (key, content, is_marker)).collect();
            assert_eq!(found, expect, "seed {seed}");
            audit(&fixture).await;
        }
    }
}

#[tokio::test]
async fn ids_of_other_keys_and_contents_find_nothing() {
    let fixture = Fixture::memory();
    fixture.put_kept("a", file(1), false).await.unwrap();
    fixture.put_kept("a", file(2), false).await.unwrap();
    let all = fixture.versions().await;
    let Which::Id(id) = all[1].3 else { panic!("it has an id") };
    for wrong in [
        PastId { number: id.number + 5, ..id },
        PastId { version: VersionId([9; 12]), ..id },
        PastId { number: u64::MAX, ..id },
    ] {
        assert!(fixture.names.version_of(VOLUME, b"a", Which::Id(wrong)).await.unwrap().is_none());
    }
    for other in ["b", "a/", ""] {
        assert!(fixture.names.version_of(VOLUME, other.as_bytes(), all[1].3).await.unwrap().is_none());
    }
}
