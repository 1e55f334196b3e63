//! A node: opens the parts, asks the catalog what must be kept, runs the loops.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use stoker_catalog::engine::{Embedded, EmbeddedOptions, Postgres};
use stoker_catalog::kv::{Catalog, Commit, Outcome, Range};
use stoker_catalog::{CatalogError, ErrorKind as CatalogKind};
use stoker_cluster::{CatalogHost, CatalogTimes, Lost, Members, MembersOptions, dial, level};
use stoker_format::{ChunkId, NodeId, RecordKind, RingId, VersionId};
use stoker_ring::Pool;
use stoker_schema::level::{KnownLevel, Level};
use stoker_schema::names::{Located, Names, Spot};
use stoker_schema::rows::{
    GarbageRow, PartRow, RekeyRow, RestoredRow, RowValue, SessionRow, SetRow, SetState, TombstoneRow,
    WITNESSES_SINCE, keys,
};
use stoker_store::{ErrorKind, Result, StoreError};
use stoker_tiers::lifecycle::Calendar;
use tokio::task::JoinHandle;

use crate::admission::{Admission, LakeGates};
use crate::cache::Cache;
use crate::cell::{self, Cell, CellOptions};
use crate::core::{Core, NodeStats};
use crate::drain::{Chore, Drainer};
use crate::drives::{self, Kept, Workshop};
use crate::expiry::{Expiry, Known};
use crate::identity::{HighWater, Identity};
use crate::known::{check_has_no_drives, find_drives, was_with_drives};
use crate::open_drive::open_drive;

use crate::options::{CatalogChoice, MemoryPlan, NodeOptions};
use crate::rings::{Drive, Rings, Standing};
use crate::sets::record_id;
use crate::sources::Sources;
use crate::stage::Flights;
use crate::undrained::DirtyPages;
use crate::volumes::{Lakes, Volumes};
use crate::world::Tasks;
use crate::{clock, collector, drain, error, inventory, kept, scrubber};

/// Tries to begin a boot while others change the level.
const BEGIN_TRIES_MAX: usize = 10;

/// How often the highest commit is written down.
const SEQ_PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for work under way when a node stops.
const STOP_MAX: Duration = Duration::from_secs(30);

enum Engine {
    Embedded(Arc<Embedded>),
    Shared,
}

/// A node, open.
pub struct Node {
    pub(crate) core: Arc<Core>,
    loops: Mutex<Vec<JoinHandle<()>>>,
    engine: Engine,
    high_water: Arc<Mutex<HighWater>>,
    catalog_host: OnceLock<Weak<CatalogHost>>,
}

impl Node {
    /// Opens a node: makes what is missing, refuses what does not belong together, recovers the rings, continues every
    /// unfinished drain. Needs a tokio runtime with time and I/O, which runs its loops.
    pub async fn open(options: NodeOptions) -> Result<Arc<Node>> {
        let drives_wanted = Kept::read(&options.dir)?.apply(&options.drives);
        let is_witness = options.cell.as_ref().is_some_and(CellOptions::is_witness);
        match (is_witness, drives_wanted.is_empty()) {
            (false, true) => {
                return Err(StoreError::new(ErrorKind::Invalid, "a node needs at least one drive"));
            }
            (true, false) => return Err(was_with_drives()),
            _ => {}
        }
        let identity = Identity::load(&options.dir)?;
        let secrets = match &options.secrets {
            Some(given) => given.0.clone(),
            None => stoker_cluster::secrets(&options.dir, identity)?,
        };
        let vault = crate::sealing::Vault::open(&options.key_files, &secrets)?;
        let vault = Arc::new(vault);
        let memory = MemoryPlan::of(options.memory_bytes, drives_wanted.len());
        let (catalog, engine) = open_catalog(&options, identity, &memory).await?;
        let (catalog, catalog_times) = CatalogTimes::of(catalog);
        let seq = catalog.seq().await.map_err(error::catalog)?;
        let high_water = HighWater::open(&options.dir, seq)?;
        check_restored(&*catalog, HighWater::read(&options.dir)?).await?;
        dial::check_removed(&*catalog, identity.node).await?;
        // Before a drive is touched.
        level::read(&*catalog).await?;
        let io = |fault: std::io::Error| StoreError::new(ErrorKind::Unavailable, format!("memory: {fault}"));
        let pool = Pool::new(memory.pool_bytes).map_err(io)?;
        let workshop = Workshop {
            identity,
            memory,
            ring: options.ring.clone(),
            dir: options.dir.clone(),
            busy: Default::default(),
            opener: options.drive_opener.clone(),
            missing: Default::default(),
            world: options.world.clone(),
        };
        if is_witness {
            check_has_no_drives(&*catalog, identity.node).await?;
        }
        let (mut known, there) = find_drives(&options, &drives_wanted, identity.node, &*catalog).await?;
        let (mut drives, kept) = (Vec::new(), Kept::read(&options.dir)?);
        for drive in &there {
            let drive = open_drive(drive, &workshop, &pool, &catalog, 0).await?;
            if kept.is_cordoned(drive.id) {
                drive.set_standing(Standing::Cordoned);
            }
            drives.push(drive);
        }
        if options.drive_opener.is_none() {
            let there = |drive: &'_ Drive| (drive.id, RingId(drive.row.ring));
            let there: Vec<_> = drives.iter().map(|drive| (drive.path.as_path(), there(drive))).collect();
            known.0.note(&options.dir, there.into_iter().map(|(path, (drive, ring))| (path, drive, ring)))?;
        }
        *workshop.missing.lock().unwrap() = std::mem::take(&mut known.1);
        // A chunk fits into a record of every drive; small rings have small ones.
        let record_bytes = drives.iter().map(|drive| drive.ring.record_len_max() as u32).min();
        let chunk_bytes = options.chunk_bytes.min(record_bytes.unwrap_or(u32::MAX));
        let known = Known::of(&*catalog, identity.node).await?;
        let expiry = Arc::new(Expiry::open(&options.dir, known));
        let releasing = expiry.clone();
        let session_id = clock::random::<16>();
        let session = SessionRow { session: session_id, since_ms: expiry.now_ms() };
        let session_row = (keys::session(identity.node), session.encode());
        let begin = Commit::new().put(session_row.0.clone(), session_row.1.clone());
        let level = begin_boot(&*catalog, identity.node, session_id, options.cell.as_ref(), begin).await?;
        let (seq_seen, closing) = (Arc::new(AtomicU64::new(seq)), Arc::new(AtomicBool::new(false)));
        let known_level = Arc::new(KnownLevel::default());
        let members = Arc::new(Members::new(MembersOptions {
            node: identity.node,
            catalog: catalog.clone(),
            session: session_row.clone(),
            session_id,
            level: known_level.clone(),
            seq_seen: seq_seen.clone(),
            closing: closing.clone(),
            wire: options.cell.as_ref().map(|cell| cell.wire.clone()),
            greeting: cell::greeting(),
        }));
        let lake_gates = Arc::<LakeGates>::default();
        let core = Arc::new(Core {
            admission: Admission::new(lake_gates.clone()),
            sources: Sources::default(),
            facts: Default::default(),
            calendar: Calendar::of(options.lifecycle_day_ms),
            lifecycle_changed: Default::default(),
            past: Default::default(),
            emptiness: Default::default(),
            read_repair: Default::default(),
            inventory: Default::default(),
            node: identity.node,
            cluster: identity.cluster.to_string(),
            started_ms: clock::now_ms(),
            names: Names::new(catalog.clone())
                .charging(crate::properties::charged_to)
                .releasing(Arc::new(move || releasing.now_ms())),
            cell: Cell::new(members, options.rebuild),
            rings: Rings::new(identity.node, drives, pool, options.ring.never_share, vault.keyring().clone()),
            workshop,
            volumes: Volumes::new(
                catalog.clone(),
                options.lake.clone(),
                Lakes {
                    options: options.lake_options.clone(),
                    opener: options.lake_opener.clone(),
                    gates: lake_gates,
                    named: crate::tiers::named::NamedLakes::new(
                        catalog.clone(),
                        stoker_records::wrapping::WrappingKeys::of(&secrets),
                    ),
                },
                options.volume_defaults.clone(),
                vault.clone(),
            ),
            cache: Cache::new(options.cache_bytes.unwrap_or(memory.cache_bytes)).map_err(io)?,
            pins: Arc::default(),
            objects: Arc::default(),
            key_locks: Default::default(),
            marks: Default::default(),
            drainer: Drainer::new(
                options.drain_concurrency,
                options.drain_sparse_bytes_max,
                options.memory_bytes,
            ),
            recency: Default::default(),
            replicas: Default::default(),
            sums: Default::default(),
            signer: drain::signature::Signer::new(&secrets),
            flights: Flights::new(memory.landed_bytes),
            looks: Default::default(),
            locks: Default::default(),
            held: Default::default(),
            windows: Default::default(),
            accounts: Default::default(),
            stats: NodeStats::default(),
            tallies: Default::default(),
            lake_prices: options.lake_prices,
            garbage: Default::default(),
            session: session_row,
            session_id,
            chunk_bytes,
            lake_settle_ms: options.lake_settle_ms,
            tasks: Tasks::new(options.world.clone()),
            seq_seen,
            closing,
            expiry,
            level: known_level,
            is_witness,
            vault,
            wrapping: stoker_records::wrapping::WrappingKeys::of(&secrets),
            kept: kept::Kept::new(&options.dir, identity.cluster),
            snapshots: Default::default(),
            work: Default::default(),
            catalog,
            catalog_times,
            views: Default::default(),
        });
        core.level.saw(level);
        if core.cell.is_joined() {
            core.cell.load_view().await?;
        }
        core.cell.raise_level().await?;
        // What is stamped from now on is no older than the catalog's time.
        core.deadlines_ms().await?;
        core.give_up_missing().await?;
        core.sort_records().await?;
        core.tell_segments_missing().await?;
        core.compare_inventory().await?;
        core.settle_all_leases().await?;
        core.rewrap_secrets().await?;
        core.rewrap_lakes().await?;
        core.rewrap_data_keys().await?;
        core.keep_rows().await?;
        let high_water = Arc::new(Mutex::new(high_water));
        let node = Node {
            core: core.clone(),
            loops: Mutex::default(),
            engine,
            high_water: high_water.clone(),
            catalog_host: OnceLock::new(),
        };
        let (watermark, tasks) = (watermark(core.clone(), high_water), &core.tasks);
        let mut loops = vec![
            tasks.spawn(drain::run(core.clone())),
            tasks.spawn(collector::run(core.clone())),
            tasks.spawn(scrubber::run(core.clone())),
            tasks.spawn(inventory::run(core.clone())),
            tasks.spawn(drives::run(core.clone())),
            tasks.spawn(watermark),
            tasks.spawn(kept::run(core.clone())),
            tasks.spawn(crate::jobs::run(core.clone())),
            tasks.spawn(crate::lifecycle::run(core.clone())),
            tasks.spawn(crate::jobs::follow(core.clone())),
            tasks.spawn(core.clone().sweep_held()),
            tasks.spawn(crate::admission::share::run(core.clone())),
        ];
        loops.extend(Chore::ALL.map(|chore| tasks.spawn(drain::chore(core.clone(), chore))));
        if core.cell.is_joined() {
            loops.push(tasks.spawn(core.clone().follow_cluster()));
            loops.push(tasks.spawn(cell::look_after(core.clone())));
            loops.push(tasks.spawn(dial::run(core.cell.members.clone())));
        }
        let node = Arc::new(node);
        if core.cell.is_joined() {
            loops.push(tasks.spawn(crate::removal::run(Arc::downgrade(&node))));
        }
        *node.loops.lock().unwrap() = loops;
        Ok(node)
    }

    /// Its id.
    pub fn id(&self) -> NodeId {
        self.core.node
    }

    /// What people call nodes and drives, by their ids: the nodes of the cluster, and the drives of this one.
    pub fn names(&self) -> Vec<(String, String)> {
        let view = self.core.cell.view();
        let nodes = view.nodes().map(|node| (node.to_string(), view.name(node)));
        let drives = self.core.rings.drives();
        let drives = drives.iter().map(|drive| (drive.id.to_string(), drive.path.display().to_string()));
        nodes.chain(drives).filter(|(id, name)| id != name).collect()
    }

    /// The nodes of its cluster, as it knows them.
    pub fn members(&self) -> &Arc<Members> {
        &self.core.cell.members
    }

    /// Who knows where the catalog is.
    pub(crate) fn set_catalog_host(&self, host: &Arc<CatalogHost>) {
        let _ = self.catalog_host.set(Arc::downgrade(host));
    }

    pub(crate) fn catalog_host(&self) -> Option<Arc<CatalogHost>> {
        self.catalog_host.get()?.upgrade()
    }

    /// Whether the catalog can be read and changed, as far as it is on this node. May block for a moment.
    pub fn catalog_health(&self) -> stoker_catalog::Health {
        self.core.catalog.health()
    }

    /// The same of a copy of the catalog that follows here; none if none does.
    pub fn standby_health(&self) -> Option<stoker_catalog::Health> {
        self.catalog_host()?.copy_health()
    }

    /// Tells once that the others went on without this node, and why.
    pub fn lost(&self) -> tokio::sync::watch::Receiver<Option<Lost>> {
        self.core.cell.lost()
    }

    /// Its catalog.
    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.core.catalog
    }

    /// Finishes what is under way, closes rings and catalog. What is not drained stays for the next start.
    pub async fn stop(&self) {
        self.stop_within(STOP_MAX).await;
    }

    /// The same, with less patience for what is under way.
    pub(crate) async fn stop_within(&self, patience: Duration) {
        self.core.closing.store(true, Ordering::Relaxed);
        let idle = tokio::time::timeout(patience, self.core.work.idle()).await;
        if idle.is_err() {
            tracing::warn!("stopping although something is still under way");
        }
        let loops = std::mem::take(&mut *self.loops.lock().unwrap());
        for task in loops {
            task.abort();
            let _ = task.await;
        }
        crate::jobs::give_up(&self.core).await;
        self.core.snapshots.clear();
        self.core.rings.close().await;
        self.core.expiry.write();
        let seq = self.core.seq_seen.load(Ordering::Relaxed);
        self.high_water.lock().unwrap().raise(seq, self.core.level.get());
        if let Engine::Embedded(catalog) = &self.engine {
            catalog.close().await;
        }
    }
}

/// Refuses a catalog out of a backup that does not have what this node saw (R9).
async fn check_restored(catalog: &dyn Catalog, seen: u64) -> Result<()> {
    let row = catalog.get(&[keys::RESTORED]).await.map_err(error::catalog)?.pop().flatten();
    let Some(row) = row.as_ref().map(RestoredRow::of).transpose().map_err(error::catalog)? else {
        return Ok(());
    };
    if seen <= row.from_seq || seen > row.base_seq {
        return Ok(());
    }
    let message = format!(
        "the catalog was restored from a backup that ends with commit {}, but this node saw commit {seen}. What was \
         acknowledged since would be lost, so the node does not start; find it with `stoker catalog salvage`, or restore \
         with --accept-loss",
        row.from_seq
    );
    Err(StoreError::new(ErrorKind::Corrupt, message))
}

/// Begins this boot: by its session, by what it can read, and as a member if it is one. Gives the level of the cluster.
async fn begin_boot(
    catalog: &dyn Catalog,
    node: NodeId,
    session: [u8; 16],
    cell: Option<&CellOptions>,
    begin: Commit,
) -> Result<Level> {
    for _ in 0..BEGIN_TRIES_MAX {
        let (level, row) = level::read(catalog).await?;
        if cell.is_some_and(CellOptions::is_witness) && level.level < WITNESSES_SINCE {
            let message = format!(
                "the cluster is at level {}, and a witness needs level {WITNESSES_SINCE}: run this release on all of its nodes first, and \
                 let the level rise; `stoker cluster level` says what keeps it",
                level.level
            );
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        let mut change = level::begin(node, session, row.as_ref(), begin.clone());
        if let Some(cell) = cell {
            change = dial::begin(catalog, node, cell, level.level, change).await?;
        }
        if let Outcome::Done { .. } = write_surely(catalog, change).await? {
            return Ok(level.level);
        }
        // It was removed a moment ago, or another node raised the level.
        dial::check_removed(catalog, node).await?;
    }
    Err(StoreError::new(ErrorKind::Unavailable, "the rows of this node are contended; try again"))
}

/// Commits what may be committed twice, however long the catalog takes to be there.
async fn write_surely(catalog: &dyn Catalog, change: Commit) -> Result<Outcome> {
    loop {
        match catalog.commit(change.clone()).await {
            Ok(outcome) => return Ok(outcome),
            Err(fault) => wait_for_catalog(fault).await?,
        }
    }
}

/// A pause before the next try, if there can be one: a node that starts has nothing else to do than to wait.
pub(crate) async fn wait_for_catalog(fault: CatalogError) -> Result<()> {
    if !matches!(fault.kind, CatalogKind::Unavailable | CatalogKind::Unknown) {
        return Err(error::catalog(fault));
    }
    tracing::warn!("waiting for the catalog: {}", fault.message);
    tokio::time::sleep(SEQ_PAUSE).await;
    Ok(())
}

async fn watermark(core: Arc<Core>, high_water: Arc<Mutex<HighWater>>) {
    loop {
        tokio::time::sleep(SEQ_PAUSE).await;
        let seq = core.seq_seen.load(Ordering::Relaxed);
        core.snapshots.tidy();
        core.watch_clocks().await;
        let (high_water, level) = (high_water.clone(), core.level.get());
        core.tasks.blocking(move || high_water.lock().unwrap().raise(seq, level)).await;
    }
}

async fn open_catalog(
    options: &NodeOptions,
    identity: Identity,
    memory: &MemoryPlan,
) -> Result<(Arc<dyn Catalog>, Engine)> {
    match &options.catalog {
        CatalogChoice::Embedded => {
            let settings =
                EmbeddedOptions { cache_bytes: memory.catalog_bytes, ..EmbeddedOptions::default() };
            let path = options.dir.join("catalog.redb");
            let catalog = Embedded::open(&path, identity.cluster, &settings).map_err(error::catalog)?;
            let catalog = Arc::new(catalog);
            Ok((catalog.clone(), Engine::Embedded(catalog)))
        }
        CatalogChoice::Postgres(url) => {
            let catalog = Postgres::open(url, identity.cluster).await.map_err(error::catalog)?;
            if let Some(warning) = catalog.standby_warning().await.map_err(error::catalog)? {
                tracing::warn!("{warning}");
            }
            Ok((Arc::new(catalog), Engine::Shared))
        }
        CatalogChoice::Given(catalog) => Ok((catalog.clone(), Engine::Shared)),
    }
}

impl Core {
    /// After a start every record is dirty until the catalog was asked (R8). What no dirty row, no part, no tombstone and
    /// no file of a volume that never drains needs is a copy of the lake, or an orphan of a write that was never
    /// acknowledged: either may go. (D19)
    async fn sort_records(self: &Arc<Core>) -> Result<()> {
        let must_keep = self.must_keep_versions().await?;
        for drive in self.rings.drives() {
            self.sort_drive(&drive, &must_keep).await?;
        }
        Ok(())
    }

    /// The same for one drive.
    pub(crate) async fn sort_drive(&self, drive: &Drive, must_keep: &HashSet<VersionId>) -> Result<()> {
        for page in drive.ring.pages() {
            let clean: Vec<ChunkId> = page
                .iter()
                .filter(|info| !info.clean && !must_keep.contains(&info.chunk.version))
                .filter(|info| matches!(info.kind, RecordKind::Chunk | RecordKind::Name))
                .map(|info| info.chunk)
                .collect();
            if !clean.is_empty() {
                drive.ring.mark_clean(clean).await.map_err(error::ring)?;
            }
        }
        Ok(())
    }

    /// Versions whose chunks only the rings have.
    pub(crate) async fn must_keep_versions(self: &Arc<Core>) -> Result<HashSet<VersionId>> {
        let (mut must_keep, mut pages) = (HashSet::new(), DirtyPages::of(self));
        while let Some(page) = pages.next(self).await? {
            for one in page {
                must_keep.insert(one.version);
                // A layout may use chunks that were written for other versions.
                let runs = one.layout.iter().flat_map(|row| &row.runs);
                must_keep.extend(runs.map(|run| VersionId(run.version)));
                must_keep.extend(one.names.iter().filter_map(|at| at.file.name_record).map(VersionId));
            }
        }
        self.each(b"p".to_vec(), |row| {
            let part = PartRow::of(row).map_err(error::catalog)?;
            must_keep.extend(part.runs.iter().map(|run| VersionId(run.version)));
            Ok(())
        })
        .await?;
        self.each(b"t".to_vec(), |row| {
            let tombstone = TombstoneRow::of(row).map_err(error::catalog)?;
            must_keep.extend(tombstone.name_record.map(VersionId));
            Ok(())
        })
        .await?;
        self.each(keys::GARBAGE.to_vec(), |row| {
            let is_record = GarbageRow::of(row).map_err(error::catalog)?.is_delete_record();
            must_keep.extend(keys::garbage_version(&row.key).filter(|_| is_record));
            Ok(())
        })
        .await?;
        self.each(b"R".to_vec(), |row| {
            let rekey = RekeyRow::of(row).map_err(error::catalog)?;
            must_keep.extend(rekey.name_record.map(VersionId));
            Ok(())
        })
        .await?;
        self.each(b"c".to_vec(), |row| {
            let set = SetRow::of(row).map_err(error::catalog)?;
            // Of one that drains, for as long as there is work for it.
            if let (Some(volume), Some(id), SetState::Published, false) =
                (keys::volume_part(&row.key), keys::set_part(&row.key), set.state, set.drains)
            {
                must_keep.insert(record_id(volume, id));
            }
            Ok(())
        })
        .await?;
        self.each(keys::SET_WORK.to_vec(), |row| {
            if let (Some(volume), Some(id)) = (keys::volume_part(&row.key), keys::set_part(&row.key)) {
                must_keep.insert(record_id(volume, id));
            }
            Ok(())
        })
        .await?;
        Ok(must_keep)
    }

    /// Every file whose content is this version.
    pub(crate) async fn names_of(&self, version: VersionId) -> Result<Vec<Located>> {
        let mut spots = Vec::new();
        self.each(keys::references(version), |row| {
            let parts = keys::reference_parts(&row.key);
            spots.extend(parts.map(|(volume, parent, name)| Spot { volume, parent, name: name.to_vec() }));
            Ok(())
        })
        .await?;
        let mut names = Vec::with_capacity(spots.len());
        for spot in spots {
            let located = self.names.file_at(spot).await.map_err(error::catalog)?;
            names.extend(located.filter(|located| located.file.version() == version));
        }
        Ok(names)
    }

    /// Every row with a prefix.
    pub(crate) async fn each(
        &self,
        prefix: Vec<u8>,
        mut see: impl FnMut(&stoker_catalog::Row) -> Result<()>,
    ) -> Result<()> {
        let mut range = Range::prefix(&prefix, 1_000);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            page.rows.iter().try_for_each(&mut see)?;
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }
}
