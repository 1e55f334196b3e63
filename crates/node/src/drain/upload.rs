//! One file to the lake.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::StreamExt;
use stoker_catalog::kv::{Check, Commit, Outcome, Range, Write};
use stoker_format::{ChunkId, ChunkRun, DriveId, NodeId, VersionId, VolumeId};
use stoker_lake::{Condition, Lake, LakeError, LakeErrorKind, ObjectInfo, PartTag, PutOptions};
use stoker_schema::names::{Located, Spot, dirty_writes};
use stoker_schema::rows::{
    ConflictRow, Drain, EntryRow, FileRow, LakeRef, RekeyRow, RowValue, TombstoneRow, keys,
};
use stoker_store::{ErrorKind, Result, StoreError};

use super::claim::{Claim, Claimed, lost};
use super::tombstones::READERS_MS;
use super::{End, attributes, may_be_in_lake};
use crate::cache::PIECE;
use crate::cell::Protected;
use crate::core::{Core, add};
use crate::properties::Properties;
use crate::reader::NodeFile;
use crate::rings::{self, NAME_INDEX};
use crate::sums::{Summer, Sums, piece_len_of};
use crate::volumes::Volume;
use crate::{clock, error};

/// Files up to this long are one request.
const SINGLE_BYTES: u64 = 16 << 20;

/// Length of a part, unless the file needs longer ones.
const PART_BYTES: u64 = 16 << 20;

/// Parts of one file under way at the same time.
const PARTS_IN_FLIGHT: usize = 2;

/// Times that a claim is put right within one try.
const RIGHTED_MAX: usize = 4;

/// Users of shared chunks that are looked at; if there are more, the chunks stay.
const USERS_MAX: usize = 64;

/// Pause before a key that something else holds is tried again.
pub(super) const HELD_MS: u64 = 500;

/// What went wrong before the lake was asked.
fn before_lake(fault: StoreError) -> LakeError {
    LakeError::new(LakeErrorKind::Unavailable, format!("before the lake: {}", fault.message))
}

impl Core {
    /// Drains one name of a version.
    pub(super) async fn drain_file(self: &Arc<Core>, volume: &Arc<Volume>, located: Located) -> Result<End> {
        let soon = End::Later(clock::now_ms() + HELD_MS);
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(End::Done) };
        let Some(key) = self.names.path_of(&located.spot).await.map_err(error::catalog)? else {
            // A shard of an open set is planned again when that is published.
            return Ok(if self.is_in_open_set(&located.spot).await? { End::Done } else { soon });
        };
        let Some(_busy) = self.drainer.take_key(volume.id, &key) else { return Ok(soon) };
        // Before the claim: the sweep that follows claims would be refused as well.
        if let Some(reason) = self.refused(lake.as_ref(), &key, &located.file)? {
            return self.park_refused(&located, &key, reason).await;
        }
        let own = (located.file.version(), located.file.inode);
        if let Some(other) = self.dependent(volume.id, &key, Some(own)).await? {
            self.hurry(other).await?;
            return Ok(soon);
        }
        let own = located.file.lake.as_ref().filter(|kept| kept.key == key).map(|kept| kept.etag.clone());
        let version = located.file.version();
        let sized = (own.clone(), located.file.size);
        let mut claim = match self.claim(lake.as_ref(), volume.id, &key, version, sized).await? {
            Claimed::Yes(claim) => claim,
            Claimed::Unsettled(until_ms) => return Ok(End::Later(until_ms)),
            Claimed::Lost => return Ok(soon),
        };
        // The claim lets us replace whatever is there, so what was looked at before it has to be looked at again: a newer
        // version may have been drained meanwhile, or another file may have this name after a rename.
        if !self.still_has(&located, &key).await? {
            return Ok(soon);
        }
        if claim.row.etag != own
            && self.rekey_pending(volume.id).await?
            && self.tenant(volume, lake.as_ref(), &key).await?.is_some()
        {
            // What is there belongs to a file that was renamed with its directory and is about to move.
            return Ok(soon);
        }
        if let Some(etag) = &claim.row.etag
            && self.objects.is_used(volume.id, &key, etag)
            && located.file.modified_ms + READERS_MS > self.expiry.now_ms()
        {
            // Somebody reads what would be replaced.
            return Ok(soon);
        }
        if !self.keep_for_readers(lake.as_ref(), volume, &claim, &located.file).await? {
            return Ok(soon);
        }
        // Opened here: one that is deleted while its layout is read is nobody's fault, and no fault of the lake.
        let open = match located.file.layout.has_rows() && located.file.source.is_none() {
            false => None,
            true => {
                let pin = self.pins.pin(version);
                match self.file(volume, &claim.key, &located.file, pin).await {
                    Ok(open) => Some(open),
                    Err(_) if !self.still_has(&located, &key).await? => return Ok(soon),
                    Err(fault) => return Err(fault),
                }
            }
        };
        for _ in 0..RIGHTED_MAX {
            match self.send(lake.as_ref(), volume, &located.file, &mut claim, open.as_ref()).await {
                Ok((object, sums)) => {
                    return self.make_clean(volume, lake.as_ref(), located, claim, (object, sums)).await;
                }
                Err(fault) if fault.kind == LakeErrorKind::Changed => {
                    if self.follow_source(lake.as_ref(), volume, &located).await? {
                        return Ok(soon);
                    }
                    if self.put_right(lake.as_ref(), &mut claim, own.as_deref()).await? {
                        // What is there is another one than was looked at, and somebody may read it.
                        if !self.keep_for_readers(lake.as_ref(), volume, &claim, &located.file).await? {
                            return Ok(soon);
                        }
                        continue;
                    }
                    if self.rekey_pending(volume.id).await? {
                        return Ok(soon);
                    }
                    return self.park(located, claim, lake.as_ref()).await;
                }
                Err(fault) if fault.kind == LakeErrorKind::Invalid => {
                    return self.park_refused(&located, &key, fault.message).await;
                }
                Err(fault) => {
                    if fault.kind == LakeErrorKind::Unavailable {
                        self.leave_unsettled(lake.as_ref(), &mut claim).await?;
                    }
                    return Err(error::lake(fault));
                }
            }
        }
        Ok(soon)
    }

    /// Whether a file is still what it was and has this name. Asked under the claim on the name's lake key.
    pub(super) async fn still_has(&self, located: &Located, key: &[u8]) -> Result<bool> {
        let now = self.names.file_at(located.spot.clone()).await.map_err(error::catalog)?;
        let path = self.names.path_of(&located.spot).await.map_err(error::catalog)?;
        Ok(now.is_some_and(|now| now.seq == located.seq) && path.as_deref() == Some(key))
    }

    /// Drains a file that others wait for; one that its policy keeps here is brought into the rings instead.
    pub(super) async fn hurry(self: &Arc<Core>, (version, inode): (VersionId, u64)) -> Result<()> {
        let names = self.names_of(version).await?;
        let Some(located) = names.into_iter().find(|located| located.file.inode == inode) else {
            return Ok(());
        };
        match located.file.drain {
            // Copies that took each other's place would wait for each other for ever.
            Drain::Dirty if located.file.source.is_some() && self.is_blocked(&located).await? => {
                self.bring_home(located).await?;
            }
            Drain::Dirty => self.drainer.demand(&located.file),
            Drain::Clean if self.is_blocked(&located).await? => self.take_back(located).await?,
            Drain::Clean => self.drainer.wake(),
            Drain::Never | Drain::Conflict => self.bring_home(located).await?,
        }
        Ok(())
    }

    /// Whether a file that others wait for waits for others itself, so that two might wait for each other.
    async fn is_blocked(&self, located: &Located) -> Result<bool> {
        let path = self.names.path_of(&located.spot).await.map_err(error::catalog)?;
        let Some(path) = path else { return Ok(false) };
        if !may_be_in_lake(&path) {
            // It never gets an object of its own.
            return Ok(true);
        }
        let own = (located.file.version(), located.file.inode);
        Ok(self.dependent(located.spot.volume, &path, Some(own)).await?.is_some())
    }

    /// Makes a file independent of its lake object: it is drained again, under the name that it has now.
    pub(crate) async fn take_back(self: &Arc<Core>, located: Located) -> Result<()> {
        let file = &located.file;
        let Some(old) = file.lake.clone() else { return Ok(()) };
        let Some(volume) = self.volumes.by_id(located.spot.volume).await? else { return Ok(()) };
        let (_marks, kept) = self.stage_all(&volume, file).await?;
        let mut row = file.clone();
        row.drain = Drain::Dirty;
        row.dirty_since_ms = clock::now_ms();
        row.home = self.node.0;
        row.holders = kept.holders();
        let key = located.spot.row_key();
        let mut commit = Commit::new()
            .seq(key.clone(), located.seq)
            .put(key, EntryRow::File(Box::new(row.clone())).encode())
            .delete(keys::dependent(volume.id, &old.key, file.version(), file.inode));
        commit.checks.extend(self.holder_checks(&row.holders, &kept.sessions()).await?);
        dirty_writes(&mut commit, volume.id, &row, None);
        if let Outcome::Done { .. } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            self.drainer.demand(&row);
        }
        Ok(())
    }

    /// Brings every chunk of a file into the rings and makes it must-keep, until the guards go.
    async fn stage_all(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        file: &FileRow,
    ) -> Result<(tokio::sync::RwLockReadGuard<'_, ()>, Protected)> {
        let extent = self.extent(volume, file).await?;
        let pin = self.pins.pin(file.version());
        let open = self.file(volume, b"?", file, pin).await?;
        self.stage_file(&open, extent.as_ref()).await?;
        let marks = self.marks.read().await;
        let kept = self.secure(volume, open.runs(), &file.holders).await?;
        let full = || StoreError::new(ErrorKind::Full, "no room to bring a file into the rings");
        Ok((marks, kept.ok_or_else(full)?))
    }

    /// Makes a copy independent of the lake object that it came from: all its chunks on drives here.
    async fn bring_home(self: &Arc<Core>, located: Located) -> Result<()> {
        let file = &located.file;
        let Some(source) = &file.source else { return Ok(()) };
        let Some(volume) = self.volumes.by_id(located.spot.volume).await? else { return Ok(()) };
        let (_marks, kept) = self.stage_all(&volume, file).await?;
        let mut row = file.clone();
        row.source = None;
        row.holders = kept.holders();
        let checks = self.holder_checks(&row.holders, &kept.sessions()).await?;
        // Where its name is, and rows of it are: they go when it is clean.
        row.holders.extend(file.holders.iter().filter(|old| !kept.holders().contains(old)).cloned());
        if row.drain == Drain::Dirty {
            row.home = self.node.0;
        }
        let key = located.spot.row_key();
        let mut commit = Commit::new()
            .seq(key.clone(), located.seq)
            .put(key, EntryRow::File(Box::new(row.clone())).encode())
            .delete(keys::dependent(VolumeId(source.volume), &source.key, file.version(), file.inode));
        commit.checks.extend(checks);
        dirty_writes(&mut commit, volume.id, &row, None);
        if let Outcome::Done { .. } = self.catalog.commit(commit).await.map_err(error::catalog)?
            && row.drain == Drain::Dirty
        {
            self.drainer.demand(&row);
        }
        Ok(())
    }

    /// Sends the bytes and has the lake confirm them; `open` is the file, if no name leads to it. Gives what is there now, and the
    /// sums of what was sent, as far as they are known.
    pub(super) async fn send(
        self: &Arc<Core>,
        lake: &dyn Lake,
        volume: &Arc<Volume>,
        file: &FileRow,
        claim: &mut Claim,
        open: Option<&NodeFile>,
    ) -> std::result::Result<(ObjectInfo, Option<Sums>), LakeError> {
        let properties = Properties::decode(&file.properties).map_err(before_lake)?;
        let options = PutOptions {
            attributes: attributes::to_lake(&self.signer, &claim.key, file, &properties, self.seq_known()),
            condition: match &claim.row.etag {
                Some(etag) => Condition::Matches(etag.clone()),
                None => Condition::Absent,
            },
            crc64: file.crc64,
        };
        let summer = Mutex::new(Summer::new(piece_len_of(&file.layout, self.chunk_bytes, file.size)));
        let sent = self.send_bytes(lake, volume, file, claim, (open, &summer), options).await;
        let etag = match sent {
            Ok(etag) => Some(etag),
            // An earlier try of ours may have got through without an answer.
            Err(fault) if fault.kind == LakeErrorKind::Changed => None,
            Err(fault) => return Err(fault),
        };
        let object = self.head(lake, &claim.key).await?;
        let version = file.version().to_string();
        let ours = |object: &ObjectInfo| {
            let named = object.attributes.as_ref().and_then(attributes::version) == Some(version.as_str());
            let known = etag.as_ref().is_some_and(|etag| *etag == object.etag);
            let sound = object.crc64.is_none() || file.crc64.is_none() || object.crc64 == file.crc64;
            (named || known) && object.size == file.size && sound
        };
        match object {
            Some(object) if ours(&object) => {
                add(&self.drainer.stats.files, 1);
                add(&self.drainer.stats.bytes, file.size);
                let age_ms = clock::now_ms().saturating_sub(file.dirty_since_ms);
                self.stats.drain_times.note(std::time::Duration::from_millis(age_ms));
                let sums = match file.source.as_ref().filter(|source| source.volume == volume.id.0) {
                    // The lake copied what it has: it is what it was there.
                    Some(source) => self
                        .sums_of(volume.id, &source.key, &source.etag, &(0..file.size))
                        .await
                        .map_err(before_lake)?
                        .map(|sums| Sums::clone(&sums)),
                    None => summer.into_inner().unwrap().finish(file.size),
                };
                Ok((object, sums))
            }
            _ => Err(LakeError::new(
                LakeErrorKind::Changed,
                "the lake holds something else under this key than what was expected or sent",
            )),
        }
    }

    async fn send_bytes(
        self: &Arc<Core>,
        lake: &dyn Lake,
        volume: &Arc<Volume>,
        file: &FileRow,
        claim: &mut Claim,
        (open, summer): (Option<&NodeFile>, &Mutex<Summer>),
        options: PutOptions,
    ) -> std::result::Result<String, LakeError> {
        if let Some(source) = file.source.as_ref().filter(|source| source.volume == volume.id.0) {
            return lake.copy(&source.key, &source.etag, &claim.key, options).await;
        }
        let looked_up;
        let open = match open {
            Some(open) => open,
            None => {
                let pin = self.pins.pin(file.version());
                looked_up = self.file(volume, &claim.key, file, pin).await.map_err(before_lake)?;
                &looked_up
            }
        };
        if file.size <= SINGLE_BYTES.min(lake.capabilities().put_bytes_max) {
            let body = self.load(open, 0..file.size, summer).await.map_err(before_lake)?;
            return lake.put(&claim.key, body, options).await;
        }
        self.send_parts(lake, (open, summer), file, claim, options).await
    }

    async fn send_parts(
        self: &Arc<Core>,
        lake: &dyn Lake,
        (open, summer): (&NodeFile, &Mutex<Summer>),
        file: &FileRow,
        claim: &mut Claim,
        options: PutOptions,
    ) -> std::result::Result<String, LakeError> {
        let can = lake.capabilities();
        let part_bytes =
            PART_BYTES.max(file.size.div_ceil(u64::from(can.parts_max.max(1)))).max(can.part_bytes_min);
        let mut have: Vec<PartTag> = Vec::new();
        let upload = match claim.row.upload.clone().filter(|_| claim.row.part_bytes == part_bytes) {
            // An earlier boot began it: what the lake has of it need not be sent again.
            Some(upload) => match lake.upload_parts(&claim.key, &upload).await {
                Ok(parts) => {
                    have = parts;
                    Some(upload)
                }
                Err(fault) if fault.kind == LakeErrorKind::NotFound => None,
                Err(fault) => return Err(fault),
            },
            None => None,
        };
        let upload = match upload {
            Some(upload) => upload,
            None => {
                let upload = lake.upload_begin(&claim.key, options.attributes.clone()).await?;
                let recorded = upload.clone();
                let noted = self
                    .update_claim(claim, |row| (row.upload, row.part_bytes) = (Some(recorded), part_bytes));
                if let Err(fault) = noted.await {
                    // Nobody would know of it: it must not be left behind.
                    lake.upload_abort(&claim.key, &upload).await?;
                    return Err(before_lake(fault));
                }
                upload
            }
        };
        let count = file.size.div_ceil(part_bytes) as u32;
        let key = &claim.key;
        let parts = futures_util::stream::iter(1..=count)
            .map(|number| {
                let start = u64::from(number - 1) * part_bytes;
                let range = start..(start + part_bytes).min(file.size);
                let known =
                    have.iter().find(|part| part.number == number && part.size == range.end - range.start);
                let (known, upload) = (known.cloned(), &upload);
                async move {
                    // What is there already is summed as well.
                    let body = self.load(open, range, summer).await.map_err(before_lake)?;
                    if let Some(part) = known {
                        return Ok(part);
                    }
                    lake.upload_part(key, upload, number, body).await
                }
            })
            .buffered(PARTS_IN_FLIGHT);
        let parts: Vec<std::result::Result<PartTag, _>> = parts.collect().await;
        let parts = parts.into_iter().collect::<std::result::Result<Vec<PartTag>, _>>()?;
        lake.upload_complete(&claim.key, &upload, parts, options).await
    }

    /// The transaction that makes a name clean, if it still is what was sent.
    async fn make_clean(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        lake: &dyn Lake,
        sent: Located,
        claim: Claim,
        (object, sums): (ObjectInfo, Option<Sums>),
    ) -> Result<End> {
        let version = sent.file.version();
        let sums = Sums::writes(sums.as_ref(), volume.id, &claim.key, &object.etag);
        let row = self.confirmed(lake, &claim, Some(object.etag.clone())).await?.encode();
        for _ in 0..100 {
            let mut change = Commit::new();
            let row_key = keys::lake_key(volume.id, &claim.key);
            change.checks.push(Check::Seq(row_key.clone(), claim.seq));
            change.writes.push(Write::Put(row_key, row.clone()));
            change.writes.extend(sums.iter().cloned());
            change.writes.push(Write::Delete(keys::attempt(volume.id, &claim.key)));
            let now = self.names.file_at(sent.spot.clone()).await.map_err(error::catalog)?;
            let (mut cleaned, mut is_outdated, mut newer) = (false, false, None);
            match now {
                // Other properties than those that were sent: once more.
                Some(now) if now.file.version() == version && now.file.properties != sent.file.properties => {
                    is_outdated = true;
                }
                Some(now) if now.file.version() == version && now.file.drain == Drain::Dirty => {
                    cleaned = true;
                    let mut file = now.file.clone();
                    if let Some(old) = file.lake.clone().filter(|old| old.key != claim.key) {
                        let dependent = keys::dependent(volume.id, &old.key, version, file.inode);
                        change.writes.push(Write::Delete(dependent));
                        self.leave_behind(&mut change, volume, &old).await?;
                    }
                    if let Some(source) = &file.source {
                        let dependent =
                            keys::dependent(VolumeId(source.volume), &source.key, version, file.inode);
                        change.writes.push(Write::Delete(dependent));
                    }
                    file.drain = Drain::Clean;
                    file.lake = Some(LakeRef { key: claim.key.clone(), etag: object.etag.clone() });
                    (file.source, file.dirty_since_ms) = (None, 0);
                    let entry = sent.spot.row_key();
                    change.checks.push(Check::Seq(entry.clone(), now.seq));
                    change.writes.push(Write::Put(entry, EntryRow::File(Box::new(file)).encode()));
                }
                // A newer version has the name: what it adds to the lake is what came after this one.
                Some(now) if now.file.version() != version && now.file.drain == Drain::Dirty => {
                    let mut file = now.file.clone();
                    file.dirty_since_ms = file.dirty_since_ms.max(sent.file.modified_ms);
                    if file.lake.as_ref().is_none_or(|lake| lake.key == claim.key) {
                        file.lake = Some(LakeRef { key: claim.key.clone(), etag: object.etag.clone() });
                    }
                    let entry = sent.spot.row_key();
                    change.checks.push(Check::Seq(entry.clone(), now.seq));
                    change.writes.push(Write::Put(entry, EntryRow::File(Box::new(file.clone())).encode()));
                    // Should it go before it is drained, the sweep removes what is there.
                    change.writes.push(Write::Put(keys::attempt(volume.id, &claim.key), Vec::new()));
                    dirty_writes(&mut change, volume.id, &file, None);
                    newer = Some(file);
                }
                // Renamed or deleted meanwhile: what is in the lake is known, and the sweep sees whether anybody still
                // wants it there.
                Some(_) | None => {
                    change.writes.push(Write::Put(keys::attempt(volume.id, &claim.key), Vec::new()))
                }
            }
            match self.catalog.commit(change).await.map_err(error::catalog)? {
                Outcome::Done { seq } => {
                    self.saw(seq);
                    lake.end_doubt(&claim.key);
                    self.looks.forget(volume, &claim.key);
                    if is_outdated {
                        return Ok(End::Later(clock::now_ms()));
                    }
                    if let Some(newer) = newer {
                        self.drainer.note(volume, &newer);
                        return Ok(End::Done);
                    }
                    if cleaned {
                        self.pins.note_object(version, volume.id, &claim.key, &object.etag);
                        self.follow_rename(volume, &sent.spot, version, &claim.key).await?;
                        self.drainer.cleaned.notify_waiters();
                    } else {
                        self.drainer.wake();
                    }
                    return Ok(End::Done);
                }
                Outcome::Failed { check: 0 } => return Err(lost()),
                Outcome::Failed { .. } => continue,
            }
        }
        Err(error::refusal(stoker_schema::names::Refusal::Contended))
    }

    /// An object stays behind under a key that its file does not have any more, and has to go. If another file has that
    /// name, its drain replaces the object; the sweep sees to it, should that one go as well before it is drained.
    pub(super) async fn leave_behind(
        &self,
        change: &mut Commit,
        volume: &Volume,
        old: &LakeRef,
    ) -> Result<()> {
        if let Some(spot) = self.names.resolve(volume.id, &old.key).await.map_err(error::catalog)? {
            if self.names.file_at(spot.clone()).await.map_err(error::catalog)?.is_some() {
                change.writes.push(Write::Put(keys::attempt(volume.id, &old.key), Vec::new()));
                return Ok(());
            }
            change.checks.push(Check::Absent(spot.row_key()));
        }
        let row = TombstoneRow { since_ms: clock::now_ms(), etag: Some(old.etag.clone()), name_record: None };
        change.writes.push(Write::Put(keys::tombstone(volume.id, &old.key), row.encode()));
        Ok(())
    }

    /// A directory above may have been renamed while the bytes were on their way: then the object has to move.
    async fn follow_rename(
        &self,
        volume: &Volume,
        spot: &Spot,
        version: VersionId,
        key: &[u8],
    ) -> Result<()> {
        let path = self.names.path_of(spot).await.map_err(error::catalog)?;
        if path.is_some_and(|path| path != key) {
            let row = RekeyRow { since_ms: clock::now_ms(), name_record: None };
            let commit = Commit::new().put(keys::rekey_file(volume.id, version), row.encode());
            let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
            self.drainer.wake();
        }
        Ok(())
    }

    /// Puts a version aside that must not overwrite what somebody else put into the lake.
    async fn park(self: &Arc<Core>, located: Located, claim: Claim, lake: &dyn Lake) -> Result<End> {
        let found = self.head(lake, &claim.key).await.map_err(error::lake)?.map(|object| object.etag);
        let spot = &located.spot;
        let row = ConflictRow {
            version: located.file.version,
            etag_expected: claim.row.etag.clone(),
            etag_found: found,
            since_ms: clock::now_ms(),
            refused: None,
        };
        let mut file = located.file.clone();
        file.drain = Drain::Conflict;
        let entry = spot.row_key();
        let commit = Commit::new()
            .seq(keys::lake_key(claim.volume, &claim.key), claim.seq)
            .seq(entry.clone(), located.seq)
            .put(entry, EntryRow::File(Box::new(file)).encode())
            .put(keys::conflict(spot.volume, spot.parent, &spot.name), row.encode());
        if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            self.saw(seq);
            add(&self.drainer.stats.conflicts, 1);
            let key = String::from_utf8_lossy(&claim.key).into_owned();
            tracing::warn!(key, "the lake was changed by somebody else: see `stoker conflict ls`");
            return Ok(End::Done);
        }
        Ok(End::Later(clock::now_ms() + HELD_MS))
    }

    /// If every name of a version is clean, its chunks may go from the drives (R11), unless others need them.
    pub(crate) async fn settle_version(self: &Arc<Core>, version: VersionId) -> Result<()> {
        let _marks = self.marks.write().await;
        let mut references = 0;
        self.each(keys::references(version), |_| {
            references += 1;
            Ok(())
        })
        .await?;
        let names = self.names_of(version).await?;
        if names.is_empty() || names.iter().any(|located| located.file.drain != Drain::Clean) {
            return Ok(());
        }
        let mut change = Commit::new();
        for located in &names {
            change.checks.push(Check::Seq(located.spot.row_key(), located.seq));
        }
        for drive in self.rings.drives() {
            change.writes.push(Write::Delete(keys::dirty(self.node, drive.id, version)));
        }
        for holder in names.iter().flat_map(|located| &located.file.holders) {
            let key = keys::dirty(NodeId(holder.node), DriveId(holder.drive), version);
            change.writes.push(Write::Delete(key));
        }
        let runs = self.names.runs(&names[0].file).await.map_err(error::catalog)?;
        let sharers = self.unspill(&mut change, version, &runs).await?;
        // A new name would add a reference, which the count of rows shows.
        let all = keys::references(version);
        let end = stoker_catalog::kv::prefix_end(&all).expect("a table is not 0xff");
        change.checks.push(Check::AtMost { start: all, end, max: references });
        if let Outcome::Failed { .. } = self.catalog.commit(change).await.map_err(error::catalog)? {
            // Whoever changed something tells the drainer.
            return Ok(());
        }
        sharers.into_iter().for_each(|sharer| self.drainer.reconsider(sharer));
        if runs.iter().any(ChunkRun::is_spilled) {
            self.drainer.wake();
        }
        let holders = names.iter().flat_map(|located| &located.file.holders);
        let peers: Vec<NodeId> = holders.map(|holder| NodeId(holder.node)).collect();
        let peers = self.cell.by_latency(peers);
        if !peers.is_empty() {
            let core = self.clone();
            self.tasks.spawn(async move { core.cell.tell_reconsider(&peers, &[version]).await });
        }
        self.release(version, &names).await
    }

    /// A peer says that a version may be clean. Decided here, from the catalog, while nobody can begin to need its chunks.
    pub(crate) async fn settle_here(self: &Arc<Core>, version: VersionId) -> Result<()> {
        let _marks = self.marks.write().await;
        let names = self.names_of(version).await?;
        if names.is_empty() || names.iter().any(|located| located.file.drain != Drain::Clean) {
            return Ok(());
        }
        for located in &names {
            if let Some(lake) = &located.file.lake {
                self.pins.note_object(version, located.spot.volume, &lake.key, &lake.etag);
            }
        }
        self.release(version, &names).await
    }

    /// Lets the rings drop what only clean names of a version need.
    async fn release(self: &Arc<Core>, version: VersionId, names: &[Located]) -> Result<()> {
        let Some(first) = names.first() else { return Ok(()) };
        let runs = self.names.runs(&first.file).await.map_err(error::catalog)?;
        let mut free = Vec::new();
        for owner in crate::publish::owners(&runs, VersionId::ZERO) {
            if !self.cell.remote_holds.has(owner) && self.is_free(owner, version).await? {
                free.push(owner);
            }
        }
        let records = names.iter().filter_map(|located| located.file.name_record).map(VersionId);
        let records = records.chain([version]).map(|record| ChunkId::new(record, NAME_INDEX));
        let ids: Vec<ChunkId> = rings::chunks(&runs)
            .map(|(chunk, _)| chunk)
            .filter(|chunk| free.contains(&chunk.version))
            .chain(records)
            .collect();
        self.rings.mark_clean(ids).await
    }

    /// Whether nobody but `version`, which is clean, and others that are clean use the chunks of an owner.
    pub(crate) async fn is_free(&self, owner: VersionId, version: VersionId) -> Result<bool> {
        let range = Range::prefix(&keys::shares(owner), USERS_MAX);
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        if page.rows.is_empty() {
            return Ok(true);
        }
        if page.more {
            return Ok(false);
        }
        let mut users: Vec<VersionId> = page.rows.iter().filter_map(|row| keys::sharer(&row.key)).collect();
        let references = Range::prefix(&keys::references(owner), 1);
        if !self.catalog.range(references).await.map_err(error::catalog)?.rows.is_empty() {
            users.push(owner);
        }
        for user in users.into_iter().filter(|user| *user != version) {
            let names = self.names_of(user).await?;
            // One without a name is a part of an upload.
            if names.is_empty() || names.iter().any(|located| located.file.drain != Drain::Clean) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Bytes of a range, copied: they must not hold the buffers of the drives while the lake takes its time.
    async fn load(
        &self,
        file: &NodeFile,
        range: std::ops::Range<u64>,
        summer: &Mutex<Summer>,
    ) -> Result<Vec<Bytes>> {
        self.drainer.pace.turn(range.end - range.start).await;
        let mut body = Vec::new();
        let mut offset = range.start;
        while offset < range.end {
            let wish = ((range.end - offset) as usize).min(PIECE);
            let bytes = stoker_store::File::read(file, offset, wish).await?;
            summer.lock().unwrap().add(offset, &bytes);
            offset += bytes.len() as u64;
            body.push(Bytes::copy_from_slice(&bytes));
        }
        Ok(body)
    }
}
