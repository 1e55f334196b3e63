//! A catalog that counts what it is asked, so that "this costs no catalog operation" can be shown and not only said.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Instrument as _;

use crate::error::Result;
use crate::kv::{BoxFuture, Catalog, Commit, Health, Outcome, Page, Range, Row, Snapshot, Watch};

/// How often a catalog was asked.
#[derive(Debug, Default)]
pub struct Calls {
    /// Reads: of rows by key, of pages, of the clock and of the last sequence number.
    pub reads: AtomicU64,
    /// Commits, whatever became of them.
    pub commits: AtomicU64,
}

/// Hands every call on, and counts it.
pub struct Counted {
    inner: Arc<dyn Catalog>,
    calls: Arc<Calls>,
}

impl Counted {
    /// Counts the calls to `inner`.
    pub fn new(inner: Arc<dyn Catalog>) -> Counted {
        Counted { inner, calls: Arc::default() }
    }

    /// The counts.
    pub fn calls(&self) -> Arc<Calls> {
        self.calls.clone()
    }

    fn reads(&self) -> &dyn Catalog {
        self.calls.reads.fetch_add(1, Ordering::Relaxed);
        &*self.inner
    }
}

impl Catalog for Counted {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        self.reads().get(keys)
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        self.reads().range(range)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        self.calls.commits.fetch_add(1, Ordering::Relaxed);
        let span = tracing::debug_span!(
            target: "stoker::trace",
            "catalog commit",
            checks = commit.checks.len(),
            writes = commit.writes.len(),
        );
        let committed = self.inner.commit(commit);
        if span.is_disabled() { committed } else { Box::pin(committed.instrument(span)) }
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.inner.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        self.reads().seq()
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        self.reads().now_ms()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        self.reads().snapshot()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }
}
