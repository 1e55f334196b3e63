//! Checkpoint sets: what one caller after another sees.

use stoker_catalog::kv::Check;
use stoker_format::ChunkRun;
use stoker_schema::names::{Forgotten, Plan, Refusal, SetPublish, SetRequest, Shard};
use stoker_schema::rows::{Abort, DirtyRow, Layout, RowValue, SetState, SetWork, VersionRow, keys};

use crate::audit::audit;
use crate::fixture::{DRIVE, Fixture, LATER, NODE, NOW, VOLUME, file, on_each, rekey, request, version};

on_each!(
    appears_whole,
    laggards_are_named,
    late_shards_are_refused,
    same_shard_again_replaces,
    same_version_again_changes_nothing,
    a_shard_can_change_its_name,
    two_shards_cannot_share_a_name,
    abort_leaves_only_garbage,
    large_sets_are_cleared_in_pieces,
    deadlines_end_sets,
    aborted_sets_are_forgotten_in_time,
    begin_joins_and_refuses,
    the_target_must_be_free,
    latest_is_the_last_published,
    latest_follows_renames,
    deleting_the_files_ends_the_set,
    dirty_rows_name_the_set,
    long_layouts_go_with_their_shard,
    guards_hold,
    nonsense_is_refused,
);

fn done(publish: Result<SetPublish, Refusal>) -> stoker_schema::names::Set {
    match publish {
        Ok(SetPublish::Done(set)) => set,
        other => panic!("not published: {other:?}"),
    }
}

async fn appears_whole(fixture: Fixture) {
    fixture.put("run/other", file(1)).await.unwrap();
    let set = fixture.begin("run/step-1/", 3).await;
    fixture.add(set.id, 0, "a", 10).await.unwrap();
    fixture.add(set.id, 1, "deep/er/b", 11).await.unwrap();
    fixture.add(set.id, 2, "deep/c", 12).await.unwrap();
    assert_eq!(fixture.keys().await, ["run/other"]);
    for key in ["run/step-1/a", "run/step-1/deep/er/b", "run/step-1/deep/c"] {
        assert_eq!(fixture.shown(key).await, None);
    }
    assert_eq!(fixture.names.set_latest(VOLUME, b"").await.unwrap(), None);
    audit(&fixture).await;
    let published = done(fixture.publish(set.id).await);
    assert_eq!(published.path.as_deref(), Some(&b"run/step-1/"[..]));
    assert_eq!(published.row.state, SetState::Published);
    assert_eq!(published.seq, fixture.catalog.seq().await.unwrap(), "the sequence is that of the commit");
    let all = ["run/other", "run/step-1/a", "run/step-1/deep/c", "run/step-1/deep/er/b"];
    assert_eq!(fixture.keys().await, all);
    assert_eq!(fixture.shown("run/step-1/deep/er/b").await, Some(version(11)));
    // Asked again, the answer is the same.
    assert_eq!(done(fixture.publish(set.id).await), published);
    assert_eq!(fixture.names.set(VOLUME, set.id).await.unwrap(), Some(published));
    audit(&fixture).await;
}

async fn laggards_are_named(fixture: Fixture) {
    let set = fixture.begin("s/", 6).await;
    let waiting = |numbers: &[u32]| SetPublish::Waiting(numbers.to_vec());
    assert_eq!(fixture.publish(set.id).await.unwrap(), waiting(&[0, 1, 2, 3, 4, 5]));
    for (number, left) in [(4, &[0, 1, 2, 3, 5][..]), (0, &[1, 2, 3, 5]), (2, &[1, 3, 5]), (5, &[1, 3])] {
        fixture.add(set.id, number, &number.to_string(), u64::from(number) + 1).await.unwrap();
        assert_eq!(fixture.publish(set.id).await.unwrap(), waiting(left));
    }
    let (shards, more) = fixture.names.set_shards(set.id, Some(0), 2).await.unwrap();
    let numbers: Vec<u32> = shards.iter().map(|(number, _)| *number).collect();
    assert_eq!((numbers.as_slice(), more), (&[2, 4][..], true));
    assert_eq!(shards[0].1.writer, "rank");
    assert_eq!(shards[0].1.node, NODE.0);
    assert!(fixture.keys().await.is_empty());
}

async fn late_shards_are_refused(fixture: Fixture) {
    let published = fixture.begin("p/", 1).await;
    fixture.add(published.id, 0, "x", 1).await.unwrap();
    done(fixture.publish(published.id).await);
    let aborted = fixture.begin("a/", 1).await;
    fixture.names.set_abort(VOLUME, aborted.id, &[], NOW).await.unwrap();
    let expired = fixture.begin("e/", 1).await;
    for (set, now_ms) in [(published.id, NOW), (aborted.id, NOW), (expired.id, LATER)] {
        let late = fixture.add_at(set, 0, "x", 100 + set, now_ms).await;
        assert!(matches!(late, Err(Refusal::Conflict(_))), "{late:?}");
    }
    let none = fixture.add(1 << 40, 0, "x", 200).await;
    assert!(matches!(none, Err(Refusal::NotFound)));
    assert_eq!(fixture.shown("p/x").await, Some(version(1)));
    assert_eq!(audit(&fixture).await.referenced, [version(1)].into());
}

async fn same_shard_again_replaces(fixture: Fixture) {
    let set = fixture.begin("s/", 2).await;
    fixture.add(set.id, 0, "x", 1).await.unwrap();
    fixture.add(set.id, 1, "y", 2).await.unwrap();
    let again = fixture.add(set.id, 0, "x", 3).await.unwrap();
    let (old, fate) = again.replaced.unwrap();
    assert_eq!((old.version(), fate), (version(1), Forgotten::Garbage(version(1))));
    let rows = audit(&fixture).await;
    assert_eq!(rows.garbage, [version(1)].into());
    assert_eq!(rows.referenced, [version(2), version(3)].into());
    done(fixture.publish(set.id).await);
    assert_eq!(fixture.shown("s/x").await, Some(version(3)));
}

async fn same_version_again_changes_nothing(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
    let first = fixture.add(set.id, 0, "x", 1).await.unwrap();
    let seq = fixture.catalog.seq().await.unwrap();
    let again = fixture.add(set.id, 0, "x", 1).await.unwrap();
    assert_eq!((again.seq, again.row, again.replaced.is_none()), (first.seq, first.row, true));
    assert_eq!(fixture.catalog.seq().await.unwrap(), seq);
    done(fixture.publish(set.id).await);
    // Whoever lost the answer learns that the shard is in.
    assert_eq!(fixture.add(set.id, 0, "x", 1).await.unwrap().seq, first.seq);
    let aborted = fixture.begin("t/", 1).await;
    fixture.add(aborted.id, 0, "x", 2).await.unwrap();
    fixture.names.set_abort(VOLUME, aborted.id, &[], NOW).await.unwrap();
    let lost = fixture.add(aborted.id, 0, "x", 2).await;
    assert!(matches!(lost, Err(Refusal::Conflict(_))), "an aborted set does not have its shard: {lost:?}");
}

async fn a_shard_can_change_its_name(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
    for (step, name) in ["a/b/x", "a/y", "a/b/c/z", "w", "w/w"].into_iter().enumerate() {
        fixture.add(set.id, 0, name, step as u64 + 1).await.unwrap();
        let rows = audit(&fixture).await;
        assert_eq!(rows.referenced, [version(step as u64 + 1)].into());
        assert_eq!(rows.garbage.len(), step);
    }
    done(fixture.publish(set.id).await);
    assert_eq!(fixture.keys().await, ["s/w/w"]);
    audit(&fixture).await;
}

async fn two_shards_cannot_share_a_name(fixture: Fixture) {
    let set = fixture.begin("s/", 2).await;
    fixture.add(set.id, 0, "x", 1).await.unwrap();
    assert!(matches!(fixture.add(set.id, 1, "x", 2).await, Err(Refusal::Exists)));
    // A file may stand beside a directory of its name, as everywhere.
    fixture.add(set.id, 1, "x/x", 3).await.unwrap();
    done(fixture.publish(set.id).await);
    assert_eq!(fixture.keys().await, ["s/x", "s/x/x"]);
}

async fn abort_leaves_only_garbage(fixture: Fixture) {
    fixture.put("s-/keep", file(1)).await.unwrap();
    let set = fixture.begin("s/", 9).await;
    for number in 0..5 {
        let name = ["a", "b/c", "b/d/e", "b/d/f", "g/h/i"][number as usize];
        fixture.add(set.id, number, name, 10 + u64::from(number)).await.unwrap();
    }
    let aborted = fixture.names.set_abort(VOLUME, set.id, &[], NOW).await.unwrap();
    assert_eq!(aborted.row.state, SetState::Aborted(Abort::Asked));
    let rows = audit(&fixture).await;
    assert_eq!(rows.referenced, [version(1)].into());
    assert_eq!(rows.garbage, (10..15).map(version).collect());
    for table in [&keys::directory(VOLUME, set.id)[..], &keys::shards(set.id), b"o"] {
        assert!(fixture.table(table).await.is_empty());
    }
    // Again is fine, also much later; to publish it is not.
    fixture.names.set_abort(VOLUME, set.id, &[], NOW + 1).await.unwrap();
    assert!(matches!(fixture.publish(set.id).await, Err(Refusal::Conflict(_))));
    // The target is free for the next one.
    let next = fixture.begin("s/", 1).await;
    assert_ne!(next.id, set.id);
    fixture.add(next.id, 0, "x", 20).await.unwrap();
    done(fixture.publish(next.id).await);
    let refused = fixture.names.set_abort(VOLUME, next.id, &[], NOW).await;
    assert!(matches!(refused, Err(Refusal::Conflict(_))), "a published set stays: {refused:?}");
    assert_eq!(fixture.keys().await, ["s-/keep", "s/x"]);
}

async fn large_sets_are_cleared_in_pieces(fixture: Fixture) {
    let shards = 600;
    let set = fixture.begin("s/", shards).await;
    for number in 0..shards {
        let name = format!("{}/{}/{number}", number % 7, number % 83);
        fixture.add(set.id, number, &name, u64::from(number) + 1).await.unwrap();
    }
    let before = fixture.catalog.seq().await.unwrap();
    fixture.names.set_abort(VOLUME, set.id, &[], NOW).await.unwrap();
    assert!(fixture.catalog.seq().await.unwrap() - before > 3, "several commits");
    let rows = audit(&fixture).await;
    assert!(rows.referenced.is_empty());
    assert_eq!(rows.garbage.len(), shards as usize);
    for table in [b"E", b"N", b"d", b"h"] {
        assert!(fixture.table(table).await.is_empty());
    }
}

async fn deadlines_end_sets(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
    fixture.add(set.id, 0, "x", 1).await.unwrap();
    assert_eq!(fixture.names.sets_sweep(LATER - 1).await.unwrap().expired, 0);
    // Late is late, whether or not anybody swept.
    let late = fixture.names.set_publish(VOLUME, set.id, &[], LATER).await;
    assert!(matches!(late, Err(Refusal::Conflict(_))), "{late:?}");
    let swept = fixture.names.sets_sweep(LATER).await.unwrap();
    assert_eq!((swept.expired, swept.cleared), (1, 1));
    let state = fixture.names.set(VOLUME, set.id).await.unwrap().unwrap().row.state;
    assert_eq!(state, SetState::Aborted(Abort::Deadline));
    assert_eq!(audit(&fixture).await.garbage, [version(1)].into());
    assert_eq!(fixture.names.sets_sweep(LATER).await.unwrap(), Default::default());
    // A published one is never late.
    let set = fixture.begin("s/", 1).await;
    fixture.add(set.id, 0, "x", 2).await.unwrap();
    done(fixture.publish(set.id).await);
    assert_eq!(fixture.names.sets_sweep(u64::MAX).await.unwrap().expired, 0);
    assert_eq!(fixture.keys().await, ["s/x"]);
    // Who begins anew does not wait for the sweep.
    let slow = fixture.begin("t/", 1).await;
    fixture.add(slow.id, 0, "x", 3).await.unwrap();
    let anew = SetRequest { deadline_ms: LATER + 9, ..request("t/", 1) };
    let anew = fixture.names.set_begin(VOLUME, &anew, &[], LATER).await.unwrap();
    assert_ne!(anew.id, slow.id);
    audit(&fixture).await;
    fixture.names.sets_sweep(LATER).await.unwrap();
    let rows = audit(&fixture).await;
    assert!(rows.garbage.contains(&version(3)));
    assert_eq!(fixture.names.set(VOLUME, anew.id).await.unwrap().unwrap().row.state, SetState::Open);
}

async fn aborted_sets_are_forgotten_in_time(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
    fixture.names.set_abort(VOLUME, set.id, &[], NOW).await.unwrap();
    assert_eq!(fixture.names.sets_sweep(NOW + 1).await.unwrap().forgotten, 0);
    assert!(matches!(fixture.add(set.id, 0, "x", 1).await, Err(Refusal::Conflict(_))));
    assert_eq!(fixture.names.sets_sweep(NOW + 3_600_000).await.unwrap().forgotten, 1);
    assert!(matches!(fixture.add(set.id, 0, "x", 1).await, Err(Refusal::NotFound)));
    for table in [&b"c"[..], b"q", b"o", b"N", b"h"] {
        assert!(fixture.table(table).await.is_empty());
    }
}

async fn begin_joins_and_refuses(fixture: Fixture) {
    let set = fixture.begin("run/1/", 4).await;
    assert_eq!(fixture.begin("run/1/", 4).await, set);
    for request in [
        SetRequest { owner: "another job", ..request("run/1/", 4) },
        SetRequest { expected: 5, ..request("run/1/", 4) },
    ] {
        let refused = fixture.names.set_begin(VOLUME, &request, &[], NOW).await;
        assert!(matches!(refused, Err(Refusal::Conflict(_))), "{refused:?}");
    }
    let other = fixture.begin("run/2/", 4).await;
    let (sets, more) = fixture.names.sets(VOLUME, None, 1).await.unwrap();
    assert_eq!((sets, more), (vec![set.clone()], true));
    assert_eq!(fixture.names.sets(VOLUME, Some(set.id), 9).await.unwrap(), (vec![other], false));
}

async fn the_target_must_be_free(fixture: Fixture) {
    fixture.put("taken/x", file(1)).await.unwrap();
    let refused = fixture.names.set_begin(VOLUME, &request("taken/", 1), &[], NOW).await;
    assert!(matches!(refused, Err(Refusal::Exists)), "{refused:?}");
    let set = fixture.begin("s/", 1).await;
    fixture.add(set.id, 0, "x", 2).await.unwrap();
    // A file of the name is not in the way of a directory.
    fixture.put("s", file(3)).await.unwrap();
    fixture.put("s/x", file(4)).await.unwrap();
    assert!(matches!(fixture.publish(set.id).await, Err(Refusal::Exists)));
    assert_eq!(fixture.shown("s/x").await, Some(version(4)));
    fixture.remove("s/x").await.unwrap().unwrap();
    done(fixture.publish(set.id).await);
    assert_eq!(fixture.shown("s/x").await, Some(version(2)));
    assert_eq!(fixture.keys().await, ["s", "s/x", "taken/x"]);
    audit(&fixture).await;
}

async fn latest_is_the_last_published(fixture: Fixture) {
    let early = fixture.begin("run/2/", 1).await;
    let late = fixture.begin("run/1/", 1).await;
    let other = fixture.begin("other/deep/9/", 1).await;
    for (id, set) in [(1, &early), (2, &late), (3, &other)] {
        fixture.add(set.id, 0, "x", id).await.unwrap();
    }
    // Published in another order than begun; the order of publishing counts.
    for set in [&other, &late, &early] {
        done(fixture.publish(set.id).await);
    }
    for (prefix, expect) in [
        ("", Some(early.id)),
        ("run/", Some(early.id)),
        ("run/1", Some(late.id)),
        ("run/2/", Some(early.id)),
        ("o", Some(other.id)),
        ("other/deep/", Some(other.id)),
        ("run/3", None),
        ("run/1/x", None),
    ] {
        let latest = fixture.names.set_latest(VOLUME, prefix.as_bytes()).await.unwrap();
        assert_eq!(latest.map(|set| set.id), expect, "{prefix}");
    }
}

async fn latest_follows_renames(fixture: Fixture) {
    let first = fixture.begin("run/1/", 1).await;
    let second = fixture.begin("run/2/", 1).await;
    for (id, set) in [(1, &first), (2, &second)] {
        fixture.add(set.id, 0, "a/x", id).await.unwrap();
        done(fixture.publish(set.id).await);
    }
    let seq = fixture.names.set(VOLUME, second.id).await.unwrap().unwrap().seq;
    fixture.names.rename_directory(VOLUME, b"run/2/", b"best/of/all/", &[], rekey(NOW)).await.unwrap();
    let latest = |prefix: &'static [u8]| {
        let names = fixture.names.clone();
        async move { names.set_latest(VOLUME, prefix).await.unwrap().map(|set| (set.id, set.path.unwrap())) }
    };
    assert_eq!(latest(b"run/").await, Some((first.id, b"run/1/".to_vec())));
    assert_eq!(latest(b"").await, Some((second.id, b"best/of/all/".to_vec())));
    fixture.names.rename_directory(VOLUME, b"best/", b"good/", &[], rekey(NOW)).await.unwrap();
    assert_eq!(latest(b"best/").await, None);
    assert_eq!(latest(b"good/").await, Some((second.id, b"good/of/all/".to_vec())));
    assert_eq!(fixture.names.set(VOLUME, second.id).await.unwrap().unwrap().seq, seq);
    assert_eq!(fixture.keys().await, ["good/of/all/a/x", "run/1/a/x"]);
    // The name that it had is free.
    let again = fixture.begin("run/2/", 1).await;
    fixture.add(again.id, 0, "x", 3).await.unwrap();
    done(fixture.publish(again.id).await);
    assert_eq!(latest(b"run/").await, Some((again.id, b"run/2/".to_vec())));
    audit(&fixture).await;
}

async fn deleting_the_files_ends_the_set(fixture: Fixture) {
    let first = fixture.begin("run/1/", 1).await;
    let second = fixture.begin("run/2/", 2).await;
    fixture.add(first.id, 0, "x", 1).await.unwrap();
    fixture.add(second.id, 0, "x", 2).await.unwrap();
    fixture.add(second.id, 1, "d/y", 3).await.unwrap();
    done(fixture.publish(first.id).await);
    done(fixture.publish(second.id).await);
    fixture.remove("run/2/x").await.unwrap().unwrap();
    assert_eq!(fixture.names.set_latest(VOLUME, b"run/").await.unwrap().unwrap().id, second.id);
    fixture.remove("run/2/d/y").await.unwrap().unwrap();
    assert_eq!(fixture.names.set_latest(VOLUME, b"run/").await.unwrap().unwrap().id, first.id);
    assert_eq!(fixture.names.set(VOLUME, second.id).await.unwrap(), None);
    assert!(fixture.table(&keys::shards(second.id)).await.is_empty());
    assert!(fixture.table(&keys::set_work(VOLUME, second.id)).await.is_empty());
    fixture.names.rename_file(VOLUME, b"run/1/x", b"y", &[], |_, _| Ok(Vec::new())).await.unwrap();
    for table in [b"c", b"q", b"h", b"N"] {
        assert!(fixture.table(table).await.is_empty());
    }
    assert_eq!(audit(&fixture).await.referenced, [version(1)].into());
}

async fn dirty_rows_name_the_set(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
    fixture.add(set.id, 0, "x", 1).await.unwrap();
    fixture.put("plain", file(2)).await.unwrap();
    let dirty = async |id| {
        let row = fixture.table(&keys::dirty(NODE, DRIVE, version(id))).await;
        DirtyRow::of(&row[0]).unwrap().set
    };
    assert_eq!((dirty(1).await, dirty(2).await), (Some(set.id), None));
    let work = async || fixture.table(&keys::set_work(VOLUME, set.id)).await;
    assert!(matches!(fixture.names.set_drained(VOLUME, set.id).await, Err(Refusal::NotFound)));
    done(fixture.publish(set.id).await);
    assert_eq!(SetWork::of(&work().await[0]).unwrap(), SetWork::Drain);
    assert_eq!(fixture.names.sets_sweep(u64::MAX).await.unwrap(), Default::default());
    fixture.names.set_drained(VOLUME, set.id).await.unwrap();
    assert!(work().await.is_empty());
    // One that does not drain leaves nothing to do.
    let stays = SetRequest { drains: false, ..request("t/", 1) };
    let stays = fixture.names.set_begin(VOLUME, &stays, &[], NOW).await.unwrap();
    fixture.add(stays.id, 0, "x", 3).await.unwrap();
    done(fixture.publish(stays.id).await);
    assert!(fixture.table(b"q").await.is_empty());
}

async fn long_layouts_go_with_their_shard(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
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
    let mut plan = Plan::simple(file(1));
    plan.file.layout = Layout::Rows;
    plan.file.size = 400_000;
    plan.layout = VersionRow::split(&runs, Vec::new());
    let shard = Shard { number: 0, name: b"x", writer: "", node: NODE.0, session: [0; 16] };
    fixture.names.set_add(VOLUME, set.id, &shard, &plan, &[], NOW).await.unwrap();
    assert_eq!(fixture.table(b"v").await.len(), 3);
    assert!(fixture.table(b"g").await.is_empty());
    fixture.add(set.id, 0, "x", 2).await.unwrap();
    assert!(fixture.table(b"v").await.is_empty());
    assert_eq!(fixture.table(&keys::garbage(version(1), 0)[..13]).await.len(), 3);
    audit(&fixture).await;
}

async fn guards_hold(fixture: Fixture) {
    let guard = [Check::Present(b"Wmissing".to_vec())];
    let begun = fixture.names.set_begin(VOLUME, &request("s/", 1), &guard, NOW).await;
    assert!(matches!(begun, Err(Refusal::Guard(0))));
    let set = fixture.begin("s/", 1).await;
    let shard = Shard { number: 0, name: b"x", writer: "", node: NODE.0, session: [0; 16] };
    let mut plan = Plan::simple(file(1));
    let added = fixture.names.set_add(VOLUME, set.id, &shard, &plan, &guard, NOW).await;
    assert!(matches!(added, Err(Refusal::Guard(0))));
    plan.checks = guard.to_vec();
    let added = fixture.names.set_add(VOLUME, set.id, &shard, &plan, &[], NOW).await;
    assert!(matches!(added, Err(Refusal::Guard(0))));
    fixture.add(set.id, 0, "x", 1).await.unwrap();
    let published = fixture.names.set_publish(VOLUME, set.id, &guard, NOW).await;
    assert!(matches!(published, Err(Refusal::Guard(0))));
    let aborted = fixture.names.set_abort(VOLUME, set.id, &guard, NOW).await;
    assert!(matches!(aborted, Err(Refusal::Guard(0))));
    done(fixture.publish(set.id).await);
}

async fn nonsense_is_refused(fixture: Fixture) {
    for bad in [
        request("s", 1),
        request("", 1),
        request("s/", 0),
        request("s/", 100_001),
        SetRequest { deadline_ms: NOW, ..request("s/", 1) },
    ] {
        let refused = fixture.names.set_begin(VOLUME, &bad, &[], NOW).await;
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{bad:?} {refused:?}");
    }
    let set = fixture.begin("s/", 2).await;
    for (number, name) in [(2, "x"), (u32::MAX, "x"), (0, ""), (0, "x/")] {
        let refused = fixture.add(set.id, number, name, 1).await;
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{number} {name} {refused:?}");
    }
    for refused in
        [fixture.publish(99).await.err(), fixture.names.set_abort(VOLUME, 99, &[], NOW).await.err()]
    {
        assert!(matches!(refused, Some(Refusal::NotFound)), "{refused:?}");
    }
    audit(&fixture).await;
}
