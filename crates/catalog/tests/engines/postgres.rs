//! The suite on PostgreSQL, and what a server adds: many nodes, lost connections, crashes.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stoker_catalog::engine::{Postgres, PostgresOptions};
use stoker_catalog::{Catalog, Commit, ErrorKind, Outcome, Range};
use stoker_format::ClusterId;
use tokio::task::JoinSet;

use crate::conformance::conformance;
use crate::fixture::{self, CLUSTER, done, full, get, patient, value};
use crate::server::{self, Server};

conformance!(fixture::postgres().await);

/// What only shows if several nodes commit.
mod nodes {
    use crate::conformance::conformance;
    use crate::fixture;

    conformance!(fixture::postgres_nodes().await;
        serial: commits_are_serializable, skew_is_refused, membership_is_bounded, concurrent_sums_lose_nothing,
            numbers_follow_acknowledgements;
        races: absence_is_not_skewed, nothing_is_made_where_all_was_removed, counted_ranges_are_not_skewed,
            sums_are_seen_by_checks, limited_sums_are_exact, many_rows_in_any_order;
        snapshots: one_get_is_one_state, one_page_is_one_state, acknowledged_is_seen;
        watching: no_change_is_missed;
    );
}

/// Long enough that only something that never comes can take it.
const NEVER: Duration = Duration::from_secs(120);

pub async fn open(url: &str) -> stoker_catalog::Result<Postgres> {
    Postgres::open_with(url, CLUSTER, &patient()).await
}

pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NEVER, work).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_open_at_once() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let mut tasks = JoinSet::new();
    for node in 0..12u8 {
        let url = url.clone();
        tasks.spawn(async move {
            let catalog = open(&url).await.unwrap();
            done(&catalog, Commit::new().put([node], "here").add("nodes", 1)).await;
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let catalog = open(&url).await.unwrap();
    assert_eq!(value(&catalog, b"nodes").await.unwrap(), 12i64.to_le_bytes());
    assert!(catalog.describe().contains("postgres") && !catalog.describe().contains("password"));
}

#[tokio::test]
async fn another_cluster_and_a_newer_schema_are_foreign() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    drop(open(&url).await.unwrap());
    let other = ClusterId([0xee; 16]);
    let error = Postgres::open(&url, other).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Foreign);
    assert!(
        error.message.contains(&CLUSTER.to_string()) && error.message.contains(&other.to_string()),
        "{error}"
    );

    let (client, io) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    client.batch_execute("UPDATE stoker_meta SET schema = 3").await.unwrap();
    let error = open(&url).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Foreign);
    assert!(error.message.contains("update the program"), "{error}");
    client.batch_execute("DELETE FROM stoker_meta").await.unwrap();
    assert_eq!(open(&url).await.err().unwrap().kind, ErrorKind::Corrupt);
}

#[tokio::test]
async fn addresses_that_lead_nowhere() {
    let kind = async |url: &str| open(url).await.err().unwrap().kind;
    assert_eq!(kind("host=/nonexistent/socket user=stoker").await, ErrorKind::Unavailable);
    assert_eq!(kind("what is this").await, ErrorKind::Invalid);
    assert_eq!(kind("postgresql://127.0.0.1:1/x?user=y").await, ErrorKind::Unavailable);
}

/// A change made through one node wakes the watches of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_hear_of_each_other() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let nodes = [open(&url).await.unwrap(), open(&url).await.unwrap()];
    let nodes = nodes.map(Arc::new);
    let mut tasks = JoinSet::new();
    for side in [0usize, 1] {
        let catalog = Arc::clone(&nodes[side]);
        tasks.spawn(async move {
            let theirs = [1 - side as u8];
            let mut watch = catalog.watch(theirs.to_vec());
            for round in 0..100u32 {
                if side == 0 {
                    done(&*catalog, Commit::new().put([0], round.to_le_bytes())).await;
                }
                while value(&*catalog, &theirs).await.as_deref() != Some(&round.to_le_bytes()) {
                    soon("a change of the other node", watch.changed()).await.unwrap();
                }
                if side == 1 {
                    done(&*catalog, Commit::new().put([1], round.to_le_bytes())).await;
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let mut watch = nodes[1].watch(vec![]);
    nodes[1].close();
    assert_eq!(watch.changed().await.unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(nodes[1].get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Closed);
}

/// A node that dies after its commit tells nobody; the others find out by themselves.
#[tokio::test]
async fn a_change_that_nobody_tells_is_found() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let catalog = open(&url).await.unwrap();
    let (client, io) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    let mut watch = catalog.watch(b"quiet".to_vec());
    for round in 0..3u8 {
        let insert = "INSERT INTO stoker_row VALUES ($1, '', 1)";
        client.execute(insert, &[&[b"quiet".as_slice(), &[round]].concat()]).await.unwrap();
        while catalog.range(Range::prefix(b"quiet", 10)).await.unwrap().rows.len() <= usize::from(round) {
            soon("a change that nobody told", watch.changed()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let catalog = Arc::new(open(&url).await.unwrap());
    let rounds = if full() { 100 } else { 8 };
    let mut tasks = JoinSet::new();
    for task in 0..64u32 {
        let catalog = Arc::clone(&catalog);
        tasks.spawn(async move {
            for round in 0..rounds {
                let key = format!("file/{task}/{round}");
                let publish = Commit::new()
                    .absent(key.clone())
                    .put(key.clone(), vec![7; 300])
                    .put(format!("dirty/{}/{key}", task % 8), "")
                    .add(format!("volume/{}", task % 8), 1);
                done(&*catalog, publish).await;
                let row = get(&*catalog, key.as_bytes()).await.unwrap();
                let clean =
                    Commit::new().seq(key.clone(), row.seq).delete(format!("dirty/{}/{key}", task % 8));
                done(&*catalog, clean).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(catalog.range(Range::prefix(b"dirty/", 10)).await.unwrap().rows, []);
    for volume in 0..8 {
        let count = value(&*catalog, format!("volume/{volume}").as_bytes()).await.unwrap();
        assert_eq!(i64::from_le_bytes(count.try_into().unwrap()), 8 * i64::from(rounds));
    }
    eprintln!("sixty-four clients: {} conflicts in {} commits", catalog.conflicts(), 128 * rounds);
}

/// One who writes a row of its own, again and again, whatever happens to the server.
pub struct Owner {
    pub key: Vec<u8>,
    /// What the row must hold now, as far as anybody told.
    pub round: u64,
    pub unknown: u64,
}

impl Owner {
    /// Writes the next round. Nobody else writes this row, so if the check fails, then a commit that was
    /// read as not done was done later.
    pub async fn step(&mut self, catalog: &dyn Catalog) {
        let commit = match self.round {
            0 => Commit::new().absent(self.key.clone()),
            round => Commit::new().value(self.key.clone(), round.to_le_bytes()),
        };
        let next = self.round + 1;
        match catalog.commit(commit.put(self.key.clone(), next.to_le_bytes())).await {
            Ok(Outcome::Done { .. }) => self.round = next,
            Ok(Outcome::Failed { .. }) => panic!("{:?}: {} was overtaken", self.key, self.round),
            Err(error) if error.kind == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(20)).await
            }
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
                self.unknown += 1;
                let found = self.read(catalog).await;
                assert!(
                    found == self.round || found == next,
                    "{found} after {} was acknowledged",
                    self.round
                );
                self.round = found;
            }
        }
    }

    /// Reads until there is an answer.
    pub async fn read(&self, catalog: &dyn Catalog) -> u64 {
        soon("an answer", self.ask(catalog)).await
    }

    async fn ask(&self, catalog: &dyn Catalog) -> u64 {
        loop {
            match catalog.get(&[&self.key]).await {
                Ok(rows) => {
                    let row = rows.into_iter().next().unwrap();
                    return row.map_or(0, |row| u64::from_le_bytes(row.value.try_into().unwrap()));
                }
                Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_acknowledged() {
    let Some(mut server) = Server::start(&[]) else { return };
    let url = server.url("public");
    drop(server.client("public").await);
    let catalog = Arc::new(open(&url).await.unwrap());
    assert_eq!(catalog.standby_warning().await.unwrap(), None);
    let stop = Arc::new(AtomicBool::new(false));
    let steps = Arc::new(AtomicU64::new(0));
    let mut owners = JoinSet::new();
    for task in 0..24u8 {
        let (catalog, stop, steps) = (Arc::clone(&catalog), Arc::clone(&stop), Arc::clone(&steps));
        owners.spawn(async move {
            let mut owner = Owner { key: vec![task], round: 0, unknown: 0 };
            while !stop.load(Ordering::Relaxed) {
                let before = owner.round;
                owner.step(&*catalog).await;
                steps.fetch_add(owner.round - before, Ordering::Relaxed);
            }
            owner
        });
    }
    let mut numbers = JoinSet::new();
    for _ in 0..2 {
        let (catalog, stop) = (Arc::clone(&catalog), Arc::clone(&stop));
        numbers.spawn(async move {
            let mut highest = 0;
            while !stop.load(Ordering::Relaxed) {
                match catalog.seq().await {
                    Ok(seq) => {
                        assert!(seq >= highest, "the catalog went back from {highest} to {seq}");
                        highest = seq;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
    }
    let kills = if full() { 12 } else { 2 };
    for kill in 1..=kills {
        soon("progress", async {
            while steps.load(Ordering::Relaxed) < kill * 300 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.resume();
            server
        })
        .await
        .unwrap();
    }
    soon("progress after the last kill", async {
        while steps.load(Ordering::Relaxed) < (kills + 1) * 300 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    let mut unknown = 0;
    while let Some(owner) = owners.join_next().await {
        let owner = owner.unwrap();
        assert_eq!(owner.read(&*catalog).await, owner.round);
        unknown += owner.unknown;
    }
    while let Some(reader) = numbers.join_next().await {
        reader.unwrap();
    }
    eprintln!("{kills} kills, {unknown} unknown outcomes, {} commits", steps.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_server_that_could_lose_commits_is_named() {
    let Some(server) = server::shared() else { return };
    let catalog = open(&server.fresh().await).await.unwrap();
    let words = catalog.standby_warning().await.unwrap().unwrap();
    assert!(words.contains("fsync is off") && !words.contains("standby"), "{words}");

    let Some(server) = Server::start(&["synchronous_commit=off"]) else { return };
    drop(server.client("public").await);
    let catalog = open(&server.url("public")).await.unwrap();
    let words = catalog.standby_warning().await.unwrap().unwrap();
    assert!(words.contains("synchronous_commit is off") && !words.contains("standbys"), "{words}");
    let mut standby = server.program("pg_receivewal");
    let mut standby = standby
        .args(["-U", "stoker", "-D"])
        .arg(&server.folder)
        .arg("-h")
        .arg(&server.folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    soon("the standby is seen", async {
        while !catalog
            .standby_warning()
            .await
            .unwrap()
            .unwrap()
            .contains("none of the 1 standbys is synchronous")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    standby.kill().unwrap();
    standby.wait().unwrap();
}

/// Stopped and started again, the server serves the same catalog object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_found_again() {
    let Some(mut server) = Server::start(&["fsync=off"]) else { return };
    drop(server.client("public").await);
    let options = PostgresOptions { patience: Duration::from_millis(100), ..patient() };
    let catalog = Postgres::open_with(&server.url("public"), CLUSTER, &options).await.unwrap();
    let seq = done(&catalog, Commit::new().put("a", "1")).await;
    let mut watch = catalog.watch(b"a".to_vec());
    server = tokio::task::spawn_blocking(move || {
        server.stop();
        server
    })
    .await
    .unwrap();
    assert_eq!(catalog.get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Unavailable);
    let error = catalog.commit(Commit::new().put("a", "2")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "nothing was sent: {error}");
    server.resume();
    let other = server.client("public").await;
    let update = "UPDATE stoker_row SET value = 'x'";
    other.batch_execute(update).await.unwrap();
    soon("a wake-up after the restart", watch.changed()).await.unwrap();
    let row = soon("an answer after the restart", async {
        loop {
            if let Ok(rows) = catalog.get(&[b"a"]).await {
                return rows.into_iter().next().unwrap().unwrap();
            }
        }
    })
    .await;
    assert_eq!((row.value.as_slice(), row.seq), (b"x".as_slice(), seq));
    assert!(done(&catalog, Commit::new().put("a", "2")).await > seq);
}
