//! A catalog in one file of this machine, with copies on other nodes if it has [`standby`]s.
//!
//! [`file`] opens, creates and copies the file, whose bytes go through [`storage`]. [`table`] gives its rows their form. [`worker`] is the one
//! thread that changes it, [`writer`] the way to it; commits that wait for it share a flush, which is one of the [`log`] in front of the table;
//! [`durable`] decides when the table goes to its file. Reads are snapshots, taken where the
//! caller runs. [`ledger`] remembers which commits of other nodes were done.
//!
//! A catalog with standbys is a [`primary`]: [`lineage`] says in which epoch it writes and who follows it,
//! [`entry`] is a commit as it is sent, [`tail`] keeps the last of them. Its reads see what is confirmed.
//!
//! A file system that is full refuses commits, see [`space`]. Any other failure of a write or flush poisons the catalog:
//! nothing is read or written any more until it is opened again, because a snapshot from before could deny a commit
//! that the file holds.

mod durable;
mod entry;
mod execute;
mod file;
mod ledger;
mod lineage;
mod log;
mod pieces;
mod primary;
mod replica;
mod shared;
mod space;
mod standby;
mod storage;
mod table;
mod tail;
mod worker;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{Database, ReadTransaction, ReadableDatabase};
use stoker_format::{ClusterId, NodeId};
use tokio::sync::{oneshot, watch};

pub use self::file::{Origin, build, put_aside};
pub use self::lineage::{Position, Role};
pub use self::primary::{PrimaryOptions, Replication};
pub use self::replica::{
    Beginning, ReplicaMember, ReplicaProgress, ReplicaStanding, ReplicaWays, ReplicatedCatalog,
};
pub use self::standby::{
    CatalogFile, PromoteOptions, Promotion, STANDBYS_MAX, Standby, StandbyOptions, StandbyReport,
    StandbyStatus, WhenAlone, inspect, promote, read_file, read_table,
};

pub(crate) use self::ledger::CommitName;

use self::durable::Durable;
use self::file::Opened;
use self::primary::Primary;
use self::shared::{Shared, View};
use self::space::{Room, Space};
use self::standby::{Link, Members, Peers};
use self::storage::Storage;
use self::writer::{Place, Serves, Work, Writer};
use super::apply;
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::kv::{self, BoxFuture, Catalog, Commit, Health, Outcome, Page, Range, Row, Snapshot, Watch};
use crate::wire::Wire;

/// Settings of an embedded catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Most memory that cached pages take.
    pub cache_bytes: usize,
    /// Bytes behind the last one in use that are kept allocated, so that a file system that is full refuses commits
    /// instead of breaking one. Up to twice as many are taken.
    pub reserve_bytes: u64,
    /// Bytes of the log in front of the table; whenever it is full, the table goes to its file.
    pub log_bytes: u64,
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions { cache_bytes: 256 << 20, reserve_bytes: 16 << 20, log_bytes: 32 << 20 }
    }
}

/// A catalog in one file of this machine.
///
/// Dropping it finishes the commits that wait, like [`close`](Embedded::close) does.
pub struct Embedded {
    path: PathBuf,
    cluster: ClusterId,
    /// `None` once closed.
    database: RwLock<Option<Arc<Database>>>,
    writer: Writer,
    shared: Arc<Shared>,
    storage: Arc<Storage>,
    space: Arc<Space>,
    /// Only of a primary.
    serving: Option<Serving>,
}

/// What a primary needs besides its writer.
struct Serving {
    epoch: Epoch,
    peers: Arc<Peers>,
}

impl Embedded {
    /// Opens the catalog at `path`, or creates it there if there is nothing.
    ///
    /// Fails with `Foreign` for a file of another cluster or of a newer version, and for one that has or is a
    /// standby, with `Corrupt` for a damaged one, and with `Unavailable` while another process has it open.
    pub fn open(path: &Path, cluster: ClusterId, options: &EmbeddedOptions) -> Result<Embedded> {
        let space = Arc::new(Space::new(path, options.reserve_bytes));
        let Opened { database, storage, seq } = file::open(path, cluster, options, &space)?;
        let epoch = guarded(|| primary::alone_check(&database.begin_read().map_err(file::failed)?))?;
        let database = Arc::new(database);
        let shared = Arc::new(Shared::new(View::Latest));
        let place = Place {
            database: Arc::clone(&database),
            storage: Arc::clone(&storage),
            space: Arc::clone(&space),
            durable: Durable::new(path, cluster, options),
        };
        let writer = Writer::start(place, Arc::clone(&shared), seq, Serves::Alone(epoch))?;
        let (path, database) = (path.to_owned(), RwLock::new(Some(database)));
        Ok(Embedded { path, cluster, database, writer, shared, storage, space, serving: None })
    }

    /// Opens the catalog at `path` as one that serves other nodes and may have standbys, in a new epoch.
    ///
    /// Fails like [`open`](Embedded::open), and with `Foreign` if it was replaced by a higher epoch. If it has
    /// standbys, it can be read once they confirmed what is in its file.
    pub fn open_primary(
        path: &Path,
        cluster: ClusterId,
        options: &EmbeddedOptions,
        serve: &PrimaryOptions,
    ) -> Result<Embedded> {
        let space = Arc::new(Space::new(path, options.reserve_bytes));
        let Opened { database, storage, seq } = file::open(path, cluster, options, &space)?;
        let primary = guarded(|| {
            let snapshot = database.begin_read().map_err(file::failed)?;
            primary::primary_check(&snapshot)?;
            let mut primary = Primary::load(&snapshot, seq, serve)?;
            drop(snapshot);
            let transaction = database.begin_write().map_err(file::failed)?;
            primary.begin(&transaction, seq)?;
            transaction.commit().map_err(file::failed)?;
            Ok(primary)
        })?;
        let shared = Arc::new(Shared::new(View::Nothing));
        if primary.ready(seq) {
            shared.show(&database, &primary)?;
        }
        let serving = Serving { epoch: primary.lineage.epoch(), peers: Arc::clone(&primary.peers) };
        let database = Arc::new(database);
        let place = Place {
            database: Arc::clone(&database),
            storage: Arc::clone(&storage),
            space: Arc::clone(&space),
            durable: Durable::new(path, cluster, options),
        };
        let writer = Writer::start(place, Arc::clone(&shared), seq, Serves::Primary(Box::new(primary)))?;
        let (path, database) = (path.to_owned(), RwLock::new(Some(database)));
        Ok(Embedded { path, cluster, database, writer, shared, storage, space, serving: Some(serving) })
    }

    /// Lets a standby follow this primary over `way`; one of the same node is replaced.
    ///
    /// It is in sync, and waited for, once it has caught up. Must be called inside a runtime.
    pub fn attach(&self, standby: NodeId, way: Arc<dyn Wire>) -> Result<()> {
        let serving = self.serving()?;
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = Arc::downgrade(database.as_ref().ok_or_else(CatalogError::closed)?);
        let link = Link {
            node: standby,
            wire: way,
            peers: Arc::clone(&serving.peers),
            database,
            epoch: serving.epoch,
            joinable: Box::new(self.writer.joiner()),
        };
        serving.peers.attach(standby, |start| {
            tokio::spawn(async move {
                // It looks for itself among the standbys, so it must be one of them first.
                if start.await.is_ok() {
                    link.run().await;
                }
            })
        });
        Ok(())
    }

    /// Lets a standby go for good: it is waited for no longer and must not be promoted.
    pub async fn detach(&self, standby: NodeId) -> Result<()> {
        self.serving()?;
        self.writer.detach(standby).await
    }

    /// Standbys of which one has to confirm before anything is read or acknowledged, as this file records them.
    pub fn known_standbys(&self) -> Vec<NodeId> {
        self.serving.as_ref().map_or_else(Vec::new, |serving| serving.peers.known())
    }

    /// How it stands with the standbys; `None` if this is not a primary.
    pub fn replication(&self) -> Option<Replication> {
        let serving = self.serving.as_ref()?;
        let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
        let (members, alone) = match &*view {
            View::Confirmed { members, alone, .. } => (members.clone(), *alone),
            View::Latest | View::Nothing => (Members::default(), false),
        };
        Some(Replication {
            epoch: serving.epoch,
            alone,
            stalled: self.shared.is_stalled(),
            standbys: serving.peers.statuses(&members),
        })
    }

    /// The epoch in which this catalog serves; `None` if it is not a primary.
    pub fn epoch(&self) -> Option<Epoch> {
        self.serving.as_ref().map(|serving| serving.epoch)
    }

    /// Stops this primary for good because a higher epoch rules; one that is not higher changes nothing.
    pub fn fence(&self, by: Epoch) {
        let Some(serving) = self.serving.as_ref().filter(|serving| by > serving.epoch) else { return };
        serving.peers.fence(by);
        self.writer.fence(by);
    }

    /// Tells when a higher epoch stopped this primary.
    pub fn fenced(&self) -> watch::Receiver<Option<Epoch>> {
        self.shared.fenced_by.subscribe()
    }

    fn serving(&self) -> Result<&Serving> {
        self.serving.as_ref().ok_or_else(|| CatalogError::invalid("this catalog is not a primary"))
    }

    /// Finishes the commits that wait, ends every watch and lets go of the file.
    pub async fn close(&self) {
        self.writer.close().await;
        if let Some(serving) = &self.serving {
            for link in serving.peers.close() {
                // It was told to stop; what it was about to say is of no interest.
                let _ = link.await;
            }
        }
        self.shared.watches.close();
        self.shared.view_close();
        self.database.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Writes a copy of one consistent state to a new file, while the catalog works on.
    ///
    /// The copy opens as a catalog of the same cluster. Fails with `Invalid` if `to` exists.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        let snapshot = self.snapshot()?;
        let (to, cluster) = (to.to_owned(), self.cluster);
        let (answer, answered) = oneshot::channel();
        // A thread of its own: a copy takes long, and a snapshot must not hold up anybody else.
        std::thread::Builder::new()
            .name("catalog-backup".into())
            .spawn(move || {
                let result = guarded(|| file::copy(&snapshot, &to, cluster));
                // Nobody may be waiting any more.
                let _ = answer.send(result);
            })
            .map_err(|error| CatalogError::unavailable(format!("cannot start a thread: {error}")))?;
        answered.await.unwrap_or_else(|_| Err(CatalogError::unavailable("the backup ended without a result")))
    }

    /// A consistent state that holds every acknowledged commit.
    fn snapshot(&self) -> Result<Arc<ReadTransaction>> {
        self.shared.sound()?;
        match &*self.shared.view.read().unwrap_or_else(PoisonError::into_inner) {
            View::Latest => {}
            View::Confirmed { snapshot, .. } => return Ok(Arc::clone(snapshot)),
            View::Nothing => {
                return Err(CatalogError::unavailable("the catalog waits for its standbys"));
            }
        }
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or_else(CatalogError::closed)?;
        database.begin_read().map(Arc::new).map_err(file::failed)
    }

    fn rows(&self, keys: &[&[u8]]) -> Result<Vec<Option<Row>>> {
        kv::keys_validate(keys)?;
        guarded(|| {
            let rows = table::Snapshot::open(&*self.snapshot()?)?;
            keys.iter().map(|key| rows.row(key)).collect()
        })
    }

    fn page(&self, range: &Range) -> Result<Page> {
        range.validate()?;
        guarded(|| table::Snapshot::open(&*self.snapshot()?)?.page(range))
    }

    /// A commit without writes needs no writer: its checks hold in a snapshot or they do not.
    fn validate(&self, commit: &Commit) -> Result<Outcome> {
        guarded(|| {
            let snapshot = self.snapshot()?;
            let rows = table::Snapshot::open(&snapshot)?;
            match apply::check_failed(&rows, &commit.checks)? {
                Some(check) => Ok(Outcome::Failed { check }),
                None => Ok(Outcome::Done { seq: file::seq(&snapshot)? }),
            }
        })
    }
}

/// A catalog that remembers, beside its rows, which commits it did: one that is sent twice is done once, whoever serves by then.
pub(crate) trait Lasting: Catalog {
    /// Makes a client known, whose commits have names.
    fn client_open(&self, client: u128) -> BoxFuture<'_, Result<()>>;

    /// Does a commit if none of its name was done; `None` if its client is not known.
    fn commit_once(&self, commit: Commit, name: CommitName) -> BoxFuture<'_, Result<Option<Outcome>>>;

    /// A higher epoch rules: nothing is to be read or written here any more.
    fn fence(&self, _by: Epoch) {}
}

impl Lasting for Embedded {
    fn client_open(&self, client: u128) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.writer.work(Work::ClientOpen(client)).await.map(drop) })
    }

    fn commit_once(&self, commit: Commit, name: CommitName) -> BoxFuture<'_, Result<Option<Outcome>>> {
        Box::pin(async move {
            commit.validate()?;
            if commit.writes.is_empty() {
                return self.validate(&commit).map(Some);
            }
            self.writer.work(Work::Commit(commit, Some(name))).await
        })
    }

    fn fence(&self, by: Epoch) {
        Embedded::fence(self, by);
    }
}

impl Catalog for Embedded {
    fn get<'a>(&'a self, keys: &'a [&'a [u8]]) -> BoxFuture<'a, Result<Vec<Option<Row>>>> {
        Box::pin(async move { self.rows(keys) })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<Page>> {
        Box::pin(async move { self.page(&range) })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Outcome>> {
        Box::pin(async move {
            commit.validate()?;
            if commit.writes.is_empty() {
                return self.validate(&commit);
            }
            let outcome = self.writer.work(Work::Commit(commit, None)).await?;
            outcome.ok_or_else(|| CatalogError::unavailable("a commit without a name has no client"))
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.shared.watches.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { guarded(|| file::seq(&*self.snapshot()?)) })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { Ok(now_ms()) })
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Snapshot>>> {
        Box::pin(async move {
            let transaction = self.snapshot()?;
            let seq = guarded(|| file::seq(&transaction))?;
            Ok(Box::new(State { transaction, seq, _database: None }) as Box<dyn Snapshot>)
        })
    }

    fn describe(&self) -> String {
        format!("embedded, {}", self.path.display())
    }

    fn health(&self) -> Health {
        if let (Err(error), true) = (self.shared.sound(), self.shared.fenced_by.borrow().is_none()) {
            return Health::Failed(error.message);
        }
        if self.shared.is_stalled() {
            return Health::Stalled;
        }
        // Nobody may commit for hours; that there is room again is found out here.
        match self.space.get() == Room::Free || self.storage.room() {
            true => Health::Good,
            false => Health::ReadOnly(self.space.reason()),
        }
    }
}

/// One state of the file.
struct State {
    transaction: Arc<ReadTransaction>,
    seq: u64,
    /// Kept open, if nobody else does.
    _database: Option<Database>,
}

impl Snapshot for State {
    fn seq(&self) -> u64 {
        self.seq
    }

    fn page<'a>(&'a self, after: Option<&'a [u8]>) -> BoxFuture<'a, Result<Page>> {
        let range = kv::snapshot_range(after);
        Box::pin(async move { guarded(|| table::Snapshot::open(&self.transaction)?.page(&range)) })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.space.give_up();
        // The writer must not wait for standbys whose links are gone.
        self.serving.iter().for_each(|serving| drop(serving.peers.close()));
    }
}

/// Turns a panic of the store over damaged bytes into an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What the closure borrows is a transaction that ends here, so nothing half-done is seen later.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Err(file::damaged(format!("the catalog's file is damaged: {words}")))
    })
}

#[expect(clippy::disallowed_methods, reason = "this machine's clock is the clock of an embedded catalog")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
