//! Renames that have to reach the lake: copy, verify, then delete through a tombstone.

use std::sync::Arc;

use stoker_catalog::kv::{Commit, Outcome, Row};
use stoker_format::VersionId;
use stoker_lake::{Condition, Lake, LakeErrorKind, PutOptions};
use stoker_schema::names::{Found, Located};
use stoker_schema::rows::{Drain, EntryRow, LakeRef, RekeyRow, RowValue, keys};
use stoker_store::{BoxFuture, Result};

use super::attributes;
use super::claim::Claimed;
use super::may_be_in_lake;
use crate::core::{Core, add};
use crate::properties::Properties;
use crate::sums::Sums;
use crate::volumes::Volume;
use crate::{clock, error};

impl Core {
    /// Moves objects to the keys that their files have now.
    pub(super) async fn rekey_round<'a>(self: &'a Arc<Core>, volume: &'a Arc<Volume>) -> Result<bool> {
        let rekey = |row: Row| -> BoxFuture<'_, Result<bool>> { Box::pin(self.rekey(volume, row)) };
        self.each_row(&keys::rekeys(volume.id), 1, rekey).await
    }

    async fn rekey(self: &Arc<Core>, volume: &Arc<Volume>, row: Row) -> Result<bool> {
        let done = match row.key.get(5) {
            Some(b'f') => self.rekey_version(volume, &row).await?,
            Some(b'd') => self.rekey_directory(volume, &row).await?,
            _ => false,
        };
        if done {
            let record = RekeyRow::of(&row).map_err(error::catalog)?.name_record;
            let commit = Commit::new().seq(row.key.clone(), row.seq).delete(row.key.clone());
            if let Outcome::Done { .. } = self.catalog.commit(commit).await.map_err(error::catalog)?
                && let Some(record) = record
            {
                self.forget_record(VersionId(record)).await?;
            }
        }
        Ok(false)
    }

    async fn rekey_version(self: &Arc<Core>, volume: &Arc<Volume>, row: &Row) -> Result<bool> {
        let Some(version) = row.key.get(6..18).and_then(|id| id.try_into().ok()).map(VersionId) else {
            return Ok(true);
        };
        let mut done = true;
        for located in self.names_of(version).await? {
            if located.spot.volume == volume.id {
                done &= self.rekey_file(volume, located).await?;
            }
        }
        Ok(done)
    }

    async fn rekey_directory(self: &Arc<Core>, volume: &Arc<Volume>, row: &Row) -> Result<bool> {
        let Some(inode) = row.key.get(6..14).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes) else {
            return Ok(true);
        };
        let path = self.names.directory_path(volume.id, inode).await.map_err(error::catalog)?;
        let Some(path) = path else { return Ok(true) };
        let mut walk = self.names.walk(volume.id, &path, None, None).await.map_err(error::catalog)?;
        let mut done = true;
        let mut trouble = None;
        while let Some(found) = walk.next().await.map_err(error::catalog)? {
            let Found::File { key, spot, file } = found else { continue };
            if file.drain == Drain::Never {
                // No lake will say where it is now, so its own record has to.
                self.leave_put(volume, &key, &file, self.seq_now().await).await?;
            }
            let is_elsewhere =
                file.drain == Drain::Clean && file.lake.as_ref().is_some_and(|lake| lake.key != key);
            if !is_elsewhere {
                // A drain under the old name may still be under way, and the record of the rename is needed until it is done.
                done &= file.drain != Drain::Dirty;
                continue;
            }
            if let Some(located) = self.names.file_at(spot).await.map_err(error::catalog)? {
                match self.rekey_file(volume, located).await {
                    Ok(moved) => done &= moved,
                    Err(fault) => trouble = trouble.or(Some(fault)),
                }
            }
            if self.closing.load(std::sync::atomic::Ordering::Relaxed) {
                return Ok(false);
            }
        }
        match trouble {
            Some(fault) => Err(fault),
            None => Ok(done),
        }
    }

    /// The file that relies on what is under a lake key although it has another name: it was renamed with its directory, and
    /// is about to move.
    pub(super) async fn tenant(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        lake: &dyn Lake,
        key: &[u8],
    ) -> Result<Option<Located>> {
        let Some(object) = self.head(lake, key).await.map_err(error::lake)? else { return Ok(None) };
        let named = object.attributes.as_ref().and_then(attributes::version).and_then(|id| id.parse().ok());
        // One that was there before us has the version of its etag.
        let found = clock::lake_version(volume.id.0, key, &object.etag);
        for version in named.into_iter().chain([found]) {
            for located in self.names_of(version).await? {
                let is_there = located.file.lake.as_ref().is_some_and(|lake| lake.key == key);
                if located.spot.volume != volume.id || located.file.drain != Drain::Clean || !is_there {
                    continue;
                }
                let path = self.names.path_of(&located.spot).await.map_err(error::catalog)?;
                if path.is_some_and(|path| path != key) {
                    return Ok(Some(located));
                }
            }
        }
        Ok(None)
    }

    /// Writes down that a file relies on an object that is not under its name (R11); false if the file changed meanwhile.
    async fn rely(&self, located: &Located, old: &LakeRef) -> Result<bool> {
        let dependent =
            keys::dependent(located.spot.volume, &old.key, located.file.version(), located.file.inode);
        if self.catalog.get(&[&dependent]).await.map_err(error::catalog)?.iter().all(Option::is_some) {
            return Ok(true);
        }
        let commit = Commit::new().seq(located.spot.row_key(), located.seq).put(dependent, Vec::new());
        let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// Copies an object to the key of its file; false if that has to wait.
    async fn rekey_file(self: &Arc<Core>, volume: &Arc<Volume>, located: Located) -> Result<bool> {
        let file = &located.file;
        let (Drain::Clean, Some(old)) = (file.drain, &file.lake) else { return Ok(true) };
        let path = self.names.path_of(&located.spot).await.map_err(error::catalog)?;
        let Some(key) = path.filter(|key| *key != old.key) else { return Ok(true) };
        if !may_be_in_lake(&key) {
            // It relies on what it has there, under the name that it had.
            return self.rely(&located, old).await;
        }
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(true) };
        let Some(_busy) = self.drainer.take_key(volume.id, &key) else { return Ok(false) };
        let version = file.version();
        // A rename of a directory does not say what each file in it relies on.
        if !self.rely(&located, old).await? {
            return Ok(false);
        }
        if let Some(tenant) = self.tenant(volume, lake.as_ref(), &key).await?
            && let Some(there) = tenant.file.lake.as_ref()
            && !self.rely(&tenant, there).await?
        {
            return Ok(false);
        }
        if let Some(other) = self.dependent(volume.id, &key, Some((version, file.inode))).await? {
            self.hurry(other).await?;
            return Ok(false);
        }
        let mut claim = match self.claim(lake.as_ref(), volume.id, &key, version, (None, 0)).await? {
            Claimed::Yes(claim) => claim,
            Claimed::Unsettled(_) | Claimed::Lost => return Ok(false),
        };
        if !self.still_has(&located, &key).await? {
            return Ok(false);
        }
        if !self.keep_for_readers(lake.as_ref(), volume, &claim, file).await? {
            return Ok(false);
        }
        let properties = Properties::decode(&file.properties)?;
        let options = PutOptions {
            attributes: attributes::to_lake(&self.signer, &key, file, &properties, self.seq_known()),
            condition: match &claim.row.etag {
                Some(etag) => Condition::Matches(etag.clone()),
                None => Condition::Absent,
            },
            crc64: file.crc64,
        };
        if let Err(fault) = lake.copy(&old.key, &old.etag, &key, options).await {
            if fault.kind == LakeErrorKind::Unavailable {
                self.leave_unsettled(lake.as_ref(), &mut claim).await?;
            }
            let there = self.head(lake.as_ref(), &key).await.map_err(error::lake)?;
            let name = version.to_string();
            let found =
                there.as_ref().and_then(|object| object.attributes.as_ref()).and_then(attributes::version);
            if found != Some(name.as_str()) {
                if fault.kind == LakeErrorKind::Changed
                    && self.put_right(lake.as_ref(), &mut claim, None).await?
                {
                    self.drainer.wake();
                    return Ok(false);
                }
                return Err(error::lake(fault));
            }
        }
        let Some(object) = self.head(lake.as_ref(), &key).await.map_err(error::lake)? else {
            return Ok(false);
        };
        if object.size != file.size
            || (object.crc64.is_some() && file.crc64.is_some() && object.crc64 != file.crc64)
        {
            return Ok(false);
        }
        let row = self.confirmed(lake.as_ref(), &claim, Some(object.etag.clone())).await?;
        let mut moved = file.clone();
        let etag = object.etag;
        moved.lake = Some(LakeRef { key: key.clone(), etag: etag.clone() });
        let entry = located.spot.row_key();
        let mut change = Commit::new()
            .seq(keys::lake_key(volume.id, &key), claim.seq)
            .seq(entry.clone(), located.seq)
            .put(keys::lake_key(volume.id, &key), row.encode())
            .put(entry, EntryRow::File(Box::new(moved)).encode())
            .delete(keys::attempt(volume.id, &key))
            .delete(keys::dependent(volume.id, &old.key, version, file.inode));
        let sums = self.sums_of(volume.id, &old.key, &old.etag, &(0..file.size)).await?;
        change.writes.extend(Sums::writes(sums.as_deref(), volume.id, &key, &etag));
        self.leave_behind(&mut change, volume, old).await?;
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { .. } => {
                lake.end_doubt(&key);
                self.pins.note_object(version, volume.id, &key, &etag);
                add(&self.drainer.stats.rekeys, 1);
                Ok(true)
            }
            Outcome::Failed { .. } => Ok(false),
        }
    }
}
