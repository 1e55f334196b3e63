//! A file system that is full for a while: commits are refused, reads go on, and all is well by itself when there is
//! room again. On real small file systems, where one can be mounted.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::engine::{Embedded, EmbeddedOptions, PrimaryOptions, Standby, StandbyOptions, read_file};
use stoker_catalog::{Catalog, Commit, ErrorKind, Health, Outcome, Range, Row, Snapshot, Wire};
use stoker_format::NodeId;

use crate::fixture::{CLUSTER, all, done, small, value};
use crate::wires::Way;

const MIB: u64 = 1 << 20;

/// A small file system of its own.
struct Disk {
    folder: tempfile::TempDir,
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let run = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

impl Disk {
    /// One of each kind that can be mounted here.
    fn all(bytes: u64) -> Vec<(&'static str, Disk)> {
        let found: Vec<_> = [("tmpfs", Disk::tmpfs(bytes)), ("ext4", Disk::ext4(bytes))]
            .into_iter()
            .filter_map(|(kind, disk)| Some((kind, disk?)))
            .collect();
        if found.is_empty() {
            stoker_testing::skipped("no file system can be mounted here");
        }
        found
    }

    fn tmpfs(bytes: u64) -> Option<Disk> {
        let disk = Disk { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(disk.path()).unwrap();
        let (at, size) = (disk.path().display().to_string(), format!("size={bytes}"));
        succeeds("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &at]).then_some(disk)
    }

    fn ext4(bytes: u64) -> Option<Disk> {
        let disk = Disk { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(disk.path()).unwrap();
        let image = disk.folder.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let (image, at) = (image.display().to_string(), disk.path().display().to_string());
        let made = succeeds("mkfs.ext4", &["-q", "-F", "-m", "0", &image]);
        (made && succeeds("mount", &["-o", "loop", &image, &at])).then_some(disk)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn catalog(&self) -> PathBuf {
        self.path().join("catalog")
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Takes all that is free, to the last byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.ballast()).unwrap();
        for piece in [1 << 20, 4096, 1] {
            while file.write_all(&vec![7; piece]).is_ok() {}
        }
        let _ = file.sync_all();
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = succeeds("umount", &[&self.path().display().to_string()]);
    }
}

fn reserving(reserve_bytes: u64) -> EmbeddedOptions {
    EmbeddedOptions { reserve_bytes, ..small() }
}

fn key(number: u32) -> Vec<u8> {
    // In no order, so that commits touch pages everywhere.
    [number.wrapping_mul(0x9e37_79b9).to_be_bytes(), number.to_be_bytes()].concat()
}

fn commit(number: u32) -> Commit {
    Commit::new().put(key(number), vec![number as u8; 6000])
}

/// Commits until one is refused; gives how many were done.
async fn until_refused(catalog: &dyn Catalog, first: u32) -> (u32, stoker_catalog::CatalogError) {
    for number in first..first + 20_000 {
        match catalog.commit(commit(number)).await {
            Ok(outcome) => assert!(matches!(outcome, Outcome::Done { .. })),
            Err(error) => return (number, error),
        }
    }
    panic!("a full disk refuses nothing");
}

async fn holds(catalog: &dyn Catalog, count: u32) {
    for number in 0..count {
        let found = value(catalog, &key(number)).await;
        assert_eq!(found, Some(vec![number as u8; 6000]), "row {number} was acknowledged");
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_commits_and_nothing_else() {
    for (kind, disk) in Disk::all(48 * MIB) {
        let options = reserving(MIB);
        let catalog = Embedded::open(&disk.catalog(), CLUSTER, &options).unwrap();
        let mut count = 0;
        for round in 0..3 {
            for number in count..count + 20 {
                done(&catalog, commit(number)).await;
            }
            count += 20;
            disk.fill();
            let (number, error) = until_refused(&catalog, count).await;
            count = number;
            assert_eq!(error.kind, ErrorKind::Unavailable, "{kind} {round}: {error}");
            assert!(error.message.contains("is full; free some space"), "{kind}: {error}");
            assert!(error.message.contains(&disk.path().display().to_string()), "{kind}: {error}");
            assert!(matches!(catalog.health(), Health::ReadOnly(why) if why.contains("is full")), "{kind}");

            holds(&catalog, count).await;
            assert_eq!(value(&catalog, &key(count)).await, None, "{kind}: refused and there");
            let same = catalog.commit(Commit::new().present(key(0))).await.unwrap();
            assert!(matches!(same, Outcome::Done { .. }), "{kind}: a commit without writes is a read");

            disk.free();
            assert_eq!(catalog.health(), Health::Good, "{kind}: that there is room again is found by itself");
        }
        done(&catalog, commit(count)).await;
        holds(&catalog, count + 1).await;
        catalog.close().await;
        drop(catalog);
        // A start on a full disk, too, serves what is there.
        disk.fill();
        let catalog = Embedded::open(&disk.catalog(), CLUSTER, &options).unwrap();
        holds(&catalog, count + 1).await;
        let (_, error) = until_refused(&catalog, count + 1).await;
        assert_eq!(error.kind, ErrorKind::Unavailable, "{kind}: {error}");
        disk.free();
        done(&catalog, commit(count + 1)).await;
        catalog.close().await;
    }
}

/// A group that takes more than was reserved: nobody knows what becomes of it, until there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_outgrows_the_reserve_is_there_whole_or_not_at_all() {
    for (kind, disk) in Disk::all(48 * MIB) {
        let catalog = Embedded::open(&disk.catalog(), CLUSTER, &reserving(64 << 10)).unwrap();
        for number in 0..20 {
            done(&catalog, commit(number)).await;
        }
        disk.fill();
        let large = |at: u8| (0..100u8).fold(Commit::new(), |large, n| large.put([at, n], vec![n; 60_000]));
        let error = catalog.commit(large(1)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown, "{kind}: {error}");
        assert!(error.message.contains("is full"), "{kind}: {error}");
        holds(&catalog, 20).await;
        let error = catalog.commit(large(2)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{kind}: {error}");
        assert!(matches!(catalog.health(), Health::ReadOnly(_)), "{kind}");

        disk.free();
        until("room again", || catalog.health() == Health::Good).await;
        let there = all(&catalog, Range::prefix(&[1], 1000)).await.len();
        assert!(matches!(there, 0 | 100), "{kind}: {there} rows of a commit whose end nobody knew");
        assert_eq!(all(&catalog, Range::between(&[2], &[2, 255], 1000)).await.len(), 0, "{kind}");
        done(&catalog, large(2)).await;

        // One that is stuck can be closed, and opened again with what was acknowledged.
        disk.fill();
        let _ = catalog.commit(large(3)).await.unwrap_err();
        catalog.close().await;
        drop(catalog);
        disk.free();
        let catalog = Embedded::open(&disk.catalog(), CLUSTER, &reserving(64 << 10)).unwrap();
        holds(&catalog, 20).await;
        assert_eq!(all(&catalog, Range::between(&[2], &[2, 255], 1000)).await.len(), 100, "{kind}");
        done(&catalog, large(3)).await;
        catalog.close().await;
    }
}

async fn file_rows(path: &Path) -> Vec<Row> {
    let snapshot: Box<dyn Snapshot> = read_file(path, CLUSTER).unwrap();
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let after = rows.last().map(|row: &Row| row.key.clone());
        let page = snapshot.page(after.as_deref()).await.unwrap();
        rows.extend(page.rows);
        if !page.more {
            return rows;
        }
    }
}

/// A standby without room takes nothing; the others go on, and it has everything once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_on_a_full_disk_does_not_diverge() {
    let node = |number: u8| NodeId([number; 16]);
    for (kind, disk) in Disk::all(48 * MIB) {
        let roomy = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| roomy.path().join(name));
        let options = StandbyOptions { file: reserving(MIB), ..StandbyOptions::default() };
        let primary_options = PrimaryOptions { tail_bytes: MIB as usize, ..PrimaryOptions::new(node(1)) };
        let primary = Embedded::open_primary(&first, CLUSTER, &small(), &primary_options).unwrap();
        let open = |path: &Path| Arc::new(Standby::open(path, CLUSTER, &options).unwrap());
        let (tight, second_standby) = (open(&disk.catalog()), open(&second));
        let in_sync = |number: u8| {
            let replication = primary.replication().unwrap();
            replication.standbys.iter().any(|standby| standby.node == node(number) && standby.in_sync)
        };
        for (number, standby) in [(2, &tight), (3, &second_standby)] {
            let way: Arc<dyn Wire> = Way::new(standby.clone());
            primary.attach(node(number), way).unwrap();
            until("in sync", || in_sync(number)).await;
        }
        disk.fill();
        let mut count = 0;
        while in_sync(2) {
            done(&primary, commit(count)).await;
            count += 1;
            assert!(count < 20_000, "{kind}: a full disk refuses nothing");
        }
        assert!(matches!(tight.health(), Health::ReadOnly(_)), "{kind}");
        // More than the tail keeps: it needs a snapshot then.
        for _ in 0..400 {
            done(&primary, commit(count)).await;
            count += 1;
        }
        holds(&primary, count).await;
        disk.free();
        until("in sync again", || in_sync(2)).await;
        assert_eq!(tight.health(), Health::Good, "{kind}");
        done(&primary, commit(count)).await;
        primary.close().await;
        tight.close();
        second_standby.close();
        let rows = file_rows(&first).await;
        assert!(rows.len() > count as usize, "{kind}");
        assert!(rows == file_rows(&disk.catalog()).await && rows == file_rows(&second).await, "{kind}");
    }
}
