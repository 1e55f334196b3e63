//! Adding a shard to an open set.

use stoker_format::VolumeId;

use super::Set;
use crate::names::accounts::{Counted, Done};
use crate::names::publish::Put;
use crate::names::{Forgotten, Names, Plan, Refusal, Spot, TRIES_MAX};
use crate::rows::{FileRow, RowValue, SetState, ShardRow, keys};
use stoker_catalog::Result;
use stoker_catalog::kv::{Check, Commit, Row, Write};

/// A shard that is to be added.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'r> {
    /// Which of the expected ones it is, counted from 0.
    pub number: u32,
    /// Key, relative to the directory of the set.
    pub name: &'r [u8],
    /// Who wrote it, in the words of the door.
    pub writer: &'r str,
    /// Node that accepted it.
    pub node: [u8; 16],
    /// Boot of that node.
    pub session: [u8; 16],
}

/// A shard that is safe and not visible.
#[derive(Clone, Debug)]
pub struct ShardAdded {
    /// Commit.
    pub seq: u64,
    /// What was written.
    pub row: ShardRow,
    /// What the same shard was before, and what became of that.
    pub replaced: Option<(FileRow, Forgotten)>,
}

struct Former {
    row: Row,
    shard: ShardRow,
    spot: Spot,
}

impl Names {
    /// Adds a shard to an open set, invisibly: its file row, layout and dirty rows are written, so it is a reference to
    /// its chunks (R7) and at risk like any other. The same number again replaces the former one; the same version again
    /// changes nothing. A set that is not open any more refuses with `Conflict`.
    pub async fn set_add(
        &self,
        volume: VolumeId,
        set: u64,
        shard: &Shard<'_>,
        plan: &Plan,
        guards: &[Check],
        now_ms: u64,
    ) -> std::result::Result<ShardAdded, Refusal> {
        if shard.name.is_empty() || shard.name.ends_with(b"/") {
            return Err(Refusal::Invalid("a shard is a file and needs a name"));
        }
        let firm: Vec<Check> = guards.iter().chain(&plan.checks).cloned().collect();
        for _ in 0..TRIES_MAX {
            let open = self.set_row(volume, set).await?.ok_or(Refusal::NotFound)?;
            let former = self.shard_former(volume, set, shard.number).await?;
            let same = former.as_ref().filter(|former| former.shard.version == plan.file.version);
            // Who asks again because the answer was lost may find that the set was published with it.
            if open.row.state != SetState::Published || same.is_none() {
                open.check_open(now_ms)?;
            }
            if let Some(same) = same {
                return Ok(ShardAdded { seq: same.row.seq, row: same.shard.clone(), replaced: None });
            }
            if shard.number >= open.row.expected {
                return Err(Refusal::Invalid("the set has no shard of this number"));
            }
            let (change, added) = self.shard_change(volume, &open, shard, plan, former, now_ms).await?;
            let counted = Counted::at(volume, &open.row.target).limited(plan.quota);
            if let Some(Done { seq, .. }) = self.attempt_counted(&firm, change, counted).await? {
                return Ok(ShardAdded { seq, ..added });
            }
        }
        Err(Refusal::Contended)
    }

    async fn shard_former(&self, volume: VolumeId, set: u64, number: u32) -> Result<Option<Former>> {
        let Some(row) = self.catalog.get(&[&keys::shard(set, number)]).await?.pop().flatten() else {
            return Ok(None);
        };
        let shard = ShardRow::of(&row)?;
        let spot = Spot { volume, parent: shard.parent, name: shard.name.clone() };
        Ok(Some(Former { row, shard, spot }))
    }

    async fn shard_change(
        &self,
        volume: VolumeId,
        set: &Set,
        shard: &Shard<'_>,
        plan: &Plan,
        former: Option<Former>,
        now_ms: u64,
    ) -> std::result::Result<(Commit, ShardAdded), Refusal> {
        // Thousands of shards check this row and none of them writes it, so they do not get in each other's way.
        let shard_key = keys::shard(set.id, shard.number);
        let mut change = Commit::new()
            .seq(keys::set(volume, set.id), set.seq)
            .unchanged(shard_key.clone(), former.as_ref().map(|former| &former.row));
        let way = self.way_from(volume, set.id, shard.name).await?;
        let spot = Spot { volume, parent: way.reached, name: way.name.to_vec() };
        let present = match way.missing.is_empty() {
            true => self.file_at(spot.clone()).await?,
            false => None,
        };
        let own = former.as_ref().is_some_and(|former| former.spot == spot);
        if present.is_some() && !own {
            return Err(Refusal::Exists);
        }
        let parent = self.make_way(&mut change, volume, &way).await?;
        let spot = Spot { parent, ..spot };
        let plan = Plan { set: Some(set.id), ..plan.clone() };
        let Put { file, mut replaced, .. } = self.put_file(&mut change, &spot, present, plan).await?;
        if let Some(former) = former.filter(|former| former.spot != spot)
            && let Some(old) = self.file_at(former.spot).await?
        {
            let fate = self.take_out(&mut change, &old).await?;
            self.prune(&mut change, &old.spot).await?;
            replaced = Some((old.file, fate));
        }
        let row = ShardRow {
            parent: spot.parent,
            name: spot.name,
            version: file.version,
            size: file.size,
            crc64: file.crc64,
            node: shard.node,
            session: shard.session,
            writer: shard.writer.to_owned(),
            added_ms: now_ms,
        };
        change.writes.push(Write::Put(shard_key, row.encode()));
        Ok((change, ShardAdded { seq: 0, row, replaced }))
    }
}
