//! The catalog of nodes that are stopped: put back from a backup, rebuilt from rings and lakes, compared. (D46)
//!
//! Whoever calls this holds the directories, so that no node runs on them. A catalog that is in the way is never deleted:
//! it gets another name beside it.
//!
//! It must not know peers or protocols, and must not run beside a node.

#![forbid(unsafe_code)]

mod compare;
mod restore;
mod salvage;

use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use stoker_catalog::backup::Reader;
use stoker_catalog::engine::{self, Origin, Postgres};
use stoker_catalog::{Catalog, Epoch, Row, Snapshot};
use stoker_format::ClusterId;
use stoker_store::{ErrorKind, Result, StoreError};

use stoker_host::clock;
use stoker_host::identity::{HighWater, Identity};
use stoker_records::error;

pub use compare::{Difference, compare};
pub use restore::{RestoreOptions, RestoreReport, restore};
pub use salvage::{SalvageOptions, SalvageReport, StoppedNode, salvage};

/// The file of an embedded catalog in a node's directory.
const CATALOG: &str = "catalog.redb";

/// Numbers that a rebuilt catalog leaves out, so that it is above everything that any node can have seen (R9).
const SEQ_GAP: u64 = 1 << 32;

/// Where a catalog is put.
#[derive(Clone, Debug)]
pub enum Target {
    /// Into the node's directory.
    Embedded,
    /// Into a database, by its URL.
    Postgres(String),
}

/// Tells how far the work is: what is done now, and how many are done.
pub type Tell<'t> = &'t (dyn Fn(&str, u64) + Send + Sync);

fn broken(path: &Path, fault: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display()))
}

fn identity(dir: &Path) -> Result<Identity> {
    if !Identity::exists(dir) {
        let message = format!(
            "{}: no node has run here, so there is no node.json that names it; give the directory of a node",
            dir.display()
        );
        return Err(StoreError::new(ErrorKind::NotFound, message));
    }
    Identity::load(dir)
}

/// What is in the place of a catalog.
struct Present {
    seq: u64,
    epoch: Epoch,
    volumes: u64,
    files: u64,
    /// It cannot be read.
    damage: Option<String>,
}

impl Present {
    fn is_empty(&self) -> bool {
        self.damage.is_none() && self.volumes == 0 && self.files == 0
    }
}

/// What is in the node's directory, or in the database.
async fn look(dir: &Path, cluster: ClusterId, target: &Target) -> Result<Option<Present>> {
    let path = dir.join(CATALOG);
    match target {
        Target::Embedded => {
            let found = match engine::inspect(&path, cluster) {
                Ok(None) => return Ok(None),
                Ok(Some(found)) => found,
                Err(fault) if fault.kind == stoker_catalog::ErrorKind::Corrupt => {
                    let damage = Some(fault.message);
                    let (seq, epoch, volumes, files) = Default::default();
                    return Ok(Some(Present { seq, epoch, volumes, files, damage }));
                }
                Err(fault) => return Err(error::catalog(fault)),
            };
            let snapshot = engine::read_file(&path, cluster).map_err(error::catalog)?;
            let (epoch, seq) = (found.promised.max(found.epoch), snapshot.seq());
            match count(&*snapshot).await {
                Ok((volumes, files)) => Ok(Some(Present { seq, epoch, volumes, files, damage: None })),
                Err(fault) => {
                    Ok(Some(Present { seq, epoch, volumes: 0, files: 0, damage: Some(fault.message) }))
                }
            }
        }
        Target::Postgres(url) => {
            let database = Postgres::open(url, cluster).await.map_err(error::catalog)?;
            let snapshot = database.snapshot().await.map_err(error::catalog)?;
            let (volumes, files) = count(&*snapshot).await?;
            Ok(Some(Present { seq: snapshot.seq(), epoch: Epoch::default(), volumes, files, damage: None }))
        }
    }
}

/// Volumes and files of a state.
async fn count(snapshot: &dyn Snapshot) -> Result<(u64, u64)> {
    let (mut volumes, mut files) = (0, 0);
    let mut after = None::<Vec<u8>>;
    loop {
        let page = snapshot.page(after.as_deref()).await.map_err(error::catalog)?;
        volumes += page.rows.iter().filter(|row| row.key.starts_with(b"V")).count() as u64;
        // A name that ends with `/` is a directory.
        let is_file = |row: &&Row| row.key.starts_with(b"E") && !row.key.ends_with(b"/");
        files += page.rows.iter().filter(is_file).count() as u64;
        match page.rows.last() {
            Some(last) if page.more => after = Some(last.key.clone()),
            _ => return Ok((volumes, files)),
        }
    }
}

/// Puts a catalog of these rows into its place. Gives the name that an older file has now.
async fn put_in_place(
    dir: &Path,
    identity: Identity,
    target: &Target,
    origin: Origin,
    next: impl FnMut() -> stoker_catalog::Result<Option<Vec<Row>>>,
) -> Result<Option<PathBuf>> {
    match target {
        Target::Postgres(url) => {
            let done = Postgres::restore(url, identity.cluster, origin.seq, next).await;
            done.map(|()| None).map_err(error::catalog)
        }
        Target::Embedded => {
            let (path, draft) = (dir.join(CATALOG), dir.join("catalog.redb.made"));
            remove(&draft)?;
            engine::build(&draft, identity.cluster, origin, next).map_err(error::catalog)?;
            swap(&path, &draft, identity.cluster)
        }
    }
}

/// Gives a finished file the place of the catalog.
fn swap(path: &Path, draft: &Path, cluster: ClusterId) -> Result<Option<PathBuf>> {
    // It is whole by itself then, also if it was not closed in order.
    engine::inspect(draft, cluster).map_err(error::catalog)?;
    let aside = match path.exists() {
        true => Some(engine::put_aside(path).map_err(error::catalog)?),
        false => None,
    };
    std::fs::rename(draft, path).map_err(|fault| broken(path, &fault))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let sync = || std::fs::File::open(folder)?.sync_all();
    sync().map_err(|fault| broken(folder, &fault))?;
    Ok(aside)
}

/// Removes a file of ours that an earlier try left.
fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(fault) if fault.kind() != std::io::ErrorKind::NotFound => Err(broken(path, &fault)),
        _ => Ok(()),
    }
}

/// Where the numbers of a rebuilt catalog begin, and its epoch.
fn origin(identity: Identity, seqs: &[u64], epoch: Epoch) -> Origin {
    let seq = seqs.iter().copied().max().unwrap_or(0).saturating_add(SEQ_GAP);
    Origin { seq, epoch: Some(epoch.rebuilt(identity.node, clock::now_ms() / 1_000)) }
}

/// The highest commit that a node wrote down; none is no reason to stop here.
fn seen(dir: &Path) -> u64 {
    HighWater::read(dir).unwrap_or(0)
}

fn open_backup(path: &Path, cluster: ClusterId) -> Result<Reader<std::io::BufReader<std::fs::File>>> {
    let file = std::fs::File::open(path).map_err(|fault| broken(path, &fault))?;
    let reader = Reader::begin(std::io::BufReader::with_capacity(1 << 20, file)).map_err(error::catalog)?;
    let header = reader.header();
    if header.kind != stoker_catalog::backup::Kind::Whole {
        let message = format!("{} holds volumes and keys only; it is no backup", path.display());
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    if header.cluster != cluster {
        let message = format!(
            "{} is a backup of cluster {}, and this node belongs to cluster {cluster}",
            path.display(),
            header.cluster
        );
        return Err(StoreError::new(ErrorKind::Invalid, message));
    }
    Ok(reader)
}

/// The pages of a state of an embedded catalog, one after the other, for whoever cannot wait.
fn pages(snapshot: Box<dyn Snapshot>) -> impl FnMut() -> stoker_catalog::Result<Option<Vec<Row>>> {
    let (mut after, mut more) = (None::<Vec<u8>>, true);
    move || {
        if !more {
            return Ok(None);
        }
        // A file answers at once.
        let page = snapshot.page(after.as_deref()).now_or_never().unwrap_or_else(|| {
            Err(stoker_catalog::CatalogError::unavailable("the file did not answer at once"))
        })?;
        more = page.more;
        after = page.rows.last().map(|row| row.key.clone());
        Ok(Some(page.rows))
    }
}
