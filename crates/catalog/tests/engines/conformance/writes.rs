//! What each kind of write does.

use stoker_catalog::{Commit, ErrorKind, Outcome, Range};

use crate::fixture::{Fixture, all, done, get, refused, value};

pub async fn later_write_wins(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let n = |n: i64| Some(n.to_le_bytes().to_vec());
    let text = |text: &str| Some(text.as_bytes().to_vec());
    let eight = 5i64.to_le_bytes();
    // Each commit starts from k = 5; the value of k after it.
    let table = [
        (Commit::new().put("k", "1").put("k", "2"), text("2")),
        (Commit::new().put("k", "1").delete("k"), None),
        (Commit::new().delete("k").put("k", "2"), text("2")),
        (Commit::new().put("k", "1").delete_range("a", "z"), None),
        (Commit::new().delete_range("a", "z").put("k", "2"), text("2")),
        (Commit::new().delete_range("a", "z").put("k", "2").delete_range("k", "l"), None),
        (Commit::new().delete_range("a", "z").delete("k").put("k", "3"), text("3")),
        (Commit::new().add("k", 1).add("k", -3), n(3)),
        (Commit::new().delete("k").add("k", 7), n(7)),
        (Commit::new().add("k", 7).delete("k"), None),
        (Commit::new().delete_range("a", "z").add("k", 7).add("k", 1), n(8)),
        (Commit::new().add("k", 7).delete_range("a", "z").add("k", 1), n(1)),
        (Commit::new().delete_range("l", "z").add("k", 1), n(6)),
        (Commit::new().delete_range("z", "a").add("k", 1), n(6)),
        (Commit::new().put("k", eight).add("k", 1), n(6)),
        (Commit::new().put("k", eight).add("k", 1).put("k", "end"), text("end")),
        (Commit::new().put("k", eight).delete_range("k", "k\0").add("k", 1), n(1)),
        // What a later write covers was never wrong.
        (Commit::new().put("k", "text").add("k", 1).delete("k"), None),
        (Commit::new().put("k", "text").add("k", 1).put("k", "end"), text("end")),
        (Commit::new().put("k", "text").add("k", 1).delete_range("k", "l").add("k", 2), n(2)),
        (Commit::new().add("k", i64::MAX).delete("k").add("k", 2), n(2)),
    ];
    for (commit, expected) in table {
        done(catalog, Commit::new().put("k", eight)).await;
        let seq = done(catalog, commit.clone()).await;
        let row = get(catalog, b"k").await;
        assert_eq!(row.as_ref().map(|row| row.value.clone()), expected, "{commit:?}");
        assert!(row.is_none_or(|row| row.seq == seq), "{commit:?}");
    }
}

pub async fn sums(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    for (delta, expected) in [(0, 0), (5, 5), (-7, -2), (i64::MAX, i64::MAX - 2), (i64::MIN, -3), (256, 253)]
    {
        let seq = done(catalog, Commit::new().add("n", delta)).await;
        let row = get(catalog, b"n").await.unwrap();
        assert_eq!((row.value, row.seq), (i64::to_le_bytes(expected).to_vec(), seq), "after adding {delta}");
    }
    done(catalog, Commit::new().put("n", i64::MIN.to_le_bytes())).await;
    done(catalog, Commit::new().add("n", i64::MAX)).await;
    assert_eq!(value(catalog, b"n").await.unwrap(), (-1i64).to_le_bytes());
}

pub async fn bad_sums_change_nothing(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    done(catalog, Commit::new().put("text", "seven").put("max", i64::MAX.to_le_bytes())).await;
    let before = all(catalog, Range::prefix(b"", 100)).await;
    for commit in [
        Commit::new().put("x", "1").add("text", 1).put("y", "2"),
        Commit::new().delete("text").put("text", "four").add("text", 1),
        Commit::new().put("x", "1").add("max", 1),
        Commit::new().put("x", i64::MIN.to_le_bytes()).add("x", -1),
        Commit::new().delete_range("a", "n").add("m", i64::MAX).add("m", 1),
    ] {
        refused(catalog, commit, ErrorKind::Invalid).await;
    }
    let bad_in_itself = Commit::new().absent("text").put("x", "four").add("x", 1);
    refused(catalog, bad_in_itself, ErrorKind::Invalid).await;
    let bad_for_what_is_stored = Commit::new().absent("text").add("text", 1);
    assert_eq!(catalog.commit(bad_for_what_is_stored).await.unwrap(), Outcome::Failed { check: 0 });
    assert_eq!(all(catalog, Range::prefix(b"", 100)).await, before);
    done(catalog, Commit::new().delete("text").add("text", 1)).await;
}

pub async fn ranges_are_deleted_to_their_bounds(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let keys: [&[u8]; 8] = [b"\0", b"\0\0", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"b", b"\xff\xff\xff\xff"];
    let fill = || keys.iter().fold(Commit::new(), |commit, key| commit.put(*key, "v"));
    let table: [(&[u8], &[u8], &[usize]); 9] = [
        (b"a", b"b", &[0, 1, 6, 7]),
        (b"a", b"a\0", &[0, 1, 3, 4, 5, 6, 7]),
        (b"a\0", b"a\xff", &[0, 1, 2, 4, 5, 6, 7]),
        (b"", b"a", &[2, 3, 4, 5, 6, 7]),
        (b"", b"\xff\xff\xff\xff\0", &[]),
        (b"", b"", &[0, 1, 2, 3, 4, 5, 6, 7]),
        (b"b", b"a", &[0, 1, 2, 3, 4, 5, 6, 7]),
        (b"a", b"a", &[0, 1, 2, 3, 4, 5, 6, 7]),
        (b"\0", b"\0\0\0", &[2, 3, 4, 5, 6, 7]),
    ];
    for (start, end, left) in table {
        done(catalog, fill()).await;
        done(catalog, Commit::new().delete_range(start, end)).await;
        let found = all(catalog, Range::prefix(b"", 3)).await;
        let found: Vec<&[u8]> = found.iter().map(|row| row.key.as_slice()).collect();
        let expected: Vec<&[u8]> = left.iter().map(|index| keys[*index]).collect();
        assert_eq!(found, expected, "after deleting {start:?}..{end:?}");
    }
}

pub async fn rows_name_their_commit(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let first = done(catalog, Commit::new().put("a", "1").put("b", "1").put("c", "1")).await;
    let second = done(catalog, Commit::new().put("b", "1").delete("c")).await;
    let third = done(catalog, Commit::new().put("c", "1").put("b", "2").delete("b")).await;
    let rows = all(catalog, Range::prefix(b"", 10)).await;
    let found: Vec<_> = rows.iter().map(|row| (row.key.as_slice(), row.seq)).collect();
    assert_eq!(found, [(b"a".as_slice(), first), (b"c", third)]);
    assert!(first < second && second < third);
    assert!(catalog.seq().await.unwrap() >= third);
}

pub async fn numbers_rise(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let mut last = catalog.seq().await.unwrap();
    for n in 0..50u32 {
        let seq = done(catalog, Commit::new().put(n.to_be_bytes(), "")).await;
        assert!(seq > last);
        last = catalog.seq().await.unwrap();
        assert!(last >= seq);
        let failed = Commit::new().absent(n.to_be_bytes()).put("x", "");
        assert!(matches!(catalog.commit(failed).await.unwrap(), Outcome::Failed { check: 0 }));
    }
    assert!(catalog.now_ms().await.unwrap() > 1_600_000_000_000);
    assert!(!catalog.describe().is_empty());
}
