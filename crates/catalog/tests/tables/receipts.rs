//! Receipts: what can be said of a version whose name has moved on.

use stoker_catalog::kv::{Commit, Outcome};
use stoker_catalog::names::{Plan, Removal, Shard, Told, receipt_write};
use stoker_catalog::rows::{Drain, Fate, FileRow, keys};
use stoker_format::VersionId;

use crate::fixture::{Fixture, NODE, NOW, VOLUME, file, on_each, version};

on_each!(
    replaced_and_removed_are_told,
    only_those_who_ask_pay,
    drained_and_lost_are_told,
    a_replaced_shard_is_told,
    found_versions_have_none,
    old_ones_go,
    too_many_go_oldest_first,
);

async fn put(fixture: &Fixture, key: &str, row: FileRow, receipt_ms: Option<u64>) -> u64 {
    let plan = Plan { receipt_ms, ..Plan::simple(row) };
    let put = fixture.names.publish(VOLUME, key.as_bytes(), &[], |_| {
        let plan = plan.clone();
        Box::pin(async move { Ok(plan) })
    });
    put.await.unwrap().seq
}

async fn told(fixture: &Fixture, id: u64) -> Option<Told> {
    fixture.names.receipt(version(id)).await.unwrap()
}

async fn replaced_and_removed_are_told(fixture: Fixture) {
    put(&fixture, "x", file(1), Some(NOW)).await;
    assert_eq!(told(&fixture, 1).await, None, "its file row tells");
    let seq = put(&fixture, "x", FileRow { drain: Drain::Clean, ..file(2) }, Some(NOW + 1)).await;
    let fate = Fate::Replaced { drained: false };
    assert_eq!(told(&fixture, 1).await, Some(Told { fate, seq, at_ms: NOW + 1 }));
    let seq = put(&fixture, "x", file(3), Some(NOW + 2)).await;
    let fate = Fate::Replaced { drained: true };
    assert_eq!(told(&fixture, 2).await, Some(Told { fate, seq, at_ms: NOW + 2 }));
    // The same version again replaces nothing.
    put(&fixture, "x", file(3), Some(NOW + 3)).await;
    assert_eq!(told(&fixture, 3).await, None);
    let fate = Fate::Removed { drained: false };
    let removed = fixture.names.remove(VOLUME, b"x", &[], |old| {
        Ok(Removal { writes: receipt_write(old.file.version(), fate, NOW + 4).into_iter().collect() })
    });
    let seq = removed.await.unwrap().unwrap().seq;
    assert_eq!(told(&fixture, 3).await, Some(Told { fate, seq, at_ms: NOW + 4 }));
}

async fn only_those_who_ask_pay(fixture: Fixture) {
    for id in 1..4 {
        put(&fixture, "x", file(id), None).await;
    }
    fixture.remove("x").await.unwrap();
    assert!(fixture.table(keys::RECEIPTS).await.is_empty());
}

async fn drained_and_lost_are_told(fixture: Fixture) {
    for (id, fate) in [(1, Fate::Drained), (2, Fate::Lost)] {
        let mut change = Commit::new().absent(b"!guard".to_vec());
        change.writes.extend(receipt_write(version(id), fate, NOW));
        let Outcome::Done { seq } = fixture.catalog.commit(change).await.unwrap() else { panic!("not done") };
        assert_eq!(told(&fixture, id).await, Some(Told { fate, seq, at_ms: NOW }));
    }
}

async fn a_replaced_shard_is_told(fixture: Fixture) {
    let set = fixture.begin("s/", 1).await;
    for (id, name) in [(1, b"x"), (2, b"x"), (3, b"y")] {
        let plan = Plan { receipt_ms: Some(NOW), ..Plan::simple(file(id)) };
        let shard = Shard { number: 0, name, writer: "", node: NODE.0, session: [0; 16] };
        fixture.names.set_add(VOLUME, set.id, &shard, &plan, &[], NOW).await.unwrap();
    }
    for id in [1, 2] {
        assert_eq!(told(&fixture, id).await.unwrap().fate, Fate::Replaced { drained: false });
    }
    assert_eq!(told(&fixture, 3).await, None);
}

async fn found_versions_have_none(_: Fixture) {
    assert_eq!(receipt_write(VersionId([0x80; 12]), Fate::Lost, NOW), None);
}

/// A version that was written at this time.
fn written(ms: u64, random: u8) -> VersionId {
    let mut id = [random; 12];
    id[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    VersionId(id)
}

async fn tell(fixture: &Fixture, versions: impl IntoIterator<Item = VersionId>) {
    let writes = versions.into_iter().filter_map(|version| receipt_write(version, Fate::Drained, NOW));
    let commit = Commit { checks: Vec::new(), writes: writes.collect() };
    assert!(matches!(fixture.catalog.commit(commit).await.unwrap(), Outcome::Done { .. }));
}

async fn left(fixture: &Fixture) -> Vec<VersionId> {
    let rows = fixture.table(keys::RECEIPTS).await;
    rows.iter().map(|row| VersionId(row.key[1..].try_into().unwrap())).collect()
}

async fn old_ones_go(fixture: Fixture) {
    let all = [written(10, 0xff), written(11, 0), written(11, 0xff), written(12, 0)];
    tell(&fixture, all).await;
    for (oldest_ms, kept) in [(0, &all[..]), (10, &all), (11, &all[1..]), (12, &all[3..]), (u64::MAX, &[])] {
        fixture.names.receipts_trim(oldest_ms, 100).await.unwrap();
        assert_eq!(left(&fixture).await, kept);
    }
}

async fn too_many_go_oldest_first(fixture: Fixture) {
    let all: Vec<VersionId> = (0..25_000).map(|ms| written(ms, 1)).collect();
    tell(&fixture, all.iter().copied()).await;
    for rows_max in [usize::MAX, 25_000, 24_999, 10_001, 10_000, 1, 0, 0] {
        fixture.names.receipts_trim(0, rows_max).await.unwrap();
        let kept = left(&fixture).await;
        assert_eq!(kept.len(), rows_max.min(all.len()));
        assert_eq!(kept, all[all.len() - kept.len()..]);
    }
}
