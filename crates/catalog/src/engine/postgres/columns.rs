//! Commits as the arguments of the function that runs them.

use tokio_postgres::types::ToSql;

use super::locks::Locks;
use crate::engine::changes::{Change, Changes};
use crate::error::Result;
use crate::kv::{Check, Commit};

/// Columns instead of rows, because a function takes arrays. Items say which commit they are of, from 1.
#[derive(Default)]
pub(super) struct Columns<'c> {
    writing: Vec<bool>,
    lock_ids: Vec<i64>,
    lock_alone: Vec<bool>,
    check_commits: Vec<i32>,
    check_ats: Vec<i32>,
    check_kinds: Vec<i16>,
    check_keys: Vec<&'c [u8]>,
    check_others: Vec<&'c [u8]>,
    check_numbers: Vec<i64>,
    range_commits: Vec<i32>,
    range_starts: Vec<&'c [u8]>,
    range_ends: Vec<&'c [u8]>,
    delete_commits: Vec<i32>,
    delete_keys: Vec<&'c [u8]>,
    put_commits: Vec<i32>,
    put_keys: Vec<&'c [u8]>,
    put_values: Vec<std::borrow::Cow<'c, [u8]>>,
    add_commits: Vec<i32>,
    add_keys: Vec<&'c [u8]>,
    add_deltas: Vec<i64>,
}

impl<'c> Columns<'c> {
    /// Fails if a sum is not possible, as far as the commits alone can tell.
    pub(super) fn new(commits: impl IntoIterator<Item = &'c Commit>, locks: &Locks) -> Result<Columns<'c>> {
        let mut columns = Columns::default();
        (columns.lock_ids, columns.lock_alone) = locks.columns();
        for commit in commits {
            columns.writing.push(!commit.writes.is_empty());
            let of = i32::try_from(columns.writing.len()).expect("limited by BATCH_COMMITS_MAX");
            for (at, check) in (1..).zip(&commit.checks) {
                columns.check(of, at, check);
            }
            columns.changes(of, Changes::new(&commit.writes)?);
        }
        Ok(columns)
    }

    fn check(&mut self, of: i32, at: i32, check: &'c Check) {
        let (kind, key, other, number): (i16, &[u8], &[u8], i64) = match check {
            Check::Absent(key) => (0, key, &[], 0),
            Check::Present(key) => (1, key, &[], 0),
            // No row has a number that the database could not hold; -1 is one that no row has either.
            Check::Seq(key, seq) => (2, key, &[], i64::try_from(*seq).unwrap_or(-1)),
            Check::Value(key, value) => (3, key, value, 0),
            Check::AtMost { start, end, max } => {
                (4, start, end, i64::try_from(*max).expect("limited by AT_MOST_MAX"))
            }
            Check::SumAtMost { start, end, max } => (5, start, end, *max),
        };
        self.check_commits.push(of);
        self.check_ats.push(at);
        self.check_kinds.push(kind);
        self.check_keys.push(key);
        self.check_others.push(other);
        self.check_numbers.push(number);
    }

    fn changes(&mut self, of: i32, changes: Changes<'c>) {
        for (start, end) in changes.ranges {
            self.range_commits.push(of);
            self.range_starts.push(start);
            self.range_ends.push(end);
        }
        for (key, change) in changes.keys {
            match change {
                Change::Put(value) => {
                    self.put_commits.push(of);
                    self.put_keys.push(key);
                    self.put_values.push(value);
                }
                Change::Delete => {
                    self.delete_commits.push(of);
                    self.delete_keys.push(key);
                }
                Change::Add(delta) => {
                    self.add_commits.push(of);
                    self.add_keys.push(key);
                    self.add_deltas.push(delta);
                }
            }
        }
    }

    /// In the order of the function's parameters, behind lane and batch.
    pub(super) fn parameters<'p>(&'p self, lane: &'p i64, batch: &'p i64) -> [&'p (dyn ToSql + Sync); 22] {
        [
            lane,
            batch,
            &self.writing,
            &self.lock_ids,
            &self.lock_alone,
            &self.check_commits,
            &self.check_ats,
            &self.check_kinds,
            &self.check_keys,
            &self.check_others,
            &self.check_numbers,
            &self.range_commits,
            &self.range_starts,
            &self.range_ends,
            &self.delete_commits,
            &self.delete_keys,
            &self.put_commits,
            &self.put_keys,
            &self.put_values,
            &self.add_commits,
            &self.add_keys,
            &self.add_deltas,
        ]
    }
}
