//! Publish: bytes that are durable become visible under a key. This is where a PUT is acknowledged.
//!
//! 1. The chunks are on as many drives as the class says (`cell/copies.rs`), and the name record lies beside the last of them on each: a catalog that is
//!    lost can be rebuilt from drives (R6).
//! 2. One transaction of the catalog puts the name to the version. It checks that this boot is not fenced, the volume is there, every
//!    holder's session and drive are those that acknowledged, and what the caller asked for (`If-Match`, the base of an append).
//! 3. The answer: a receipt made from the row that was written.
//!
//! A check that fails says which. A holder that is gone means that the bytes are protected again, elsewhere, and the publish is repeated; a name that
//! somebody else changed means that the plan is made anew from what is there now; everything else is the caller's to know. Writers of one
//! key wait for each other in this process (`KeyLocks`), so that they do not contend in the catalog.
//!
//! What the name had before becomes garbage in the same transaction, unless others still refer to it; the collector and the drainer are told
//! after it. They would find it by themselves, from rows, later.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Write};
use stoker_format::{ChunkRun, NameRecord, NodeId, VersionId, crc64, crc64_combine};
use stoker_schema::names::{Forgotten, Located, Plan, Published, Refusal, Spot, delete_record_garbage};
use stoker_schema::rows::{Drain, FileRow, LakeRef, TombstoneRow, VersionRow, keys};
use stoker_store::{
    BoxFuture, Condition, ErrorKind, Finish, Receipt, Result, StoreError, Subject, WhenAlone, WriteRequest,
};

use crate::cell::{Keepers, Protected, is_holders_lost};
use crate::core::{Core, etag};
use crate::drain::may_be_in_lake;
use crate::drain::spill::Spilled;
use crate::name_record::Cut;
use crate::pins::Pin;
use crate::properties::{More, Properties};
use crate::volumes::Volume;
use crate::writer::{Purpose, RunList, Written};
use crate::{clock, error, name_record};
pub(crate) use stoker_records::layout::owners;

/// A file that will have a name.
pub(crate) struct FilePurpose {
    pub volume: Arc<Volume>,
    pub key: Vec<u8>,
    pub request: WriteRequest,
    /// What else must hold when it is published.
    pub checks: Vec<Check>,
    /// The version that it goes on with chunks of.
    pub base: Option<VersionId>,
    /// The number of the file if it is new; 0 for any.
    pub inode: u64,
    /// What becomes of it if there are too few nodes for its class.
    pub when_alone: WhenAlone,
    /// It is a change of the file that has the name, under all its names, and not another file.
    pub keeps_links: bool,
    /// The user whom it counts for.
    pub user: Option<String>,
}

/// The user for whom what runs now is done, as files say it.
pub(crate) fn user() -> Option<String> {
    stoker_store::asker().map(|user| user.to_string())
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

/// Refuses another version than the one that was decided about: equal bytes may have been written since.
pub(crate) fn check_version(version: Option<VersionId>, file: &FileRow) -> Result<()> {
    match version.is_none_or(|version| version == file.version()) {
        true => Ok(()),
        false => {
            Err(StoreError::about(ErrorKind::Conflict, Subject::Condition, "it is another version by now"))
        }
    }
}

pub(crate) fn check_condition(condition: &Condition, etag: Option<&str>) -> Result<()> {
    match condition.holds(etag) {
        true => Ok(()),
        false => Err(condition_failed(etag.is_some(), condition)),
    }
}

impl FilePurpose {
    pub fn new(volume: Arc<Volume>, key: Vec<u8>, request: WriteRequest) -> FilePurpose {
        let when_alone = volume.policy.when_alone;
        FilePurpose {
            volume,
            key,
            request,
            checks: Vec::new(),
            base: None,
            inode: 0,
            when_alone,
            keeps_links: false,
            user: user(),
        }
    }

    pub fn properties(&self, finish: &Finish) -> Properties {
        Properties {
            attributes: self.request.attributes.clone(),
            checksums: finish.checksums.clone(),
            more: More { user: self.user.clone(), ..More::default() },
            ..Properties::default()
        }
    }

    pub fn row(&self, core: &Core, written: &Written, finish: &Finish) -> Result<FileRow> {
        let now_ms = clock::now_ms();
        Ok(FileRow {
            inode: self.inode,
            version: written.version.0,
            size: written.runs.size(),
            etag: finish.etag.clone().unwrap_or_else(|| etag(written.version, written.crc64, 1)),
            modified_ms: now_ms,
            // Of what it goes on with, nobody knows the sum.
            crc64: Some(written.crc64).filter(|_| self.base.is_none()),
            layout: written.runs.layout(written.version),
            holders: written.holders.clone(),
            drain: Core::drain_of(&self.volume),
            lake: None,
            source: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            name_record: None,
            properties: self.properties(finish).encode()?,
            home: core.node.0,
            links: None,
            past: crate::versions::locked_by(self.request.attributes.lock.as_ref()),
        })
    }
}

impl Purpose for FilePurpose {
    fn when_alone(&self) -> WhenAlone {
        // What it goes on with may be in no lake.
        let can = !self.request.append && self.base.is_none() && Core::drain_of(&self.volume) != Drain::Never;
        if can { self.when_alone } else { WhenAlone::Refuse }
    }

    fn name_record(&self, core: &Core, written: &Written, finish: &Finish) -> Result<Option<NameRecord>> {
        let row = self.row(core, written, finish)?;
        let seq = core.seq_known();
        let properties = self.properties(finish);
        // What an append goes on with is known to its transaction only; it leaves the whole record behind it.
        let runs = Some(written.runs.runs()).filter(|_| !self.request.append);
        let cut = Cut { runs, upload_parts: &[] };
        Ok(Some(name_record::put(self.volume.id, &self.key, &row, &properties, cut, seq)))
    }

    fn publish(
        self: Box<Self>,
        core: Arc<Core>,
        written: Written,
        finish: Finish,
    ) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(async move {
            let row = self.row(&core, &written, &finish)?;
            let is_alone = written.is_alone;
            let mut job = Job {
                condition: self.request.condition.clone(),
                append: self.request.append,
                base: self.base,
                keeps_links: self.keeps_links || self.request.append,
                ..Job::of(row, written)
            };
            job.checks.extend(self.checks);
            match is_alone {
                true => core.publish_alone(&self.volume, &self.key, job).await,
                false => core.publish(&self.volume, &self.key, job).await,
            }
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
    /// The version that it goes on with chunks of; its runs are among those of the job.
    pub base: Option<VersionId>,
    /// The rows of its layout are there already: it is a version that has a name.
    pub has_layout: bool,
    pub checks: Vec<Check>,
    pub writes: Vec<Write>,
    /// Peers that took copies for it, each with the session that acknowledged.
    pub sessions: Vec<(NodeId, [u8; 16])>,
    /// What peers keep for it until it is published.
    pub keeps: Keeps,
    /// Whoever publishes holds `marks` for reading.
    pub has_marks: bool,
    /// The set that it is a shard of, and its number there.
    pub shard: Option<(u64, u32)>,
    /// It is a change of the file that has the name, and goes to all its names.
    pub keeps_links: bool,
    /// The file that it becomes one more name of.
    pub link: Option<Box<Located>>,
    /// Records of other names that are about to be left.
    pub pins: Arc<std::sync::Mutex<Vec<Pin>>>,
}

impl Job {
    /// A file of its own chunks alone, under no condition.
    pub fn of(row: FileRow, written: Written) -> Job {
        let (checks, writes) = written.spilled.as_ref().map(Spilled::changes).unwrap_or_default();
        let upload_parts = Vec::new();
        Job {
            row,
            runs: written.runs,
            upload_parts,
            condition: Condition::default(),
            append: false,
            base: None,
            has_layout: false,
            checks,
            writes,
            sessions: written.sessions,
            keeps: Keeps::default(),
            has_marks: false,
            shard: None,
            keeps_links: false,
            link: None,
            pins: Arc::default(),
        }
    }
}

/// What peers keep until a publish is over.
pub(crate) type Keeps = Arc<std::sync::Mutex<Vec<Protected>>>;

/// Times that chunks are copied again because a node that had them is gone.
pub(crate) const RECOMMITS_MAX: usize = 3;

impl Core {
    /// Publishes, tells the loops, and gives the receipt. Copies that do not count any more when the name is to become
    /// visible are made again elsewhere (R6).
    pub async fn publish(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        mut job: Job,
    ) -> Result<Receipt> {
        let mut recommits = 0;
        loop {
            match self.publish_once(volume, key, job.clone()).await {
                Err(fault) if is_holders_lost(&fault) && recommits < RECOMMITS_MAX => recommits += 1,
                ended => return ended,
            }
            self.recommit(volume, key, &mut job).await?;
        }
    }

    /// Copies chunks again because a node that had them is gone.
    pub async fn recommit(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8], job: &mut Job) -> Result<()> {
        // Not a second time: somebody who wants it for writing may wait in between, and both would wait for ever.
        let _marks = match job.has_marks {
            true => None,
            false => Some(self.marks.read().await),
        };
        if job.row.source.is_some() {
            // The lake has the bytes, so anybody may owe the drain.
            (job.row.holders, job.sessions) = (self.rings.holders([self.rings.stand_in()]), Vec::new());
            return Ok(());
        }
        // What it goes on with of the version before is looked after when it is planned. All else is its own, whichever version
        // it was written for: the parts of an upload, the source of a copy.
        let goes_on = job.append || job.base.is_some();
        // What was spilled is in the lake, whoever is lost.
        let is_own = |run: &&ChunkRun| {
            !run.is_hole() && !run.is_spilled() && (!goes_on || run.version == job.row.version())
        };
        let own: Vec<ChunkRun> = job.runs.runs().iter().filter(is_own).copied().collect();
        let again = match own.is_empty() {
            // Of a file without bytes the name is what is copied.
            true => {
                let (id, record) = self.record_of(volume, key, job).await?;
                Some(self.protect_name(volume, id, &record).await?)
            }
            false => self.secure(volume, &own, &job.row.holders).await?,
        };
        let again = again.ok_or_else(|| StoreError::new(ErrorKind::Unavailable, "the bytes are gone"))?;
        (job.row.holders, job.sessions) = (again.holders(), again.sessions());
        job.row.home = self.home_among(&job.row.holders);
        job.keeps.lock().unwrap().push(again);
        if !own.is_empty() {
            // Whoever has the bytes now knows the name as well (R6).
            let (id, record) = self.record_of(volume, key, job).await?;
            let left = self.leave_record(volume, id, &record, Keepers::Holders(&job.row.holders)).await?;
            job.keeps.lock().unwrap().push(left);
        }
        Ok(())
    }

    /// The name record of a publish in the making.
    async fn record_of(&self, volume: &Volume, key: &[u8], job: &Job) -> Result<(VersionId, NameRecord)> {
        let properties = Properties::decode(&job.row.properties)?;
        let cut = Cut { runs: Some(job.runs.runs()), upload_parts: &job.upload_parts };
        let seq = self.seq_now().await;
        let mut record = name_record::put(volume.id, key, &job.row, &properties, cut, seq);
        if let Some((set, number)) = job.shard {
            record = name_record::of_set(record, set, number);
        }
        Ok((job.row.name_record.map_or(job.row.version(), VersionId), record))
    }

    async fn publish_once(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8], job: Job) -> Result<Receipt> {
        self.check_writable(volume)?;
        let guards = self.guards(volume);
        let _lock = self.key_locks.lock(volume.id, key).await;
        let _marks = match job.append || job.base.is_some() {
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
            .await;
        let published = match published {
            Ok(published) => published,
            Err(Refusal::Guard(at)) if at >= guards.len() => {
                let has_sources = !job.checks.is_empty()
                    || job.append
                    || job.base.is_some()
                    || !job.upload_parts.is_empty();
                return Err(self.why_refused(&job.row.holders, &job.sessions, has_sources).await);
            }
            Err(refusal) => return Err(error::refusal(refusal)),
        };
        self.after_publish(volume, key, &published);
        if job.append {
            self.leave_put(volume, key, &published.file, published.seq).await?;
        }
        self.leave_kept(volume, published.kept.as_ref(), published.seq).await?;
        for (spot, file) in &published.links {
            self.leave_link(volume, spot, file, published.seq).await?;
        }
        Core::receipt(volume, key, &published.file, published.seq)
    }

    /// Leaves the record of another name of a file that was changed, unless that name was changed since.
    pub async fn leave_link(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        spot: &Spot,
        file: &FileRow,
        seq: u64,
    ) -> Result<()> {
        let Some(path) = self.names.path_of(spot).await.map_err(error::catalog)? else { return Ok(()) };
        self.looks.forget(volume, &path);
        let now = self.names.file_at(spot.clone()).await.map_err(error::catalog)?;
        if now.is_some_and(|now| now.file.inode == file.inode && now.file.version == file.version) {
            self.leave_put(volume, &path, file, seq).await?;
        }
        Ok(())
    }

    pub fn after_publish(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8], published: &Published) {
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
        if published.has_soft_limit {
            self.look_at_soft_limits();
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
        let seen = match &present {
            Some(located) if job.append || !job.condition.is_empty() => {
                self.as_seen(volume, key, &located.file).await
            }
            Some(located) => Some(located.file.clone()),
            None => lake.clone(),
        };
        check_condition(&job.condition, seen.as_ref().map(|file| file.etag.as_str()))?;
        let mut plan = Plan::simple(job.row);
        // Where others write to the lake, it may have directories that the catalog does not know.
        plan.is_within = job.condition.is_within() && !volume.asks_lake();
        plan.link = job.link;
        if let (true, Some(old)) = (job.keeps_links, &present)
            && seen.as_ref().is_some_and(|seen| seen.version == old.file.version)
        {
            let record = || {
                let record = clock::mint();
                job.pins.lock().unwrap().push(self.pins.pin(record));
                record.0
            };
            plan.links = self.names.links(old, record).await.map_err(error::catalog)?;
        }
        plan.checks = job.checks;
        plan.writes = job.writes;
        if job.shard.is_none() {
            plan.keeping = self.keeping(volume, key);
        }
        self.lock_new(volume, &mut plan.file)?;
        let (mut runs, mut sessions) = (job.runs, job.sessions);
        if let (true, Some(old)) = (job.append, &seen) {
            sessions.extend(self.append_behind(volume, old, &mut plan, &mut runs, &job.keeps).await?);
            if present.as_ref().is_none_or(|located| located.file.version != old.version) {
                // Its bytes are in the lake or were put there by somebody else: nothing of ours goes on.
                plan.inherited.clear();
            }
        }
        if let Some(base) = job.base {
            let old = present.as_ref().filter(|located| located.file.version() == base);
            let old = old.ok_or_else(|| condition_failed(present.is_some(), &job.condition))?;
            sessions.extend(self.keep_chunks(volume, old, &mut plan, &runs, &job.keeps).await?);
        }
        plan.checks.extend(self.holder_checks(&plan.file.holders, &sessions).await?);
        // What stays takes its room still.
        let replaced =
            present.as_ref().filter(|_| plan.keeping.is_none()).map_or(0, |located| located.file.size);
        let names = 1 + plan.links.as_ref().map_or(0, |links| links.others.len() as u64);
        // Lengths, not what is stored: a lake holds holes as zeros.
        let more = plan.file.size.saturating_sub(replaced);
        self.check_quota(volume, more.saturating_mul(names)).await?;
        // What was asked now is asked again by the transaction itself.
        plan.quota = Some(self.quota(volume));
        self.check_parked(volume, key, &plan.file).await?;
        if plan.file.layout.has_rows() && !job.has_layout {
            plan.layout = VersionRow::split(runs.runs(), job.upload_parts);
        }
        if volume.lake_url.is_some() {
            let tombstone = self.tombstone(volume, key).await?;
            let expected = match &present {
                // If somebody else changed it and the caller knows, that is what will be replaced.
                Some(located) => {
                    seen.filter(|seen| seen.version != located.file.version).and_then(|theirs| theirs.lake)
                }
                None => match &lake {
                    Some(file) => file.lake.clone(),
                    None => tombstone
                        .as_ref()
                        .and_then(|row| row.etag.clone())
                        .map(|etag| LakeRef { key: key.to_vec(), etag }),
                },
            };
            plan.file.lake = plan.file.lake.or(expected);
            plan.writes.extend(tombstone_gone(volume, key, tombstone.as_ref()));
        }
        Ok(plan)
    }

    /// The new version starts with the chunks of the old one. Gives the sessions of peers that promised to keep them.
    async fn append_behind(
        self: &Arc<Core>,
        volume: &Volume,
        old: &FileRow,
        plan: &mut Plan,
        added: &mut RunList,
        keeps: &Keeps,
    ) -> Result<Vec<(NodeId, [u8; 16])>> {
        let mut sessions = Vec::new();
        let runs = self.names.runs(old).await.map_err(error::catalog)?;
        let mut holders = old.holders.clone();
        if old.drain == Drain::Clean || old.source.is_some() {
            // They are only in the rings from now on, as far as the new version is concerned.
            let Some(kept) = self.secure(volume, &runs, &old.holders).await? else {
                let message =
                    "some of the file is only in the lake: stage it before you append to it (`stoker stage`)";
                return Err(StoreError::new(ErrorKind::Conflict, message));
            };
            (holders, sessions) = (kept.holders(), kept.sessions());
            keeps.lock().unwrap().push(kept);
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
        for holder in holders {
            if !plan.file.holders.contains(&holder) {
                plan.file.holders.push(holder);
            }
        }
        plan.inherited = owners(&runs, version);
        *added = all;
        Ok(sessions)
    }
}

/// A tombstone goes, and the record of the delete with it.
pub(crate) fn tombstone_gone(volume: &Volume, key: &[u8], row: Option<&TombstoneRow>) -> Vec<Write> {
    let record = row.and_then(|row| row.name_record).map(VersionId);
    if !may_be_in_lake(key) {
        return Vec::new();
    }
    let mut writes = vec![Write::Delete(keys::tombstone(volume.id, key))];
    writes.extend(record.into_iter().flat_map(delete_record_garbage));
    writes
}

/// The error for what was made of something that changed meanwhile.
pub(crate) fn outdated() -> StoreError {
    let message = "what this is made of was changed at the same time; try again";
    StoreError::about(ErrorKind::Conflict, Subject::Source, message)
}

/// Whether it failed because of that.
pub(crate) fn is_outdated(fault: &StoreError) -> bool {
    (fault.kind, fault.subject) == (ErrorKind::Conflict, Subject::Source)
}

/// Combines checksums of parts that follow one another; none if one is unknown.
pub(crate) fn combine(mut parts: impl Iterator<Item = (Option<u64>, u64)>) -> Option<u64> {
    parts.try_fold(crc64(b""), |sum, (crc, len)| Some(crc64_combine(sum, crc?, len)))
}
