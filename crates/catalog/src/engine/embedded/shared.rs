//! What the writer's thread and the callers of a catalog share: whether it is sound, and what reads see.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadTransaction, ReadableDatabase};
use tokio::sync::watch;

use super::file;
use super::primary::Primary;
use super::standby::Members;
use crate::engine::watches::Watches;
use crate::epoch::Epoch;
use crate::error::{CatalogError, ErrorKind, Result};

/// What the writer's thread and the callers share.
pub(super) struct Shared {
    pub(super) watches: Watches,
    /// Why the file can no longer be trusted, once it cannot.
    poison: RwLock<Option<CatalogError>>,
    pub(super) view: RwLock<View>,
    /// Too few standbys answer.
    stalled: AtomicBool,
    pub(super) fenced_by: watch::Sender<Option<Epoch>>,
}

/// What reads see.
pub(super) enum View {
    /// Whatever is in the file.
    Latest,
    /// Nothing before the standbys confirmed what is in the file.
    Nothing,
    /// What they confirmed last.
    Confirmed { snapshot: Arc<ReadTransaction>, members: Members, alone: bool },
}

impl Shared {
    pub(super) fn new(view: View) -> Shared {
        Shared {
            watches: Watches::new(),
            poison: RwLock::new(None),
            view: RwLock::new(view),
            stalled: AtomicBool::new(false),
            fenced_by: watch::Sender::new(None),
        }
    }

    /// Fails if the file can no longer be trusted.
    pub(super) fn sound(&self) -> Result<()> {
        match &*self.poison.read().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn poison(&self, error: &CatalogError) {
        tracing::error!(%error, "the embedded catalog failed and stops until it is opened again");
        let kind = if error.kind == ErrorKind::Corrupt { ErrorKind::Corrupt } else { ErrorKind::Unavailable };
        let message = format!("stopped after a failure; restart the node: {}", error.message);
        self.stop(CatalogError::new(kind, message));
    }

    fn stop(&self, reason: CatalogError) {
        let mut poison = self.poison.write().unwrap_or_else(PoisonError::into_inner);
        poison.get_or_insert(reason);
    }

    /// Another epoch rules: nothing is read or written here any more.
    pub(super) fn fenced(&self, by: Epoch) {
        tracing::error!(%by, "this catalog was replaced and stops");
        self.stop(CatalogError::unavailable(format!("this catalog was replaced by epoch {by}")));
        self.fenced_by.send_replace(Some(by));
        self.watches.wake_all();
    }

    /// Fails while nothing can be acknowledged.
    pub(super) fn moving(&self) -> Result<()> {
        match self.is_stalled() {
            true => Err(CatalogError::stalled()),
            false => Ok(()),
        }
    }

    /// Whether nothing can be acknowledged.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    pub(super) fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Release);
    }

    /// Lets reads see what is in the file of a primary.
    pub(super) fn show(&self, database: &Database, primary: &Primary) -> Result<()> {
        let snapshot = Arc::new(database.begin_read().map_err(file::failed)?);
        let members = primary.lineage.members.clone();
        let view = View::Confirmed { snapshot, members, alone: primary.alone() };
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = view;
        Ok(())
    }

    /// Lets go of the snapshot, which keeps the file open.
    pub(super) fn view_close(&self) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*view, View::Confirmed { .. }) {
            *view = View::Latest;
        }
    }
}
