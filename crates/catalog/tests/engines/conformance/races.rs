//! Commits that each look at what the other writes: of two at once, one must see the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_catalog::kv::prefix_end;
use stoker_catalog::{Catalog, Commit, Outcome, Range};
use tokio::task::JoinSet;

use crate::fixture::{Dice, Fixture, all, done, full, value};

const TASKS: u64 = 8;

fn rounds() -> u64 {
    if full() { 400 } else { 60 }
}

/// Whether the commit happened.
async fn happens(catalog: &dyn Catalog, commit: Commit) -> bool {
    matches!(catalog.commit(commit).await.unwrap(), Outcome::Done { .. })
}

/// Runs tasks that do something again and again.
async fn crowd<F, R>(fixture: &Fixture, step: F)
where
    F: Fn(Arc<dyn Catalog>, u64, u64) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send,
{
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (catalog, step) = (Arc::clone(&fixture.catalog), step.clone());
        tasks.spawn(async move {
            for round in 0..rounds() {
                step(Arc::clone(&catalog), task, round).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

/// A row on the condition that another one is missing, and the other way round: never both.
pub async fn absence_is_not_skewed(fixture: &Fixture) {
    let made = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&made);
    crowd(fixture, move |catalog, task, round| {
        let made = Arc::clone(&made);
        async move {
            // Pairs meet in each round, since all tasks go through the same names.
            let (mine, theirs) = match task % 2 {
                0 => (format!("{round}/a"), format!("{round}/b")),
                _ => (format!("{round}/b"), format!("{round}/a")),
            };
            let won = happens(&*catalog, Commit::new().absent(theirs.clone()).put(mine.clone(), "")).await;
            made.fetch_add(u64::from(won), Ordering::Relaxed);
            let rows = catalog.get(&[mine.as_bytes(), theirs.as_bytes()]).await.unwrap();
            assert_eq!(rows.iter().flatten().count(), 1, "{round}: both, or nobody");
        }
    })
    .await;
    assert!(count.load(Ordering::Relaxed) >= rounds());
}

/// Names of a directory with a short prefix and of one with a long prefix; engines may lock them in other ways.
const DIRECTORIES: [&str; 2] = ["s", "directory/with/a/long/name"];

/// Who removes an empty directory and who makes something in it do not both succeed.
pub async fn nothing_is_made_where_all_was_removed(fixture: &Fixture) {
    crowd(fixture, |catalog, task, round| async move {
        let mut dice = Dice::new(task * 1000 + round + 1);
        let name = DIRECTORIES[dice.roll(2)];
        let (row, inside) = (format!("{name}!"), format!("{name}/"));
        let end = prefix_end(inside.as_bytes()).unwrap();
        let child = format!("{inside}{task}");
        match dice.roll(5) {
            0 => drop(happens(&*catalog, Commit::new().absent(row.clone()).put(row.clone(), "")).await),
            1 => {
                // Only if it is empty.
                let remove = Commit::new().at_most(inside.clone(), end.clone(), 0);
                happens(&*catalog, remove.present(row.clone()).delete(row.clone())).await;
            }
            2 => {
                // With all that is in it.
                let remove = Commit::new().delete(row.clone()).delete_range(inside.clone(), end.clone());
                done(&*catalog, remove).await;
            }
            3 => drop(happens(&*catalog, Commit::new().delete(child)).await),
            _ => drop(happens(&*catalog, Commit::new().present(row.clone()).put(child, "")).await),
        }
        let page = catalog.range(Range::prefix(name.as_bytes(), 100)).await.unwrap();
        let is_there = page.rows.iter().any(|found| found.key == row.as_bytes());
        assert!(is_there || page.rows.is_empty(), "{name}: entries of a directory that is gone: {page:?}");
    })
    .await;
}

/// Whoever finds one range with room for one puts a row into the other range, so that together they never hold two.
pub async fn counted_ranges_are_not_skewed(fixture: &Fixture) {
    let won = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&won);
    crowd(fixture, move |catalog, task, round| {
        let won = Arc::clone(&won);
        async move {
            let sides = [format!("left/of/the/range/{round:04}/"), format!("r{round:04}/")];
            let (mine, theirs) = (&sides[task as usize % 2], &sides[1 - task as usize % 2]);
            let mut commit = Commit::new();
            for side in [theirs, mine] {
                commit = commit.at_most(side.clone(), prefix_end(side.as_bytes()).unwrap(), 0);
            }
            let is_done = happens(&*catalog, commit.put(format!("{mine}{task}"), "")).await;
            won.fetch_add(u64::from(is_done), Ordering::Relaxed);
            let mut rows = Vec::new();
            for side in &sides {
                rows.extend(all(&*catalog, Range::prefix(side.as_bytes(), 10)).await);
            }
            assert_eq!(rows.len(), 1, "{rows:?}");
        }
    })
    .await;
    assert_eq!(count.load(Ordering::Relaxed), rounds());
}

/// A counter that was sealed at a value stays at it.
pub async fn sums_are_seen_by_checks(fixture: &Fixture) {
    crowd(fixture, |catalog, task, round| async move {
        let (counter, seal) = (format!("{round}/n"), format!("{round}/sealed"));
        if task % 4 > 0 {
            for _ in 0..3 {
                happens(&*catalog, Commit::new().absent(seal.clone()).add(counter.clone(), 1)).await;
            }
        } else {
            let found = value(&*catalog, counter.as_bytes()).await;
            let sealing = match &found {
                Some(found) => {
                    Commit::new().value(counter.clone(), found.clone()).put(seal.clone(), found.clone())
                }
                None => Commit::new().absent(counter.clone()).put(seal.clone(), ""),
            };
            happens(&*catalog, sealing.absent(seal.clone())).await;
        }
        let rows = catalog.get(&[counter.as_bytes(), seal.as_bytes()]).await.unwrap();
        if let [row, Some(sealed)] = &rows[..] {
            let value = row.as_ref().map_or(&[][..], |row| &row.value);
            assert_eq!(value, sealed.value, "{round}: the counter went on");
        }
    })
    .await;
}

/// Commits that change many rows in any order, beside each other: none fails, and each is whole.
pub async fn many_rows_in_any_order(fixture: &Fixture) {
    const ROWS: u64 = 24;
    crowd(fixture, |catalog, task, round| async move {
        let mut dice = Dice::new(task * 7919 + round + 1);
        let tag = format!("{task}/{round}");
        let start = dice.roll(ROWS as usize) as u64;
        let step = [1, 5, 7, 23][dice.roll(4)];
        let mut commit = Commit::new();
        for n in 0..ROWS {
            let key = format!("row/{:02}", (start + n * step) % ROWS);
            commit = match round % 5 {
                4 if n % 2 == 0 => commit.delete(key),
                _ => commit.put(key, tag.clone()),
            };
        }
        done(&*catalog, commit.add("commits", 1)).await;
        let rows = all(&*catalog, Range::prefix(b"row/", 100)).await;
        assert!(rows.windows(2).all(|pair| pair[0].seq == pair[1].seq), "a mixture of commits");
    })
    .await;
    let commits = value(&*fixture.catalog, b"commits").await.unwrap();
    assert_eq!(i64::from_le_bytes(commits.try_into().unwrap()), (TASKS * rounds()) as i64);
}

/// However many add at once, what a limited counter counts is never above the limit, and the room is used up to less than one step.
pub async fn limited_sums_are_exact(fixture: &Fixture) {
    const STEP: i64 = 3;
    const ROWS: [&str; 3] = ["#quota/a", "#quota/b", "#quota/c"];
    let limit = i64::try_from(rounds() * TASKS).unwrap() + 1;
    crowd(fixture, move |catalog, task, round| async move {
        let mut dice = Dice::new(task * 1000 + round + 1);
        let (row, other) = (ROWS[dice.roll(3)], ROWS[dice.roll(3)]);
        let more = Commit::new().sum_at_most("#quota/", "#quota0", limit - STEP).add(row, STEP);
        let added = happens(&*catalog, more).await;
        // What goes needs no check, and makes room.
        if added && dice.roll(4) == 0 {
            assert!(happens(&*catalog, Commit::new().add(other, -STEP)).await);
        }
        let rows = all(&*catalog, Range::prefix(b"#quota/", 9)).await;
        let count = |row: &stoker_catalog::Row| i64::from_le_bytes(row.value[..].try_into().unwrap());
        let sum: i64 = rows.iter().map(count).sum();
        assert!(sum <= limit, "{sum} of {limit}");
    })
    .await;
    // What is left is filled by one alone.
    let catalog = &*fixture.catalog;
    let more = || Commit::new().sum_at_most("#quota/", "#quota0", limit - STEP).add(ROWS[0], STEP);
    while happens(catalog, more()).await {}
    let rows = all(catalog, Range::prefix(b"#quota/", 9)).await;
    let sum: i64 = rows.iter().map(|row| i64::from_le_bytes(row.value[..].try_into().unwrap())).sum();
    assert!(sum <= limit && sum + STEP > limit, "{sum} of {limit}");
}
