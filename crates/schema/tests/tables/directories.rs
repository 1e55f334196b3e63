//! Directories that go or move while something comes into them or leaves them.

use stoker_catalog::kv::Range;
use stoker_schema::names::{Plan, Refusal, Removal};

use crate::between::each;
use crate::fixture::{Fixture, VOLUME, file, rekey};

async fn enter(fixture: &Fixture) -> Result<(), Refusal> {
    let entered = fixture.names.publish(VOLUME, b"d/f", &[], |_| {
        let plan = Plan { is_within: true, ..Plan::simple(file(2)) };
        Box::pin(async move { Ok(plan) })
    });
    entered.await.map(drop)
}

async fn end(fixture: &Fixture) -> Result<(), Refusal> {
    let plan = |_: &_| Ok(Removal { ends_directory: true, ..Removal::default() });
    fixture.names.remove(VOLUME, b"d/", &[], plan).await.map(drop)
}

async fn a_directory(fixture: Fixture) {
    publish(&fixture, b"d/", 1).await;
}

/// One of the two happens, and the other one is told.
async fn judge(fixture: &Fixture, ended: Result<(), Refusal>, entered: Result<(), Refusal>) {
    match (&ended, &entered) {
        (Ok(()), Err(Refusal::NotFound)) => assert!(fixture.keys().await.is_empty()),
        (Err(Refusal::Exists), Ok(())) => assert_eq!(fixture.keys().await, ["d/", "d/f"]),
        both => panic!("{both:?}"),
    }
}

#[tokio::test]
async fn a_removal_that_is_interrupted_by_an_entry() {
    each(
        a_directory,
        async |fixture: Fixture, ()| end(&fixture).await,
        |fixture, ()| async move { enter(&fixture).await },
        async |fixture, (), ended, entered, _| judge(&fixture, ended, entered).await,
    )
    .await;
}

#[tokio::test]
async fn an_entry_that_is_interrupted_by_a_removal() {
    each(
        a_directory,
        async |fixture: Fixture, ()| enter(&fixture).await,
        |fixture, ()| async move { end(&fixture).await },
        async |fixture, (), entered, ended, _| judge(&fixture, ended, entered).await,
    )
    .await;
}

async fn publish(fixture: &Fixture, key: &[u8], number: u64) {
    let made = fixture.names.publish(VOLUME, key, &[], |_| {
        let plan = Plan::simple(file(number));
        Box::pin(async move { Ok(plan) })
    });
    made.await.unwrap();
}

async fn move_directory(fixture: &Fixture, from: &[u8], to: &[u8]) -> Result<(), Refusal> {
    fixture.names.rename_directory(VOLUME, from, to, &[], rekey(3)).await.map(drop)
}

/// No directory stays behind when all files are gone.
async fn leaves_nothing(fixture: &Fixture) {
    for key in fixture.keys().await {
        let removed = fixture.names.remove(VOLUME, key.as_bytes(), &[], |_| Ok(Removal::default())).await;
        assert!(removed.unwrap().is_some(), "{key}");
    }
    for table in [b"E", b"N", b"r"] {
        let rows = fixture.catalog.range(Range::prefix(table, 10)).await.unwrap().rows;
        assert!(rows.is_empty(), "table {} has {rows:?}", table[0] as char);
    }
}

/// The one file is there, and what was refused no longer was where it was looked for.
async fn judge_moves(fixture: &Fixture, done: [Result<(), Refusal>; 2]) {
    assert!(done.iter().all(|done| matches!(done, Ok(()) | Err(Refusal::NotFound))), "{done:?}");
    assert_eq!(fixture.keys().await.len(), 1);
    leaves_nothing(fixture).await;
}

#[tokio::test]
async fn a_file_that_is_renamed_while_its_directory_moves() {
    each(
        |fixture| async move { publish(&fixture, b"a/x", 1).await },
        async |fixture: Fixture, ()| {
            let none = |_: &_, _: Option<&_>| Ok(Vec::new());
            fixture.names.rename_file(VOLUME, b"a/x", b"a/z", &[], none).await.map(drop)
        },
        |fixture, ()| async move { move_directory(&fixture, b"a/", b"b/y/").await },
        async |fixture, (), renamed, moved, _| judge_moves(&fixture, [renamed, moved]).await,
    )
    .await;
}

#[tokio::test]
async fn a_directory_that_is_renamed_while_the_one_above_moves() {
    each(
        |fixture| async move { publish(&fixture, b"a/c/x", 1).await },
        async |fixture: Fixture, ()| move_directory(&fixture, b"a/c/", b"a/d/e/").await,
        |fixture, ()| async move { move_directory(&fixture, b"a/", b"b/").await },
        async |fixture, (), renamed, moved, _| judge_moves(&fixture, [renamed, moved]).await,
    )
    .await;
}
