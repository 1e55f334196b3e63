//! What operators see: status, numbers, explanations.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::kv::{Health, Range};
use stoker_format::{DriveId, NodeId};
use stoker_schema::rows::{DirtyRow, Drain, RowValue, keys};
use stoker_store::{
    CopyFacts, CopyPlace, DrainPolicy, ErrorKind, Explanation, HolderInfo, Key, NodeStatus, Reach, Receipt,
    Result, RingStatus, StoreError,
};

use crate::cache::PIECE;
use crate::core::Core;
use crate::lookup::no_such_key;
use crate::rings::Drive;
use crate::sources::Source;
use crate::views::Seen;
use crate::volumes::Volume;
use crate::{clock, error, rings};

/// Dirty rows counted one by one; beyond, the numbers are what the drainer has planned.
const COUNTED_MAX: usize = 100_000;

/// A drive of this node that takes longer to say how it is hangs.
const DRIVE_MAX: Duration = Duration::from_millis(500);

/// What the catalog says of this node.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    alone: Alone,
    /// Files that wait for a decision.
    conflicts: u64,
    /// Drives that are not there: what to say of them, and whether something is there that the lake lacks.
    missing: Vec<(String, DriveId, Option<&'static str>)>,
}

/// What only this node has.
#[derive(Clone, Default)]
struct Alone {
    /// Files that will be drained.
    files: u64,
    /// Bytes of these.
    bytes: u64,
    /// Their oldest change, milliseconds since 1970.
    oldest_ms: Option<u64>,
    /// Files of volumes that never drain.
    kept: u64,
    /// Parts of uploads that are not complete.
    parts: u64,
}

impl Alone {
    fn words(&self) -> Vec<String> {
        let count = |count: u64, one: &str, many: &str| match count {
            1 => format!("1 {one}"),
            _ => format!("{count} {many}"),
        };
        let mut words = Vec::new();
        if self.files == 0 {
            words.push("every file that drains is in the lake; the rings are a cache of it".to_owned());
        } else {
            let files = count(self.files, "file is", "files are");
            words
                .push(format!("{files} on this node alone: lost if the drive dies before the drain is done"));
        }
        if self.kept > 0 {
            let files = count(self.kept, "file is", "files are");
            words.push(format!("{files} in volumes that never drain: lost if the drive dies"));
        }
        if self.parts > 0 {
            let parts =
                count(self.parts, "part of an unfinished upload is", "parts of unfinished uploads are");
            words.push(format!("{parts} on this node alone"));
        }
        words
    }
}

/// How a cell is called.
fn cell_name(cell: &str) -> &str {
    if cell.is_empty() { "(no name)" } else { cell }
}

impl Core {
    async fn alone(&self) -> Result<Alone> {
        let mut never = std::collections::HashSet::new();
        for volume in self.volumes.all().await? {
            if Core::drain_of(&volume) == Drain::Never {
                never.insert(volume.id.0);
            }
        }
        let mut alone = Alone::default();
        self.count_parts(&mut alone).await?;
        let mut range = Range::prefix(&keys::dirty_of(self.node), 1_000);
        let mut versions = std::collections::HashSet::new();
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let dirty = DirtyRow::of(row).map_err(error::catalog)?;
                if dirty.home != self.node.0 {
                    // A copy for another node, which counts it.
                    continue;
                }
                // A version on several drives has a row for each.
                if !keys::dirty_version(&row.key).is_some_and(|version| versions.insert(version)) {
                    continue;
                }
                if never.contains(&dirty.volume) {
                    alone.kept += 1;
                    continue;
                }
                alone.files += 1;
                alone.bytes += dirty.bytes;
                let oldest_ms = alone.oldest_ms.map_or(dirty.since_ms, |known| known.min(dirty.since_ms));
                alone.oldest_ms = Some(oldest_ms);
            }
            if versions.len() > COUNTED_MAX {
                (alone.files, alone.bytes, alone.oldest_ms) = self.drainer.sums();
                return Ok(alone);
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(alone),
            }
        }
    }

    async fn count_parts(&self, alone: &mut Alone) -> Result<()> {
        let mut range = Range::prefix(b"p", 1_000);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            alone.parts += page.rows.len() as u64;
            match page.rows.last() {
                Some(last) if page.more && alone.parts < COUNTED_MAX as u64 => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }

    /// The state of the node. What the catalog would have to be asked for is what was known last, if it does not answer.
    pub async fn node_status(self: &Arc<Core>) -> Result<NodeStatus> {
        match self.view(&self.views.status, self.counts()).await? {
            Seen::Now(counts) => self.status_with(counts, true).await,
            Seen::Before(counts) => self.status_with(counts, false).await,
            Seen::Never => {
                let (files, bytes, oldest_ms) = self.drainer.sums();
                let alone = Alone { files, bytes, oldest_ms, ..Alone::default() };
                self.status_with(Counts { alone, ..Counts::default() }, false).await
            }
        }
    }

    /// What the catalog is asked for.
    async fn counts(&self) -> Result<Counts> {
        let mut counts = Counts { alone: self.alone().await?, ..Counts::default() };
        self.each(b"x".to_vec(), |_| {
            counts.conflicts += 1;
            Ok(())
        })
        .await?;
        for missing in self.workshop.missing() {
            let Ok(id) = missing.drive.parse() else { continue };
            let held = match (self.has_undrained(id).await?, self.is_empty_drive(id).await?) {
                (true, _) => Some("files that are not in the lake"),
                (false, false) => Some("parts of unfinished uploads"),
                (false, true) => None,
            };
            counts.missing.push((missing.summary(), id, held));
        }
        Ok(counts)
    }

    /// A drive of this node says how it is, unless it hangs.
    pub(crate) async fn ring_status(drive: &Drive) -> Result<stoker_ring::Status> {
        let hangs = |_| StoreError::new(ErrorKind::Unavailable, "the drive does not answer");
        tokio::time::timeout(DRIVE_MAX, drive.ring.status()).await.map_err(hangs)?.map_err(error::ring)
    }

    async fn status_with(&self, counts: Counts, is_fresh: bool) -> Result<NodeStatus> {
        let now_ms = clock::now_ms();
        let mut ring_states = Vec::new();
        for drive in self.rings.drives() {
            let path = drive.path.display().to_string();
            ring_states.push(match Core::ring_status(&drive).await {
                Ok(status) => RingStatus {
                    path,
                    drive: drive.id.to_string(),
                    bytes: status.superblock.segment_size * u64::from(status.superblock.segment_count),
                    keep_bytes: status.keep_bytes,
                    clean_bytes: status.clean_bytes,
                    records: status.records as u64,
                    poisoned: drive.why_failed().or(status.poisoned.clone()),
                    io: status.io_engine.clone(),
                },
                Err(fault) => RingStatus {
                    path,
                    drive: drive.id.to_string(),
                    bytes: drive.bytes,
                    keep_bytes: 0,
                    clean_bytes: 0,
                    records: 0,
                    poisoned: drive.why_failed().or(Some(fault.message)),
                    io: String::new(),
                },
            });
        }
        let Counts { alone, conflicts, missing } = counts;
        let lake_trouble = self.lake_trouble(now_ms);
        let failed = ring_states.iter().filter(|ring| ring.poisoned.is_some());
        let failed: Vec<String> = failed.map(|ring| ring.path.clone()).collect();
        let mut words = match self.cell.has_others() {
            true if self.cell.view().counting(self.node) > 1 => self.cell.words(alone.files + alone.kept),
            // Nobody could take a copy: a witness, or one that nobody reaches.
            true => [self.cell.words(0), alone.words()].concat(),
            false => alone.words(),
        };
        let mut is_whole = true;
        for (summary, id, held) in missing {
            words.push(summary);
            // Until others have what was there, or it is given up, there are files or parts that nobody can read.
            if let Some(what) = held {
                is_whole = false;
                words.push(format!("{what} are on drive {id}, which is missing: `stoker risk --lost`"));
            }
        }
        for path in &failed {
            words.push(format!("drive {path} failed and takes no more: `stoker drive replace`"));
        }
        if let Some(trouble) = &lake_trouble {
            words.push(format!("the lake makes trouble: {trouble}"));
        }
        let is_written = match self.catalog.health() {
            Health::Good => is_fresh,
            Health::ReadOnly(why) | Health::Failed(why) => {
                words.push(format!("the catalog takes no changes: {why}"));
                false
            }
            Health::Stalled => {
                words
                    .push("the catalog acknowledges nothing: too few nodes that follow it answer".to_owned());
                false
            }
        };
        if conflicts > 0 {
            words.push(format!("{conflicts} files wait for a decision: `stoker conflict ls`"));
        }
        Ok(NodeStatus {
            node: self.node.to_string(),
            cluster: self.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_ms: self.started_ms,
            catalog: self.catalog.describe(),
            nodes: self.cell.status(),
            rings: ring_states,
            sources: self.sources.status(self.source_names(self.volumes.known())),
            dirty_files: alone.files,
            dirty_bytes: alone.bytes,
            dirty_age_ms: alone.oldest_ms.map_or(0, |since| now_ms.saturating_sub(since)),
            conflicts,
            drains: self.drainer.active() as u64,
            lake_trouble,
            cache_bytes: self.cache.bytes(),
            ready: !self.closing.load(Ordering::Relaxed) && self.takes_requests() && is_whole && is_written,
            words,
        })
    }

    /// Whether it does what it is there for: a witness without drives does, too.
    pub(crate) fn takes_requests(&self) -> bool {
        self.is_witness || self.rings.is_serving()
    }

    /// How sources of reads are called.
    pub(crate) fn source_names(&self, volumes: Vec<Arc<Volume>>) -> impl Fn(Source) -> String + use<> {
        let (view, own) = (self.cell.view(), self.node);
        let names = crate::numbers::node_labels(&view);
        let all = self.rings.numbered();
        // One that failed, and a new one in its place.
        let is_shared = |path: &Path| all.iter().filter(|(_, drive)| drive.path == path).count() > 1;
        let name = |(at, drive): &(usize, Arc<Drive>)| match is_shared(&drive.path) {
            true => (*at, format!("{} ({})", drive.path.display(), drive.id)),
            false => (*at, drive.path.display().to_string()),
        };
        let drives: HashMap<usize, String> = all.iter().map(name).collect();
        move |source: Source| match source {
            Source::Drive(at) => drives.get(&at).cloned().unwrap_or_else(|| format!("taken out: drive {at}")),
            Source::Peer(node) | Source::Turn(node) => {
                let Some(member) = view.member(node) else { return node.to_string() };
                let name = names.get(&node).cloned().unwrap_or_else(|| node.to_string());
                match view.is_near(own, node) {
                    true => name,
                    false => format!("{name} of cell {}", cell_name(&member.row.cell)),
                }
            }
            Source::Lake(id) => volumes
                .iter()
                .find(|volume| volume.id == id)
                .map_or(id.to_string(), |volume| volume.name.clone()),
        }
    }

    /// What receipt and membership say of the copies of a file.
    fn copy_facts(&self, receipt: &Receipt, is_in_lake: bool) -> CopyFacts {
        let view = self.cell.view();
        let mut places: Vec<CopyPlace> = Vec::new();
        for holder in &receipt.holders {
            let (Ok(node), Ok(drive)) = (holder.node.parse::<NodeId>(), holder.drive.parse::<DriveId>())
            else {
                continue;
            };
            let reach = match self.is_readable(&view, node, drive) {
                true => Reach::Readable,
                // Of a node that is in no cluster the catalog need not be asked.
                false if !self.cell.is_joined() || view.is_drive_live(drive) => Reach::Away,
                false => Reach::Gone,
            };
            let name = view.name(node);
            match places.iter_mut().find(|place| place.node == name) {
                // Parts of it are on another drive of that node: what can be read is as much as the worse of them gives.
                Some(place) => place.reach = worse(place.reach, reach),
                None => places.push(CopyPlace { node: name, is_here: node == self.node, reach }),
            }
        }
        CopyFacts { copies: receipt.copies, places, drain: receipt.drain.clone(), is_in_lake }
    }

    /// Where a file is, and what happens to it next.
    pub async fn explain_file(self: &Arc<Core>, volume: &Arc<Volume>, key: &Key) -> Result<Explanation> {
        let path = key.as_bytes();
        let seen = self.seen(volume, path).await?.ok_or_else(|| no_such_key(path))?;
        let file = &seen.file;
        let runs = self.names.runs(file).await.map_err(error::catalog)?;
        let (mut chunks, mut local, mut cached) = (0, 0, 0);
        let mut holders: Vec<HolderInfo> = self
            .rings
            .drives()
            .iter()
            .map(|drive| HolderInfo { drive: drive.path.display().to_string(), chunks: 0, bytes: 0 })
            .collect();
        for (chunk, len) in rings::chunks(&runs) {
            chunks += 1;
            let piece_len = |piece: u32| (len as usize - piece as usize * PIECE).min(PIECE);
            let is_hot = |piece| self.cache.has(chunk, piece, piece_len(piece));
            cached += u64::from((0..len.div_ceil(PIECE as u32)).any(is_hot));
            let mut here = false;
            for (drive, holder) in self.rings.drives().iter().zip(&mut holders) {
                if drive.has(&chunk, len as usize) {
                    here = true;
                    holder.chunks += 1;
                    holder.bytes += u64::from(len);
                }
            }
            local += u64::from(here);
        }
        holders.retain(|holder| holder.chunks > 0);
        let seq = seen.located.as_ref().map_or(0, |located| located.seq);
        let receipt = self.receipt_now(volume, path, file, seq).await?;
        let mut words = vec![match chunks {
            0 => "it has no bytes; its name is in the catalog".to_owned(),
            _ => self.copy_facts(&receipt, file.source.is_some()).words(),
        }];
        words.extend(match file.drain {
            Drain::Clean if local == chunks => Some("all of it is on drives here, too".to_owned()),
            Drain::Clean => Some(format!("{local} of {chunks} chunks are on drives here, too")),
            Drain::Never => Some("it stays on the drives: the volume does not drain".to_owned()),
            Drain::Conflict => Some(match self.why_parked(volume, path).await? {
                Some(reason) => format!("not in the lake: {reason}. See `stoker conflict ls`"),
                None => "not in the lake: somebody else changed the object. See `stoker conflict ls`".into(),
            }),
            Drain::Dirty => Some(format!("not in the lake yet; it drains {}", when_drained(volume))),
        });
        let elsewhere = file.lake.iter().filter(|lake| file.drain == Drain::Clean && lake.key != path);
        words.extend(elsewhere.map(|lake| {
            let there = String::from_utf8_lossy(&lake.key);
            format!("the lake has it as `{there}` until it has followed the rename")
        }));
        for (node, missing) in self.lacking(file.version()).await? {
            let name = self.cell.view().name(node);
            words.push(format!(
                "{missing} chunks are missing on the drives of {name}, which does not count as a holder until they are back"
            ));
        }
        let spilled: u64 = runs.iter().filter(|run| run.is_spilled()).map(|run| run.byte_len()).sum();
        if spilled > 0 && file.drain != Drain::Clean {
            words.push(format!(
                "too large for the rings: {spilled} of {} bytes are in the lake already, under a key of their own",
                file.size
            ));
        }
        if file.allocated() < file.size {
            words.push(format!(
                "sparse: {} of {} bytes are stored, the rest are holes",
                file.allocated(),
                file.size
            ));
        }
        words.extend(self.vault.summary(volume.id));
        let versions = runs.iter().map(|run| run.version).chain([file.version()]);
        words.extend(self.sources.why_slow(versions, self.source_names(self.volumes.known())));
        Ok(Explanation {
            file: Core::info(path, file)?,
            receipt,
            chunks,
            chunks_local: local,
            chunks_cached: cached,
            holders,
            words,
        })
    }
}

fn worse(one: Reach, two: Reach) -> Reach {
    match (one, two) {
        (Reach::Gone, _) | (_, Reach::Gone) => Reach::Gone,
        (Reach::Away, _) | (_, Reach::Away) => Reach::Away,
        _ => Reach::Readable,
    }
}

fn when_drained(volume: &Volume) -> String {
    let policy = &volume.policy;
    match policy.drain {
        DrainPolicy::OnDemand => "when `stoker drain` asks for it".to_owned(),
        DrainPolicy::Every(n) => format!("with every {n}th version of its name"),
        _ => format!(
            "once it was left alone for {} s, or {} s after its oldest change",
            policy.drain_quiet_s, policy.drain_lag_max_s
        ),
    }
}
