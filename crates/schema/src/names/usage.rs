//! How much a volume holds. (D32)
//!
//! Its two counters are each spread over several rows. A shared database lets writers of one row in one after the other,
//! so with one row per counter all publishes of a volume would stand in each other's way.

use stoker_format::{VersionId, VolumeId, crc32c};

use super::change::range_delete;
use crate::rows::keys;
use stoker_catalog::kv::{Catalog, Commit, Range, Write};
use stoker_catalog::{CatalogError, Result};

/// Rows of one counter: many more than commits that are under way at once.
const PARTS: u8 = 128;

/// What a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a volume holds now.
pub async fn usage(catalog: &dyn Catalog, volume: VolumeId) -> Result<Usage> {
    let files = total(catalog, &keys::files(volume)).await?;
    let bytes = total(catalog, &keys::bytes(volume)).await?;
    Ok(Usage { files, bytes })
}

/// Forgets the counters of a volume.
pub fn usage_deletes(volume: VolumeId) -> impl Iterator<Item = Write> {
    [keys::files(volume), keys::bytes(volume)].into_iter().map(|counter| range_delete(&counter))
}

/// Counts a change of the file that now has, or last had, this version.
pub(super) fn usage_adds(change: &mut Commit, volume: VolumeId, version: VersionId, files: i64, bytes: i64) {
    let part = (crc32c(&version.0) % u32::from(PARTS)) as u8;
    for (counter, delta) in [(keys::files(volume), files), (keys::bytes(volume), bytes)] {
        if delta != 0 {
            change.writes.push(Write::Add(keys::counter_part(&counter, part), delta));
        }
    }
}

/// The sum of a counter's rows; a row by itself may be below zero.
pub(super) async fn total(catalog: &dyn Catalog, counter: &[u8]) -> Result<u64> {
    // One more than there can be: the row without a part that older releases counted in.
    let rows = catalog.range(Range::prefix(counter, usize::from(PARTS) + 1)).await?.rows;
    let sum = rows.iter().try_fold(0i64, |sum, row| {
        let part = row.value[..].try_into().ok().map(i64::from_le_bytes);
        part.and_then(|part| sum.checked_add(part))
            .ok_or_else(|| CatalogError::corrupt("a counter of a volume is not a number"))
    })?;
    Ok(sum.max(0) as u64)
}
