//! Ranges: order, direction, limits, bounds.

use stoker_catalog::kv::{self, PAGE_BYTES, VALUE_BYTES_MAX};
use stoker_catalog::{Catalog, Commit, Page, Range, Row};

use crate::fixture::{Fixture, all, done};

async fn keys(catalog: &dyn Catalog, range: Range) -> Vec<Vec<u8>> {
    all(catalog, range).await.into_iter().map(|row| row.key).collect()
}

pub async fn any_bytes_in_order(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let mut expected: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    expected.extend((0..=255u8).flat_map(|byte| [vec![byte, 0], vec![byte, 255], vec![255, 255, byte]]));
    expected.push(vec![255; kv::KEY_BYTES_MAX]);
    expected.push(vec![0; kv::KEY_BYTES_MAX]);
    let mut commit = Commit::new();
    for (n, key) in expected.iter().enumerate() {
        commit = commit.put(key.clone(), n.to_le_bytes());
    }
    done(catalog, commit).await;
    expected.sort();
    expected.dedup();
    for limit in [1, 7, 100, 10_000] {
        assert_eq!(keys(catalog, Range::prefix(b"", limit)).await, expected, "limit {limit}");
        let mut down = keys(catalog, Range::prefix(b"", limit).reversed()).await;
        down.reverse();
        assert_eq!(down, expected, "reversed, limit {limit}");
    }
    for prefix in [&[0u8][..], &[97], &[255], &[255, 255], &[255, 0]] {
        let under: Vec<Vec<u8>> = expected.iter().filter(|key| key.starts_with(prefix)).cloned().collect();
        assert_eq!(keys(catalog, Range::prefix(prefix, 5)).await, under, "prefix {prefix:?}");
        let mut down = keys(catalog, Range::prefix(prefix, 5).reversed()).await;
        down.reverse();
        assert_eq!(down, under, "prefix {prefix:?} reversed");
    }
}

pub async fn pages_are_limited_in_bytes(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let mut commit = Commit::new();
    for n in 0..40u8 {
        commit = commit.put([n], vec![n; VALUE_BYTES_MAX]);
    }
    done(catalog, commit).await;
    let range = Range::prefix(b"", 1000);
    let page = catalog.range(range.clone()).await.unwrap();
    let bytes: usize = page.rows.iter().map(|row| row.key.len() + row.value.len()).sum();
    assert!(page.more && (PAGE_BYTES..=PAGE_BYTES + VALUE_BYTES_MAX).contains(&bytes), "{bytes} bytes");
    let whole = |row: &Row| row.value.len() == VALUE_BYTES_MAX && row.value.iter().all(|b| *b == row.key[0]);
    for rows in [all(catalog, range.clone()).await, all(catalog, range.reversed()).await] {
        assert_eq!(rows.len(), 40);
        assert!(rows.iter().all(whole));
    }
}

pub async fn bounds_that_hold_nothing(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    assert_eq!(catalog.range(Range::prefix(b"", 5)).await.unwrap(), Page::default());
    done(catalog, Commit::new().put("a", "").put("b", "").put("c", "")).await;
    for (start, end) in [("b", "a"), ("b", "b"), ("d", "z"), ("", "a"), ("", "")] {
        for range in [
            Range::between(start.as_bytes(), end.as_bytes(), 5),
            Range::between(start.as_bytes(), end.as_bytes(), 5).reversed(),
        ] {
            assert_eq!(catalog.range(range.clone()).await.unwrap(), Page::default(), "{range:?}");
        }
    }
    let page = catalog.range(Range::between(b"a", b"c", 2)).await.unwrap();
    assert!(page.rows.len() == 2 && !page.more, "nothing more is in the range, though more is behind it");
    let page = catalog.range(Range::between(b"a", b"c\0", 2)).await.unwrap();
    assert!(page.rows.len() == 2 && page.more);
    assert_eq!(page.rows[1].key, b"b");
    let page = catalog.range(Range::between(b"a", b"c\0", 2).reversed()).await.unwrap();
    assert_eq!(page.rows.iter().map(|row| row.key.as_slice()).collect::<Vec<_>>(), [b"c", b"b"]);
    assert!(page.more);
}
