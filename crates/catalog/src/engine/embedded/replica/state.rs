//! What the thread of a replica and those who ask it share: the table, whether it may be read, and how the replica stands.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use redb::{Database, ReadableDatabase};
use stoker_consensus::{Group, Point};
use stoker_format::NodeId;
use tokio::sync::watch;

use super::incoming::Draft;
use super::recent::{Fresh, Recent};
use crate::engine::apply::{self, Rows};
use crate::engine::embedded::storage::Storage;
use crate::engine::embedded::{file, guarded, table};
use crate::engine::watches::Watches;
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{self, BoxFuture, Page, Range, Row, Snapshot};

/// One replica of a group, as another one sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaMember {
    /// Its number.
    pub id: u64,
    /// Where it is.
    pub node: NodeId,
    /// Whether it votes.
    pub votes: bool,
}

/// How a replica stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaStanding {
    /// Its number.
    pub id: u64,
    /// The epoch in which somebody leads, and who; none while it knows of nobody.
    pub epoch: Option<Epoch>,
    /// It leads, and has done everything that was committed before.
    pub leads: bool,
    /// Reads are answered here.
    pub answers: bool,
    /// They go on whoever is lost, since nobody could be elected without this replica.
    pub answers_alone: bool,
    /// It knew of no leader for longer than an election takes, or must not acknowledge anything.
    pub is_stalled: bool,
    /// The group was begun anew without it; what is here is of no use any more.
    pub is_superseded: bool,
    /// What its epochs are counted from: what was promoted before there was a group.
    pub base: u64,
    /// Who is in the group, as far as it knows.
    pub members: Vec<ReplicaMember>,
    /// Which group that is; 0 if it was in none yet.
    pub group: u64,
    /// The groups whose place that one took.
    pub former: Vec<u64>,
    /// Rises when a group that lost its majority is begun anew.
    pub incarnation: u64,
}

impl ReplicaStanding {
    /// Nodes that vote.
    pub fn voters(&self) -> Vec<NodeId> {
        self.members.iter().filter(|member| member.votes).map(|member| member.node).collect()
    }
}

/// How far a member of the group is, as its leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaProgress {
    /// Who.
    pub member: ReplicaMember,
    /// Up to which entry it is known to have the log.
    pub has: u64,
    /// Whether it was heard of lately.
    pub is_heard: bool,
}

/// A copy of everything that arrived and waits to be put into place.
pub(super) struct Staged {
    pub draft: Draft,
    pub point: Point,
    pub group: Group,
    pub base: u64,
}

/// One state of the catalog: the table, opened, and the rows in front of it. A read neither begins a transaction nor looks for the rows.
pub(super) struct View {
    /// The last commit that it has.
    pub seq: u64,
    pub recent: Recent,
    table: Arc<table::Snapshot>,
}

impl View {
    /// The table as it is now.
    pub(super) fn open(database: &Database, seq: u64) -> Result<View> {
        let transaction = database.begin_read().map_err(file::failed)?;
        let table = Arc::new(table::Snapshot::open(&transaction)?);
        Ok(View { seq, recent: Recent::default(), table })
    }

    /// This with what an entry wrote over it, up to commit `seq`.
    pub(super) fn with(&self, fresh: Fresh<'_, View>, seq: u64) -> View {
        View { seq, recent: self.recent.with(fresh), table: Arc::clone(&self.table) }
    }

    pub(super) fn row(&self, key: &[u8]) -> Result<Option<Row>> {
        match self.recent.get(key) {
            Some(found) => {
                Ok(found.map(|(seq, value)| Row { key: key.to_vec(), value: value.to_vec(), seq }))
            }
            None => self.table.row(key),
        }
    }

    pub(super) fn page(&self, range: &Range) -> Result<Page> {
        match self.recent.is_empty() {
            true => self.table.page(range),
            false => apply::page(self.recent.over(range, self.table.rows(range)?), range.limit),
        }
    }
}

impl Rows for View {
    fn read<T>(&self, key: &[u8], read: impl FnOnce(Option<(u64, &[u8])>) -> T) -> Result<T> {
        match self.recent.get(key) {
            Some(found) => Ok(read(found)),
            None => self.table.read(key, read),
        }
    }

    fn count(&self, start: &[u8], end: &[u8], stop: usize) -> Result<usize> {
        let range = Range::between(start, end, 1);
        let mut count = 0;
        for row in self.recent.over(&range, self.table.rows(&range)?).take(stop) {
            row?;
            count += 1;
        }
        Ok(count)
    }

    fn sum(&self, start: &[u8], end: &[u8]) -> Result<i128> {
        if start >= end {
            return Ok(0);
        }
        if self.recent.is_empty() {
            return self.table.sum(start, end);
        }
        let range = Range::between(start, end, 1);
        let mut sum = 0;
        for row in self.recent.over(&range, self.table.rows(&range)?) {
            sum += apply::counted(&row?.value);
        }
        Ok(sum)
    }
}

/// A state that is read page by page.
pub(super) struct Shown(pub Arc<View>);

impl Snapshot for Shown {
    fn seq(&self) -> u64 {
        self.0.seq
    }

    fn page<'a>(&'a self, after: Option<&'a [u8]>) -> BoxFuture<'a, Result<Page>> {
        let range = kv::snapshot_range(after);
        Box::pin(async move { guarded(|| self.0.page(&range)) })
    }
}

/// What is shared.
pub(super) struct Shared {
    pub(super) watches: Watches,
    /// Why the replica can no longer be trusted, once it cannot.
    poison: RwLock<Option<CatalogError>>,
    /// Spares those who ask the lock while there is nothing wrong.
    is_poisoned: AtomicBool,
    /// The last state, which was told to nobody before it is here.
    view: RwLock<Option<Arc<View>>>,
    /// The file of the table.
    storage: RwLock<Option<Arc<Storage>>>,
    staged: Mutex<Option<Staged>>,
    /// Until when reads may be answered from the table, by [`now`], in nanoseconds; 0 if not at all.
    reads_until_ns: AtomicU64,
    /// Rises when this replica begins to answer reads: what was read before that is no answer after it.
    generation: AtomicU64,
    pub(super) standing: watch::Sender<ReplicaStanding>,
    /// Of the members, and the last entry; only where this replica leads.
    pub(super) progress: Mutex<(Vec<ReplicaProgress>, u64)>,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared {
            watches: Watches::new(),
            poison: RwLock::new(None),
            is_poisoned: AtomicBool::new(false),
            view: RwLock::new(None),
            storage: RwLock::new(None),
            staged: Mutex::new(None),
            reads_until_ns: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            standing: watch::Sender::new(ReplicaStanding::default()),
            progress: Mutex::default(),
        }
    }

    /// Fails if the replica can no longer be trusted.
    pub(super) fn sound(&self) -> Result<()> {
        if !self.is_poisoned.load(Ordering::SeqCst) {
            return Ok(());
        }
        match &*self.poison.read().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn poison(&self, error: &CatalogError) {
        tracing::error!(%error, "the replica of the catalog failed and stops until it is opened again");
        let kind = if error.kind == ErrorKind::Corrupt { ErrorKind::Corrupt } else { ErrorKind::Unavailable };
        let message = format!("stopped after a failure; restart the node: {}", error.message);
        self.poison
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(CatalogError::new(kind, message));
        self.is_poisoned.store(true, Ordering::SeqCst);
        self.reads_end();
        self.standing.send_modify(|standing| {
            (standing.leads, standing.answers, standing.epoch) = (false, false, None);
        });
    }

    /// Has reads see this state of the table, which is in this file.
    pub(super) fn show(&self, storage: &Arc<Storage>, view: Arc<View>) {
        *self.storage.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(storage));
        self.view_set(view);
    }

    /// Has reads see this state.
    pub(super) fn view_set(&self, view: Arc<View>) {
        let mut shown = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let before = shown.replace(view);
        drop(shown);
        // Letting go of it takes a lock of the store, for which no read has to wait.
        drop(before);
    }

    /// Whether there is room for more.
    pub(super) fn has_room(&self) -> bool {
        let storage = self.storage.read().unwrap_or_else(PoisonError::into_inner).clone();
        storage.is_none_or(|storage| storage.room())
    }

    /// Has reads see nothing.
    pub(super) fn hide(&self) {
        self.view.write().unwrap_or_else(PoisonError::into_inner).take();
        self.storage.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// What is done here, whether anybody may be told or not.
    pub(super) fn view(&self) -> Result<Arc<View>> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        view.clone().ok_or_else(CatalogError::closed)
    }

    /// Reads may be answered until then. `begins` if none were before.
    pub(super) fn reads_until(&self, until: Duration, begins: bool) {
        if begins {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.reads_until_ns.store(until_ns, Ordering::SeqCst);
    }

    /// No read is answered any more.
    pub(super) fn reads_end(&self) {
        self.reads_until_ns.store(0, Ordering::SeqCst);
    }

    /// A ticket for a read that begins now; none if reads are not answered by this replica alone now.
    pub(super) fn read_begin(&self) -> Option<u64> {
        let generation = self.generation.load(Ordering::SeqCst);
        self.may_read().then_some(generation)
    }

    /// Whether what was read since the ticket was given is an answer.
    pub(super) fn read_end(&self, ticket: u64) -> bool {
        self.may_read() && self.generation.load(Ordering::SeqCst) == ticket
    }

    fn may_read(&self) -> bool {
        let until_ns = self.reads_until_ns.load(Ordering::SeqCst);
        until_ns == u64::MAX || u128::from(until_ns) > now().as_nanos()
    }

    pub(super) fn stage(&self, staged: Staged) {
        *self.staged.lock().unwrap_or_else(PoisonError::into_inner) = Some(staged);
    }

    /// The copy that goes up to there.
    pub(super) fn staged_take(&self, point: Point) -> Option<Staged> {
        let staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner).take();
        staged.filter(|staged| staged.point == point)
    }
}

/// A time that goes on while a process, or a machine, is paused.
pub(super) fn now() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
