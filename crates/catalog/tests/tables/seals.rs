//! Seals: what they hold, and what it takes to let go.

use stoker_catalog::kv::{Check, Commit, Outcome, Write};
use stoker_catalog::names::{Forgotten, Plan, Refusal, Seal, SealFinish, Sealed};
use stoker_catalog::rows::{
    Drain, FileRow, LakeRef, Layout, MemberRow, RowValue, SealState, SourceRef, VersionRow, keys,
};
use stoker_format::ChunkRun;

use crate::audit::audit;
use crate::between::each;
use crate::fixture::{Fixture, NOW, VOLUME, file, on_each, rekey, version};

on_each!(
    sealed_files_outlive_their_names,
    steps_cover_the_prefix_in_order,
    steps_can_be_repeated,
    the_manifest_is_held_too,
    copies_are_held_once,
    clean_files_keep_their_lake_object,
    drained_later_relies_later,
    several_seals_hold_one_file,
    layouts_stay_with_the_seal,
    removal_is_finished_by_the_sweep,
    large_seals_go_in_pieces,
    states_are_kept,
    references_tell_who_refers,
);

/// Seals everything with a prefix, a few files at a time, with a manifest beside it.
async fn seal(fixture: &Fixture, prefix: &str, manifest: u64) -> (Seal, Vec<Sealed>) {
    let begun = fixture.names.seal_begin(VOLUME, prefix.as_bytes(), &[], NOW).await.unwrap();
    let files = steps(fixture, begun.id, 3).await;
    let key = format!("manifests/{}", begun.id);
    fixture.put(&key, file(manifest)).await.unwrap();
    let bytes = files.iter().map(|sealed| sealed.file.size).sum();
    let finish = SealFinish { manifest: key.as_bytes(), files: files.len() as u64, bytes };
    (fixture.names.seal_finish(VOLUME, begun.id, &finish, &[]).await.unwrap(), files)
}

async fn steps(fixture: &Fixture, seal: u64, limit: usize) -> Vec<Sealed> {
    let mut files = Vec::new();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let step = fixture.names.seal_step(VOLUME, seal, after.as_deref(), limit).await.unwrap();
        assert!(step.files.len() <= limit);
        files.extend(step.files);
        match step.after {
            Some(next) => after = Some(next),
            None => return files,
        }
    }
}

fn clean(id: u64, key: &str) -> FileRow {
    let lake = Some(LakeRef { key: key.into(), etag: format!("etag-{id}") });
    FileRow { drain: Drain::Clean, lake, holders: Vec::new(), dirty_since_ms: 0, ..file(id) }
}

async fn sealed_files_outlive_their_names(fixture: Fixture) {
    for (id, key) in [(1, "d/a"), (2, "d/b"), (3, "d/c"), (4, "e")] {
        fixture.put(key, file(id)).await.unwrap();
    }
    let (seal, files) = seal(&fixture, "d/", 50).await;
    assert_eq!(files.len(), 3);
    assert_eq!((seal.row.files, seal.row.state), (3, SealState::Ready));
    assert_eq!(seal.row.bytes, files.iter().map(|sealed| sealed.file.size).sum::<u64>());
    // Deleted, replaced, renamed: what the manifest names stays.
    let removed = fixture.remove("d/a").await.unwrap().unwrap();
    assert_eq!(removed.fate, Forgotten::Shared(version(1)));
    fixture.put("d/b", file(9)).await.unwrap();
    fixture.names.rename_directory(VOLUME, b"d/", b"f/", &[], rekey(NOW)).await.unwrap();
    fixture.remove("e").await.unwrap().unwrap();
    let rows = audit(&fixture).await;
    assert_eq!(rows.garbage, [version(4)].into());
    assert_eq!(rows.referenced, [1, 2, 3, 9, 50].map(version).into());
    let dirty = fixture.table(b"d").await;
    let dirty: Vec<_> = dirty.iter().filter_map(|row| keys::dirty_version(&row.key)).collect();
    assert!(dirty.contains(&version(1)), "its bytes are at risk like any other");
    // Without the seal, what no file has goes.
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    let rows = audit(&fixture).await;
    assert_eq!(rows.garbage, [1, 2, 4].map(version).into());
    assert_eq!(rows.referenced, [3, 9, 50].map(version).into());
    assert_eq!(fixture.names.seal(VOLUME, seal.id).await.unwrap(), None);
}

async fn steps_cover_the_prefix_in_order(fixture: Fixture) {
    let keys = ["a", "d-", "d/", "d/a", "d/b/c", "d/b/d", "d/c", "d0", "e"];
    for (id, key) in keys.iter().enumerate() {
        fixture.put(key, file(id as u64 + 1)).await.unwrap();
    }
    let check = async |prefix: &str, expect: &[&str]| {
        for limit in [0, 1, 2, 100, usize::MAX] {
            let seal = fixture.names.seal_begin(VOLUME, prefix.as_bytes(), &[], NOW).await.unwrap();
            let limit = limit.max(1);
            let files = steps(&fixture, seal.id, limit).await;
            let found: Vec<&str> =
                files.iter().map(|sealed| std::str::from_utf8(&sealed.key).unwrap()).collect();
            assert_eq!(found, expect, "{prefix} {limit}");
            assert_eq!(fixture.table(&keys::members(seal.id)).await.len(), expect.len());
        }
    };
    check("", &keys).await;
    check("d/", &keys[2..7]).await;
    check("d/b/", &keys[4..6]).await;
    check("nothing", &[]).await;
    audit(&fixture).await;
}

async fn steps_can_be_repeated(fixture: Fixture) {
    for (id, key) in [(1, "a"), (2, "b"), (3, "c")] {
        fixture.put(key, file(id)).await.unwrap();
    }
    let seal = fixture.names.seal_begin(VOLUME, b"", &[], NOW).await.unwrap();
    let first = fixture.names.seal_step(VOLUME, seal.id, None, 2).await.unwrap();
    assert_eq!(fixture.names.seal_step(VOLUME, seal.id, None, 2).await.unwrap(), first);
    // A file that changed in between is sealed as it is now; the old version is let go of with the seal.
    fixture.put("b", file(4)).await.unwrap();
    let again = fixture.names.seal_step(VOLUME, seal.id, None, 2).await.unwrap();
    assert_eq!(again.files[1].file.version(), version(4));
    fixture.remove("a").await.unwrap().unwrap();
    let rest = fixture.names.seal_step(VOLUME, seal.id, again.after.as_deref(), 2).await.unwrap();
    assert_eq!(rest.files.len(), 1);
    assert!(audit(&fixture).await.garbage.is_empty());
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    assert_eq!(audit(&fixture).await.garbage, [version(1), version(2)].into());
}

async fn the_manifest_is_held_too(fixture: Fixture) {
    fixture.put("d/a", file(1)).await.unwrap();
    let (seal, _) = seal(&fixture, "d/", 50).await;
    assert_eq!(seal.row.manifest, Some(version(50).0));
    fixture.remove(&format!("manifests/{}", seal.id)).await.unwrap().unwrap();
    assert!(audit(&fixture).await.referenced.contains(&version(50)));
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    assert_eq!(audit(&fixture).await.garbage, [version(50)].into());
}

async fn copies_are_held_once(fixture: Fixture) {
    // One version with two names in the lake; the seal needs one of them.
    fixture.put("a", clean(1, "a")).await.unwrap();
    fixture.put("b", clean(1, "b")).await.unwrap();
    let seal = fixture.names.seal_begin(VOLUME, b"", &[], NOW).await.unwrap();
    for limit in [1, 2] {
        assert_eq!(steps(&fixture, seal.id, limit).await.len(), 2);
    }
    assert_eq!(fixture.table(&keys::members(seal.id)).await.len(), 1);
    audit(&fixture).await;
    fixture.remove("a").await.unwrap().unwrap();
    fixture.remove("b").await.unwrap().unwrap();
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    audit(&fixture).await;
    assert!(fixture.table(b"L").await.is_empty());
}

async fn clean_files_keep_their_lake_object(fixture: Fixture) {
    fixture.put("d/a", clean(1, "d/a")).await.unwrap();
    let (seal, _) = seal(&fixture, "d/", 50).await;
    let relier = keys::relier(VOLUME, b"d/a", version(1), seal.id);
    assert_eq!(fixture.table(&keys::reliers(VOLUME, b"d/a")).await[0].key, relier);
    fixture.remove("d/a").await.unwrap().unwrap();
    assert_eq!(fixture.table(&relier).await.len(), 1, "the object must not be deleted in the lake");
    let member = &fixture.table(&keys::member(seal.id, version(1))).await[0];
    let source = SourceRef { volume: VOLUME.0, key: b"d/a".to_vec(), etag: "etag-1".into() };
    assert_eq!(MemberRow::of(member).unwrap().relies, Some(source));
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    assert!(fixture.table(b"L").await.is_empty());
    audit(&fixture).await;
}

async fn drained_later_relies_later(fixture: Fixture) {
    fixture.put("d/a", file(1)).await.unwrap();
    let (seal, _) = seal(&fixture, "d/", 50).await;
    assert!(fixture.table(b"L").await.is_empty());
    let references = fixture.table(&keys::references(version(1))).await;
    assert_eq!(references.len(), 2);
    let (entry, sealed) = (&references[0], &references[1]);
    let lake = LakeRef { key: b"d/a".to_vec(), etag: "e".into() };
    let mut change = Commit::new();
    assert!(fixture.names.seal_relies(&mut change, entry, &lake).await.is_err());
    fixture.names.seal_relies(&mut change, sealed, &lake).await.unwrap();
    assert!(matches!(fixture.catalog.commit(change).await.unwrap(), Outcome::Done { .. }));
    let relier = keys::relier(VOLUME, b"d/a", version(1), seal.id);
    assert_eq!(fixture.table(b"L").await[0].key, relier);
    // And elsewhere, when the object moved.
    let mut change = Commit::new();
    let moved = LakeRef { key: b"e/a".to_vec(), etag: "e".into() };
    fixture.names.seal_relies(&mut change, sealed, &moved).await.unwrap();
    assert!(matches!(fixture.catalog.commit(change).await.unwrap(), Outcome::Done { .. }));
    assert_eq!(fixture.table(b"L").await[0].key, keys::relier(VOLUME, b"e/a", version(1), seal.id));
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    audit(&fixture).await;
}

async fn several_seals_hold_one_file(fixture: Fixture) {
    fixture.put("d/a", clean(1, "d/a")).await.unwrap();
    let (first, _) = seal(&fixture, "d/", 50).await;
    let (second, _) = seal(&fixture, "d/", 51).await;
    let (seals, more) = fixture.names.seals(VOLUME, None, 1).await.unwrap();
    assert_eq!((seals, more), (vec![first.clone()], true));
    assert_eq!(fixture.names.seals(VOLUME, Some(first.id), 9).await.unwrap(), (vec![second.clone()], false));
    fixture.remove("d/a").await.unwrap().unwrap();
    fixture.names.seal_remove(VOLUME, first.id, &[]).await.unwrap();
    let rows = audit(&fixture).await;
    assert!(rows.referenced.contains(&version(1)) && rows.garbage.is_empty());
    fixture.names.seal_remove(VOLUME, second.id, &[]).await.unwrap();
    assert_eq!(audit(&fixture).await.garbage, [version(1)].into());
}

async fn layouts_stay_with_the_seal(fixture: Fixture) {
    let runs: Vec<ChunkRun> = (0..4_000u32)
        .map(|index| ChunkRun {
            file_offset: 0,
            version: version(1),
            first_index: index * 2,
            count: 1,
            chunk_len: 100,
            last_len: 100,
        })
        .collect();
    let mut plan = Plan::simple(FileRow { layout: Layout::Rows, size: 400_000, ..file(1) });
    plan.layout = VersionRow::split(&runs, Vec::new());
    let put = fixture.names.publish(VOLUME, b"d/a", &[], |_| {
        let plan = plan.clone();
        Box::pin(async move { Ok(plan) })
    });
    put.await.unwrap();
    let (seal, _) = seal(&fixture, "d/", 50).await;
    fixture.remove("d/a").await.unwrap().unwrap();
    assert_eq!(fixture.names.version_rows(version(1)).await.unwrap().len(), 3);
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    assert!(fixture.table(b"v").await.is_empty());
    assert_eq!(fixture.table(&keys::garbage(version(1), 0)[..13]).await.len(), 3);
    audit(&fixture).await;
}

async fn removal_is_finished_by_the_sweep(fixture: Fixture) {
    fixture.put("d/a", file(1)).await.unwrap();
    let (ready, _) = seal(&fixture, "d/", 50).await;
    let (doomed, _) = seal(&fixture, "d/", 51).await;
    // As a crash right after the decision leaves it.
    let key = keys::seal(VOLUME, doomed.id);
    let row = stoker_catalog::rows::SealRow { state: SealState::Removing, ..doomed.row.clone() };
    let crash = Commit::new().write(Write::Put(key, row.encode()));
    assert!(matches!(fixture.catalog.commit(crash).await.unwrap(), Outcome::Done { .. }));
    assert_eq!(fixture.names.seals_sweep().await.unwrap(), 1);
    assert_eq!(fixture.names.seals_sweep().await.unwrap(), 0);
    assert_eq!(fixture.names.seals(VOLUME, None, 9).await.unwrap().0, [ready]);
    audit(&fixture).await;
}

async fn large_seals_go_in_pieces(fixture: Fixture) {
    let files = 700;
    for id in 0..files {
        fixture.put(&format!("d/{:02}/{id}", id % 50), file(id + 1)).await.unwrap();
    }
    let seal = fixture.names.seal_begin(VOLUME, b"d/", &[], NOW).await.unwrap();
    assert_eq!(steps(&fixture, seal.id, 300).await.len(), files as usize);
    for id in 0..files {
        fixture.remove(&format!("d/{:02}/{id}", id % 50)).await.unwrap().unwrap();
    }
    assert_eq!(audit(&fixture).await.referenced.len(), files as usize);
    let before = fixture.catalog.seq().await.unwrap();
    fixture.names.seal_remove(VOLUME, seal.id, &[]).await.unwrap();
    assert!(fixture.catalog.seq().await.unwrap() - before > 3, "several commits");
    let rows = audit(&fixture).await;
    assert_eq!((rows.referenced.len(), rows.garbage.len()), (0, files as usize));
}

async fn states_are_kept(fixture: Fixture) {
    fixture.put("d/a", file(1)).await.unwrap();
    let guard = [Check::Present(b"Wmissing".to_vec())];
    let begun = fixture.names.seal_begin(VOLUME, b"d/", &guard, NOW).await;
    assert!(matches!(begun, Err(Refusal::Guard(0))));
    let before = fixture.catalog.seq().await.unwrap();
    let begun = fixture.names.seal_begin(VOLUME, b"d/", &[], NOW).await.unwrap();
    assert!(begun.row.seq >= before);
    let finish = SealFinish { manifest: b"nothing", files: 0, bytes: 0 };
    let finished = fixture.names.seal_finish(VOLUME, begun.id, &finish, &[]).await;
    assert!(matches!(finished, Err(Refusal::NotFound)));
    let (ready, _) = seal(&fixture, "d/", 50).await;
    assert!(matches!(fixture.names.seal_step(VOLUME, ready.id, None, 9).await, Err(Refusal::Conflict(_))));
    // Finished again with the same manifest is fine, with another one not.
    let key = format!("manifests/{}", ready.id);
    let finish = SealFinish { manifest: key.as_bytes(), files: 1, bytes: 1 };
    assert_eq!(fixture.names.seal_finish(VOLUME, ready.id, &finish, &[]).await.unwrap(), ready);
    let finish = SealFinish { manifest: b"d/a", ..finish };
    let other = fixture.names.seal_finish(VOLUME, ready.id, &finish, &[]).await;
    assert!(matches!(other, Err(Refusal::Conflict(_))));
    for id in [begun.id, ready.id] {
        fixture.names.seal_remove(VOLUME, id, &[]).await.unwrap();
        let gone = fixture.names.seal_remove(VOLUME, id, &[]).await;
        assert!(matches!(gone, Err(Refusal::NotFound)));
    }
    audit(&fixture).await;
}

async fn references_tell_who_refers(fixture: Fixture) {
    fixture.put("d/a", file(1)).await.unwrap();
    let seal = fixture.names.seal_begin(VOLUME, b"d/", &[], NOW).await.unwrap();
    steps(&fixture, seal.id, 9).await;
    let rows = fixture.table(&keys::references(version(1))).await;
    // Entries come first: whoever looks for a file with this version finds it in the first row.
    let seals: Vec<Option<u64>> = rows.iter().map(|row| keys::reference_seal(&row.key)).collect();
    assert_eq!(seals, [None, Some(seal.id)]);
    // An entry with a name as long as a number is no seal.
    fixture.put("d/12345678", file(2)).await.unwrap();
    let rows = fixture.table(&keys::references(version(2))).await;
    assert_eq!(keys::reference_seal(&rows[0].key), None);
    let names: Vec<Vec<u8>> = rows.iter().map(|row| row.key.clone()).collect();
    assert_eq!(keys::reference_version(&names[0]), Some(version(2)));
    for short in 0..names[0].len() {
        let _ = (keys::reference_seal(&names[0][..short]), keys::reference_version(&names[0][..short]));
    }
}

async fn two_files(fixture: Fixture) -> u64 {
    fixture.put("d/a", clean(1, "d/a")).await.unwrap();
    fixture.put("d/b", file(2)).await.unwrap();
    fixture.names.seal_begin(VOLUME, b"d/", &[], NOW).await.unwrap().id
}

#[tokio::test]
async fn a_step_against_a_delete() {
    each(
        two_files,
        async |fixture: Fixture, seal| steps(&fixture, seal, 9).await,
        |fixture, _| async move { fixture.remove("d/b").await.unwrap().unwrap() },
        async |_, _, files, _, rows| {
            // Sealed and kept, or not sealed and gone.
            let sealed = files.iter().any(|sealed| sealed.file.version() == version(2));
            assert_eq!(rows.referenced.contains(&version(2)), sealed);
            assert_eq!(rows.garbage.contains(&version(2)), !sealed);
        },
    )
    .await;
}

#[tokio::test]
async fn a_delete_against_a_step() {
    each(
        two_files,
        async |fixture: Fixture, _| fixture.remove("d/b").await.unwrap().unwrap(),
        |fixture, seal| async move { steps(&fixture, seal, 9).await },
        async |_, _, _, files, rows| {
            let sealed = files.iter().any(|sealed| sealed.file.version() == version(2));
            assert_eq!(rows.referenced.contains(&version(2)), sealed);
            assert_eq!(rows.garbage.contains(&version(2)), !sealed);
        },
    )
    .await;
}

#[tokio::test]
async fn a_step_against_a_replacement() {
    each(
        two_files,
        async |fixture: Fixture, seal| steps(&fixture, seal, 9).await,
        |fixture, _| async move { fixture.put("d/a", file(9)).await.unwrap() },
        async |_, _, files, _, rows| {
            let sealed = files[0].file.version();
            assert!(rows.referenced.contains(&sealed) && rows.referenced.contains(&version(9)));
            assert_eq!(rows.garbage.contains(&version(1)), sealed == version(9));
        },
    )
    .await;
}

/// A file is drained while it is being sealed: the seal must know that the lake has the bytes, or the drives must keep
/// them.
#[tokio::test]
async fn a_step_against_a_drain() {
    each(
        two_files,
        async |fixture: Fixture, seal| steps(&fixture, seal, 9).await,
        |fixture, _| async move { fixture.put("d/b", clean(2, "d/b")).await.unwrap() },
        async |fixture, seal, _, drained, _| {
            let row = &fixture.table(&keys::member(seal, version(2))).await[0];
            let relies = MemberRow::of(row).unwrap().relies.is_some();
            // Sealed before, the drives keep them: whoever drains sees the seal's reference.
            assert_eq!(relies, drained.seq < row.seq);
        },
    )
    .await;
}

#[tokio::test]
async fn a_removal_against_the_last_delete() {
    let prepare = |fixture: Fixture| async move {
        let seal = two_files(fixture.clone()).await;
        steps(&fixture, seal, 9).await;
        seal
    };
    each(
        prepare,
        async |fixture: Fixture, seal| fixture.names.seal_remove(VOLUME, seal, &[]).await.unwrap(),
        |fixture, _| async move { fixture.remove("d/b").await.unwrap().unwrap() },
        async |_, _, _, _, rows| {
            assert_eq!(rows.referenced, [version(1)].into());
            assert_eq!(rows.garbage, [version(2)].into());
        },
    )
    .await;
}

#[tokio::test]
async fn two_removals_at_once() {
    let remove = |fixture: Fixture, seal| async move { fixture.names.seal_remove(VOLUME, seal, &[]).await };
    let prepare = |fixture: Fixture| async move {
        let seal = two_files(fixture.clone()).await;
        steps(&fixture, seal, 9).await;
        fixture.remove("d/b").await.unwrap().unwrap();
        seal
    };
    each(prepare, remove, remove, async |_, _, first, second, rows| {
        for answer in [first, second] {
            assert!(matches!(answer, Ok(()) | Err(Refusal::NotFound)), "{answer:?}");
        }
        assert_eq!(rows.garbage, [version(2)].into());
    })
    .await;
}

#[tokio::test]
async fn a_step_against_the_removal() {
    each(
        two_files,
        async |fixture: Fixture, seal| fixture.names.seal_step(VOLUME, seal, None, 9).await,
        |fixture, seal| async move { fixture.names.seal_remove(VOLUME, seal, &[]).await.unwrap() },
        async |fixture, seal, stepped, (), _| {
            assert!(matches!(stepped, Ok(_) | Err(Refusal::NotFound | Refusal::Conflict(_))), "{stepped:?}");
            assert!(fixture.table(&keys::members(seal)).await.is_empty());
        },
    )
    .await;
}
