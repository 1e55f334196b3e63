//! The drainer: copies published files to the lake, removes there what was deleted here, moves what was renamed.
//!
//! One writer per lake key (R10): a row in the catalog is claimed before the first byte, and a file counts as clean only
//! by a transaction on the unchanged claim, after the lake confirmed what it has. Nothing else writes to a lake.

mod alone;
mod claim;
mod conflicts;
mod head;
mod importer;
mod pace;
mod planner;
mod readers;
mod rekeyer;
mod sets;
pub(crate) mod spill;
mod tombstones;
mod upload;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use stoker_catalog::kv::{Commit, Range, Row, Write, prefix_end};
use stoker_format::{VersionId, VolumeId};
use stoker_qos::{Class, Tag};
use stoker_schema::rows::{DirtyRow, Drain, FileRow, RowValue, keys};
use stoker_store::{BoxFuture, DrainPolicy, Result, StoreError, Subject};
use tokio::sync::{Notify, Semaphore};
use tracing::Instrument as _;

use crate::admission::working;
use crate::core::Core;
use crate::volumes::Volume;
use crate::{TRACE, clock, error};
pub(crate) use alone::away;
pub(crate) use claim::lost;
use pace::Pace;
use planner::{Planner, Task};
pub(crate) use readers::{check_key, may_be_in_lake};
pub(crate) use stoker_records::lake_keys::{AWAY, open_key};
pub(crate) use stoker_records::{attributes, signature};

/// Longest sleep of the loop: deletes and renames of earlier boots are found at this pace.
const ROUND_MS: u64 = 1_000;

/// The dirty rows are read again after so long, in case a plan was lost.
const RELOAD_MS: u64 = 300_000;

/// Pause between two looks at abandoned uploads.
const TIDY_MS: u64 = 600_000;

/// A long file drains if more than one part in so many of it is stored.
const SPARSE_RATIO: u64 = 16;

/// A drain that is so late does not give way to writers any more.
const LATE_MS: u64 = 30_000;

/// The state of the drainer.
pub(crate) struct Drainer {
    planner: Mutex<Planner>,
    wake: Notify,
    /// Wakes the chores.
    chores: Notify,
    /// Plans may be missing: the dirty rows have to be read again.
    is_incomplete: AtomicBool,
    sets: sets::Progress,
    /// Lake keys that something on this node is busy with.
    busy: Mutex<HashSet<(u32, Vec<u8>)>>,
    pub permits: Arc<Semaphore>,
    /// Memory of writes that go to the lake as they come.
    spill_memory: Arc<Semaphore>,
    spill_units: usize,
    /// Longer files that are almost all holes stay here.
    sparse_bytes_max: u64,
    pub pace: Pace,
    trouble: Mutex<Option<(u64, String)>>,
    pub stats: DrainStats,
    /// Objects that are not deleted yet because somebody reads them.
    read: readers::Waiting,
    /// Told whenever a version became clean, for those who wait.
    pub cleaned: Notify,
}

/// Counters of the drainer.
#[derive(Default)]
pub(crate) struct DrainStats {
    pub files: std::sync::atomic::AtomicU64,
    pub bytes: std::sync::atomic::AtomicU64,
    pub errors: std::sync::atomic::AtomicU64,
    pub deletes: std::sync::atomic::AtomicU64,
    pub rekeys: std::sync::atomic::AtomicU64,
    pub conflicts: std::sync::atomic::AtomicU64,
    /// Objects that were copied because somebody had them open when they were replaced.
    pub kept_open: std::sync::atomic::AtomicU64,
}

/// How a try ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Nothing is left to do for this version.
    Done,
    /// Not now: again at that time.
    Later(u64),
}

/// A lake key in use; free again when dropped.
pub(crate) struct Busy<'d> {
    drainer: &'d Drainer,
    key: (u32, Vec<u8>),
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.drainer.busy.lock().unwrap().remove(&self.key);
    }
}

impl Drainer {
    pub fn new(concurrency: usize, sparse_bytes_max: u64, memory_bytes: u64) -> Drainer {
        let spill_units = spill::memory_units(memory_bytes);
        Drainer {
            planner: Mutex::default(),
            wake: Notify::new(),
            chores: Notify::new(),
            is_incomplete: AtomicBool::new(true),
            sets: sets::Progress::default(),
            busy: Mutex::default(),
            permits: Arc::new(Semaphore::new(concurrency.max(1))),
            spill_memory: Arc::new(Semaphore::new(spill_units)),
            spill_units,
            sparse_bytes_max,
            pace: Pace::default(),
            trouble: Mutex::default(),
            stats: DrainStats::default(),
            read: readers::Waiting::default(),
            cleaned: Notify::new(),
        }
    }

    /// A version was published and is dirty.
    pub fn note(&self, volume: &Volume, file: &FileRow) {
        let policy = &volume.policy;
        let due_ms = match policy.drain {
            DrainPolicy::Never | DrainPolicy::OnDemand => return,
            DrainPolicy::Every(n) if n > 1 && !file.publishes.is_multiple_of(n) => return,
            _ => planner::due_ms(
                file.dirty_since_ms,
                file.modified_ms,
                policy.drain_quiet_s,
                policy.drain_lag_max_s,
            ),
        };
        self.plan(file.version(), file.allocated(), file.dirty_since_ms, due_ms, false);
    }

    /// Why a file is not written to a lake: there its holes would be zeros, far more of them than of anything else. None if
    /// it is. (D84)
    pub fn too_sparse(&self, file: &FileRow) -> Option<String> {
        let (size, allocated) = (file.size, file.allocated());
        if size <= self.sparse_bytes_max || allocated > size / SPARSE_RATIO || file.source.is_some() {
            return None;
        }
        Some(format!(
            "it is sparse: {allocated} of its {size} bytes are stored, and a lake would hold the holes as zeros; files over {} \
             bytes drain only if more than 1/{SPARSE_RATIO} of them is stored: make it shorter, fill it, or raise \
             `lake.sparse_max` and resolve it with `ours`",
            self.sparse_bytes_max
        ))
    }

    fn plan(&self, version: VersionId, bytes: u64, since_ms: u64, due_ms: u64, demanded: bool) {
        let task = Task { version, bytes, since_ms, due_ms, tries: 0, demanded };
        let sooner = {
            let mut planner = self.planner.lock().unwrap();
            planner.note(task);
            planner.next_due_ms() == Some(due_ms)
        };
        if sooner {
            self.wake.notify_one();
        }
    }

    /// The node that owed this drain is lost: it is due.
    pub fn take_over(&self, file: &FileRow) {
        self.plan(file.version(), file.allocated(), file.dirty_since_ms, 0, false);
        self.wake.notify_one();
    }

    /// Drains a version now, whatever its policy says.
    pub fn demand(&self, file: &FileRow) {
        self.plan(file.version(), file.allocated(), file.dirty_since_ms, 0, true);
        self.wake.notify_one();
    }

    /// The same, unless that was done already.
    pub fn demand_once(&self, file: &FileRow) {
        if !self.planner.lock().unwrap().is_demanded(&file.version()) {
            self.demand(file);
        }
    }

    /// A set was published here: its way to the lake begins.
    pub fn set_published(&self) {
        self.sets.wake();
    }

    /// A reference to a version went: perhaps the others are all clean.
    pub fn reconsider(&self, version: VersionId) {
        // One that waits is looked at when its time comes, not before.
        if self.planner.lock().unwrap().waits(&version) {
            return;
        }
        self.plan(version, 0, clock::now_ms(), 0, false);
    }

    /// A version is gone. If it waits to be drained it is looked at now: rows of another name of it may be left.
    pub fn forget(&self, version: VersionId) {
        if self.planner.lock().unwrap().waits(&version) {
            self.plan(version, 0, clock::now_ms(), 0, false);
        }
    }

    /// Something may be there to do.
    pub fn wake(&self) {
        self.wake.notify_one();
        self.chores.notify_waiters();
    }

    /// What has to be drained has to be found out anew: a policy changed, say.
    pub fn reload(&self) {
        self.is_incomplete.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Files, bytes and the oldest change that are not in the lake, as far as planned.
    pub fn sums(&self) -> (u64, u64, Option<u64>) {
        self.planner.lock().unwrap().sums()
    }

    /// Versions under way.
    pub fn active(&self) -> usize {
        self.planner.lock().unwrap().active()
    }

    /// The last trouble with a lake, if it is recent.
    pub fn trouble(&self, now_ms: u64) -> Option<String> {
        let trouble = self.trouble.lock().unwrap();
        trouble.as_ref().filter(|(at, _)| at + 60_000 > now_ms).map(|(_, words)| words.clone())
    }

    /// A write that goes to a lake as it comes failed.
    pub fn note_fault(&self, fault: &StoreError) {
        if fault.subject == Subject::Lake {
            self.set_trouble(Some(fault.to_string()));
        }
    }

    /// Something could not be drained. If that is the catalog's doing, the lake is not blamed; what is wrong with the catalog is
    /// told by itself.
    fn blame(&self, fault: &StoreError) {
        match fault.subject == Subject::Catalog {
            true => tracing::debug!("draining: {fault}"),
            false => self.set_trouble(Some(fault.to_string())),
        }
    }

    fn set_trouble(&self, words: Option<String>) {
        let mut trouble = self.trouble.lock().unwrap();
        let news = words.is_some() && trouble.as_ref().map(|(_, old)| old) != words.as_ref();
        if let (true, Some(words)) = (news, &words) {
            tracing::warn!("draining: {words}");
        }
        *trouble = words.map(|words| (clock::now_ms(), words));
    }

    /// Whether drains have to hurry: half of the rings would have to stay, or something should long be in the lake.
    fn judge(&self, now_ms: u64, room: u64) {
        let (bytes, due_ms) = {
            let planner = self.planner.lock().unwrap();
            (planner.bytes(), planner.next_due_ms())
        };
        let is_late = due_ms.is_some_and(|due_ms| due_ms > 0 && due_ms + LATE_MS < now_ms);
        self.pace.set_urgent(bytes > room / 2 || is_late);
    }

    /// Takes a lake key for oneself; none if something else on this node has it.
    /// Whether a request to a lake key is under way here.
    pub fn has_key(&self, volume: VolumeId, key: &[u8]) -> bool {
        self.busy.lock().unwrap().contains(&(volume.0, key.to_vec()))
    }

    pub fn take_key(&self, volume: VolumeId, key: &[u8]) -> Option<Busy<'_>> {
        let key = (volume.0, key.to_vec());
        // Not `then_some`: a guard that was made in vain would give away the key of whoever has it.
        let is_free = self.busy.lock().unwrap().insert(key.clone());
        is_free.then(|| Busy { drainer: self, key })
    }
}

/// Starts drains when they are due, until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    let mut loaded_ms = 0u64;
    while !core.closing.load(Ordering::Relaxed) {
        let now_ms = clock::now_ms();
        let drainer = &core.drainer;
        let overflowed = drainer.planner.lock().unwrap().take_overflow();
        if drainer.is_incomplete.swap(false, Ordering::Relaxed)
            || overflowed
            || loaded_ms.abs_diff(now_ms) > RELOAD_MS
        {
            loaded_ms = now_ms;
            if let Err(fault) = core.load_dirty().await {
                drainer.blame(&fault);
                drainer.is_incomplete.store(true, Ordering::Relaxed);
            }
        }
        drainer.judge(now_ms, core.rings.capacity());
        core.start_due(now_ms);
        let next = drainer.planner.lock().unwrap().next_due_ms();
        let sleep_ms = next.map_or(ROUND_MS, |due| due.saturating_sub(clock::now_ms()).min(ROUND_MS)).max(5);
        // While all permits are taken, whoever gives one back wakes us.
        tokio::select! {
            biased;
            () = drainer.wake.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(sleep_ms)) => {}
        }
    }
}

/// Work beside the drains. Each kind has a loop of its own, and in it each volume: one that is stuck stops no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chore {
    /// Moves objects of renamed files.
    Rekey,
    /// Looks after requests whose end nobody saw.
    Sweep,
    /// Deletes objects of deleted files.
    Bury,
    /// Takes over what an owned lake held before us.
    Import,
    /// Forgets abandoned uploads.
    Tidy,
    /// Looks after checkpoint sets.
    Sets,
    /// Looks after second lakes.
    Replicate,
    /// Moves files as rules say.
    Move,
}

impl Chore {
    /// All of them.
    pub const ALL: [Chore; 8] = [
        Chore::Rekey,
        Chore::Sweep,
        Chore::Bury,
        Chore::Import,
        Chore::Tidy,
        Chore::Sets,
        Chore::Replicate,
        Chore::Move,
    ];
}

/// Does a chore until the node closes.
pub(crate) async fn chore(core: Arc<Core>, chore: Chore) {
    let pause_ms = if chore == Chore::Tidy { TIDY_MS } else { ROUND_MS };
    while !core.closing.load(Ordering::Relaxed) {
        // From before the round, so that nothing that happens during it is slept through.
        let mut woken = std::pin::pin!(core.drainer.chores.notified());
        woken.as_mut().enable();
        if core.chore_round(chore).await {
            tokio::task::yield_now().await;
            continue;
        }
        let pause = tokio::time::sleep(Duration::from_millis(pause_ms));
        match chore {
            Chore::Tidy => pause.await,
            Chore::Sets => core.drainer.sets.wait(pause).await,
            _ => tokio::select! { biased; () = woken => {}, () = pause => {} },
        }
    }
}

impl Core {
    /// Plans everything that the catalog says is only here.
    async fn load_dirty(self: &Arc<Core>) -> Result<()> {
        let mut range = Range::prefix(&keys::dirty_of(self.node), 1_000);
        let mut open: HashMap<(u32, u64), bool> = HashMap::new();
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let dirty = DirtyRow::of(row).map_err(error::catalog)?;
                let Some(version) = keys::dirty_version(&row.key) else { continue };
                if dirty.home != self.node.0 {
                    continue;
                }
                if let Some(set) = dirty.set {
                    // Its publish brings it back here.
                    let is_open = match open.get(&(dirty.volume, set)) {
                        Some(is_open) => *is_open,
                        None => self.is_set_open(VolumeId(dirty.volume), set).await?,
                    };
                    open.insert((dirty.volume, set), is_open);
                    if is_open {
                        continue;
                    }
                }
                let Some(volume) = self.volumes.by_id(VolumeId(dirty.volume)).await? else { continue };
                let policy = &volume.policy;
                let stays = matches!(policy.drain, DrainPolicy::Never | DrainPolicy::OnDemand);
                if stays || volume.lake_url.is_none() {
                    continue;
                }
                let due_ms = planner::due_ms(
                    dirty.since_ms,
                    dirty.changed_ms,
                    policy.drain_quiet_s,
                    policy.drain_lag_max_s,
                );
                self.drainer.plan(version, dirty.bytes, dirty.since_ms, due_ms, false);
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }

    /// Starts what is due, as far as there are permits.
    fn start_due(self: &Arc<Core>, now_ms: u64) {
        while let Ok(permit) = self.drainer.permits.clone().try_acquire_owned() {
            let Some(task) = self.drainer.planner.lock().unwrap().next(now_ms) else { return };
            let core = self.clone();
            let work = self.work.begin();
            self.tasks.spawn(async move {
                let _work = work;
                let ended = working(Tag::of(Class::Drain), core.drain_version(&task)).await;
                let now_ms = clock::now_ms();
                {
                    let mut planner = core.drainer.planner.lock().unwrap();
                    match &ended {
                        Ok(End::Done) => planner.done(task.version),
                        Ok(End::Later(due_ms)) => planner.postpone(task.version, *due_ms),
                        Err(_) => {
                            planner.retry(task.version, now_ms, u64::from_le_bytes(clock::random()));
                        }
                    }
                }
                match ended {
                    Ok(End::Done) => core.drainer.set_trouble(None),
                    Ok(End::Later(_)) => {}
                    Err(fault) => {
                        crate::core::add(&core.drainer.stats.errors, 1);
                        core.drainer.blame(&fault);
                    }
                }
                drop(permit);
                core.drainer.wake.notify_one();
            });
        }
    }

    /// A bounded piece of a chore in every volume; true if something was done and more is left.
    async fn chore_round(self: &Arc<Core>, chore: Chore) -> bool {
        if chore == Chore::Tidy {
            let tidied = self.tidy_uploads().await;
            self.note_trouble(tidied.map(|()| false));
            return false;
        }
        if chore == Chore::Move {
            if let Err(fault) = self.mover_round().await {
                tracing::debug!("moving files: {fault}");
            }
            return false;
        }
        if chore == Chore::Sets {
            let done = self.sets_round().await;
            return self.note_trouble(done);
        }
        let volumes = match self.volumes.all_and_leaving().await {
            Ok(volumes) => volumes,
            Err(fault) => return self.note_trouble(Err(fault)),
        };
        let mine = |volume: &Arc<Volume>| self.cell.is_mine(chore_id(chore, volume.id));
        let rounds = volumes.into_iter().filter(mine).map(|volume| -> BoxFuture<'_, bool> {
            Box::pin(async move {
                let done = match chore {
                    Chore::Rekey => self.rekey_round(&volume).await,
                    Chore::Sweep => self.sweep_round(&volume).await,
                    Chore::Bury => self.bury_round(&volume).await,
                    Chore::Import if volume.leaving => Ok(false),
                    Chore::Import => self.import_round(&volume).await,
                    Chore::Replicate => self.replicate_round(&volume).await,
                    Chore::Tidy | Chore::Sets | Chore::Move => Ok(false),
                };
                self.note_trouble(done)
            })
        });
        futures_util::future::join_all(rounds).await.into_iter().any(|more| more)
    }

    /// Says what went wrong, and goes on.
    fn note_trouble(&self, done: Result<bool>) -> bool {
        done.unwrap_or_else(|fault| {
            self.drainer.blame(&fault);
            false
        })
    }

    /// Does something for each row with a prefix, in pages; what goes wrong with one does not stop the others. True if
    /// something was done. The first error is given back at the end.
    pub(super) async fn each_row<'a>(
        &'a self,
        prefix: &[u8],
        at_once: usize,
        act: impl Fn(Row) -> BoxFuture<'a, Result<bool>>,
    ) -> Result<bool> {
        let mut range = Range::prefix(prefix, 1_000);
        let (mut done, mut trouble) = (false, None);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            let last = page.rows.last().map(|row| row.key.clone());
            let mut ended = futures_util::stream::iter(page.rows).map(&act).buffer_unordered(at_once);
            while let Some(end) = ended.next().await {
                match end {
                    Ok(progress) => done |= progress,
                    Err(fault) => trouble = trouble.or(Some(fault)),
                }
            }
            match last {
                Some(last) if page.more && !self.closing.load(Ordering::Relaxed) => {
                    range = range.after(&last)
                }
                _ => break,
            }
        }
        match trouble {
            Some(fault) => Err(fault),
            None => Ok(done),
        }
    }

    /// Brings one version to the lake under every name that lacks it there.
    async fn drain_version(self: &Arc<Core>, task: &Task) -> Result<End> {
        let _pin = self.pins.pin(task.version);
        let _demand = task.demanded.then(|| self.drainer.pace.demand());
        let names = self.names_of(task.version).await?;
        if names.is_empty() {
            self.forget_dirty(task.version).await?;
            return Ok(End::Done);
        }
        let mut later: Option<u64> = None;
        for located in names {
            if located.file.drain != Drain::Dirty {
                continue;
            }
            let Some(volume) = self.volumes.by_id(located.spot.volume).await? else { continue };
            if !task.demanded && !wants(&volume, &located.file) {
                continue;
            }
            let span = tracing::debug_span!(
                target: TRACE,
                "drain file",
                volume = volume.name.as_str(),
                bytes = located.file.size,
            );
            match self.drain_file(&volume, located).instrument(span).await? {
                End::Done => {}
                End::Later(due_ms) => later = Some(later.map_or(due_ms, |known| known.min(due_ms))),
            }
        }
        if let Some(due_ms) = later {
            return Ok(End::Later(due_ms));
        }
        self.settle_version(task.version).await?;
        Ok(End::Done)
    }

    /// Nothing refers to a version: rows that say it is undrained are left over.
    async fn forget_dirty(&self, version: VersionId) -> Result<()> {
        let rows: Vec<Vec<u8>> =
            self.rings.drives().iter().map(|drive| keys::dirty(self.node, drive.id, version)).collect();
        let names: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let left = self.catalog.get(&names).await.map_err(error::catalog)?;
        if left.iter().all(Option::is_none) {
            return Ok(());
        }
        let all = keys::references(version);
        let end = prefix_end(&all).expect("a table is not 0xff");
        let mut commit = Commit::new().at_most(all, end, 0);
        commit.writes.extend(rows.into_iter().map(Write::Delete));
        let _ = self.catalog.commit(commit).await.map_err(error::catalog)?;
        Ok(())
    }
}

/// Decides which node of a cell does a chore of a volume.
fn chore_id(chore: Chore, volume: VolumeId) -> VersionId {
    let mut id = [chore as u8; 12];
    id[8..].copy_from_slice(&volume.0.to_be_bytes());
    VersionId(id)
}

/// Whether the policy of its volume sends this version to the lake.
fn wants(volume: &Volume, file: &FileRow) -> bool {
    match volume.policy.drain {
        DrainPolicy::Always => true,
        DrainPolicy::Never | DrainPolicy::OnDemand => false,
        DrainPolicy::Every(n) => n <= 1 || file.publishes.is_multiple_of(n),
    }
}
