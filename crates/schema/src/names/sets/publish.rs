//! Making a set visible.

use stoker_format::VolumeId;

use super::{ROWS_AT_ONCE, Set};
use crate::names::path::last_directory;
use crate::names::{Names, Refusal, TRIES_MAX};
use crate::rows::{DirRow, EntryRow, RowValue, SetRow, SetState, SetWork, keys};
use stoker_catalog::kv::{Check, Commit, Range, Write};
use stoker_catalog::{CatalogError, Result};

/// What came of the wish to publish a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetPublish {
    /// It is visible.
    Done(Set),
    /// It still waits for these shards.
    Waiting(Vec<u32>),
}

impl Names {
    /// Publishes a set if all its shards are there. A set that is published already is fine, so an answer that was lost is
    /// resolved by asking again. Refuses with `Exists` if something has the name of its directory.
    pub async fn set_publish(
        &self,
        volume: VolumeId,
        id: u64,
        guards: &[Check],
        now_ms: u64,
    ) -> std::result::Result<SetPublish, Refusal> {
        for _ in 0..TRIES_MAX {
            let set = self.set(volume, id).await?.ok_or(Refusal::NotFound)?;
            if set.row.state == SetState::Published {
                return Ok(SetPublish::Done(set));
            }
            set.check_open(now_ms)?;
            // Read after the set's row: while that is open shards are added and replaced, never taken away.
            let laggards = self.set_laggards(&set).await?;
            if !laggards.is_empty() {
                return Ok(SetPublish::Waiting(laggards));
            }
            let row = SetRow { state: SetState::Published, closed_ms: now_ms, ..set.row.clone() };
            let change = self.set_link(volume, &set, &row).await?;
            if let Some(seq) = self.attempt(guards, change).await? {
                let path = Some(row.target.clone());
                return Ok(SetPublish::Done(Set { id, seq, row, path }));
            }
        }
        Err(Refusal::Contended)
    }

    /// Writes down a set that was published long ago, so that its directory is where it was and has its number. For a
    /// catalog that is being rebuilt: the files come later. Refuses with `Exists` if something has the name.
    pub async fn set_rebuild(
        &self,
        volume: VolumeId,
        id: u64,
        row: &SetRow,
    ) -> std::result::Result<(), Refusal> {
        let set_key = keys::set(volume, id);
        let open = SetRow { state: SetState::Open, ..row.clone() };
        let begun = Commit::new().absent(set_key.clone()).put(set_key, open.encode());
        let seq = self.attempt(&[], begun).await?.ok_or(Refusal::Exists)?;
        let set = Set { id, seq, row: open, path: None };
        let change = self.set_link(volume, &set, row).await?;
        self.attempt(&[], change).await?.map(drop).ok_or(Refusal::Contended)
    }

    /// The change that hangs the directory of a set under its name.
    async fn set_link(
        &self,
        volume: VolumeId,
        set: &Set,
        row: &SetRow,
    ) -> std::result::Result<Commit, Refusal> {
        let set_key = keys::set(volume, set.id);
        let name = last_directory(&row.target);
        let way = self.way(volume, &row.target[..row.target.len() - name.len()]).await?;
        // If it is there under its own name, somebody else published it just now: the commit fails, and the next look tells.
        let taken = |directory: u64| directory != set.id;
        if way.missing.is_empty() && self.directory_at(volume, way.reached, name).await?.is_some_and(taken) {
            return Err(Refusal::Exists);
        }
        let mut change = Commit::new().seq(set_key.clone(), set.seq);
        let parent = self.make_way(&mut change, volume, &way).await?;
        let entry = keys::entry(volume, parent, name);
        change = change
            .absent(entry.clone())
            .put(set_key, row.encode())
            .put(entry, EntryRow::Directory(set.id).encode())
            .put(keys::directory(volume, set.id), DirRow { parent, name: name.to_vec() }.encode())
            .delete(keys::open_set(volume, &row.target));
        let work_key = keys::set_work(volume, set.id);
        change.writes.push(match row.drains {
            true => Write::Put(work_key, SetWork::Drain.encode()),
            false => Write::Delete(work_key),
        });
        Ok(change)
    }

    /// Numbers of the shards that a set lacks.
    pub async fn set_laggards(&self, set: &Set) -> Result<Vec<u32>> {
        let mut missing = Vec::new();
        let mut next = 0;
        let mut range = Range::prefix(&keys::shards(set.id), ROWS_AT_ONCE);
        loop {
            let page = self.catalog.range(range.clone()).await?;
            for row in &page.rows {
                let number = keys::shard_number(&row.key);
                let number = number.ok_or_else(|| CatalogError::corrupt("a shard has no number"))?;
                missing.extend(next..number.min(set.row.expected));
                next = number.saturating_add(1);
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => break,
            }
        }
        missing.extend(next..set.row.expected);
        Ok(missing)
    }

    /// The shards of a published set and its marker are in the lake: nothing is left to do for it.
    pub async fn set_drained(&self, volume: VolumeId, id: u64) -> std::result::Result<(), Refusal> {
        let work_key = keys::set_work(volume, id);
        let change = Commit::new().value(work_key.clone(), SetWork::Drain.encode()).delete(work_key);
        match self.attempt(&[], change).await? {
            Some(_) => Ok(()),
            None => Err(Refusal::NotFound),
        }
    }
}
