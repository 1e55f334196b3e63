//! Checkpoint sets: shards that become visible together or not at all. (D24)
//!
//! The shards of a set are entries of a directory that hangs nowhere, so no key leads to them and no listing shows them.
//! Publishing hangs that directory under its name, in one commit that is as small for ten thousand shards as for one. The
//! set's row decides: it goes from open to published or aborted once, and whatever adds a shard checks that it did not.

mod abort;
mod begin;
mod clear;
mod publish;
mod shard;
mod sweep;

use std::collections::HashMap;

use stoker_format::VolumeId;

use super::{Names, Refusal};
use crate::rows::{DirRow, RowValue, SetRow, SetState, ShardRow, keys};
use stoker_catalog::kv::{Range, Row};
use stoker_catalog::{CatalogError, Result};

pub use begin::SetRequest;
pub use publish::SetPublish;
pub use shard::{Shard, ShardAdded};
pub use sweep::SetsSwept;

/// Most shards of a set.
pub const SHARDS_MAX: u32 = 100_000;

/// Rows read at once.
const ROWS_AT_ONCE: usize = 1_000;

/// A checkpoint set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    /// Its number.
    pub id: u64,
    /// Commit that wrote its row last: of a published set, the publish.
    pub seq: u64,
    /// What it is.
    pub row: SetRow,
    /// Key of its directory, with its `/`; none unless it is published.
    pub path: Option<Vec<u8>>,
}

impl Set {
    fn of(row: &Row) -> Result<Set> {
        let id = keys::set_part(&row.key).ok_or_else(|| CatalogError::corrupt("a set has no number"))?;
        Ok(Set { id, seq: row.seq, row: SetRow::of(row)?, path: None })
    }

    /// Fails unless it takes shards at this time.
    fn check_open(&self, now_ms: u64) -> std::result::Result<(), Refusal> {
        match self.row.state {
            SetState::Published => Err(Refusal::Conflict("the set is published already")),
            SetState::Aborted(_) => Err(Refusal::Conflict("the set was aborted")),
            SetState::Open if self.is_late(now_ms) => {
                Err(Refusal::Conflict("the deadline of the set has passed"))
            }
            SetState::Open => Ok(()),
        }
    }

    /// Whether its deadline has passed, if it is open.
    fn is_late(&self, now_ms: u64) -> bool {
        self.row.deadline_ms <= now_ms
    }
}

impl Names {
    /// A set; none if there is no such set, or it was aborted long ago, or its files were all deleted.
    pub async fn set(&self, volume: VolumeId, id: u64) -> Result<Option<Set>> {
        let Some(mut set) = self.set_row(volume, id).await? else { return Ok(None) };
        if set.row.state == SetState::Published {
            set.path = self.directory_path(volume, id).await?;
        }
        Ok(Some(set))
    }

    async fn set_row(&self, volume: VolumeId, id: u64) -> Result<Option<Set>> {
        let row = self.catalog.get(&[&keys::set(volume, id)]).await?.pop().flatten();
        row.as_ref().map(Set::of).transpose()
    }

    /// Sets of a volume in the order in which they were begun, behind one of them; and whether there are more.
    pub async fn sets(&self, volume: VolumeId, after: Option<u64>, limit: usize) -> Result<(Vec<Set>, bool)> {
        let mut range = Range::prefix(&keys::sets(volume), limit);
        if let Some(after) = after {
            range = range.after(&keys::set(volume, after));
        }
        let page = self.catalog.range(range).await?;
        let mut sets = page.rows.iter().map(Set::of).collect::<Result<Vec<Set>>>()?;
        self.set_paths(volume, &mut sets).await?;
        Ok((sets, page.more))
    }

    /// The shards of a set that were acknowledged, by number, behind one of them; and whether there are more.
    pub async fn set_shards(
        &self,
        set: u64,
        after: Option<u32>,
        limit: usize,
    ) -> Result<(Vec<(u32, ShardRow)>, bool)> {
        let mut range = Range::prefix(&keys::shards(set), limit);
        if let Some(after) = after {
            range = range.after(&keys::shard(set, after));
        }
        let page = self.catalog.range(range).await?;
        let shards = page.rows.iter().map(|row| {
            let number = keys::shard_number(&row.key);
            let number = number.ok_or_else(|| CatalogError::corrupt("a shard has no number"))?;
            Ok((number, ShardRow::of(row)?))
        });
        Ok((shards.collect::<Result<_>>()?, page.more))
    }

    /// The set that was published last of those whose directory has a key with this prefix, wherever that was renamed to.
    ///
    /// Reads a small row of every set of the volume, since only their commits say which one is last, and then the names
    /// of the youngest ones until one fits.
    pub async fn set_latest(&self, volume: VolumeId, prefix: &[u8]) -> Result<Option<Set>> {
        let mut published = Vec::new();
        let mut range = Range::prefix(&keys::sets(volume), ROWS_AT_ONCE);
        loop {
            let page = self.catalog.range(range.clone()).await?;
            for row in &page.rows {
                let set = Set::of(row)?;
                if set.row.state == SetState::Published {
                    published.push(set);
                }
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => break,
            }
        }
        published.sort_unstable_by_key(|set| std::cmp::Reverse(set.seq));
        for sets in published.chunks_mut(ROWS_AT_ONCE) {
            self.set_paths(volume, sets).await?;
            let fits = |set: &&Set| set.path.as_ref().is_some_and(|path| path.starts_with(prefix));
            if let Some(set) = sets.iter().find(fits) {
                return Ok(Some(set.clone()));
            }
        }
        Ok(None)
    }

    /// Fills in where published sets hang now. They share most of the way, which is read once.
    async fn set_paths(&self, volume: VolumeId, sets: &mut [Set]) -> Result<()> {
        let mut ways: HashMap<u64, Option<Vec<u8>>> = HashMap::new();
        for sets in sets.chunks_mut(ROWS_AT_ONCE) {
            let row_keys: Vec<Vec<u8>> = sets.iter().map(|set| keys::directory(volume, set.id)).collect();
            let row_keys: Vec<&[u8]> = row_keys.iter().map(Vec::as_slice).collect();
            let rows = self.catalog.get(&row_keys).await?;
            for (set, row) in sets.iter_mut().zip(rows) {
                let (Some(row), SetState::Published) = (row, set.row.state) else { continue };
                let directory = DirRow::of(&row)?;
                let way = match ways.get(&directory.parent) {
                    Some(way) => way.clone(),
                    None => {
                        let way = self.directory_path(volume, directory.parent).await?;
                        ways.insert(directory.parent, way.clone());
                        way
                    }
                };
                set.path = way.map(|way| [way, directory.name].concat());
            }
        }
        Ok(())
    }
}
