//! The standby itself: a file that does what the primary did, in the same order, durable before it says so.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::{Database, ReadableDatabase, WriteTransaction};
use stoker_format::{ClusterId, NodeId};

use super::incoming::Incoming;
use super::message::{FromStandby, StandbyAsk, StandbyState, ToStandby};
use crate::engine::embedded::durable::Durable;
use crate::engine::embedded::entry::Entry;
use crate::engine::embedded::file::Opened;
use crate::engine::embedded::ledger::Ledger;
use crate::engine::embedded::lineage::{Lineage, Position, Role};
use crate::engine::embedded::space::{Room, Space};
use crate::engine::embedded::storage::Storage;
use crate::engine::embedded::tail::{Entries, Tail};
use crate::engine::embedded::{EmbeddedOptions, file, guarded, table};
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::Health;
use crate::wire::{self, Blob};

/// Settings of a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyOptions {
    /// How its file is used.
    pub file: EmbeddedOptions,
    /// Most bytes of past commits that it keeps, for others that follow it once it is promoted.
    pub tail_bytes: usize,
}

impl Default for StandbyOptions {
    fn default() -> StandbyOptions {
        StandbyOptions { file: EmbeddedOptions::default(), tail_bytes: super::TAIL_BYTES }
    }
}

/// How it stands with a standby, by what it knows itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyReport {
    /// The last commit that it has.
    pub position: Position,
    /// The highest epoch that it heard of; it takes nothing from a lower one.
    pub promised: Epoch,
    /// Who is in sync with the primary, as far as it knows.
    pub in_sync: Vec<NodeId>,
    /// Every standby of the primary, as far as it knows.
    pub known: Vec<NodeId>,
}

/// A copy of a catalog that follows its primary.
pub struct Standby {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) path: PathBuf,
    cluster: ClusterId,
    options: StandbyOptions,
    space: Arc<Space>,
    /// The error says why there is no file in use.
    file: Mutex<Result<Follower>>,
}

/// The file in use.
pub(super) struct Follower {
    database: Database,
    storage: Arc<Storage>,
    space: Arc<Space>,
    pub(super) seq: u64,
    pub(super) lineage: Lineage,
    tail: Tail,
    incoming: Option<Incoming>,
    durable: Durable,
}

impl Standby {
    /// Opens the standby at `path`, or makes an empty one there.
    ///
    /// Fails with `Invalid` if a catalog of another role is there; see [`Standby::open_former`].
    pub fn open(path: &Path, cluster: ClusterId, options: &StandbyOptions) -> Result<Standby> {
        let space = Arc::new(Space::new(path, options.file.reserve_bytes));
        let file = Mutex::new(Ok(Follower::open(path, cluster, options, &space)?));
        let (path, options) = (path.to_owned(), options.clone());
        Ok(Standby { shared: Arc::new(Shared { path, cluster, options, space, file }) })
    }

    /// Makes a standby in the place of a catalog that was a primary, or served one node alone.
    ///
    /// That file is put aside under another name, and never deleted: it may hold commits that nobody has.
    pub fn open_former(path: &Path, cluster: ClusterId, options: &StandbyOptions) -> Result<Standby> {
        let former = super::inspect(path, cluster)?;
        if former.as_ref().is_some_and(|file| file.role != Role::Standby) {
            let aside = file::put_aside(path)?;
            tracing::warn!(path = %aside.display(), "the former catalog was put aside; a standby takes its place");
        }
        let standby = Standby::open(path, cluster, options)?;
        let promised = former.map(|file| file.promised).unwrap_or_default();
        standby.shared.with(|follower| follower.promise(promised))?;
        Ok(standby)
    }

    /// Answers a request of a primary, or of another standby that is being promoted.
    pub async fn answer(&self, request: Vec<u8>) -> Vec<u8> {
        let shared = Arc::clone(&self.shared);
        let answered = tokio::task::spawn_blocking(move || shared.answer(&request)).await;
        wire::encode(&answered.unwrap_or_else(|_| {
            FromStandby::Failed(CatalogError::unavailable("the standby gave up half way"))
        }))
    }

    /// How far it is and what it knows.
    pub fn report(&self) -> Result<StandbyReport> {
        self.shared.with(|follower| {
            Ok(StandbyReport {
                position: follower.position(),
                promised: follower.lineage.promised,
                in_sync: follower.lineage.members.in_sync().collect(),
                known: follower.lineage.members.known().collect(),
            })
        })
    }

    /// Stops following, durably: the primary may go on without this standby, which is therefore not to be promoted until it
    /// followed again. (D39)
    pub fn leave(&self, node: NodeId) -> Result<()> {
        self.shared.with(|follower| {
            follower.lineage.members = follower.lineage.members.without(node);
            follower.write(|follower, transaction| follower.lineage.save(transaction))
        })?;
        self.close();
        Ok(())
    }

    /// Whether it can follow: a file system that is full, or a file that failed, and what a person does about it.
    pub fn health(&self) -> Health {
        // Whoever waits for room has the lock.
        if self.shared.space.get() == Room::Stuck {
            return Health::ReadOnly(self.shared.space.reason());
        }
        match &*self.shared.lock() {
            Err(error) if error.kind != ErrorKind::Closed => Health::Failed(error.message.clone()),
            Ok(follower) if !follower.storage.room() => Health::ReadOnly(self.shared.space.reason()),
            _ => Health::Good,
        }
    }

    /// Lets go of the file.
    pub fn close(&self) {
        self.shared.space.give_up();
        *self.shared.lock() = Err(CatalogError::closed());
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// Works on the file; after an error of the store it is not used any more.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Follower) -> Result<T>) -> Result<T> {
        let mut file = self.lock();
        let follower = file.as_mut().map_err(|error| error.clone())?;
        let done = guarded(|| work(follower));
        if let Err(error) = &done {
            follower.durable.abandon();
            tracing::error!(%error, "the standby of the catalog failed and stops until it is opened again");
            *file = Err(CatalogError::new(error.kind, format!("stopped after a failure: {}", error.message)));
        }
        done
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Result<Follower>> {
        // What a panic leaves behind is an error, or a file whose transaction was given up.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &[u8]) -> FromStandby {
        let request: ToStandby = match wire::decode(request) {
            Ok(request) => request,
            Err(error) => return FromStandby::Failed(error),
        };
        // Whoever waits for room has the lock.
        if self.space.get() == Room::Stuck {
            return FromStandby::Failed(self.space.refusal());
        }
        let ends = matches!(request.ask, StandbyAsk::SnapshotEnd { .. });
        let answered = match ends {
            true => self.snapshot_end(&request),
            false => self.with(|follower| follower.answer(request, &self.path, &self.options)),
        };
        answered.unwrap_or_else(FromStandby::Failed)
    }

    /// Puts a snapshot into the place of the file.
    fn snapshot_end(&self, request: &ToStandby) -> Result<FromStandby> {
        let StandbyAsk::SnapshotEnd { id, pieces } = request.ask else {
            return Err(CatalogError::invalid("not the end of a snapshot"));
        };
        let mut file = self.lock();
        let follower = file.as_mut().map_err(|error| error.clone())?;
        let promised = follower.lineage.promised;
        if request.epoch < promised {
            return Ok(FromStandby::Fenced(promised));
        }
        let Some(incoming) = follower.incoming.take().filter(|incoming| incoming.expects(id, pieces)) else {
            return Ok(FromStandby::SnapshotLost);
        };
        // The old file must be let go of before its name is another's.
        *file = Err(CatalogError::unavailable("the standby takes a snapshot"));
        let promised = promised.max(request.epoch);
        let ended = guarded(|| incoming.end(&self.path, self.cluster, promised));
        let opened = Follower::open(&self.path, self.cluster, &self.options, &self.space);
        // One that found no room left the old file in its place, or none.
        *file = opened.and_then(|mut follower| follower.promise(promised).map(|()| follower));
        ended?;
        file.as_ref().map(Follower::state).map_err(|error| error.clone())
    }
}

impl Follower {
    fn open(
        path: &Path,
        cluster: ClusterId,
        options: &StandbyOptions,
        space: &Arc<Space>,
    ) -> Result<Follower> {
        let Opened { database, storage, seq } = file::open(path, cluster, &options.file, space)?;
        guarded(|| {
            let snapshot = database.begin_read().map_err(file::failed)?;
            let mut lineage = Lineage::load(&snapshot)?;
            let tail = Tail::load(&snapshot, seq, options.tail_bytes)?;
            drop(snapshot);
            match lineage.role {
                Role::Standby => {}
                Role::Alone if seq == 0 => lineage = Lineage::new(Role::Standby),
                Role::Alone | Role::Primary | Role::Replica => {
                    return Err(CatalogError::invalid(format!(
                        "{} is a catalog of its own and follows nobody; put it aside first",
                        path.display()
                    )));
                }
            }
            let space = Arc::clone(space);
            let durable = Durable::new(path, cluster, &options.file);
            let mut follower =
                Follower { database, storage, space, seq, lineage, tail, incoming: None, durable };
            follower.write(|follower, transaction| follower.lineage.save(transaction))?;
            follower.space.wait_for_room();
            Ok(follower)
        })
    }

    fn answer(&mut self, request: ToStandby, path: &Path, options: &StandbyOptions) -> Result<FromStandby> {
        if request.ask == StandbyAsk::Look {
            return Ok(self.state());
        }
        if request.epoch < self.lineage.promised {
            return Ok(FromStandby::Fenced(self.lineage.promised));
        }
        // What it cannot keep it does not take; the primary goes on without it, and comes back to it.
        let writes = !matches!(request.ask, StandbyAsk::State);
        if writes && !self.storage.room() {
            return Ok(FromStandby::Failed(self.space.refusal()));
        }
        self.promise(request.epoch)?;
        match request.ask {
            StandbyAsk::Look | StandbyAsk::State => {}
            StandbyAsk::Append { prev, entries } => {
                // Anything else is behind or ahead; the primary finds out from the answer.
                if prev == self.position() {
                    let entries = match self.read(&entries) {
                        Ok(entries) => entries,
                        Err(error) => return Ok(FromStandby::Failed(error)),
                    };
                    self.append(&entries)?;
                }
            }
            StandbyAsk::SnapshotBegin(head) => {
                self.incoming = None;
                // A snapshot that fails is another file, and no fault of the one in use.
                match Incoming::begin(path, options.file.cache_bytes, head) {
                    Ok(incoming) => self.incoming = Some(incoming),
                    Err(error) => return Ok(FromStandby::Failed(error)),
                }
            }
            StandbyAsk::SnapshotPiece { id, index, piece } => match &mut self.incoming {
                Some(incoming) if incoming.expects(id, index) => {
                    if let Err(error) = incoming.piece(&piece) {
                        self.incoming = None;
                        return Ok(FromStandby::Failed(error));
                    }
                }
                _ => return Ok(FromStandby::SnapshotLost),
            },
            StandbyAsk::SnapshotEnd { .. } => return Ok(FromStandby::SnapshotLost),
        }
        Ok(self.state())
    }

    /// Takes nothing from an epoch below this one any more.
    pub(super) fn promise(&mut self, epoch: Epoch) -> Result<()> {
        if epoch <= self.lineage.promised {
            return Ok(());
        }
        self.lineage.promised = epoch;
        self.write(|follower, transaction| follower.lineage.save(transaction))
    }

    /// Reads commits that follow the last one here, all of them before the first is done: bytes of a stranger
    /// are no damage of the file.
    fn read<'e>(&self, entries: &'e [Blob]) -> Result<Vec<(Entry<'static>, &'e [u8])>> {
        let mut read = Vec::with_capacity(entries.len());
        for (bytes, seq) in entries.iter().zip(self.seq + 1..) {
            let entry: Entry<'static> = wire::decode(&bytes.0)?;
            if entry.seq != seq || entry.epoch < self.lineage.epoch() {
                return Err(CatalogError::invalid("commits that do not follow each other"));
            }
            read.push((entry, bytes.0.as_slice()));
        }
        Ok(read)
    }

    fn append(&mut self, entries: &[(Entry<'static>, &[u8])]) -> Result<()> {
        let kept: Entries = entries.iter().map(|(entry, bytes)| (entry.seq, bytes.to_vec())).collect();
        let before = self.lineage.clone();
        self.write_commits(&kept, |follower, transaction| {
            let mut draft = table::Draft::open(transaction)?;
            let mut ledger = Ledger::open(transaction)?;
            for (entry, _) in entries {
                entry.apply(&mut draft, &mut ledger, &mut follower.lineage)?;
            }
            follower.tail.append(transaction, &kept)?;
            follower.seq += entries.len() as u64;
            file::seq_set(transaction, follower.seq)?;
            if follower.lineage != before { follower.lineage.save(transaction) } else { Ok(()) }
        })
    }

    /// One durable transaction.
    pub(super) fn write(
        &mut self,
        work: impl FnOnce(&mut Follower, &WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        self.write_commits(&Entries::new(), work)
    }

    /// One durable transaction that does these commits.
    fn write_commits(
        &mut self,
        entries: &Entries,
        work: impl FnOnce(&mut Follower, &WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.database.begin_write().map_err(file::failed)?;
        work(self, &transaction)?;
        self.durable.commit(transaction, entries)
    }

    fn position(&self) -> Position {
        self.lineage.position(self.seq)
    }

    fn state(&self) -> FromStandby {
        FromStandby::State(self.known())
    }

    pub(super) fn known(&self) -> StandbyState {
        StandbyState {
            position: self.position(),
            members: self.lineage.members.clone(),
            members_at: self.lineage.members_at,
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.durable.close(&self.database);
    }
}
