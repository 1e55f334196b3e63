//! What each kind of check lets pass.

use stoker_catalog::{Check, Commit, Outcome};

use crate::fixture::{Fixture, done, value};

pub async fn each_kind_holds_or_fails(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let old = done(catalog, Commit::new().put("other", "x")).await;
    let seq = done(catalog, Commit::new().put("a", "1").put("b", [0, 255, 0]).put("c", "")).await;
    let at_most = |start: &str, end: &str, max| Check::AtMost { start: start.into(), end: end.into(), max };
    let sum = |start: &str, end: &str, max| Check::SumAtMost { start: start.into(), end: end.into(), max };
    done(catalog, Commit::new().add("~n1", 7).add("~n2", -2).add("~m1", i64::MAX).add("~m2", 1)).await;
    let key = |key: &str| key.as_bytes().to_vec();
    let table = [
        (Check::Absent(key("missing")), true),
        (Check::Absent(key("a")), false),
        (Check::Absent(key("a\0")), true),
        (Check::Present(key("a")), true),
        (Check::Present(key("c")), true),
        (Check::Present(key("missing")), false),
        (Check::Present(key("a\0")), false),
        (Check::Seq(key("a"), seq), true),
        (Check::Seq(key("a"), old), false),
        (Check::Seq(key("a"), seq + 1), false),
        (Check::Seq(key("a"), u64::MAX), false),
        (Check::Seq(key("missing"), 0), false),
        (Check::Value(key("a"), key("1")), true),
        (Check::Value(key("a"), key("2")), false),
        (Check::Value(key("a"), key("")), false),
        (Check::Value(key("b"), vec![0, 255, 0]), true),
        (Check::Value(key("b"), vec![0, 255]), false),
        (Check::Value(key("c"), vec![]), true),
        (Check::Value(key("missing"), vec![]), false),
        (at_most("a", "d", 3), true),
        (at_most("a", "d", 4), true),
        (at_most("a", "d", 2), false),
        (at_most("a", "c", 2), true),
        (at_most("a\0", "c", 1), true),
        (at_most("a", "c", 1), false),
        (at_most("x", "z", 0), true),
        (at_most("", "a", 0), true),
        (at_most("", "b", 0), false),
        (at_most("d", "a", 0), true),
        (at_most("a", "a", 0), true),
        (sum("~n", "~o", 4), false),
        (sum("~n", "~o", 5), true),
        (sum("~n1", "~n2", 6), false),
        (sum("~n1", "~n2", 7), true),
        (sum("~o", "~n", 0), true),
        (sum("~o", "~n", -1), false),
        // What is no counter counts as nothing.
        (sum("a", "d", 0), true),
        (sum("missing", "missinh", i64::MAX), true),
        (sum("~m", "~n", i64::MAX), false),
    ];
    for (check, holds) in table {
        let outcome = catalog.commit(Commit::new().check(check.clone())).await.unwrap();
        assert_eq!(matches!(outcome, Outcome::Done { .. }), holds, "{check:?} alone");
        let writing = Commit::new().check(check.clone()).put("written", format!("{check:?}"));
        let outcome = catalog.commit(writing).await.unwrap();
        assert_eq!(matches!(outcome, Outcome::Done { .. }), holds, "{check:?} with a write");
        let written = value(catalog, b"written").await.is_some_and(|v| v == format!("{check:?}").as_bytes());
        assert_eq!(written, holds, "{check:?}");
    }
}

pub async fn first_failure_is_named(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    done(catalog, Commit::new().put("a", "1").put("b", "2")).await;
    let commit = Commit::new()
        .present("a")
        .at_most("a", "c", 2)
        .value("b", "2")
        .at_most("a", "c", 1)
        .absent("a")
        .put("a", "changed")
        .delete("b")
        .add("n", 1);
    assert_eq!(catalog.commit(commit.clone()).await.unwrap(), Outcome::Failed { check: 3 });
    let commit = Commit { checks: commit.checks.into_iter().rev().collect(), ..commit };
    assert_eq!(catalog.commit(commit).await.unwrap(), Outcome::Failed { check: 0 });
    assert_eq!(value(catalog, b"a").await.unwrap(), b"1");
    assert_eq!(value(catalog, b"b").await.unwrap(), b"2");
    assert_eq!(value(catalog, b"n").await, None);
}

pub async fn checks_see_the_state_before(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    done(catalog, Commit::new().absent("a").put("a", "1")).await;
    done(catalog, Commit::new().value("a", "1").present("a").put("a", "2").delete("a")).await;
    done(catalog, Commit::new().at_most("a", "b", 0).put("a1", "").put("a2", "")).await;
    done(catalog, Commit::new().at_most("a", "b", 2).delete_range("a", "b")).await;
    done(catalog, Commit::new().at_most("a", "b", 0)).await;
}

pub async fn reading_only_validates(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    done(catalog, Commit::new()).await;
    let seq = done(catalog, Commit::new().put("a", "1")).await;
    let seen = done(catalog, Commit::new().seq("a", seq)).await;
    assert!(seen >= seq);
    assert_eq!(catalog.commit(Commit::new().absent("a")).await.unwrap(), Outcome::Failed { check: 0 });
    let next = done(catalog, Commit::new().put("a", "2")).await;
    assert!(next > seen, "a commit that reads must take no number of one that writes");
    assert_eq!(catalog.commit(Commit::new().seq("a", seq)).await.unwrap(), Outcome::Failed { check: 0 });
}
