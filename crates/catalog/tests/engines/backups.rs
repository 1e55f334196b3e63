//! One state of a catalog, copied while others write, and put back into another engine.

use std::path::Path;

use stoker_catalog::backup::{Header, Kind, Reader, Writer};
use stoker_catalog::engine::{self, Embedded, Origin, Postgres};
use stoker_catalog::{Catalog, Commit, Epoch, Range, Row, Snapshot};
use stoker_format::NodeId;

use crate::fixture::{self, CLUSTER, Dice, Fixture, all, done, patient, small};
use crate::server;

/// Rows of many lengths; more than one page of them.
async fn fill(catalog: &dyn Catalog) {
    let mut dice = Dice::new(7);
    for round in 0..40u32 {
        let mut commit = Commit::new();
        for _ in 0..100 {
            let key = [&round.to_be_bytes()[..], &(dice.roll(1_000) as u32).to_be_bytes()].concat();
            commit = commit.put(key, vec![dice.roll(256) as u8; dice.roll(2_000)]);
        }
        done(catalog, commit).await;
    }
}

/// Copies a state page by page while the rows under it change.
async fn copy(fixture: &Fixture) -> (u64, Vec<u8>) {
    let catalog = &*fixture.catalog;
    let snapshot: Box<dyn Snapshot> = catalog.snapshot().await.unwrap();
    let header = Header { kind: Kind::Whole, cluster: CLUSTER, seq: snapshot.seq(), created_ms: 1 };
    let mut writer = Writer::begin(Vec::new(), &header).unwrap();
    let (mut after, mut pages) = (None::<Vec<u8>>, 0u32);
    loop {
        let page = snapshot.page(after.as_deref()).await.unwrap();
        writer.rows(&page.rows).unwrap();
        pages += 1;
        // Behind and in front of what was read.
        let change = Commit::new().put([0], pages.to_le_bytes()).put([255], pages.to_le_bytes());
        done(catalog, change.delete_range([5; 4], [6; 4])).await;
        match page.rows.last() {
            Some(last) if page.more => after = Some(last.key.clone()),
            _ => break,
        }
    }
    assert!(pages > 2, "{pages} pages");
    (snapshot.seq(), writer.end().unwrap().0)
}

async fn rows(catalog: &dyn Catalog) -> Vec<Row> {
    all(catalog, Range::prefix(b"", 1_000)).await
}

async fn check(fixture: Fixture, folder: &Path) {
    fill(&*fixture.catalog).await;
    let expect = rows(&*fixture.catalog).await;
    let (seq, bytes) = copy(&fixture).await;
    let highest = expect.iter().map(|row| row.seq).max().unwrap();
    assert_eq!(seq, highest, "everything that was acknowledged is in it");
    assert_ne!(rows(&*fixture.catalog).await, expect, "it went on meanwhile");

    let path = folder.join("built");
    let origin = Origin { seq: seq + 1_000, epoch: Some(Epoch::default().rebuilt(NodeId([1; 16]), 5)) };
    let mut reader = Reader::begin(&bytes[..]).unwrap();
    engine::build(&path, CLUSTER, origin, || reader.next_rows()).unwrap();
    let built = Embedded::open(&path, CLUSTER, &small()).unwrap();
    assert_eq!(rows(&built).await, expect);
    assert!(done(&built, Commit::new().put("new", "1")).await > origin.seq);
    built.close().await;
    let held = engine::read_file(&path, CLUSTER).unwrap();
    assert!(held.seq() > origin.seq);

    if let Some(server) = server::shared() {
        let url = server.fresh().await;
        let mut reader = Reader::begin(&bytes[..]).unwrap();
        Postgres::restore(&url, CLUSTER, origin.seq, || reader.next_rows()).await.unwrap();
        let restored = Postgres::open_with(&url, CLUSTER, &patient()).await.unwrap();
        assert_eq!(rows(&restored).await, expect);
        assert!(done(&restored, Commit::new().put("new", "1")).await > origin.seq);
        // One that is cut off changes nothing.
        let before = rows(&restored).await;
        let mut reader = Reader::begin(&bytes[..bytes.len() / 2]).unwrap();
        Postgres::restore(&url, CLUSTER, origin.seq, || reader.next_rows()).await.unwrap_err();
        assert_eq!(rows(&restored).await, before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_the_file_goes_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    check(fixture::embedded(), folder.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_the_database_goes_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let Some(fixture) = fixture::postgres().await else { return };
    check(fixture, folder.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_memory_goes_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    check(fixture::memory(), folder.path()).await;
}
