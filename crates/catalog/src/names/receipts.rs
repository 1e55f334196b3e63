//! Receipts of versions that no name tells of any more.
//!
//! What a write reached is read from its file row while that has the version. These rows answer afterwards: one small row
//! for a version, written by the change that ends its story if that change's caller wants it, and dropped again by age and
//! number. Versions begin with their time, so old ones are a range and go by one write.

use stoker_format::VersionId;

use super::{Names, Refusal};
use crate::error::Result;
use crate::kv::{AT_MOST_MAX, Check, Commit, Outcome, Range, Row, Write, prefix_end};
use crate::rows::{Fate, ReceiptRow, RowValue, keys};

/// Versions with this bit were not written here but found in the lake; nobody has a receipt for one.
const FOUND: u8 = 0x80;

/// Rows read at once.
const ROWS_AT_ONCE: usize = 10_000;

/// What became of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// What became of it.
    pub fate: Fate,
    /// The commit that says so.
    pub seq: u64,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
}

/// The write that tells what became of a version, for the change that makes it so. Nothing for a version that no write
/// here made. A version with several names tells what became of the last of them.
pub fn receipt_write(version: VersionId, fate: Fate, at_ms: u64) -> Option<Write> {
    let ours = version.0[0] & FOUND == 0;
    ours.then(|| Write::Put(keys::receipt(version), ReceiptRow { fate, at_ms }.encode()))
}

fn told(row: &Row) -> Result<Told> {
    let ReceiptRow { fate, at_ms } = ReceiptRow::of(row)?;
    Ok(Told { fate, seq: row.seq, at_ms })
}

impl Names {
    /// What became of a version; none if nothing did, nobody wrote it down, or it was too long ago.
    pub async fn receipt(&self, version: VersionId) -> Result<Option<Told>> {
        let row = self.catalog.get(&[&keys::receipt(version)]).await?.pop().flatten();
        row.as_ref().map(told).transpose()
    }

    /// Forgets the receipts of versions that were written before `oldest_ms`, and beyond `rows_max` (at most
    /// [`AT_MOST_MAX`]) the oldest ones.
    pub async fn receipts_trim(&self, oldest_ms: u64, rows_max: usize) -> std::result::Result<(), Refusal> {
        let oldest = keys::receipts_since(oldest_ms);
        if let Outcome::Failed { .. } = self.catalog.commit(few(keys::RECEIPTS, &oldest, 0)).await? {
            let change = Commit::new().delete_range(keys::RECEIPTS, oldest.clone());
            let _ = self.catalog.commit(change).await?;
        }
        let rows_max = rows_max.min(AT_MOST_MAX);
        let end = prefix_end(keys::RECEIPTS).expect("a table is not 0xff");
        // Counted where the rows are; most of the time there is nothing to do.
        if let Outcome::Done { .. } = self.catalog.commit(few(keys::RECEIPTS, &end, rows_max)).await? {
            return Ok(());
        }
        let bound = self.receipt_from_end(rows_max).await?;
        let change = Commit::new().delete_range(keys::RECEIPTS, bound.unwrap_or(end));
        let _ = self.catalog.commit(change).await?;
        Ok(())
    }

    /// The key of the receipt that has `count - 1` behind it; none if that is no row.
    async fn receipt_from_end(&self, count: usize) -> Result<Option<Vec<u8>>> {
        let mut range = Range::prefix(keys::RECEIPTS, ROWS_AT_ONCE).reversed();
        let mut left = count;
        let mut last = None;
        while left > 0 {
            range.limit = left.min(ROWS_AT_ONCE);
            let page = self.catalog.range(range.clone()).await?;
            left -= page.rows.len();
            last = page.rows.last().map(|row| row.key.clone()).or(last);
            match &last {
                Some(key) if page.more => range = range.after(key),
                _ => break,
            }
        }
        Ok(last)
    }
}

/// A commit that only asks whether at most `max` rows are there.
fn few(start: &[u8], end: &[u8], max: usize) -> Commit {
    Commit::new().check(Check::AtMost { start: start.to_vec(), end: end.to_vec(), max })
}
