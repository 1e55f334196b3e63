//! Takeover: protects again what lost a copy, because a node is lost or is to go.
//!
//! A node is lost when a transaction says so (`cell/repair.rs`), which ends its session: what it writes from then on is refused. Rows of dirty
//! bytes name the drives that have them, so the survivors need nobody's memory:
//!
//! 1. Rows of the lost node give the versions, those with the fewest copies first.
//! 2. A batch is claimed by a transaction (R12), so that two survivors do not do the same work; a claim of a session that is over counts no more.
//! 3. Chunks go from a survivor to other nodes as in a write, with a name record, and one transaction exchanges the holders.
//! 4. Where the lost node was the home, the drain goes to the node that protected the version.
//!
//! All of it stays within a bandwidth and a number of workers, and gives way to writers. A version that the lake has meanwhile needs nothing. A version
//! without a copy that answers stays as it is, told by `stoker risk --lost`: its node may come back.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome, Range, Write};
use stoker_format::{ChunkId, DriveId, NodeId, VersionId};
use stoker_qos::{Class, Tag};
use stoker_schema::names::{Located, Spot, dirty_writes};
use stoker_schema::rows::{DirtyRow, Drain, EntryRow, FileRow, HolderRow, RepairRow, RowValue, keys};
use stoker_store::Result;
use tokio::time::Instant;

use super::Protected;
use super::parts::PartPlace;
use crate::admission::working;
use crate::core::{Core, add};
use crate::rings::Standing;
use crate::volumes::Volume;
use crate::{clock, error, rings};

/// Versions that are claimed at once.
const BATCH: usize = 64;

/// What failed is left alone for this long, if there is other work or not.
const RETRY_MS: u64 = 5_000;

/// Failures that are remembered; of more than these each is tried again at once.
const FAILED_MAX: usize = 100_000;

/// The rate is that of the last so many seconds.
const RATE_S: u64 = 10;

/// How much of a node goes into rebuilds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RebuildOptions {
    /// Bytes per second at most.
    pub bytes_per_s_max: u64,
    /// Files that are protected at the same time; each keeps at most one core busy.
    pub workers: usize,
}

impl RebuildOptions {
    /// Share of the cores that rebuilds may keep busy, in percent.
    pub const CORES_PERCENT: usize = 30;

    /// Within the share of so many cores; at least one file at a time.
    pub fn for_cores(cores: usize) -> RebuildOptions {
        let workers = (cores * RebuildOptions::CORES_PERCENT / 100).max(1);
        RebuildOptions { workers, ..RebuildOptions::default() }
    }
}

impl Default for RebuildOptions {
    fn default() -> RebuildOptions {
        RebuildOptions { bytes_per_s_max: 1 << 30, workers: 1 }
    }
}

/// Something that holds copies which do not count, or soon will not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Loss {
    /// A node that was declared down.
    Down(NodeId),
    /// A node that is to be emptied: its copies count until others have them.
    Evacuating(NodeId),
    /// A drive that failed or was given up.
    Gone(NodeId, DriveId),
    /// A drive that is to be emptied.
    Leaving(NodeId, DriveId),
}

impl Loss {
    pub fn node(self) -> NodeId {
        match self {
            Loss::Down(node) | Loss::Evacuating(node) | Loss::Gone(node, _) | Loss::Leaving(node, _) => node,
        }
    }

    fn drive(self) -> Option<DriveId> {
        match self {
            Loss::Down(_) | Loss::Evacuating(_) => None,
            Loss::Gone(_, drive) | Loss::Leaving(_, drive) => Some(drive),
        }
    }

    /// The dirty rows that it left.
    fn rows(self) -> Vec<u8> {
        match self.drive() {
            None => keys::dirty_of(self.node()),
            Some(drive) => keys::dirty_on(self.node(), drive),
        }
    }

    /// Whether it is the place of a holder.
    pub(super) fn has(self, node: NodeId, drive: DriveId) -> bool {
        node == self.node() && self.drive().is_none_or(|own| own == drive)
    }

    /// Whether fewer copies than the class asks for are better than none: the bytes are drained first.
    fn takes_less(self) -> bool {
        matches!(self, Loss::Down(_) | Loss::Gone(..))
    }
}

/// Rebuilds of this node.
pub(crate) struct Rebuilder {
    pub options: RebuildOptions,
    pub files: AtomicU64,
    pub bytes: AtomicU64,
    lately: Mutex<VecDeque<(Instant, u64)>>,
    /// When the next bytes may be moved.
    free_at: Mutex<Option<Instant>>,
    failed: Mutex<HashMap<VersionId, u64>>,
    trouble: Mutex<Option<String>>,
    /// Claims may have been left behind: after a start, and whenever something was lost.
    has_claims: AtomicBool,
}

impl Rebuilder {
    pub fn new(options: RebuildOptions) -> Rebuilder {
        let (files, bytes, lately, free_at, failed, trouble) = Default::default();
        let has_claims = AtomicBool::new(true);
        Rebuilder { options, files, bytes, lately, free_at, failed, trouble, has_claims }
    }

    /// Why the last try failed, if it did.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap().clone()
    }

    /// Waits until so many bytes may be moved.
    async fn turn(&self, bytes: u64) {
        let start = self.reserve(bytes, Instant::now());
        tokio::time::sleep_until(start).await;
    }

    /// Takes a share of the bandwidth; says from when on.
    fn reserve(&self, bytes: u64, now: Instant) -> Instant {
        let takes = Duration::from_secs_f64(bytes as f64 / self.options.bytes_per_s_max.max(1) as f64);
        let mut free_at = self.free_at.lock().unwrap();
        let start = free_at.unwrap_or(now).max(now);
        *free_at = Some(start + takes);
        start
    }

    fn note(&self, bytes: u64) {
        add(&self.files, 1);
        add(&self.bytes, bytes);
        let mut lately = self.lately.lock().unwrap();
        lately.push_back((Instant::now(), bytes));
        trim(&mut lately);
    }

    /// Bytes per second lately.
    pub fn bytes_per_s(&self) -> u64 {
        let mut lately = self.lately.lock().unwrap();
        trim(&mut lately);
        lately.iter().map(|(_, bytes)| bytes).sum::<u64>() / RATE_S
    }

    pub fn is_due(&self, version: VersionId, now_ms: u64) -> bool {
        let failed = self.failed.lock().unwrap();
        failed.get(&version).is_none_or(|since_ms| since_ms.abs_diff(now_ms) >= RETRY_MS)
    }

    pub fn note_failed(&self, version: VersionId, now_ms: u64) {
        let mut failed = self.failed.lock().unwrap();
        if failed.len() >= FAILED_MAX {
            failed.clear();
        }
        failed.insert(version, now_ms);
    }
}

fn trim(lately: &mut VecDeque<(Instant, u64)>) {
    let old = |(at, _): &(Instant, u64)| at.elapsed() > Duration::from_secs(RATE_S);
    while lately.front().is_some_and(old) || lately.len() > 10_000 {
        lately.pop_front();
    }
}

/// A version to be protected, with the rows that go when it is.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub loss: Loss,
    pub version: VersionId,
    pub set: Option<u64>,
    pub bytes: u64,
    pub since_ms: u64,
    pub rows: Vec<Vec<u8>>,
    /// Copies that can be read.
    pub copies: usize,
    /// It is a part of an unfinished upload.
    pub part: Option<PartPlace>,
}

/// The order in which versions are protected: fewest copies first, then the oldest. Those without a copy come last; they
/// are tried because somebody may have kept the bytes as a cache.
fn rank(task: &Task) -> (bool, usize, u64, VersionId) {
    (task.copies == 0, task.copies, task.since_ms, task.version)
}

impl Core {
    /// What there is to make up for, as this node sees it.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        let view = self.cell.view();
        let mut losses: BTreeSet<Loss> = view.down().into_iter().map(Loss::Down).collect();
        losses.extend(view.evacuating().into_iter().map(Loss::Evacuating));
        // What a node held that is down is made up for as a whole.
        let gone = view.drives_gone().filter(|(node, _)| !view.is_down(*node));
        losses.extend(gone.map(|(node, drive)| Loss::Gone(node, drive)));
        for drive in self.rings.drives() {
            match drive.standing() {
                Standing::Serving => {}
                Standing::Cordoned | Standing::Leaving => {
                    losses.insert(Loss::Leaving(self.node, drive.id));
                }
                Standing::Failed(_) => {
                    losses.insert(Loss::Gone(self.node, drive.id));
                }
            }
        }
        losses.into_iter().collect()
    }

    /// Whether this node makes up for a loss in the case of this version.
    pub(super) fn is_heir_of(&self, loss: Loss, version: VersionId) -> bool {
        match (loss, loss.node() == self.node) {
            // A node makes up for its own drives as long as it has one to do so.
            (Loss::Gone(..) | Loss::Leaving(..), true) => self.rings.is_serving(),
            (Loss::Gone(node, _), false) => {
                !self.cell.view().has_drive(node) && self.cell.is_successor(node, version)
            }
            (Loss::Leaving(..), false) => false,
            (Loss::Down(node) | Loss::Evacuating(node), is_own) => {
                !is_own && self.cell.is_successor(node, version)
            }
        }
    }

    /// Protects everything that lost a copy and that this node is to protect.
    pub(super) async fn rebuild(self: &Arc<Core>) -> Result<()> {
        let losses = self.losses();
        if !losses.is_empty() {
            self.cell.rebuilder.has_claims.store(true, Ordering::Relaxed);
        }
        let parts = self.part_tasks(&losses).await?;
        let mut tasks = self.rebuild_tasks(losses).await?;
        tasks.extend(parts);
        if tasks.is_empty() {
            self.cell.rebuilder.trouble.lock().unwrap().take();
            return self.drop_claims().await;
        }
        self.count_copies(&mut tasks).await?;
        tasks.sort_by_key(rank);
        let mut trouble = None;
        for batch in tasks.chunks(BATCH) {
            if self.check_open().is_err() {
                return Ok(());
            }
            let claimed = self.claim_batch(batch).await?;
            if let Some(fault) = self.rebuild_batch(claimed).await {
                trouble = Some(fault.to_string());
            }
        }
        *self.cell.rebuilder.trouble.lock().unwrap() = trouble;
        Ok(())
    }

    async fn rebuild_tasks(&self, losses: Vec<Loss>) -> Result<Vec<Task>> {
        let mut tasks: BTreeMap<(VersionId, Loss), Task> = BTreeMap::new();
        let now_ms = clock::now_ms();
        for loss in losses {
            self.each(loss.rows(), |row| {
                let Some(version) = keys::dirty_version(&row.key) else { return Ok(()) };
                if !self.is_heir_of(loss, version) || !self.cell.rebuilder.is_due(version, now_ms) {
                    return Ok(());
                }
                let dirty = DirtyRow::of(row).map_err(error::catalog)?;
                let task = tasks.entry((version, loss)).or_insert_with(|| Task {
                    loss,
                    version,
                    set: dirty.set,
                    bytes: dirty.bytes,
                    since_ms: dirty.since_ms,
                    rows: Vec::new(),
                    copies: 0,
                    part: None,
                });
                task.rows.push(row.key.to_vec());
                Ok(())
            })
            .await?;
        }
        Ok(tasks.into_values().collect())
    }

    async fn count_copies(&self, tasks: &mut [Task]) -> Result<()> {
        let census = self.census().await?;
        let view = self.cell.view();
        for task in tasks {
            let Some(one) = census.versions.get(&task.version) else { continue };
            task.copies = one.copies(|node, drive| self.is_readable(&view, node, drive));
        }
        Ok(())
    }

    /// Takes work for this session, so that nobody else does the same. A claim of a session that is over counts no more.
    async fn claim_batch(&self, batch: &[Task]) -> Result<Vec<Task>> {
        let names: Vec<Vec<u8>> = batch.iter().map(|task| keys::repair(task.version)).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let known = self.catalog.get(&names).await.map_err(error::catalog)?;
        let view = self.cell.view();
        let own = RepairRow { node: self.node.0, session: self.session_id };
        let mut change = Commit::new().value(self.session.0.clone(), self.session.1.clone());
        let mut mine = Vec::new();
        for ((task, key), row) in batch.iter().zip(names).zip(&known) {
            let claim = row.as_ref().map(RepairRow::of).transpose().map_err(error::catalog)?;
            let is_others =
                |claim: &RepairRow| claim.session != self.session_id && view.node_of(claim.session).is_some();
            if claim.as_ref().is_some_and(is_others) {
                continue;
            }
            if claim.as_ref() != Some(&own) {
                change = change.unchanged(key, row.as_ref()).put(key, own.encode());
            }
            mine.push(task.clone());
        }
        if change.writes.is_empty() {
            return Ok(mine);
        }
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { .. } => Ok(mine),
            // Somebody was quicker; the next look sees what is left.
            Outcome::Failed { .. } => Ok(Vec::new()),
        }
    }

    /// Ends claims that were left behind, of this session or of one that is over, whose work somebody else did meanwhile.
    async fn drop_claims(&self) -> Result<()> {
        if !self.cell.rebuilder.has_claims.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let done = self.drop_some_claims().await;
        if !matches!(done, Ok(false)) {
            self.cell.rebuilder.has_claims.store(true, Ordering::Relaxed);
        }
        done.map(drop)
    }

    /// A bounded number of them; false if there are none.
    async fn drop_some_claims(&self) -> Result<bool> {
        let view = self.cell.view();
        let page = self.catalog.range(Range::prefix(keys::REPAIRS, BATCH)).await.map_err(error::catalog)?;
        let mut change = Commit::new();
        for row in &page.rows {
            let session = RepairRow::of(row).map_err(error::catalog)?.session;
            if session == self.session_id || view.node_of(session).is_none() {
                change = change.seq(row.key.clone(), row.seq).delete(row.key.clone());
            }
        }
        if !change.writes.is_empty() {
            let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
        }
        Ok(!page.rows.is_empty())
    }

    /// Protects what was claimed, some at a time; gives the last fault.
    async fn rebuild_batch(self: &Arc<Core>, tasks: Vec<Task>) -> Option<stoker_store::StoreError> {
        let mut queue = VecDeque::from(tasks);
        let mut running = tokio::task::JoinSet::new();
        let (mut trouble, mut left) = (None, Vec::new());
        loop {
            while running.len() < self.cell.rebuilder.options.workers.max(1)
                && let Some(task) = queue.pop_front()
            {
                let (core, work) = (self.clone(), self.work.begin());
                self.tasks.spawn_into(&mut running, async move {
                    let _work = work;
                    core.cell.rebuilder.turn(task.bytes).await;
                    let done = working(Tag::of(Class::Repair), core.repair(&task)).await;
                    (task, done)
                });
            }
            let Some(ended) = running.join_next().await else { break };
            let Ok((task, done)) = ended else { continue };
            match done {
                Ok(true) => {
                    add(&self.cell.stats.repaired, 1);
                    self.cell.rebuilder.note(task.bytes);
                }
                // Somebody changed a name meanwhile; the next look sees what is left to do.
                Ok(false) => left.push(Write::Delete(keys::repair(task.version))),
                Err(fault) => {
                    tracing::debug!(version = %task.version, "not protected yet: {fault}");
                    self.cell.rebuilder.note_failed(task.version, clock::now_ms());
                    left.push(Write::Delete(keys::repair(task.version)));
                    trouble = Some(fault);
                }
            }
        }
        if !left.is_empty() {
            // Only while the session lasts: afterwards the claims may be somebody else's.
            let mut change = Commit::new().value(self.session.0.clone(), self.session.1.clone());
            change.writes = left;
            if let Err(fault) = self.catalog.commit(change).await {
                tracing::debug!("claims of rebuilds stay for now: {fault}");
            }
        }
        trouble
    }

    /// Brings a version that was written while there were too few nodes to as many as its class asks for.
    pub(super) async fn raise(self: &Arc<Core>, version: VersionId, set: Option<u64>) -> Result<()> {
        let loss = Loss::Evacuating(NodeId::ZERO);
        let rows = Vec::new();
        let task = Task { loss, version, set, bytes: 0, since_ms: 0, rows, copies: 1, part: None };
        self.repair(&task).await.map(drop)
    }

    /// Protects one version again, and takes its drain over if the lost node owed it. False if it is to be looked at again.
    async fn repair(self: &Arc<Core>, task: &Task) -> Result<bool> {
        if let Some(part) = &task.part {
            return self.repair_part(task, part).await;
        }
        // No record is left of it after its chunks were deleted.
        let _pin = self.pins.pin(task.version);
        let names = self.names_of(task.version).await?;
        let Some(first) = names.first() else {
            return self.forget_rows(task.version, &task.rows).await;
        };
        if names.iter().all(|located| located.file.drain == Drain::Clean) {
            // Drained since the task was found. Bytes that are brought here now would be must-keep without a row that says so.
            return self.note_clean(task, &names).await;
        }
        let file = &first.file;
        let Some(volume) = self.volumes.by_id(first.spot.volume).await? else { return Ok(false) };
        let runs = self.names.runs(file).await.map_err(error::catalog)?;
        let chunks: Vec<(ChunkId, u32)> = rings::chunks(&runs).collect();
        let sources: Vec<NodeId> = file.holders.iter().map(|holder| NodeId(holder.node)).collect();
        let _marks = self.marks.read().await;
        // Bytes that the lake has need no protection.
        let protected = match file.source.is_some() || chunks.is_empty() {
            true => None,
            false => Some(self.protect_after(task.loss, &volume, &chunks, &sources).await?),
        };
        let (fresh, sessions) = match &protected {
            Some(protected) => (protected.holders(), protected.sessions()),
            None => (self.rings.holders([self.rings.stand_in()]), Vec::new()),
        };
        let checks = self.holder_checks(&fresh, &sessions).await?;
        self.note_repair(task, names, &fresh, checks).await
    }

    /// On as many nodes as the class asks for; after a loss on fewer, if there are not as many.
    pub(super) async fn protect_after(
        self: &Arc<Core>,
        loss: Loss,
        volume: &Volume,
        chunks: &[(ChunkId, u32)],
        sources: &[NodeId],
    ) -> Result<Protected> {
        let need = self.class(volume).copies() - 1;
        let place = ChunkId::new(VersionId::ZERO, 0);
        let takers = self.cell.takers(place, volume.policy.spread, &[self.node], &[]);
        if !loss.takes_less() || takers.len() >= need {
            return self.protect(volume, chunks, sources).await;
        }
        // Copies follow as soon as there is somebody to take them.
        self.cell.raised_for.lock().unwrap().clear();
        self.protect_here(volume, chunks, sources).await
    }

    async fn note_repair(
        self: &Arc<Core>,
        task: &Task,
        names: Vec<Located>,
        fresh: &[HolderRow],
        checks: Vec<Check>,
    ) -> Result<bool> {
        let mut change = Commit { checks, writes: Vec::new() };
        change.checks.push(Check::Value(self.session.0.clone(), self.session.1.clone()));
        change.writes.extend(task.rows.iter().cloned().map(Write::Delete));
        change.writes.push(Write::Delete(keys::repair(task.version)));
        if let Loss::Down(node) = task.loss {
            change.writes.push(Write::Delete(keys::missing(task.version, node)));
        }
        let mut changed = Vec::new();
        for located in names {
            let mut file = located.file.clone();
            file.holders.retain(|holder| !task.loss.has(NodeId(holder.node), DriveId(holder.drive)));
            for holder in fresh {
                if !file.holders.contains(holder) {
                    file.holders.push(holder.clone());
                }
            }
            // Whoever owes a drain has what is to be drained.
            if !file.holders.iter().any(|holder| holder.node == file.home) {
                file.home = self.node.0;
            }
            let key = located.spot.row_key();
            change.checks.push(Check::Seq(key.clone(), located.seq));
            change.writes.push(Write::Put(key, EntryRow::File(Box::new(file.clone())).encode()));
            if file.drain != Drain::Clean {
                dirty_writes(&mut change, located.spot.volume, &file, task.set);
            }
            changed.push((located.spot, file));
        }
        let Outcome::Done { seq } = self.catalog.commit(change).await.map_err(error::catalog)? else {
            return Ok(false);
        };
        for (spot, file) in &changed {
            if file.drain == Drain::Dirty && file.home == self.node.0 {
                self.drainer.take_over(file);
            }
            if file.drain != Drain::Clean
                && let Err(fault) = self.leave_again(spot, file, seq).await
            {
                tracing::warn!(version = %task.version, "its name has fewer records than it should: {fault}");
            }
        }
        Ok(true)
    }

    /// The lake has every name of a version: rows of what was lost are left over.
    async fn note_clean(&self, task: &Task, names: &[Located]) -> Result<bool> {
        let mut change = Commit::new().delete(keys::repair(task.version));
        change.writes.extend(task.rows.iter().cloned().map(Write::Delete));
        let unchanged = |located: &Located| Check::Seq(located.spot.row_key(), located.seq);
        change.checks.extend(names.iter().map(unchanged));
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// Leaves the record of a file where its bytes are now, as it was after a commit (R6).
    async fn leave_again(self: &Arc<Core>, spot: &Spot, file: &FileRow, seq: u64) -> Result<()> {
        let Some(volume) = self.volumes.by_id(spot.volume).await? else { return Ok(()) };
        if let Some(key) = self.names.path_of(spot).await.map_err(error::catalog)? {
            return self.leave_put(&volume, &key, file, seq).await;
        }
        // No path leads to a shard of an open set.
        match self.shard_at(spot, file.version()).await? {
            Some((key, set, number)) => self.leave_shard(&volume, &key, file, Some((set, number)), seq).await,
            None => Ok(()),
        }
    }

    /// Rows of a version that nothing refers to.
    pub(super) async fn forget_rows(&self, version: VersionId, rows: &[Vec<u8>]) -> Result<bool> {
        let all = keys::references(version);
        let end = stoker_catalog::kv::prefix_end(&all).expect("a table is not 0xff");
        let mut change = Commit::new().at_most(all, end, 0).delete(keys::repair(version));
        change.writes.extend(rows.iter().cloned().map(Write::Delete));
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_endangered_come_first() {
        let task = |at: u8, copies: usize, since_ms: u64| Task {
            loss: Loss::Down(NodeId::ZERO),
            version: VersionId([at; 12]),
            set: None,
            bytes: 1,
            since_ms,
            rows: Vec::new(),
            copies,
            part: None,
        };
        let mut tasks = [task(1, 2, 5), task(2, 0, 1), task(3, 1, 9), task(4, 1, 3), task(5, 2, 4)];
        tasks.sort_by_key(rank);
        assert_eq!(tasks.map(|task| task.version.0[0]), [4, 3, 5, 1, 2]);
    }

    #[test]
    fn a_share_of_the_cores() {
        for (cores, workers) in [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (64, 19)] {
            assert_eq!(RebuildOptions::for_cores(cores).workers, workers, "{cores}");
        }
    }

    #[test]
    fn bytes_wait_for_their_turn() {
        let rebuilder = Rebuilder::new(RebuildOptions { bytes_per_s_max: 1_000, workers: 1 });
        let now = Instant::now();
        assert_eq!(rebuilder.reserve(2_000, now), now);
        assert_eq!(rebuilder.reserve(500, now), now + Duration::from_secs(2));
        let later = now + Duration::from_secs(60);
        assert_eq!(rebuilder.reserve(1, later), later);
    }
}
