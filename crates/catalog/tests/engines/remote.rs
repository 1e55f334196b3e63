//! The suite on a catalog that another node serves over bad ways, and what a change of the server adds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stoker_catalog::engine::{Embedded, Memory, PrimaryOptions};
use stoker_catalog::remote::{CatalogServer, RemoteCatalog, RemoteOptions};
use stoker_catalog::{BoxFuture, Catalog, Commit, Epoch, ErrorKind, Outcome, Range, Result, Wire};
use stoker_format::NodeId;

use crate::fixture::{self, CLUSTER, Dice, Fixture, all, done, get, small, value};
use crate::wires::Way;

/// Of this many calls one loses its request, one its answer, and one is late.
const TROUBLE: usize = 24;

const NODE: NodeId = NodeId([7; 16]);

fn patient() -> RemoteOptions {
    RemoteOptions { budget: Duration::from_secs(120), timeout: Duration::from_secs(60) }
}

fn short() -> RemoteOptions {
    RemoteOptions { budget: Duration::from_millis(300), timeout: Duration::from_millis(100) }
}

fn serve(catalog: Arc<dyn Catalog>, epoch: Epoch) -> Arc<CatalogServer> {
    Arc::new(CatalogServer::new(catalog, epoch, |_| {}))
}

fn primary(path: &Path) -> Arc<CatalogServer> {
    let catalog = Embedded::open_primary(path, CLUSTER, &small(), &PrimaryOptions::new(NODE)).unwrap();
    Arc::new(CatalogServer::embedded(Arc::new(catalog), Epoch::default(), |_| {}))
}

fn over_memory() -> Fixture {
    let way = Way::bad(serve(Arc::new(Memory::new()), Epoch::first(NODE)), TROUBLE, 1);
    let remote = RemoteCatalog::new(way, 1, &patient());
    Fixture { new_watch_sleeps: false, ..Fixture::new(Arc::new(remote), ()) }
}

fn over_embedded() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let way = Way::bad(primary(&folder.path().join("catalog")), TROUBLE, 2);
    let remote = RemoteCatalog::new(way, 2, &patient());
    Fixture { new_watch_sleeps: false, ..Fixture::new(Arc::new(remote), folder) }
}

mod memory {
    crate::conformance::conformance!(Some(super::over_memory()));
}

mod embedded {
    crate::conformance::conformance!(Some(super::over_embedded()));
}

/// Sends everything and loses the answers of commits until told to stop.
struct Deaf {
    way: Arc<Way>,
    calls: AtomicU64,
}

impl Wire for Deaf {
    fn call(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.way.call(request)
    }
}

/// A commit whose answer is lost with its server is done once, and whoever serves next says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_found_by_the_next_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog");
    let open = || Embedded::open_primary(&path, CLUSTER, &small(), &PrimaryOptions::new(NODE)).unwrap();
    let mut catalog = Arc::new(open());
    let server = |catalog: &Arc<Embedded>| {
        Arc::new(CatalogServer::embedded(Arc::clone(catalog), Epoch::default(), |_| {}))
    };
    let way = Way::new(server(&catalog));
    let deaf = Arc::new(Deaf { way: Arc::clone(&way), calls: AtomicU64::new(0) });
    let remote = Arc::new(RemoteCatalog::new(Arc::clone(&deaf) as Arc<dyn Wire>, 3, &patient()));
    let first = done(&*remote, Commit::new().put("first", "1")).await;
    for round in 1..=5i64 {
        way.answers_lost(true);
        let waiting = tokio::spawn({
            let remote = Arc::clone(&remote);
            async move { remote.commit(Commit::new().add("count", 1)).await }
        });
        while value(&*catalog, b"count").await != Some(round.to_le_bytes().to_vec()) {
            assert!(!waiting.is_finished(), "it gave up: {:?}", waiting.await);
            tokio::task::yield_now().await;
        }
        way.cut();
        catalog.close().await;
        catalog = Arc::new(open());
        way.lead_to(server(&catalog));
        way.answers_lost(false);
        let row = get(&*catalog, b"count").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), Outcome::Done { seq: row.seq });
        assert!(row.seq > first);
        assert_eq!(value(&*remote, b"count").await.unwrap(), round.to_le_bytes());
    }
    assert!(deaf.calls.load(Ordering::SeqCst) > 10);
}

/// A catalog that does not remember names makes no promise that it cannot keep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_leaves_it_unknown() {
    let catalog = Arc::new(Memory::new());
    let epoch = Epoch::first(NODE);
    let way = Way::new(serve(catalog.clone(), epoch));
    let remote = Arc::new(RemoteCatalog::new(way.clone(), 4, &patient()));
    done(&*remote, Commit::new().put("a", "1")).await;
    way.answers_lost(true);
    let waiting = tokio::spawn({
        let remote = Arc::clone(&remote);
        async move { remote.commit(Commit::new().add("count", 1)).await }
    });
    while value(&*catalog, b"count").await.is_none() || way.unheard() == 0 {
        assert!(!waiting.is_finished(), "it gave up: {:?}", waiting.await);
        tokio::task::yield_now().await;
    }
    way.lead_to(serve(catalog.clone(), epoch.restarted()));
    way.answers_lost(false);
    assert_eq!(waiting.await.unwrap().unwrap_err().kind, ErrorKind::Unknown);
    assert_eq!(value(&*catalog, b"count").await.unwrap(), 1i64.to_le_bytes());
    // What comes after is as good as ever.
    done(&*remote, Commit::new().add("count", 1)).await;
    assert_eq!(value(&*remote, b"count").await.unwrap(), 2i64.to_le_bytes());
}

#[tokio::test]
async fn a_spent_budget_tells_what_it_knows() {
    let catalog = Arc::new(Memory::new());
    let way = Way::new(serve(catalog.clone(), Epoch::first(NODE)));
    let remote = RemoteCatalog::new(way.clone(), 5, &short());
    done(&remote, Commit::new().put("a", "1")).await;
    way.answers_lost(true);
    let error = remote.commit(Commit::new().put("a", "2")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
    assert_eq!(remote.get(&[b"a"]).await.unwrap_err().kind, ErrorKind::Unavailable);
    way.cut();
    let fresh = RemoteCatalog::new(way.clone(), 6, &short());
    let error = fresh.commit(Commit::new().put("a", "3")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "nothing was ever sent: {error}");
    assert_eq!(value(&*catalog, b"a").await.unwrap(), b"2");
}

#[tokio::test]
async fn an_old_epoch_is_not_believed_and_stops() {
    let (old, new) = (Arc::new(Memory::new()), Arc::new(Memory::new()));
    done(&*old, Commit::new().put("who", "old")).await;
    done(&*new, Commit::new().put("who", "new")).await;
    let epoch = Epoch::first(NODE);
    let promoted = epoch.promoted(NodeId([1; 16]));
    let (fenced, fencing) = std::sync::mpsc::channel();
    let zombie = Arc::new(CatalogServer::new(old.clone(), epoch, move |by| fenced.send(by).unwrap()));
    let way = Way::new(zombie.clone());
    let remote = RemoteCatalog::new(way.clone(), 7, &short());
    assert_eq!(value(&remote, b"who").await.unwrap(), b"old");
    way.lead_to(serve(new.clone(), promoted));
    assert_eq!(value(&remote, b"who").await.unwrap(), b"new");
    assert_eq!(remote.seen(), promoted);

    way.lead_to(zombie.clone());
    assert_eq!(remote.get(&[b"who"]).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(remote.commit(Commit::new().put("who", "x")).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(fencing.try_recv(), Ok(promoted));
    assert_eq!(fencing.try_recv().unwrap_err(), std::sync::mpsc::TryRecvError::Disconnected);
    // Also for whoever did not hear of the promotion.
    let unaware = RemoteCatalog::new(way.clone(), 8, &short());
    assert_eq!(unaware.get(&[b"who"]).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(value(&*old, b"who").await.unwrap(), b"old");
}

/// A watch wakes for what happened while nobody polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_outlive_their_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog");
    let open =
        || Arc::new(Embedded::open_primary(&path, CLUSTER, &small(), &PrimaryOptions::new(NODE)).unwrap());
    let mut catalog = open();
    let way = Way::new(Arc::new(CatalogServer::embedded(catalog.clone(), Epoch::default(), |_| {})));
    let remote = RemoteCatalog::new(way.clone(), 9, &patient());
    let mut watch = remote.watch(b"dir/".to_vec());
    for round in 1..=4u32 {
        way.cut();
        done(&*catalog, Commit::new().put("dir/a", round.to_le_bytes())).await;
        catalog.close().await;
        catalog = open();
        way.lead_to(Arc::new(CatalogServer::embedded(catalog.clone(), Epoch::default(), |_| {})));
        while value(&remote, b"dir/a").await.unwrap() != round.to_le_bytes() {
            watch.changed().await.unwrap();
        }
    }
    let mut other = remote.watch(b"".to_vec());
    drop(remote);
    let ended = async {
        while other.changed().await.is_ok() {}
        while watch.changed().await.is_ok() {}
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("a dropped client ends its watches");
}

/// Keeps what is sent.
struct Recorder {
    way: Arc<Way>,
    requests: std::sync::Mutex<Vec<Vec<u8>>>,
    answers: std::sync::Mutex<Vec<Vec<u8>>>,
}

impl Wire for Recorder {
    fn call(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            self.requests.lock().unwrap().push(request.clone());
            let answer = self.way.call(request).await?;
            self.answers.lock().unwrap().push(answer.clone());
            Ok(answer)
        })
    }
}

/// Gives the same bytes as an answer to everything.
struct Parrot(Vec<u8>);

impl Wire for Parrot {
    fn call(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move { Ok(self.0.clone()) })
    }
}

/// Whatever bytes come, both sides answer with an error and go on.
#[tokio::test]
async fn bytes_of_strangers_are_refused() {
    let catalog = Arc::new(Memory::new());
    let server = serve(catalog.clone(), Epoch::first(NODE));
    let way = Way::new(server.clone());
    let recorder = Arc::new(Recorder { way, requests: Default::default(), answers: Default::default() });
    let remote = RemoteCatalog::new(recorder.clone(), 10, &short());
    done(&remote, Commit::new().absent("a").put("a", "1").add("n", 1).delete_range("x", "y")).await;
    all(&remote, Range::prefix(b"", 10)).await;
    remote.get(&[b"a", b"n", b"z"]).await.unwrap();
    remote.now_ms().await.unwrap();
    drop(remote);
    let rows = all(&*catalog, Range::prefix(b"", 10)).await;
    let (requests, answers) =
        (recorder.requests.lock().unwrap().clone(), recorder.answers.lock().unwrap().clone());
    assert!(requests.len() >= 4);
    let mut dice = Dice::new(11);
    let mut spoilt = |bytes: &Vec<u8>| {
        let mut bytes = bytes.clone();
        match dice.roll(3) {
            0 => bytes.truncate(dice.roll(bytes.len())),
            1 => bytes.extend((0..1 + dice.roll(9)).map(|_| dice.roll(256) as u8)),
            _ => {
                let at = dice.roll(bytes.len());
                bytes[at] ^= 1 + dice.roll(255) as u8;
            }
        }
        bytes
    };
    for round in 0..2000 {
        // Without those that fence the server or are good by chance: only their version is wrong.
        let mut request = spoilt(&requests[round % requests.len()]);
        if round % 2 == 0 && !request.is_empty() {
            request[0] = 200;
        }
        let fresh = serve(Arc::new(Memory::new()), Epoch::first(NODE));
        let answer = if round % 2 == 0 { server.answer(request).await } else { fresh.answer(request).await };
        assert!(!answer.is_empty());
    }
    for round in 0..200 {
        let answer = spoilt(&answers[round % answers.len()]);
        let options = RemoteOptions { budget: Duration::from_millis(1), ..short() };
        let remote = RemoteCatalog::new(Arc::new(Parrot(answer)), 12, &options);
        // An answer may be good by chance; it must not be taken for another kind.
        let _: Result<_> = remote.get(&[b"a"]).await;
        let _: Result<_> = remote.commit(Commit::new().put("a", "1")).await;
    }
    assert_eq!(all(&*catalog, Range::prefix(b"", 10)).await, rows);
    let remote = RemoteCatalog::new(Way::new(server), 13, &short());
    assert_eq!(fixture::value(&remote, b"a").await.unwrap(), b"1");
}
