//! The suite on the catalog in a file, and what a file adds: opening, damage, crashes, copies.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use stoker_catalog::engine::Embedded;
use stoker_catalog::{Catalog, CatalogError, Commit, ErrorKind, Outcome, Range};
use stoker_format::ClusterId;
use tokio::task::JoinSet;

use crate::conformance::conformance;
use crate::fixture::{self, CLUSTER, Dice, all, done, full, small, value};

conformance!(Some(fixture::embedded()));

fn open(path: &Path) -> Result<Embedded, CatalogError> {
    Embedded::open(path, CLUSTER, &small())
}

fn open_error(path: &Path) -> CatalogError {
    open(path).err().expect("must not open")
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog");
    (folder, path)
}

/// A file with some rows; gives the number of the last commit.
async fn filled(path: &Path) -> u64 {
    let catalog = open(path).unwrap();
    let mut seq = 0;
    for n in 0..20u32 {
        let commit = (0..50u32).fold(Commit::new(), |commit, m| {
            commit.put([n.to_be_bytes(), m.to_be_bytes()].concat(), vec![n as u8; 100])
        });
        seq = done(&catalog, commit).await;
    }
    catalog.close().await;
    seq
}

#[tokio::test]
async fn rows_and_numbers_survive_reopening() {
    let (_folder, path) = folder();
    let seq = filled(&path).await;
    for _ in 0..2 {
        let catalog = Embedded::open(&path, CLUSTER, &small()).unwrap();
        assert_eq!(catalog.seq().await.unwrap(), seq);
        let rows = all(&catalog, Range::prefix(b"", 300)).await;
        assert_eq!(rows.len(), 1000);
        assert!(rows.iter().all(|row| row.value == vec![row.key[3]; 100] && row.seq <= seq));
    }
    let catalog = open(&path).unwrap();
    assert!(done(&catalog, Commit::new().put("next", "")).await > seq);
}

#[tokio::test]
async fn another_cluster_and_a_newer_schema_are_foreign() {
    let (_folder, path) = folder();
    drop(open(&path).unwrap());
    let other = ClusterId([0xee; 16]);
    let error = Embedded::open(&path, other, &small()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Foreign);
    assert!(
        error.message.contains(&CLUSTER.to_string()) && error.message.contains(&other.to_string()),
        "{error}"
    );

    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
    transaction.open_table(meta).unwrap().insert("schema", 4u32.to_le_bytes().as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = open_error(&path);
    assert_eq!(error.kind, ErrorKind::Foreign);
    assert!(error.message.contains("update the program"), "{error}");

    let stranger = path.with_extension("stranger");
    drop(redb::Database::create(&stranger).unwrap());
    assert_eq!(open_error(&stranger).kind, ErrorKind::Foreign);
}

#[tokio::test]
async fn one_process_at_a_time() {
    let (_folder, path) = folder();
    let catalog = open(&path).unwrap();
    let error = open_error(&path);
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("in use by another process"), "{error}");
    catalog.close().await;
    let again = open(&path).unwrap();
    drop(again);
    drop(open(&path).unwrap());
}

#[tokio::test]
async fn nothing_works_after_close() {
    let (_folder, path) = folder();
    let catalog = open(&path).unwrap();
    let mut watch = catalog.watch(vec![]);
    done(&catalog, Commit::new().put("a", "1")).await;
    watch.changed().await.unwrap();
    catalog.close().await;
    assert_eq!(watch.changed().await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.commit(Commit::new().put("a", "2")).await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.commit(Commit::new().present("a")).await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(catalog.seq().await.unwrap_err().kind, ErrorKind::Closed);
    catalog.close().await;
}

/// Commits that were queued when the catalog is closed either happened or were refused, and say which.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_in_the_middle_tells_the_truth() {
    let (_folder, path) = folder();
    let catalog = Arc::new(open(&path).unwrap());
    let mut tasks = JoinSet::new();
    for task in 0..64u32 {
        let catalog = Arc::clone(&catalog);
        tasks.spawn(async move {
            let mut acknowledged = 0u32;
            loop {
                let put = Commit::new().put(task.to_be_bytes(), (acknowledged + 1).to_be_bytes());
                match catalog.commit(put).await {
                    Ok(outcome) => assert!(matches!(outcome, Outcome::Done { .. })),
                    Err(error) => {
                        assert_eq!(error.kind, ErrorKind::Closed);
                        return (task, acknowledged);
                    }
                }
                acknowledged += 1;
            }
        });
    }
    while catalog.seq().await.unwrap() < 200 {
        tokio::task::yield_now().await;
    }
    catalog.close().await;
    let catalog_again = open(&path).unwrap();
    while let Some(result) = tasks.join_next().await {
        let (task, acknowledged) = result.unwrap();
        let found = value(&catalog_again, &task.to_be_bytes()).await;
        let found = found.map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()));
        assert_eq!(found, acknowledged);
    }
}

#[tokio::test]
async fn damaged_files_are_reported_and_never_believed() {
    let (_folder, path) = folder();
    filled(&path).await;
    let sound = std::fs::read(&path).unwrap();
    let trial = path.with_extension("trial");
    let mut dice = Dice::new(7);
    let mut refused = 0;
    let trials = if full() { 3000 } else { 150 };
    for number in 0..trials {
        let mut bytes = sound.clone();
        match number {
            0 => bytes.clear(),
            1 => bytes = b"not a catalog at all".to_vec(),
            2 => bytes = vec![0; sound.len()],
            3 => bytes = vec![0xff; 4096],
            4 => bytes.truncate(100),
            _ if number % 5 == 0 => bytes.truncate(dice.roll(sound.len())),
            _ => {
                // Most of a file is free pages, where damage is no damage; so take many bytes.
                let start = dice.roll(bytes.len());
                let end = (start + 1 + dice.roll(16 << 10)).min(bytes.len());
                bytes[start..end].iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
            }
        }
        std::fs::write(&trial, &bytes).unwrap();
        match look_at(&trial).await {
            Ok(()) => {}
            Err(error) => {
                let expected = matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Foreign);
                assert!(expected, "trial {number}: {error}");
                refused += 1;
            }
        }
        if number < 5 {
            assert_eq!(refused, number + 1, "trial {number} must be refused");
        }
    }
    assert!(refused > trials / 10, "only {refused} of {trials} were refused");
}

/// Reads all that a damaged file gives and compares it with what was written.
async fn look_at(path: &Path) -> Result<(), CatalogError> {
    let catalog = Embedded::open(path, CLUSTER, &small())?;
    let page = catalog.range(Range::prefix(b"", 10_000)).await?;
    for row in page.rows {
        assert_eq!(row.value, vec![row.key[3]; 100], "bytes that nobody wrote");
    }
    catalog.get(&[&[0; 8]]).await?;
    catalog.seq().await?;
    match catalog.commit(Commit::new().put("after", "1").delete_range([0], [9])).await {
        // What a poisoned catalog did is not known, which is the truth.
        Err(error) if error.kind == ErrorKind::Unknown => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_one_state() {
    let (folder, path) = folder();
    let catalog = Arc::new(open(&path).unwrap());
    for part in 0..3u32 {
        let filler = (part * 100..part * 100 + 100).fold(Commit::new(), |commit, n| {
            commit.put([&[9], &n.to_be_bytes()[..]].concat(), vec![1; 60_000])
        });
        done(&*catalog, filler).await;
    }
    let writer = tokio::spawn({
        let catalog = Arc::clone(&catalog);
        async move {
            for round in 0..300u32 {
                let commit = (0..10u8).fold(Commit::new(), |commit, n| commit.put([n], round.to_le_bytes()));
                done(&*catalog, commit).await;
            }
        }
    });
    for copy in 0..3 {
        let before = catalog.seq().await.unwrap();
        let to = folder.path().join(format!("copy-{copy}"));
        catalog.backup(&to).await.unwrap();
        assert_eq!(catalog.backup(&to).await.unwrap_err().kind, ErrorKind::Invalid);
        let backup = open(&to).unwrap();
        assert!(backup.seq().await.unwrap() >= before);
        let rows = backup.range(Range::between(&[0], &[9, 0], 100)).await.unwrap().rows;
        assert!(rows.windows(2).all(|pair| pair[0].value == pair[1].value && pair[0].seq == pair[1].seq));
        assert_eq!(all(&backup, Range::prefix(&[9, 0], 1000)).await.len(), 300);
        done(&backup, Commit::new().put("works", "")).await;
    }
    writer.await.unwrap();
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 5, "only the catalog, its log and its copies: {left:?}");
}

/// Many open the same new path at once; exactly one has it, and nobody sees half of a file.
#[test]
fn creation_is_whole_or_not_at_all() {
    let (_folder, path) = folder();
    let barrier = std::sync::Barrier::new(8);
    let opened: Vec<Result<Embedded, CatalogError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    open(&path)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(opened.iter().filter(|result| result.is_ok()).count(), 1);
    let kinds = opened.iter().filter_map(|result| result.as_ref().err()).map(|error| error.kind);
    assert!(kinds.into_iter().all(|kind| kind == ErrorKind::Unavailable));
}

/// Set for the child process that a test kills; holds the path of its catalog.
const CHILD: &str = "STOKER_CATALOG_CHILD";

/// Kills a process that commits with many tasks, over and over; whatever it was told is done stays done.
#[tokio::test]
async fn killed_at_any_moment_nothing_acknowledged_is_lost() {
    let (_folder, path) = folder();
    let mut acknowledged = std::collections::BTreeMap::new();
    let mut dice = Dice::new(std::process::id().into());
    let kills = if full() { 60 } else { 6 };
    for _ in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded::child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // A number of answers instead of a time: the kill falls anywhere in the work that follows them.
        let answers = 1 + dice.roll(400);
        let mut heard = 0;
        let mut hear = |line: String| {
            // The harness prints too.
            let mut words = line.strip_prefix("ack ")?.split(' ').map(|word| word.parse::<u64>().ok());
            let (task, round, seq) = (words.next()??, words.next()??, words.next()??);
            acknowledged.insert(task, (round, seq));
            Some(())
        };
        while heard < answers {
            let line = lines.next().expect("the child must not end by itself").unwrap();
            heard += usize::from(hear(line).is_some());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What was already in the pipe was acknowledged too; the last line may be half of one.
        for line in lines.map_while(Result::ok).filter(|line| line.ends_with('.')) {
            hear(line);
        }

        let catalog = open(&path).unwrap();
        let last = catalog.seq().await.unwrap();
        for (task, (round, seq)) in &acknowledged {
            let rows = catalog.get(&[&key(*task, 0), &key(*task, 1)]).await.unwrap();
            let rows: Vec<_> = rows.into_iter().map(|row| row.expect("was acknowledged")).collect();
            assert_eq!((rows[0].seq, &rows[0].value), (rows[1].seq, &rows[1].value), "half of a commit");
            let found = u64::from_le_bytes(rows[0].value.as_slice().try_into().unwrap());
            assert!(
                found >= *round && rows[0].seq >= *seq && last >= *seq,
                "{found} after {round} was acknowledged"
            );
        }
    }
    assert!(acknowledged.len() > 4);
}

fn key(task: u64, half: u8) -> [u8; 9] {
    let mut key = [half; 9];
    key[..8].copy_from_slice(&task.to_be_bytes());
    key
}

/// The process that is killed: commits and says so on standard output.
#[test]
#[ignore = "started by killed_at_any_moment_nothing_acknowledged_is_lost"]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let catalog = Arc::new(open(Path::new(&path)).unwrap());
        let mut tasks = JoinSet::new();
        for task in 0..8u64 {
            let catalog = Arc::clone(&catalog);
            tasks.spawn(async move {
                let found = value(&*catalog, &key(task, 0)).await;
                let mut round = found.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
                loop {
                    round += 1;
                    let value = round.to_le_bytes();
                    let seq =
                        done(&*catalog, Commit::new().put(key(task, 0), value).put(key(task, 1), value))
                            .await;
                    // One write per line: a line is there whole or it is the last one.
                    let line = format!("ack {task} {round} {seq} .\n");
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    });
}
