//! How a transaction becomes durable: its commits go to the [log](super::log), and the table's file follows when the log is nearly full and when the
//! catalog is closed.

use std::path::{Path, PathBuf};

use redb::{Database, Durability, WriteTransaction};
use stoker_format::ClusterId;

use super::log::{self, Log};
use super::space::is_full;
use super::tail::Entries;
use super::{EmbeddedOptions, file};
use crate::error::{CatalogError, ErrorKind, Result};

/// After so many commits without a log another one is tried.
const RETRY_COMMITS: u32 = 1_000;

/// The way to durability of one table.
#[derive(Debug)]
pub(super) struct Durable {
    table: PathBuf,
    cluster: ClusterId,
    log_bytes: u64,
    /// None before the first commit.
    log: Option<Log>,
    /// Commits to do without one, after none could be made.
    without: u32,
}

impl Durable {
    /// For a table that needs no log as it is.
    pub(super) fn new(table: &Path, cluster: ClusterId, options: &EmbeddedOptions) -> Durable {
        Durable { table: table.to_owned(), cluster, log_bytes: options.log_bytes, log: None, without: 0 }
    }

    /// Commits a transaction that did these, durable when this returns. One that did something else has none, and goes to the table's file.
    pub(super) fn commit(&mut self, mut transaction: WriteTransaction, entries: &Entries) -> Result<()> {
        if self.is_logged(entries)? && self.log.as_ref().is_some_and(|log| !log.is_nearly_full()) {
            set(&mut transaction, Durability::None)?;
            return transaction.commit().map_err(in_doubt);
        }
        set(&mut transaction, Durability::Immediate)?;
        match &mut self.log {
            Some(log) => {
                transaction.commit().map_err(in_doubt)?;
                // All that it has is in the table's file now.
                log.restart();
            }
            None if entries.is_empty() || self.without > 0 => {
                self.without = self.without.saturating_sub(1);
                transaction.commit().map_err(in_doubt)?;
            }
            None => {
                let log = self.begin(&transaction)?;
                transaction.commit().map_err(in_doubt)?;
                self.log = log;
            }
        }
        Ok(())
    }

    /// Whether the log has them.
    fn is_logged(&mut self, entries: &Entries) -> Result<bool> {
        let Some(log) = self.log.as_mut().filter(|log| !entries.is_empty() && log.fits(entries)) else {
            return Ok(false);
        };
        match log.append(entries) {
            Ok(()) => Ok(true),
            // What cannot allocate ahead can be full; the table waits for room.
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(log::failed(&error)),
        }
    }

    /// Makes a log, which the table then needs; none where there is no room for one.
    fn begin(&mut self, transaction: &WriteTransaction) -> Result<Option<Log>> {
        match Log::create(&self.table, self.cluster, self.log_bytes) {
            Ok(log) => {
                file::log_set(transaction, Some(log.id))?;
                Ok(Some(log))
            }
            Err(error) => {
                tracing::warn!(%error, "the catalog works without its log, which is slower");
                self.without = RETRY_COMMITS;
                Ok(None)
            }
        }
    }

    /// The table is not trusted any more: its file and its log stay as they are.
    pub(super) fn abandon(&mut self) {
        self.log = None;
    }

    /// Brings the table's file up to date; it needs no log then.
    pub(super) fn close(&mut self, database: &Database) {
        if self.log.take().is_none() {
            return;
        }
        let closed = super::guarded(|| {
            let mut transaction = database.begin_write().map_err(file::failed)?;
            set(&mut transaction, Durability::Immediate)?;
            file::log_set(&transaction, None)?;
            transaction.commit().map_err(file::failed)
        });
        match closed {
            // Nobody asks for it any more; one that stays is in nobody's way.
            Ok(()) => drop(std::fs::remove_file(log::path_of(&self.table))),
            Err(error) => tracing::warn!(
                %error,
                "the catalog's file was not brought up to date; the next start does it from the log"
            ),
        }
    }
}

fn set(transaction: &mut WriteTransaction, durability: Durability) -> Result<()> {
    transaction.set_durability(durability).map_err(|error| CatalogError::unavailable(error.to_string()))
}

fn in_doubt(error: redb::CommitError) -> CatalogError {
    match file::failed(error) {
        CatalogError { kind: ErrorKind::Corrupt, message } => CatalogError::corrupt(message),
        CatalogError { message, .. } => CatalogError::unknown(format!(
            "making a commit durable failed, and it may be there after a restart: {message}"
        )),
    }
}
