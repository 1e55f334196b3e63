//! Changes of names: delete, rename, copy, attributes; and listings.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Write};
use stoker_catalog::names::{
    Forgotten, Located, Plan, Refusal, Removal, Removed, delete_record_garbage, dirty_writes,
};
use stoker_catalog::rows::{
    Drain, EntryRow, FileRow, LakeRef, RekeyRow, RowValue, SourceRef, TombstoneRow, keys,
};
use stoker_format::VersionId;
use stoker_store::{
    Attributes, AttributesChange, Condition, CopyRequest, ErrorKind, FileInfo, Key, Receipt, RenameMode,
    Result, StoreError,
};

use crate::cell::Keepers;
use crate::core::{Core, add, copies};
use crate::lookup::no_such_key;
use crate::name_record::Cut;
use crate::properties::Properties;
use crate::publish::{Job, Keeps, check_condition, is_outdated, tombstone_gone};
use crate::volumes::Volume;
use crate::writer::{RunList, is_unknown};
use crate::{clock, error, name_record};

/// Tries of a copy whose source keeps changing.
const COPIES_MAX: usize = 20;

impl Core {
    /// The last commit that this node knows of.
    pub fn seq_known(&self) -> u64 {
        self.seq_seen.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// A number that no commit is above which was acknowledged before this call, by whichever node: a record with it comes after
    /// all of them.
    pub async fn seq_now(&self) -> u64 {
        if self.cell.has_others() {
            match self.catalog.seq().await {
                Ok(seq) => self.saw(seq),
                // What the record is for cannot be committed either.
                Err(fault) => tracing::debug!("the last commit is not known: {fault}"),
            }
        }
        self.seq_known()
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
        // The row that hands the record to the collector may be seen before the record is there.
        let _pin = self.pins.pin(record);
        let guards = self.guards(volume);
        let _turn = self.turns.take(volume.id, key).await;
        // Where others write to the lake too, they may have replaced or removed what the catalog knows.
        let theirs = match self.names.lookup(volume.id, key).await.map_err(error::catalog)? {
            Some(located) => match self.as_seen(volume, key, &located.file).await {
                Some(seen) if seen.version != located.file.version => Some(seen),
                _ => None,
            },
            None => None,
        };
        let removed = self.names.remove(volume.id, key, &guards, |located| {
            let etag = theirs.as_ref().map_or(&located.file.etag, |theirs| &theirs.etag);
            check_condition(condition, Some(etag)).map_err(error::refuse)?;
            let lake = theirs.as_ref().map_or(&located.file.lake, |theirs| &theirs.lake);
            Ok(Removal { writes: self.tombstones(volume, key, lake.as_ref(), record) })
        });
        match removed.await.map_err(error::refusal)? {
            Some(removed) => {
                self.after_remove(volume, key, &removed);
                let name = name_record::delete(volume.id, key, record, removed.seq);
                self.leave_after(volume, record, &name, Keepers::Anybody).await?;
                add(&self.stats.deletes, 1);
                Ok(true)
            }
            None => self.delete_lake_file(volume, key, condition, &guards).await,
        }
    }

    fn after_remove(&self, volume: &Arc<Volume>, key: &[u8], removed: &Removed) {
        self.saw(removed.seq);
        self.looks.forget(volume, key);
        self.garbage.notify_one();
        match &removed.fate {
            Forgotten::Garbage(version) => self.drainer.forget(*version),
            Forgotten::Shared(version) => self.drainer.reconsider(*version),
        }
        self.drainer.wake();
    }

    /// Rows that hide and then remove what the lake has of a file.
    fn tombstones(
        &self,
        volume: &Volume,
        key: &[u8],
        lake: Option<&LakeRef>,
        record: VersionId,
    ) -> Vec<Write> {
        if volume.lake_url.is_none() {
            // With the chunks of what it deletes, the record has done its duty.
            return delete_record_garbage(record);
        }
        let row = |etag: Option<String>| {
            TombstoneRow { since_ms: clock::now_ms(), etag, name_record: Some(record.0) }.encode()
        };
        let mut writes = Vec::new();
        // An upload of this key may be under way, or the lake may show something else: the name is hidden in any case.
        let own = lake.filter(|lake| lake.key == key).map(|lake| lake.etag.clone());
        writes.push(Write::Put(keys::tombstone(volume.id, key), row(own)));
        if let Some(lake) = lake.filter(|lake| lake.key != key) {
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
        if let RenameMode::Exchange { inode } = mode {
            return self.exchange(volume, from, to, inode).await;
        }
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
        let guards = self.guards(volume);
        let record = clock::mint();
        let rekey = RekeyRow { since_ms: clock::now_ms(), name_record: Some(record.0) };
        let renamed = self.names.rename_directory(volume.id, from, to, &guards, rekey).await;
        let renamed = renamed.map_err(|refusal| match refusal {
            Refusal::NotFound => no_such_key(from),
            other => error::refusal(other),
        })?;
        self.saw(renamed.seq);
        let name = name_record::rename(volume.id, from, to, record, renamed.seq);
        self.leave_after(volume, record, &name, Keepers::Anybody).await?;
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
        self.check_lake(volume, to, &Attributes::default()).await?;
        self.adopt(volume, from).await?;
        let guards = self.guards(volume);
        let record = clock::mint();
        let buried = self.tombstone(volume, to).await?;
        let renamed = self.names.rename_file(volume.id, from, to, &guards, |source, target| {
            if target.is_some() && mode == RenameMode::NoReplace {
                return Err(error::refuse(StoreError::new(ErrorKind::Conflict, "the target exists already")));
            }
            let mut writes = self.rename_writes(volume, from, to, source, target, record);
            if volume.lake_url.is_some() {
                writes.extend(tombstone_gone(volume, to, buried.as_ref()));
            }
            Ok(writes)
        });
        let renamed = renamed.await.map_err(|refusal| match refusal {
            Refusal::NotFound => no_such_key(from),
            other => error::refusal(other),
        })?;
        self.saw(renamed.seq);
        self.looks.forget(volume, from);
        self.looks.forget(volume, to);
        match &renamed.replaced {
            Some((_, Forgotten::Garbage(version))) => {
                self.drainer.forget(*version);
                self.garbage.notify_one();
            }
            Some((_, Forgotten::Shared(version))) => self.drainer.reconsider(*version),
            None => {}
        }
        self.drainer.wake();
        if let Some(file) = &renamed.file {
            if file.drain == Drain::Dirty {
                // It may be on its way under the old name right now.
                self.drainer.note(volume, file);
            }
            self.leave_put(volume, to, file, renamed.seq).await?;
        }
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
        let mut writes = vec![Write::Put(
            keys::rekey_file(volume.id, version),
            RekeyRow { since_ms: now_ms, name_record: None }.encode(),
        )];
        if let Some(lake) = source.file.lake.as_ref().filter(|_| source.file.drain == Drain::Clean) {
            // Its bytes stay under the old lake key until they were copied; unless that is the key that it gets back.
            let relier = keys::relier(volume.id, &lake.key, version, source.file.inode);
            writes.push(match lake.key == to {
                true => Write::Delete(relier),
                false => Write::Put(relier, Vec::new()),
            });
        }
        // Objects of files that had these names before may lie there. The sweep looks, should nobody replace them.
        writes.push(Write::Put(keys::attempt(volume.id, from), Vec::new()));
        if target.is_some() {
            writes.push(Write::Put(keys::attempt(volume.id, to), Vec::new()));
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
        let guards = self.guards(volume);
        let adopted = self.names.publish(volume.id, key, &guards, |present| {
            let (file, present) = (seen.file.clone(), present.cloned());
            let gone = Check::Absent(keys::tombstone(volume.id, key));
            Box::pin(async move {
                match present {
                    Some(_) => Err(Refusal::Exists),
                    None => Ok(Plan { checks: vec![gone], ..Plan::simple(file) }),
                }
            })
        });
        match adopted.await {
            Ok(adopted) => {
                self.saw(adopted.seq);
                Ok(())
            }
            Err(Refusal::Exists) => Ok(()),
            // Deleted meanwhile.
            Err(Refusal::Guard(at)) if at >= guards.len() => Ok(()),
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
        for _ in 0..COPIES_MAX {
            if let Some(receipt) = self.copy_once(&from_volume, &volume, &request).await? {
                return Ok(receipt);
            }
        }
        Err(error::refusal(Refusal::Contended))
    }

    /// One try; none if the source changed meanwhile, be it that it was drained.
    async fn copy_once(
        self: &Arc<Core>,
        from_volume: &Arc<Volume>,
        volume: &Arc<Volume>,
        request: &CopyRequest,
    ) -> Result<Option<Receipt>> {
        let (from, to) = (request.from.as_bytes(), request.to.as_bytes());
        let seen = self.seen(from_volume, from).await?.ok_or_else(|| no_such_key(from))?;
        check_condition(&request.from_condition, Some(&seen.file.etag))?;
        let _pin = self.pins.pin(seen.file.version());
        let mut properties = Properties::decode(&seen.file.properties)?;
        if let Some(attributes) = &request.attributes {
            properties.attributes = attributes.clone();
        }
        self.check_lake(volume, to, &properties.attributes).await?;
        let now_ms = clock::now_ms();
        // Two names share one version: the record of the second has an id of its own.
        let record = clock::mint();
        let mut row = FileRow {
            inode: 0,
            modified_ms: now_ms,
            drain: Core::drain_of(volume),
            lake: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            name_record: Some(record.0),
            properties: properties.encode()?,
            home: self.node.0,
            ..seen.file.clone()
        };
        let runs = self.names.runs(&seen.file).await.map_err(error::catalog)?;
        let (mut sessions, keeps) = (Vec::new(), Keeps::default());
        let _marks = self.marks.read().await;
        if seen.file.drain == Drain::Clean || seen.file.source.is_some() {
            row.source = self.source_of(from_volume, &seen.file);
            row.holders = self.rings.holders([self.rings.stand_in()]);
            // Elsewhere it costs less to rely on the lake object until the copy is drained.
            if self.class(volume).copies() == 1
                && let Some(kept) = self.secure(volume, &runs, &[]).await?
            {
                (row.source, row.holders) = (None, kept.holders());
            }
        } else if copies(&row.holders, from_volume.policy.class) < self.class(volume).copies() as u32 {
            let kept = self.secure(volume, &runs, &row.holders).await?;
            let gone =
                || StoreError::new(ErrorKind::Unavailable, "the bytes of the source cannot be reached now");
            let kept = kept.ok_or_else(gone)?;
            (row.holders, sessions) = (kept.holders(), kept.sessions());
            keeps.lock().unwrap().push(kept);
        }
        row.home = self.home_among(&row.holders);
        let mut list = RunList::default();
        runs.iter().for_each(|run| list.push_run(run));
        let seq = self.seq_now().await;
        let put = name_record::put(volume.id, to, &row, &properties, Cut::whole(list.runs()), seq);
        let left = self.leave_record(volume, record, &put, Keepers::Holders(&row.holders)).await?;
        // The source must still be what it was, or its chunks may be on their way out.
        let check = |located: &Located| Check::Seq(located.spot.row_key(), located.seq);
        let job = Job {
            row,
            runs: list,
            upload_parts: Vec::new(),
            condition: request.condition.clone(),
            append: false,
            base: None,
            has_layout: true,
            checks: seen.located.as_ref().map(check).into_iter().collect(),
            writes: Vec::new(),
            sessions,
            keeps,
            has_marks: true,
            shard: None,
        };
        let published = self.publish(volume, to, job).await;
        // Peers forget nothing that they keep for somebody.
        left.end().await;
        match published {
            Ok(receipt) => {
                add(&self.stats.publishes, 1);
                Ok(Some(receipt))
            }
            Err(fault) => {
                if !is_unknown(&fault) {
                    self.forget_record(record).await?;
                }
                match is_outdated(&fault) {
                    true => Ok(None),
                    false => Err(fault),
                }
            }
        }
    }

    fn source_of(&self, volume: &Volume, file: &FileRow) -> Option<SourceRef> {
        if file.drain != Drain::Clean {
            return file.source.clone();
        }
        let LakeRef { key, etag } = file.lake.clone()?;
        Some(SourceRef { volume: volume.id.0, key, etag })
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
        // So that the record that is left here is not that of a file which was deleted meanwhile.
        let _turn = self.turns.take(volume.id, key).await;
        for _ in 0..100 {
            let located = self.names.lookup(volume.id, key).await.map_err(error::catalog)?;
            let located = located.ok_or_else(|| no_such_key(key))?;
            let mut file = located.file.clone();
            let mut properties = Properties::decode(&file.properties)?;
            apply(&mut properties, &change);
            self.check_lake(volume, key, &properties.attributes).await?;
            file.properties = properties.encode()?;
            if file.properties == located.file.properties {
                return Core::info(key, &file);
            }
            let row_key = located.spot.row_key();
            let mut commit = Commit::new().seq(row_key.clone(), located.seq);
            commit.checks.extend(self.guards(volume));
            self.drain_again(volume, &mut file, &mut commit)?;
            let commit = commit.put(row_key, EntryRow::File(Box::new(file.clone())).encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.leave_put(volume, key, &file, seq).await?;
                if file.drain == Drain::Dirty {
                    self.drainer.note(volume, &file);
                }
                return Core::info(key, &file);
            }
        }
        Err(error::refusal(Refusal::Contended))
    }
}

impl Core {
    /// Properties of a drained file changed: the lake copies the object onto itself with the new ones.
    fn drain_again(&self, volume: &Volume, file: &mut FileRow, commit: &mut Commit) -> Result<()> {
        let Some(lake) = file.lake.clone().filter(|_| file.drain == Drain::Clean) else { return Ok(()) };
        if Core::drain_of(volume) != Drain::Dirty {
            return Ok(());
        }
        let now_ms = clock::now_ms();
        file.drain = Drain::Dirty;
        file.dirty_since_ms = now_ms;
        file.home = self.node.0;
        file.holders = self.rings.holders([self.rings.stand_in()]);
        let (version, inode) = (file.version(), file.inode);
        let relier = keys::relier(volume.id, &lake.key, version, inode);
        commit.writes.push(Write::Put(relier, Vec::new()));
        file.source = Some(SourceRef { volume: volume.id.0, key: lake.key, etag: lake.etag });
        dirty_writes(commit, volume.id, file, None);
        Ok(())
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
