//! The suite on the catalog in memory, and its clock.

use stoker_catalog::engine::Memory;
use stoker_catalog::{Catalog, Commit, ErrorKind};

use crate::conformance::conformance;
use crate::fixture;

conformance!(Some(fixture::memory()));

#[tokio::test]
async fn the_clock_moves_only_when_told_to() {
    let catalog = Memory::new();
    let start = catalog.now_ms().await.unwrap();
    assert_eq!(catalog.now_ms().await.unwrap(), start);
    catalog.advance_ms(1500);
    assert_eq!(catalog.now_ms().await.unwrap(), start + 1500);
}

#[tokio::test]
async fn close_ends_calls_and_watches() {
    let catalog = Memory::new();
    let mut watch = catalog.watch(b"a".to_vec());
    catalog.close();
    assert_eq!(watch.changed().await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.watch(vec![]).changed().await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.commit(Commit::new().put("a", "b")).await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Closed);
}
