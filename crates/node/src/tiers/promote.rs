//! The second lake of a volume becomes the volume's lake.
//!
//! One transaction says so; from then on nobody claims a lake key of the volume, and claims under way fail at their next step, since the walk that follows
//! raises their fences. The walk changes what rows say of objects: the etags that the second lake gave. A file that the second lake lacks is
//! drained again, if rings or the former lake still give its bytes; else a row names it, and it stays until the former lake is back or it
//! is deleted. Then lake keys can be claimed again, in the new lake. Writes to rings and reads go on all the time. A node that dies in the
//! middle leaves a walk that another one goes on with. (D222)

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::kv::{Commit, Outcome, Range, Row, Write, prefix_end};
use stoker_format::VersionId;
use stoker_lake::Lake;
use stoker_schema::names::{Located, Spot, dirty_writes};
use stoker_schema::rows::{
    CopyRow, CopyWalkRow, Drain, EntryRow, FileRow, LackingRow, LakeKeyRow, LakeRef, ReplicaRow,
    ReplicaState, RowValue, SourceRef, SumsRow, TombstoneRow, keys, tier_keys,
};
use stoker_store::{ErrorKind, LackingFile, Result, StoreError, Subject};

use super::named;
use super::replica::{Replica, WALK_ROWS, is_copied};
use crate::core::Core;
use crate::drain::attributes;
use crate::volumes::Volume;
use crate::{clock, error};

/// Tries of a transaction that others were quicker with.
const TRIES_MAX: usize = 32;

/// A lake that does not answer a first question within this time is not asked for more.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// Pause between two looks whether the former lake is back.
const RECOVER_MS: u64 = 10_000;

/// Files that one look takes back at most.
const RECOVERED_MAX: usize = 100;

/// Lacking files of one answer.
const LACKING_MAX: usize = 1_000;

/// The tables that the walk goes through: lake keys, files, deletes, and files once more, since a rename may have moved one past the walk.
const TABLES: [&[u8]; 4] = [b"k", b"E", b"t", b"E"];

/// What a walk found.
#[derive(Default)]
struct Found {
    lacking_files: u64,
    lacking_bytes: u64,
    rescued_files: u64,
}

/// What a walk over files knows.
#[derive(Clone, Copy)]
struct Pass {
    /// The former lake answers.
    has_first: bool,
    /// All files were seen once.
    is_last: bool,
}

/// The etag in the new lake for one in the former lake.
enum Now {
    /// It is one of the new lake already.
    Same,
    /// Another one.
    Etag(String),
    /// The new lake does not have that object; what it has under the key, if anything.
    Lacking(Option<String>),
}

fn now_of(etag: &str, copy: Option<&CopyRow>) -> Now {
    match copy {
        Some(copy) if copy.source.as_deref() == Some(etag) => {
            copy.etag.clone().map_or(Now::Lacking(None), Now::Etag)
        }
        Some(copy) if copy.etag.as_deref() == Some(etag) => Now::Same,
        Some(copy) => Now::Lacking(copy.etag.clone()),
        None => Now::Lacking(None),
    }
}

/// A step that counts only while the lakes stand as this node knows: one that stalled writes nothing over what others did since.
fn during(volume: &Volume, replica: &Replica) -> Commit {
    Commit::new().seq(tier_keys::replica(volume.id), replica.seq)
}

async fn answers(lake: &dyn Lake) -> bool {
    let asked = lake.list(b".stoker-probe/", None, None, 1);
    matches!(tokio::time::timeout(PROBE_MAX, asked).await, Ok(Ok(_)))
}

impl Core {
    /// Begins to make the second lake of a volume its lake. The round goes on with it.
    pub(super) async fn promote(self: &Arc<Core>, name: &str, to: &str) -> Result<()> {
        let volume = self.volumes.get(name).await?;
        let wanted = named::place(to, name);
        for _ in 0..TRIES_MAX {
            let (keys, rows) = self.bond_rows(&volume).await?;
            let mut value = self.volume_row(&volume, rows[0].as_ref())?;
            let known = rows[1].as_ref().map(ReplicaRow::of).transpose().map_err(error::catalog)?;
            let Some(row) = known.filter(|row| row.second == wanted) else {
                let message = format!(
                    "lake `{to}` is not the replica of volume `{name}`; `stoker lake replicas` shows what is"
                );
                return Err(StoreError::about(ErrorKind::Invalid, Subject::Lake, message));
            };
            if row.state != ReplicaState::Copying {
                // Asked again.
                return Ok(());
            }
            let second = self.volumes.lakes().open(&row.second, false).await.map_err(error::lake)?;
            if !answers(second.as_ref()).await {
                let message = format!("lake `{to}` does not answer, so it cannot take over");
                return Err(StoreError::about(ErrorKind::Unavailable, Subject::Lake, message));
            }
            value.lake = Some(row.second.clone());
            let row = ReplicaRow { state: ReplicaState::Promoting, since_ms: clock::now_ms(), ..row };
            let commit = Commit::new()
                .unchanged(keys[0].clone(), rows[0].as_ref())
                .unchanged(keys[1].clone(), rows[1].as_ref())
                .put(keys[0].clone(), value.encode())
                .put(keys[1].clone(), row.encode())
                .put(keys[2].clone(), CopyWalkRow::default().encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.volumes.keep(name, &value, seq).await?;
                self.keep_rows().await?;
                self.drainer.wake();
                tracing::info!(volume = name, "lake {to} takes over");
                return Ok(());
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "the row of the volume is contended; try again"))
    }

    /// A piece of the walk; true if there is more.
    pub(super) async fn promote_round(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
    ) -> Result<bool> {
        let walk_key = tier_keys::copy_walk(volume.id);
        let Some((row, walk)) = self.walk_row(volume).await? else { return Ok(true) };
        let Some(table) = TABLES.get(usize::from(walk.table)) else {
            return self.promote_ends(volume, replica, walk).await.map(|()| false);
        };
        let mut range = Range::prefix(&[*table, &volume.id.0.to_be_bytes()[..]].concat(), WALK_ROWS);
        if let Some(after) = &walk.after {
            range = range.after(after);
        }
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        // Asked once for a page: a lake that is gone would cost its patience for every file.
        let has_first = *table == b"E"
            && !page.rows.is_empty()
            && match replica.first(self.volumes.lakes()).await {
                Ok(first) => answers(first.as_ref()).await,
                Err(_) => false,
            };
        let pass = Pass { has_first, is_last: walk.table > 1 };
        let mut found = Found::default();
        for row in &page.rows {
            if self.closing.load(Ordering::Relaxed) {
                return Ok(false);
            }
            match walk.table {
                0 => self.promote_key(volume, replica, row.clone()).await?,
                2 => self.promote_tombstone(volume, replica, row).await?,
                _ => self.promote_file(volume, replica, row.clone(), (pass, &mut found)).await?,
            }
        }
        let mut next = CopyWalkRow {
            rescued_files: walk.rescued_files + found.rescued_files,
            // The second time all of them are seen again.
            lacking_files: found.lacking_files + if walk.after.is_some() { walk.lacking_files } else { 0 },
            lacking_bytes: found.lacking_bytes + if walk.after.is_some() { walk.lacking_bytes } else { 0 },
            ..walk.clone()
        };
        if *table != b"E" {
            (next.lacking_files, next.lacking_bytes) = (walk.lacking_files, walk.lacking_bytes);
        }
        (next.table, next.after) = match page.rows.last() {
            Some(last) if page.more => (walk.table, Some(last.key.clone())),
            _ => (walk.table + 1, None),
        };
        let commit = Commit::new().seq(walk_key.clone(), row.seq).put(walk_key, next.encode());
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(true)
    }

    /// The walk is over: lake keys can be claimed again.
    async fn promote_ends(&self, volume: &Volume, replica: &Replica, walk: CopyWalkRow) -> Result<()> {
        let (keys, rows) = self.bond_rows(volume).await?;
        let value = self.volume_row(volume, rows[0].as_ref())?;
        let row = ReplicaRow { state: ReplicaState::Promoted, ..replica.row.clone() };
        let work = tier_keys::copy_work(volume.id, b"");
        let end = prefix_end(&work).expect("tables are not 0xff");
        let mut commit = Commit::new()
            .unchanged(keys[0].clone(), rows[0].as_ref())
            .seq(keys[1].clone(), replica.seq)
            .put(keys[0].clone(), value.encode())
            .put(keys[1].clone(), row.encode());
        commit.writes.push(Write::DeleteRange(work, end));
        if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            self.saw(seq);
            self.volumes.keep(&volume.name, &value, seq).await?;
            self.keep_rows().await?;
            self.drainer.reload();
            tracing::info!(
                volume = volume.name,
                lacking = walk.lacking_files,
                rescued = walk.rescued_files,
                "its lake is {} now",
                row.second
            );
        }
        Ok(())
    }

    /// A lake key: what the new lake has under it. Whoever had claimed it loses it.
    async fn promote_key(&self, volume: &Volume, replica: &Replica, mut row: Row) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let key = keys::lake_key_part(&row.key).to_vec();
            let value = LakeKeyRow::of(&row).map_err(error::catalog)?;
            let copy = self.copy_row(volume.id, &key).await?.map(|(copy, _)| copy);
            let mut next = LakeKeyRow { fence: value.fence + 1, ..LakeKeyRow::default() };
            match is_copied(&key) {
                // Not copied, and not found there.
                false => next.etag.clone_from(&value.etag),
                true => {
                    let is_new = |copy: &CopyRow| copy.etag.is_some() && copy.etag == value.etag;
                    if copy.as_ref().is_some_and(is_new) && value.session == [0; 16] {
                        return Ok(());
                    }
                    let copy = copy.unwrap_or_default();
                    if let Some(upload) = &copy.upload {
                        // Nobody else knows of it, and nobody may complete it over what is drained from now on.
                        let second = replica.second(self.volumes.lakes()).await?;
                        second.upload_abort(&key, upload).await.map_err(error::lake)?;
                    }
                    if copy.session != [0; 16] || copy.unsettled_until_ms > 0 {
                        next.unsettled_until_ms = self.settled_ms().await?;
                        next.unsettled_delete = true;
                    }
                    let sent = copy.attempts.iter().map(|sent| match sent.as_str() {
                        "" => Some(VersionId::ZERO),
                        version => version.parse().ok(),
                    });
                    next.attempts = sent.flatten().map(|version| version.0).collect();
                    next.etag = copy.etag;
                }
            }
            let mut commit = during(volume, replica).seq(row.key.clone(), row.seq);
            commit = commit.put(row.key.clone(), next.encode());
            if !next.attempts.is_empty() {
                commit = commit.put(keys::attempt(volume.id, &key), Vec::new());
            }
            if let Outcome::Done { .. } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                return Ok(());
            }
            let again = self.catalog.get(&[&row.key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(again) = again else { return Ok(()) };
            row = again;
        }
        Err(contended())
    }

    async fn promote_tombstone(&self, volume: &Volume, replica: &Replica, row: &Row) -> Result<()> {
        let value = TombstoneRow::of(row).map_err(error::catalog)?;
        let Some(etag) = &value.etag else { return Ok(()) };
        let copy = self.copy_row(volume.id, keys::lake_key_part(&row.key)).await?;
        let etag = match now_of(etag, copy.as_ref().map(|(copy, _)| copy)) {
            Now::Same => return Ok(()),
            Now::Etag(etag) => Some(etag),
            Now::Lacking(there) => there,
        };
        let next = TombstoneRow { etag, ..value };
        let commit =
            during(volume, replica).seq(row.key.clone(), row.seq).put(row.key.clone(), next.encode());
        // It went meanwhile: nothing is to be said of it.
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(())
    }

    /// A file: where its object is in the new lake.
    async fn promote_file(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
        mut row: Row,
        (pass, found): (Pass, &mut Found),
    ) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let EntryRow::File(file) = EntryRow::of(&row).map_err(error::catalog)? else { return Ok(()) };
            let spot = spot_of(volume, &row.key);
            let located = Located { spot, file: *file, seq: row.seq };
            let done = match located.file.drain {
                Drain::Clean => self.promote_clean(volume, replica, &located, (pass, &mut *found)).await?,
                _ => self.promote_dirty(volume, replica, &located, pass.has_first).await?,
            };
            if done {
                return Ok(());
            }
            let again = self.catalog.get(&[&row.key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(again) = again else { return Ok(()) };
            row = again;
        }
        Err(contended())
    }

    async fn promote_clean(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
        located: &Located,
        (pass, found): (Pass, &mut Found),
    ) -> Result<bool> {
        let file = &located.file;
        let Some(lake) = &file.lake else { return Ok(true) };
        let copy = self.copy_row(volume.id, &lake.key).await?;
        let now = now_of(&lake.etag, copy.as_ref().map(|(copy, _)| copy));
        let (etag, there) = match now {
            Now::Same if pass.is_last => return Ok(true),
            // Changed before this walk was interrupted, or an etag that both lakes gave: only a look tells.
            Now::Same => match self.is_there_unsaid(replica, &lake.key, file).await? {
                Some(etag) if etag == lake.etag => return Ok(true),
                other => (other, Some(lake.etag.clone())),
            },
            Now::Etag(etag) => (Some(etag), None),
            Now::Lacking(there) => (self.is_there_unsaid(replica, &lake.key, file).await?, there),
        };
        if let Some(etag) = etag {
            self.move_sums(volume, lake, &etag).await?;
            let mut next = file.clone();
            next.lake = Some(LakeRef { key: lake.key.clone(), etag: etag.clone() });
            let key = located.spot.row_key();
            let commit = during(volume, replica)
                .seq(key.clone(), located.seq)
                .put(key, EntryRow::File(Box::new(next)).encode())
                .delete(tier_keys::lacking(volume.id, &lake.key));
            let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
            if let Outcome::Done { .. } = done {
                self.pins.note_object(file.version(), volume.id, &lake.key, &etag);
                return Ok(true);
            }
            return Ok(false);
        }
        let there = there.map(|etag| LakeRef { key: lake.key.clone(), etag });
        match self.rescue(volume, replica, located, there, pass.has_first).await? {
            Some(true) => {
                found.rescued_files += 1;
                return Ok(true);
            }
            Some(false) => return Ok(false),
            None => {}
        }
        found.lacking_files += 1;
        found.lacking_bytes += file.size;
        let lacking = LackingRow {
            version: file.version,
            etag: lake.etag.clone(),
            size: file.size,
            modified_ms: file.modified_ms,
        };
        let commit = during(volume, replica)
            .seq(located.spot.row_key(), located.seq)
            .put(tier_keys::lacking(volume.id, &lake.key), lacking.encode());
        let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// The etag of a copy that was made and not written down: a copier died, or was late.
    async fn is_there_unsaid(&self, replica: &Replica, key: &[u8], file: &FileRow) -> Result<Option<String>> {
        let second = replica.second(self.volumes.lakes()).await?;
        let found = self.head(second.as_ref(), key).await.map_err(error::lake)?;
        let version = file.version().to_string();
        let is_it = |found: &stoker_lake::ObjectInfo| {
            found.attributes.as_ref().and_then(attributes::version) == Some(version.as_str())
                && found.size == file.size
                && (found.crc64.is_none() || file.crc64.is_none() || found.crc64 == file.crc64)
        };
        Ok(found.filter(is_it).map(|found| found.etag))
    }

    /// One that is not in a lake yet: what it replaces there, and where a copy by reference has its bytes.
    async fn promote_dirty(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
        located: &Located,
        has_first: bool,
    ) -> Result<bool> {
        let mut file = located.file.clone();
        if let Some(lake) = file.lake.take() {
            let copy = self.copy_row(volume.id, &lake.key).await?;
            file.lake = match now_of(&lake.etag, copy.as_ref().map(|(copy, _)| copy)) {
                Now::Same => Some(lake),
                Now::Etag(etag) | Now::Lacking(Some(etag)) => Some(LakeRef { key: lake.key, etag }),
                Now::Lacking(None) => None,
            };
        }
        if let Some(source) = file.source.clone().filter(|source| source.volume == volume.id.0) {
            let copy = self.copy_row(volume.id, &source.key).await?;
            match now_of(&source.etag, copy.as_ref().map(|(copy, _)| copy)) {
                Now::Same => {}
                Now::Etag(etag) => file.source = Some(SourceRef { etag, ..source }),
                Now::Lacking(_) => {
                    let there = file.lake.clone();
                    // If it cannot be brought here it stays as it is: its source is among the lacking.
                    return Ok(self
                        .rescue(volume, replica, located, there, has_first)
                        .await?
                        .unwrap_or(true));
                }
            }
        }
        if file == located.file {
            return Ok(true);
        }
        let key = located.spot.row_key();
        let commit = during(volume, replica)
            .seq(key.clone(), located.seq)
            .put(key, EntryRow::File(Box::new(file)).encode());
        let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// What is known of the bytes of an object is as true of its copy.
    async fn move_sums(&self, volume: &Volume, lake: &LakeRef, etag: &str) -> Result<()> {
        let mut rows = Vec::new();
        self.each(keys::sums_all(volume.id, &lake.key), |row| {
            rows.push(row.clone());
            Ok(())
        })
        .await?;
        for row in rows {
            let sums = SumsRow::of(&row).map_err(error::catalog)?;
            if sums.etag != lake.etag {
                continue;
            }
            let next = SumsRow { etag: etag.to_owned(), ..sums };
            let commit = Commit::new().seq(row.key.clone(), row.seq).put(row.key, next.encode());
            let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        }
        Ok(())
    }

    /// Makes a file dirty again whose bytes rings have, or the other lake gives: it is drained to the lake that the volume has now. None if nobody has
    /// them, false if the file changed meanwhile.
    async fn rescue(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
        located: &Located,
        there: Option<LakeRef>,
        has_other: bool,
    ) -> Result<Option<bool>> {
        let file = &located.file;
        let pin = self.pins.pin(file.version());
        let open = self.file(volume, b"?", file, pin).await?;
        let mut marks = self.marks.read().await;
        let mut kept = self.secure(volume, open.runs(), &file.holders).await?;
        if kept.is_none() && has_other {
            drop(marks);
            let extent = self.extent(volume, file).await?;
            match self.stage_file(&open, extent.as_ref()).await {
                Ok(_) => {}
                Err(fault) if fault.kind == ErrorKind::Closed => return Err(fault),
                Err(fault) => {
                    tracing::debug!(volume = volume.name, "not to be had: {fault}");
                    return Ok(None);
                }
            }
            marks = self.marks.read().await;
            kept = self.secure(volume, open.runs(), &file.holders).await?;
            if kept.is_none() {
                return Err(StoreError::new(ErrorKind::Full, "no room to bring a file into the rings"));
            }
        }
        let Some(kept) = kept else { return Ok(None) };
        let mut row = file.clone();
        row.drain = Drain::Dirty;
        row.dirty_since_ms = clock::now_ms();
        row.home = self.node.0;
        row.holders = kept.holders();
        (row.lake, row.source) = (there, None);
        let key = located.spot.row_key();
        let mut commit = during(volume, replica)
            .seq(key.clone(), located.seq)
            .put(key, EntryRow::File(Box::new(row.clone())).encode());
        if let Some(old) = &file.lake {
            commit = commit
                .delete(keys::dependent(volume.id, &old.key, file.version(), file.inode))
                .delete(tier_keys::lacking(volume.id, &old.key));
        }
        if let Some(source) = &file.source {
            let source_volume = stoker_format::VolumeId(source.volume);
            let dependent = keys::dependent(source_volume, &source.key, file.version(), file.inode);
            commit = commit.delete(dependent);
        }
        commit.checks.extend(self.holder_checks(&row.holders, &kept.sessions()).await?);
        dirty_writes(&mut commit, volume.id, &row, None);
        let done = self.catalog.commit(commit).await.map_err(error::catalog)?;
        drop(marks);
        if let Outcome::Done { .. } = done {
            self.drainer.demand(&row);
            return Ok(Some(true));
        }
        Ok(Some(false))
    }

    /// Takes back what the lake of a volume lacks, once the other one has it again.
    pub(super) async fn recover_round(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
    ) -> Result<()> {
        let now_ms = clock::now_ms();
        {
            let mut due = self.replicas.recover_ms.lock().unwrap();
            if due.get(&volume.id.0).is_some_and(|due_ms| *due_ms > now_ms) {
                return Ok(());
            }
            due.insert(volume.id.0, now_ms + RECOVER_MS);
        }
        let range = Range::prefix(&tier_keys::lacking(volume.id, b""), RECOVERED_MAX);
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        if page.rows.is_empty() {
            return Ok(());
        }
        let other = replica.other_lake(self.volumes.lakes()).await?;
        let has_other = answers(other.as_ref()).await;
        for row in page.rows {
            let lacking = LackingRow::of(&row).map_err(error::catalog)?;
            let key = tier_keys::lacking_part(&row.key);
            let is_it = |located: &Located| {
                let lake = located.file.lake.as_ref();
                located.spot.volume == volume.id
                    && located.file.drain == Drain::Clean
                    && lake.is_some_and(|lake| lake.etag == lacking.etag && lake.key == key)
            };
            // By its version: it may have another name by now.
            let names = self.names_of(VersionId(lacking.version)).await?;
            match names.into_iter().find(is_it) {
                Some(located) => {
                    if self.rescue(volume, replica, &located, None, has_other).await?.is_none() {
                        // Nor will it have the next ones.
                        return Ok(());
                    }
                }
                None => {
                    let commit = Commit::new().seq(row.key.clone(), row.seq).delete(row.key);
                    let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
                }
            }
        }
        // There may be more.
        self.replicas.recover_ms.lock().unwrap().remove(&volume.id.0);
        Ok(())
    }

    /// Files that the lake of a volume lacks, and whether there are more.
    pub(super) async fn lacking_files(
        &self,
        name: &str,
        after: Option<&str>,
    ) -> Result<(Vec<LackingFile>, bool)> {
        let volume = self.volumes.get(name).await?;
        let mut range = Range::prefix(&tier_keys::lacking(volume.id, b""), LACKING_MAX);
        if let Some(after) = after {
            range = range.after(&tier_keys::lacking(volume.id, after.as_bytes()));
        }
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        let mut files = Vec::new();
        for row in &page.rows {
            let lacking = LackingRow::of(row).map_err(error::catalog)?;
            files.push(LackingFile {
                key: String::from_utf8_lossy(tier_keys::lacking_part(&row.key)).into_owned(),
                version: VersionId(lacking.version).to_string(),
                bytes: lacking.size,
                modified_ms: lacking.modified_ms,
            });
        }
        Ok((files, page.more))
    }
}

fn contended() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "a row changes all the time; the walk goes on with it later")
}

/// Where the entry with such a row is.
fn spot_of(volume: &Volume, key: &[u8]) -> Spot {
    let parent = key.get(5..13).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    Spot { volume: volume.id, parent, name: keys::entry_name(key).to_vec() }
}
