//! A copy of everything on its way in: a file of its own until it is whole, and the table's file once the group's log says so.

use std::fs::File;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, Durability, WriteTransaction};
use serde::{Deserialize, Serialize};
use stoker_consensus::{Group, Point};
use stoker_format::ClusterId;

use super::message::Members;
use super::state::Staged;
use crate::engine::embedded::ledger::Ledger;
use crate::engine::embedded::pieces::Piece;
use crate::engine::embedded::{file, table};
use crate::error::{CatalogError, Result};

/// Copies on their way are called like the table, with this behind it, and their number.
const BEHIND: &str = ".incoming.";

/// The file of a copy. It goes with whoever had a use for it, unless it got another name.
#[derive(Debug)]
pub(super) struct Draft(pub PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        // One that became the table has another name now.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes what a process left that was killed.
pub(super) fn clean(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
    let Ok(found) = std::fs::read_dir(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    else {
        return;
    };
    let begins = format!("{}{BEHIND}", name.to_string_lossy());
    for found in found.flatten().filter(|found| found.file_name().to_string_lossy().starts_with(&begins)) {
        drop(Draft(found.path()));
    }
}

/// What a copy is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// Drawn by whoever sends it.
    pub copy: u64,
    pub index: u64,
    pub term: u64,
    pub seq: u64,
    pub base: u64,
    pub members: Members,
}

/// A copy of which some pieces are here.
pub(super) struct Incoming {
    head: Head,
    pieces: u64,
    // Let go of before its name is.
    database: Database,
    draft: Draft,
}

impl Incoming {
    /// Begins a copy that may take the place of `path`.
    pub(super) fn begin(path: &Path, cache_bytes: usize, head: Head) -> Result<Incoming> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!("{BEHIND}{:016x}", head.copy));
        let draft = Draft(PathBuf::from(draft));
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes);
        let database = file::create_empty(&draft.0, builder)?;
        let incoming = Incoming { head, pieces: 0, draft, database };
        incoming.write(Durability::None, |transaction| {
            table::Draft::open(transaction)?;
            Ledger::open(transaction).map(drop)
        })?;
        Ok(incoming)
    }

    /// Whether this is the piece that comes next.
    pub(super) fn expects(&self, copy: u64, index: u64) -> bool {
        (self.head.copy, self.pieces) == (copy, index)
    }

    pub(super) fn piece(&mut self, piece: &Piece) -> Result<()> {
        self.write(Durability::None, |transaction| piece.write(transaction))?;
        self.pieces += 1;
        Ok(())
    }

    /// It is whole.
    pub(super) fn end(self, cluster: ClusterId) -> Result<Staged> {
        let Head { index, term, seq, base, members, .. } = self.head.clone();
        file::header_write(&self.database, cluster, seq)?;
        // Durable, and with it all that was written before.
        self.write(Durability::Immediate, |_| Ok(()))?;
        let draft = self.draft;
        drop(self.database);
        let sync = || File::open(&draft.0)?.sync_all();
        sync().map_err(|error| file::unreachable_file(&draft.0, &error))?;
        let group: Group = members.group();
        Ok(Staged { draft, point: Point { index, term }, group, base })
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
