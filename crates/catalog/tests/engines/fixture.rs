//! Fresh catalogs for tests, and what many tests do with one.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use stoker_catalog::engine::{Embedded, EmbeddedOptions, Memory, Postgres, PostgresOptions};
use stoker_catalog::kv::{BoxFuture, Page};
use stoker_catalog::{Catalog, CatalogError, Commit, ErrorKind, Outcome, Range, Row, Watch};
use stoker_format::ClusterId;

/// The cluster of the tests.
pub const CLUSTER: ClusterId = ClusterId([0xc1; 16]);

/// A fresh catalog and what must live as long.
pub struct Fixture {
    pub catalog: Arc<dyn Catalog>,
    /// Whether commits happen in the order of their numbers.
    pub seq_is_order: bool,
    /// Whether a watch that is new sleeps until something changes.
    pub new_watch_sleeps: bool,
    pub _keep: Box<dyn Any + Send + Sync>,
}

/// Whether the long variants of tests run.
pub fn full() -> bool {
    std::env::var_os("STOKER_FULL").is_some_and(|value| value == "1")
}

pub fn memory() -> Fixture {
    Fixture::new(Arc::new(Memory::new()), ())
}

pub fn embedded() -> Fixture {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let catalog = Embedded::open(&folder.path().join("catalog"), CLUSTER, &small()).expect("opens");
    Fixture::new(Arc::new(catalog), folder)
}

/// Options that do not take much memory.
pub fn small() -> EmbeddedOptions {
    EmbeddedOptions { cache_bytes: 8 << 20, reserve_bytes: 1 << 20, log_bytes: 64 << 10 }
}

/// Commits and expects every check to hold.
pub async fn done(catalog: &dyn Catalog, commit: Commit) -> u64 {
    match catalog.commit(commit).await.expect("commits") {
        Outcome::Done { seq } => seq,
        Outcome::Failed { check } => panic!("check {check} failed"),
    }
}

/// Commits and expects an error of this kind.
pub async fn refused(catalog: &dyn Catalog, commit: Commit, kind: ErrorKind) -> CatalogError {
    let error = catalog.commit(commit).await.expect_err("must be refused");
    assert_eq!(error.kind, kind, "{error}");
    error
}

/// One row.
pub async fn get(catalog: &dyn Catalog, key: &[u8]) -> Option<Row> {
    let mut rows = catalog.get(&[key]).await.expect("gets");
    assert_eq!(rows.len(), 1);
    rows.pop().flatten()
}

/// The value of one row.
pub async fn value(catalog: &dyn Catalog, key: &[u8]) -> Option<Vec<u8>> {
    get(catalog, key).await.map(|row| row.value)
}

/// Every row of a range, page by page.
pub async fn all(catalog: &dyn Catalog, mut range: Range) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let page = catalog.range(range.clone()).await.expect("reads a page");
        assert!(page.rows.len() <= range.limit);
        assert!(!page.more || !page.rows.is_empty(), "a page that promises more must not be empty");
        rows.extend(page.rows);
        if !page.more {
            return rows;
        }
        range = range.after(&rows.last().expect("a row").key);
    }
}

/// A small generator of numbers, so that a test can be repeated.
pub struct Dice(u64);

impl Fixture {
    pub fn new(catalog: Arc<dyn Catalog>, keep: impl Any + Send + Sync) -> Fixture {
        Fixture { catalog, seq_is_order: true, new_watch_sleeps: true, _keep: Box::new(keep) }
    }
}

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }
}

/// Options for a machine that has much else to do.
pub fn patient() -> PostgresOptions {
    PostgresOptions { timeout: Duration::from_secs(120), ..PostgresOptions::default() }
}

/// Several nodes on one database; each call goes to the next of them.
struct Nodes {
    nodes: Vec<Postgres>,
    turn: AtomicUsize,
}

impl Nodes {
    fn next(&self) -> &Postgres {
        &self.nodes[self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len()]
    }
}

impl Catalog for Nodes {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, stoker_catalog::Result<Vec<Option<Row>>>> {
        self.next().get(keys)
    }

    fn range(&self, range: Range) -> BoxFuture<'_, stoker_catalog::Result<Page>> {
        self.next().range(range)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, stoker_catalog::Result<Outcome>> {
        self.next().commit(commit)
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.next().watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, stoker_catalog::Result<u64>> {
        self.next().seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, stoker_catalog::Result<u64>> {
        self.next().now_ms()
    }

    fn describe(&self) -> String {
        self.next().describe()
    }
}

/// The same with three nodes; `None` if there is no server.
pub async fn postgres_nodes() -> Option<Fixture> {
    let url = crate::server::shared()?.fresh().await;
    let options = PostgresOptions { connections: 5, ..patient() };
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Postgres::open_with(&url, CLUSTER, &options).await.expect("opens"));
    }
    let nodes = Nodes { nodes, turn: AtomicUsize::new(0) };
    Some(Fixture { seq_is_order: false, new_watch_sleeps: false, ..Fixture::new(Arc::new(nodes), ()) })
}

/// A schema of its own on the server that all tests share; `None` if there is no server.
pub async fn postgres() -> Option<Fixture> {
    let url = crate::server::shared()?.fresh().await;
    let catalog = Postgres::open_with(&url, CLUSTER, &patient()).await.expect("opens");
    Some(Fixture { seq_is_order: false, ..Fixture::new(Arc::new(catalog), ()) })
}
