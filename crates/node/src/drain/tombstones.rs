//! Deletes that have to reach the lake.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Row, Write};
use stoker_format::{VersionId, VolumeId};
use stoker_lake::LakeErrorKind;
use stoker_schema::names::{Located, delete_record_garbage};
use stoker_schema::rows::{Drain, GraveRow, LakeKeyRow, RekeyRow, RowValue, TombstoneRow, keys};
use stoker_store::{BoxFuture, Result};

use super::claim::Claimed;
use crate::core::{Core, add};
use crate::sums::Sums;
use crate::volumes::Volume;
use crate::{clock, error};

/// How long a reader whom the version of an object does not tell may keep it from being replaced or deleted.
pub(super) const READERS_MS: u64 = 600_000;

/// Deletes sent at the same time.
const AT_ONCE: usize = 16;

impl Core {
    /// Looks at lake keys where something was sent that nobody confirmed: if no file has that name any more (it was renamed
    /// or deleted meanwhile), what may be there has to go.
    pub(super) async fn sweep_round(self: &Arc<Core>, volume: &Arc<Volume>) -> Result<bool> {
        let id = volume.id;
        self.undo_round(id).await?;
        let sweep = |row: Row| -> BoxFuture<'_, Result<bool>> { Box::pin(self.sweep(id, row)) };
        self.each_row(&keys::attempt(id, b""), 1, sweep).await
    }

    async fn sweep(self: &Arc<Core>, id: VolumeId, row: Row) -> Result<bool> {
        let key = keys::lake_key_part(&row.key);
        let Some(_busy) = self.drainer.take_key(id, key) else { return Ok(false) };
        if !row.value.is_empty() {
            let grave = GraveRow::of(&row).map_err(error::catalog)?;
            if grave.look_ms > self.catalog.now_ms().await.map_err(error::catalog)? {
                return Ok(false);
            }
        }
        let tombstone = TombstoneRow { since_ms: clock::now_ms(), etag: None, name_record: None };
        let mut change = Commit::new()
            .seq(row.key.clone(), row.seq)
            .absent(keys::tombstone(id, key))
            // Somebody is about to publish what is there.
            .absent(keys::intent(id, key))
            .put(keys::tombstone(id, key), tombstone.encode());
        if let Some(spot) = self.names.resolve(id, key).await.map_err(error::catalog)? {
            if let Some(located) = self.names.file_at(spot.clone()).await.map_err(error::catalog)? {
                let at_home = located.file.lake.as_ref().is_some_and(|lake| lake.key == key);
                if located.file.drain != Drain::Clean {
                    return Ok(false);
                }
                if !at_home {
                    let rekey = keys::rekey_file(id, located.file.version());
                    let row = RekeyRow { since_ms: clock::now_ms(), name_record: None };
                    let move_it = Commit::new().absent(rekey.clone()).put(rekey, row.encode());
                    let _ = self.catalog.commit(move_it).await.map_err(error::catalog)?;
                    return Ok(false);
                }
                change = Commit::new().seq(row.key.clone(), row.seq).seq(spot.row_key(), located.seq);
                change = change.delete(row.key.clone());
            } else {
                change.checks.push(Check::Absent(spot.row_key()));
            }
        }
        let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(false)
    }

    /// Carries out deletes.
    pub(super) async fn bury_round<'a>(self: &'a Arc<Core>, volume: &'a Arc<Volume>) -> Result<bool> {
        let bury = |row: Row| -> BoxFuture<'_, Result<bool>> { Box::pin(self.bury(volume, row)) };
        let more = self.each_row(&keys::tombstone(volume.id, b""), AT_ONCE, bury).await?;
        if volume.leaving {
            self.volumes.finish_leaving(volume).await?;
        }
        Ok(more)
    }

    /// Whether a key was deleted before, and is looked at once more.
    async fn is_grave(&self, id: VolumeId, key: &[u8]) -> Result<bool> {
        let row = self.catalog.get(&[&keys::attempt(id, key)]).await.map_err(error::catalog)?.pop().flatten();
        Ok(row.is_some_and(|row| !row.value.is_empty()))
    }

    /// A file has the name again, with a directory that was renamed: its drain replaces what is there.
    async fn unbury(
        &self,
        row: &Row,
        tombstone: &TombstoneRow,
        located: &Located,
        known: bool,
    ) -> Result<bool> {
        let mut change = Commit::new()
            .seq(row.key.clone(), row.seq)
            .seq(located.spot.row_key(), located.seq)
            .delete(row.key.clone());
        let record = tombstone.name_record.map(VersionId);
        change.writes.extend(record.into_iter().flat_map(delete_record_garbage));
        if let (false, Some(etag)) = (known, &tombstone.etag) {
            let key = keys::lake_key(located.spot.volume, keys::lake_key_part(&row.key));
            let there = LakeKeyRow { etag: Some(etag.clone()), ..LakeKeyRow::default() };
            change = change.absent(key.clone()).put(key, there.encode());
        }
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// Removes what the lake has under a deleted key; true if the tombstone is gone.
    async fn bury(self: &Arc<Core>, volume: &Arc<Volume>, row: Row) -> Result<bool> {
        let tombstone = TombstoneRow::of(&row).map_err(error::catalog)?;
        let id = volume.id;
        let key = keys::lake_key_part(&row.key);
        let Some(_busy) = self.drainer.take_key(id, key) else { return Ok(false) };
        if tombstone.name_record.is_some_and(|record| self.pins.is_pinned(VersionId(record))) {
            // Whoever deleted the file is just leaving the record of it.
            return Ok(false);
        }
        if self.dependent(id, key, None).await?.is_some() || self.rekey_pending(id).await? {
            return Ok(false);
        }
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(false) };
        let known = self.lake_key_row(id, key).await?;
        if let Some(spot) = self.names.resolve(id, key).await.map_err(error::catalog)?
            && let Some(located) = self.names.file_at(spot).await.map_err(error::catalog)?
        {
            return self.unbury(&row, &tombstone, &located, known.is_some()).await;
        }
        let etag = known.as_ref().and_then(|(row, _)| row.etag.clone()).or(tombstone.etag.clone());
        let untouched = known.as_ref().is_none_or(|(row, _)| row.upload.is_none() && row.attempts.is_empty());
        let nothing = etag.is_none() && untouched;
        let mut change = Commit::new().seq(row.key.clone(), row.seq).delete(row.key.clone());
        let was_grave = !nothing && self.is_grave(id, key).await?;
        let mut grave = None;
        if !nothing || volume.asks_lake() {
            if self.is_read(lake.as_ref(), volume, key).await? {
                return Ok(false);
            }
            let mut claim =
                match self.claim(lake.as_ref(), id, key, VersionId::ZERO, (etag.clone(), 0)).await? {
                    Claimed::Yes(claim) => claim,
                    Claimed::Unsettled(_) | Claimed::Lost => return Ok(false),
                };
            // The claim lets us delete whatever is there. A file may have the name again since the tombstone was read, and be
            // drained: then that is its object.
            let now = self.catalog.get(&[&row.key]).await.map_err(error::catalog)?.pop().flatten();
            if now.is_none_or(|now| now.seq != row.seq) {
                return Ok(false);
            }
            if claim.row.etag.is_none() && etag.is_none() {
                // Nothing is known to be there; perhaps a put whose answer was lost.
                self.put_right(lake.as_ref(), &mut claim, None).await?;
            }
            let target = claim.row.etag.clone().or(etag);
            if let Some(target) = &target
                && self.objects.is_used(id, key, target)
                && tombstone.since_ms + READERS_MS > self.expiry.now_ms()
            {
                return Ok(false);
            }
            let mut deleted = match &target {
                Some(target) => lake.delete(key, Some(target)).await,
                None => Ok(()),
            };
            if let (Err(fault), Some(theirs)) = (&deleted, &tombstone.etag)
                && fault.kind == LakeErrorKind::Changed
                && target.as_ref() != Some(theirs)
            {
                // Somebody else had replaced it, and whoever deleted it here saw that.
                deleted = lake.delete(key, Some(theirs)).await;
            }
            match deleted {
                Ok(()) => {}
                Err(fault) if fault.kind == LakeErrorKind::Changed => {
                    // An earlier put of ours whose answer was lost goes as well; what somebody else put there is theirs,
                    // and shows again.
                    if self.put_right(lake.as_ref(), &mut claim, None).await? {
                        self.drainer.wake();
                        return Ok(false);
                    }
                }
                Err(fault) if fault.kind == LakeErrorKind::Unavailable => {
                    self.leave_unsettled(lake.as_ref(), &mut claim).await?;
                    return Err(error::lake(fault));
                }
                Err(fault) => return Err(error::lake(fault)),
            }
            let row_key = keys::lake_key(id, key);
            change.checks.push(Check::Seq(row_key.clone(), claim.seq));
            grave = self.grave(lake.as_ref(), &claim, was_grave).await?;
            change.writes.push(match &grave {
                Some((left, _)) => Write::Put(row_key, left.encode()),
                None => Write::Delete(row_key),
            });
        } else {
            // Somebody may be about to write there, and has said so since.
            let row_key = keys::lake_key(id, key);
            change.checks.push(match &known {
                Some((_, seq)) => Check::Seq(row_key, *seq),
                None => Check::Absent(row_key),
            });
        }
        change.writes.extend(Sums::writes(None, id, key, ""));
        let attempt = keys::attempt(id, key);
        change.writes.push(match &grave {
            Some((_, look)) => Write::Put(attempt, look.encode()),
            None => Write::Delete(attempt),
        });
        // The lake has nothing of it any more, but drives may.
        let record = tombstone.name_record.map(VersionId);
        change.writes.extend(record.into_iter().flat_map(delete_record_garbage));
        if let Outcome::Done { .. } = self.catalog.commit(change).await.map_err(error::catalog)? {
            lake.end_doubt(key);
            add(&self.drainer.stats.deletes, 1);
            self.looks.forget(volume, key);
            self.garbage.notify_one();
            return Ok(true);
        }
        Ok(false)
    }
}
