//! The interface of a catalog: an ordered map of bytes with atomic, checked commits.
//!
//! Every engine keeps the same promises, and the same suite of tests holds each of them to these promises:
//! commits are serializable, an acknowledged commit is durable and seen by every later read, and a watch
//! never misses a change. What the rows mean is not known here.

use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::error::{CatalogError, Result};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 2 << 10;
/// Longest value: a full chunk list and some room for what goes with it.
pub const VALUE_BYTES_MAX: usize = (64 << 10) + (4 << 10);
/// Most writes of one commit.
pub const COMMIT_WRITES_MAX: usize = 50_000;
/// Most checks of one commit.
pub const COMMIT_CHECKS_MAX: usize = 50_000;
/// Most bytes of keys and values of one commit, checks and writes together.
pub const COMMIT_BYTES_MAX: usize = 8 << 20;
/// Most keys of one [`Catalog::get`].
pub const GET_KEYS_MAX: usize = 16_384;
/// Most rows that a [`Check::AtMost`] may allow, since the check counts them.
pub const AT_MOST_MAX: usize = 100_000;
/// A page ends once its keys and values reach this many bytes.
pub const PAGE_BYTES: usize = 1 << 20;

/// A future on the heap, so that [`Catalog`] can be a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its key.
    #[serde(with = "crate::wire::whole")]
    pub key: Vec<u8>,
    /// Its value.
    #[serde(with = "crate::wire::whole")]
    pub value: Vec<u8>,
    /// The commit that wrote it last.
    pub seq: u64,
}

/// Rows in the order that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// More rows lie in the range; the next page starts after the last row.
    pub more: bool,
}

/// The rows with `start <= key < end`, at most `limit` of them and at most about [`PAGE_BYTES`] (but at least
/// one row).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The lowest key; empty for the first row of all.
    pub start: Vec<u8>,
    /// The key to stop before; `None` for the last row of all.
    pub end: Option<Vec<u8>>,
    /// Most rows of the page; not zero.
    pub limit: usize,
    /// From the end of the range down.
    pub reverse: bool,
}

/// What must hold before a commit's writes for any of them to happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// No row has this key.
    Absent(#[serde(with = "crate::wire::whole")] Vec<u8>),
    /// A row has this key.
    Present(#[serde(with = "crate::wire::whole")] Vec<u8>),
    /// The row exists and was last written by this commit.
    Seq(#[serde(with = "crate::wire::whole")] Vec<u8>, u64),
    /// The row exists with this value.
    Value(#[serde(with = "crate::wire::whole")] Vec<u8>, #[serde(with = "crate::wire::whole")] Vec<u8>),
    /// At most `max` rows lie in `start..end`.
    AtMost {
        /// The lowest key.
        #[serde(with = "crate::wire::whole")]
        start: Vec<u8>,
        /// The key to stop before.
        #[serde(with = "crate::wire::whole")]
        end: Vec<u8>,
        /// How many rows are allowed.
        max: usize,
    },
    /// The counters in `start..end`, which share the name `start`, are at most `max` together; none there is 0.
    ///
    /// Exact against every commit with such a check of the same `start`. What is added to them by a commit without one may be seen late, so
    /// whoever wants a limit to hold checks it with everything that adds, and need not with what takes away.
    SumAtMost {
        /// The lowest key.
        start: Vec<u8>,
        /// The key to stop before.
        end: Vec<u8>,
        /// How much they may be.
        max: i64,
    },
}

/// One change. The changes of a commit happen in order, so of two to the same key the later one wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Sets the value of a row.
    Put(#[serde(with = "crate::wire::whole")] Vec<u8>, #[serde(with = "crate::wire::whole")] Vec<u8>),
    /// Removes a row; one that is not there is fine.
    Delete(#[serde(with = "crate::wire::whole")] Vec<u8>),
    /// Removes every row in `start..end`.
    DeleteRange(#[serde(with = "crate::wire::whole")] Vec<u8>, #[serde(with = "crate::wire::whole")] Vec<u8>),
    /// Adds to a little-endian i64 value; a missing row is 0. Never conflicts by itself.
    ///
    /// A value of another length, or a sum that an i64 cannot hold, makes the whole commit fail with
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid). Several to one key count as their sum.
    /// One that is wrong whatever is stored fails before the checks, one that is wrong for the stored value
    /// after them.
    Add(#[serde(with = "crate::wire::whole")] Vec<u8>, i64),
}

/// All checks hold, then all writes happen, or none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Commit {
    /// What must hold; they see the state before the writes.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, COMMIT_CHECKS_MAX>")]
    pub checks: Vec<Check>,
    /// What then happens, in this order.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, COMMIT_WRITES_MAX>")]
    pub writes: Vec<Write>,
}

/// How a commit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub enum Outcome {
    /// Every write happened and is durable.
    Done {
        /// The sequence number of this commit. One without writes takes none; it gets one of an earlier
        /// commit, the highest that this catalog knows to be durable.
        seq: u64,
    },
    /// Nothing happened.
    Failed {
        /// The index of the first check that did not hold.
        check: usize,
    },
}

/// What a catalog is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Everything.
    Good,
    /// Reads; commits are refused until what is said is cured, and go on by themselves then.
    ReadOnly(String),
    /// Reads; nothing is acknowledged as long as too few of its standbys answer.
    Stalled,
    /// Nothing, until it is opened again.
    Failed(String),
}

/// An ordered map of bytes with atomic, checked commits.
pub trait Catalog: Send + Sync + 'static {
    /// The rows of these keys, in their order, out of one consistent snapshot.
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>>;

    /// A page of rows out of one consistent snapshot.
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>>;

    /// If all checks hold, does all writes, atomically, durable when this returns.
    ///
    /// The sequence number is greater than that of every commit that was acknowledged before this one began.
    /// A commit without writes only validates. Dropping the future does not take the commit back.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>>;

    /// A watch that wakes when something under the prefix may have changed after it was made.
    ///
    /// It may wake without reason and never misses: make the watch, read, wait, read again.
    fn watch(&self, prefix: Vec<u8>) -> Watch;

    /// A number that no acknowledged commit is above.
    fn seq(&self) -> BoxFuture<'_, Result<u64>>;

    /// Milliseconds since the epoch by the catalog's clock, the one clock that all nodes share.
    fn now_ms(&self) -> BoxFuture<'_, Result<u64>>;

    /// One state that holds every commit acknowledged so far, to be read page by page while others go on.
    ///
    /// Only a catalog that has its rows at hand gives one: on another node the answer is `Invalid`.
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        let message = "this node does not keep the catalog, so it has no copy of it; ask the node that does";
        Box::pin(std::future::ready(Err(CatalogError::invalid(message))))
    }

    /// Which engine this is and where it keeps its rows, for people; holds no password.
    fn describe(&self) -> String;

    /// Whether it can be read and written now, as far as this process can tell without asking anybody.
    fn health(&self) -> Health {
        Health::Good
    }
}

/// One state of a catalog; see [`Catalog::snapshot`].
pub trait Snapshot: Send + Sync + 'static {
    /// The last commit that is surely in it.
    fn seq(&self) -> u64;

    /// The rows behind this key, in order, about [`PAGE_BYTES`] of them.
    fn page<'a>(&'a self, after: Option<&'a [u8]>) -> BoxFuture<'a, Result<Page>>;
}

/// Most rows of a page of a snapshot.
const SNAPSHOT_ROWS: usize = 8_192;

/// The range of a page of a snapshot.
pub(crate) fn snapshot_range(after: Option<&[u8]>) -> Range {
    let all = Range { start: Vec::new(), end: None, limit: SNAPSHOT_ROWS, reverse: false };
    match after {
        Some(after) => all.after(after),
        None => all,
    }
}

/// Wakes when something under a prefix may have changed; see [`Catalog::watch`].
#[derive(Debug)]
pub struct Watch {
    changes: watch::Receiver<u64>,
}

impl Watch {
    /// A watch over a counter that the engine raises with each change.
    pub fn new(changes: watch::Receiver<u64>) -> Watch {
        Watch { changes }
    }

    /// Waits for a change since the last return of this call, or since the watch was made.
    ///
    /// Safe to drop and call again. Fails with `Closed` when the catalog is closed.
    pub async fn changed(&mut self) -> Result<()> {
        self.changes.changed().await.map_err(|_| CatalogError::closed())
    }

    /// Whether [`changed`](Watch::changed) would return at once.
    pub fn is_changed(&self) -> bool {
        self.changes.has_changed().unwrap_or(true)
    }
}

impl Range {
    /// Every key that starts with this prefix, in order.
    pub fn prefix(prefix: &[u8], limit: usize) -> Range {
        Range { start: prefix.to_vec(), end: prefix_end(prefix), limit, reverse: false }
    }

    /// The keys of `start..end`, in order.
    pub fn between(start: &[u8], end: &[u8], limit: usize) -> Range {
        Range { start: start.to_vec(), end: Some(end.to_vec()), limit, reverse: false }
    }

    /// The same rows from the end down.
    #[must_use]
    pub fn reversed(mut self) -> Range {
        self.reverse = true;
        self
    }

    /// The same range, behind a page that ended with this key.
    #[must_use]
    pub fn after(mut self, key: &[u8]) -> Range {
        if self.reverse {
            self.end = Some(key.to_vec());
        } else {
            self.start = successor(key);
        }
        self
    }

    /// Fails if the range breaks a limit.
    pub fn validate(&self) -> Result<()> {
        if self.limit == 0 {
            return Err(CatalogError::invalid("a range needs a limit above zero"));
        }
        bound_validate(&self.start)?;
        self.end.as_deref().map_or(Ok(()), bound_validate)
    }
}

/// The key to stop before when reading every key that starts with `prefix`; `None` if there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX)? + 1;
    let mut end = prefix[..kept].to_vec();
    end[kept - 1] += 1;
    Some(end)
}

/// The lowest key above `key`.
pub fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

impl Commit {
    /// An empty commit.
    pub fn new() -> Commit {
        Commit::default()
    }

    /// Adds a check.
    #[must_use]
    pub fn check(mut self, check: Check) -> Commit {
        self.checks.push(check);
        self
    }

    /// Adds a check that no row has this key.
    #[must_use]
    pub fn absent(self, key: impl Into<Vec<u8>>) -> Commit {
        self.check(Check::Absent(key.into()))
    }

    /// Adds a check that a row has this key.
    #[must_use]
    pub fn present(self, key: impl Into<Vec<u8>>) -> Commit {
        self.check(Check::Present(key.into()))
    }

    /// Adds a check that the row was last written by this commit.
    #[must_use]
    pub fn seq(self, key: impl Into<Vec<u8>>, seq: u64) -> Commit {
        self.check(Check::Seq(key.into(), seq))
    }

    /// Adds a check that the row has this value.
    #[must_use]
    pub fn value(self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Commit {
        self.check(Check::Value(key.into(), value.into()))
    }

    /// Adds a check that at most `max` rows lie in `start..end`.
    #[must_use]
    pub fn at_most(self, start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>, max: usize) -> Commit {
        self.check(Check::AtMost { start: start.into(), end: end.into(), max })
    }

    /// Adds a check that the counters in `start..end` are at most `max` together.
    #[must_use]
    pub fn sum_at_most(self, start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>, max: i64) -> Commit {
        self.check(Check::SumAtMost { start: start.into(), end: end.into(), max })
    }

    /// Adds a check that the row is as it was read: written by the same commit, or still missing.
    #[must_use]
    pub fn unchanged(self, key: impl Into<Vec<u8>>, read: Option<&Row>) -> Commit {
        match read {
            Some(row) => self.seq(key, row.seq),
            None => self.absent(key),
        }
    }

    /// Adds a change.
    #[must_use]
    pub fn write(mut self, write: Write) -> Commit {
        self.writes.push(write);
        self
    }

    /// Sets the value of a row.
    #[must_use]
    pub fn put(self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Commit {
        self.write(Write::Put(key.into(), value.into()))
    }

    /// Removes a row.
    #[must_use]
    pub fn delete(self, key: impl Into<Vec<u8>>) -> Commit {
        self.write(Write::Delete(key.into()))
    }

    /// Removes every row in `start..end`.
    #[must_use]
    pub fn delete_range(self, start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Commit {
        self.write(Write::DeleteRange(start.into(), end.into()))
    }

    /// Adds to a counter.
    #[must_use]
    pub fn add(self, key: impl Into<Vec<u8>>, delta: i64) -> Commit {
        self.write(Write::Add(key.into(), delta))
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        let checks: usize = self.checks.iter().map(Check::bytes).sum();
        let writes: usize = self.writes.iter().map(Write::bytes).sum();
        checks + writes
    }

    /// Fails if the commit breaks a limit; engines call it first.
    pub fn validate(&self) -> Result<()> {
        if self.writes.len() > COMMIT_WRITES_MAX || self.checks.len() > COMMIT_CHECKS_MAX {
            return Err(CatalogError::invalid(format!(
                "a commit of {} writes and {} checks; split it, the limits are {COMMIT_WRITES_MAX} and \
                 {COMMIT_CHECKS_MAX}",
                self.writes.len(),
                self.checks.len()
            )));
        }
        if self.bytes() > COMMIT_BYTES_MAX {
            return Err(CatalogError::invalid(format!(
                "a commit of {} bytes; split it, the limit is {COMMIT_BYTES_MAX}",
                self.bytes()
            )));
        }
        self.checks.iter().try_for_each(Check::validate)?;
        self.writes.iter().try_for_each(Write::validate)
    }
}

impl Check {
    fn bytes(&self) -> usize {
        match self {
            Check::Absent(key) | Check::Present(key) | Check::Seq(key, _) => key.len(),
            Check::Value(key, value) => key.len() + value.len(),
            Check::AtMost { start, end, .. } | Check::SumAtMost { start, end, .. } => start.len() + end.len(),
        }
    }

    fn validate(&self) -> Result<()> {
        match self {
            Check::Absent(key) | Check::Present(key) | Check::Seq(key, _) => key_validate(key),
            Check::Value(key, value) => key_validate(key).and_then(|()| value_validate(value)),
            Check::AtMost { start, end, max } => {
                if *max > AT_MOST_MAX {
                    return Err(CatalogError::invalid(format!(
                        "a check that counts up to {max} rows; the limit is {AT_MOST_MAX}"
                    )));
                }
                bound_validate(start).and_then(|()| bound_validate(end))
            }
            Check::SumAtMost { start, end, .. } => bound_validate(start).and_then(|()| bound_validate(end)),
        }
    }
}

impl Write {
    fn bytes(&self) -> usize {
        match self {
            Write::Put(key, value) => key.len() + value.len(),
            Write::Delete(key) => key.len(),
            Write::DeleteRange(start, end) => start.len() + end.len(),
            Write::Add(key, _) => key.len() + size_of::<i64>(),
        }
    }

    fn validate(&self) -> Result<()> {
        match self {
            Write::Put(key, value) => key_validate(key).and_then(|()| value_validate(value)),
            Write::Delete(key) | Write::Add(key, _) => key_validate(key),
            Write::DeleteRange(start, end) => bound_validate(start).and_then(|()| bound_validate(end)),
        }
    }
}

/// Fails if these are too many keys for one get, or one of them cannot be a key.
pub fn keys_validate(keys: &[&[u8]]) -> Result<()> {
    if keys.len() > GET_KEYS_MAX {
        return Err(CatalogError::invalid(format!(
            "a get of {} keys; split it, the limit is {GET_KEYS_MAX}",
            keys.len()
        )));
    }
    keys.iter().try_for_each(|key| key_validate(key))
}

fn key_validate(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(CatalogError::invalid("a key must not be empty"));
    }
    length_validate(key, KEY_BYTES_MAX)
}

/// A bound of a range may be empty and one byte longer than a key, for the successor of the longest one.
fn bound_validate(bound: &[u8]) -> Result<()> {
    length_validate(bound, KEY_BYTES_MAX + 1)
}

fn length_validate(key: &[u8], bytes_max: usize) -> Result<()> {
    if key.len() > bytes_max {
        return Err(CatalogError::invalid(format!("a key of {} bytes; the limit is {bytes_max}", key.len())));
    }
    Ok(())
}

fn value_validate(value: &[u8]) -> Result<()> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(CatalogError::invalid(format!(
            "a value of {} bytes; the limit is {VALUE_BYTES_MAX}",
            value.len()
        )));
    }
    Ok(())
}
