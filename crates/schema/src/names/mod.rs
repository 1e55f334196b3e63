//! Names on rows: paths, listings, and the transactions that change them. (D16)
//!
//! Directories have inodes, so renaming one is one transaction however much is in it. A directory exists while it has
//! entries; `mkdir` leaves an entry with an empty name in it, which is the key `dir/` of S3. Each change here is one
//! commit with checks, tried again when somebody else was first.

mod accounts;
mod change;
mod exchange;
mod inodes;
mod layout;
mod links;
mod past;
mod path;
mod publish;
mod remove;
mod rename;
mod sets;
mod usage;
mod walk;

use std::sync::Arc;

use stoker_format::VolumeId;

use crate::rows::{EntryRow, FileRow, RowValue, keys};
use accounts::VolumeNames;
use stoker_catalog::kv::{Catalog, Check, Commit, Outcome};
use stoker_catalog::{CatalogError, Result};

pub use accounts::{Account, ChargedTo, Exceeded, Quota, account_usage, account_usages};
pub use change::{Forgotten, delete_record_garbage, garbage_writes};
pub use exchange::{Exchanged, Side};
pub use inodes::Inodes;
pub use links::{LINKS_MAX, Links};
pub use past::{Keeping, Kept, LockClock, RemovedVersion, Removing, Which, id_of};
pub use path::Spot;
pub use publish::{Plan, Published, dirty_writes, share_writes};
pub use remove::{Removal, Removed};
pub use rename::Renamed;
pub use sets::{Set, SetPublish, SetRequest, SetsSwept, Shard, ShardAdded};
pub use usage::{Usage, usage, usage_deletes};
pub use walk::{Found, Walk};

/// Tries before a change that others keep getting in the way of is given up.
const TRIES_MAX: usize = 100;

/// Why a change was not made.
#[derive(Debug)]
pub enum Refusal {
    /// The catalog failed.
    Catalog(CatalogError),
    /// A guard does not hold any more: the session was fenced, a drive is gone, the volume was deleted. Its index.
    Guard(usize),
    /// Too many others change the same name.
    Contended,
    /// There is no such name.
    NotFound,
    /// The target of a rename is in the way.
    Exists,
    /// The file has as many names as a file can have.
    TooMany,
    /// What it is about is over, or belongs to others.
    Conflict(&'static str),
    /// The request makes no sense.
    Invalid(&'static str),
    /// A quota does not allow it.
    Quota(Exceeded),
    /// A directory would have to be counted for another project.
    Apart,
    /// A version has to stay: it is retained, or held.
    Locked,
    /// The caller said no.
    Caller(Box<dyn std::any::Any + Send>),
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Refusal {
        Refusal::Catalog(error)
    }
}

/// The names of all volumes of a catalog.
#[derive(Clone)]
pub struct Names {
    catalog: Arc<dyn Catalog>,
    inodes: Arc<Inodes>,
    charged: ChargedTo,
    volume_names: VolumeNames,
    /// By when what had to stay may go.
    released_ms: LockClock,
}

/// A file and its place.
#[derive(Clone, Debug)]
pub struct Located {
    /// Place.
    pub spot: Spot,
    /// Commit that wrote the entry.
    pub seq: u64,
    /// The file.
    pub file: FileRow,
}

impl Names {
    /// Names on a catalog.
    pub fn new(catalog: Arc<dyn Catalog>) -> Names {
        let inodes = Arc::new(Inodes::new(catalog.clone()));
        Names {
            inodes,
            catalog,
            charged: |_| None,
            volume_names: VolumeNames::default(),
            released_ms: Arc::new(|| 0),
        }
    }

    /// The same, where properties of files say which user they count for.
    #[must_use]
    pub fn charging(mut self, charged: ChargedTo) -> Names {
        self.charged = charged;
        self
    }

    /// The catalog below.
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.catalog
    }

    /// Numbers for files.
    pub fn inodes(&self) -> &Inodes {
        &self.inodes
    }

    /// What stands at a place: the file, and the directory of its name with the file that is its own.
    pub async fn entry_at(&self, spot: &Spot) -> Result<(Option<Located>, Option<(u64, Option<Located>)>)> {
        let inside = [spot.name.as_slice(), b"/"].concat();
        let (file, directory) = (spot.row_key(), keys::entry(spot.volume, spot.parent, &inside));
        let mut rows = self.catalog.get(&[&file, &directory]).await?;
        let (directory, file) = (rows.pop().flatten(), rows.pop().flatten());
        let file = match file
            .as_ref()
            .map(|row| Ok::<_, CatalogError>((row.seq, EntryRow::of(row)?)))
            .transpose()?
        {
            Some((seq, EntryRow::File(file))) => Some(Located { spot: spot.clone(), seq, file: *file }),
            _ => None,
        };
        let directory = match directory.as_ref().map(EntryRow::of).transpose()? {
            Some(EntryRow::Directory(inode)) => {
                let own = Spot { volume: spot.volume, parent: inode, name: Vec::new() };
                Some((inode, self.file_at(own).await?))
            }
            _ => None,
        };
        Ok((file, directory))
    }

    /// The file of a key.
    pub async fn lookup(&self, volume: VolumeId, key: &[u8]) -> Result<Option<Located>> {
        let Some(spot) = self.resolve(volume, key).await? else {
            return Ok(None);
        };
        self.file_at(spot).await
    }

    /// The file at a place.
    pub async fn file_at(&self, spot: Spot) -> Result<Option<Located>> {
        let row_key = keys::entry(spot.volume, spot.parent, &spot.name);
        let Some(row) = self.catalog.get(&[&row_key]).await?.pop().flatten() else {
            return Ok(None);
        };
        match EntryRow::of(&row)? {
            EntryRow::File(file) => Ok(Some(Located { spot, seq: row.seq, file: *file })),
            EntryRow::Directory(_) => Ok(None),
        }
    }

    /// Tries a commit whose first checks are guards; says whether it was done.
    async fn attempt(
        &self,
        guards: &[Check],
        mut change: Commit,
    ) -> std::result::Result<Option<u64>, Refusal> {
        change.checks.splice(0..0, guards.iter().cloned());
        match self.catalog.commit(change).await? {
            Outcome::Done { seq } => Ok(Some(seq)),
            Outcome::Failed { check } if check < guards.len() => Err(Refusal::Guard(check)),
            Outcome::Failed { .. } => Ok(None),
        }
    }
}
