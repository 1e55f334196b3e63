//! The form of rows in the file: the commit's number, a checksum, the value.
//!
//! The store checks its pages when the file is opened; the checksum here is looked at with each read, so that
//! damage is reported and never returned.

use std::ops::Bound;

use redb::{
    AccessGuard, ReadOnlyTable, ReadTransaction, ReadableTable, StorageError, Table, TableDefinition,
    WriteTransaction,
};
use stoker_format::crc64_seeded;

use super::file::{damaged, failed};
use crate::engine::apply::{self, Rows, RowsMut};
use crate::error::Result;
use crate::kv::{Page, Range, Row};

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

const ROWS: Definition = TableDefinition::new("row");

/// Bytes in front of a value: the commit's number and the checksum, little-endian.
const HEADER_BYTES: usize = 16;

/// The rows of a snapshot.
pub(super) struct Snapshot {
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Snapshot {
    pub(super) fn open(transaction: &ReadTransaction) -> Result<Snapshot> {
        Ok(Snapshot { table: transaction.open_table(ROWS).map_err(failed)? })
    }

    pub(super) fn row(&self, key: &[u8]) -> Result<Option<Row>> {
        self.read(key, |row| row.map(|(seq, value)| Row { key: key.to_vec(), value: value.to_vec(), seq }))
    }

    pub(super) fn page(&self, range: &Range) -> Result<Page> {
        apply::page(self.rows(range)?, range.limit)
    }

    /// The rows of a range, whatever its limit is.
    pub(super) fn rows(&self, range: &Range) -> Result<Box<dyn Iterator<Item = Result<Row>> + '_>> {
        let end = match &range.end {
            Some(end) if *end <= range.start => return Ok(Box::new(std::iter::empty())),
            Some(end) => Bound::Excluded(end.as_slice()),
            None => Bound::Unbounded,
        };
        let start = Bound::Included(range.start.as_slice());
        let rows = ReadableTable::range::<&[u8]>(&self.table, (start, end)).map_err(failed)?;
        Ok(match range.reverse {
            false => Box::new(rows.map(row)),
            true => Box::new(rows.rev().map(row)),
        })
    }

    /// Every row, in order.
    pub(super) fn all(&self) -> Result<impl Iterator<Item = Result<Row>> + '_> {
        let rows = ReadableTable::range::<&[u8]>(&self.table, ..).map_err(failed)?;
        Ok(rows.map(row))
    }
}

impl Rows for Snapshot {
    fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T> {
        row_read(&self.table, key, read)
    }

    fn count(&self, start: &[u8], end: &[u8], stop: usize) -> Result<usize> {
        row_count(&self.table, start, end, stop)
    }

    fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128> {
        row_sum(&self.table, start, end)
    }
}

/// The rows inside a write transaction.
pub(super) struct Draft<'t> {
    table: Table<'t, &'static [u8], &'static [u8]>,
}

impl<'t> Draft<'t> {
    /// Opens the rows; a new file gets its table by this.
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Draft<'t>> {
        Ok(Draft { table: transaction.open_table(ROWS).map_err(failed)? })
    }
}

impl Rows for Draft<'_> {
    fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T> {
        row_read(&self.table, key, read)
    }

    fn count(&self, start: &[u8], end: &[u8], stop: usize) -> Result<usize> {
        row_count(&self.table, start, end, stop)
    }

    fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128> {
        row_sum(&self.table, start, end)
    }
}

impl RowsMut for Draft<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], seq: u64) -> Result<()> {
        let mut stored = self.table.insert_reserve(key, HEADER_BYTES + value.len()).map_err(failed)?;
        let (header, body) = stored.as_mut().split_at_mut(HEADER_BYTES);
        header[..8].copy_from_slice(&seq.to_le_bytes());
        header[8..].copy_from_slice(&checksum(key, value, seq).to_le_bytes());
        body.copy_from_slice(value);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.table.remove(key).map(drop).map_err(failed)
    }

    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()> {
        self.table.retain_in::<&[u8], _>(start..end, |_, _| false).map_err(failed)
    }
}

type Guard<'g> = AccessGuard<'g, &'static [u8]>;

fn row(pair: std::result::Result<(Guard<'_>, Guard<'_>), StorageError>) -> Result<Row> {
    let (key, stored) = pair.map_err(failed)?;
    let (seq, value) = decode(key.value(), stored.value())?;
    Ok(Row { key: key.value().to_vec(), value: value.to_vec(), seq })
}

fn row_read<T>(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    read: impl FnOnce(Option<(u64, &[u8])>) -> T,
) -> Result<T> {
    match table.get(key).map_err(failed)? {
        Some(stored) => Ok(read(Some(decode(key, stored.value())?))),
        None => Ok(read(None)),
    }
}

fn row_count(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    start: &[u8],
    end: &[u8],
    stop: usize,
) -> Result<usize> {
    if start >= end {
        return Ok(0);
    }
    let mut count = 0;
    for pair in table.range::<&[u8]>(start..end).map_err(failed)?.take(stop) {
        pair.map_err(failed)?;
        count += 1;
    }
    Ok(count)
}

fn row_sum(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    start: &[u8],
    end: &[u8],
) -> Result<i128> {
    if start >= end {
        return Ok(0);
    }
    let mut sum = 0;
    for pair in table.range::<&[u8]>(start..end).map_err(failed)? {
        let (key, stored) = pair.map_err(failed)?;
        sum += apply::counted(decode(key.value(), stored.value())?.1);
    }
    Ok(sum)
}

fn decode<'v>(key: &[u8], stored: &'v [u8]) -> Result<(u64, &'v [u8])> {
    let sound = stored.split_at_checked(HEADER_BYTES).and_then(|(header, value)| {
        let (seq, sum) = header.split_at(8);
        let seq = u64::from_le_bytes(seq.try_into().ok()?);
        let sum = u64::from_le_bytes(sum.try_into().ok()?);
        (sum == checksum(key, value, seq)).then_some((seq, value))
    });
    sound.ok_or_else(|| damaged("a row of the catalog's file is damaged"))
}

fn checksum(key: &[u8], value: &[u8], seq: u64) -> u64 {
    crc64_seeded(seq, &[key, value])
}
