//! The last commits, in the file, for standbys that are a little behind.
//!
//! Bounded in bytes and commits; a standby that is further behind gets a snapshot. Written in the transaction
//! of the commits themselves, so that a restart of either side does not lose it.

use std::collections::VecDeque;

use redb::{ReadTransaction, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::file::{damaged, failed};
use crate::error::{CatalogError, Result};

const TAIL: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("tail");

/// Most commits that are kept, however small.
const TAIL_COMMITS_MAX: usize = 1 << 16;

/// Commits as they are written and sent: their numbers and their [entries](super::entry::Entry).
pub(super) type Entries = Vec<(u64, Vec<u8>)>;

/// How much of the past is in the file.
#[derive(Debug)]
pub(super) struct Tail {
    bytes_max: usize,
    /// Lengths of the kept entries, oldest first.
    lengths: VecDeque<usize>,
    bytes: usize,
    /// The newest of them.
    last: u64,
    /// What is in the file does not lead up to the last commit.
    broken: bool,
}

impl Tail {
    /// Takes up the tail of a file whose last commit is `seq`.
    pub(super) fn load(snapshot: &ReadTransaction, seq: u64, bytes_max: usize) -> Result<Tail> {
        let mut tail = Tail { bytes_max, lengths: VecDeque::new(), bytes: 0, last: seq, broken: false };
        let table = match snapshot.open_table(TAIL) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(tail),
            Err(error) => return Err(failed(error)),
        };
        let mut next = None;
        for pair in ReadableTable::range::<u64>(&table, ..).map_err(failed)? {
            let (key, value) = pair.map_err(failed)?;
            tail.broken |= next.is_some_and(|next| next != key.value());
            next = Some(key.value() + 1);
            tail.lengths.push_back(value.value().len());
            tail.bytes += value.value().len();
        }
        tail.broken |= next.is_some_and(|next| next != seq + 1);
        Ok(tail)
    }

    /// Takes note of commits that are not kept, because nobody follows.
    pub(super) fn skip(&mut self) {
        self.broken = true;
    }

    /// Adds commits that follow the last one, and drops old ones.
    pub(super) fn append(&mut self, transaction: &WriteTransaction, entries: &Entries) -> Result<()> {
        let mut table = transaction.open_table(TAIL).map_err(failed)?;
        if std::mem::take(&mut self.broken) {
            table.retain(|_, _| false).map_err(failed)?;
            (self.bytes, self.lengths) = (0, VecDeque::new());
        }
        for (seq, entry) in entries {
            table.insert(seq, entry.as_slice()).map_err(failed)?;
            self.lengths.push_back(entry.len());
            self.bytes += entry.len();
            self.last = *seq;
        }
        let keep = |tail: &Tail| tail.bytes <= tail.bytes_max && tail.lengths.len() <= TAIL_COMMITS_MAX;
        // Whatever the limits are, the newest commits are kept: standbys may be on their way to them.
        while !keep(self) && self.lengths.len() > entries.len() {
            let seq = self.last + 1 - self.lengths.len() as u64;
            table.remove(seq).map_err(failed)?;
            self.bytes -= self.lengths.pop_front().expect("not empty");
        }
        Ok(())
    }
}

/// The commits behind `after`, about `bytes` of them; `None` if the tail does not reach back that far.
pub(super) fn read(snapshot: &ReadTransaction, after: u64, bytes: usize) -> Result<Option<Entries>> {
    let table = match snapshot.open_table(TAIL) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut entries = Entries::new();
    let (mut taken, mut next) = (0, after.saturating_add(1));
    for pair in ReadableTable::range::<u64>(&table, next..).map_err(failed)? {
        let (key, value) = pair.map_err(failed)?;
        if key.value() != next {
            return if entries.is_empty() { Ok(None) } else { Err(broken()) };
        }
        next += 1;
        taken += value.value().len();
        entries.push((key.value(), value.value().to_vec()));
        if taken >= bytes {
            break;
        }
    }
    Ok(Some(entries).filter(|entries| !entries.is_empty()))
}

fn broken() -> CatalogError {
    damaged("the tail of the catalog's file has a hole")
}
