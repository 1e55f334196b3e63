//! The catalog as nodes reach it: over a network that takes time, with outages, and with commits whose answer is lost.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stoker_catalog::CatalogError;
use stoker_catalog::engine::Memory;
use stoker_catalog::kv::{BoxFuture, Catalog, Check, Commit, Outcome, Page, Range, Row, Watch, Write};
use tokio::sync::watch;

use super::invariants::copies_count::{self, Watcher};
use super::machine::EPOCH_MS;
use super::mutations::Mutation;
use super::trace::Trace;
use crate::rng::Rng;

type Result<T> = std::result::Result<T, CatalogError>;

/// What is wrong with the catalog.
#[derive(Clone, Copy, Default, Debug)]
pub struct CatalogFaults {
    /// It answers nobody.
    pub is_down: bool,
    /// Every call takes up to so long.
    pub slow_ms: usize,
    /// Percent of commits whose answer is lost; half of them were done.
    pub ambiguous_percent: u64,
    /// It is so many commits behind what it acknowledged, as after an old backup was put back.
    pub behind: u64,
}

/// The catalog of the cluster, for one node of it.
#[derive(Clone)]
pub struct SimCatalog(Arc<Inner>);

struct Inner {
    memory: Memory,
    trace: Trace,
    mutation: Option<Mutation>,
    state: Mutex<State>,
    watcher: Mutex<Watcher>,
}

struct State {
    faults: CatalogFaults,
    rng: Rng,
    /// A sender for each watch: those of one sender are woken in an order that chance decides.
    watches: Vec<(Vec<u8>, watch::Sender<u64>)>,
}

impl SimCatalog {
    /// An empty catalog.
    pub fn new(mutation: Option<Mutation>, trace: Trace, rng: Rng) -> SimCatalog {
        let state = State { faults: CatalogFaults::default(), rng, watches: Vec::new() };
        let memory = Memory::new();
        let (state, watcher) = (Mutex::new(state), Mutex::default());
        SimCatalog(Arc::new(Inner { memory, trace, mutation, state, watcher }))
    }

    /// Who sees every commit.
    pub fn watcher(&self) -> MutexGuard<'_, Watcher> {
        self.0.watcher.lock().unwrap()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// What is wrong from now on.
    pub fn set_faults(&self, faults: CatalogFaults) {
        self.state().faults = faults;
    }

    /// Rows as they are, without any fault.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    async fn travel(&self) -> Result<()> {
        let delay_ms = {
            let state = &mut *self.state();
            if state.faults.is_down {
                return Err(CatalogError::unavailable("simulated: the catalog does not answer"));
            }
            let slow_ms = state.faults.slow_ms;
            if state.rng.percent(80) && slow_ms == 0 { 0 } else { state.rng.below(3 + slow_ms) }
        };
        if delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(delay_ms as u64)).await;
        }
        Ok(())
    }

    async fn call<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.travel().await?;
        let answer = work.await;
        self.travel().await?;
        answer
    }

    async fn commit_there(&self, mut commit: Commit) -> Result<Outcome> {
        self.travel().await?;
        let unchecked = self.0.mutation.map_or(&b""[..], Mutation::unchecked);
        commit.checks.retain(|check| !unchecked.contains(&table(check)));
        let unwritten = self.0.mutation.map_or(&b""[..], Mutation::unwritten);
        let is_kept = |write: &Write| match write {
            Write::Put(key, _) => !key.first().is_some_and(|table| unwritten.contains(table)),
            _ => true,
        };
        commit.writes.retain(is_kept);
        let (is_lost, is_done) = {
            let state = &mut *self.state();
            let percent = state.faults.ambiguous_percent;
            (percent > 0 && state.rng.percent(percent), state.rng.percent(50))
        };
        if is_lost && !is_done {
            self.0.trace.note(format_args!("catalog: a commit is lost"));
            if self.0.mutation == Some(Mutation::BelieveLostCommits) {
                return Ok(Outcome::Done { seq: self.0.memory.seq().await? });
            }
            return Err(CatalogError::unknown("simulated: the connection broke"));
        }
        let outcome = self.0.memory.commit(commit.clone()).await;
        let first = commit.writes.first().map(|write| match write {
            Write::Put(key, _) | Write::Delete(key) | Write::Add(key, _) => key.first().copied(),
            Write::DeleteRange(start, _) => start.first().copied(),
        });
        let table = first.flatten().map_or('-', char::from);
        self.0.trace.note(format_args!("catalog: {table} {} writes: {outcome:?}", commit.writes.len()));
        for write in &commit.writes {
            self.0.trace.detail(|| match write {
                Write::Put(key, _) => format!("+ {}", key.escape_ascii()),
                Write::Add(key, _) => format!("# {}", key.escape_ascii()),
                Write::Delete(key) => format!("- {}", key.escape_ascii()),
                Write::DeleteRange(start, _) => format!("- {}..", start.escape_ascii()),
            });
        }
        if matches!(outcome, Ok(Outcome::Done { .. })) {
            let fresh = self.watcher().fresh(&commit.writes);
            for file in fresh {
                let broken = copies_count::see(&self.0.memory, &file).await;
                self.watcher().note(broken);
            }
            self.wake(&commit.writes);
        }
        if is_lost {
            return Err(CatalogError::unknown("simulated: the answer is lost"));
        }
        // An answer that meets an outage is lost as well.
        self.travel().await.map_err(|fault| CatalogError::unknown(fault.message))?;
        outcome
    }

    fn wake(&self, writes: &[Write]) {
        let mut state = self.state();
        state.watches.retain(|(_, sender)| !sender.is_closed());
        for (prefix, sender) in &state.watches {
            let concerns = |write: &Write| match write {
                Write::Put(key, _) | Write::Delete(key) | Write::Add(key, _) => key.starts_with(prefix),
                Write::DeleteRange(start, end) => {
                    start.starts_with(prefix) || (start <= prefix && prefix < end)
                }
            };
            if writes.iter().any(concerns) {
                sender.send_modify(|changes| *changes += 1);
            }
        }
    }
}

/// The table that a check looks at.
fn table(check: &Check) -> u8 {
    let key = match check {
        Check::Absent(key) | Check::Present(key) | Check::Seq(key, _) | Check::Value(key, _) => key,
        Check::AtMost { start, .. } | Check::SumAtMost { start, .. } => start,
    };
    key.first().copied().unwrap_or_default()
}

impl Catalog for SimCatalog {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(self.call(self.0.memory.get(keys)))
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        let unseen = self.0.mutation.map_or(&b""[..], Mutation::unseen);
        if range.start.first().is_some_and(|table| unseen.contains(table)) {
            return Box::pin(async { Ok(Page::default()) });
        }
        Box::pin(self.call(self.0.memory.range(range)))
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        let this = self.clone();
        // What was sent arrives, whatever becomes of the sender.
        let sent = tokio::spawn(async move { this.commit_there(commit).await });
        Box::pin(async move { sent.await.unwrap_or_else(|_| Err(CatalogError::closed())) })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        let (sender, receiver) = watch::channel(0);
        self.state().watches.push((prefix, sender));
        Watch::new(receiver)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        let behind = self.state().faults.behind;
        Box::pin(async move { Ok(self.call(self.0.memory.seq()).await?.saturating_sub(behind)) })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.travel().await?;
            Ok(EPOCH_MS + self.0.trace.now_ms())
        })
    }

    fn describe(&self) -> String {
        "simulated".into()
    }
}
