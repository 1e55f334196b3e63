//! Watches: may wake without reason, never miss.

use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::{Catalog, Commit, Watch};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, done, value};

/// Long enough that only a change that was missed can take it.
const MISSED: Duration = Duration::from_secs(120);

async fn woken(watch: &mut Watch, what: &str) {
    let woken = tokio::time::timeout(MISSED, watch.changed()).await;
    woken.unwrap_or_else(|_| panic!("missed: {what}")).unwrap();
}

/// Waits until the row has a value of at least this number, looking only when the watch says so.
async fn wait_for(catalog: &dyn Catalog, watch: &mut Watch, key: &[u8], least: u32) {
    loop {
        let found = value(catalog, key).await.map(|value| u32::from_le_bytes(value.try_into().unwrap()));
        if found.is_some_and(|found| found >= least) {
            return;
        }
        woken(watch, &format!("{key:?} did not reach {least}")).await;
    }
}

/// Pairs of tasks that answer each other through the catalog: one change missed, and a pair stands still.
pub async fn no_change_is_missed(fixture: &Fixture) {
    let mut tasks = JoinSet::new();
    for pair in 0..6u8 {
        for side in [0u8, 1] {
            let catalog = Arc::clone(&fixture.catalog);
            tasks.spawn(async move {
                let (mine, theirs) = ([pair, side], [pair, 1 - side]);
                let mut watch = catalog.watch(theirs.to_vec());
                for round in 0..60u32 {
                    if side == 1 {
                        wait_for(&*catalog, &mut watch, &theirs, round + 1).await;
                    }
                    done(&*catalog, Commit::new().put(mine, (round + 1).to_le_bytes())).await;
                    if side == 0 {
                        wait_for(&*catalog, &mut watch, &theirs, round + 1).await;
                    }
                    if round % 10 == 9 {
                        // A new watch must be as good as one that is old.
                        watch = catalog.watch(theirs.to_vec());
                    }
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

pub async fn every_kind_of_write_wakes(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let commits = [
        Commit::new().put("dir/a", "1"),
        Commit::new().add("dir/n", 1),
        Commit::new().delete("dir/a"),
        Commit::new().delete_range("dir/", "dir0"),
        Commit::new().delete_range("a", "z"),
        Commit::new().delete_range("dir/m", "dir/o"),
        Commit::new().absent("else").put("x", "").put("dir/zz", ""),
    ];
    for commit in commits {
        done(catalog, Commit::new().put("dir/a", "0").add("dir/n", 1)).await;
        let mut watches = ["", "d", "dir/"].map(|prefix| catalog.watch(prefix.into()));
        done(catalog, commit.clone()).await;
        for watch in &mut watches {
            woken(watch, &format!("{commit:?}")).await;
        }
    }
    let mut exact = catalog.watch(b"dir/key".to_vec());
    done(catalog, Commit::new().put("dir/key", "")).await;
    woken(&mut exact, "a watch of one key").await;
    let long = vec![b'p'; 1500];
    let mut deep = catalog.watch(long.clone());
    done(catalog, Commit::new().put([&long[..], b"x"].concat(), "")).await;
    woken(&mut deep, "a watch of a long prefix").await;
}

/// Not a promise, but what makes watches useful: other writes mostly do not wake them.
pub async fn other_prefixes_may_sleep(fixture: &Fixture) {
    let catalog = &*fixture.catalog;
    let watch = catalog.watch(b"mine/".to_vec());
    assert!(!fixture.new_watch_sleeps || !watch.is_changed(), "a new watch starts asleep");
    let failed = Commit::new().present("nothing").put("mine/a", "1");
    assert!(matches!(catalog.commit(failed).await.unwrap(), stoker_catalog::Outcome::Failed { .. }));
    done(catalog, Commit::new().put("mine/a", "1")).await;
    let mut watch = watch;
    woken(&mut watch, "a put").await;
}
