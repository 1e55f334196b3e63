//! Beginning a set.

use stoker_format::VolumeId;

use super::{SHARDS_MAX, Set};
use crate::names::path::last_directory;
use crate::names::{Names, Refusal, TRIES_MAX};
use crate::rows::{Abort, DirRow, NOWHERE, OpenSetRow, RowValue, SetRow, SetState, SetWork, keys};
use stoker_catalog::kv::{Check, Commit};

/// A set that is to be gathered.
#[derive(Clone, Copy, Debug)]
pub struct SetRequest<'r> {
    /// Directory that it is published as, with its `/`.
    pub target: &'r [u8],
    /// Who begins it.
    pub owner: &'r str,
    /// Shards that it takes to publish it.
    pub expected: u32,
    /// When it begins, milliseconds since 1970 by the catalog's clock.
    pub begun_ms: u64,
    /// When it is given up if still open, milliseconds since 1970 by the catalog's clock.
    pub deadline_ms: u64,
    /// Whether it goes to the lake once published.
    pub drains: bool,
}

impl SetRequest<'_> {
    fn check(&self, now_ms: u64) -> Result<(), Refusal> {
        if !self.target.ends_with(b"/") {
            return Err(Refusal::Invalid("the target of a set is a directory and ends with a slash"));
        }
        if self.expected == 0 || self.expected > SHARDS_MAX {
            return Err(Refusal::Invalid("a set has at least one shard and at most 100,000"));
        }
        if self.deadline_ms <= now_ms {
            return Err(Refusal::Invalid("the deadline of a set lies ahead"));
        }
        Ok(())
    }
}

impl Names {
    /// Begins a set, or joins the one that the same owner has open for this target: a rank that asks late, and one whose
    /// answer was lost, get the same set. Of the joined one, the deadline stays. `now_ms` is a time that has surely come: by it an open
    /// set is given up whose deadline has passed.
    pub async fn set_begin(
        &self,
        volume: VolumeId,
        request: &SetRequest<'_>,
        guards: &[Check],
        now_ms: u64,
    ) -> Result<Set, Refusal> {
        request.check(now_ms)?;
        let open_key = keys::open_set(volume, request.target);
        for _ in 0..TRIES_MAX {
            if let Some(row) = self.catalog.get(&[&open_key]).await?.pop().flatten() {
                let id = OpenSetRow::of(&row)?.set;
                // It may have been closed since.
                let Some(set) = self.set_row(volume, id).await? else { continue };
                if set.row.state != SetState::Open {
                    continue;
                }
                if set.is_late(now_ms) {
                    self.set_close(volume, &set, Abort::Deadline, &[], now_ms).await?;
                    continue;
                }
                if set.row.owner != request.owner || set.row.expected != request.expected {
                    return Err(Refusal::Conflict("another set gathers for this target"));
                }
                return Ok(set);
            }
            // The publish decides; but who is refused now has not written terabytes yet.
            self.set_target_free(volume, request.target).await?;
            let id = self.inodes.next().await?;
            let row = SetRow {
                state: SetState::Open,
                owner: request.owner.to_owned(),
                target: request.target.to_vec(),
                expected: request.expected,
                deadline_ms: request.deadline_ms,
                created_ms: request.begun_ms,
                closed_ms: 0,
                drains: request.drains,
            };
            let change = Commit::new()
                .absent(open_key.clone())
                .put(open_key.clone(), OpenSetRow { set: id }.encode())
                .put(keys::set(volume, id), row.encode())
                .put(keys::set_work(volume, id), SetWork::Expire { deadline_ms: row.deadline_ms }.encode())
                .put(keys::directory(volume, id), DirRow { parent: NOWHERE, name: Vec::new() }.encode());
            if let Some(seq) = self.attempt(guards, change).await? {
                return Ok(Set { id, seq, row, path: None });
            }
        }
        Err(Refusal::Contended)
    }

    async fn set_target_free(&self, volume: VolumeId, target: &[u8]) -> Result<(), Refusal> {
        let name = last_directory(target);
        let Some(above) = self.resolve(volume, &target[..target.len() - name.len()]).await? else {
            return Ok(());
        };
        match self.directory_at(volume, above.parent, name).await? {
            Some(_) => Err(Refusal::Exists),
            None => Ok(()),
        }
    }
}
