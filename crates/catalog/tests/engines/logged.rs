//! The log in front of the table: what a kill leaves behind, and what damage does.

use std::path::{Path, PathBuf};

use stoker_catalog::engine::{self, Embedded, Origin, read_table};
use stoker_catalog::{Catalog, Commit, Epoch, ErrorKind, Range, Row};
use stoker_format::{ClusterId, NodeId};

use crate::fixture::{CLUSTER, Dice, all, done, small};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn table(&self) -> PathBuf {
        self.folder.path().join("catalog")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("catalog.log")
    }

    fn open(&self) -> Embedded {
        Embedded::open(&self.table(), CLUSTER, &small()).unwrap()
    }

    /// The files as they are: nobody writes now, so this is what a kill or a loss of power would leave.
    fn image(&self) -> Place {
        let image = Place::new();
        for (from, to) in [(self.table(), image.table()), (self.log(), image.log())] {
            if from.exists() {
                std::fs::copy(from, to).unwrap();
            }
        }
        image
    }

    fn refused(&self) -> String {
        let error = Embedded::open(&self.table(), CLUSTER, &small()).err().expect("must not open");
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        assert!(error.message.contains("salvage"), "{error}");
        error.message
    }
}

async fn rows(catalog: &dyn Catalog) -> Vec<Row> {
    all(catalog, Range::prefix(b"", 1000)).await
}

/// Some commits, among them one that the log of 64 KiB has no room for.
async fn filled(place: &Place, commits: u64) -> Embedded {
    let catalog = place.open();
    for n in 0..commits {
        done(&catalog, Commit::new().put(n.to_be_bytes(), vec![n as u8; 3_000])).await;
    }
    catalog
}

#[tokio::test]
async fn a_kill_at_any_commit_leaves_what_was_acknowledged() {
    let place = Place::new();
    let catalog = place.open();
    let mut dice = Dice::new(7);
    for _ in 0..120 {
        let len = [10, 500, 5_000, 30_000][dice.roll(4)];
        let mut commit = Commit::new();
        for _ in 0..1 + dice.roll(3) {
            commit = commit.put([b'k', dice.roll(40) as u8], vec![dice.roll(256) as u8; len]);
        }
        if dice.roll(3) == 0 {
            commit = commit.delete([b'k', dice.roll(40) as u8]).add("sum", 3);
        }
        let seq = done(&catalog, commit).await;
        let image = place.image();
        let again = image.open();
        assert_eq!((again.seq().await.unwrap(), rows(&again).await), (seq, rows(&catalog).await));
        again.close().await;
        // An orderly end needs no log.
        assert!(!image.log().exists());
        assert_eq!(rows(&image.open()).await, rows(&catalog).await);
    }
    assert!(place.log().exists(), "the log was in use");
}

#[tokio::test]
async fn a_catalog_goes_on_after_each_of_many_kills() {
    let (mut place, mut expected) = (Place::new(), 0u64);
    for _ in 0..12 {
        let catalog = place.open();
        assert_eq!(rows(&catalog).await.len() as u64, expected);
        for _ in 0..9 {
            done(&catalog, Commit::new().put(expected.to_be_bytes(), vec![1; 3_000])).await;
            expected += 1;
        }
        place = place.image();
    }
}

#[tokio::test]
async fn a_block_of_the_log_that_rots_loses_nothing() {
    let place = Place::new();
    let catalog = filled(&place, 6).await;
    let whole = rows(&catalog).await;
    let bytes = std::fs::read(place.log()).unwrap();
    for block in 0..bytes.len() / 4096 {
        let image = place.image();
        let mut bad = bytes.clone();
        bad[block * 4096 + 30] ^= 4;
        std::fs::write(image.log(), bad).unwrap();
        assert_eq!(rows(&image.open()).await, whole, "block {block}");
    }
}

#[tokio::test]
async fn more_damage_of_the_log_is_refused_and_never_a_shorter_past() {
    let place = Place::new();
    let catalog = filled(&place, 6).await;
    let whole = rows(&catalog).await;
    let bytes = std::fs::read(place.log()).unwrap();
    // Both copies of the header, one in each half of eight blocks; then of each record: five, since the first commit went to the table.
    // The last one is not told from one that a power loss tore.
    let places = [[0, 8], [1, 9], [2, 10], [3, 11], [4, 12], [5, 13]];
    for (at, blocks) in places.iter().enumerate() {
        let image = place.image();
        let mut bad = bytes.clone();
        blocks.iter().for_each(|block| bad[block * 4096 + 30] ^= 4);
        std::fs::write(image.log(), bad).unwrap();
        if at + 1 == places.len() {
            assert_eq!(rows(&image.open()).await, whole[..whole.len() - 1]);
            continue;
        }
        let message = image.refused();
        assert!(message.contains("catalog.log"), "{message}");
        // A salvage begins with what is in the file.
        assert_eq!(read_table(&image.table(), CLUSTER).unwrap().seq(), 1);
    }
}

#[tokio::test]
async fn a_log_that_is_missing_or_not_its_own_is_refused() {
    let place = Place::new();
    let catalog = filled(&place, 3).await;
    let early = place.image();
    for n in 100..130u64 {
        done(&catalog, Commit::new().put(n.to_be_bytes(), vec![1; 3_000])).await;
    }
    let late = place.image();

    let missing = late.image();
    std::fs::remove_file(missing.log()).unwrap();
    assert!(missing.refused().contains("missing"));

    // An older file with the log of later commits.
    let mixed = early.image();
    std::fs::copy(late.log(), mixed.log()).unwrap();
    assert!(mixed.refused().contains("catalog.log"));

    // Another catalog's.
    let (other, foreign) = (Place::new(), late.image());
    let kept = filled(&other, 3).await;
    std::fs::copy(other.log(), foreign.log()).unwrap();
    assert!(foreign.refused().contains("not the log that belongs"));
    kept.close().await;

    let error = Embedded::open(&late.table(), ClusterId([0xee; 16]), &small()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Foreign);
    assert!(late.open().seq().await.unwrap() >= 33, "nothing of that changed it");
}

#[tokio::test]
async fn a_catalog_that_was_rebuilt_keeps_its_epoch() {
    let place = Place::new();
    let origin = Origin { seq: 50, epoch: Some(Epoch::first(NodeId([3; 16]))) };
    engine::build(&place.table(), CLUSTER, origin, || Ok(None)).unwrap();
    let before = engine::inspect(&place.table(), CLUSTER).unwrap().unwrap();
    let catalog = filled(&place, 3).await;
    let image = place.image();
    let after = engine::inspect(&image.table(), CLUSTER).unwrap().unwrap();
    assert_eq!((after.epoch, after.promised, after.position.seq), (before.epoch, before.promised, 53));
    assert_eq!(rows(&image.open()).await, rows(&catalog).await);
}

#[tokio::test]
async fn a_log_without_its_catalog_is_put_aside_and_not_overwritten() {
    let place = Place::new();
    let catalog = filled(&place, 3).await;
    let taken = place.image();
    let moved = taken.folder.path().join("moved");
    std::fs::rename(taken.table(), &moved).unwrap();
    let log = std::fs::read(taken.log()).unwrap();
    done(&taken.open(), Commit::new().put("new", "1")).await;
    assert_eq!(std::fs::read(taken.folder.path().join("catalog.log.aside.0")).unwrap(), log);
    drop(catalog);
}

#[tokio::test]
async fn a_program_that_knows_no_log_refuses_the_file() {
    let place = Place::new();
    let catalog = filled(&place, 3).await;
    let image = place.image();
    assert_eq!(schema(&image.table()), 2);
    catalog.close().await;
    assert_eq!(schema(&place.table()), 1);
}

fn schema(table: &Path) -> u32 {
    use redb::ReadableDatabase as _;
    let database = redb::Database::open(table).unwrap();
    let meta: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    let schema = database.begin_read().unwrap().open_table(meta).unwrap().get("schema").unwrap().unwrap();
    u32::from_le_bytes(schema.value().try_into().unwrap())
}
