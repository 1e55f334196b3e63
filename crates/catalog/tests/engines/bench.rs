//! How fast the engines are. Run with
//! `cargo test -p stoker-catalog --release -- --ignored --nocapture --test-threads=1 bench`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::engine::{
    Beginning, Embedded, EmbeddedOptions, Postgres, PrimaryOptions, ReplicaWays, ReplicatedCatalog, Standby,
    StandbyOptions,
};
use stoker_catalog::remote::{CatalogServer, RemoteCatalog, RemoteOptions};
use stoker_catalog::{BoxFuture, Catalog, CatalogError, Commit, Epoch, Wire};
use stoker_format::NodeId;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixture::{CLUSTER, done};
use crate::server::Server;
use crate::wires::Way;

const LENGTH: Duration = Duration::from_secs(3);
const ROWS: u64 = 20_000;

/// Runs one kind of call with many tasks and says how many were done and how long they took.
async fn measure<F, R>(name: &str, tasks: u64, call: F)
where
    F: Fn(u64, u64) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = ()> + Send,
{
    let start = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let call = call.clone();
        running.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < LENGTH {
                let begin = Instant::now();
                call(task, times.len() as u64).await;
                times.push(begin.elapsed());
            }
            times
        });
    }
    let mut times = Vec::new();
    while let Some(task) = running.join_next().await {
        times.extend(task.unwrap());
    }
    times.sort();
    let rate = times.len() as f64 / start.elapsed().as_secs_f64();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    eprintln!(
        "{name:<34} {tasks:>3} tasks {rate:>9.0}/s   P50 {:>7.0} us   P99 {:>7.0} us",
        at(0.5),
        at(0.99)
    );
}

/// What publishing a small file does: three rows and a counter, with two checks.
fn publish(task: u64, round: u64) -> Commit {
    let file = format!("name/1/dir{task}/file{round:012}");
    Commit::new()
        .absent(file.clone())
        .present("session/1")
        .put(file.clone(), vec![1; 200])
        .put(format!("version/{task:04}{round:020}"), vec![2; 300])
        .put(format!("dirty/node/drive/{task:04}{round:020}"), "")
}

/// What a node does to publish a file of `directory`: it looks up the way and the name, and commits five rows and counters
/// with the checks of its session, volume and drive.
async fn publish_like_a_node(on: &dyn Catalog, directory: u64, number: u64) {
    let parent = format!("E/volume/{directory:08}");
    let entry = format!("{parent}/{number:012}");
    for key in ["E/volume/root", &parent, &entry] {
        let found = on.get(&[key.as_bytes()]).await.unwrap();
        assert!(found[0].is_none() || key != entry);
    }
    let version = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let part = version % 128;
    let commit = Commit::new()
        .value("S/node", GUARD)
        .value("W/volume", GUARD)
        .value("D/drive", GUARD)
        .present(parent)
        .absent(entry.clone())
        .put(entry, vec![1; 220])
        .put(format!("r{version:020}/volume/{directory:08}/{number:012}"), "")
        .put(format!("d/0123456789abcdef/0123456789abcdef/{version:020}"), vec![2; 60])
        .add(format!("U/volume/{part:03}/files"), 1)
        .add(format!("U/volume/{part:03}/bytes"), 1 << 20);
    done(on, commit).await;
}

const GUARD: &str = "as it was";

/// Publishes of many tasks: each in a directory of its own, then neighbouring names in one.
async fn bench_publishing(name: &str, catalog: Arc<dyn Catalog>, tasks: &[u64]) {
    let mut rows = ["S/node", "W/volume", "D/drive", "E/volume/root"]
        .into_iter()
        .fold(Commit::new(), |rows, key| rows.put(key, GUARD));
    for directory in 0..=64u64 {
        rows = rows.put(format!("E/volume/{directory:08}"), GUARD);
    }
    done(&*catalog, rows).await;
    let numbers = Arc::new(std::sync::atomic::AtomicU64::new(0));
    for tasks in tasks.iter().copied() {
        for (what, shared) in [("own directories", false), ("one directory", true)] {
            let (on, numbers) = (Arc::clone(&catalog), Arc::clone(&numbers));
            measure(&format!("{name} node publish, {what}"), tasks, move |task, _| {
                let (on, numbers) = (Arc::clone(&on), Arc::clone(&numbers));
                async move {
                    let number = numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    publish_like_a_node(&*on, if shared { 64 } else { task % 64 }, number).await;
                }
            })
            .await;
        }
    }
}

async fn bench(name: &str, catalog: Arc<dyn Catalog>, tasks: &[u64]) {
    for chunk in 0..ROWS / 1000 {
        let fill = (0..1000).fold(Commit::new().put("session/1", ""), |commit, n| {
            commit.put(format!("row/{:08}", chunk * 1000 + n), vec![3; 200])
        });
        done(&*catalog, fill).await;
    }
    for (run, tasks) in tasks.iter().copied().enumerate() {
        let on = Arc::clone(&catalog);
        let run = run as u64;
        measure(&format!("{name} publish"), tasks, move |task, round| {
            let on = Arc::clone(&on);
            async move {
                done(&*on, publish(run * 1000 + task, round)).await;
            }
        })
        .await;
        let on = Arc::clone(&catalog);
        measure(&format!("{name} add to one of 64 counters"), tasks, move |task, round| {
            let on = Arc::clone(&on);
            async move {
                let counter = format!("counter/{}", (task * 7919 + round * 31) % 64);
                done(&*on, Commit::new().add(counter, 1)).await;
            }
        })
        .await;
        let on = Arc::clone(&catalog);
        measure(&format!("{name} add to one counter"), tasks, move |_, _| {
            let on = Arc::clone(&on);
            async move {
                done(&*on, Commit::new().add("counter", 1)).await;
            }
        })
        .await;
        let on = Arc::clone(&catalog);
        measure(&format!("{name} get"), tasks, move |task, round| {
            let on = Arc::clone(&on);
            async move {
                let key = format!("row/{:08}", (task * 7919 + round * 104_729) % ROWS);
                assert!(on.get(&[key.as_bytes()]).await.unwrap()[0].is_some());
                if round % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run by hand"]
async fn bench_embedded() {
    let folder = tempfile::tempdir().unwrap();
    let catalog =
        Embedded::open(&folder.path().join("catalog"), CLUSTER, &EmbeddedOptions::default()).unwrap();
    bench("embedded", Arc::new(catalog), &[1, 16, 64]).await;
}

/// The way to the others of a group of one.
struct Nobody;

impl Wire for Nobody {
    fn call(&self, _: Vec<u8>) -> BoxFuture<'_, stoker_catalog::Result<Vec<u8>>> {
        Box::pin(std::future::ready(Err(CatalogError::unavailable("nobody else is in the group"))))
    }
}

/// The same as the group of one that a node begins with.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run by hand"]
async fn bench_group_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let nobody: ReplicaWays = Arc::new(|_| Arc::new(Nobody) as Arc<dyn Wire>);
    let catalog = ReplicatedCatalog::open(
        &folder.path().join("catalog"),
        CLUSTER,
        NodeId([1; 16]),
        &EmbeddedOptions::default(),
        Beginning::Group,
        nobody,
    );
    bench("group of one", Arc::new(catalog.unwrap()), &[1, 16, 64]).await;
}

/// The way to the server is a function call: what is measured is encoding, names and answers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run by hand"]
async fn bench_embedded_remote() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = primary(folder.path());
    let server = Arc::new(CatalogServer::embedded(catalog, Epoch::default(), |_| {}));
    let remote = RemoteCatalog::new(Way::new(server), 1, &RemoteOptions::default());
    bench("remote", Arc::new(remote), &[1, 16, 64]).await;
}

/// Both files are on the same drive, which flushes for both.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run by hand"]
async fn bench_embedded_standby() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let catalog = primary(folder.path());
    let standby = Standby::open(&other.path().join("catalog"), CLUSTER, &StandbyOptions::default()).unwrap();
    catalog.attach(NodeId([2; 16]), Way::new(Arc::new(standby))).unwrap();
    while !catalog.replication().unwrap().standbys.iter().any(|standby| standby.in_sync) {
        tokio::task::yield_now().await;
    }
    bench("1 standby", catalog, &[1, 16, 64]).await;
}

fn primary(folder: &Path) -> Arc<Embedded> {
    let options = PrimaryOptions::new(NodeId([1; 16]));
    let path = folder.join("catalog");
    Arc::new(Embedded::open_primary(&path, CLUSTER, &EmbeddedOptions::default(), &options).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run by hand"]
async fn bench_postgres() {
    let Some(server) = Server::start(&["shared_buffers=512MB", "max_wal_size=4GB"]) else { return };
    drop(server.client("public").await);
    let catalog = Arc::new(Postgres::open(&server.url("public"), CLUSTER).await.unwrap());
    bench_publishing("postgres", Arc::clone(&catalog) as Arc<dyn Catalog>, &[1, 64]).await;
    eprintln!("{} conflicts", catalog.conflicts());
    bench("postgres", Arc::clone(&catalog) as Arc<dyn Catalog>, &[1, 16, 64]).await;
    eprintln!("{} conflicts", catalog.conflicts());
}
