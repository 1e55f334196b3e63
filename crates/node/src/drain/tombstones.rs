//! Deletes that have to reach the lake.

use std::sync::Arc;

use futures_util::StreamExt;
use stoker_catalog::kv::{Check, Commit, Outcome, Range, Row, Write};
use stoker_catalog::names::Located;
use stoker_catalog::rows::{Drain, LakeKeyRow, RekeyRow, RowValue, TombstoneRow, keys};
use stoker_format::{ChunkId, VersionId};
use stoker_lake::LakeErrorKind;
use stoker_store::Result;

use super::claim::Claimed;
use crate::core::{Core, add};
use crate::rings::NAME_INDEX;
use crate::{clock, error};

/// Tombstones looked at in one round.
const ROUND: usize = 1_000;

/// Deletes sent at the same time.
const AT_ONCE: usize = 16;

impl Core {
    /// Looks at lake keys where something was sent that nobody confirmed: if no file has that name any more (it was renamed
    /// or deleted meanwhile), what may be there has to go.
    pub(super) async fn sweep_round(self: &Arc<Core>) -> Result<()> {
        let page = self.catalog.range(Range::prefix(b"a", ROUND)).await.map_err(error::catalog)?;
        for row in page.rows {
            let Some(id) = keys::volume_part(&row.key) else { continue };
            let key = keys::lake_key_part(&row.key);
            let Some(_busy) = self.drainer.take_key(id, key) else { continue };
            let tombstone = TombstoneRow { since_ms: clock::now_ms(), etag: None, name_record: None };
            let mut change = Commit::new()
                .seq(row.key.clone(), row.seq)
                .absent(keys::tombstone(id, key))
                .put(keys::tombstone(id, key), tombstone.encode());
            if let Some(spot) = self.names.resolve(id, key).await.map_err(error::catalog)? {
                if let Some(located) = self.names.file_at(spot.clone()).await.map_err(error::catalog)? {
                    let at_home = located.file.lake.as_ref().is_some_and(|lake| lake.key == key);
                    if located.file.drain != Drain::Clean {
                        continue;
                    }
                    if !at_home {
                        let rekey = keys::rekey_file(id, located.file.version());
                        let row = RekeyRow { since_ms: clock::now_ms() };
                        let move_it = Commit::new().absent(rekey.clone()).put(rekey, row.encode());
                        let _ = self.catalog.commit(move_it).await.map_err(error::catalog)?;
                        continue;
                    }
                    change = Commit::new().seq(row.key.clone(), row.seq).seq(spot.row_key(), located.seq);
                    change = change.delete(row.key.clone());
                } else {
                    change.checks.push(Check::Absent(spot.row_key()));
                }
            }
            let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
        }
        Ok(())
    }

    /// Carries out a bounded number of deletes.
    pub(super) async fn tombstone_round(self: &Arc<Core>) -> Result<()> {
        let page = self.catalog.range(Range::prefix(b"t", ROUND)).await.map_err(error::catalog)?;
        let ended: Vec<Result<bool>> = futures_util::stream::iter(page.rows)
            .map(|row| async move { self.bury(&row).await })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut any = false;
        for end in ended {
            any |= end?;
        }
        if any && page.more {
            self.drainer.wake();
        }
        Ok(())
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
        if let (false, Some(etag)) = (known, &tombstone.etag) {
            let key = keys::lake_key(located.spot.volume, keys::lake_key_part(&row.key));
            let there = LakeKeyRow { etag: Some(etag.clone()), ..LakeKeyRow::default() };
            change = change.absent(key.clone()).put(key, there.encode());
        }
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// Removes what the lake has under a deleted key; true if the tombstone is gone.
    async fn bury(self: &Arc<Core>, row: &Row) -> Result<bool> {
        let tombstone = TombstoneRow::of(row).map_err(error::catalog)?;
        let Some(id) = keys::volume_part(&row.key) else { return Ok(false) };
        let key = keys::lake_key_part(&row.key);
        let Some(volume) = self.volumes.by_id(id).await? else {
            let gone = Commit::new().seq(row.key.clone(), row.seq).delete(row.key.clone());
            let _ = self.catalog.commit(gone).await.map_err(error::catalog)?;
            return Ok(true);
        };
        let Some(_busy) = self.drainer.take_key(id, key) else { return Ok(false) };
        if self.relier(id, key).await?.is_some() || self.rekey_pending(id).await? {
            return Ok(false);
        }
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(false) };
        let known = self.lake_key_row(id, key).await?;
        if let Some(spot) = self.names.resolve(id, key).await.map_err(error::catalog)?
            && let Some(located) = self.names.file_at(spot).await.map_err(error::catalog)?
        {
            return self.unbury(row, &tombstone, &located, known.is_some()).await;
        }
        let etag = known.as_ref().and_then(|(row, _)| row.etag.clone()).or(tombstone.etag.clone());
        let untouched = known.as_ref().is_none_or(|(row, _)| row.upload.is_none() && row.attempts.is_empty());
        let nothing = etag.is_none() && untouched;
        let mut change = Commit::new()
            .seq(row.key.clone(), row.seq)
            .delete(row.key.clone())
            .delete(keys::attempt(id, key));
        if !nothing || volume.asks_lake() {
            let mut claim = match self.claim(lake.as_ref(), id, key, VersionId::ZERO, etag.clone()).await? {
                Claimed::Yes(claim) => claim,
                Claimed::Unsettled(_) | Claimed::Lost => return Ok(false),
            };
            if claim.row.etag.is_none() && etag.is_none() {
                // Nothing is known to be there; perhaps a put whose answer was lost.
                self.put_right(lake.as_ref(), &mut claim).await?;
            }
            let target = claim.row.etag.clone().or(etag);
            let deleted = match &target {
                Some(target) => lake.delete(key, Some(target)).await,
                None => Ok(()),
            };
            match deleted {
                Ok(()) => {}
                Err(fault) if fault.kind == LakeErrorKind::Changed => {
                    // An earlier put of ours whose answer was lost goes as well; what somebody else put there is theirs,
                    // and shows again.
                    if self.put_right(lake.as_ref(), &mut claim).await? {
                        self.drainer.wake();
                        return Ok(false);
                    }
                }
                Err(fault) if fault.kind == LakeErrorKind::Unavailable => {
                    self.leave_unsettled(&mut claim).await?;
                    return Err(error::lake(fault));
                }
                Err(fault) => return Err(error::lake(fault)),
            }
            let row_key = keys::lake_key(id, key);
            change.checks.push(Check::Seq(row_key.clone(), claim.seq));
            change.writes.push(Write::Delete(row_key));
        }
        if let Outcome::Done { .. } = self.catalog.commit(change).await.map_err(error::catalog)? {
            add(&self.drainer.stats.deletes, 1);
            self.looks.forget(&volume, key);
            if let Some(record) = tombstone.name_record {
                self.rings.delete(&[ChunkId::new(VersionId(record), NAME_INDEX)]).await?;
            }
            return Ok(true);
        }
        Ok(false)
    }
}
