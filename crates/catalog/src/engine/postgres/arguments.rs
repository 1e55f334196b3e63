//! A commit as the arguments of the function that runs it.

use super::Parameters;
use crate::engine::changes::{Change, Changes};
use crate::error::Result;
use crate::kv::{Check, Commit};

/// Columns instead of rows, because a function takes arrays. Keys are sorted, so that two commits take their
/// locks in the same order.
pub(super) struct Arguments<'c> {
    check_kinds: Vec<i16>,
    check_keys: Vec<&'c [u8]>,
    check_others: Vec<&'c [u8]>,
    check_numbers: Vec<i64>,
    range_starts: Vec<&'c [u8]>,
    range_ends: Vec<&'c [u8]>,
    deletes: Vec<&'c [u8]>,
    put_keys: Vec<&'c [u8]>,
    put_values: Vec<Vec<u8>>,
    add_keys: Vec<&'c [u8]>,
    add_deltas: Vec<i64>,
    /// Also if its writes turn out to do nothing.
    writes: bool,
}

impl<'c> Arguments<'c> {
    /// Fails if a sum is not possible, as far as the commit alone can tell.
    pub(super) fn new(commit: &'c Commit) -> Result<Arguments<'c>> {
        let changes = Changes::new(&commit.writes)?;
        let mut arguments = Arguments {
            check_kinds: Vec::with_capacity(commit.checks.len()),
            check_keys: Vec::with_capacity(commit.checks.len()),
            check_others: Vec::with_capacity(commit.checks.len()),
            check_numbers: Vec::with_capacity(commit.checks.len()),
            range_starts: changes.ranges.iter().map(|(start, _)| *start).collect(),
            range_ends: changes.ranges.iter().map(|(_, end)| *end).collect(),
            deletes: Vec::new(),
            put_keys: Vec::new(),
            put_values: Vec::new(),
            add_keys: Vec::new(),
            add_deltas: Vec::new(),
            writes: !commit.writes.is_empty(),
        };
        commit.checks.iter().for_each(|check| arguments.check(check));
        for (key, change) in changes.keys {
            match change {
                Change::Put(value) => {
                    arguments.put_keys.push(key);
                    arguments.put_values.push(value.into_owned());
                }
                Change::Delete => arguments.deletes.push(key),
                Change::Add(delta) => {
                    arguments.add_keys.push(key);
                    arguments.add_deltas.push(delta);
                }
            }
        }
        Ok(arguments)
    }

    fn check(&mut self, check: &'c Check) {
        let (kind, key, other, number): (i16, &[u8], &[u8], i64) = match check {
            Check::Absent(key) => (0, key, &[], 0),
            Check::Present(key) => (1, key, &[], 0),
            // No row has a number that the database could not hold; -1 is one that no row has either.
            Check::Seq(key, seq) => (2, key, &[], i64::try_from(*seq).unwrap_or(-1)),
            Check::Value(key, value) => (3, key, value, 0),
            Check::AtMost { start, end, max } => {
                (4, start, end, i64::try_from(*max).expect("limited by AT_MOST_MAX"))
            }
        };
        self.check_kinds.push(kind);
        self.check_keys.push(key);
        self.check_others.push(other);
        self.check_numbers.push(number);
    }

    /// Whether the commit wants to change anything.
    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// In the order of the function's parameters.
    pub(super) fn parameters(&self) -> Parameters<'_> {
        vec![
            &self.check_kinds,
            &self.check_keys,
            &self.check_others,
            &self.check_numbers,
            &self.range_starts,
            &self.range_ends,
            &self.deletes,
            &self.put_keys,
            &self.put_values,
            &self.add_keys,
            &self.add_deltas,
            &self.writes,
        ]
    }
}
