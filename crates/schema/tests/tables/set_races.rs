//! Sets when two do something at once: every place where one can get between the steps of the other, and threads.

use std::sync::Arc;

use stoker_schema::names::{Refusal, SetPublish};
use stoker_schema::rows::SetState;
use tokio::sync::Barrier;

use crate::audit::audit;
use crate::between::each;
use crate::fixture::{Fixture, LATER, NOW, VOLUME, file, on_each, rekey, version};

/// A set with all its shards; its number.
async fn complete(fixture: Fixture) -> u64 {
    let set = fixture.begin("run/s/", 2).await;
    fixture.add(set.id, 0, "x", 1).await.unwrap();
    fixture.add(set.id, 1, "d/y", 2).await.unwrap();
    set.id
}

fn is_done(publish: &Result<SetPublish, Refusal>) -> bool {
    matches!(publish, Ok(SetPublish::Done(_)))
}

#[tokio::test]
async fn a_shard_against_the_publish() {
    let add = async |fixture: Fixture, set: u64| fixture.add(set, 0, "x", 9).await;
    each(
        complete,
        add,
        |fixture, set| async move { fixture.publish(set).await },
        async |fixture, _, added, published, _| {
            let Ok(SetPublish::Done(published)) = published else { panic!("{published:?}") };
            let expect = match &added {
                Ok(added) => {
                    assert!(added.seq < published.seq, "nothing is added to what is visible");
                    version(9)
                }
                Err(Refusal::Conflict(_)) => version(1),
                Err(refusal) => panic!("{refusal:?}"),
            };
            assert_eq!(fixture.shown("run/s/x").await, Some(expect));
        },
    )
    .await;
}

#[tokio::test]
async fn the_publish_against_a_shard_that_moves() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.publish(set).await,
        |fixture, set| async move { fixture.add(set, 1, "e/f/z", 9).await },
        async |fixture, _, published, added, _| {
            assert!(is_done(&published), "{published:?}");
            let shown = match added {
                Ok(_) => ["run/s/e/f/z", "run/s/x"],
                Err(Refusal::Conflict(_)) => ["run/s/d/y", "run/s/x"],
                Err(refusal) => panic!("{refusal:?}"),
            };
            assert_eq!(fixture.keys().await, shown);
        },
    )
    .await;
}

#[tokio::test]
async fn the_publish_against_an_abort() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.publish(set).await,
        |fixture, set| async move { fixture.names.set_abort(VOLUME, set, &[], NOW).await },
        async |fixture, _, published, aborted, rows| {
            assert_ne!(is_done(&published), aborted.is_ok());
            let shown = fixture.keys().await.len();
            assert_eq!((shown, rows.garbage.len()), if is_done(&published) { (2, 0) } else { (0, 2) });
        },
    )
    .await;
}

#[tokio::test]
async fn an_abort_against_the_publish() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.names.set_abort(VOLUME, set, &[], NOW).await,
        |fixture, set| async move { fixture.publish(set).await },
        async |fixture, _, aborted, published, rows| {
            assert_ne!(is_done(&published), aborted.is_ok());
            let shown = fixture.keys().await.len();
            assert_eq!((shown, rows.garbage.len()), if is_done(&published) { (2, 0) } else { (0, 2) });
        },
    )
    .await;
}

#[tokio::test]
async fn the_sweep_against_the_publish() {
    each(
        complete,
        async |fixture: Fixture, _| fixture.names.sets_sweep(LATER).await.unwrap(),
        // Its clock was read before the deadline.
        |fixture, set| async move { fixture.publish(set).await },
        async |fixture, set, swept, published, _| {
            let state = fixture.names.set(VOLUME, set).await.unwrap().unwrap().row.state;
            assert_eq!(state == SetState::Published, is_done(&published));
            assert_eq!(swept.expired, u64::from(!is_done(&published)));
        },
    )
    .await;
}

#[tokio::test]
async fn an_abort_against_a_shard() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.names.set_abort(VOLUME, set, &[], NOW).await.unwrap(),
        |fixture, set| async move { fixture.add(set, 1, "q/z", 9).await },
        async |_, _, _, added, rows| {
            assert!(rows.referenced.is_empty());
            assert_eq!(rows.garbage.contains(&version(9)), added.is_ok());
        },
    )
    .await;
}

#[tokio::test]
async fn a_shard_against_an_abort() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.add(set, 1, "q/z", 9).await,
        |fixture, set| async move { fixture.names.set_abort(VOLUME, set, &[], NOW).await.unwrap() },
        async |_, _, added, _, rows| {
            assert!(rows.referenced.is_empty());
            assert_eq!(rows.garbage.contains(&version(9)), added.is_ok());
        },
    )
    .await;
}

#[tokio::test]
async fn two_clear_the_same_set() {
    let clear = |fixture: Fixture, set| async move { fixture.names.set_abort(VOLUME, set, &[], NOW).await };
    each(complete, clear, clear, async |_, _, first, second, rows| {
        first.unwrap();
        second.unwrap();
        assert_eq!((rows.referenced.len(), rows.garbage.len()), (0, 2));
    })
    .await;
}

#[tokio::test]
async fn two_writers_of_one_shard() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.add(set, 0, "a/x", 8).await.unwrap(),
        |fixture, set| async move { fixture.add(set, 0, "a/w", 9).await.unwrap() },
        async |_, _, _, _, rows| {
            // One of the two won; the others are garbage.
            assert_eq!((rows.referenced.len(), rows.garbage.len()), (2, 2));
            assert!(rows.garbage.contains(&version(1)));
        },
    )
    .await;
}

#[tokio::test]
async fn two_shards_want_one_name() {
    each(
        |fixture: Fixture| async move { fixture.begin("s/", 2).await.id },
        async |fixture: Fixture, set| fixture.add(set, 0, "a/x", 1).await,
        |fixture, set| async move { fixture.add(set, 1, "a/x", 2).await },
        async |_, _, first, second, rows| {
            assert_ne!(first.is_ok(), second.is_ok());
            let refused = first.err().or(second.err());
            assert!(matches!(refused, Some(Refusal::Exists)), "{refused:?}");
            assert_eq!((rows.referenced.len(), rows.garbage.len()), (1, 0));
        },
    )
    .await;
}

#[tokio::test]
async fn two_begin_for_one_target() {
    each(
        |_| async {},
        async |fixture: Fixture, ()| fixture.begin("s/", 2).await,
        |fixture, ()| async move { fixture.begin("s/", 2).await },
        async |_, (), first, second, _| assert_eq!(first, second),
    )
    .await;
}

#[tokio::test]
async fn the_publish_against_a_file_in_its_place() {
    each(
        complete,
        async |fixture: Fixture, set| fixture.publish(set).await,
        |fixture, _| async move { fixture.put("run/s/x", file(9)).await.unwrap() },
        async |fixture, set, published, put, _| {
            assert_eq!(fixture.shown("run/s/x").await, Some(version(9)));
            match published {
                // The file came later and replaced the shard's.
                Ok(SetPublish::Done(published)) => assert!(published.seq < put.seq),
                Err(Refusal::Exists) => {
                    let state = fixture.names.set(VOLUME, set).await.unwrap().unwrap().row.state;
                    assert_eq!(state, SetState::Open);
                }
                other => panic!("{other:?}"),
            }
        },
    )
    .await;
}

#[tokio::test]
async fn the_publish_against_a_rename_above_it() {
    each(
        |fixture: Fixture| async move {
            fixture.put("run/other", file(5)).await.unwrap();
            complete(fixture).await
        },
        async |fixture: Fixture, set| fixture.publish(set).await,
        |fixture, _| async move {
            fixture.names.rename_directory(VOLUME, b"run/", b"ran/", &[], rekey(NOW)).await.unwrap()
        },
        async |fixture, set, published, _, _| {
            assert!(is_done(&published), "{published:?}");
            let path = fixture.names.set(VOLUME, set).await.unwrap().unwrap().path.unwrap();
            let path = String::from_utf8(path).unwrap();
            let shown = fixture.keys().await;
            assert!(
                shown.contains(&format!("{path}x")) && shown.contains(&format!("{path}d/y")),
                "{shown:?}"
            );
        },
    )
    .await;
}

on_each!(many_ranks_at_once, one_of_publish_and_abort);

/// Ranks that add, retry and are late, while somebody keeps trying to publish.
async fn many_ranks_at_once(fixture: Fixture) {
    let ranks = 24u32;
    for round in 0..4u64 {
        let start = Arc::new(Barrier::new(ranks as usize + 1));
        let target = format!("run/{round}/");
        let tasks: Vec<_> = (0..ranks)
            .map(|rank| {
                let (fixture, start, target) = (fixture.clone(), start.clone(), target.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    let set = fixture.begin(&target, ranks).await.id;
                    let name = format!("{}/{rank}", rank % 3);
                    let id = round * 1_000 + u64::from(rank) * 2 + 1;
                    fixture.add(set, rank, &name, id).await.unwrap();
                    // A second version of a shard is in time or refused.
                    let again = fixture.add(set, rank, &name, id + 1).await;
                    assert!(matches!(again, Ok(_) | Err(Refusal::Conflict(_))), "{again:?}");
                    (set, rank, if again.is_ok() { id + 1 } else { id })
                })
            })
            .collect();
        start.wait().await;
        let set = fixture.begin(&target, ranks).await.id;
        while tasks.iter().any(|task| !task.is_finished()) && !is_done(&fixture.publish(set).await) {
            assert_eq!(fixture.names.set_latest(VOLUME, target.as_bytes()).await.unwrap(), None);
            tokio::task::yield_now().await;
        }
        let mut shards = Vec::new();
        for task in tasks {
            shards.push(task.await.unwrap());
        }
        assert!(is_done(&fixture.publish(set).await));
        for (joined, rank, id) in shards {
            assert_eq!(joined, set);
            let key = format!("{target}{}/{rank}", rank % 3);
            assert_eq!(fixture.shown(&key).await, Some(version(id)));
        }
        assert_eq!(fixture.names.set_latest(VOLUME, b"run/").await.unwrap().unwrap().id, set);
        let rows = audit(&fixture).await;
        assert_eq!(rows.referenced.len(), (round as usize + 1) * ranks as usize);
    }
}

async fn one_of_publish_and_abort(fixture: Fixture) {
    for round in 0..30u64 {
        let set = fixture.begin(&format!("s{round}/"), 1).await.id;
        fixture.add(set, 0, "x", round + 1).await.unwrap();
        let start = Arc::new(Barrier::new(3));
        let task = |what: u64| {
            let (fixture, start) = (fixture.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                match what {
                    0 => is_done(&fixture.publish(set).await),
                    1 => fixture.names.set_abort(VOLUME, set, &[], NOW).await.is_ok(),
                    _ => fixture.add(set, 0, "x", 1_000 + round).await.is_ok(),
                }
            })
        };
        let (publish, abort, replace) = (task(0), task(1), task(2));
        let (published, aborted) = (publish.await.unwrap(), abort.await.unwrap());
        let replaced = replace.await.unwrap();
        assert_ne!(published, aborted);
        let last = if replaced { version(1_000 + round) } else { version(round + 1) };
        assert_eq!(fixture.shown(&format!("s{round}/x")).await, published.then_some(last));
    }
    audit(&fixture).await;
}
