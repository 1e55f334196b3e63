//! How a node is opened. Numbers here, components elsewhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stoker_catalog::Catalog;
use stoker_lake::{LakeOpener, LakeOptions};
use stoker_ring::{DriveKind, LocalDriver, OpenOptions, Ring};
use stoker_store::{ErrorKind, Result, StoreError, VolumePolicy};

use crate::cell::{CellOptions, RebuildOptions};
use crate::numbers::LakePrices;
use crate::world::GivenWorld;

/// A drive of the node.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// A directory, a file or a block device.
    pub path: PathBuf,
    /// Bytes of the ring if it has to be made; a device is used whole by default.
    pub size_bytes: Option<u64>,
}

/// Share of the free space that new rings take, in percent. The rest is for the catalog, and for a lake that is a directory. (D97)
const FREE_SHARE: u64 = 50;
const SIZE_MIN: u64 = 2 << 30;
const SIZE_MAX: u64 = 256 << 30;

/// Folder of the ring on a drive that is given as a directory: what is mounted is rarely quite empty.
pub(crate) const RING_DIR: &str = "stoker-ring";

impl DriveOptions {
    /// A drive that a person named; it has to be there.
    pub fn named(path: &Path, size: Option<u64>) -> Result<DriveOptions> {
        DriveOptions::named_among(path, size, 1)
    }

    /// The same, one of so many whose rings are made on the same file system.
    pub fn named_among(path: &Path, size: Option<u64>, count: usize) -> Result<DriveOptions> {
        let wrong = |what: String| Err(StoreError::new(ErrorKind::Invalid, what));
        if !path.is_absolute() {
            return wrong(format!(
                "{} is not an absolute path, and nodes have folders of their own",
                path.display()
            ));
        }
        if !path.exists() {
            return wrong(format!("drive {} is not there: mount it, or make the directory", path.display()));
        }
        let is_folder = path.is_dir() && !holds_ring(path);
        DriveOptions::sized_among(if is_folder { path.join(RING_DIR) } else { path.to_owned() }, size, count)
    }

    /// Finds a size for a ring that has to be made.
    pub fn sized(path: PathBuf, size: Option<u64>) -> Result<DriveOptions> {
        DriveOptions::sized_among(path, size, 1)
    }

    /// The same for one of so many rings that are made on the same file system.
    pub fn sized_among(path: PathBuf, size: Option<u64>, count: usize) -> Result<DriveOptions> {
        let io = |fault: std::io::Error| {
            StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", path.display()))
        };
        let is_made = match stoker_ring::Drive::kind_of(&path).map_err(io)? {
            DriveKind::Directory => holds_ring(&path),
            DriveKind::File => path.metadata().is_ok_and(|meta| meta.len() > 0),
            // Whole, if nobody says otherwise.
            DriveKind::Device => true,
        };
        let size_bytes = match size {
            None if !is_made => Some(size_for(&path, count)?),
            // A ring that cannot hold one chunk for each of its parts takes no write.
            Some(bytes @ 1..RING_MIN) if !is_made => {
                let least = RING_MIN >> 20;
                let message =
                    format!("{bytes} bytes are too small for a ring: choose a --size of at least {least}MiB");
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            other => other,
        };
        Ok(DriveOptions { path, size_bytes })
    }
}

/// Least bytes of a ring that a node makes.
const RING_MIN: u64 = 64 << 20;

fn holds_ring(dir: &Path) -> bool {
    dir.join("superblock").exists()
}

/// The share of one of so many rings in half of what is free, within bounds; refuses where not even the least fits.
fn size_for(path: &Path, count: usize) -> Result<u64> {
    let existing = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let io = |fault: std::io::Error| {
        StoreError::new(ErrorKind::Unavailable, format!("{}: {fault}", existing.display()))
    };
    let (free, _) = stoker_ring::disk_space(existing).map_err(io)?;
    let count = count.max(1) as u64;
    if free / count < SIZE_MIN {
        let message = format!(
            "{} has {} MiB free, and {count} new ring(s) take at least {} MiB: free some space, or choose a --size",
            existing.display(),
            free >> 20,
            (SIZE_MIN * count) >> 20
        );
        return Err(StoreError::new(ErrorKind::Full, message));
    }
    Ok(share_of(free / count))
}

fn share_of(free: u64) -> u64 {
    (free / 100 * FREE_SHARE).clamp(SIZE_MIN, SIZE_MAX)
}

/// Longest file that drains however little of it is stored, unless somebody says otherwise.
pub const SPARSE_BYTES_MAX: u64 = 64 << 30;

/// Where names are kept.
#[derive(Clone, Default)]
pub enum CatalogChoice {
    /// In `catalog.redb` in the node's directory.
    #[default]
    Embedded,
    /// In a PostgreSQL database, by its URL.
    Postgres(String),
    /// In a catalog that the caller opened; for tests and simulation.
    Given(Arc<dyn Catalog>),
}

impl fmt::Debug for CatalogChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CatalogChoice::Embedded => f.write_str("Embedded"),
            // An address may hold a password.
            CatalogChoice::Postgres(_) => f.write_str("Postgres"),
            CatalogChoice::Given(catalog) => write!(f, "Given({})", catalog.describe()),
        }
    }
}

/// Secrets of a cluster, the newest first.
#[derive(Clone)]
pub struct ClusterSecrets(pub Vec<[u8; 32]>);

impl fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecrets")
    }
}

/// From the path of a drive to its ring.
type OpenRing = dyn Fn(&Path, OpenOptions) -> stoker_ring::Result<(Ring, LocalDriver)> + Send + Sync;

/// Opens drives instead of the real ones; for simulation.
#[derive(Clone)]
pub struct DriveOpener(pub Arc<OpenRing>);

impl fmt::Debug for DriveOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriveOpener")
    }
}

/// Where key-encryption keys of encrypted volumes are, if not among the keys of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyFiles {
    /// Of the one that wraps; none: that of the cluster.
    pub file: Option<PathBuf>,
    /// Of those that wrapped before: at the next start their keys are wrapped anew.
    pub former: Vec<PathBuf>,
}

/// Options of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where identity and embedded catalog are.
    pub dir: PathBuf,
    /// At least one, but none of a witness.
    pub drives: Vec<DriveOptions>,
    /// Paths at which this node had a drive that is gone for good: a new ring may be made there, or another one be used.
    pub new_drives: Vec<PathBuf>,
    /// Root of the lake; volumes live in folders below it. None: volumes have no lake unless they name one.
    pub lake: Option<String>,
    /// How lakes are reached.
    pub lake_options: LakeOptions,
    /// What requests to lakes are taken to cost.
    pub lake_prices: LakePrices,
    /// What opens lakes, if not the lake's own scheme.
    pub lake_opener: Option<LakeOpener>,
    /// What signs lake metadata, if not the keys in the node's directory; for simulation.
    pub secrets: Option<ClusterSecrets>,
    /// Files with the key-encryption keys of encrypted volumes.
    pub key_files: KeyFiles,
    /// Where names are kept.
    pub catalog: CatalogChoice,
    /// What a new volume wants.
    pub volume_defaults: VolumePolicy,
    /// Cap on buffers, cache, indexes together.
    pub memory_bytes: u64,
    /// Memory for hot pieces; none: half of the cap. With 0 every read goes to a drive, a peer or the lake.
    pub cache_bytes: Option<usize>,
    /// Files drained at the same time.
    pub drain_concurrency: usize,
    /// Longer files that are almost all holes are not drained: in a lake holes are zeros.
    pub drain_sparse_bytes_max: u64,
    /// Template for the rings; memory numbers are set by the node.
    pub ring: stoker_ring::Settings,
    /// Length of a chunk.
    pub chunk_bytes: u32,
    /// How the node belongs to a cluster; none: it is alone.
    pub cell: Option<CellOptions>,
    /// How long a lake may take to carry out a request whose answer was lost; deletes of that key wait as long.
    pub lake_settle_ms: u64,
    /// How long a day of lifecycle rules is; shorter than a day only for tests.
    pub lifecycle_day_ms: u64,
    /// How much of the node goes into protecting what lost a copy.
    pub rebuild: RebuildOptions,
    /// What opens drives, if they are not real.
    pub drive_opener: Option<DriveOpener>,
    /// What is around the node, if it is not a real machine.
    pub world: Option<GivenWorld>,
}

impl NodeOptions {
    /// Defaults for a directory with one drive in it.
    pub fn new(dir: impl Into<PathBuf>) -> NodeOptions {
        NodeOptions {
            dir: dir.into(),
            drives: Vec::new(),
            new_drives: Vec::new(),
            lake: None,
            lake_options: LakeOptions::default(),
            lake_prices: LakePrices::default(),
            lake_opener: None,
            secrets: None,
            key_files: KeyFiles::default(),
            catalog: CatalogChoice::Embedded,
            volume_defaults: VolumePolicy::default(),
            memory_bytes: 4 << 30,
            cache_bytes: None,
            drain_concurrency: 8,
            drain_sparse_bytes_max: SPARSE_BYTES_MAX,
            ring: stoker_ring::Settings::default(),
            chunk_bytes: 4 << 20,
            cell: None,
            lake_settle_ms: 30_000,
            lifecycle_day_ms: stoker_tiers::lifecycle::DAY_MS,
            rebuild: RebuildOptions::default(),
            drive_opener: None,
            world: None,
        }
    }
}

/// How the memory cap is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Buffers between sockets and drives.
    pub pool_bytes: usize,
    /// Hot chunks.
    pub cache_bytes: usize,
    /// Index of each ring.
    pub index_bytes: usize,
    /// Checksum tables of each ring.
    pub tables_bytes: usize,
    /// Pages of the embedded catalog.
    pub catalog_bytes: usize,
    /// Chunks from the lake that are being read in pieces.
    pub landed_bytes: usize,
}

impl MemoryPlan {
    /// Half for the cache, an eighth each for buffers and indexes, the rest for the catalog and everything small.
    pub fn of(memory_bytes: u64, drives: usize) -> MemoryPlan {
        let memory = memory_bytes.max(256 << 20) as usize;
        let drives = drives.max(1);
        MemoryPlan {
            pool_bytes: (memory / 8).clamp(64 << 20, 2 << 30),
            cache_bytes: memory / 2,
            index_bytes: (memory / 8 / drives).max(16 << 20),
            tables_bytes: (memory / 32 / drives).max(4 << 20),
            catalog_bytes: (memory / 16).clamp(32 << 20, 512 << 20),
            landed_bytes: (memory / 32).clamp(16 << 20, 128 << 20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_free_space_within_bounds() {
        let gb = 1_000_000_000;
        for (free, size) in
            [(3 << 30, 2 << 30), (10 * gb, 5 * gb), (100 * gb, 50 * gb), (10_000 * gb, 256 << 30)]
        {
            assert_eq!(share_of(free), size);
        }
    }

    #[test]
    fn a_mounted_drive_gets_a_folder_and_a_ring_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let size = Some(64 << 20);
        assert_eq!(DriveOptions::named(dir.path(), size).unwrap().path, dir.path().join("stoker-ring"));
        std::fs::write(dir.path().join("superblock"), "").unwrap();
        let drive = DriveOptions::named(dir.path(), None).unwrap();
        assert_eq!((drive.path.as_path(), drive.size_bytes), (dir.path(), None));
        for wrong in [dir.path().join("typo").as_path(), Path::new("relative")] {
            assert_eq!(DriveOptions::named(wrong, size).unwrap_err().kind, ErrorKind::Invalid);
        }
    }
}
