//! Writes that find too few nodes and go on with the lake (`when_alone = lake`), and nodes that die in the middle of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{BoxFuture, Catalog, Commit, Outcome, Page, Range, Row, Watch, Write};
use stoker_node::Node;
use stoker_store::{
    Attributes, Condition, DrainState, ErrorKind, Finish, Store, VolumePolicy, WhenAlone, WriteRequest,
};
use tokio::sync::Notify;

fn policy() -> VolumePolicy {
    VolumePolicy { when_alone: WhenAlone::Lake, ..lazy() }
}

/// Tables that say that something is left to do: intents, attempts, tombstones.
async fn left(cluster: &Cluster) -> [usize; 3] {
    [cluster.rows(b"i").await, cluster.rows(b"a").await, cluster.rows(b"t").await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_peer_the_lake_has_it_before_it_is_acknowledged() {
    let mut cluster = Cluster::new(2, policy()).await;
    let old = pattern(1, 300_000);
    put(cluster.node(0), "f", &old).await;
    cluster.node(0).drain("data", b"f").await.unwrap();
    drained(cluster.node(0), "f").await;
    let lost = cluster.lose(1);
    // One request, many parts, nothing at all.
    let (small, large) = (pattern(2, 300_000), pattern(3, 20 << 20));
    for (name, bytes) in [("f", &small[..]), ("large", &large), ("empty", b"")] {
        let receipt = put(cluster.node(0), name, bytes).await;
        assert_eq!((receipt.copies, &receipt.drain), (1, &DrainState::Dirty), "{name}");
        let at = format!(".stoker-alone/{}", receipt.version);
        assert!(receipt.lake.as_ref().is_some_and(|lake| lake.ends_with(&at)), "{receipt:?}");
        let object = cluster.lake.objects()[at.as_bytes()].clone();
        assert!(object.body == bytes, "{name}");
        assert_eq!(receipt.lake_etag, Some(object.etag), "{name}");
        assert!(get(cluster.node(0), name).await.unwrap() == bytes, "{name}");
    }
    assert_eq!(counter(cluster.node(0), "alone_publishes_total").await, 3.0);
    assert_eq!(names(cluster.node(0), "", None).await, ["empty", "f", "large"]);
    // What was there is replaced by the drain, not before.
    assert!(cluster.lake.objects()[&b"f"[..]].body == old);
    for (name, bytes) in [("f", &small[..]), ("large", &large), ("empty", b"")] {
        cluster.node(0).drain("data", name.as_bytes()).await.unwrap();
        drained(cluster.node(0), name).await;
        assert!(cluster.lake.objects()[name.as_bytes()].body == bytes, "{name}");
        assert!(get(cluster.node(0), name).await.unwrap() == bytes, "{name}");
    }
    // The one that did not answer might have had the old one open.
    cluster.heal(1, lost);
    cluster.until("only the names are left", async || cluster.lake.objects().len() == 3).await;
    cluster.until("nothing is left to do", async || left(&cluster).await == [0; 3]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_node_that_was_alone() {
    let mut cluster = Cluster::new(2, policy()).await;
    let bytes = pattern(4, 300_000);
    stop(&mut cluster, 1).await;
    put(cluster.node(0), "f", &bytes).await;
    let lost = cluster.lose(0);
    cluster.start(1).await;
    assert!(cluster.node(1).members().declare_down(lost.id(), std::time::Duration::ZERO).await.unwrap());
    assert!(get(cluster.node(1), "f").await.unwrap() == bytes);
    let prefix = stoker_schema::rows::keys::dirty_of(lost.id());
    cluster.until("nothing counts on the lost node", async || cluster.rows(&prefix).await == 0).await;
    cluster.node(1).drain("data", b"f").await.unwrap();
    drained(cluster.node(1), "f").await;
    assert!(get(cluster.node(1), "f").await.unwrap() == bytes);
    assert!(cluster.lake.objects()[&b"f"[..]].body == bytes);
    lost.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_goes_before_it_is_drained_leaves_nothing() {
    let mut cluster = Cluster::new(2, policy()).await;
    cluster.lose(1);
    put(cluster.node(0), "f", b"one").await;
    put(cluster.node(0), "f", b"two").await;
    assert_eq!(cluster.lake.objects().len(), 2);
    delete(cluster.node(0), "f").await.unwrap();
    cluster.until("the lake is empty", async || cluster.lake.objects().is_empty()).await;
    cluster.until("nothing is left to do", async || left(&cluster).await == [0; 3]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_peer_and_lake_a_write_is_refused_and_undone() {
    let mut cluster = Cluster::new(2, policy()).await;
    put(cluster.node(0), "f", b"before").await;
    cluster.lose(1);
    cluster.lake.refuse_all(true);
    let refused = put_if(cluster.node(0), "data", "f", b"after", Condition::default()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable, "{refused}");
    assert_eq!(get(cluster.node(0), "f").await.unwrap(), b"before");
    cluster.lake.refuse_all(false);
    cluster.until("nothing is left to do", async || left(&cluster).await == [0; 3]).await;
    assert!(cluster.lake.objects().is_empty());
    // The lake is back, and so is the way.
    put(cluster.node(0), "f", b"after").await;
    assert_eq!(get(cluster.node(0), "f").await.unwrap(), b"after");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_and_parts_are_refused_all_the_same() {
    let mut cluster = Cluster::new(2, policy()).await;
    put(cluster.node(0), "f", b"one").await;
    cluster.lose(1);
    let node = cluster.node(0);
    let request = WriteRequest { append: true, ..WriteRequest::default() };
    let mut writer = node.create("data", &key("f"), request).await.unwrap();
    write(&mut writer, b"two").await.unwrap();
    assert_eq!(writer.finish(Finish::default()).await.unwrap_err().kind, ErrorKind::Unavailable);
    let upload = node.upload_create("data", &key("u"), Attributes::default(), None).await.unwrap();
    let mut writer = node.upload_part("data", &key("u"), &upload.upload, 1, None).await.unwrap();
    write(&mut writer, b"part").await.unwrap();
    assert_eq!(writer.finish(Finish::default()).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(get(node, "f").await.unwrap(), b"one");
    assert!(cluster.lake.objects().is_empty());
    cluster.stop().await;
}

/// A catalog that stops at the commit which ends an intent.
struct Gate {
    inner: Arc<Memory>,
    before: AtomicBool,
    after: AtomicBool,
    reached: Notify,
}

impl Catalog for Gate {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, stoker_catalog::Result<Vec<Option<Row>>>> {
        self.inner.get(keys)
    }

    fn range(&self, range: Range) -> BoxFuture<'_, stoker_catalog::Result<Page>> {
        self.inner.range(range)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, stoker_catalog::Result<Outcome>> {
        let ends = commit.writes.iter().any(|write| matches!(write, Write::Delete(key) if key[0] == b'i'));
        Box::pin(async move {
            if ends && self.before.load(Ordering::SeqCst) {
                self.reached.notify_one();
                std::future::pending::<()>().await;
            }
            let outcome = self.inner.commit(commit).await;
            if ends && self.after.load(Ordering::SeqCst) {
                self.reached.notify_one();
                std::future::pending::<()>().await;
            }
            outcome
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.inner.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, stoker_catalog::Result<u64>> {
        self.inner.seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, stoker_catalog::Result<u64>> {
        self.inner.now_ms()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// What a node dies before.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Death {
    /// The intent is there, the lake has nothing.
    Put,
    /// The lake has it, the catalog does not.
    Publish,
    /// The catalog has it, nobody was told.
    Ack,
}

async fn dies(death: Death) {
    let mut cluster = Cluster::new(2, policy()).await;
    put(cluster.node(0), "f", b"before").await;
    let gate = Arc::new(Gate {
        inner: cluster.catalog.clone(),
        before: AtomicBool::new(death == Death::Publish),
        after: AtomicBool::new(death == Death::Ack),
        reached: Notify::new(),
    });
    cluster.given = gate.clone();
    stop(&mut cluster, 0).await;
    let doomed = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    cluster.start_on(0, doomed.handle()).await;
    cluster.lose(1);
    cluster.lake.hang_all(death == Death::Put);
    let node = cluster.node(0).clone();
    doomed.spawn(async move { put(&node, "f", b"after").await });
    match death {
        Death::Put => {
            cluster.until("the claim is there", async || cluster.rows(b"a").await == 1).await;
            assert_eq!(cluster.rows(b"i").await, 1);
        }
        _ => gate.reached.notified().await,
    }
    let there = usize::from(death != Death::Put);
    assert_eq!(cluster.lake.objects().len(), there);
    drop(cluster.lose(0));
    doomed.shutdown_background();
    cluster.lake.hang_all(false);
    cluster.given = cluster.catalog.clone();
    cluster.start(0).await;
    let expected: &[u8] = if death == Death::Ack { b"after" } else { b"before" };
    assert_eq!(get(cluster.node(0), "f").await.unwrap(), expected, "{death:?}");
    if death != Death::Ack {
        cluster.until("the lake is empty", async || cluster.lake.objects().is_empty()).await;
        cluster.until("nothing is left to do", async || left(&cluster).await == [0; 3]).await;
        assert_eq!(get(cluster.node(0), "f").await.unwrap(), expected);
    }
    cluster.node(0).drain("data", b"f").await.unwrap();
    drained(cluster.node(0), "f").await;
    cluster.until("only the name is left", async || cluster.lake.objects().len() == 1).await;
    assert!(cluster.lake.objects()[&b"f"[..]].body == expected);
    cluster.until("nothing is left to do", async || left(&cluster).await == [0; 3]).await;
    cluster.stop().await;
}

async fn stop(cluster: &mut Cluster, at: usize) {
    let node: Arc<Node> = cluster.lose(at);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_before_the_put_has_written_nothing() {
    dies(Death::Put).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_before_the_publish_is_undone() {
    dies(Death::Publish).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_before_the_acknowledgement_has_published() {
    dies(Death::Ack).await;
}
