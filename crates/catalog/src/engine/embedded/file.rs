//! The file: created whole or not at all, opened only if it is ours, copied while in use.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{
    Builder, Database, DatabaseError, Durability, ReadTransaction, StorageError, TableDefinition, TableError,
    WriteTransaction,
};
use stoker_consensus::log_paths;
use stoker_format::ClusterId;

use super::entry::Entry;
use super::ledger::Ledger;
use super::lineage::{Lineage, Role};
use super::log::{self, LogId};
use super::space::Space;
use super::standby::TAIL_BYTES;
use super::storage::{Backend, Head, Storage};
use super::tail::{Entries, Tail};
use super::{EmbeddedOptions, guarded, table};
use crate::engine::apply::RowsMut;
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::kv::Row;
use crate::wire;

/// What the file says about itself.
pub(super) const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");
const META_CLUSTER: &str = "cluster";
const META_SCHEMA: &str = "schema";
const META_SEQ: &str = "seq";
const META_LOG: &str = "log";

/// The form of tables and rows that this program writes; raised when an older one could not read it.
const SCHEMA: u32 = 1;
/// The same, of a file that is not whole without its log: a program that knows no log must not take it for all there is.
const SCHEMA_LOGGED: u32 = 2;
/// The same, of a replica of a group, whose log is that of [`replica`](super::replica).
const SCHEMA_REPLICATED: u32 = 3;

/// A copy is written in transactions of about this many bytes.
const COPY_BYTES: usize = 16 << 20;

/// What to do about a file that is damaged.
const WAY_OUT: &str =
    "restore a backup, or rebuild the catalog from drives and lakes with `stoker catalog salvage`";

/// A file that is whole.
pub(super) struct Opened {
    pub database: Database,
    pub storage: Arc<Storage>,
    /// The number of its last commit.
    pub seq: u64,
}

/// What a file needs besides itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Nothing.
    Whole,
    /// A log in front of it.
    Logged(LogId),
    /// The log of a group, in which others are, too.
    Replicated,
}

/// Opens or creates the file.
///
/// Every page in use is checked before anything is read or written: a file that is damaged is refused and left as it is. What its log has is
/// done.
pub(super) fn open(
    path: &Path,
    cluster: ClusterId,
    options: &EmbeddedOptions,
    space: &Arc<Space>,
) -> Result<Opened> {
    let (mut opened, form) = open_table(path, cluster, options, space)?;
    match form {
        Form::Whole => {}
        Form::Logged(id) => {
            opened.seq = guarded(|| {
                let missing = log::read(path, cluster, id, opened.seq)?;
                replay(path, &opened.database, opened.seq, &missing)
            })?;
        }
        Form::Replicated => {
            return Err(CatalogError::foreign(format!(
                "{} is a replica of a group; it is opened as that",
                path.display()
            )));
        }
    }
    Ok(opened)
}

/// The same without what its log has; says what it needs.
pub(super) fn open_table(
    path: &Path,
    cluster: ClusterId,
    options: &EmbeddedOptions,
    space: &Arc<Space>,
) -> Result<(Opened, Form)> {
    let (opened, form) = open_draft(path, cluster, options, space)?;
    opened.storage.settle().map_err(|error| unreachable_file(path, &error))?;
    Ok((opened, form))
}

/// The same for who only reads: what is written stays in memory.
pub(super) fn open_draft(
    path: &Path,
    cluster: ClusterId,
    options: &EmbeddedOptions,
    space: &Arc<Space>,
) -> Result<(Opened, Form)> {
    let exists = path.try_exists().map_err(|error| unreachable_file(path, &error))?;
    if !exists {
        create(path, cluster)?;
    }
    guarded(|| {
        let storage = Storage::open_draft(path, space).map_err(|error| unreachable_file(path, &error))?;
        let before = storage.head().map_err(|error| unreachable_file(path, &error))?;
        let before = before
            .ok_or_else(|| damaged(format!("{} is shorter than the head of a catalog", path.display())))?;
        let mut database = Builder::new()
            .set_cache_size(options.cache_bytes)
            .create_with_backend(Backend(Arc::clone(&storage)))
            .map_err(|error| not_opened(path, error))?;
        verify(path, &mut database, &storage, &before)?;
        let (seq, form) = header_check(path, &database, cluster)?;
        Ok((Opened { database, storage, seq }, form))
    })
}

/// Fails if a page of a file that was closed is not what was written.
///
/// A file that was not closed needs nothing here: recovering from a crash checks every page.
fn verify(path: &Path, database: &mut Database, storage: &Storage, before: &Head) -> Result<()> {
    if !before.clean {
        return Ok(());
    }
    let whole = database.check_integrity().map_err(|error| not_opened(path, error))?;
    let after = storage.head().map_err(|error| unreachable_file(path, &error))?;
    // The store may find the state before the last one whole, and would go on from there.
    if !before.is_last() || !after.is_some_and(|after| after.same_rows(before)) {
        return Err(damaged(format!("{} is damaged: its last commit is not whole", path.display())));
    }
    if !whole {
        tracing::warn!(path = %path.display(), "the catalog's list of free pages was wrong and was made anew");
    }
    Ok(())
}

/// The number of the last commit in a snapshot.
pub(super) fn seq(snapshot: &ReadTransaction) -> Result<u64> {
    let meta = snapshot.open_table(META).map_err(failed)?;
    let stored = meta.get(META_SEQ).map_err(failed)?;
    let bytes = stored.as_ref().and_then(|stored| stored.value().try_into().ok());
    bytes.map(u64::from_le_bytes).ok_or_else(|| damaged("the file does not know its last commit"))
}

/// Does what the log has and the table has not; gives the number of the last commit.
fn replay(path: &Path, database: &Database, seq: u64, entries: &Entries) -> Result<u64> {
    let snapshot = redb::ReadableDatabase::begin_read(database).map_err(failed)?;
    let mut lineage = Lineage::load(&snapshot)?;
    let (before, mut tail) = (lineage.clone(), Tail::load(&snapshot, seq, TAIL_BYTES)?);
    drop(snapshot);
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut draft = table::Draft::open(&transaction)?;
        let mut ledger = Ledger::open(&transaction)?;
        for (_, bytes) in entries {
            let entry: Entry<'static> = wire::decode(bytes).map_err(|error| {
                damaged(format!("the log of {} has a commit that cannot be read: {error}", path.display()))
            })?;
            entry.apply(&mut draft, &mut ledger, &mut lineage)?;
        }
    }
    match lineage.members.known().next() {
        Some(_) => tail.append(&transaction, entries)?,
        None => tail.skip(),
    }
    if lineage != before {
        lineage.save(&transaction)?;
    }
    let seq = entries.last().map_or(seq, |(seq, _)| *seq);
    seq_set(&transaction, seq)?;
    log_set(&transaction, None)?;
    transaction.commit().map_err(failed)?;
    // Nobody asks for it any more; one that stays is in nobody's way.
    let _ = std::fs::remove_file(log::path_of(path));
    tracing::info!(path = %path.display(), commits = entries.len(), "the catalog's file was brought up to date from its log");
    Ok(seq)
}

/// Says which log the file needs besides, if any.
pub(super) fn log_set(transaction: &WriteTransaction, log: Option<LogId>) -> Result<()> {
    let mut meta = transaction.open_table(META).map_err(failed)?;
    let schema = if log.is_some() { SCHEMA_LOGGED } else { SCHEMA };
    meta.insert(META_SCHEMA, schema.to_le_bytes().as_slice()).map_err(failed)?;
    match log {
        Some(LogId(id)) => meta.insert(META_LOG, id.as_slice()).map(drop),
        None => meta.remove(META_LOG).map(drop),
    }
    .map_err(failed)
}

/// Says that the file is a replica of a group from now on.
pub(super) fn replicated_set(transaction: &WriteTransaction) -> Result<()> {
    let mut meta = transaction.open_table(META).map_err(failed)?;
    meta.insert(META_SCHEMA, SCHEMA_REPLICATED.to_le_bytes().as_slice()).map(drop).map_err(failed)?;
    meta.remove(META_LOG).map(drop).map_err(failed)
}

/// Sets the number of the last commit.
pub(super) fn seq_set(transaction: &WriteTransaction, seq: u64) -> Result<()> {
    let mut meta = transaction.open_table(META).map_err(failed)?;
    meta.insert(META_SEQ, seq.to_le_bytes().as_slice()).map_err(failed)?;
    Ok(())
}

/// Writes the rows of a snapshot to a new file.
pub(super) fn copy(snapshot: &ReadTransaction, to: &Path, cluster: ClusterId) -> Result<()> {
    place(to, |database| {
        let seq = seq(snapshot)?;
        header_write(database, cluster, seq)?;
        let rows = table::Snapshot::open(snapshot)?;
        let mut rows = rows.all()?.peekable();
        while rows.peek().is_some() {
            let mut transaction = database.begin_write().map_err(failed)?;
            // The last transaction, in `place`, makes all of them durable.
            transaction
                .set_durability(Durability::None)
                .map_err(|error| CatalogError::unavailable(error.to_string()))?;
            let mut draft = table::Draft::open(&transaction)?;
            let mut bytes = 0;
            for row in rows.by_ref() {
                let row = row?;
                bytes += row.key.len() + row.value.len();
                draft.put(&row.key, &row.value, row.seq)?;
                if bytes >= COPY_BYTES {
                    break;
                }
            }
            drop(draft);
            transaction.commit().map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Where the history of a new file begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The number of its last commit; the next one is higher.
    pub seq: u64,
    /// The epoch that rules from then on; none for a file that never met another node.
    pub epoch: Option<Epoch>,
}

/// Makes a catalog of these rows, which come in the order of their keys and keep their numbers. It is there whole or not
/// at all.
///
/// Fails with `Invalid` if there is a file.
pub fn build(
    path: &Path,
    cluster: ClusterId,
    origin: Origin,
    mut next: impl FnMut() -> Result<Option<Vec<Row>>>,
) -> Result<()> {
    place(path, |database| {
        header_write(database, cluster, origin.seq)?;
        if let Some(epoch) = origin.epoch {
            let transaction = database.begin_write().map_err(failed)?;
            let mut lineage = Lineage::new(Role::Primary);
            lineage.begin(epoch, origin.seq);
            lineage.save(&transaction)?;
            transaction.commit().map_err(failed)?;
        }
        while let Some(rows) = next()? {
            let mut transaction = database.begin_write().map_err(failed)?;
            // The last transaction, in `place`, makes all of them durable.
            transaction
                .set_durability(Durability::None)
                .map_err(|error| CatalogError::unavailable(error.to_string()))?;
            let mut draft = table::Draft::open(&transaction)?;
            rows.iter().try_for_each(|row| draft.put(&row.key, &row.value, row.seq))?;
            drop(draft);
            transaction.commit().map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Creates an empty catalog.
pub(super) fn create(path: &Path, cluster: ClusterId) -> Result<()> {
    match place(path, |database| header_write(database, cluster, 0)) {
        // Somebody was faster; what they made is looked at next.
        Err(PlaceError::Exists) => Ok(()),
        other => other.map_err(CatalogError::from),
    }
}

/// Why a new file is not in its place.
enum PlaceError {
    Exists,
    Failed(CatalogError),
}

impl From<CatalogError> for PlaceError {
    fn from(error: CatalogError) -> PlaceError {
        PlaceError::Failed(error)
    }
}

impl From<PlaceError> for CatalogError {
    fn from(error: PlaceError) -> CatalogError {
        match error {
            PlaceError::Exists => {
                CatalogError::invalid("there is a file of this name; choose another or remove it")
            }
            PlaceError::Failed(error) => error,
        }
    }
}

/// Makes a file under another name and gives it its own once it is whole, so that a crash in between leaves
/// no half of one. Never replaces a file.
fn place(path: &Path, fill: impl FnOnce(&Database) -> Result<()>) -> std::result::Result<(), PlaceError> {
    if path.try_exists().map_err(|error| unreachable_file(path, &error))? {
        return Err(PlaceError::Exists);
    }
    let draft = draft_path(path);
    let made = guarded(|| {
        let database = create_empty(&draft, Builder::new())?;
        fill(&database)?;
        let transaction = database.begin_write().map_err(failed)?;
        table::Draft::open(&transaction)?;
        transaction.commit().map_err(failed)
    });
    let placed = made.map_err(PlaceError::Failed).and_then(|()| {
        let sync = || File::open(&draft)?.sync_all();
        sync().map_err(|error| unreachable_file(&draft, &error))?;
        match std::fs::hard_link(&draft, path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(PlaceError::Exists),
            Err(error) => Err(PlaceError::Failed(unreachable_file(path, &error))),
        }
    });
    let removed = std::fs::remove_file(&draft);
    placed?;
    removed.map_err(|error| unreachable_file(&draft, &error))?;
    folder_sync(path).map_err(PlaceError::Failed)
}

/// A new store in a new file, which only its owner can read.
pub(super) fn create_empty(path: &Path, builder: Builder) -> Result<Database> {
    let storage = Storage::create(path).map_err(|error| unreachable_file(path, &error))?;
    builder.create_with_backend(Backend(storage)).map_err(|error| not_opened(path, error))
}

/// Makes the names beside this one durable.
pub(super) fn folder_sync(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let sync = || File::open(folder)?.sync_all();
    sync().map_err(|error| unreachable_file(folder, &error))
}

/// Gives a file another name next to it, where none is; nothing is ever deleted. Gives that name.
pub fn put_aside(path: &Path) -> Result<PathBuf> {
    for number in 0u32.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".aside.{number}"));
        let aside = PathBuf::from(name);
        match std::fs::hard_link(path, &aside) {
            Ok(()) => {
                // A crash in between leaves both under both names.
                log::link(path, &aside)?;
                std::fs::remove_file(path).map_err(|error| unreachable_file(path, &error))?;
                folder_sync(path)?;
                // Logs have their other names; one that stays is put aside when the next one is made.
                log_paths(path).iter().for_each(|log| drop(std::fs::remove_file(log)));
                return Ok(aside);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unreachable_file(&aside, &error)),
        }
    }
    Err(CatalogError::unavailable(format!("no name is free beside {}", path.display())))
}

/// A name next to `path` that no other draft has, in this process or another.
fn draft_path(path: &Path) -> PathBuf {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".draft.{}.{}", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)));
    let draft = PathBuf::from(name);
    // Left by a process that was killed and had the same number.
    let _ = std::fs::remove_file(&draft);
    draft
}

/// Says whose file it is and how far it is.
pub(super) fn header_write(database: &Database, cluster: ClusterId, seq: u64) -> Result<()> {
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut meta = transaction.open_table(META).map_err(failed)?;
        meta.insert(META_CLUSTER, cluster.0.as_slice()).map_err(failed)?;
        meta.insert(META_SCHEMA, SCHEMA.to_le_bytes().as_slice()).map_err(failed)?;
    }
    seq_set(&transaction, seq)?;
    transaction.commit().map_err(failed)
}

/// Fails if the file is not one of this cluster and version; gives the number of its last commit, and the log that it needs besides.
fn header_check(path: &Path, database: &Database, cluster: ClusterId) -> Result<(u64, Form)> {
    let snapshot = redb::ReadableDatabase::begin_read(database).map_err(failed)?;
    let meta = snapshot.open_table(META).map_err(|error| match error {
        TableError::Storage(error) => failed(error),
        error => CatalogError::foreign(format!("{} is not a catalog of Stoker: {error}", path.display())),
    })?;
    let schema = meta.get(META_SCHEMA).map_err(failed)?;
    let schema = schema.and_then(|stored| stored.value().try_into().ok().map(u32::from_le_bytes));
    let form = match schema {
        Some(SCHEMA) => Form::Whole,
        Some(SCHEMA_REPLICATED) => Form::Replicated,
        Some(SCHEMA_LOGGED) => {
            let id = meta.get(META_LOG).map_err(failed)?;
            let id = id.and_then(|stored| stored.value().try_into().ok().map(LogId));
            Form::Logged(id.ok_or_else(|| damaged(format!("{} does not say its log", path.display())))?)
        }
        Some(schema) if schema > SCHEMA_REPLICATED => {
            return Err(CatalogError::foreign(format!(
                "{} has schema {schema} and this program knows up to {SCHEMA_REPLICATED}; update the program",
                path.display()
            )));
        }
        _ => return Err(damaged(format!("{} does not say its schema", path.display()))),
    };
    let found = meta.get(META_CLUSTER).map_err(failed)?;
    let found = found.and_then(|stored| stored.value().try_into().ok().map(ClusterId));
    match found {
        Some(found) if found == cluster => Ok((seq(&snapshot)?, form)),
        Some(found) => Err(CatalogError::foreign(format!(
            "{} belongs to cluster {found}, not to {cluster}; check the path and the cluster's id",
            path.display()
        ))),
        None => Err(damaged(format!("{} does not say its cluster", path.display()))),
    }
}

/// What an error of the store means to a caller, when nothing was made durable.
pub(super) fn failed(error: impl Into<redb::Error>) -> CatalogError {
    match error.into() {
        redb::Error::DatabaseClosed => CatalogError::closed(),
        redb::Error::Io(error) if is_damage(&error) => {
            damaged(format!("the catalog's file is damaged: {error}"))
        }
        redb::Error::Io(error) => CatalogError::unavailable(format!("the catalog's file failed: {error}")),
        redb::Error::PreviousIo => {
            CatalogError::unavailable("the catalog's file failed before; restart the node")
        }
        redb::Error::Corrupted(words) => damaged(format!("the catalog's file is damaged: {words}")),
        error @ (redb::Error::TableTypeMismatch { .. } | redb::Error::TableDoesNotExist(_)) => {
            damaged(format!("the catalog's file lacks a table: {error}"))
        }
        error => CatalogError::unavailable(format!("the catalog's file failed: {error}")),
    }
}

pub(super) fn not_opened(path: &Path, error: DatabaseError) -> CatalogError {
    let path = path.display();
    match error {
        DatabaseError::DatabaseAlreadyOpen => CatalogError::unavailable(format!(
            "{path} is in use by another process, perhaps a node that still runs; stop it first"
        )),
        DatabaseError::UpgradeRequired(version) => CatalogError::foreign(format!(
            "{path} has file format {version}, which this program cannot read; use the program that wrote it, \
             or, if this one did, {WAY_OUT}"
        )),
        DatabaseError::Storage(StorageError::Io(error)) if !is_damage(&error) => {
            CatalogError::unavailable(format!("cannot open {path}: {error}"))
        }
        error => damaged(format!("{path} is damaged or not a catalog: {error}")),
    }
}

/// Stored bytes are not what was written.
pub(super) fn damaged(what: impl std::fmt::Display) -> CatalogError {
    CatalogError::corrupt(format!("{what}; {WAY_OUT}"))
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

pub(super) fn unreachable_file(path: &Path, error: &io::Error) -> CatalogError {
    CatalogError::unavailable(format!("cannot use {}: {error}", path.display()))
}
