//! A catalog in memory, for simulations and tests: it never waits, and its clock moves only when told to,
//! unless it was asked for one that runs.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::apply::{self, Rows, RowsMut};
use super::changes::Changes;
use super::watches::Watches;
use crate::error::{CatalogError, Result};
use crate::kv::{self, BoxFuture, Catalog, Commit, Outcome, Page, Range, Row, Snapshot, Watch};

/// Where the clock starts: late enough that times before it can be told.
const NOW_MS_START: u64 = 1_700_000_000_000;

/// A catalog in memory. Every call is done when it returns; nothing survives the process.
#[derive(Debug)]
pub struct Memory {
    state: Mutex<State>,
    watches: Watches,
}

#[derive(Debug)]
struct State {
    rows: Table,
    seq: u64,
    now_ms: u64,
    /// Since when the clock runs by itself; none: it does not.
    runs_since: Option<Instant>,
    closed: bool,
}

impl State {
    fn now_ms(&self) -> u64 {
        self.now_ms + self.runs_since.map_or(0, |since| since.elapsed().as_millis() as u64)
    }
}

type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

impl Memory {
    /// An empty catalog.
    pub fn new() -> Memory {
        let state =
            State { rows: Table::new(), seq: 0, now_ms: NOW_MS_START, runs_since: None, closed: false };
        Memory { state: Mutex::new(state), watches: Watches::new() }
    }

    /// An empty catalog whose clock runs, for nodes that wait for it.
    #[expect(clippy::disallowed_methods, reason = "this machine's clock is the clock of such a catalog")]
    pub fn with_running_clock() -> Memory {
        let memory = Memory::new();
        memory.lock().runs_since = Some(Instant::now());
        memory
    }

    /// Moves the clock forward.
    pub fn advance_ms(&self, ms: u64) {
        let mut state = self.lock();
        state.now_ms = state.now_ms.saturating_add(ms);
    }

    /// Ends every watch; calls fail from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.watches.close();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of a caller leaves no half-done change behind: sums are resolved before the first write.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.closed { Err(CatalogError::closed()) } else { Ok(state) }
    }

    fn rows(&self, keys: &[&[u8]]) -> Result<Vec<Option<Row>>> {
        kv::keys_validate(keys)?;
        let state = self.open()?;
        let found = |key: &&[u8]| state.rows.get_key_value(*key).map(row);
        Ok(keys.iter().map(found).collect())
    }

    fn page(&self, range: &Range) -> Result<Page> {
        range.validate()?;
        let state = self.open()?;
        let end = match &range.end {
            Some(end) if *end <= range.start => return Ok(Page::default()),
            Some(end) => Bound::Excluded(end.as_slice()),
            None => Bound::Unbounded,
        };
        let rows = state.rows.range::<[u8], _>((Bound::Included(range.start.as_slice()), end));
        match range.reverse {
            false => apply::page(rows.map(|pair| Ok(row(pair))), range.limit),
            true => apply::page(rows.rev().map(|pair| Ok(row(pair))), range.limit),
        }
    }

    fn run(&self, commit: &Commit) -> Result<Outcome> {
        commit.validate()?;
        let mut changes = Changes::new(&commit.writes)?;
        let mut state = self.open()?;
        if let Some(check) = apply::check_failed(&state.rows, &commit.checks)? {
            return Ok(Outcome::Failed { check });
        }
        if commit.writes.is_empty() {
            return Ok(Outcome::Done { seq: state.seq });
        }
        apply::sums_resolve(&state.rows, &mut changes)?;
        let seq = state.seq + 1;
        apply::change_all(&mut state.rows, &changes, seq)?;
        state.seq = seq;
        drop(state);
        self.watches.wake(&commit.writes);
        Ok(Outcome::Done { seq })
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Catalog for Memory {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(async move { self.rows(keys) })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move { self.page(&range) })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move { self.run(&commit) })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.watches.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(ready(self.open().map(|state| state.seq)))
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(ready(self.open().map(|state| state.now_ms())))
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        let state = self.open().map(|state| {
            let held = State {
                rows: state.rows.clone(),
                seq: state.seq,
                now_ms: state.now_ms(),
                runs_since: None,
                closed: false,
            };
            let held = Memory { state: Mutex::new(held), watches: Watches::new() };
            Box::new(held) as Box<dyn Snapshot>
        });
        Box::pin(ready(state))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

/// A copy that nobody changes.
impl Snapshot for Memory {
    fn seq(&self) -> u64 {
        self.lock().seq
    }

    fn page<'a>(&'a self, after: Option<&'a [u8]>) -> BoxFuture<'a, Result<Page>> {
        Box::pin(ready(Memory::page(self, &kv::snapshot_range(after))))
    }
}

fn row((key, (seq, value)): (&Vec<u8>, &(u64, Vec<u8>))) -> Row {
    Row { key: key.clone(), value: value.clone(), seq: *seq }
}

impl Rows for Table {
    fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T> {
        Ok(read(self.get(key).map(|(seq, value)| (*seq, value.as_slice()))))
    }

    fn count(&self, start: &[u8], end: &[u8], stop: usize) -> Result<usize> {
        if start >= end {
            return Ok(0);
        }
        let rows = self.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        Ok(rows.take(stop).count())
    }

    fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128> {
        if start >= end {
            return Ok(0);
        }
        let rows = self.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        Ok(rows.map(|(_, (_, value))| apply::counted(value)).sum())
    }
}

impl RowsMut for Table {
    fn put(&mut self, key: &[u8], value: &[u8], seq: u64) -> Result<()> {
        self.insert(key.to_vec(), (seq, value.to_vec()));
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.remove(key);
        Ok(())
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        let gone = self.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
        let gone: Vec<Vec<u8>> = gone.map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| drop(self.remove(key)));
        Ok(())
    }
}
