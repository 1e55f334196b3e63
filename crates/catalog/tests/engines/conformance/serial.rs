//! Commits of many tasks at once have the effect of some order, one after another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stoker_catalog::{Catalog, Check, Commit, Outcome, Range, Row};
use tokio::task::JoinSet;

use super::model::Model;
use crate::fixture::{Dice, Fixture, all, done, full, get, value};

const TASKS: u64 = 8;
const ACCOUNTS: usize = 12;
const BALANCE: i64 = 1000;

fn rounds() -> usize {
    if full() { 600 } else { 80 }
}

async fn join(mut tasks: JoinSet<()>) {
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}

/// A commit that happened: which versions of rows its checks saw, and what it wrote.
struct Event {
    seq: u64,
    commit: Commit,
    reads: Vec<(Vec<u8>, u64)>,
}

fn account(n: usize) -> Vec<u8> {
    format!("account/{n:02}").into_bytes()
}

/// A balance, and a tag that makes every version of a row different.
fn money(balance: i64, tag: u64) -> Vec<u8> {
    [balance.to_le_bytes(), tag.to_le_bytes()].concat()
}

fn balance(row: &Row) -> i64 {
    i64::from_le_bytes(row.value[..8].try_into().unwrap())
}

/// Reads some accounts and writes none, one or two of them, all on the condition that nothing changed.
async fn transfer(catalog: &dyn Catalog, dice: &mut Dice, tag: u64) -> Option<Event> {
    let mut picked = BTreeSet::new();
    while picked.len() < 3 {
        picked.insert(account(dice.roll(ACCOUNTS)));
    }
    let keys: Vec<&[u8]> = picked.iter().map(Vec::as_slice).collect();
    let rows: Vec<Row> = catalog.get(&keys).await.unwrap().into_iter().map(Option::unwrap).collect();
    let mut commit = Commit::new();
    for row in &rows {
        commit = match dice.roll(2) {
            0 => commit.seq(row.key.clone(), row.seq),
            _ => commit.value(row.key.clone(), row.value.clone()),
        };
    }
    let amount = dice.roll(50) as i64;
    commit = match dice.roll(4) {
        0 => commit,
        1 => commit.put(rows[0].key.clone(), money(balance(&rows[0]), tag)),
        _ => commit
            .put(rows[1].key.clone(), money(balance(&rows[1]) - amount, tag))
            .put(rows[2].key.clone(), money(balance(&rows[2]) + amount, tag)),
    };
    match catalog.commit(commit.clone()).await.unwrap() {
        Outcome::Done { seq } => {
            Some(Event { seq, commit, reads: rows.into_iter().map(|row| (row.key, row.seq)).collect() })
        }
        Outcome::Failed { check } => {
            assert!(check < 3);
            None
        }
    }
}

pub async fn commits_are_serializable(fixture: &Fixture) {
    let mut start = Commit::new();
    for n in 0..ACCOUNTS {
        start = start.put(account(n), money(BALANCE, n as u64));
    }
    let first = done(&*fixture.catalog, start.clone()).await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let catalog = Arc::clone(&fixture.catalog);
        tasks.spawn(async move {
            let mut dice = Dice::new(task + 1);
            let mut events = Vec::new();
            for round in 0..rounds() {
                let tag = (task + 1) << 32 | round as u64;
                events.extend(transfer(&*catalog, &mut dice, tag).await);
            }
            events
        });
    }
    let mut events = vec![Event { seq: first, commit: start, reads: vec![] }];
    while let Some(task) = tasks.join_next().await {
        events.extend(task.unwrap());
    }
    assert!(events.len() > rounds(), "{} commits happened; too few to learn from", events.len());

    let rows = all(&*fixture.catalog, Range::prefix(b"account/", 100)).await;
    assert_eq!(rows.iter().map(balance).sum::<i64>(), BALANCE * ACCOUNTS as i64);
    let order = serial_order(&events).expect("the reads and writes of the commits contradict each other");
    replay(order.into_iter().map(|index| &events[index]), &rows);
    if fixture.seq_is_order {
        let mut writers: Vec<&Event> =
            events.iter().filter(|event| !event.commit.writes.is_empty()).collect();
        writers.sort_by_key(|event| event.seq);
        replay(writers, &rows);
    }
}

/// An order in which every commit comes after what it saw and before what it did not see.
fn serial_order(events: &[Event]) -> Option<Vec<usize>> {
    let writer: BTreeMap<u64, usize> = events
        .iter()
        .enumerate()
        .filter(|(_, event)| !event.commit.writes.is_empty())
        .map(|(index, event)| (event.seq, index))
        .collect();
    // Every write also read the version that it replaced, so this is the order of each row's versions.
    let mut replaced: BTreeMap<(&[u8], u64), usize> = BTreeMap::new();
    for (index, event) in events.iter().enumerate().skip(1) {
        for (key, seq) in event.reads.iter().filter(|(key, _)| writes(event, key)) {
            let lost = replaced.insert((key, *seq), index);
            assert_eq!(lost, None, "two commits replaced the same version of {key:?}: an update was lost");
        }
    }
    let mut after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); events.len()];
    for (index, event) in events.iter().enumerate() {
        for (key, seq) in &event.reads {
            after[*writer.get(seq).expect("a version that nobody acknowledged")].insert(index);
            if let Some(next) = replaced.get(&(key.as_slice(), *seq)).filter(|next| **next != index) {
                after[index].insert(*next);
            }
        }
    }
    let mut waits = vec![0; events.len()];
    after.iter().flatten().for_each(|index| waits[*index] += 1);
    let mut order: Vec<usize> = (0..events.len()).filter(|index| waits[*index] == 0).collect();
    let mut next = 0;
    while next < order.len() {
        for index in &after[order[next]] {
            waits[*index] -= 1;
            if waits[*index] == 0 {
                order.push(*index);
            }
        }
        next += 1;
    }
    (order.len() == events.len()).then_some(order)
}

fn writes(event: &Event, key: &[u8]) -> bool {
    event.commit.writes.iter().any(|write| matches!(write, stoker_catalog::Write::Put(k, _) if k == key))
}

/// Runs commits one after another; each check must hold, and in the end the rows must be the same.
fn replay<'e>(events: impl IntoIterator<Item = &'e Event>, rows: &[Row]) {
    let mut model = Model::default();
    for event in events {
        assert_eq!(model.failed(&event.commit.checks), None, "{:?} on {model:?}", event.commit);
        model.write(&event.commit.writes, event.seq).unwrap();
    }
    assert_eq!(model.range(&Range::prefix(b"account/", 100)), rows);
}

/// Of two who are on duty one may leave if the other stays; both leaving at once must not happen.
pub async fn skew_is_refused(fixture: &Fixture) {
    let wards = 3u8;
    let mut start = Commit::new();
    for ward in 0..wards {
        start = start.put([ward, 0], "on").put([ward, 1], "on");
    }
    done(&*fixture.catalog, start).await;
    let left = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (catalog, left) = (Arc::clone(&fixture.catalog), Arc::clone(&left));
        tasks.spawn(async move {
            let mut dice = Dice::new(task + 100);
            for _ in 0..rounds() {
                let (ward, who) = (dice.roll(wards.into()) as u8, dice.roll(2) as u8);
                let leave = Commit::new().value([ward, 1 - who], "on").put([ward, who], "off");
                if matches!(catalog.commit(leave).await.unwrap(), Outcome::Done { .. }) {
                    left.fetch_add(1, Ordering::Relaxed);
                }
                let rows = catalog.get(&[&[ward, 0], &[ward, 1]]).await.unwrap();
                assert!(rows.iter().flatten().any(|row| row.value == b"on"), "nobody is on duty in {ward}");
                if dice.roll(2) == 0 {
                    done(&*catalog, Commit::new().put([ward, dice.roll(2) as u8], "on")).await;
                }
            }
        });
    }
    join(tasks).await;
    assert!(left.load(Ordering::Relaxed) > 10);
}

/// Nobody joins a full group, though everybody joins under a key of their own.
pub async fn membership_is_bounded(fixture: &Fixture) {
    const SEATS: usize = 3;
    let stop = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (catalog, stop) = (Arc::clone(&fixture.catalog), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let rows = catalog.range(Range::prefix(b"seat/", 100)).await.unwrap().rows;
                assert!(rows.len() <= SEATS, "{} members for {SEATS} seats", rows.len());
                // Leaves the processors to the writers for a while.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let joined = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (catalog, joined) = (Arc::clone(&fixture.catalog), Arc::clone(&joined));
        tasks.spawn(async move {
            let seat = format!("seat/{task}");
            for round in 0..rounds() / 2 {
                let enter = Commit::new()
                    .at_most("seat/", "seat0", SEATS - 1)
                    .absent(seat.clone())
                    .put(seat.clone(), round.to_string());
                match catalog.commit(enter).await.unwrap() {
                    Outcome::Done { .. } => {
                        joined.fetch_add(1, Ordering::Relaxed);
                        let mine = value(&*catalog, seat.as_bytes()).await;
                        assert_eq!(mine.as_deref(), Some(round.to_string().as_bytes()));
                        done(&*catalog, Commit::new().present(seat.clone()).delete(seat.clone())).await;
                    }
                    Outcome::Failed { check } => assert_eq!(check, 0, "only the seats can be the reason"),
                }
            }
        });
    }
    join(tasks).await;
    stop.store(true, Ordering::Relaxed);
    reader.await.unwrap();
    assert!(joined.load(Ordering::Relaxed) > 10);
    assert_eq!(all(&*fixture.catalog, Range::prefix(b"seat/", 10)).await, []);
}

pub async fn concurrent_sums_lose_nothing(fixture: &Fixture) {
    let rounds = rounds() as i64 / 2;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let catalog = Arc::clone(&fixture.catalog);
        tasks.spawn(async move {
            for round in 0..rounds {
                let commit =
                    Commit::new().add("shared", round).add(format!("own/{task}"), round).add("count", 1);
                done(&*catalog, commit).await;
            }
        });
    }
    join(tasks).await;
    let each: i64 = (0..rounds).sum();
    let expect = [("shared", each * TASKS as i64), ("own/3", each), ("count", rounds * TASKS as i64)];
    for (key, expected) in expect {
        let row = get(&*fixture.catalog, key.as_bytes()).await.unwrap();
        assert_eq!(i64::from_le_bytes(row.value.try_into().unwrap()), expected, "{key}");
    }
}

/// A commit has a higher number than every commit that anybody knew to be done before it began.
pub async fn numbers_follow_acknowledgements(fixture: &Fixture) {
    let highest = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (catalog, highest) = (Arc::clone(&fixture.catalog), Arc::clone(&highest));
        tasks.spawn(async move {
            for round in 0..rounds() {
                let known = highest.load(Ordering::SeqCst);
                let key = [task as u8, (round % 3) as u8];
                let seq = done(&*catalog, Commit::new().put(key, round.to_le_bytes())).await;
                assert!(seq > known, "{seq} after {known} was acknowledged");
                highest.fetch_max(seq, Ordering::SeqCst);
                if round % 16 == 0 {
                    let known = highest.load(Ordering::SeqCst);
                    assert!(catalog.seq().await.unwrap() >= known);
                }
                let again = Commit::new().check(Check::Seq(key.to_vec(), seq));
                assert!(matches!(catalog.commit(again).await.unwrap(), Outcome::Done { .. }));
            }
        });
    }
    join(tasks).await;
}

/// The judge itself must be able to say no.
#[cfg(test)]
mod tests {
    use super::*;

    fn event(seq: u64, reads: &[(&str, u64)], puts: &[&str]) -> Event {
        let commit = puts.iter().fold(Commit::new(), |commit, key| commit.put(*key, ""));
        let reads = reads.iter().map(|(key, seq)| (key.as_bytes().to_vec(), *seq)).collect();
        Event { seq, commit, reads }
    }

    #[test]
    fn a_skew_has_no_order() {
        let start = || event(1, &[], &["a", "b"]);
        let both = [("a", 1), ("b", 1)];
        assert_eq!(serial_order(&[start(), event(2, &both, &["a"]), event(3, &both, &["b"])]), None);
        let after = [("a", 2), ("b", 1)];
        assert_eq!(
            serial_order(&[start(), event(2, &both, &["a"]), event(3, &after, &["b"])]),
            Some(vec![0, 1, 2])
        );
    }

    #[test]
    fn a_reader_between_two_writers_has_no_order_if_it_saw_half() {
        let start = event(1, &[], &["a", "b"]);
        let first = event(2, &[("a", 1), ("b", 1)], &["a", "b"]);
        let torn = event(2, &[("a", 1), ("b", 2)], &[]);
        assert_eq!(serial_order(&[start, first, torn]), None);
    }

    #[test]
    #[should_panic(expected = "an update was lost")]
    fn a_lost_update_is_seen() {
        serial_order(&[event(1, &[], &["a"]), event(2, &[("a", 1)], &["a"]), event(3, &[("a", 1)], &["a"])]);
    }
}
