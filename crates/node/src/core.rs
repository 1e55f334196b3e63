//! What every part of a node shares.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stoker_catalog::kv::{Catalog, Check};
use stoker_format::{NodeId, VersionId};
use stoker_ring::Retention;
use stoker_schema::names::Names;
use stoker_schema::rows::{Drain, FileRow, HolderRow, Layout, keys};
use stoker_store::{
    Checksum, ChecksumKind, Class, DrainPolicy, DrainState, ErrorKind, FileInfo, Holder, Key, Receipt,
    Result, StoreError,
};
use tokio::sync::Notify;

use crate::cache::Cache;
use crate::cell::Cell;
use crate::drain::Drainer;
use crate::pins::Pins;
use crate::properties::Properties;
use crate::rings::Rings;
use crate::tracker::Tracker;
use crate::volumes::{Volume, Volumes};
use crate::world::Tasks;

/// The parts of a node.
pub(crate) struct Core {
    pub node: NodeId,
    pub cluster: String,
    pub started_ms: u64,
    pub catalog: Arc<dyn Catalog>,
    /// How often this node asked it, and how long that took.
    pub catalog_times: Arc<stoker_cluster::CatalogTimes>,
    /// The last good answers to operators.
    pub views: crate::views::Views,
    pub names: Names,
    pub cell: Cell,
    pub rings: Rings,
    pub workshop: crate::drives::Workshop,
    /// Who may use drives, links and lakes now.
    pub admission: crate::admission::Admission,
    pub volumes: Volumes,
    pub cache: Cache,
    pub pins: Arc<Pins>,
    /// Lake objects that open files read from.
    pub objects: Arc<crate::stage::Objects>,
    /// Writers of one name wait for each other here instead of contending in the catalog.
    pub key_locks: KeyLocks,
    /// Held for reading from the moment chunks are made must-keep again until the name that needs them is published, and
    /// for writing while chunks are declared clean: otherwise the second could undo the first.
    pub marks: tokio::sync::RwLock<()>,
    pub drainer: Drainer,
    /// When files were opened, for rules that ask.
    pub recency: crate::tiers::recency::Recency,
    /// What is known of second lakes.
    pub replicas: crate::tiers::replica::Replicas,
    /// What is known of the bytes of lake objects.
    pub sums: crate::sum_notes::SumBook,
    /// Knows what this cluster said of lake objects.
    pub signer: crate::drain::signature::Signer,
    /// Where reads go.
    pub sources: crate::sources::Sources,
    pub facts: crate::measures::Facts,
    /// How long a day of lifecycle rules is.
    pub calendar: stoker_tiers::lifecycle::Calendar,
    /// Rules of a volume were changed here.
    pub lifecycle_changed: Notify,
    pub past: crate::history::Past,
    pub emptiness: Mutex<crate::measures::Emptiness>,
    pub read_repair: crate::read_repair::ReadRepair,
    pub inventory: crate::inventory::Inventory,
    pub flights: crate::stage::Flights,
    pub looks: crate::lookup::Looks,
    pub locks: crate::locks::Locks,
    /// What is held for jobs.
    pub held: crate::jobs::Held,
    /// Windows for checkpoints.
    pub windows: crate::jobs::Windows,
    /// What tenants, projects and users have.
    pub accounts: crate::accounts::Accounts,
    pub stats: NodeStats,
    /// Counters of volumes.
    pub tallies: crate::numbers::Tallies,
    pub lake_prices: crate::numbers::LakePrices,
    /// Wakes the collector.
    pub garbage: Notify,
    /// Row of this boot's session, checked by every change.
    pub session: (Vec<u8>, Vec<u8>),
    pub session_id: [u8; 16],
    pub chunk_bytes: u32,
    /// How long a lake may take to carry out a request whose answer nobody saw.
    pub lake_settle_ms: u64,
    pub tasks: Tasks,
    /// Highest commit seen (R9).
    pub seq_seen: Arc<AtomicU64>,
    pub closing: Arc<AtomicBool>,
    /// In which forms rows, messages and files may be written (R14).
    pub level: Arc<stoker_schema::level::KnownLevel>,
    /// It votes on names, and holds no bytes.
    pub is_witness: bool,
    /// Seals and opens the bytes of encrypted volumes.
    pub vault: Arc<crate::sealing::Vault>,
    /// Wrap the secrets of access keys.
    pub wrapping: stoker_records::wrapping::WrappingKeys,
    /// Volumes and access keys, beside the catalog.
    pub kept: crate::kept::Kept,
    /// The time that expiries go by.
    pub expiry: Arc<crate::expiry::Expiry>,
    /// States of the catalog that somebody copies.
    pub snapshots: stoker_cluster::Snapshots,
    pub work: Tracker,
}

/// Locks by name; different names may share one.
pub(crate) struct KeyLocks(Vec<tokio::sync::Mutex<()>>);

impl Default for KeyLocks {
    fn default() -> KeyLocks {
        KeyLocks((0..1024).map(|_| tokio::sync::Mutex::new(())).collect())
    }
}

impl KeyLocks {
    pub async fn lock(&self, volume: stoker_format::VolumeId, key: &[u8]) -> tokio::sync::MutexGuard<'_, ()> {
        let hash = stoker_format::crc32c(key) as usize ^ volume.0 as usize;
        self.0[hash % self.0.len()].lock().await
    }
}

/// Counters of a node.
#[derive(Default)]
pub(crate) struct NodeStats {
    pub publishes: AtomicU64,
    pub publish_bytes: AtomicU64,
    pub deletes: AtomicU64,
    pub opens: AtomicU64,
    pub lists: AtomicU64,
    pub read_bytes: AtomicU64,
    pub leases: AtomicU64,
    pub lake_read_bytes: AtomicU64,
    pub cache_hits: AtomicU64,
    pub cache_misses: AtomicU64,
    pub aborted_writes: AtomicU64,
    pub collected_chunks: AtomicU64,
    pub scrubbed_records: AtomicU64,
    pub scrub_bad: AtomicU64,
    pub alone_publishes: AtomicU64,
    /// Bytes that went to a lake before they were published.
    pub spilled_bytes: AtomicU64,
    pub sets_published: AtomicU64,
    pub sets_expired: AtomicU64,
    /// Rounds that looked for uploads whose time is over.
    pub expiry_rounds: AtomicU64,
    /// By class and copies reached.
    pub commits: crate::numbers::Commits,
    /// From the last byte of a write to its acknowledgement.
    pub commit_times: stoker_store::Histogram,
    /// Of a piece of a file, wherever it came from.
    pub read_times: stoker_store::Histogram,
    /// From the oldest change of a file to its confirmation by the lake.
    pub drain_times: stoker_store::Histogram,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Core {
    /// Checks for a change in a volume: this boot is not fenced, the volume is there.
    pub fn guards(&self, volume: &Volume) -> Vec<Check> {
        let mut guards = vec![
            Check::Value(self.session.0.clone(), self.session.1.clone()),
            Check::Present(keys::volume_id(volume.id)),
        ];
        if self.vault.is_encrypted(volume.id) && self.vault.check(volume.id).is_ok() {
            // What is acknowledged can be opened.
            guards.push(Check::Present(keys::data_keys(volume.id)));
        }
        // What is kept is decided by whoever makes the change, so it has to know.
        guards.push(volume.versions.check.clone());
        guards
    }

    /// Runs a change to its end even if whoever asked goes away: a client that hangs up must not leave half of one. (D29)
    pub async fn to_the_end<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let stopped = |_| StoreError::new(ErrorKind::Closed, "this node is stopping; try again elsewhere");
        // In a box, once: each wrapper would move it through the stack of whoever asks, and a copy alone has more than 100 KiB.
        let change = Box::pin(change);
        // A change that outlives the patience of whoever asked could be made after the same client made a newer one.
        let change = stoker_store::patiently(stoker_store::patience(), change);
        let change = stoker_store::asked_by(stoker_store::asker(), change);
        let change = stoker_store::in_job(stoker_store::job(), change);
        self.tasks.spawn(crate::admission::inherit(change)).await.map_err(stopped)?
    }

    /// The node that owes the drain of bytes with these holders: this one if it is one of them. Another would not find them
    /// after a restart, when it looks for what its own drives hold.
    pub fn home_among(&self, holders: &[HolderRow]) -> [u8; 16] {
        let is_here = holders.iter().any(|holder| holder.node == self.node.0);
        holders.first().filter(|_| !is_here).map_or(self.node.0, |holder| holder.node)
    }

    pub fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(StoreError::new(ErrorKind::Closed, "this node is stopping; try again elsewhere"));
        }
        Ok(())
    }

    /// Refuses changes at a witness: what is changed leaves a record on a drive of the node that does it.
    pub fn check_no_witness(&self) -> Result<()> {
        if self.is_witness {
            let message =
                "this node is a witness and holds nothing: make changes through another node of the cluster";
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// Whether files of a volume may be changed, and through this node.
    pub fn check_writable(&self, volume: &Volume) -> Result<()> {
        self.check_no_witness()?;
        volume.check_writable()
    }

    /// Remembers a commit (R9).
    pub fn saw(&self, seq: u64) {
        self.seq_seen.fetch_max(seq, Ordering::Relaxed);
    }

    /// How a new version of a volume starts its way to the lake.
    pub fn drain_of(volume: &Volume) -> Drain {
        match (&volume.lake_url, volume.policy.drain) {
            (None, _) | (_, DrainPolicy::Never) => Drain::Never,
            _ => Drain::Dirty,
        }
    }

    /// How long a new chunk of a volume stays on a drive.
    pub fn retention(volume: &Volume) -> Retention {
        match Core::drain_of(volume) {
            Drain::Never => Retention::Never,
            _ => Retention::Dirty,
        }
    }

    /// What the door says of a file.
    pub fn info(key: &[u8], file: &FileRow) -> Result<FileInfo> {
        let properties = Properties::decode(&file.properties)?;
        Ok(FileInfo {
            key: Key::new(key)?,
            size: file.size,
            etag: file.etag.clone(),
            modified_ms: file.modified_ms,
            version: file.version(),
            inode: file.number(),
            attributes: properties.attributes,
            checksums: checksums(file.crc64, properties.checksums),
            part_sizes: Vec::new(),
            drain: state(file.drain),
            links: if file.links.is_some() { 0 } else { 1 },
            allocated: matches!(file.layout, Layout::Sparse { .. }).then(|| file.allocated()),
            past: file.past.as_ref().map(|past| crate::versions::info_of(file, past)),
            expires: None,
        })
    }

    /// The receipt of a file as it is.
    pub fn receipt(volume: &Volume, key: &[u8], file: &FileRow, seq: u64) -> Result<Receipt> {
        let properties = Properties::decode(&file.properties)?;
        let away = crate::drain::away(volume, file);
        let (lake_key, lake_etag) = match (&file.lake, &away) {
            (Some(lake), _) if file.drain == Drain::Clean => (lake.key.as_slice(), Some(&lake.etag)),
            (_, Some(away)) => (away.key.as_slice(), Some(&away.etag)),
            _ => (key, None),
        };
        let place =
            |url: &String| format!("{}/{}", url.trim_end_matches('/'), String::from_utf8_lossy(lake_key));
        let leaves = file.drain != Drain::Never;
        Ok(Receipt {
            volume: volume.name.clone(),
            key: String::from_utf8_lossy(key).into_owned(),
            version: file.version(),
            size: file.size,
            etag: file.etag.clone(),
            checksums: checksums(file.crc64, properties.checksums),
            class: volume.policy.class.in_cluster(nodes(&file.holders)),
            copies: copies(&file.holders, volume.policy.class),
            holders: file.holders.iter().map(holder).collect(),
            seq,
            drain: state(file.drain),
            lake: volume.lake_url.as_ref().filter(|_| leaves).map(place),
            lake_etag: lake_etag.cloned(),
            // What has no id of its own is not told of, as S3 does not.
            version_id: file
                .past
                .as_ref()
                .filter(|past| !past.is_null)
                .map(|_| crate::versions::id_text(file)),
        })
    }
}

pub(crate) fn holder(row: &HolderRow) -> Holder {
    Holder::new(NodeId(row.node), stoker_format::DriveId(row.drive), row.incarnation)
}

/// How many nodes hold something of it.
pub(crate) fn nodes(holders: &[HolderRow]) -> usize {
    holders.iter().map(|holder| holder.node).collect::<std::collections::HashSet<_>>().len()
}

/// Copies of each of its bytes: the chunks of a large file go to different peers, so more nodes may hold something.
pub(crate) fn copies(holders: &[HolderRow], class: Class) -> u32 {
    let nodes = nodes(holders);
    nodes.min(class.in_cluster(nodes).copies()) as u32
}

pub(crate) fn state(drain: Drain) -> DrainState {
    match drain {
        Drain::Dirty => DrainState::Dirty,
        Drain::Clean => DrainState::Clean,
        Drain::Never => DrainState::Never,
        Drain::Conflict => DrainState::Conflict,
    }
}

/// CRC-64/NVME first, then what the user asked to keep.
pub(crate) fn checksums(crc64: Option<u64>, kept: Vec<Checksum>) -> Vec<Checksum> {
    let own = crc64.map(|crc| Checksum {
        kind: ChecksumKind::Crc64Nvme,
        value: crc.to_be_bytes().to_vec(),
        parts: 0,
    });
    let kept = kept.into_iter().filter(|sum| crc64.is_none() || sum.kind != ChecksumKind::Crc64Nvme);
    own.into_iter().chain(kept).collect()
}

/// The ETag of a version that has no MD5: unlike one, so that no client takes it for one. (D21)
pub(crate) fn etag(version: VersionId, crc64: u64, parts: usize) -> String {
    format!("{version}{:08x}-{}", crc64 as u32, parts.max(1))
}
