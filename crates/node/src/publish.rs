//! Making bytes visible under a key.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Write};
use stoker_catalog::names::{Forgotten, Located, Plan, Published, Refusal};
use stoker_catalog::rows::{Drain, FileRow, LakeRef, VersionRow, keys};
use stoker_format::{ChunkRun, NameRecord, crc64, crc64_combine};
use stoker_store::{
    BoxFuture, Condition, ErrorKind, Finish, Receipt, Result, StoreError, Subject, WriteRequest,
};

use crate::core::{Core, etag};
use crate::properties::Properties;
use crate::volumes::Volume;
use crate::writer::{Purpose, RunList, Written};
use crate::{clock, error, name_record};

/// A file that will have a name.
pub(crate) struct FilePurpose {
    pub volume: Arc<Volume>,
    pub key: Vec<u8>,
    pub request: WriteRequest,
}

/// The error for a condition that does not hold.
pub(crate) fn condition_failed(exists: bool, condition: &Condition) -> StoreError {
    if !exists && condition.if_match.is_some() {
        return StoreError::about(ErrorKind::NotFound, Subject::Key, "the key that must match is not there");
    }
    StoreError::about(
        ErrorKind::Conflict,
        Subject::Condition,
        "the file is not in the state that was asked for",
    )
}

pub(crate) fn check_condition(condition: &Condition, etag: Option<&str>) -> Result<()> {
    match condition.holds(etag) {
        true => Ok(()),
        false => Err(condition_failed(etag.is_some(), condition)),
    }
}

impl FilePurpose {
    fn properties(&self, finish: &Finish) -> Properties {
        Properties {
            attributes: self.request.attributes.clone(),
            checksums: finish.checksums.clone(),
            announced: None,
        }
    }

    fn row(&self, written: &Written, finish: &Finish) -> Result<FileRow> {
        let now_ms = clock::now_ms();
        Ok(FileRow {
            inode: 0,
            version: written.version.0,
            size: written.runs.size(),
            etag: finish.etag.clone().unwrap_or_else(|| etag(written.version, written.crc64, 1)),
            modified_ms: now_ms,
            crc64: Some(written.crc64),
            layout: written.runs.layout(written.version),
            holders: written.holders.clone(),
            drain: Core::drain_of(&self.volume),
            lake: None,
            source: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            properties: self.properties(finish).encode()?,
        })
    }
}

impl Purpose for FilePurpose {
    fn name_record(&self, core: &Core, written: &Written, finish: &Finish) -> Result<Option<NameRecord>> {
        let row = self.row(written, finish)?;
        let seq = core.seq_seen.load(std::sync::atomic::Ordering::Relaxed);
        let properties = self.properties(finish);
        Ok(Some(name_record::put(self.volume.id, &self.key, &row, &properties, written.runs.runs(), seq)))
    }

    fn publish(
        self: Box<Self>,
        core: Arc<Core>,
        written: Written,
        finish: Finish,
    ) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(async move {
            let row = self.row(&written, &finish)?;
            let job = Job {
                row,
                runs: written.runs,
                upload_parts: Vec::new(),
                condition: self.request.condition.clone(),
                append: self.request.append,
                checks: Vec::new(),
                writes: Vec::new(),
            };
            core.publish(&self.volume, &self.key, job).await
        })
    }
}

/// A publish in the making.
#[derive(Clone)]
pub(crate) struct Job {
    pub row: FileRow,
    pub runs: RunList,
    pub upload_parts: Vec<(u64, u32)>,
    pub condition: Condition,
    pub append: bool,
    pub checks: Vec<Check>,
    pub writes: Vec<Write>,
}

impl Core {
    /// Publishes, tells the loops, and gives the receipt.
    pub async fn publish(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8], job: Job) -> Result<Receipt> {
        volume.check_writable()?;
        let guards = self.guards(volume, &job.row.holders);
        let _turn = self.turns.take(volume.id, key).await;
        let _marks = match job.append {
            true => Some(self.marks.read().await),
            false => None,
        };
        let published = self
            .names
            .publish(volume.id, key, &guards, |present| {
                let (core, volume, key, job) = (self.clone(), volume.clone(), key.to_vec(), job.clone());
                let present = present.cloned();
                Box::pin(async move { core.plan(&volume, &key, present, job).await.map_err(error::refuse) })
            })
            .await
            .map_err(|refusal| publish_refusal(refusal, guards.len()))?;
        self.after_publish(volume, key, &published);
        Core::receipt(volume, key, &published.file, published.seq)
    }

    pub fn after_publish(&self, volume: &Arc<Volume>, key: &[u8], published: &Published) {
        self.saw(published.seq);
        self.looks.forget(volume, key);
        if let Some((_, Forgotten::Garbage(_))) = &published.replaced {
            self.garbage.notify_one();
        }
        if let Some((old, Forgotten::Shared(_))) = &published.replaced {
            self.drainer.reconsider(old.version());
        }
        if published.file.drain == Drain::Dirty {
            self.drainer.note(volume, &published.file);
        }
    }

    pub async fn plan(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        present: Option<Located>,
        job: Job,
    ) -> Result<Plan> {
        // What the caller would see now, in the catalog or in the lake.
        let lake = match &present {
            None if volume.asks_lake() => match self.lake_file(volume, key).await {
                Ok(found) => found,
                // Nothing was asked of what is there, so a lake that is away stops nobody. If something is there after
                // all, the drain finds out and overwrites nothing.
                Err(fault) if fault.kind == ErrorKind::Unavailable && job.condition.is_empty() => None,
                Err(fault) => return Err(fault),
            },
            _ => None,
        };
        let seen = present.as_ref().map(|located| &located.file).or(lake.as_ref());
        check_condition(&job.condition, seen.map(|file| file.etag.as_str()))?;
        let mut plan = Plan::simple(job.row);
        plan.checks = job.checks;
        plan.writes = job.writes;
        let mut runs = job.runs;
        if let (true, Some(old)) = (job.append, seen) {
            self.append_behind(old, &mut plan, &mut runs).await?;
        }
        if plan.file.layout == stoker_catalog::rows::Layout::Rows {
            plan.layout = VersionRow::split(runs.runs(), job.upload_parts);
        }
        if volume.lake_url.is_some() {
            let expected = match &present {
                Some(_) => None,
                None => match &lake {
                    Some(file) => file.lake.clone(),
                    None => self
                        .tombstone(volume, key)
                        .await?
                        .and_then(|row| row.etag)
                        .map(|etag| LakeRef { key: key.to_vec(), etag }),
                },
            };
            plan.file.lake = plan.file.lake.or(expected);
            plan.writes.push(Write::Delete(keys::tombstone(volume.id, key)));
        }
        Ok(plan)
    }

    /// The new version starts with the chunks of the old one.
    async fn append_behind(
        self: &Arc<Core>,
        old: &FileRow,
        plan: &mut Plan,
        added: &mut RunList,
    ) -> Result<()> {
        let runs = self.names.runs(old).await.map_err(error::catalog)?;
        let ids: Vec<_> = crate::rings::chunks(&runs).map(|(chunk, _)| chunk).collect();
        // They are only here from now on, as far as the new version is concerned.
        if old.drain == Drain::Clean && !self.rings.mark_dirty(ids).await? {
            let message =
                "some of the file is only in the lake: stage it before you append to it (`stoker stage`)";
            return Err(StoreError::new(ErrorKind::Conflict, message));
        }
        let mut all = RunList::default();
        runs.iter().for_each(|run| all.push_run(run));
        added.runs().iter().for_each(|run| all.push_run(run));
        let version = plan.file.version();
        plan.file.size = all.size();
        plan.file.layout = all.layout(version);
        plan.file.crc64 = match (old.crc64, plan.file.crc64) {
            (Some(first), Some(second)) => Some(crc64_combine(first, second, added.size())),
            _ => None,
        };
        for holder in &old.holders {
            if !plan.file.holders.contains(holder) {
                plan.file.holders.push(holder.clone());
            }
        }
        if plan.file.holders.is_empty() {
            plan.file.holders = self.rings.holders(0..self.rings.drives().len());
        }
        plan.inherits = true;
        plan.shares = owners(&runs, version);
        *added = all;
        Ok(())
    }
}

/// What a job itself demanded does not hold any more: its source or its parts changed.
pub(crate) fn publish_refusal(refusal: Refusal, guards: usize) -> StoreError {
    match refusal {
        Refusal::Guard(at) if at >= guards => StoreError::new(
            ErrorKind::Conflict,
            "what this is made of was changed at the same time; try again",
        ),
        other => error::refusal(other),
    }
}

/// Versions other than its own whose chunks a layout uses.
pub(crate) fn owners(runs: &[ChunkRun], own: stoker_format::VersionId) -> Vec<stoker_format::VersionId> {
    let mut owners: Vec<_> = runs.iter().map(|run| run.version).filter(|version| *version != own).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Combines checksums of parts that follow one another.
pub(crate) fn combine(parts: impl Iterator<Item = (u64, u64)>) -> u64 {
    parts.fold(crc64(b""), |sum, (crc, len)| crc64_combine(sum, crc, len))
}
