//! Deletes in volumes that keep versions: a marker, or one version for good.

use std::sync::Arc;

use stoker_catalog::kv::{Range, Write};
use stoker_format::{VersionId, past_key};
use stoker_schema::names::{
    Forgotten, Kept, Located, Refusal, RemovedVersion, Removing, Which, delete_record_garbage,
};
use stoker_schema::rows::{Drain, EntryRow, FileRow, HISTORY, RowValue, keys};
use stoker_store::{
    Condition, CopyRequest, ErrorKind, Keeps, Key, RenameMode, Result, StoreError, Subject, VersionDelete,
    VersionDeleted,
};
use stoker_tiers::lifecycle::Rule;

use super::{id_text, no_such_version, which};
use crate::cell::Keepers;
use crate::core::{Core, add};
use crate::lookup::no_such_key;
use crate::publish::{check_condition, check_version, tombstone_gone};
use crate::volumes::Volume;
use crate::{clock, error, name_record};

/// Times that a rename begins anew because somebody else changed the file.
const RENAMES_MAX: usize = 20;

/// What must be so of a version that goes for good.
pub(crate) enum Expect {
    /// What whoever asks for it says.
    Condition(Condition),
    /// It is this one, its key shows another one, and this rule says that it goes.
    Former(VersionId, Box<Rule>),
    /// It is this marker, and no version comes back when it goes.
    Marker(VersionId),
}

impl Expect {
    fn check(&self, removing: &Removing<'_>) -> Result<()> {
        let file = &removing.version.file;
        let version = match self {
            Expect::Condition(condition) => return check_condition(condition, Some(&file.etag)),
            Expect::Former(version, _) | Expect::Marker(version) => *version,
        };
        check_version(Some(version), file)?;
        let is_marker = file.past.as_ref().is_some_and(|past| past.is_marker);
        let fits = match self {
            Expect::Marker(_) => is_marker,
            _ => !removing.is_present,
        };
        match fits && removing.promoted.is_none() {
            true => Ok(()),
            false => {
                let message = "what its key has is another version by now";
                Err(StoreError::about(ErrorKind::Conflict, Subject::Condition, message))
            }
        }
    }
}

impl Core {
    /// Deletes a key, or one version of it for good.
    pub async fn delete_version(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        delete: VersionDelete,
    ) -> Result<VersionDeleted> {
        let VersionDelete { key, version, condition, bypass } = delete;
        match version {
            Some(id) => {
                let expect = Expect::Condition(condition);
                self.remove_version(volume, &key, id, &expect, bypass).await
            }
            None => self.delete_or_mark(volume, key.as_bytes(), &condition).await,
        }
    }

    /// Deletes a key. Where versions are kept it has a marker then, had it anything or not.
    async fn delete_or_mark(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        condition: &Condition,
    ) -> Result<VersionDeleted> {
        crate::drain::check_key(key)?;
        loop {
            let (existed, marker) = self.delete_kept(volume, key, condition).await?;
            if existed || volume.versions.keeps() == Keeps::Nothing {
                return Ok(deleted(existed, marker.as_ref().map(|marker| &marker.file)));
            }
            check_condition(condition, None)?;
            let Some(keeping) = self.keeping(volume, key) else { continue };
            let guards = self.guards(volume);
            let _lock = self.key_locks.lock(volume.id, key).await;
            let marked = self.names.mark_deleted(volume.id, &keeping, clock::mint(), &guards).await;
            if let Some((seq, marker)) = marked.map_err(error::refusal)? {
                self.saw(seq);
                return Ok(deleted(false, Some(&marker.file)));
            }
        }
    }

    /// The record of a version that stays says so from now on.
    pub async fn leave_kept(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        kept: Option<&Kept>,
        seq: u64,
    ) -> Result<()> {
        let Some(kept) = kept else { return Ok(()) };
        if kept.file.drain == Drain::Dirty {
            self.drainer.note(volume, &kept.file);
        }
        self.drainer.wake();
        match self.names.path_of(&kept.spot).await.map_err(error::catalog)? {
            Some(path) => self.leave_put(volume, &path, &kept.file, seq).await,
            None => Ok(()),
        }
    }

    /// Removes one version of a key for good.
    pub async fn remove_version(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        id: String,
        expect: &Expect,
        bypass: bool,
    ) -> Result<VersionDeleted> {
        self.check_open()?;
        self.check_writable(volume)?;
        let _work = self.work.begin();
        let which = which(&id).ok_or_else(|| no_such_version(key, &id))?;
        let path = key.as_bytes();
        let record = clock::mint();
        // The row that hands the record to the collector may be seen before the record is there.
        let _pin = self.pins.pin(record);
        let guards = self.guards(volume);
        let _lock = self.key_locks.lock(volume.id, path).await;
        let buried = match volume.lake_url {
            Some(_) => self.tombstone(volume, path).await?,
            None => None,
        };
        let since_ms = match expect {
            Expect::Former(..) => self.former_since(volume, path, which).await?,
            _ => None,
        };
        let removed = self.names.remove_version(volume.id, path, which, bypass, &guards, |removing| {
            expect.check(removing).map_err(error::refuse)?;
            if let Expect::Former(_, rule) = expect {
                let file = &removing.version.file;
                self.check_former(rule, path, file, since_ms).map_err(error::refuse)?;
            }
            let mut writes = self.removal_writes(volume, path, removing, record);
            if let (true, Some(_)) = (volume.lake_url.is_some(), removing.promoted) {
                writes.extend(tombstone_gone(volume, path, buried.as_ref()));
            }
            Ok((writes, clock::now_ms()))
        });
        let removed = match removed.await {
            Ok(Some(removed)) => removed,
            Ok(None) => return Ok(VersionDeleted { version: Some(id), ..VersionDeleted::default() }),
            Err(refusal) => return Err(error::refusal(refusal)),
        };
        self.after_version(volume, path, &removed, record).await?;
        Ok(VersionDeleted { version: Some(id), ..deleted(true, Some(&removed.file)) })
    }

    /// When a version became a former one: when the one after it came. None if it is none.
    async fn former_since(&self, volume: &Volume, key: &[u8], which: Which) -> Result<Option<u64>> {
        let found = self.names.version_of(volume.id, key, which).await.map_err(error::catalog)?;
        let Some((version, false)) = found else { return Ok(None) };
        let start = keys::entry(volume.id, HISTORY, &keys::past_names(key));
        let range = Range { start, end: Some(version.spot.row_key()), limit: 1, reverse: true };
        let newer = self.catalog.range(range).await.map_err(error::catalog)?.rows;
        if let Some(row) = newer.first() {
            return match EntryRow::decode(&row.value).map_err(error::catalog)? {
                EntryRow::File(file) => Ok(Some(file.modified_ms)),
                EntryRow::Directory(_) => Ok(None),
            };
        }
        let present = self.names.lookup(volume.id, key).await.map_err(error::catalog)?;
        Ok(present.map(|present| present.file.modified_ms))
    }

    /// What the removal of a version does in the lake.
    fn removal_writes(
        &self,
        volume: &Volume,
        key: &[u8],
        removing: &Removing<'_>,
        record: VersionId,
    ) -> Vec<Write> {
        let Removing { version, is_present, promoted } = *removing;
        let own = self.path_in_history(version).unwrap_or_else(|| key.to_vec());
        let is_marker = version.file.past.as_ref().is_some_and(|past| past.is_marker);
        match promoted {
            Some(promoted) => {
                let from = self.path_in_history(promoted).unwrap_or_default();
                let target = Some(version).filter(|_| is_present);
                let mut writes = self.rename_writes(volume, &from, key, promoted, target, record);
                writes.extend(delete_record_garbage(record));
                writes
            }
            None if is_marker => delete_record_garbage(record),
            None => self.tombstones(volume, &own, version.file.lake.as_ref(), record),
        }
    }

    fn path_in_history(&self, located: &Located) -> Option<Vec<u8>> {
        let (key, id) =
            keys::past_name_parts(&located.spot.name).filter(|_| located.spot.parent == HISTORY)?;
        Some(past_key(key, &id.to_string()))
    }

    async fn after_version(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        removed: &RemovedVersion,
        record: VersionId,
    ) -> Result<()> {
        self.saw(removed.seq);
        self.looks.forget(volume, key);
        self.garbage.notify_one();
        match &removed.fate {
            Forgotten::Garbage(version) => self.drainer.forget(*version),
            Forgotten::Shared(version) => self.drainer.reconsider(*version),
        }
        self.drainer.wake();
        add(&self.stats.deletes, 1);
        let past = removed.file.past.as_ref();
        if let Some(promoted) = &removed.promoted {
            if promoted.file.drain == Drain::Dirty {
                self.drainer.note(volume, &promoted.file);
            }
            // Later than that of what was removed, or of the delete, it says what the name has.
            return self.leave_put(volume, key, &promoted.file, removed.seq).await;
        }
        if past.is_some_and(|past| past.is_marker) {
            return Ok(());
        }
        let own = match removed.was_present {
            true => key.to_vec(),
            false => past_key(key, &gone_id(&removed.file)),
        };
        let name = name_record::delete(volume.id, &own, record, removed.seq);
        let _left = self.leave_after(volume, record, &name, Keepers::Anybody).await?;
        Ok(())
    }

    /// Renames a file of a volume that keeps versions: what has the old name stays as a version of it, and is deleted there.
    pub async fn rename_kept(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        from: &Key,
        to: &Key,
        mode: RenameMode,
    ) -> Result<()> {
        if from == to {
            let seen = self.seen(volume, from.as_bytes()).await?;
            return seen.map(|_| ()).ok_or_else(|| no_such_key(from.as_bytes()));
        }
        for _ in 0..RENAMES_MAX {
            let seen =
                self.seen(volume, from.as_bytes()).await?.ok_or_else(|| no_such_key(from.as_bytes()))?;
            let etag = Condition { if_match: Some(vec![seen.file.etag]), ..Condition::default() };
            let request = CopyRequest {
                from_volume: volume.name.clone(),
                from: from.clone(),
                from_condition: etag.clone(),
                to_volume: volume.name.clone(),
                to: to.clone(),
                condition: if mode == RenameMode::NoReplace {
                    Condition::absent()
                } else {
                    Condition::default()
                },
                attributes: None,
            };
            self.copy_file(request).await?;
            match self.delete_kept(volume, from.as_bytes(), &etag).await {
                Err(fault) if is_condition(&fault) && mode != RenameMode::NoReplace => {}
                ended => return ended.map(|_| ()),
            }
        }
        Err(error::refusal(Refusal::Contended))
    }
}

fn is_condition(fault: &StoreError) -> bool {
    fault.subject == stoker_store::Subject::Condition
}

/// The id in the key that a former version had, which may be called otherwise.
fn gone_id(file: &FileRow) -> String {
    let number = file.past.as_ref().map_or(0, |past| past.number);
    stoker_format::PastId { number, version: file.version() }.to_string()
}

fn deleted(existed: bool, what: Option<&FileRow>) -> VersionDeleted {
    let is_marker = what.and_then(|file| file.past.as_ref()).is_some_and(|past| past.is_marker);
    VersionDeleted { existed, version: what.map(id_text), is_marker }
}
