//! What several calls of the door do before and after their own work: what a write must meet to begin, and what is said and waited for.

use std::sync::Arc;

use stoker_format::VersionId;
use stoker_schema::level::Level;
use stoker_schema::names::Quota;
use stoker_schema::rows::Drain;
use stoker_store::{
    Attributes, Awaited, Condition, ErrorKind, KEY_LEN_MAX, Key, Receipt, Result, StoreError, Subject,
    WriteRequest,
};

use crate::core::Core;
use crate::error;
use crate::lookup::no_such_key;
use crate::publish::{FilePurpose, check_condition};
use crate::volumes::Volume;
use crate::writer::ChunkWriter;

/// The level since which every catalog can check a sum.
pub(crate) const QUOTAS_SINCE: Level = Level(4);

impl Core {
    pub(crate) async fn begin_write(
        self: &Arc<Core>,
        volume: Arc<Volume>,
        key: &Key,
        request: WriteRequest,
    ) -> Result<ChunkWriter> {
        self.check_write(&volume, key, &request.attributes, &request.condition).await?;
        self.check_room(&volume, key.as_bytes(), request.size.unwrap_or(1)).await?;
        let size = request.size;
        let purpose = FilePurpose::new(volume.clone(), key.as_bytes().to_vec(), request);
        Ok(ChunkWriter::new(self.clone(), volume, size, Box::new(purpose)))
    }

    /// Refuses at the start what could not be published.
    pub async fn check_write(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        attributes: &Attributes,
        condition: &Condition,
    ) -> Result<()> {
        self.check_open()?;
        self.check_writable(volume)?;
        self.vault.check(volume.id)?;
        self.check_lake(volume, key.as_bytes(), attributes).await?;
        self.check_before(volume, key, condition).await
    }

    /// The same for those who know files by their paths, which may be longer than the keys of a lake.
    pub async fn check_edit(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        attributes: &Attributes,
        condition: &Condition,
    ) -> Result<()> {
        self.check_open()?;
        self.check_writable(volume)?;
        self.vault.check(volume.id)?;
        self.check_path(volume, key.as_bytes(), attributes).await?;
        self.check_before(volume, key, condition).await
    }

    pub(crate) async fn check_before(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        condition: &Condition,
    ) -> Result<()> {
        if !condition.is_empty() {
            let seen = self.seen(volume, key.as_bytes()).await?;
            check_condition(condition, seen.as_ref().map(|seen| seen.file.etag.as_str()))?;
        }
        Ok(())
    }

    /// Refuses what no user may say of a file, and what the lake of the volume could never hold.
    pub async fn check_lake(&self, volume: &Volume, key: &[u8], attributes: &Attributes) -> Result<()> {
        attributes.check()?;
        crate::drain::check_key(key)?;
        if volume.lake_url.is_none() {
            return Ok(());
        }
        let attributes = crate::drain::attributes::to_lake_later(&self.signer, attributes);
        volume.check_lake(self.volumes.lakes(), key, &attributes).await
    }

    /// The same of a path. One that is longer than any key of S3 stays on the drives: it is put aside when it should drain. Where
    /// names are looked for in the lake, there can be none.
    pub async fn check_path(&self, volume: &Volume, key: &[u8], attributes: &Attributes) -> Result<()> {
        if key.len() <= KEY_LEN_MAX || volume.asks_lake() {
            return self.check_lake(volume, key, attributes).await;
        }
        crate::drain::check_key(key)?;
        self.check_lake(volume, b"-", attributes).await
    }

    /// Refuses bytes beyond the quota of the volume. Asked before each publish, because copies, completions and streams of unknown length have
    /// no beginning that could be asked.
    pub async fn check_quota(&self, volume: &Volume, more: u64) -> Result<()> {
        let quota = volume.policy.quota_bytes;
        if quota == 0 || more == 0 {
            return Ok(());
        }
        let used = self.volumes.info(volume).await?.bytes;
        if used.saturating_add(more) <= quota {
            return Ok(());
        }
        let message =
            format!("volume `{}` has a quota of {quota} bytes, of which {used} are used", volume.name);
        Err(StoreError::about(ErrorKind::Full, Subject::Quota, message))
    }

    /// Refuses who begins to write more than the quotas of the volume, its tenant, project and user have left: publishing decides, but then the
    /// bytes were sent in vain. What takes the place of a file needs no more than it has more.
    pub async fn check_room(&self, volume: &Arc<Volume>, key: &[u8], more: u64) -> Result<()> {
        let refused = match self.check_room_for(volume, key, more).await {
            Err(refused) if refused.kind == ErrorKind::Full => refused,
            other => return other,
        };
        match self.seen(volume, key).await?.map_or(0, |seen| seen.file.size) {
            0 => Err(refused),
            replaced if replaced >= more => Ok(()),
            replaced => self.check_room_for(volume, key, more - replaced).await,
        }
    }

    async fn check_room_for(&self, volume: &Volume, key: &[u8], more: u64) -> Result<()> {
        self.check_quota(volume, more).await?;
        let user = crate::publish::user();
        let exceeded = self.names.check_room(volume.id, key, user, more).await.map_err(error::catalog)?;
        exceeded.map_or(Ok(()), |exceeded| Err(error::quota(&exceeded)))
    }

    /// The quota that a publish into a volume has to keep, exactly. Below level 4 a catalog may not know how: then
    /// [`check_quota`](Core::check_quota) is all that there is.
    pub fn quota(&self, volume: &Volume) -> Quota {
        let knows = self.level.get() >= QUOTAS_SINCE;
        Quota { volume_bytes: if knows { volume.policy.quota_bytes } else { 0 } }
    }

    pub(crate) async fn receipt_of(&self, volume: &Arc<Volume>, key: &Key) -> Result<Receipt> {
        let seen = self.seen(volume, key.as_bytes()).await?.ok_or_else(|| no_such_key(key.as_bytes()))?;
        let seq = seen.located.as_ref().map_or(0, |located| located.seq);
        self.receipt_now(volume, key.as_bytes(), &seen.file, seq).await
    }

    pub(crate) async fn await_state(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        version: Option<VersionId>,
        awaited: Awaited,
    ) -> Result<Receipt> {
        let mut wanted = version;
        loop {
            let cleaned = self.drainer.cleaned.notified();
            let receipt = self.receipt_of(volume, key).await?;
            let version = *wanted.get_or_insert(receipt.version);
            if receipt.version != version {
                let message = format!("version {version} of `{key}` was replaced before it got that far");
                return Err(StoreError::new(ErrorKind::NotFound, message));
            }
            match (awaited, &receipt.drain) {
                (Awaited::Committed, _) | (_, stoker_store::DrainState::Clean) => return Ok(receipt),
                (_, stoker_store::DrainState::Never) => {
                    let message = format!("`{key}` is in a volume that does not drain");
                    return Err(StoreError::new(ErrorKind::Invalid, message));
                }
                (_, stoker_store::DrainState::Conflict) => {
                    let message = match self.why_parked(volume, key.as_bytes()).await? {
                        Some(reason) => format!("`{key}` does not drain: {reason}. See `stoker conflict ls`"),
                        None => format!("`{key}` has a conflict with the lake: see `stoker conflict ls`"),
                    };
                    return Err(StoreError::about(ErrorKind::Conflict, Subject::Lake, message));
                }
                (_, stoker_store::DrainState::Dirty) => {}
            }
            self.check_open()?;
            let pause = tokio::time::sleep(std::time::Duration::from_millis(500));
            tokio::select! { biased; () = cleaned => {}, () = pause => {} }
        }
    }

    pub(crate) async fn drain_prefix(self: &Arc<Core>, volume: &Arc<Volume>, prefix: &[u8]) -> Result<u64> {
        if volume.lake_url.is_none() {
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Lake, "the volume has no lake"));
        }
        let mut walk = self.names.walk(volume.id, prefix, None, None).await.map_err(error::catalog)?;
        let mut count = 0;
        while let Some(found) = walk.next().await.map_err(error::catalog)? {
            if let stoker_schema::names::Found::File { file, .. } = found
                && file.drain == Drain::Dirty
            {
                self.drainer.demand(&file);
                count += 1;
            }
        }
        Ok(count)
    }
}
