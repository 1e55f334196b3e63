//! The suite on PostgreSQL, and what a server adds: many nodes, lost connections, crashes.

use std::collections::BTreeMap;
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
use crate::proxy::{Proxy, Trap};
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
            sums_are_seen_by_checks, many_rows_in_any_order;
        snapshots: one_get_is_one_state, one_page_is_one_state, acknowledged_is_seen;
        watching: no_change_is_missed;
    );
}

/// Long enough that only something that never comes can take it.
const NEVER: Duration = Duration::from_secs(120);

async fn open(url: &str) -> stoker_catalog::Result<Postgres> {
    Postgres::open_with(url, CLUSTER, &patient()).await
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
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
struct Owner {
    key: Vec<u8>,
    /// What the row must hold now, as far as anybody told.
    round: u64,
    unknown: u64,
}

impl Owner {
    /// Writes the next round. Nobody else writes this row, so if the check fails, then a commit that was
    /// read as not done was done later.
    async fn step(&mut self, catalog: &dyn Catalog) {
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
    async fn read(&self, catalog: &dyn Catalog) -> u64 {
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

/// The server's address by way of a relay.
async fn proxied(server: &Server, url: &str) -> (Proxy, String) {
    let proxy = Proxy::start(&server.folder).await;
    let through = url.replace(&server.folder.display().to_string(), &proxy.folder().display().to_string());
    (proxy, through)
}

/// A client that holds every row, so that a commit that changes one stands still in the server.
async fn holder(url: &str) -> tokio_postgres::Client {
    let (client, io) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    client.batch_execute("BEGIN; SELECT FROM stoker_row FOR UPDATE").await.unwrap();
    client
}

/// Waits until a session stands behind the holder that is not this one, and tells which.
async fn stands_still(url: &str, holder: &tokio_postgres::Client, not: Option<i32>) -> i32 {
    let holding: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    // A transaction would see the same sessions again and again.
    let (client, io) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    let waiting =
        "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)) AND pid IS DISTINCT FROM $2";
    soon("a commit stands still", async {
        loop {
            if let Some(row) = client.query_opt(waiting, &[&holding, &not]).await.unwrap() {
                return row.get(0);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// Puts 1 into the row, and begins to put 2.
async fn begin(
    catalog: &Arc<Postgres>,
) -> impl FnOnce() -> tokio::task::JoinHandle<stoker_catalog::Result<Outcome>> {
    done(&**catalog, Commit::new().put("row", 1u64.to_le_bytes())).await;
    let catalog = Arc::clone(catalog);
    || tokio::spawn(async move { catalog.commit(Commit::new().put("row", 2u64.to_le_bytes())).await })
}

/// The network breaks while the server works on a commit: it is made once, by another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_connection_broke_is_made_once() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let (proxy, through) = proxied(server, &url).await;
    let catalog = Arc::new(open(&through).await.unwrap());
    let begin = begin(&catalog).await;
    let holder = holder(&url).await;
    let committing = begin();
    let first = stands_still(&url, &holder, None).await;
    proxy.cut();
    stands_still(&url, &holder, Some(first)).await;
    assert_eq!(get(&*catalog, b"row").await.unwrap().value, 1u64.to_le_bytes());
    holder.batch_execute("ROLLBACK").await.unwrap();
    let Outcome::Done { seq } = committing.await.unwrap().unwrap() else { panic!("it has no checks") };
    let row = get(&*catalog, b"row").await.unwrap();
    assert_eq!((row.seq, row.value), (seq, 2u64.to_le_bytes().to_vec()));
}

/// Nobody can find out in time what became of a commit: what is read afterwards stays true.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_leaves_no_commit_behind() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let (proxy, through) = proxied(server, &url).await;
    let options = PostgresOptions { patience: Duration::from_millis(100), ..patient() };
    let catalog = Arc::new(Postgres::open_with(&through, CLUSTER, &options).await.unwrap());
    let begin = begin(&catalog).await;
    let holder = holder(&url).await;
    let committing = begin();
    stands_still(&url, &holder, None).await;
    proxy.close();
    assert_eq!(committing.await.unwrap().unwrap_err().kind, ErrorKind::Unknown);
    let error = catalog.commit(Commit::new().put("other", "")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "nothing was sent: {error}");
    proxy.open();
    let read = get(&*catalog, b"row").await.unwrap();
    assert_eq!(read.value, 1u64.to_le_bytes());
    holder.batch_execute("ROLLBACK").await.unwrap();
    // If the first commit were still alive it would now get the row, and this check would fail.
    let seq = done(&*catalog, Commit::new().seq("row", read.seq).put("row", 3u64.to_le_bytes())).await;
    assert_eq!(get(&*catalog, b"row").await.unwrap().seq, seq);
}

/// The connection is cut before the server gets the commit, or after it has made it: in both cases it is made once and its
/// caller is told what happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_made_once() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let (proxy, through) = proxied(server, &url).await;
    let catalog = open(&through).await.unwrap();
    let rounds = if full() { 200 } else { 20 };
    for round in 1..=rounds {
        let key = format!("marked/{round}");
        let marked = key.clone().into_bytes();
        proxy.set(if round % 2 == 0 { Trap::Asked(marked) } else { Trap::Answered(marked) });
        // The check would fail if it were made a second time.
        let commit = Commit::new().absent(key.clone()).put(key.clone(), "").add("count", 1);
        let seq = done(&catalog, commit).await;
        assert!(proxy.is_sprung());
        assert_eq!(get(&catalog, key.as_bytes()).await.unwrap().seq, seq);
        proxy.set(Trap::Answered(b"marked/no".to_vec()));
        let failed = Commit::new().present("a").absent(key).put("marked/no", "");
        assert_eq!(catalog.commit(failed).await.unwrap(), Outcome::Failed { check: 0 });
    }
    let count = value(&catalog, b"count").await.unwrap();
    assert_eq!(i64::from_le_bytes(count.try_into().unwrap()), rounds);
}

/// A host that does not answer, one that refuses, a standby and the server in one address: whoever takes changes is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_that_takes_changes_is_found() {
    let Some(server) = Server::start(&["fsync=off"]) else { return };
    drop(server.client("public").await);
    let standby = server.standby();
    drop(standby.client("public").await);
    let silent = tempfile::tempdir().unwrap();
    let _listener = tokio::net::UnixListener::bind(silent.path().join(".s.PGSQL.5432")).unwrap();
    let hosts = [silent.path(), std::path::Path::new("/nonexistent"), &standby.folder, &server.folder];
    let hosts: Vec<String> = hosts.iter().map(|host| host.display().to_string()).collect();
    let url = format!("host={} user=stoker dbname=postgres", hosts.join(","));
    let catalog = open(&url).await.unwrap();
    done(&catalog, Commit::new().put("a", "1")).await;
    assert_eq!(value(&catalog, b"a").await.unwrap(), b"1");
    drop(catalog);
    let url = format!("host={} user=stoker dbname=postgres connect_timeout=1", hosts[..3].join(","));
    let error = open(&url).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("does not allow writes"), "{error}");
}

/// The server is killed under load and its standby takes over: every call waits for it and succeeds, and all that was
/// acknowledged is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_fails_no_call() {
    let Some(mut server) = Server::start(&["synchronous_standby_names=*"]) else { return };
    drop(server.client("public").await);
    let standby = server.standby();
    drop(server.client("public").await);
    let folders = [server.folder.display().to_string(), standby.folder.display().to_string()];
    let url = format!("host={} user=stoker dbname=postgres", folders.join(","));
    let catalog = Arc::new(open(&url).await.unwrap());
    assert_eq!(catalog.standby_warning().await.unwrap(), None);
    let (stop, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let waiting = Arc::new(AtomicU64::new(0));
    let mut owners = JoinSet::new();
    for task in 0..32u8 {
        let (catalog, stop, steps) = (Arc::clone(&catalog), Arc::clone(&stop), Arc::clone(&steps));
        let waiting = Arc::clone(&waiting);
        owners.spawn(async move {
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                waiting.fetch_add(1, Ordering::Relaxed);
                let commit = match round {
                    0 => Commit::new().absent([task]),
                    _ => Commit::new().value([task], round.to_le_bytes()),
                };
                round += 1;
                // Made twice, or not at all, and the check of the next one fails.
                done(&*catalog, commit.put([task], round.to_le_bytes()).add("sum", 1)).await;
                assert_eq!(value(&*catalog, &[task]).await.unwrap(), round.to_le_bytes());
                catalog.range(Range::prefix(b"", 3)).await.unwrap();
                catalog.seq().await.unwrap();
                steps.fetch_add(1, Ordering::Relaxed);
                waiting.fetch_sub(1, Ordering::Relaxed);
            }
            round
        });
    }
    let reached = async |count: u64| {
        soon("progress", async {
            while steps.load(Ordering::Relaxed) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    };
    reached(300).await;
    let (server, standby) = tokio::task::spawn_blocking(move || {
        server.kill();
        (server, standby)
    })
    .await
    .unwrap();
    let before = steps.load(Ordering::Relaxed);
    soon("all wait for the server", async {
        while waiting.load(Ordering::Relaxed) < 32 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let standby = tokio::task::spawn_blocking(move || {
        standby.promote();
        standby
    })
    .await
    .unwrap();
    reached(before + 600).await;
    stop.store(true, Ordering::Relaxed);
    let mut sum = 0;
    while let Some(owner) = owners.join_next().await {
        sum += owner.unwrap();
    }
    let counted = value(&*catalog, b"sum").await.unwrap();
    assert_eq!(u64::from_le_bytes(counted.try_into().unwrap()), sum);
    drop((server, standby));
}

/// A database of the release before: programs of both use it side by side, then it is switched, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_schema_1_is_used_and_then_switched() {
    const OLD: &str = "
        SELECT stoker_commit_1('{3}', ARRAY[$1::bytea], ARRAY[$2::bytea], '{0}', '{}', '{}', '{}', ARRAY[$1::bytea],
            ARRAY[$3::bytea], '{}', '{}', true)";
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    // Tests share a server; sessions of other tests must not look like those of older programs.
    let url = format!("{url} application_name=switched");
    let old = async || {
        let (client, io) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(io);
        client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
        client
    };
    let keeper = old().await;
    keeper.batch_execute(include_str!("schema-1.sql")).await.unwrap();
    let insert = "INSERT INTO stoker_meta (cluster, schema) VALUES ($1, 1)";
    keeper.execute(insert, &[&CLUSTER.0.as_slice()]).await.unwrap();
    let seed = "INSERT INTO stoker_row VALUES ('count', $1, nextval('stoker_seq'))";
    keeper.execute(seed, &[&0u64.to_le_bytes().as_slice()]).await.unwrap();

    let rounds = if full() { 300 } else { 40 };
    let parse = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut tasks: JoinSet<u64> = JoinSet::new();
    for _ in 0..3 {
        let catalog = open(&url).await.unwrap();
        tasks.spawn(async move {
            let mut won = 0;
            while won < rounds {
                let found = value(&catalog, b"count").await.unwrap();
                let next = (parse(&found) + 1).to_le_bytes();
                let commit = Commit::new().value("count", found).put("count", next);
                won += u64::from(matches!(catalog.commit(commit).await.unwrap(), Outcome::Done { .. }));
            }
            // Lives until all are done, so that the new ones switch while others of them are at work.
            won
        });
        let client = old().await;
        tasks.spawn(async move {
            let mut won = 0;
            while won < rounds {
                let row = client.query_one("SELECT value FROM stoker_row WHERE key = 'count'", &[]).await;
                let Ok(row) = row else { continue };
                let found: Vec<u8> = row.get(0);
                let next = (parse(&found) + 1).to_le_bytes();
                let done = client.query_one(OLD, &[&b"count".as_slice(), &found, &next.as_slice()]).await;
                match done {
                    Ok(row) => won += u64::from(row.get::<_, i64>(0) > 0),
                    Err(error) => assert_eq!(error.code().unwrap().code(), "40001", "{error}"),
                }
            }
            won
        });
    }
    let mut won = 0;
    while let Some(task) = tasks.join_next().await {
        won += task.unwrap();
    }
    let catalog = open(&url).await.unwrap();
    assert_eq!(parse(&value(&catalog, b"count").await.unwrap()), won);
    let schema = async || -> i32 {
        let client = old().await;
        client.query_one("SELECT schema FROM stoker_meta", &[]).await.unwrap().get(0)
    };
    assert_eq!(schema().await, 1, "a session of the older program is there");
    let found = 7u64.to_le_bytes();
    let begun = keeper.query_one(OLD, &[&b"no".as_slice(), &found.as_slice(), &found.as_slice()]).await;
    assert_eq!(begun.unwrap().get::<_, i64>(0), -1);
    drop(keeper);
    let late = {
        let others = format!("{} application_name=late", url.replace(" application_name=switched", ""));
        let (client, io) = tokio_postgres::connect(&others, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(io);
        client.batch_execute("SET default_transaction_isolation = 'serializable'").await.unwrap();
        client
    };
    soon("the switch", async {
        while late.query_one("SELECT schema FROM stoker_meta", &[]).await.unwrap().get::<_, i32>(0) == 1 {
            done(&catalog, Commit::new().add("n", 1)).await;
        }
    })
    .await;
    done(&catalog, Commit::new().add("n", 1)).await;
    // An older program that comes late is told, and changes nothing.
    let error = late.query_one(OLD, &[&b"no".as_slice(), &found.as_slice(), &found.as_slice()]).await;
    let error = error.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42883");
    assert_eq!(parse(&value(&catalog, b"count").await.unwrap()), won);
}

/// Connections break all the time under load; every owner still knows what its row holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaking_connections_lose_nothing_acknowledged() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let (proxy, through) = proxied(server, &url).await;
    let options = PostgresOptions { connections: 6, ..patient() };
    let catalog = Arc::new(Postgres::open_with(&through, CLUSTER, &options).await.unwrap());
    let cuts = if full() { 60 } else { 6 };
    let steps = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut owners = JoinSet::new();
    for task in 0..12u8 {
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
    for cut in 1..=cuts {
        soon("progress", async {
            while steps.load(Ordering::Relaxed) < cut * 40 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        proxy.cut();
    }
    stop.store(true, Ordering::Relaxed);
    let mut found = BTreeMap::new();
    while let Some(owner) = owners.join_next().await {
        let owner = owner.unwrap();
        found.insert(owner.key.clone(), (owner.round, owner.unknown));
        assert_eq!(owner.read(&*catalog).await, owner.round);
    }
    let unknown: u64 = found.values().map(|(_, unknown)| unknown).sum();
    assert_eq!(unknown, 0, "each was found out");
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
