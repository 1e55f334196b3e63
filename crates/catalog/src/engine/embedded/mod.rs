//! A catalog in one file of this machine.
//!
//! [`file`] opens, creates and copies the file. [`table`] gives its rows their form. [`writer`] is the one
//! thread that changes it; commits that wait for it share a flush. Reads are snapshots, taken where the
//! caller runs.
//!
//! A failed write or flush poisons the catalog: nothing is read or written any more until it is opened
//! again, because a snapshot from before could deny a commit that the file holds.

mod file;
mod table;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use redb::{Database, ReadTransaction, ReadableDatabase};
use stoker_format::ClusterId;
use tokio::sync::oneshot;

use self::writer::Writer;
use super::apply;
use super::watches::Watches;
use crate::error::{CatalogError, ErrorKind, Result};
use crate::kv::{self, BoxFuture, Catalog, Commit, Outcome, Page, Range, Row, Watch};

/// Settings of an embedded catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Most memory that cached pages take.
    pub cache_bytes: usize,
    /// Check every page when opening. Takes as long as reading the file.
    pub verify: bool,
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions { cache_bytes: 256 << 20, verify: false }
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
}

/// What the writer's thread and the callers share.
struct Shared {
    watches: Watches,
    /// Why the file can no longer be trusted, once it cannot.
    poison: RwLock<Option<CatalogError>>,
}

impl Shared {
    /// Fails if the file can no longer be trusted.
    fn sound(&self) -> Result<()> {
        match &*self.poison.read().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn poison(&self, error: &CatalogError) {
        tracing::error!(%error, "the embedded catalog failed and stops until it is opened again");
        let mut poison = self.poison.write().unwrap_or_else(PoisonError::into_inner);
        let kind = if error.kind == ErrorKind::Corrupt { ErrorKind::Corrupt } else { ErrorKind::Unavailable };
        poison.get_or_insert_with(|| {
            CatalogError::new(kind, format!("stopped after a failure; restart the node: {}", error.message))
        });
    }
}

impl Embedded {
    /// Opens the catalog at `path`, or creates it there if there is nothing.
    ///
    /// Fails with `Foreign` for a file of another cluster or of a newer version, with `Corrupt` for a
    /// damaged one, and with `Unavailable` while another process has it open.
    pub fn open(path: &Path, cluster: ClusterId, options: &EmbeddedOptions) -> Result<Embedded> {
        let (database, seq) = file::open(path, cluster, options)?;
        let database = Arc::new(database);
        let shared = Arc::new(Shared { watches: Watches::new(), poison: RwLock::new(None) });
        let writer = Writer::start(Arc::clone(&database), Arc::clone(&shared), seq)?;
        Ok(Embedded { path: path.to_owned(), cluster, database: RwLock::new(Some(database)), writer, shared })
    }

    /// Finishes the commits that wait, ends every watch and lets go of the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.shared.watches.close();
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
    fn snapshot(&self) -> Result<ReadTransaction> {
        self.shared.sound()?;
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = database.as_ref().ok_or_else(CatalogError::closed)?;
        database.begin_read().map_err(file::failed)
    }

    fn rows(&self, keys: &[&[u8]]) -> Result<Vec<Option<Row>>> {
        kv::keys_validate(keys)?;
        guarded(|| {
            let rows = table::Snapshot::open(&self.snapshot()?)?;
            keys.iter().map(|key| rows.row(key)).collect()
        })
    }

    fn page(&self, range: &Range) -> Result<Page> {
        range.validate()?;
        guarded(|| table::Snapshot::open(&self.snapshot()?)?.page(range))
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
            self.writer.commit(commit).await
        })
    }

    fn watch(&self, prefix: Vec<u8>) -> Watch {
        self.shared.watches.watch(prefix)
    }

    fn seq(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { guarded(|| file::seq(&self.snapshot()?)) })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { Ok(now_ms()) })
    }

    fn describe(&self) -> String {
        format!("embedded, {}", self.path.display())
    }
}

/// Turns a panic of the store over damaged bytes into an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What the closure borrows is a transaction that ends here, so nothing half-done is seen later.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Err(CatalogError::corrupt(format!(
            "the catalog's file is damaged ({words}); restore a backup or rebuild it from the rings"
        )))
    })
}

#[expect(clippy::disallowed_methods, reason = "this machine's clock is the clock of an embedded catalog")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
