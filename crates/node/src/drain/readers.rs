//! Open reads and the lake objects that they rely on (R11). (D85)
//!
//! Whoever has a version open finds its bytes in rings or, once it is clean, in its object. A version that has a name is looked up
//! by it. One that was replaced or deleted has none, and its object is about to go:
//! - *replaced* (a drain or a rename that overwrites the key): the object is first copied, inside the lake, to a key of its own,
//!   `.stoker-open/<version>`. The drain waits for nobody: what is acknowledged must not stay undrained because an old version is open.
//! - *deleted* (a tombstone): the delete waits, the name is hidden already.
//!
//! Until then the object is where it was. A node remembers where the lake has what is open at it when it drains or moves that, or
//! is told that it is clean; else it looks under the name that the file was opened by.
//!
//! A copy has a tombstone from before its first byte, so that it goes like anything deleted: when nobody reads the version. Readers
//! are those of nodes that are not declared down; one that does not answer may have some. Their number can only fall, because nobody
//! opens a version without a name. A node that was restarted or declared down has none, and whoever read there opens the file again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_catalog::kv::{Commit, Outcome};
use stoker_format::{PAST, VersionId, VolumeId};
use stoker_lake::{Condition, Lake, LakeErrorKind, ObjectInfo, PutOptions};
use stoker_schema::rows::{FileRow, RowValue, TombstoneRow, keys};
use stoker_store::{ErrorKind, KEY_LEN_MAX, Result, StoreError};
use tokio::time::Instant;

use super::attributes;
use super::claim::{Claim, Claimed, lost};
use crate::core::{Core, add};
use crate::stage::Extent;
use crate::sums::Sums;
use crate::volumes::Volume;
use crate::{clock, error};
use stoker_records::lake_keys::{OPEN, open_key};

/// Pause before other nodes are asked again whether they read an object that is to be deleted.
const PAUSE: Duration = Duration::from_secs(5);

/// Objects that are remembered; of more than these the lake is asked again.
const WAITING_MAX: usize = 10_000;

/// Refuses keys that are the cluster's own: what lies there is taken for what a node put there. (D89)
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    let Some(own) = [OPEN, super::AWAY, PAST].into_iter().find(|own| key.starts_with(own)) else {
        return Ok(());
    };
    let message =
        format!("keys that begin with `{}` are the cluster's own: choose another one", own.escape_ascii());
    Err(StoreError::new(ErrorKind::Invalid, message))
}

/// Whether a lake may have an object under a path, and the catalog rows that are about it. Longer paths are known to file systems alone.
pub(crate) fn may_be_in_lake(path: &[u8]) -> bool {
    path.len() <= KEY_LEN_MAX
}

/// The version that is kept under a key.
fn kept_version(key: &[u8]) -> Option<VersionId> {
    std::str::from_utf8(key.strip_prefix(OPEN)?).ok()?.parse().ok()
}

/// Deletes that wait for readers, by volume and key: the version, and when to look again.
#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<WaitingKey, (VersionId, Instant)>>);

/// Volume and lake key.
type WaitingKey = (u32, Vec<u8>);

impl Waiting {
    fn get(&self, volume: VolumeId, key: &[u8]) -> Option<(VersionId, Instant)> {
        self.0.lock().unwrap().get(&(volume.0, key.to_vec())).copied()
    }

    fn put(&self, volume: VolumeId, key: &[u8], version: VersionId, look_at: Instant) {
        let mut all = self.0.lock().unwrap();
        if all.len() >= WAITING_MAX {
            all.clear();
        }
        all.insert((volume.0, key.to_vec()), (version, look_at));
    }

    fn end(&self, volume: VolumeId, key: &[u8]) {
        self.0.lock().unwrap().remove(&(volume.0, key.to_vec()));
    }
}

/// The version that an object is: ours by what it says, one that was there before us by its etag.
fn version_of(volume: VolumeId, object: &ObjectInfo) -> VersionId {
    let named = object.attributes.as_ref().and_then(attributes::version).and_then(|id| id.parse().ok());
    named.unwrap_or_else(|| clock::lake_version(volume.0, &object.key, &object.etag))
}

impl Core {
    /// Whether another version than this may be open anywhere.
    fn may_have_readers(&self, but: VersionId) -> bool {
        self.cell.has_others() || self.pins.is_any_open(but)
    }

    /// Whether somebody has a version open that has no name any more. A node that does not answer may.
    async fn has_only_readers(&self, version: VersionId) -> Result<bool> {
        let is_open_here = self.pins.is_open(version);
        if !is_open_here && !self.cell.has_others() {
            return Ok(false);
        }
        if !self.names_of(version).await?.is_empty() {
            return Ok(false);
        }
        if is_open_here {
            return Ok(true);
        }
        let asked = self.cell.others().into_iter().map(|node| async move {
            if self.cell.is_suspect(node) {
                return true;
            }
            self.cell.pinned(node, &[version]).await.map_or(true, |pinned| pinned.contains(&true))
        });
        Ok(futures_util::future::join_all(asked).await.contains(&true))
    }

    /// The object of a version that lost its name and is not replaced or deleted in the lake yet: where this node saw it last, or under
    /// the name that it was opened by.
    pub(crate) async fn left_object(
        &self,
        volume: VolumeId,
        version: VersionId,
        key: &[u8],
    ) -> Result<Option<Arc<Extent>>> {
        if let Some((volume, key, etag)) = self.pins.object(version) {
            return self.extent_of(volume, key, etag).await;
        }
        let row = self.lake_key_row(volume, key).await?;
        let Some(etag) = row.and_then(|(row, _)| row.etag) else { return Ok(None) };
        let Some(extent) = self.extent_of(volume, key.to_vec(), etag).await? else { return Ok(None) };
        let object = self.head(extent.lake.as_ref(), key).await.map_err(error::lake)?;
        let is_it = |object: &ObjectInfo| object.etag == extent.etag && version_of(volume, object) == version;
        Ok(object.as_ref().is_some_and(is_it).then_some(extent))
    }

    /// Whether an object that is to be deleted has to wait for those who read it.
    pub(super) async fn is_read(&self, lake: &dyn Lake, volume: &Volume, key: &[u8]) -> Result<bool> {
        // While a file relies on that one it is not clean, and its chunks stay in rings until the collector has asked everybody.
        if key.starts_with(super::AWAY) {
            return Ok(false);
        }
        let (waiting, now) = (&self.drainer.read, Instant::now());
        let known = waiting.get(volume.id, key);
        if known.is_some_and(|(version, look_at)| self.pins.is_open(version) || now < look_at) {
            return Ok(true);
        }
        if !self.may_have_readers(VersionId::ZERO) {
            waiting.end(volume.id, key);
            return Ok(false);
        }
        // Not the one that was waited for before: that may have been replaced since, and this be another one's end.
        let version = match kept_version(key) {
            Some(version) => version,
            None => match self.head(lake, key).await.map_err(error::lake)? {
                Some(object) => version_of(volume.id, &object),
                None => {
                    waiting.end(volume.id, key);
                    return Ok(false);
                }
            },
        };
        let is_read = self.has_only_readers(version).await?;
        match is_read {
            true if self.cell.has_others() => waiting.put(volume.id, key, version, now + PAUSE),
            true => waiting.put(volume.id, key, version, now),
            false => waiting.end(volume.id, key),
        }
        Ok(is_read)
    }

    /// Copies an object that is about to be replaced, if somebody has it open and no name leads to it; false if that has to wait.
    pub(super) async fn keep_for_readers(
        self: &Arc<Core>,
        lake: &dyn Lake,
        volume: &Arc<Volume>,
        claim: &Claim,
        by: &FileRow,
    ) -> Result<bool> {
        let may_be_open = self.may_have_readers(by.version());
        let Some(etag) = claim.row.etag.as_ref().filter(|_| may_be_open) else { return Ok(true) };
        let object = match self.head(lake, &claim.key).await {
            Ok(Some(object)) if object.etag == *etag => object,
            // What is there is not what we know of: whoever replaces it will see.
            Ok(_) => return Ok(true),
            Err(fault) => return Err(error::lake(fault)),
        };
        let version = version_of(volume.id, &object);
        if version == by.version() || !self.has_only_readers(version).await? {
            return Ok(true);
        }
        let key = open_key(version);
        let Some(_busy) = self.drainer.take_key(volume.id, &key) else { return Ok(false) };
        if self.kept_open(volume.id, version).await?.is_some() {
            return Ok(true);
        }
        let since_ms = clock::now_ms();
        let tombstone = TombstoneRow { since_ms, etag: None, name_record: None };
        let mut commit = Commit::new().put(keys::tombstone(volume.id, &key), tombstone.encode());
        commit.checks.extend(self.guards(volume));
        if let Outcome::Failed { .. } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            return Ok(false);
        }
        let mut kept = match self.claim(lake, volume.id, &key, version, (None, 0)).await? {
            Claimed::Yes(kept) => kept,
            Claimed::Unsettled(_) | Claimed::Lost => return Ok(false),
        };
        let options = PutOptions {
            attributes: attributes::to_lake_copy(&self.signer, &key, version, &object),
            condition: match &kept.row.etag {
                Some(etag) => Condition::Matches(etag.clone()),
                None => Condition::Absent,
            },
            crc64: object.crc64,
        };
        if let Err(fault) = lake.copy(&claim.key, etag, &key, options).await {
            return match fault.kind {
                LakeErrorKind::Changed => {
                    // Either an earlier copy of ours is there, or what is to be copied is gone: whoever replaces it will see.
                    Ok(!self.put_right(lake, &mut kept, None).await?)
                }
                LakeErrorKind::Unavailable => {
                    self.leave_unsettled(lake, &mut kept).await?;
                    Err(error::lake(fault))
                }
                // It is unreadable, and will be: what is acknowledged and waits for this key counts more.
                LakeErrorKind::Corrupt | LakeErrorKind::Invalid | LakeErrorKind::NotFound => {
                    tracing::warn!(
                        object = %claim.key.escape_ascii(),
                        "a version that is open cannot be kept for those who read it, and is replaced: {fault}"
                    );
                    Ok(true)
                }
                _ => Err(error::lake(fault)),
            };
        }
        self.confirm_kept(lake, volume, &kept, &object).await
    }

    /// The lake confirms a copy, and the row that readers look for says so.
    async fn confirm_kept(
        &self,
        lake: &dyn Lake,
        volume: &Volume,
        kept: &Claim,
        object: &ObjectInfo,
    ) -> Result<bool> {
        let there = lake.head(&kept.key).await.map_err(error::lake)?;
        let is_sound = |copy: &ObjectInfo| {
            let sums = copy.crc64.zip(object.crc64);
            copy.size == object.size && sums.is_none_or(|(copy, object)| copy == object)
        };
        let Some(copy) = there.filter(is_sound) else { return Ok(false) };
        let row = self.confirmed(lake, kept, Some(copy.etag.clone())).await?;
        let tombstone =
            TombstoneRow { since_ms: clock::now_ms(), etag: Some(copy.etag.clone()), name_record: None };
        // What is copied may have rotted: whoever reads the copy has to notice.
        let sums = self.sums_of(kept.volume, &object.key, &object.etag, &(0..object.size)).await?;
        let row_key = keys::lake_key(kept.volume, &kept.key);
        let mut commit = Commit::new()
            .seq(row_key.clone(), kept.seq)
            .put(row_key, row.encode())
            .put(keys::tombstone(volume.id, &kept.key), tombstone.encode())
            .delete(keys::attempt(volume.id, &kept.key));
        commit.writes.extend(Sums::writes(sums.as_deref(), kept.volume, &kept.key, &copy.etag));
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                lake.end_doubt(&kept.key);
                add(&self.drainer.stats.kept_open, 1);
                tracing::debug!(object = %String::from_utf8_lossy(&object.key), "kept for those who have it open");
                Ok(true)
            }
            Outcome::Failed { .. } => Err(lost()),
        }
    }
}
