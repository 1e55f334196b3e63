//! Limits: what is just allowed works, what is just above is refused and changes nothing.

use stoker_catalog::kv::{
    AT_MOST_MAX, COMMIT_BYTES_MAX, COMMIT_CHECKS_MAX, COMMIT_WRITES_MAX, GET_KEYS_MAX, KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
};
use stoker_catalog::{Check, Commit, ErrorKind, Range, Write};

use crate::fixture::{Fixture, all, done, get, refused};

pub async fn limits_are_checked(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let long = vec![b'k'; KEY_BYTES_MAX];
    let longer = vec![b'k'; KEY_BYTES_MAX + 1];
    let large = vec![7; VALUE_BYTES_MAX];
    let larger = vec![7; VALUE_BYTES_MAX + 1];
    done(catalog, Commit::new().absent(long.clone()).put(long.clone(), large.clone())).await;
    assert_eq!(get(catalog, &long).await.unwrap().value, large);
    done(catalog, Commit::new().value(long.clone(), large.clone()).put("empty", "")).await;
    assert_eq!(get(catalog, b"empty").await.unwrap().value, b"");
    let many = vec![Write::Delete(b"k".to_vec()); COMMIT_WRITES_MAX + 1];
    let heavy = vec![Write::Put(b"k".to_vec(), large.clone()); COMMIT_BYTES_MAX / VALUE_BYTES_MAX + 1];
    for commit in [
        Commit::new().put("", "v"),
        Commit::new().delete(""),
        Commit::new().add("", 1),
        Commit::new().absent(""),
        Commit::new().value("", ""),
        Commit::new().put(longer.clone(), "v"),
        Commit::new().delete(longer.clone()),
        Commit::new().add(longer.clone(), 1),
        Commit::new().present(longer.clone()),
        Commit::new().seq(longer.clone(), 1),
        Commit::new().put("k", larger.clone()),
        Commit::new().value("k", larger.clone()),
        Commit::new().delete_range("", vec![0; KEY_BYTES_MAX + 2]),
        Commit::new().at_most("", vec![0; KEY_BYTES_MAX + 2], 1),
        Commit::new().at_most("a", "b", AT_MOST_MAX + 1),
        Commit { checks: vec![], writes: many },
        Commit { checks: vec![], writes: heavy },
        Commit { checks: vec![Check::Absent(b"k".to_vec()); COMMIT_CHECKS_MAX + 1], writes: vec![] },
    ] {
        refused(catalog, commit.put("witness", "v"), ErrorKind::Invalid).await;
    }
    assert_eq!(get(catalog, b"witness").await, None);

    let invalid = |error: stoker_catalog::CatalogError| assert_eq!(error.kind, ErrorKind::Invalid);
    invalid(catalog.get(&[b"a".as_slice(), b""]).await.unwrap_err());
    invalid(catalog.get(&[longer.as_slice()]).await.unwrap_err());
    invalid(catalog.get(&vec![b"a".as_slice(); GET_KEYS_MAX + 1]).await.unwrap_err());
    invalid(catalog.range(Range::prefix(b"", 0)).await.unwrap_err());
    invalid(catalog.range(Range::prefix(&[1; KEY_BYTES_MAX + 2], 1)).await.unwrap_err());
    assert_eq!(catalog.get(&vec![b"empty".as_slice(); GET_KEYS_MAX]).await.unwrap().len(), GET_KEYS_MAX);
    // Behind the longest key there is still a page, though an empty one.
    assert_eq!(catalog.range(Range::prefix(b"", 1).after(&long)).await.unwrap().rows, []);
}

pub async fn largest_commit_passes(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let key = |n: usize| (n as u32).to_be_bytes().to_vec();
    let writes: Vec<Write> = (0..COMMIT_WRITES_MAX).map(|n| Write::Put(key(n), vec![n as u8])).collect();
    let checks = (0..1000).map(|n| Check::Absent(key(n))).collect();
    let seq = done(catalog, Commit { checks, writes }).await;
    let rows = all(catalog, Range::prefix(b"", 20_000)).await;
    assert_eq!(rows.len(), COMMIT_WRITES_MAX);
    assert!(rows.iter().enumerate().all(|(n, row)| row.key == key(n) && row.seq == seq));
    done(catalog, Commit::new().at_most("", [255], COMMIT_WRITES_MAX)).await;
    done(catalog, Commit::new().delete_range("", [255])).await;
    assert_eq!(all(catalog, Range::prefix(b"", 1)).await, []);
}
