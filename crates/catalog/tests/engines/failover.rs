//! PostgreSQL that goes away while it is at work: lost connections and answers, and a standby that takes over. Calls wait,
//! and each commit is made once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use stoker_catalog::engine::{Postgres, PostgresOptions};
use stoker_catalog::{Catalog, Commit, ErrorKind, Outcome, Range};
use tokio::task::JoinSet;

use crate::fixture::{CLUSTER, all, done, full, get, patient, value};
use crate::postgres::{Owner, open, soon};
use crate::proxy::{Proxy, Trap};
use crate::server::{self, Server};

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
    let waiting = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)) AND pid IS DISTINCT FROM $2 LIMIT 1";
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

/// The same for commits that went together: nobody knows of any of them, and none is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commits_that_went_together_are_left_alone() {
    let Some(server) = server::shared() else { return };
    let url = server.fresh().await;
    let (proxy, through) = proxied(server, &url).await;
    let options = PostgresOptions { patience: Duration::from_millis(100), ..patient() };
    let catalog = Arc::new(Postgres::open_with(&through, CLUSTER, &options).await.unwrap());
    let commit = |key: String| {
        let catalog = Arc::clone(&catalog);
        tokio::spawn(async move { catalog.commit(Commit::new().put(key, 2u64.to_le_bytes())).await })
    };
    // What is behind the first holder keeps the lanes busy until the others have gathered.
    for lane in 0..4 {
        done(&*catalog, Commit::new().put(format!("first/{lane}"), "")).await;
    }
    let lanes = holder(&url).await;
    for lane in 0..4 {
        // The last of them may go with the others.
        drop(commit(format!("first/{lane}")));
    }
    stands_still(&url, &lanes, None).await;
    let (other, io) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(io);
    for n in 0..6 {
        let insert = "INSERT INTO stoker_row VALUES ($1, '', 1)";
        other.execute(insert, &[&format!("many/{n}").as_bytes()]).await.unwrap();
    }
    other.batch_execute("BEGIN; SELECT FROM stoker_row WHERE key >= 'many/' FOR UPDATE").await.unwrap();
    let many: Vec<_> = (0..6).map(|n| commit(format!("many/{n}"))).collect();
    lanes.batch_execute("ROLLBACK").await.unwrap();
    stands_still(&url, &other, None).await;
    proxy.close();
    for one in many {
        let kind = one.await.unwrap().unwrap_err().kind;
        assert!(matches!(kind, ErrorKind::Unknown | ErrorKind::Unavailable), "{kind:?}");
    }
    proxy.open();
    let found = async || -> Vec<Vec<u8>> {
        let rows = all(&*catalog, Range::prefix(b"many/", 10)).await;
        rows.into_iter().map(|row| row.value).collect()
    };
    // Whoever has read knows: what was not made by now never is.
    let read = found().await;
    assert_eq!(read, vec![Vec::<u8>::new(); 6]);
    other.batch_execute("ROLLBACK").await.unwrap();
    done(&*catalog, Commit::new().put("other", "")).await;
    assert_eq!(found().await, read);
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
