//! Checkpoint sets. All state of a set is in the catalog, so any node takes its shards, and any node publishes it.
//!
//! A shard is written like a file: chunks into rings and to peers, its name record beside the last one, one transaction.
//! That transaction hangs it into a directory without a name. It refers to its chunks from then on (R7), and its dirty
//! rows keep them must-keep on every drive that has them; the drainer leaves it alone until the set is published.

use std::sync::Arc;

use stoker_catalog::kv::{Commit, Write};
use stoker_format::{NameRecord, VersionId, VolumeId};
use stoker_qos::{Class, Tag};
use stoker_schema::names::{self, Plan, Refusal, SetPublish, Shard, Spot};
use stoker_schema::rows::{
    Abort, DirRow, NOWHERE, OpenSetRow, RowValue, SetState as RowState, SetWork, VersionRow, keys,
};
use stoker_store::{
    BoxFuture, DrainState, ErrorKind, Finish, Key, PATH_LEN_MAX, Receipt, Result, SET_DEADLINE_S_DEFAULT,
    SET_DEADLINE_S_MAX, SET_LAGGARDS_MAX, SET_MARKER, SET_OWNER_LEN_MAX, SetId, SetInfo, SetRequest,
    SetState, SetStatus, SetsPage, ShardRequest, StoreError, Subject, WriteRequest,
};

use crate::cell::Keepers;
use crate::cell::is_holders_lost;
use crate::core::{Core, add};
use crate::publish::{FilePurpose, Job, RECOMMITS_MAX};
use crate::volumes::Volume;
use crate::writer::{ChunkWriter, Purpose, Written};
use crate::{error, name_record};

/// Sets on one page of a list.
const PAGE_MAX: usize = 1_000;

/// Rows of shards read at once.
const SHARDS_AT_ONCE: usize = 1_000;

/// Laggards that an error names.
const NAMED_MAX: usize = 20;

/// Directories that lie in one another at most, so that a damaged row cannot make a walk endless.
const DEPTH_MAX: usize = PATH_LEN_MAX;

/// Where a shard belongs.
#[derive(Clone)]
pub(crate) struct ShardPlace {
    pub set: u64,
    pub number: u32,
    /// Key below the directory of the set.
    pub name: Vec<u8>,
    pub writer: String,
}

/// A file that will be a shard.
struct ShardPurpose {
    file: FilePurpose,
    place: ShardPlace,
}

impl Purpose for ShardPurpose {
    fn work(&self, work: Tag) -> Tag {
        Tag { class: Class::Checkpoint, ..work }
    }

    fn name_record(&self, core: &Core, written: &Written, finish: &Finish) -> Result<Option<NameRecord>> {
        let record = self.file.name_record(core, written, finish)?;
        Ok(record.map(|record| name_record::of_set(record, self.place.set, self.place.number)))
    }

    fn publish(
        self: Box<Self>,
        core: Arc<Core>,
        written: Written,
        finish: Finish,
    ) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(async move {
            let row = self.file.row(&core, &written, &finish)?;
            let job = Job::of(row, written);
            core.add_shard(&self.file.volume, &self.file.key, &self.place, job).await
        })
    }
}

/// The id of the record that a set was published, and of whatever one node has to do for it.
pub(crate) fn record_id(volume: VolumeId, set: u64) -> VersionId {
    let mut id = [0; 12];
    id[..4].copy_from_slice(&volume.0.to_be_bytes());
    id[4..].copy_from_slice(&set.to_be_bytes());
    VersionId(id)
}

fn refused(refusal: Refusal) -> StoreError {
    match refusal {
        Refusal::NotFound => no_such_set(),
        Refusal::Conflict(why) => StoreError::about(ErrorKind::Conflict, Subject::Set, why),
        Refusal::Invalid(why) => StoreError::about(ErrorKind::Invalid, Subject::Set, why),
        other => error::refusal(other),
    }
}

fn no_such_set() -> StoreError {
    let message = "there is no such checkpoint set: it was never begun, was aborted some time ago, or its files were \
                   deleted";
    StoreError::about(ErrorKind::NotFound, Subject::Set, message)
}

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::about(ErrorKind::Invalid, Subject::Set, message)
}

fn target_taken() -> StoreError {
    let message =
        "something has the name of the set's directory already: delete or rename it, or choose another name";
    StoreError::about(ErrorKind::Conflict, Subject::Set, message)
}

/// The error for shards that lack.
fn waiting(expected: u32, laggards: &[u32]) -> StoreError {
    let named: Vec<String> = laggards.iter().take(NAMED_MAX).map(u32::to_string).collect();
    let more = match laggards.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "{} of {expected} shards are missing: {}{more}; nothing was published",
        laggards.len(),
        named.join(", ")
    );
    StoreError::about(ErrorKind::Conflict, Subject::Set, message)
}

fn info_of(volume: &Volume, set: &names::Set) -> Result<SetInfo> {
    let row = &set.row;
    let state = match row.state {
        RowState::Open => SetState::Open,
        RowState::Published => SetState::Published,
        RowState::Aborted(Abort::Asked) => SetState::Aborted,
        RowState::Aborted(Abort::Deadline) => SetState::Expired,
    };
    Ok(SetInfo {
        volume: volume.name.clone(),
        set: SetId(set.id),
        state,
        path: Key::new(set.path.as_ref().unwrap_or(&row.target).clone())?,
        owner: row.owner.clone(),
        shards: row.expected,
        begun_ms: row.created_ms,
        deadline_ms: row.deadline_ms,
        closed_ms: row.closed_ms,
        seq: if state == SetState::Published { set.seq } else { 0 },
    })
}

impl Core {
    /// Begins a set, or joins the one that is open.
    pub async fn set_begin(&self, volume: &Arc<Volume>, request: SetRequest) -> Result<SetInfo> {
        self.check_open()?;
        self.check_writable(volume)?;
        self.check_keeps_nothing(volume, "checkpoint sets are not published in it")?;
        if request.owner.len() > SET_OWNER_LEN_MAX {
            return Err(invalid(format!("an owner has at most {SET_OWNER_LEN_MAX} bytes")));
        }
        let seconds = request.deadline_s.unwrap_or(SET_DEADLINE_S_DEFAULT);
        if seconds == 0 || seconds > SET_DEADLINE_S_MAX {
            return Err(invalid(format!(
                "a set is given between one second and {} days",
                SET_DEADLINE_S_MAX / 86_400
            )));
        }
        let target = request.target.as_bytes();
        let marker = Key::new([target, SET_MARKER.as_bytes()].concat())?;
        self.check_lake(volume, marker.as_bytes(), &Default::default()).await?;
        // Two times: one that is surely over closes what is open for the target, one that is surely not over begins.
        let (now_ms, begun_ms) = self.catalog_times_ms().await?;
        let request = names::SetRequest {
            target,
            owner: &request.owner,
            expected: request.shards,
            begun_ms,
            deadline_ms: begun_ms.saturating_add(u64::from(seconds) * 1_000),
            drains: Core::drain_of(volume) != stoker_schema::rows::Drain::Never,
        };
        let begun = self.names.set_begin(volume.id, &request, &self.guards(volume), now_ms).await;
        let set = begun.map_err(|refusal| match refusal {
            Refusal::Exists => target_taken(),
            Refusal::Conflict(_) => StoreError::about(
                ErrorKind::Conflict,
                Subject::Set,
                "another owner gathers a set for this directory, or one with another number of shards: abort that one \
                 first, or choose another directory",
            ),
            other => refused(other),
        })?;
        self.saw(set.seq);
        info_of(volume, &set)
    }

    async fn set_of(&self, volume: &Volume, set: SetId) -> Result<names::Set> {
        self.names.set(volume.id, set.0).await.map_err(error::catalog)?.ok_or_else(no_such_set)
    }

    /// Where a shard with this key belongs.
    pub async fn shard_place(
        &self,
        volume: &Volume,
        key: &Key,
        set: SetId,
        number: u32,
        writer: String,
    ) -> Result<ShardPlace> {
        let found = self.set_of(volume, set).await?;
        let row = &found.row;
        if number >= row.expected {
            let message =
                format!("the set has {} shards, numbered from 0: there is no shard {number}", row.expected);
            return Err(invalid(message));
        }
        if writer.len() > SET_OWNER_LEN_MAX {
            return Err(invalid(format!("the name of a writer has at most {SET_OWNER_LEN_MAX} bytes")));
        }
        let Some(name) = key.as_bytes().strip_prefix(&row.target[..]) else {
            let target = String::from_utf8_lossy(&row.target);
            return Err(invalid(format!("the keys of the shards of this set begin with `{target}`")));
        };
        if name == SET_MARKER.as_bytes() {
            return Err(invalid(format!("`{SET_MARKER}` is written by Stoker when the set is in the lake")));
        }
        if name.is_empty() || name.ends_with(b"/") {
            return Err(invalid(
                "a shard is a file: its key goes on behind the set's directory, and not with a slash",
            ));
        }
        Ok(ShardPlace { set: set.0, number, name: name.to_vec(), writer })
    }

    /// Begins a shard.
    pub async fn shard_begin(
        self: &Arc<Core>,
        volume: Arc<Volume>,
        key: &Key,
        set: SetId,
        request: ShardRequest,
    ) -> Result<ChunkWriter> {
        self.check_open()?;
        self.check_writable(&volume)?;
        let ShardRequest { number, writer, attributes, size } = request;
        let place = self.shard_place(&volume, key, set, number, writer).await?;
        // The transaction decides; but who is refused now has not written terabytes yet.
        let closed = match self.set_of(&volume, set).await?.row.state {
            RowState::Open => None,
            RowState::Published => Some("the set is published already"),
            RowState::Aborted(_) => Some("the set was aborted"),
        };
        if let Some(why) = closed {
            return Err(refused(Refusal::Conflict(why)));
        }
        self.check_lake(&volume, key.as_bytes(), &attributes).await?;
        self.check_room(&volume, key.as_bytes(), size.unwrap_or(1)).await?;
        let request = WriteRequest { attributes, size, ..WriteRequest::default() };
        let (key, checks) = (key.as_bytes().to_vec(), Vec::new());
        let file = FilePurpose { checks, ..FilePurpose::new(volume.clone(), key, request) };
        Ok(ChunkWriter::new(self.clone(), volume, size, Box::new(ShardPurpose { file, place })))
    }

    /// Adds a shard whose bytes are durable. Copies that do not count any more are made again elsewhere (R6).
    pub async fn add_shard(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        place: &ShardPlace,
        mut job: Job,
    ) -> Result<Receipt> {
        job.shard = Some((place.set, place.number));
        let mut recommits = 0;
        loop {
            match self.add_shard_once(volume, key, place, job.clone()).await {
                Err(fault) if is_holders_lost(&fault) && recommits < RECOMMITS_MAX => recommits += 1,
                ended => return ended,
            }
            self.recommit(volume, key, &mut job).await?;
        }
    }

    async fn add_shard_once(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        place: &ShardPlace,
        job: Job,
    ) -> Result<Receipt> {
        self.check_writable(volume)?;
        let guards = self.guards(volume);
        let has_sources = !job.checks.is_empty() || !job.upload_parts.is_empty();
        let mut plan = Plan::simple(job.row);
        plan.checks = job.checks;
        plan.writes = job.writes;
        plan.checks.extend(self.holder_checks(&plan.file.holders, &job.sessions).await?);
        self.check_quota(volume, plan.file.size).await?;
        plan.quota = Some(self.quota(volume));
        self.check_parked(volume, key, &plan.file).await?;
        if plan.file.layout.has_rows() {
            plan.layout = VersionRow::split(job.runs.runs(), job.upload_parts);
        }
        let shard = Shard {
            number: place.number,
            name: &place.name,
            writer: &place.writer,
            node: self.node.0,
            session: self.session_id,
        };
        let now_ms = self.deadlines_ms().await?;
        let added = match self.names.set_add(volume.id, place.set, &shard, &plan, &guards, now_ms).await {
            Ok(added) => added,
            Err(Refusal::Guard(at)) if at >= guards.len() => {
                return Err(self.why_refused(&plan.file.holders, &job.sessions, has_sources).await);
            }
            Err(Refusal::Exists) => {
                let message = "another shard of this set has this name";
                return Err(StoreError::about(ErrorKind::Conflict, Subject::Set, message));
            }
            Err(refusal) => return Err(refused(refusal)),
        };
        self.saw(added.seq);
        if added.replaced.is_some() {
            self.garbage.notify_one();
        }
        Core::receipt(volume, key, &plan.file, added.seq)
    }

    /// The receipt of a shard that is there already with this version.
    pub async fn shard_receipt(
        &self,
        volume: &Arc<Volume>,
        key: &[u8],
        place: &ShardPlace,
        version: VersionId,
    ) -> Result<Option<Receipt>> {
        let shard =
            self.catalog.get(&[&keys::shard(place.set, place.number)]).await.map_err(error::catalog)?;
        let Some(row) = shard.into_iter().next().flatten() else { return Ok(None) };
        let shard = stoker_schema::rows::ShardRow::of(&row).map_err(error::catalog)?;
        if shard.version() != version {
            return Ok(None);
        }
        let spot = Spot { volume: volume.id, parent: shard.parent, name: shard.name };
        let located = self.names.file_at(spot).await.map_err(error::catalog)?;
        let located = located.filter(|located| located.file.version() == version);
        located.map(|at| Core::receipt(volume, key, &at.file, row.seq)).transpose()
    }

    /// Makes a set visible: a record of it on a drive here (R6), then the transaction.
    pub async fn set_publish(self: &Arc<Core>, volume: &Arc<Volume>, id: SetId) -> Result<SetInfo> {
        self.check_open()?;
        self.check_writable(volume)?;
        let _work = self.work.begin();
        let set = self.set_of(volume, id).await?;
        let record = record_id(volume.id, id.0);
        let _pin = self.pins.pin(record);
        let mut left = None;
        if set.row.state == RowState::Open {
            let laggards = self.names.set_laggards(&set).await.map_err(error::catalog)?;
            if !laggards.is_empty() {
                return Err(waiting(set.row.expected, &laggards));
            }
            let seq = self.seq_now().await;
            let name = name_record::publish_set(volume.id, &set.row.target, record, id.0, seq);
            left = Some(self.leave_record(volume, record, &name, Keepers::Anybody).await?);
        }
        let now_ms = self.deadlines_ms().await?;
        let published = match self.names.set_publish(volume.id, id.0, &self.guards(volume), now_ms).await {
            Ok(SetPublish::Done(set)) => Ok(set),
            Ok(SetPublish::Waiting(laggards)) => Err(waiting(set.row.expected, &laggards)),
            Err(Refusal::Exists) => Err(target_taken()),
            Err(refusal) => Err(refused(refusal)),
        };
        match left {
            Some(left) if published.as_ref().is_err_and(|fault| !fault.is_unknown()) => {
                self.retract(record, left).await?;
            }
            left => drop(left),
        }
        let set = published?;
        add(&self.stats.sets_published, 1);
        self.saw(set.seq);
        self.drainer.set_published();
        info_of(volume, &set)
    }

    /// Gives a set up.
    pub async fn set_abort(self: &Arc<Core>, volume: &Arc<Volume>, id: SetId) -> Result<SetInfo> {
        self.check_open()?;
        let _work = self.work.begin();
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let set =
            self.names.set_abort(volume.id, id.0, &self.guards(volume), now_ms).await.map_err(refused)?;
        self.saw(set.seq);
        self.garbage.notify_one();
        info_of(volume, &set)
    }

    /// A set and what is there of it.
    pub async fn set_status(&self, volume: &Volume, id: SetId) -> Result<SetStatus> {
        let set = self.set_of(volume, id).await?;
        let (mut present, mut bytes, mut next) = (0u32, 0u64, 0u32);
        let mut laggards: Vec<u32> = Vec::new();
        let mut lack = |range: std::ops::Range<u32>| {
            laggards.extend(range.take(SET_LAGGARDS_MAX - laggards.len()));
        };
        let mut after = None;
        loop {
            let (shards, more) =
                self.names.set_shards(set.id, after, SHARDS_AT_ONCE).await.map_err(error::catalog)?;
            for (number, shard) in &shards {
                present += 1;
                bytes = bytes.saturating_add(shard.size);
                lack(next..(*number).min(set.row.expected));
                next = number.saturating_add(1);
            }
            after = shards.last().map(|(number, _)| *number);
            if !more || after.is_none() {
                break;
            }
        }
        lack(next..set.row.expected);
        let work_key = keys::set_work(volume.id, set.id);
        let work = self.catalog.get(&[&work_key]).await.map_err(error::catalog)?.pop().flatten();
        let drain = match (set.row.drains, set.row.state) {
            (false, _) => DrainState::Never,
            (true, RowState::Published) if work.is_none() => DrainState::Clean,
            (true, _) => DrainState::Dirty,
        };
        Ok(SetStatus { info: info_of(volume, &set)?, present, bytes, laggards, drain })
    }

    /// The set that is open for a directory, or was published as it.
    pub async fn set_find(&self, volume: &Volume, path: &Key) -> Result<Option<SetInfo>> {
        if !path.as_bytes().ends_with(b"/") {
            return Err(invalid("a checkpoint set is a directory: its name ends with a slash"));
        }
        let open_key = keys::open_set(volume.id, path.as_bytes());
        let open = self.catalog.get(&[&open_key]).await.map_err(error::catalog)?.pop().flatten();
        let id = match open {
            Some(row) => Some(OpenSetRow::of(&row).map_err(error::catalog)?.set),
            None => {
                let inside = [path.as_bytes(), SET_MARKER.as_bytes()].concat();
                let spot = self.names.resolve(volume.id, &inside).await.map_err(error::catalog)?;
                spot.map(|spot| spot.parent)
            }
        };
        let Some(id) = id else { return Ok(None) };
        let set = self.names.set(volume.id, id).await.map_err(error::catalog)?;
        set.map(|set| info_of(volume, &set)).transpose()
    }

    /// Sets in the order in which they were begun.
    pub async fn sets_page(&self, volume: &Volume, after: Option<SetId>, limit: usize) -> Result<SetsPage> {
        let after = after.map(|set| set.0);
        let limit = limit.clamp(1, PAGE_MAX);
        let (sets, more) = self.names.sets(volume.id, after, limit).await.map_err(error::catalog)?;
        let sets = sets.iter().map(|set| info_of(volume, set)).collect::<Result<_>>()?;
        Ok(SetsPage { sets, more })
    }

    /// The set that was published last.
    pub async fn set_latest(&self, volume: &Volume, prefix: &[u8]) -> Result<Option<SetInfo>> {
        let set = self.names.set_latest(volume.id, prefix).await.map_err(error::catalog)?;
        set.map(|set| info_of(volume, &set)).transpose()
    }

    /// Forgets aborted sets of a volume that is to be deleted: nobody has to hear of them any more.
    pub async fn sets_forget(&self, volume: &Volume) -> Result<()> {
        let mut after = None;
        loop {
            let (sets, more) = self.names.sets(volume.id, after, PAGE_MAX).await.map_err(error::catalog)?;
            for set in sets.iter().filter(|set| matches!(set.row.state, RowState::Aborted(_))) {
                let work_key = keys::set_work(volume.id, set.id);
                let work = self.catalog.get(&[&work_key]).await.map_err(error::catalog)?.pop().flatten();
                let Some(work) = work else { continue };
                if let SetWork::Remember { .. } = SetWork::of(&work).map_err(error::catalog)? {
                    let mut change = Commit::new().seq(work_key.clone(), work.seq);
                    let rows = [work_key, keys::set(volume.id, set.id)];
                    change.writes.extend(rows.into_iter().map(Write::Delete));
                    let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
                }
            }
            after = sets.last().map(|set| set.id);
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Whether a file belongs to a set that is still open: then no key leads to it.
    pub async fn is_in_open_set(&self, spot: &Spot) -> Result<bool> {
        let mut at = spot.parent;
        for _ in 0..DEPTH_MAX {
            let row_key = keys::directory(spot.volume, at);
            let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(row) = row else { return Ok(false) };
            let parent = DirRow::of(&row).map_err(error::catalog)?.parent;
            if parent == NOWHERE {
                return self.is_set_open(spot.volume, at).await;
            }
            at = parent;
        }
        Ok(false)
    }

    /// What a shard of a set that hangs nowhere yet is to be called, the set, and its number there; none if it is not one.
    pub async fn shard_at(&self, spot: &Spot, version: VersionId) -> Result<Option<(Vec<u8>, u64, u32)>> {
        let (mut at, mut names) = (spot.parent, vec![spot.name.clone()]);
        let set = loop {
            let row_key = keys::directory(spot.volume, at);
            let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let Some(row) = row.filter(|_| names.len() <= DEPTH_MAX) else { return Ok(None) };
            let directory = DirRow::of(&row).map_err(error::catalog)?;
            if directory.parent == NOWHERE {
                break at;
            }
            names.push(directory.name);
            at = directory.parent;
        };
        let Some(found) = self.names.set(spot.volume, set).await.map_err(error::catalog)? else {
            return Ok(None);
        };
        let mut number = None;
        self.each(keys::shards(set), |row| {
            let shard = stoker_schema::rows::ShardRow::of(row).map_err(error::catalog)?;
            if shard.version() == version {
                number = keys::shard_number(&row.key);
            }
            Ok(())
        })
        .await?;
        names.push(found.row.target);
        names.reverse();
        Ok(number.map(|number| (names.concat(), set, number)))
    }

    /// Whether a set still takes shards.
    pub async fn is_set_open(&self, volume: VolumeId, set: u64) -> Result<bool> {
        let set = self.names.set(volume, set).await.map_err(error::catalog)?;
        Ok(set.is_some_and(|set| set.row.state == RowState::Open))
    }
}
