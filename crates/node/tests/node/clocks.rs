//! Clocks that jump: nothing that was acknowledged is given up by a clock that nobody confirms.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::cluster::Cluster;
use crate::harness::*;
use stoker_catalog::Catalog;
use stoker_catalog::kv::{Commit, Outcome, Page, Range, Row, Watch};
use stoker_node::{GivenWorld, InWorld, Node, World};
use stoker_store::{
    BoxFuture, Condition, Finish, PartChoice, Receipt, SetId, SetRequest, SetState, Store, UploadId,
    VolumeOptions,
};

const DAY_MS: i64 = 24 * 3_600_000;

/// The machine, with a clock that is off by so many milliseconds.
#[derive(Default)]
struct Off(AtomicI64);

impl Off {
    fn by(&self, off_ms: i64) {
        self.0.store(off_ms, Ordering::SeqCst);
    }
}

impl World for Off {
    #[expect(clippy::disallowed_methods, reason = "the clock of the test")]
    fn now_ms(&self) -> u64 {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (real.as_millis() as u64).saturating_add_signed(self.0.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut state = std::collections::hash_map::RandomState::new();
        for piece in bytes.chunks_mut(8) {
            use std::hash::BuildHasher;
            piece.copy_from_slice(&state.hash_one(piece.len()).to_le_bytes()[..piece.len()]);
            state = std::collections::hash_map::RandomState::new();
        }
    }

    fn poll_alive(&self, _: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(true)
    }
}

/// A catalog that a node keeps, by whose clock it goes.
struct KeptBy(Arc<dyn Catalog>, Arc<Off>);

impl Catalog for KeptBy {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, stoker_catalog::Result<Vec<Option<Row>>>> {
        self.0.get(keys)
    }

    fn range(&self, range: Range) -> BoxFuture<'_, stoker_catalog::Result<Page>> {
        self.0.range(range)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, stoker_catalog::Result<Outcome>> {
        self.0.commit(commit)
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.0.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, stoker_catalog::Result<u64>> {
        self.0.seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, stoker_catalog::Result<u64>> {
        Box::pin(std::future::ready(Ok(self.1.now_ms())))
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// Nodes that do not run yet, each with a clock of its own; the first one keeps the catalog.
fn clocked(count: usize) -> (Cluster, Vec<Arc<Off>>) {
    let homes = (0..count).map(|_| Home::new(lazy())).collect();
    let mut cluster = Cluster::of(homes, &vec![""; count]);
    let clocks: Vec<Arc<Off>> = (0..count).map(|_| Arc::default()).collect();
    cluster.worlds = clocks.iter().map(|clock| GivenWorld(clock.clone())).collect();
    cluster.given = Arc::new(KeptBy(cluster.catalog.clone(), clocks[0].clone()));
    (cluster, clocks)
}

async fn restart(cluster: &mut Cluster, at: usize) {
    let node = cluster.lose(at);
    InWorld::new(&cluster.worlds[at], node.stop()).await;
    drop(node);
    cluster.start(at).await;
}

/// Begins an upload of `x` and sends a part.
async fn begin(node: &Node, bytes: &[u8]) -> (UploadId, Receipt) {
    let upload = node.upload_create("data", &key("x"), Default::default(), None).await.unwrap().upload;
    let mut writer = node.upload_part("data", &key("x"), &upload, 1, None).await.unwrap();
    write(&mut writer, bytes).await.unwrap();
    let part = writer.finish(Finish::default()).await.unwrap();
    (upload, part)
}

async fn open(home: &Home, world: &GivenWorld) -> Arc<Node> {
    let mut options = home.options();
    options.world = Some(world.clone());
    InWorld::new(world, Node::open(options)).await.unwrap()
}

/// Waits until the node has looked for what has expired, and says whether an upload is still there.
async fn is_kept(node: &Node) -> bool {
    for _ in 0..600 {
        let looked = counter(node, "expiry_rounds_total").await >= 1.0;
        let page = node.uploads("data", b"", None, 10).await.unwrap();
        if looked || page.uploads.is_empty() {
            return !page.uploads.is_empty();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("nobody looks for what has expired");
}

async fn complete(node: &Node, upload: &UploadId, etag: String) -> stoker_store::Result<Receipt> {
    let parts = vec![PartChoice { number: 1, etag, checksum: None }];
    node.upload_complete("data", &key("x"), upload, parts, Condition::default(), Finish::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_days_ahead_at_a_start_aborts_no_upload() {
    let home = Home::new(eager());
    let clock: Arc<Off> = Arc::default();
    let world = GivenWorld(clock.clone());
    let node = open(&home, &world).await;
    node.volume_create("data", Default::default()).await.unwrap();
    let bytes = pattern(1, 100_000);
    let (upload, part) = begin(&node, &bytes).await;
    // Twice: what was believed before a restart is believed after it.
    let mut node = Some(node);
    for time in 1..=2 {
        node.take().unwrap().stop().await;
        clock.by(time * 8 * DAY_MS);
        let again = open(&home, &world).await;
        assert!(is_kept(&again).await, "the upload was aborted");
        node = Some(again);
    }
    let node = node.unwrap();
    complete(&node, &upload, part.etag).await.unwrap();
    assert!(get(&node, "x").await.unwrap() == bytes);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_of_the_catalog_does_not_confirm_itself() {
    let (mut cluster, clocks) = clocked(2);
    cluster.start_all().await;
    let begin = async |node: &Node, target: &str, deadline_s: u32| -> SetId {
        let (owner, deadline_s) = ("job".to_owned(), Some(deadline_s));
        let request = SetRequest { target: key(target), owner, shards: 2, deadline_s };
        node.set_begin("data", request).await.unwrap().set
    };
    let is_late = async |cluster: &Cluster, set: SetId, name: &str| {
        let node = cluster.node(1);
        cluster
            .until("a deadline passes", async || set_add(node, set, 0, name, b"late").await.is_err())
            .await;
    };
    // The second node is new, and believes no clock before the first one has confirmed its own.
    let first = begin(cluster.node(1), "first/", 1).await;
    is_late(&cluster, first, "first/a").await;
    let long = begin(cluster.node(0), "long/", 3_600).await;
    let short = begin(cluster.node(0), "short/", 4).await;
    set_add(cluster.node(0), long, 0, "long/a", b"acknowledged").await.unwrap();
    clocks[0].by(8 * DAY_MS);
    restart(&mut cluster, 1).await;
    // By what the second node saw pass, the short one is over: by then it has asked for other clocks.
    let node = cluster.node(1);
    is_late(&cluster, short, "short/a").await;
    assert_eq!(node.set_status("data", long).await.unwrap().info.state, SetState::Open);
    assert_eq!(begin(node, "long/", 3_600).await, long, "whoever joins does not close it");
    set_add(node, long, 1, "long/b", b"in time").await.unwrap();
    node.set_publish("data", long).await.unwrap();
    assert!(get(node, "long/a").await.unwrap() == b"acknowledged");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_whose_clock_is_days_ahead_aborts_no_upload() {
    let (mut cluster, clocks) = clocked(2);
    cluster.start(0).await;
    cluster.node(0).volume_create("data", VolumeOptions::default()).await.unwrap();
    let bytes = pattern(2, 100_000);
    let (upload, part) = begin(cluster.node(0), &bytes).await;
    clocks[1].by(8 * DAY_MS);
    cluster.start(1).await;
    assert!(is_kept(cluster.node(1)).await, "the upload was aborted");
    complete(cluster.node(0), &upload, part.etag).await.unwrap();
    assert!(get(cluster.node(0), "x").await.unwrap() == bytes);
    cluster.stop().await;
}

/// One whose clock fell behind while it ran, and one that never had another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_begun_by_a_clock_that_is_behind_is_kept_when_it_is_right_again() {
    for from_the_start in [false, true] {
        let (mut cluster, clocks) = clocked(2);
        clocks[1].by(if from_the_start { -8 * DAY_MS } else { 0 });
        cluster.start_all().await;
        clocks[1].by(-8 * DAY_MS);
        let bytes = pattern(3, 100_000);
        let (world, node) = (cluster.worlds[1].clone(), cluster.node(1).clone());
        let (upload, part) = InWorld::new(&world, begin(&node, &bytes)).await;
        drop(node);
        clocks[1].by(0);
        restart(&mut cluster, 0).await;
        assert!(is_kept(cluster.node(0)).await, "the upload was aborted");
        complete(cluster.node(1), &upload, part.etag).await.unwrap();
        assert!(get(cluster.node(1), "x").await.unwrap() == bytes);
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_is_begun_by_a_clock_that_is_behind_is_kept_when_it_is_right_again() {
    let (mut cluster, clocks) = clocked(1);
    cluster.start_all().await;
    let node = cluster.node(0);
    clocks[0].by(-8 * DAY_MS);
    let world = cluster.worlds[0].clone();
    let set = InWorld::new(&world, set_begin(node, "s/", 2)).await.unwrap().set;
    InWorld::new(&world, set_add(node, set, 0, "s/a", b"acknowledged")).await.unwrap();
    clocks[0].by(0);
    InWorld::new(&world, set_add(node, set, 1, "s/b", b"in time")).await.unwrap();
    InWorld::new(&world, node.set_publish("data", set)).await.unwrap();
    assert!(get(node, "s/a").await.unwrap() == b"acknowledged");
    cluster.stop().await;
}
