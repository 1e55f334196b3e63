//! What a volume holds, counted in many rows.

use stoker_catalog::kv::{Commit, Outcome, Range};
use stoker_format::VolumeId;
use stoker_schema::names::{Usage, usage, usage_deletes};
use stoker_schema::rows::keys;

use crate::fixture::{Fixture, VOLUME, file};

const FILES: u64 = 500;

/// Commits to a shared database that change one row wait for each other, and all but one are tried again.
#[tokio::test]
async fn publishes_of_a_volume_rarely_count_in_the_same_row() {
    let fixture = Fixture::memory();
    for id in 1..=FILES {
        fixture.put(&format!("file-{id}"), file(id)).await.unwrap();
    }
    let counter = Range::prefix(&keys::files(VOLUME), 1000);
    let rows = fixture.catalog.range(counter).await.unwrap().rows;
    let fullest = rows.iter().map(|row| i64::from_le_bytes(row.value[..].try_into().unwrap())).max();
    assert!(rows.len() > 100, "{} rows", rows.len());
    assert!(fullest.unwrap() < FILES as i64 / 10, "{fullest:?} of {FILES} in one row");
    let bytes = (1..=FILES).map(|id| file(id).size).sum();
    assert_eq!(usage(&*fixture.catalog, VOLUME).await.unwrap(), Usage { files: FILES, bytes });
}

/// Releases before this one had one row for each counter.
#[tokio::test]
async fn what_was_counted_in_one_row_still_counts() {
    let fixture = Fixture::memory();
    let former = Commit::new().add(keys::files(VOLUME), 7).add(keys::bytes(VOLUME), 700);
    assert!(matches!(fixture.catalog.commit(former).await.unwrap(), Outcome::Done { .. }));
    fixture.put("new", file(1)).await.unwrap();
    let expect = Usage { files: 8, bytes: 700 + file(1).size };
    assert_eq!(usage(&*fixture.catalog, VOLUME).await.unwrap(), expect);
}

#[tokio::test]
async fn a_volume_that_goes_takes_its_counters_along_and_no_others() {
    let fixture = Fixture::memory();
    let neighbour = VolumeId(VOLUME.0 + 1);
    let other = Commit::new().add(keys::files(neighbour), 5);
    assert!(matches!(fixture.catalog.commit(other).await.unwrap(), Outcome::Done { .. }));
    fixture.put("here", file(1)).await.unwrap();
    let gone = Commit { checks: Vec::new(), writes: usage_deletes(VOLUME).collect() };
    assert!(matches!(fixture.catalog.commit(gone).await.unwrap(), Outcome::Done { .. }));
    assert_eq!(usage(&*fixture.catalog, VOLUME).await.unwrap(), Usage::default());
    assert_eq!(usage(&*fixture.catalog, neighbour).await.unwrap().files, 5);
}
