//! A file that was stopped cleanly and damaged afterwards: every row is right, or the file is refused with an
//! error that names the way out. Never a missing row, never a wrong one, never a panic that gets out.

use std::path::Path;

use stoker_catalog::engine::{Embedded, Standby, StandbyOptions, inspect, read_file};
use stoker_catalog::{Catalog, CatalogError, Commit, ErrorKind, Range, Row};

use crate::fixture::{CLUSTER, Dice, all, done, full, small};

/// What the store calls a page.
const PAGE: usize = 4096;
/// Where the store's own head ends, whose bytes are few and all matter.
const HEAD: usize = 320;

/// What happens to a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip { at: usize, bit: u8 },
    Zero { page: usize },
    Noise { at: usize, bytes: usize },
    Swap { one: usize, other: usize },
    Truncate { at: usize },
}

impl Damage {
    fn roll(dice: &mut Dice, bytes: usize) -> Damage {
        let pages = bytes / PAGE;
        let page = dice.roll(pages) * PAGE;
        match dice.roll(10) {
            0 => Damage::Flip { at: dice.roll(HEAD), bit: dice.roll(8) as u8 },
            // The first bytes of a page say how many rows or children it has.
            1..=3 => Damage::Flip { at: page + dice.roll(16), bit: dice.roll(8) as u8 },
            4 | 5 => Damage::Flip { at: dice.roll(bytes), bit: dice.roll(8) as u8 },
            6 => Damage::Zero { page },
            7 => Damage::Noise { at: page + dice.roll(PAGE), bytes: 1 + dice.roll(512) },
            8 => Damage::Swap { one: page, other: dice.roll(pages) * PAGE },
            _ => Damage::Truncate { at: dice.roll(bytes) },
        }
    }

    fn apply(self, bytes: &mut Vec<u8>, dice: &mut Dice) {
        match self {
            Damage::Flip { at, bit } => bytes[at] ^= 1 << bit,
            Damage::Zero { page } => bytes[page..page + PAGE].fill(0),
            Damage::Noise { at, bytes: count } => {
                let end = (at + count).min(bytes.len());
                bytes[at..end].iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
            }
            Damage::Swap { one, other } => {
                let page = bytes[one..one + PAGE].to_vec();
                bytes.copy_within(other..other + PAGE, one);
                bytes[other..other + PAGE].copy_from_slice(&page);
            }
            Damage::Truncate { at } => bytes.truncate(at),
        }
    }
}

/// Fills a catalog by many commits, so that its tree has branches and its file a past, and stops it cleanly.
async fn filled(path: &Path) -> Vec<Row> {
    let catalog = Embedded::open(path, CLUSTER, &small()).unwrap();
    let mut dice = Dice::new(3);
    for _ in 0..30 {
        let commit = (0..60).fold(Commit::new(), |commit, _| {
            let number = dice.roll(1 << 30) as u64;
            commit.put([&number.to_be_bytes()[..], &[7; 20]].concat(), vec![number as u8; 60 + dice.roll(80)])
        });
        done(&catalog, commit).await;
    }
    let rows = all(&catalog, Range::prefix(b"", 1000)).await;
    catalog.close().await;
    rows
}

/// Everything that the file gives, by both ways of asking.
async fn read(path: &Path, expected: &[Row]) -> Result<Vec<Row>, CatalogError> {
    let catalog = Embedded::open(path, CLUSTER, &small())?;
    let mut rows = Vec::new();
    let mut range = Range::prefix(b"", 1000);
    loop {
        let page = catalog.range(range.clone()).await?;
        rows.extend(page.rows);
        let Some(last) = rows.last().filter(|_| page.more) else { break };
        range = range.after(&last.key);
    }
    for row in expected {
        assert_eq!(
            catalog.get(&[&row.key]).await?,
            [Some(row.clone())],
            "a row that is asked for by its key"
        );
    }
    // What is free must be free: a commit must not take the place of rows.
    done(&catalog, Commit::new().put("after", vec![1; 30_000])).await;
    for row in expected {
        assert_eq!(catalog.get(&[&row.key]).await?, [Some(row.clone())], "a row after another commit");
    }
    Ok(rows)
}

fn trials() -> u64 {
    let asked = std::env::var("STOKER_SEEDS").ok().and_then(|count| count.parse().ok());
    asked.unwrap_or(if full() { 5000 } else { 96 })
}

#[tokio::test]
async fn damage_after_a_clean_stop_is_found_before_anything_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog");
    let rows = filled(&path).await;
    assert!(rows.len() > 1500);
    let sound = std::fs::read(&path).unwrap();
    let trial = folder.path().join("trial");
    let (mut refused, trials) = (0, trials());
    for seed in 0..trials {
        let mut dice = Dice::new(seed);
        let damage = Damage::roll(&mut dice, sound.len());
        let mut bytes = sound.clone();
        damage.apply(&mut bytes, &mut dice);
        std::fs::write(&trial, &bytes).unwrap();
        match read(&trial, &rows).await {
            Ok(found) => assert!(found == rows, "seed {seed}, {damage:?}: {} of {}", found.len(), rows.len()),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Corrupt, "seed {seed}, {damage:?}: {error}");
                assert!(error.message.contains("stoker catalog salvage"), "seed {seed}, {damage:?}: {error}");
                assert_eq!(std::fs::read(&trial).unwrap(), bytes, "what is refused is left as it is");
                refused += 1;
            }
        }
    }
    assert!(refused * 4 > trials, "only {refused} of {trials} touched what counts");
}

/// Whoever looks at a file without serving it is told the same.
#[tokio::test]
async fn damage_is_found_by_whoever_opens_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog");
    let rows = filled(&path).await;
    let mut bytes = std::fs::read(&path).unwrap();
    let row = &rows[rows.len() / 2];
    let at = bytes.windows(row.key.len()).position(|window| window == row.key).unwrap();
    bytes[at] ^= 0x40;
    // The row may be there several times, in pages that are not in use any more.
    while let Some(next) = bytes[at + 1..].windows(row.key.len()).position(|window| window == row.key) {
        bytes[at + 1 + next] ^= 0x40;
    }
    std::fs::write(&path, &bytes).unwrap();
    let errors = [
        Embedded::open(&path, CLUSTER, &small()).err(),
        inspect(&path, CLUSTER).err(),
        read_file(&path, CLUSTER).err(),
        Standby::open_former(&path, CLUSTER, &StandbyOptions { file: small(), ..StandbyOptions::default() })
            .err(),
    ];
    for error in errors {
        let error = error.expect("must not open");
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("stoker catalog salvage"), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}
