//! Giving a set up.

use stoker_format::VolumeId;

use super::Set;
use crate::names::{Names, Refusal, TRIES_MAX};
use crate::rows::{Abort, RowValue, SetRow, SetState, SetWork, keys};
use stoker_catalog::kv::{Check, Commit};

impl Names {
    /// Gives a set up: one commit decides, then its shards become garbage, a bounded number in each commit. What a crash
    /// leaves of them is found by [`sets_sweep`](Names::sets_sweep). One that was aborted before is fine, a published one
    /// refuses with `Conflict`.
    pub async fn set_abort(
        &self,
        volume: VolumeId,
        id: u64,
        guards: &[Check],
        now_ms: u64,
    ) -> Result<Set, Refusal> {
        let set = self.set_give_up(volume, id, Abort::Asked, guards, now_ms).await?;
        self.set_clear(volume, id, now_ms).await?;
        Ok(set)
    }

    /// Closes an open set; the reason of one that was aborted before stays.
    pub(super) async fn set_give_up(
        &self,
        volume: VolumeId,
        id: u64,
        why: Abort,
        guards: &[Check],
        now_ms: u64,
    ) -> Result<Set, Refusal> {
        for _ in 0..TRIES_MAX {
            let set = self.set_row(volume, id).await?.ok_or(Refusal::NotFound)?;
            match set.row.state {
                SetState::Published => return Err(Refusal::Conflict("the set is published already")),
                SetState::Aborted(_) => return Ok(set),
                SetState::Open => {}
            }
            if let Some(closed) = self.set_close(volume, &set, why, guards, now_ms).await? {
                return Ok(closed);
            }
        }
        Err(Refusal::Contended)
    }

    /// The commit that aborts an open set; none if somebody else was first.
    pub(super) async fn set_close(
        &self,
        volume: VolumeId,
        set: &Set,
        why: Abort,
        guards: &[Check],
        now_ms: u64,
    ) -> Result<Option<Set>, Refusal> {
        let set_key = keys::set(volume, set.id);
        let row = SetRow { state: SetState::Aborted(why), closed_ms: now_ms, ..set.row.clone() };
        let change = Commit::new()
            .seq(set_key.clone(), set.seq)
            .put(set_key, row.encode())
            .delete(keys::open_set(volume, &row.target))
            .put(keys::set_work(volume, set.id), SetWork::Clear.encode());
        let closed = self.attempt(guards, change).await?;
        Ok(closed.map(|seq| Set { seq, row, ..set.clone() }))
    }
}
