//! A snapshot on its way in: a file of its own until it is whole, then the standby's file.

use std::fs::File;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, Durability, WriteTransaction};
use stoker_format::ClusterId;

use super::message::SnapshotHead;
use crate::engine::embedded::ledger::Ledger;
use crate::engine::embedded::pieces::Piece;
use crate::engine::embedded::{file, table};
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};

/// A snapshot of which some pieces are here.
pub(super) struct Incoming {
    head: SnapshotHead,
    pieces: u64,
    draft: PathBuf,
    database: Database,
}

impl Incoming {
    /// Begins a snapshot that will take the place of `path`.
    pub(super) fn begin(path: &Path, cache_bytes: usize, head: SnapshotHead) -> Result<Incoming> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".incoming");
        let draft = PathBuf::from(draft);
        // Half of one that was broken off.
        let _ = std::fs::remove_file(&draft);
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes);
        let database = file::create_empty(&draft, builder)?;
        let incoming = Incoming { head, pieces: 0, draft, database };
        incoming.write(Durability::None, |transaction| {
            table::Draft::open(transaction)?;
            Ledger::open(transaction).map(drop)
        })?;
        Ok(incoming)
    }

    /// Whether this is the piece that comes next.
    pub(super) fn expects(&self, id: u64, index: u64) -> bool {
        (self.head.id, self.pieces) == (id, index)
    }

    pub(super) fn piece(&mut self, piece: &Piece) -> Result<()> {
        self.write(Durability::None, |transaction| piece.write(transaction))?;
        self.pieces += 1;
        Ok(())
    }

    /// Puts the whole snapshot into its place. The file there is no longer open.
    pub(super) fn end(self, path: &Path, cluster: ClusterId, promised: Epoch) -> Result<()> {
        file::header_write(&self.database, cluster, self.head.seq)?;
        let lineage = self.head.lineage.copied(promised);
        // Durable, and with it all that was written before.
        self.write(Durability::Immediate, |transaction| lineage.save(transaction))?;
        let (head, draft) = (self.head, self.draft);
        drop(self.database);
        let sync = || File::open(&draft)?.sync_all();
        sync().map_err(|error| file::unreachable_file(&draft, &error))?;
        if head.diverged {
            let aside = file::put_aside(path)?;
            tracing::warn!(path = %aside.display(), "commits that nobody else has were put aside");
        }
        std::fs::rename(&draft, path).map_err(|error| file::unreachable_file(path, &error))?;
        file::folder_sync(path)
    }

    fn write(
        &self,
        durability: Durability,
        work: impl FnOnce(&WriteTransaction) -> Result<()>,
    ) -> Result<()> {
        let mut transaction = self.database.begin_write().map_err(file::failed)?;
        transaction
            .set_durability(durability)
            .map_err(|error| CatalogError::unavailable(error.to_string()))?;
        work(&transaction)?;
        transaction.commit().map_err(file::failed)
    }
}
