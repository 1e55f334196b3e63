//! Writes that find too few nodes and go on when the lake has them (`when_alone = lake`). (D42)
//!
//! The bytes go to the lake under a key of their own, named by their version: nothing that somebody reads is replaced before
//! the publish (R11), and what is to be undone is nobody else's. The order is: chunks here, intent row, claim (R10), put,
//! confirmation, publish. The publish removes the intent and makes the file a copy of that object which has not been drained;
//! its drain copies it to its name, and a tombstone removes the object then. While an intent is there nothing was published,
//! so that a crash in between is undone by whoever finds the session over; nothing else removes an intent.

use std::sync::Arc;
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome, Row, Write};
use stoker_format::{VersionId, VolumeId};
use stoker_lake::{Lake, LakeErrorKind};
use stoker_schema::rows::{Drain, FileRow, IntentRow, LakeKeyRow, RowValue, SourceRef, TombstoneRow, keys};
use stoker_store::{BoxFuture, ErrorKind, Receipt, Result, StoreError, Subject};

use super::claim::Claimed;
use crate::core::{Core, add};
use crate::publish::Job;
use crate::reader::{NodeFile, Whereabouts};
use crate::sums::Sums;
use crate::volumes::Volume;
use crate::{clock, error};
use stoker_records::lake_keys::AWAY;

/// Pause before an undo that failed is tried again.
const UNDO_PAUSE: Duration = Duration::from_secs(1);

fn away_key(version: VersionId) -> Vec<u8> {
    [AWAY, version.to_string().as_bytes()].concat()
}

/// Where the lake has a file that was written without enough nodes and is not drained yet.
pub(crate) fn away<'f>(volume: &Volume, file: &'f FileRow) -> Option<&'f SourceRef> {
    let source = file.source.as_ref().filter(|_| file.drain != Drain::Clean)?;
    (source.volume == volume.id.0 && source.key.starts_with(AWAY)).then_some(source)
}

impl Core {
    /// Publishes a file that too few nodes have, after the lake has it.
    pub async fn publish_alone(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        mut job: Job,
    ) -> Result<Receipt> {
        volume.check_writable()?;
        if let Some(reason) = self.drainer.too_sparse(&job.row) {
            let message = format!("too few nodes take it, and the lake does not, because {reason}");
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message));
        }
        let version = job.row.version();
        let at = away_key(version);
        let busy = || StoreError::new(ErrorKind::Unavailable, "this version is on its way to the lake");
        let held = self.drainer.take_key(volume.id, &at).ok_or_else(busy)?;
        let intent = match self.intend(volume, &at, version).await {
            Ok(intent) => intent,
            Err(fault) => {
                // It may be there although nobody said so.
                drop(held);
                self.undo_soon(volume.id, at);
                return Err(fault);
            }
        };
        let published = match self.send_away(volume, key, &job, &at).await {
            Ok((seq, confirmed, etag, sums)) => {
                let row_key = keys::lake_key(volume.id, &at);
                job.row.source = Some(SourceRef { volume: volume.id.0, key: at.clone(), etag: etag.clone() });
                job.checks.push(Check::Value(keys::intent(volume.id, &at), intent.encode()));
                job.checks.push(Check::Seq(row_key.clone(), seq));
                let tombstone =
                    TombstoneRow { since_ms: clock::now_ms(), etag: Some(etag.clone()), name_record: None };
                job.writes.extend(Sums::writes(sums.as_ref(), volume.id, &at, &etag));
                job.writes.extend([
                    Write::Delete(keys::intent(volume.id, &at)),
                    Write::Put(row_key, confirmed.encode()),
                    Write::Delete(keys::attempt(volume.id, &at)),
                    // Carried out when the file does not rely on the object any more (R11).
                    Write::Put(keys::tombstone(volume.id, &at), tombstone.encode()),
                ]);
                self.publish(volume, key, job).await
            }
            Err(fault) => Err(too_few_and_no_lake(volume, &fault)),
        };
        drop(held);
        match &published {
            Ok(_) => add(&self.stats.alone_publishes, 1),
            Err(_) => self.undo_soon(volume.id, at),
        }
        published
    }

    pub(super) async fn intend(&self, volume: &Volume, at: &[u8], version: VersionId) -> Result<IntentRow> {
        let row = IntentRow { version: version.0, session: self.session_id, since_ms: clock::now_ms() };
        let key = keys::intent(volume.id, at);
        let mut commit = Commit::new().absent(key.clone()).put(key, row.encode());
        commit.checks.extend(self.guards(volume));
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(row)
            }
            Outcome::Failed { .. } => {
                Err(StoreError::new(ErrorKind::Unavailable, "this node's session or its volume is gone"))
            }
        }
    }

    /// Sends the bytes to the lake under a key of their own, and has them confirmed there. Gives the claim, by its number, what
    /// it becomes, the etag, and the sums of what was sent.
    async fn send_away(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        job: &Job,
        at: &[u8],
    ) -> Result<(u64, LakeKeyRow, String, Option<Sums>)> {
        let no_lake = || StoreError::new(ErrorKind::Unavailable, "the volume has no lake");
        let lake: Arc<dyn Lake> = volume.lake(self.volumes.lakes()).await?.ok_or_else(no_lake)?;
        let version = job.row.version();
        let mut claim = match self.claim(lake.as_ref(), volume.id, at, version, (None, 0)).await? {
            Claimed::Yes(claim) => claim,
            Claimed::Unsettled(_) | Claimed::Lost => return Err(super::claim::lost()),
        };
        let runs = job.runs.runs().to_vec();
        let (info, pins) = (Core::info(key, &job.row)?, vec![self.pins.pin(version)]);
        let open = NodeFile::new(self.clone(), volume, info, runs, Whereabouts::default(), pins);
        // Somebody waits for it.
        let _demand = self.drainer.pace.demand();
        match self.send(lake.as_ref(), volume, &job.row, &mut claim, Some(&open)).await {
            Ok((object, sums)) => {
                let row = self.confirmed(lake.as_ref(), &claim, Some(object.etag.clone())).await?;
                Ok((claim.seq, row, object.etag, sums))
            }
            Err(fault) => {
                if fault.kind == LakeErrorKind::Unavailable {
                    self.leave_unsettled(lake.as_ref(), &mut claim).await?;
                }
                Err(error::lake(fault))
            }
        }
    }

    /// Undoes a write of this node that failed, in the background. If this boot ends before, the next one does it.
    pub(super) fn undo_soon(self: &Arc<Core>, volume: VolumeId, at: Vec<u8>) {
        let core = self.clone();
        self.tasks.spawn(async move {
            while core.check_open().is_ok() {
                match core.undo(volume, &at).await {
                    Ok(()) => return,
                    Err(fault) => tracing::warn!("undoing a write: {fault}"),
                }
                tokio::time::sleep(UNDO_PAUSE).await;
            }
        });
    }

    async fn undo(&self, volume: VolumeId, at: &[u8]) -> Result<()> {
        let key = keys::intent(volume, at);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        // None: it was published after all, or undone.
        let Some(row) = row else { return Ok(()) };
        let tombstone = TombstoneRow { since_ms: clock::now_ms(), etag: None, name_record: None };
        let commit = Commit::new()
            .seq(key.clone(), row.seq)
            .delete(key)
            .put(keys::tombstone(volume, at), tombstone.encode());
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        self.drainer.wake();
        Ok(())
    }

    /// Undoes what sessions that are over have left.
    pub(super) async fn undo_round(self: &Arc<Core>, volume: VolumeId) -> Result<bool> {
        let undo = |row: Row| -> BoxFuture<'_, Result<bool>> {
            Box::pin(async move {
                let intent = IntentRow::of(&row).map_err(error::catalog)?;
                if intent.session == self.session_id || self.cell.view().node_of(intent.session).is_some() {
                    return Ok(false);
                }
                // A node may have come since this one looked.
                if self.cell.is_joined() && self.cell.load_view().await?.node_of(intent.session).is_some() {
                    return Ok(false);
                }
                self.undo(volume, keys::lake_key_part(&row.key)).await?;
                Ok(true)
            })
        };
        self.each_row(&keys::intent(volume, b""), 1, undo).await
    }
}

fn too_few_and_no_lake(volume: &Volume, fault: &StoreError) -> StoreError {
    let message = format!(
        "volume `{}` finds too few nodes for its class, and its lake cannot take the write either ({fault}); try again, or \
         see `stoker status`",
        volume.name
    );
    StoreError::about(ErrorKind::Unavailable, Subject::Volume, message)
}
