//! What a read sees while others write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stoker_catalog::{Commit, Range, Row};
use tokio::task::JoinSet;

use crate::fixture::{Fixture, done, get};

const KEYS: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
const ROUNDS: u32 = 150;
/// Readers leave the processors to the writer for a while.
const PAUSE: Duration = Duration::from_millis(1);

/// Writers that keep all keys equal, or all absent; readers check that they never see a mixture.
async fn hammer(fixture: &Fixture, page: bool) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        let (catalog, stop) = (Arc::clone(&fixture.catalog), Arc::clone(&stop));
        readers.spawn(async move {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                let rows: Vec<Option<Row>> = if page {
                    let page = catalog.range(Range::prefix(b"", 100)).await.unwrap();
                    assert!(page.rows.is_empty() || page.rows.len() == KEYS.len(), "half of a commit");
                    page.rows.into_iter().map(Some).collect()
                } else {
                    catalog.get(&KEYS).await.unwrap()
                };
                let seqs: Vec<Option<u64>> = rows.iter().map(|row| row.as_ref().map(|row| row.seq)).collect();
                assert!(seqs.windows(2).all(|pair| pair[0] == pair[1]), "a mixture of commits: {seqs:?}");
                if let Some(Some(seq)) = seqs.first() {
                    assert!(*seq >= last, "reads of one task went back");
                    last = *seq;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
    for round in 0..ROUNDS {
        let commit = KEYS.iter().fold(Commit::new(), |commit, key| {
            if round % 7 == 6 { commit.delete(*key) } else { commit.put(*key, round.to_le_bytes()) }
        });
        done(&*fixture.catalog, commit).await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
}

pub async fn one_get_is_one_state(fixture: &Fixture) {
    hammer(fixture, false).await;
    let catalog = &*fixture.catalog;
    done(catalog, Commit::new().put("b", "2")).await;
    let rows = catalog.get(&[b"b", b"nothing", b"b"]).await.unwrap();
    let rows: Vec<_> = rows.into_iter().map(|row| row.map(|row| (row.key, row.value))).collect();
    let b = Some((b"b".to_vec(), b"2".to_vec()));
    assert_eq!(rows, [b.clone(), None, b]);
    assert_eq!(catalog.get(&[]).await.unwrap(), []);
}

pub async fn one_page_is_one_state(fixture: &Fixture) {
    hammer(fixture, true).await;
}

/// A commit that was acknowledged to one task is seen by every other one from then on.
pub async fn acknowledged_is_seen(fixture: &Fixture) {
    let mut tasks = JoinSet::new();
    for task in 0..4u8 {
        let catalog = Arc::clone(&fixture.catalog);
        tasks.spawn(async move {
            for round in 0..60u32 {
                let key = [task, (round % 5) as u8];
                let seq = done(&*catalog, Commit::new().put(key, round.to_le_bytes())).await;
                let other = Arc::clone(&catalog);
                let row = tokio::spawn(async move { get(&*other, &key).await }).await.unwrap().unwrap();
                assert_eq!((row.value, row.seq), (round.to_le_bytes().to_vec(), seq));
                assert!(catalog.seq().await.unwrap() >= seq);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
}
