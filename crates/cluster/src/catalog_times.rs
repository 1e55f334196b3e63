//! How long the catalog takes, and how often it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_catalog::kv::{Catalog, Commit, Health, Outcome, Page, Range, Row, Snapshot, Watch};
use stoker_catalog::{BoxFuture, Calls, CatalogError, Counted, ErrorKind, Result};
use stoker_store::{Counter, Histogram};
use tokio::time::Instant;

use crate::pulse::Pulse;

/// How often this node asked the catalog, how long that took, and whether it answers.
pub struct CatalogTimes {
    calls: Arc<Calls>,
    reads: Histogram,
    commits: Histogram,
    failures: AtomicU64,
    conflicts: AtomicU64,
    /// Whether it answers.
    pub pulse: Pulse,
}

impl CatalogTimes {
    /// The same catalog, and what will be known of it.
    pub fn of(catalog: Arc<dyn Catalog>) -> (Arc<dyn Catalog>, Arc<CatalogTimes>) {
        let counted = Counted::new(catalog);
        let times = Arc::new(CatalogTimes {
            calls: counted.calls(),
            reads: Histogram::default(),
            commits: Histogram::default(),
            failures: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            pulse: Pulse::default(),
        });
        (Arc::new(Timed { inner: counted, times: times.clone() }), times)
    }

    /// The numbers of `/metrics`.
    pub fn list(&self) -> Vec<Counter> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let totals = [
            ("catalog_reads_total", "Reads that this node asked the catalog for.", &self.calls.reads),
            ("catalog_commits_total", "Commits that this node asked the catalog for.", &self.calls.commits),
            ("catalog_failures_total", "Questions that the catalog did not answer.", &self.failures),
            (
                "catalog_conflicts_total",
                "Commits that were refused because something had changed meanwhile.",
                &self.conflicts,
            ),
        ];
        let one = |(name, help, value): (&str, &str, &AtomicU64)| Counter::new(name, help, &[], load(value));
        let mut all: Vec<Counter> = totals.into_iter().map(one).collect();
        let help = "Time that the catalog took to answer.";
        all.extend(self.reads.list("catalog_seconds", help, &[("call", "read")]));
        all.extend(self.commits.list("catalog_seconds", help, &[("call", "commit")]));
        all
    }
}

/// Between two tries of a change that a catalog without its followers refuses.
const STALLED_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// Hands every call on, and looks at the clock before and after.
struct Timed {
    inner: Counted,
    times: Arc<CatalogTimes>,
}

impl Timed {
    fn read<'a, T: 'a>(&'a self, call: BoxFuture<'a, Result<T>>) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let begun = Instant::now();
            let answer = match self.waited(call, Call::Read).await {
                Ok(answer) => answer,
                Err(silent) => Err(CatalogError::unavailable(no_answer(silent))),
            };
            self.times.reads.note(begun.elapsed());
            add(&self.times.failures, u64::from(answer.is_err()));
            answer
        })
    }

    async fn commit_once(&self, commit: Commit) -> Result<Outcome> {
        match self.waited(self.inner.commit(commit), Call::Commit).await {
            Ok(outcome) => outcome,
            Err(silent) => Err(CatalogError::unknown(format!(
                "{}; the change may have been made, or may be made yet",
                no_answer(silent)
            ))),
        }
    }

    /// Waits for a call as long as whoever asked does, and notes whether the catalog answers.
    async fn waited<T>(
        &self,
        call: BoxFuture<'_, Result<T>>,
        kind: Call,
    ) -> std::result::Result<Result<T>, std::time::Duration> {
        let pulse = &self.times.pulse;
        let noted = async {
            let waiting = pulse.begin();
            let answer = call.await;
            let is_lost =
                |fault: &CatalogError| matches!(fault.kind, ErrorKind::Unavailable | ErrorKind::Unknown);
            match (&answer, kind) {
                (Err(fault), Call::Read) if is_lost(fault) => waiting.failed(&fault.message),
                (Err(fault), Call::Commit) if is_lost(fault) => waiting.refused(),
                _ => waiting.answered(),
            }
            answer
        };
        pulse.within_patience(noted).await
    }
}

/// What was asked.
#[derive(Clone, Copy)]
enum Call {
    Read,
    Commit,
}

fn no_answer(silent: std::time::Duration) -> String {
    format!("no answer for {} s", silent.as_secs())
}

impl Catalog for Timed {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        self.read(self.inner.get(keys))
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        self.read(self.inner.range(range))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            let begun = Instant::now();
            // A follower that crashed is back within seconds; who waits for an answer waits for that, too. Refused like this, nothing
            // was changed, so it can be asked for again.
            let outcome = match stoker_store::patience() {
                None => self.commit_once(commit).await,
                Some(limit) => loop {
                    let outcome = self.commit_once(commit.clone()).await;
                    let is_refused = matches!(&outcome, Err(fault) if fault.kind == ErrorKind::Unavailable);
                    let is_stalled = is_refused && self.inner.health() == Health::Stalled;
                    if !is_stalled || begun.elapsed() + STALLED_PAUSE >= limit {
                        break outcome;
                    }
                    tokio::time::sleep(STALLED_PAUSE).await;
                },
            };
            self.times.commits.note(begun.elapsed());
            match &outcome {
                Ok(Outcome::Done { .. }) => {}
                Ok(_) => add(&self.times.conflicts, 1),
                Err(_) => add(&self.times.failures, 1),
            }
            outcome
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.inner.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        self.read(self.inner.seq())
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        self.read(self.inner.now_ms())
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        self.inner.snapshot()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }
}
