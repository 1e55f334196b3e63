//! Changes of names: delete, rename, attributes.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Write};
use stoker_format::{VersionId, past_parts};
use stoker_schema::names::{
    Forgotten, Kept, Located, Plan, Refusal, Removal, Removed, delete_record_garbage, dirty_writes,
};
use stoker_schema::rows::{
    Drain, EntryRow, FileRow, LakeRef, RekeyRow, RowValue, SourceRef, TombstoneRow, keys,
};
use stoker_store::{
    Attributes, AttributesChange, Condition, ErrorKind, FileInfo, Keeps, Key, RenameMode, Result, StoreError,
    Subject,
};
use stoker_tiers::lifecycle::Lifecycle;

use crate::cell::Keepers;
use crate::core::{Core, add};
use crate::drain::may_be_in_lake;
use crate::lookup::no_such_key;
use crate::properties::Properties;
use crate::publish::{check_condition, check_version, tombstone_gone};
use crate::volumes::Volume;
use crate::{clock, error, name_record};

impl Core {
    /// The last commit that this node knows of.
    pub fn seq_known(&self) -> u64 {
        self.seq_seen.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// A number that no commit is above which was acknowledged before this call, by whichever node: a record with it comes after
    /// all of them. (D60)
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
        Ok(self.delete_kept(volume, key, condition).await?.0)
    }

    /// The same; tells which marker says so from now on, if versions are kept.
    pub async fn delete_kept(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        condition: &Condition,
    ) -> Result<(bool, Option<Kept>)> {
        Box::pin(self.delete_seen(volume, key, condition, None)).await
    }

    /// The same, if the key still has this version, and that one has expired by these rules.
    pub async fn delete_seen(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        condition: &Condition,
        due: Option<(VersionId, &Lifecycle)>,
    ) -> Result<(bool, Option<Kept>)> {
        self.check_open()?;
        if past_parts(key).is_some() {
            crate::drain::check_key(key)?;
        }
        self.check_writable(volume)?;
        let _work = self.work.begin();
        let record = clock::mint();
        // The row that hands the record to the collector may be seen before the record is there.
        let _pin = self.pins.pin(record);
        let guards = self.guards(volume);
        let _lock = self.key_locks.lock(volume.id, key).await;
        // Where others write to the lake too, they may have replaced or removed what the catalog knows.
        let theirs = match self.names.lookup(volume.id, key).await.map_err(error::catalog)? {
            Some(located) => match self.as_seen(volume, key, &located.file).await {
                Some(seen) if seen.version != located.file.version => Some(seen),
                _ => None,
            },
            None => None,
        };
        let removed = self.names.remove(volume.id, key, &guards, |located| {
            let seen = theirs.as_ref().unwrap_or(&located.file);
            check_condition(condition, Some(&seen.etag)).map_err(error::refuse)?;
            if let Some((version, rules)) = due {
                check_version(Some(version), seen).map_err(error::refuse)?;
                self.check_expired(rules, key, seen).map_err(error::refuse)?;
            }
            let lake = theirs.as_ref().map_or(&located.file.lake, |theirs| &theirs.lake);
            let writes = self.tombstones(volume, key, lake.as_ref(), record);
            let keeping = self.keeping(volume, key).map(|keeping| (keeping, clock::mint()));
            Ok(Removal { writes, ends_directory: condition.is_empty_directory(), keeping })
        });
        match removed.await.map_err(error::refusal)? {
            Some(removed) => {
                self.after_remove(volume, key, &removed);
                let name = name_record::delete(volume.id, key, record, removed.seq);
                let _left = self.leave_after(volume, record, &name, Keepers::Anybody).await?;
                self.leave_kept(volume, removed.kept.as_ref(), removed.seq).await?;
                add(&self.stats.deletes, 1);
                Ok((true, removed.marker))
            }
            None => Ok((self.delete_lake_file(volume, key, condition, &guards).await?, None)),
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
    pub fn tombstones(
        &self,
        volume: &Volume,
        key: &[u8],
        lake: Option<&LakeRef>,
        record: VersionId,
    ) -> Vec<Write> {
        if volume.lake_url.is_none() || (lake.is_none() && !may_be_in_lake(key)) {
            // With the chunks of what it deletes, the record has done its duty.
            return delete_record_garbage(record);
        }
        let row = |etag: Option<String>| {
            TombstoneRow { since_ms: clock::now_ms(), etag, name_record: Some(record.0) }.encode()
        };
        let mut writes = Vec::new();
        if may_be_in_lake(key) {
            // An upload of this key may be under way, or the lake may show something else: the name is hidden in any case.
            let own = lake.filter(|lake| lake.key == key).map(|lake| lake.etag.clone());
            writes.push(Write::Put(keys::tombstone(volume.id, key), row(own)));
        }
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
        self.check_writable(volume)?;
        let _work = self.work.begin();
        if volume.versions.keeps() != Keeps::Nothing {
            if let RenameMode::Exchange { .. } = mode {
                return self.check_keeps_nothing(volume, "names in it are not exchanged");
            }
            if !from.as_bytes().ends_with(b"/") && !to.as_bytes().ends_with(b"/") {
                return self.rename_kept(volume, from, to, mode).await;
            }
            // What the names in it had would stay behind: programs copy then, name by name.
            let message =
                "a directory of a volume that keeps versions cannot be renamed; its files can, one by one";
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Quota, message));
        }
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
        crate::drain::check_key(to)?;
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
        self.check_path(volume, to, &Attributes::default()).await?;
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

    pub fn rename_writes(
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
            let dependent = keys::dependent(volume.id, &lake.key, version, source.file.inode);
            writes.push(match lake.key == to {
                true => Write::Delete(dependent),
                false => Write::Put(dependent, Vec::new()),
            });
        }
        // Objects of files that had these names before may lie there. The sweep looks, should nobody replace them.
        for name in [Some(from), target.map(|_| to)].into_iter().flatten().filter(|name| may_be_in_lake(name))
        {
            writes.push(Write::Put(keys::attempt(volume.id, name), Vec::new()));
        }
        if volume.asks_lake() && may_be_in_lake(from) {
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

    /// Changes properties.
    pub async fn change_attributes(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        change: AttributesChange,
    ) -> Result<FileInfo> {
        self.check_open()?;
        self.check_writable(volume)?;
        self.adopt(volume, key).await?;
        // So that the record that is left here is not that of a file which was deleted meanwhile.
        let _lock = self.key_locks.lock(volume.id, key).await;
        for _ in 0..100 {
            let located = self.names.lookup(volume.id, key).await.map_err(error::catalog)?;
            let located = located.ok_or_else(|| no_such_key(key))?;
            let mut properties = Properties::decode(&located.file.properties)?;
            apply(&mut properties, &change);
            let encoded = properties.encode()?;
            let mut info = Core::info(key, &FileRow { properties: encoded.clone(), ..located.file.clone() })?;
            self.count_links(volume, [&mut info]).await?;
            if encoded == located.file.properties {
                self.check_path(volume, past_parts(key).map_or(key, |(of, _)| of), &properties.attributes)
                    .await?;
                return Ok(info);
            }
            let mut commit = Commit::new();
            commit.checks.extend(self.guards(volume));
            // They are those of the file, under all its names.
            let mut names = vec![(key.to_vec(), located.clone())];
            if let Some(links) = self.names.links(&located, || [0; 12]).await.map_err(error::catalog)? {
                commit.checks.push(Check::Seq(keys::links(volume.id, located.file.number()), links.seq));
                for (other, _) in links.others {
                    let path = self.names.path_of(&other.spot).await.map_err(error::catalog)?;
                    names.push((path.unwrap_or_default(), other));
                }
            }
            for (key, located) in &mut names {
                let path = past_parts(key).map_or(&key[..], |(of, _)| of);
                self.check_path(volume, path, &properties.attributes).await?;
                let row_key = located.spot.row_key();
                commit.checks.push(Check::Seq(row_key.clone(), located.seq));
                located.file.properties = encoded.clone();
                self.drain_again(volume, &mut located.file, &mut commit)?;
                let row = EntryRow::File(Box::new(located.file.clone()));
                commit.writes.push(Write::Put(row_key, row.encode()));
            }
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                for (at, (key, located)) in names.iter().enumerate() {
                    match at {
                        0 => self.leave_put(volume, key, &located.file, seq).await?,
                        _ => self.leave_link(volume, &located.spot, &located.file, seq).await?,
                    }
                    if located.file.drain == Drain::Dirty {
                        self.drainer.note(volume, &located.file);
                    }
                }
                info.drain = crate::core::state(names[0].1.file.drain);
                return Ok(info);
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
        let dependent = keys::dependent(volume.id, &lake.key, version, inode);
        commit.writes.push(Write::Put(dependent, Vec::new()));
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
