//! Conflicts: listed, and ended by a person.

use std::sync::Arc;

use stoker_catalog::kv::{Commit, Outcome, Range};
use stoker_lake::Lake;
use stoker_schema::names::{Located, Spot};
use stoker_schema::rows::{ConflictRow, Drain, EntryRow, FileRow, LakeKeyRow, LakeRef, RowValue, keys};
use stoker_store::{
    Conflict, DrainPolicy, ErrorKind, Key, RenameMode, Resolution, Result, StoreError, Subject,
};

use super::upload::HELD_MS;
use super::{End, attributes, may_be_in_lake};
use crate::core::{Core, add};
use crate::lookup::{lake_row, no_such_key};
use crate::properties::Properties;
use crate::volumes::Volume;
use crate::{clock, error};

/// The part of a node's drives that files may take which the lake should not hold.
const PARKED_SHARE: u64 = 16;

/// Conflicts shown at most.
const SHOWN_MAX: usize = 10_000;

impl Core {
    /// Why a lake could or should never hold a file under this key; none if it could.
    pub(super) fn refused(&self, lake: &dyn Lake, key: &[u8], file: &FileRow) -> Result<Option<String>> {
        let properties = Properties::decode(&file.properties)?;
        let attributes = attributes::to_lake(&self.signer, key, file, &properties, u64::MAX);
        let refused = || lake.check(key, &attributes).err().map(|fault| fault.message);
        Ok(self.drainer.too_sparse(file).or_else(refused))
    }

    /// Why a file that was put aside cannot be drained; none if somebody else changed the lake.
    pub async fn why_parked(&self, volume: &Volume, key: &[u8]) -> Result<Option<String>> {
        let found = self.names.lookup(volume.id, key).await.map_err(error::catalog)?;
        let Some(Located { spot, .. }) = found else { return Ok(None) };
        let conflict = keys::conflict(spot.volume, spot.parent, &spot.name);
        let row = self.catalog.get(&[&conflict]).await.map_err(error::catalog)?.pop().flatten();
        Ok(row.as_ref().map(ConflictRow::of).transpose().map_err(error::catalog)?.and_then(|row| row.refused))
    }

    /// Refuses a file that would stay on the drives for good, because the lake should not hold its holes, once such files take their
    /// share: undrained bytes without an end would stop all writes. (D108)
    pub async fn check_parked(&self, volume: &Volume, key: &[u8], file: &FileRow) -> Result<()> {
        let drains = volume.lake_url.is_some() && volume.policy.drain != DrainPolicy::Never;
        let Some(why) = drains.then(|| self.drainer.too_sparse(file)).flatten() else { return Ok(()) };
        let share = self.rings.capacity() / PARKED_SHARE;
        let parked = self.conflict_list(None).await?;
        let is_other = |parked: &&Conflict| parked.volume != volume.name || parked.file.key.as_bytes() != key;
        let parked = parked.iter().filter(|parked| parked.refused.is_some()).filter(is_other);
        let stored: u64 = parked.map(|parked| parked.file.allocated.unwrap_or(parked.file.size)).sum();
        if stored.saturating_add(file.allocated()) <= share {
            return Ok(());
        }
        let message = format!("{why}; files that never drain may take {share} bytes, and {stored} are taken");
        Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message))
    }

    /// Versions that wait for a person.
    pub async fn conflict_list(&self, volume: Option<&str>) -> Result<Vec<Conflict>> {
        let only = match volume {
            Some(name) => Some(self.volumes.get(name).await?.id),
            None => None,
        };
        let prefix = only.map_or(b"x".to_vec(), |id| [b"x", &id.0.to_be_bytes()[..]].concat());
        let mut range = Range::prefix(&prefix, 1_000);
        let mut found = Vec::new();
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let Some((id, parent, name)) = keys::conflict_parts(&row.key) else { continue };
                let Some(volume) = self.volumes.by_id(id).await? else { continue };
                let spot = Spot { volume: id, parent, name: name.to_vec() };
                let Some(path) = self.names.path_of(&spot).await.map_err(error::catalog)? else { continue };
                let Some(located) = self.names.file_at(spot).await.map_err(error::catalog)? else { continue };
                let conflict = ConflictRow::of(row).map_err(error::catalog)?;
                found.push(Conflict {
                    volume: volume.name.clone(),
                    file: Core::info(&path, &located.file)?,
                    lake_etag_expected: conflict.etag_expected,
                    lake_etag_found: conflict.etag_found,
                    since_ms: conflict.since_ms,
                    refused: conflict.refused,
                });
            }
            match page.rows.last() {
                Some(last) if page.more && found.len() < SHOWN_MAX => range = range.after(&last.key),
                _ => return Ok(found),
            }
        }
    }

    /// Puts a version aside that the lake will never take as it is: trying again changes nothing until a person did.
    pub(super) async fn park_refused(&self, located: &Located, key: &[u8], reason: String) -> Result<End> {
        let spot = &located.spot;
        let key = String::from_utf8_lossy(key).into_owned();
        tracing::warn!(key, "a file cannot be drained ({reason}): see `stoker conflict ls`");
        let row = ConflictRow {
            version: located.file.version,
            etag_expected: located.file.lake.as_ref().map(|lake| lake.etag.clone()),
            etag_found: None,
            since_ms: clock::now_ms(),
            refused: Some(reason),
        };
        let file = FileRow { drain: Drain::Conflict, ..located.file.clone() };
        let entry = spot.row_key();
        let commit = Commit::new()
            .seq(entry.clone(), located.seq)
            .put(entry, EntryRow::File(Box::new(file)).encode())
            .put(keys::conflict(spot.volume, spot.parent, &spot.name), row.encode());
        if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            self.saw(seq);
            add(&self.drainer.stats.conflicts, 1);
            return Ok(End::Done);
        }
        Ok(End::Later(clock::now_ms() + HELD_MS))
    }

    /// The lake object that a file was copied from has another etag. If it is still this version, the file relies on it as it is
    /// now, and this is true: the drain of the file itself may have put it there, under the name that the file had then.
    pub(super) async fn follow_source(
        &self,
        lake: &dyn Lake,
        volume: &Volume,
        located: &Located,
    ) -> Result<bool> {
        let mut file = located.file.clone();
        let Some(source) = file.source.as_mut().filter(|source| source.volume == volume.id.0) else {
            return Ok(false);
        };
        let Some(object) = self.head(lake, &source.key).await.map_err(error::lake)? else { return Ok(false) };
        let version = located.file.version().to_string();
        let is_same = object.attributes.as_ref().and_then(attributes::version) == Some(version.as_str());
        let is_sound = object.crc64.is_none() || file.crc64.is_none() || object.crc64 == file.crc64;
        if object.etag == source.etag || !is_same || object.size != file.size || !is_sound {
            return Ok(false);
        }
        source.etag = object.etag;
        let entry = located.spot.row_key();
        let commit =
            Commit::new().seq(entry.clone(), located.seq).put(entry, EntryRow::File(Box::new(file)).encode());
        // Whoever was faster changed the file, and it is looked at again in any case.
        self.catalog.commit(commit).await.map(|_| true).map_err(error::catalog)
    }

    /// Ends a conflict.
    pub async fn resolve_conflict(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        resolution: Resolution,
    ) -> Result<()> {
        let path = key.as_bytes();
        let located = self.names.lookup(volume.id, path).await.map_err(error::catalog)?;
        let located = located.ok_or_else(|| no_such_key(path))?;
        if located.file.drain != Drain::Conflict {
            return Err(StoreError::new(ErrorKind::Invalid, format!("`{key}` has no conflict")));
        }
        if !may_be_in_lake(path) {
            let message =
                format!("the lake holds no key of {} bytes: give the file a shorter path", path.len());
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Lake, message));
        }
        if resolution == Resolution::KeepBoth {
            // Ours moves aside and drains there; theirs is then what the lake shows.
            let aside =
                Key::new([path, b".stoker-", &located.file.version().to_string().as_bytes()[12..]].concat())?;
            self.unpark(volume, path, None).await?;
            let moved = self.rename_any(volume, key, &aside, RenameMode::NoReplace).await;
            moved?;
            self.adopt_lake(volume, path).await?;
            self.drainer.wake();
            return Ok(());
        }
        let lake = volume.lake(self.volumes.lakes()).await?;
        let Some(lake) = lake else {
            return Err(StoreError::new(ErrorKind::Invalid, "the volume has no lake"));
        };
        let theirs = self.head(lake.as_ref(), path).await.map_err(error::lake)?;
        match (resolution, theirs) {
            (Resolution::Theirs, Some(object)) => {
                let file = lake_row(volume.id, self.chunk_bytes, &object)?;
                let guards = self.guards(volume);
                let taken = self.names.publish(volume.id, path, &guards, |_| {
                    let mut plan = stoker_schema::names::Plan::simple(file.clone());
                    plan.keeping = self.keeping(volume, path);
                    let spot = &located.spot;
                    let row = LakeKeyRow { etag: Some(object.etag.clone()), ..LakeKeyRow::default() };
                    plan.writes = vec![
                        stoker_catalog::Write::Delete(keys::conflict(spot.volume, spot.parent, &spot.name)),
                        stoker_catalog::Write::Put(keys::lake_key(volume.id, path), row.encode()),
                    ];
                    Box::pin(async move { Ok(plan) })
                });
                let taken = taken.await.map_err(error::refusal)?;
                self.saw(taken.seq);
                self.garbage.notify_one();
                Ok(())
            }
            (Resolution::Theirs, None) => {
                self.unpark(volume, path, None).await?;
                self.delete_file(volume, path, &stoker_store::Condition::default()).await.map(|_| ())
            }
            (_, theirs) => self.unpark(volume, path, theirs.map(|object| object.etag)).await,
        }
    }

    /// What the lake shows under a key becomes a file of the catalog.
    async fn adopt_lake(self: &Arc<Core>, volume: &Arc<Volume>, path: &[u8]) -> Result<()> {
        let lake = volume.lake(self.volumes.lakes()).await?;
        let Some(lake) = lake else { return Ok(()) };
        let Some(object) = self.head(lake.as_ref(), path).await.map_err(error::lake)? else { return Ok(()) };
        let file = lake_row(volume.id, self.chunk_bytes, &object)?;
        let guards = self.guards(volume);
        let taken = self.names.publish(volume.id, path, &guards, |_| {
            let mut plan = stoker_schema::names::Plan::simple(file.clone());
            let row = LakeKeyRow { etag: Some(object.etag.clone()), ..LakeKeyRow::default() };
            plan.writes = vec![
                stoker_catalog::Write::Put(keys::lake_key(volume.id, path), row.encode()),
                stoker_catalog::Write::Delete(keys::tombstone(volume.id, path)),
            ];
            Box::pin(async move { Ok(plan) })
        });
        let taken = taken.await.map_err(error::refusal)?;
        self.saw(taken.seq);
        Ok(())
    }

    /// The version drains again, and may replace what has this etag.
    async fn unpark(self: &Arc<Core>, volume: &Arc<Volume>, path: &[u8], etag: Option<String>) -> Result<()> {
        for _ in 0..100 {
            let located = self.names.lookup(volume.id, path).await.map_err(error::catalog)?;
            let located = located.ok_or_else(|| no_such_key(path))?;
            let spot = &located.spot;
            let mut file = located.file.clone();
            file.drain = Drain::Dirty;
            file.lake = etag.clone().map(|etag| LakeRef { key: path.to_vec(), etag });
            let known = self.lake_key_row(volume.id, path).await?;
            let mut row = known.as_ref().map(|(row, _)| row.clone()).unwrap_or_default();
            row.etag = etag.clone();
            let (entry, row_key) = (spot.row_key(), keys::lake_key(volume.id, path));
            let mut commit = Commit::new()
                .seq(entry.clone(), located.seq)
                .put(entry, EntryRow::File(Box::new(file.clone())).encode())
                .put(row_key.clone(), row.encode())
                .delete(keys::conflict(spot.volume, spot.parent, &spot.name));
            commit = match &known {
                Some((_, seq)) => commit.seq(row_key, *seq),
                None => commit.absent(row_key),
            };
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.drainer.demand(&file);
                return Ok(());
            }
        }
        Err(error::refusal(stoker_schema::names::Refusal::Contended))
    }
}
