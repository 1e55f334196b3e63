//! A directory that is removed while something comes into it.

use stoker_schema::names::{Plan, Refusal, Removal};

use crate::between::each;
use crate::fixture::{Fixture, VOLUME, file};

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
    let made =
        fixture.names.publish(VOLUME, b"d/", &[], |_| Box::pin(async { Ok(Plan::simple(file(1))) })).await;
    made.unwrap();
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
