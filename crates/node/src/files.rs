//! Changes of names: delete, rename, copy, attributes; and listings.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Write};
use stoker_catalog::names::{Forgotten, Located, Refusal, Removal, Removed};
use stoker_catalog::rows::{
    Drain, EntryRow, FileRow, LakeRef, RekeyRow, RowValue, SourceRef, TombstoneRow, keys,
};
use stoker_format::{ChunkId, NameRecord, RecordKind, VersionId};
use stoker_ring::{Put, Retention};
use stoker_store::{
    AttributesChange, Buf, Condition, CopyRequest, ErrorKind, FileInfo, Key, Receipt, RenameMode, Result,
    StoreError,
};

use crate::core::{Core, add};
use crate::lookup::no_such_key;
use crate::properties::Properties;
use crate::publish::{Job, check_condition, publish_refusal};
use crate::rings::{self, NAME_INDEX};
use crate::volumes::Volume;
use crate::writer::RunList;
use crate::{clock, error, name_record};

impl Core {
    fn seq_now(&self) -> u64 {
        self.seq_seen.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Leaves a name record on a drive.
    async fn leave_record(&self, volume: &Volume, id: VersionId, record: &NameRecord) -> Result<()> {
        let fault =
            |fault: stoker_format::FormatError| StoreError::new(ErrorKind::Invalid, fault.to_string());
        record.check().map_err(fault)?;
        let retention = match Core::drain_of(volume) {
            Drain::Never => Retention::Never,
            _ => Retention::Dirty,
        };
        let put = Put {
            chunk: ChunkId::new(id, NAME_INDEX),
            volume: volume.id,
            kind: RecordKind::Name,
            retention,
            payload: Buf::copy_of(&record.encode()),
        };
        self.rings.append(self.rings.pick(id, 0), vec![put]).await
    }

    /// Leaves the name record of a version beside its chunks.
    pub async fn leave_version_record(
        &self,
        volume: &Volume,
        version: VersionId,
        record: &NameRecord,
    ) -> Result<()> {
        self.leave_record(volume, version, record).await
    }

    /// Deletes a file; false if there is none.
    pub async fn delete_file(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        condition: &Condition,
    ) -> Result<bool> {
        self.check_open()?;
        volume.check_writable()?;
        let _work = self.work.begin();
        let record = clock::mint();
        let guards = self.guards(volume, &[]);
        let _turn = self.turns.take(volume.id, key).await;
        let removed = self.names.remove(volume.id, key, &guards, |located| {
            check_condition(condition, Some(&located.file.etag)).map_err(error::refuse)?;
            Ok(Removal { writes: self.tombstones(volume, key, &located.file, record) })
        });
        match removed.await.map_err(error::refusal)? {
            Some(removed) => {
                self.after_remove(volume, key, &removed);
                self.leave_record(
                    volume,
                    record,
                    &name_record::delete(volume.id, key, record, self.seq_now()),
                )
                .await?;
                add(&self.stats.deletes, 1);
                Ok(true)
            }
            None => self.delete_lake_file(volume, key, condition, &guards).await,
        }
    }

    fn after_remove(&self, volume: &Arc<Volume>, key: &[u8], removed: &Removed) {
        self.saw(removed.seq);
        self.looks.forget(volume, key);
        match &removed.fate {
            Forgotten::Garbage(_) => self.garbage.notify_one(),
            Forgotten::Shared(version) => self.drainer.reconsider(*version),
        }
        self.drainer.forget(removed.file.version());
        self.drainer.wake();
    }

    /// Rows that hide and then remove what the lake has of a file.
    fn tombstones(&self, volume: &Volume, key: &[u8], file: &FileRow, record: VersionId) -> Vec<Write> {
        if volume.lake_url.is_none() {
            return Vec::new();
        }
        let row = |etag: Option<String>| {
            TombstoneRow { since_ms: clock::now_ms(), etag, name_record: Some(record.0) }.encode()
        };
        let mut writes = Vec::new();
        // An upload of this key may be under way, or the lake may show something else: the name is hidden in any case.
        let own = file.lake.as_ref().filter(|lake| lake.key == key).map(|lake| lake.etag.clone());
        writes.push(Write::Put(keys::tombstone(volume.id, key), row(own)));
        if let Some(lake) = file.lake.as_ref().filter(|lake| lake.key != key) {
            writes.push(Write::Put(keys::tombstone(volume.id, &lake.key), row(Some(lake.etag.clone()))));
        }
        writes
    }

    /// Deletes an object that only the lake knows.
    async fn delete_lake_file(
        &self,
        volume: &Arc<Volume>,
        key: &[u8],
        condition: &Condition,
        guards: &[Check],
    ) -> Result<bool> {
        let theirs = match volume.asks_lake() {
            true => self.lake_file(volume, key).await?,
            false => None,
        };
        let Some(file) = theirs else {
            check_condition(condition, None)?;
            return Ok(false);
        };
        check_condition(condition, Some(&file.etag))?;
        let etag = file.lake.as_ref().map(|lake| lake.etag.clone());
        let row = TombstoneRow { since_ms: clock::now_ms(), etag, name_record: None };
        let mut commit = Commit::new().put(keys::tombstone(volume.id, key), row.encode());
        commit.checks.extend_from_slice(guards);
        if let Some(spot) = self.names.resolve(volume.id, key).await.map_err(error::catalog)? {
            commit.checks.push(Check::Absent(spot.row_key()));
        }
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                self.looks.forget(volume, key);
                self.drainer.wake();
                add(&self.stats.deletes, 1);
                Ok(true)
            }
            Outcome::Failed { .. } => {
                Err(StoreError::new(ErrorKind::Conflict, "the key was written at the same time; try again"))
            }
        }
    }

    /// Renames a file or a directory.
    pub async fn rename_any(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        from: &Key,
        to: &Key,
        mode: RenameMode,
    ) -> Result<()> {
        self.check_open()?;
        volume.check_writable()?;
        let _work = self.work.begin();
        let (from, to) = (from.as_bytes(), to.as_bytes());
        match (from.ends_with(b"/"), to.ends_with(b"/")) {
            (true, true) => self.rename_directory(volume, from, to).await,
            (false, false) => self.rename_file(volume, from, to, mode).await,
            _ => {
                let message =
                    "a file is renamed to a file, a directory (its key ends with `/`) to a directory";
                Err(StoreError::new(ErrorKind::Invalid, message))
            }
        }
    }

    async fn rename_directory(self: &Arc<Core>, volume: &Arc<Volume>, from: &[u8], to: &[u8]) -> Result<()> {
        if volume.asks_lake() {
            let message = "a directory can be renamed only in a volume whose lake mode is `owned` and whose first listing \
                           of the lake is done: others could put files into it meanwhile";
            return Err(StoreError::new(ErrorKind::Conflict, message));
        }
        let guards = self.guards(volume, &[]);
        let renamed = self.names.rename_directory(volume.id, from, to, &guards, clock::now_ms()).await;
        let renamed = renamed.map_err(|refusal| match refusal {
            Refusal::NotFound => no_such_key(from),
            other => error::refusal(other),
        })?;
        self.saw(renamed.seq);
        let record = clock::mint();
        self.leave_record(volume, record, &name_record::rename(volume.id, from, to, record, self.seq_now()))
            .await?;
        self.drainer.wake();
        Ok(())
    }

    async fn rename_file(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.adopt(volume, from).await?;
        let guards = self.guards(volume, &[]);
        let record = clock::mint();
        let renamed = self.names.rename_file(volume.id, from, to, &guards, |source, target| {
            if target.is_some() && mode == RenameMode::NoReplace {
                return Err(error::refuse(StoreError::new(ErrorKind::Conflict, "the target exists already")));
            }
            Ok(self.rename_writes(volume, from, to, source, target, record))
        });
        let renamed = renamed.await.map_err(|refusal| match refusal {
            Refusal::NotFound => no_such_key(from),
            other => error::refusal(other),
        })?;
        self.saw(renamed.seq);
        self.looks.forget(volume, from);
        self.looks.forget(volume, to);
        if let Some(file) = &renamed.file {
            let properties = Properties::decode(&file.properties)?;
            let runs = self.names.runs(file).await.map_err(error::catalog)?;
            let put = name_record::put(volume.id, to, file, &properties, &runs, self.seq_now());
            self.leave_record(volume, file.version(), &put).await?;
            if file.drain == Drain::Clean {
                self.rings.mark_clean(vec![ChunkId::new(file.version(), NAME_INDEX)]).await?;
            }
        }
        if let Some((_, Forgotten::Garbage(_))) = renamed.replaced {
            self.garbage.notify_one();
        }
        self.drainer.wake();
        Ok(())
    }

    fn rename_writes(
        &self,
        volume: &Volume,
        from: &[u8],
        to: &[u8],
        source: &Located,
        target: Option<&Located>,
        record: VersionId,
    ) -> Vec<Write> {
        if volume.lake_url.is_none() {
            return Vec::new();
        }
        let now_ms = clock::now_ms();
        let version = source.file.version();
        let mut writes = vec![
            Write::Put(keys::rekey_file(volume.id, version), RekeyRow { since_ms: now_ms }.encode()),
            Write::Delete(keys::tombstone(volume.id, to)),
        ];
        if let Some(lake) = source.file.lake.as_ref().filter(|_| source.file.drain == Drain::Clean) {
            // Its bytes stay under the old lake key until they were copied.
            writes
                .push(Write::Put(keys::relier(volume.id, &lake.key, version, source.file.inode), Vec::new()));
        }
        if volume.asks_lake() {
            // Hides the old name, which the lake still shows; nothing is removed before the new key is there.
            let row = TombstoneRow { since_ms: now_ms, etag: None, name_record: Some(record.0) };
            writes.push(Write::Put(keys::tombstone(volume.id, from), row.encode()));
        }
        if let Some(lake) = target.and_then(|target| target.file.lake.as_ref()).filter(|lake| lake.key != to)
        {
            let row = TombstoneRow { since_ms: now_ms, etag: Some(lake.etag.clone()), name_record: None };
            writes.push(Write::Put(keys::tombstone(volume.id, &lake.key), row.encode()));
        }
        writes
    }

    /// Takes an object that only the lake knows into the catalog, so that it can be changed.
    pub async fn adopt(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8]) -> Result<()> {
        if !volume.asks_lake() {
            return Ok(());
        }
        let Some(seen) = self.seen(volume, key).await? else { return Ok(()) };
        if seen.located.is_some() {
            return Ok(());
        }
        let guards = self.guards(volume, &[]);
        let adopted = self.names.publish(volume.id, key, &guards, |present| {
            let (file, present) = (seen.file.clone(), present.cloned());
            Box::pin(async move {
                match present {
                    Some(_) => Err(Refusal::Exists),
                    None => Ok(stoker_catalog::names::Plan::simple(file)),
                }
            })
        });
        match adopted.await {
            Ok(adopted) => {
                self.saw(adopted.seq);
                Ok(())
            }
            Err(Refusal::Exists) => Ok(()),
            Err(other) => Err(error::refusal(other)),
        }
    }

    /// Copies by reference: the copy is another name for the same version.
    pub async fn copy_file(self: &Arc<Core>, request: CopyRequest) -> Result<Receipt> {
        self.check_open()?;
        let _work = self.work.begin();
        let from_volume = self.volumes.get(&request.from_volume).await?;
        let volume = self.volumes.get(&request.to_volume).await?;
        volume.check_writable()?;
        let (from, to) = (request.from.as_bytes(), request.to.as_bytes());
        let seen = self.seen(&from_volume, from).await?.ok_or_else(|| no_such_key(from))?;
        check_condition(&request.from_condition, Some(&seen.file.etag))?;
        let _pin = self.pins.pin(seen.file.version());
        let mut properties = Properties::decode(&seen.file.properties)?;
        if let Some(attributes) = request.attributes {
            properties.attributes = attributes;
        }
        let now_ms = clock::now_ms();
        let mut row = FileRow {
            inode: 0,
            modified_ms: now_ms,
            drain: Core::drain_of(&volume),
            lake: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            properties: properties.encode()?,
            ..seen.file.clone()
        };
        let runs = self.names.runs(&seen.file).await.map_err(error::catalog)?;
        let _marks = self.marks.read().await;
        if seen.file.drain == Drain::Clean || seen.file.source.is_some() {
            let ids: Vec<ChunkId> = rings::chunks(&runs).map(|(chunk, _)| chunk).collect();
            if self.rings.mark_dirty(ids).await? {
                row.holders = self.rings.holders(0..self.rings.drives().len());
                row.source = None;
            } else {
                row.source = self.source_of(&from_volume, &seen.file);
                row.holders = self.rings.holders([0]);
            }
        }
        // The source must still be what it was, or its chunks may be on their way out.
        let checks = match &seen.located {
            Some(located) => {
                let same = located.spot.volume == volume.id && from == to;
                let key = located.spot.row_key();
                if same { Vec::new() } else { vec![Check::Seq(key, located.seq)] }
            }
            None => Vec::new(),
        };
        let mut list = RunList::default();
        runs.iter().for_each(|run| list.push_run(run));
        let job = Job {
            row,
            runs: list,
            upload_parts: Vec::new(),
            condition: request.condition,
            append: false,
            checks,
            writes: Vec::new(),
        };
        self.publish_copy(&volume, to, job).await
    }

    fn source_of(&self, volume: &Volume, file: &FileRow) -> Option<SourceRef> {
        if file.drain != Drain::Clean {
            return file.source.clone();
        }
        let LakeRef { key, etag } = file.lake.clone()?;
        Some(SourceRef { volume: volume.id.0, key, etag })
    }

    /// Publishes a version whose layout rows exist already.
    async fn publish_copy(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8], job: Job) -> Result<Receipt> {
        let guards = self.guards(volume, &job.row.holders);
        let published = self
            .names
            .publish(volume.id, key, &guards, |present| {
                let (core, volume, key, job) = (self.clone(), volume.clone(), key.to_vec(), job.clone());
                let present = present.cloned();
                Box::pin(async move {
                    let plan = core.plan(&volume, &key, present, job).await.map_err(error::refuse)?;
                    Ok(stoker_catalog::names::Plan { layout: Vec::new(), ..plan })
                })
            })
            .await
            .map_err(|refusal| publish_refusal(refusal, guards.len()))?;
        let file = &published.file;
        let properties = Properties::decode(&file.properties)?;
        let record = name_record::put(volume.id, key, file, &properties, job.runs.runs(), self.seq_now());
        // Two names share one version: the record of the second has an id of its own.
        self.leave_record(volume, clock::mint(), &record).await?;
        self.after_publish(volume, key, &published);
        add(&self.stats.publishes, 1);
        Core::receipt(volume, key, file, published.seq)
    }

    /// Changes properties.
    pub async fn change_attributes(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        change: AttributesChange,
    ) -> Result<FileInfo> {
        self.check_open()?;
        volume.check_writable()?;
        self.adopt(volume, key).await?;
        for _ in 0..100 {
            let located = self.names.lookup(volume.id, key).await.map_err(error::catalog)?;
            let located = located.ok_or_else(|| no_such_key(key))?;
            let mut file = located.file.clone();
            let mut properties = Properties::decode(&file.properties)?;
            apply(&mut properties, &change);
            file.properties = properties.encode()?;
            let row_key = located.spot.row_key();
            let value = EntryRow::File(Box::new(file.clone())).encode();
            let mut commit = Commit::new().seq(row_key.clone(), located.seq).put(row_key, value);
            commit.checks.extend(self.guards(volume, &[]));
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                return Core::info(key, &file);
            }
        }
        Err(error::refusal(Refusal::Contended))
    }
}

fn apply(properties: &mut Properties, change: &AttributesChange) {
    let attributes = &mut properties.attributes;
    if let Some(tags) = &change.tags {
        attributes.tags = tags.clone();
    }
    attributes.mode = change.mode.or(attributes.mode);
    attributes.owner = change.owner.or(attributes.owner);
    attributes.mtime_ns = change.mtime_ns.or(attributes.mtime_ns);
    for (name, value) in &change.xattrs {
        attributes.xattrs.retain(|(known, _)| known != name);
        if let Some(value) = value {
            attributes.xattrs.push((name.clone(), value.clone()));
        }
    }
}
