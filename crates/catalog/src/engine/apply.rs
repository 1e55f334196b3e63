//! What checks and writes mean, for the engines that run them one commit after another.

use std::borrow::Cow;

use super::changes::{self, Change, Changes};
use crate::error::Result;
use crate::kv::{Check, PAGE_BYTES, Page, Row};

/// Rows that can be read.
pub(crate) trait Rows {
    /// Calls `read` with the sequence number and the value of a row.
    fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T>;

    /// How many rows lie in `start..end`; stops counting at `stop`.
    fn count(&self, start: &[u8], end: &[u8], stop: usize) -> Result<usize>;

    /// The sum of the counters in `start..end`.
    fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128>;
}

/// Rows that can be changed.
pub(crate) trait RowsMut: Rows {
    /// Sets a row.
    fn put(&mut self, key: &[u8], value: &[u8], seq: u64) -> Result<()>;

    /// Removes a row.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Removes the rows of `start..end`, which is not empty.
    fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<()>;
}

/// The index of the first check that does not hold.
pub(crate) fn check_failed(rows: &impl Rows, checks: &[Check]) -> Result<Option<usize>> {
    for (index, check) in checks.iter().enumerate() {
        let holds = match check {
            Check::Absent(key) => rows.read(key, |row| row.is_none())?,
            Check::Present(key) => rows.read(key, |row| row.is_some())?,
            Check::Seq(key, seq) => rows.read(key, |row| row.is_some_and(|(found, _)| found == *seq))?,
            Check::Value(key, value) => rows.read(key, |row| row.is_some_and(|(_, found)| found == value))?,
            Check::AtMost { start, end, max } => rows.count(start, end, max + 1)? <= *max,
            Check::SumAtMost { start, end, max } => rows.sum(start, end)? <= i128::from(*max),
        };
        if !holds {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// What a row of a counter counts. A row that is none counts as nothing: the check of a limit must not fail for ever.
pub(crate) fn counted(value: &[u8]) -> i128 {
    value.try_into().map_or(0, |value| i128::from(i64::from_le_bytes(value)))
}

/// Works out every sum, so that doing the changes cannot fail half way for a bad counter.
pub(crate) fn sums_resolve(rows: &impl Rows, changes: &mut Changes<'_>) -> Result<()> {
    for (key, change) in &mut changes.keys {
        if let Change::Add(delta) = change {
            let sum = rows.read(key, |row| changes::sum(row.map(|(_, value)| value), *delta))??;
            *change = Change::Put(Cow::Owned(sum.to_le_bytes().to_vec()));
        }
    }
    Ok(())
}

/// Does changes whose sums are resolved.
pub(crate) fn change_all(rows: &mut impl RowsMut, changes: &Changes<'_>, seq: u64) -> Result<()> {
    for (start, end) in &changes.ranges {
        rows.delete_range(start, end)?;
    }
    for (key, change) in &changes.keys {
        match change {
            Change::Put(value) => rows.put(key, value, seq)?,
            Change::Delete => rows.delete(key)?,
            Change::Add(_) => unreachable!("sums were resolved before"),
        }
    }
    Ok(())
}

/// The page that these rows begin with.
pub(crate) fn page(rows: impl Iterator<Item = Result<Row>>, limit: usize) -> Result<Page> {
    let mut page = Page::default();
    let mut bytes = 0;
    for row in rows {
        let row = row?;
        if page.rows.len() == limit || (bytes >= PAGE_BYTES && !page.rows.is_empty()) {
            page.more = true;
            break;
        }
        bytes += row.key.len() + row.value.len();
        page.rows.push(row);
    }
    Ok(page)
}
