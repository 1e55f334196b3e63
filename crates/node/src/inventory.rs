//! The inventory: what rows say this node has, compared with what its drives have. (D77)
//!
//! A drive can lose what it acknowledged without an error: a header rots and recovery takes the record for none, a segment
//! file is gone. So a node that starts compares its index with its rows before it serves, and again now and then while it
//! runs. What is missing is written down in a row of its own, which takes the node out of those who count as holders; then
//! it is brought back from the others ([`crate::missing`]), and the row goes.
//!
//! Which chunks a node is to have is not written anywhere, and follows from three rules. As many nodes as the class asks for,
//! or fewer: each has every chunk. The home has the chunks that were written for the version itself. Of the rest each chunk
//! is on as many of the holders as the class asks for, and these are asked, which needs peers and comes after the start.
//! Headers are read after the start as well: a footer names records whose headers nobody has looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome};
use stoker_format::{ChunkId, ChunkRun, DriveId, NodeId, RecordKind, VersionId, VolumeId};
use stoker_ring::RecordInfo;
use stoker_schema::rows::{Drain, DriveRow, HolderRow, MissingChunk, MissingRow, PartRow, RowValue, keys};
use stoker_store::Result;

use crate::core::{Core, add};
use crate::rings::{self, Drive};
use crate::undrained::{DirtyPages, DirtyVersion};
use crate::{clock, error};

/// Between looks for what is to be brought back.
const PAUSE: Duration = Duration::from_secs(2);

/// Looks from one comparison to the next, and to the next one if somebody did not answer.
const COMPARE_EVERY: u64 = 300;
const COMPARE_SOON: u64 = 5;

/// Pause before a segment file that is not at its path is called gone.
const FILES_PAUSE: Duration = Duration::from_secs(1);

/// Rows that one commit writes.
const NOTE_AT_ONCE: usize = 64;

/// Files that are named in the log by one comparison.
const NAMED_MAX: u64 = 100;

/// Segment files that are named in the log.
const SEGMENTS_NAMED_MAX: usize = 20;

/// Headers that are read at the same time.
const HEADERS_AT_ONCE: usize = 16;

/// Chunks that peers are asked about before others are compared.
const ASKED_MAX: usize = 100_000;

/// What the inventory found and did since the start.
#[derive(Default)]
pub(crate) struct Inventory {
    /// Versions of which chunks were missing.
    pub missing: AtomicU64,
    /// Versions that are whole again.
    pub restored: AtomicU64,
    /// Everything was looked at once since the start.
    is_known: AtomicBool,
    /// Chunks that the index has and that cannot be read.
    bad: Mutex<HashSet<ChunkId>>,
    /// Something was found bad since the last comparison.
    is_due: AtomicBool,
    wake: tokio::sync::Notify,
}

impl Inventory {
    /// A chunk cannot be read here, and nobody else gave it: it is missing, whatever the index says.
    pub fn note_bad(&self, chunk: ChunkId) {
        if self.bad.lock().unwrap().insert(chunk) {
            self.is_due.store(true, Ordering::Relaxed);
            self.wake.notify_waiters();
        }
    }

    /// Why nobody can say yet what is missing here; none once everything was looked at.
    pub fn unknown(&self) -> Option<String> {
        let is_known = self.is_known.load(Ordering::Relaxed);
        (!is_known).then(|| "a node still compares its drives with the catalog after its start".to_owned())
    }

    /// The next look compares everything.
    pub fn compare_again(&self) {
        self.is_due.store(true, Ordering::Relaxed);
    }

    /// The next look comes at once.
    pub fn look_again(&self) {
        self.wake.notify_waiters();
    }

    /// Sound bytes of a chunk are here, or nothing of it.
    pub fn note_sound(&self, chunk: &ChunkId) {
        self.bad.lock().unwrap().remove(chunk);
    }

    fn is_bad(&self, chunk: &ChunkId) -> bool {
        self.bad.lock().unwrap().contains(chunk)
    }
}

/// A version that this node is to have some of.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub version: VersionId,
    pub volume: VolumeId,
    pub chunks: Vec<(ChunkId, u32)>,
    /// Nodes that hold some of it, and their drives.
    pub nodes: BTreeSet<NodeId>,
    pub drives: BTreeSet<DriveId>,
    /// Copies that its class asks for.
    pub copies: usize,
    /// This node owes its drain.
    pub is_home: bool,
    /// The rows that say so, as they were.
    pub checks: Vec<Check>,
}

impl Wanted {
    /// Whether this node is to have a chunk; none if only the others can tell.
    fn is_here(&self, chunk: &ChunkId) -> Option<bool> {
        if self.nodes.len() <= self.copies || (self.is_home && chunk.version == self.version) {
            return Some(true);
        }
        None
    }
}

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    let mut looks_left = 0u64;
    while !core.closing.load(Ordering::Relaxed) {
        let mut woken = std::pin::pin!(core.inventory.wake.notified());
        woken.as_mut().enable();
        if looks_left == 0 || core.inventory.is_due.swap(false, Ordering::Relaxed) {
            looks_left = match core.compare_further().await {
                Ok(true) => COMPARE_EVERY,
                Ok(false) => COMPARE_SOON,
                Err(fault) => {
                    tracing::warn!("comparing the drives with the catalog: {fault}");
                    COMPARE_SOON
                }
            };
        }
        if let Err(fault) = core.restore_missing().await {
            tracing::warn!("bringing back what is missing: {fault}");
        }
        looks_left -= 1;
        tokio::select! {
            biased;
            () = woken => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

impl Core {
    /// Says which segment files were gone when the drives were opened. What they held is found by the rows.
    pub(crate) async fn tell_segments_missing(&self) -> Result<()> {
        for drive in self.rings.drives() {
            let missing = drive.ring.status().await.map_err(error::ring)?.segments_missing;
            for segment in missing.iter().take(SEGMENTS_NAMED_MAX) {
                let file = drive.path.join(format!("segment-{segment:08}"));
                tracing::error!(drive = %drive.path.display(), file = %file.display(), "a segment file is missing");
            }
            if missing.len() > SEGMENTS_NAMED_MAX {
                let count = missing.len();
                tracing::error!(drive = %drive.path.display(), "{count} segment files are missing");
            }
        }
        Ok(())
    }

    /// Compares what the rows say with the index, and notes what is missing (R6): before this node serves.
    pub(crate) async fn compare_inventory(self: &Arc<Core>) -> Result<()> {
        self.compare(&mut Vec::new()).await
    }

    /// The same, and what takes longer: headers are read, peers are asked. False if one did not answer.
    async fn compare_further(self: &Arc<Core>) -> Result<bool> {
        self.look_at_segment_files().await;
        self.compare_headers().await;
        let mut doubtful = Vec::new();
        self.compare(&mut doubtful).await?;
        let done = self.compare_with_peers(doubtful).await?;
        self.inventory.is_known.store(true, Ordering::Relaxed);
        Ok(done)
    }

    /// Notes what this node is to have and has not; gives what only others can tell.
    async fn compare(self: &Arc<Core>, doubtful: &mut Vec<(Wanted, Vec<MissingChunk>)>) -> Result<()> {
        let away = self.versions_on_lost_drives().await?;
        let (mut named, mut pages) = (0, DirtyPages::of(self));
        let mut copies: HashMap<u32, usize> = HashMap::new();
        for volume in self.volumes.all_and_leaving().await? {
            copies.insert(volume.id.0, self.class(&volume).copies());
        }
        let copies_of = |volume: VolumeId| copies.get(&volume.0).copied().unwrap_or(1);
        while let Some(page) = pages.next(self).await? {
            let mut missing = Vec::new();
            for one in page.into_iter().filter(|one| !away.contains(&one.version)) {
                if let Some(wanted) = self.wanted_version(&one, copies_of).await? {
                    self.sort_missing(wanted, &mut missing, doubtful);
                }
            }
            self.note_missing(missing, &mut named).await?;
        }
        let mut missing = Vec::new();
        for wanted in self.wanted_parts(copies_of).await? {
            self.sort_missing(wanted, &mut missing, doubtful);
        }
        self.note_missing(missing, &mut named).await
    }

    /// Versions on drives of this node that failed or are not here: they are protected again as a whole.
    async fn versions_on_lost_drives(&self) -> Result<HashSet<VersionId>> {
        let counts = |drive: &&Arc<Drive>| !drive.is_failed();
        let here: BTreeSet<DriveId> =
            self.rings.drives().iter().filter(counts).map(|drive| drive.id).collect();
        let mut gone = Vec::new();
        self.each(b"D".to_vec(), |row| {
            let id = row.key.get(1..17).and_then(|id| id.try_into().ok()).map(DriveId);
            let is_own = DriveRow::of(row).map_err(error::catalog)?.node == self.node.0;
            gone.extend(id.filter(|id| is_own && !here.contains(id)));
            Ok(())
        })
        .await?;
        let mut versions = HashSet::new();
        for id in gone {
            self.each(keys::dirty_on(self.node, id), |row| {
                versions.extend(keys::dirty_version(&row.key));
                Ok(())
            })
            .await?;
        }
        Ok(versions)
    }

    /// What a file needs; none if it needs nothing of this node.
    pub(crate) async fn wanted_version(
        &self,
        one: &DirtyVersion,
        copies_of: impl Fn(VolumeId) -> usize,
    ) -> Result<Option<Wanted>> {
        let undrained = || one.names.iter().filter(|located| located.file.drain != Drain::Clean);
        // What the lake has needs no copy here.
        let Some(first) = undrained().next().filter(|_| undrained().all(|at| at.file.source.is_none()))
        else {
            return Ok(None);
        };
        let runs = one.runs(self).await?;
        let holders = || undrained().flat_map(|located| &located.file.holders);
        Ok(Some(Wanted {
            version: one.version,
            volume: first.spot.volume,
            chunks: rings::chunks(&runs).collect(),
            nodes: holders().map(|holder| NodeId(holder.node)).collect(),
            drives: holders().map(|holder| DriveId(holder.drive)).collect(),
            copies: copies_of(first.spot.volume),
            is_home: first.file.home == self.node.0,
            checks: undrained().map(|at| Check::Seq(at.spot.row_key(), at.seq)).collect(),
        }))
    }

    /// What parts of unfinished uploads need.
    pub(crate) async fn wanted_parts(&self, copies_of: impl Fn(VolumeId) -> usize) -> Result<Vec<Wanted>> {
        let mut volumes: HashMap<VersionId, VolumeId> = HashMap::new();
        self.each(keys::UPLOADS.to_vec(), |row| {
            if let (Some((_, upload)), Some(volume)) =
                (keys::upload_parts(&row.key), keys::volume_part(&row.key))
            {
                volumes.insert(upload, volume);
            }
            Ok(())
        })
        .await?;
        let drives = self.rings.drives();
        let counts = |id: &[u8; 16]| drives.iter().any(|drive| drive.id.0 == *id && !drive.is_failed());
        let mut wanted = Vec::new();
        self.each(keys::PARTS.to_vec(), |row| {
            let Some(volume) = keys::part_upload(&row.key).and_then(|upload| volumes.get(&upload)) else {
                return Ok(());
            };
            let part = PartRow::of(row).map_err(error::catalog)?;
            let own = || part.holders.iter().filter(|holder: &&HolderRow| holder.node == self.node.0);
            if own().next().is_none() || !own().all(|holder| counts(&holder.drive)) {
                return Ok(());
            }
            let runs: Vec<ChunkRun> = part.runs.iter().map(|run| run.at(0)).collect();
            wanted.push(Wanted {
                version: VersionId(part.version),
                volume: *volume,
                chunks: rings::chunks(&runs).collect(),
                nodes: part.holders.iter().map(|holder| NodeId(holder.node)).collect(),
                drives: part.holders.iter().map(|holder| DriveId(holder.drive)).collect(),
                copies: copies_of(*volume),
                is_home: false,
                checks: vec![Check::Seq(row.key.clone(), row.seq)],
            });
            Ok(())
        })
        .await?;
        Ok(wanted)
    }

    /// Whether a drive that counts has so much of a chunk, as far as is known without reading it.
    pub(crate) fn has_copy(&self, chunk: &ChunkId, len: u32) -> bool {
        let drives = self.rings.drives();
        let mut counting = drives.iter().filter(|drive| !drive.is_failed());
        counting.any(|drive| drive.has(chunk, len as usize)) && !self.inventory.is_bad(chunk)
    }

    /// Sorts what is not here: what is missing, and what only others can tell.
    pub(crate) fn sort_missing(
        &self,
        wanted: Wanted,
        missing: &mut Vec<(Wanted, Vec<MissingChunk>)>,
        doubtful: &mut Vec<(Wanted, Vec<MissingChunk>)>,
    ) {
        let (mut gone, mut unsure) = (Vec::new(), Vec::new());
        for (chunk, len) in wanted.chunks.iter().filter(|(chunk, len)| !self.has_copy(chunk, *len)) {
            match wanted.is_here(chunk) {
                Some(true) => gone.push(MissingChunk::new(*chunk, *len)),
                Some(false) => {}
                None => unsure.push(MissingChunk::new(*chunk, *len)),
            }
        }
        let light = |wanted: &Wanted| Wanted { chunks: Vec::new(), ..wanted.clone() };
        if !gone.is_empty() {
            missing.push((light(&wanted), gone));
        }
        let waiting: usize = doubtful.iter().map(|(_, chunks)| chunks.len()).sum();
        if !unsure.is_empty() && waiting < ASKED_MAX {
            doubtful.push((light(&wanted), unsure));
        }
    }

    /// Writes down that this node lacks chunks: from then on it does not count as a holder of these versions.
    pub(crate) async fn note_missing(
        self: &Arc<Core>,
        missing: Vec<(Wanted, Vec<MissingChunk>)>,
        named: &mut u64,
    ) -> Result<()> {
        for batch in missing.chunks(NOTE_AT_ONCE) {
            let mut noted: Vec<&(Wanted, Vec<MissingChunk>)> = batch.iter().collect();
            if !self.commit_missing(batch).await? {
                // Something changed since it was read; what is still so is written down one by one.
                noted.clear();
                for one in batch {
                    if self.commit_missing(std::slice::from_ref(one)).await? {
                        noted.push(one);
                    }
                }
            }
            add(&self.inventory.missing, noted.len() as u64);
            for (wanted, chunks) in noted {
                self.tell_missing(wanted, chunks, named).await?;
            }
        }
        if !missing.is_empty() {
            self.inventory.wake.notify_waiters();
        }
        Ok(())
    }

    /// False if one of them is not as it was read.
    async fn commit_missing(&self, batch: &[(Wanted, Vec<MissingChunk>)]) -> Result<bool> {
        let mut change = Commit::new();
        let row_keys: Vec<Vec<u8>> =
            batch.iter().map(|(wanted, _)| keys::missing(wanted.version, self.node)).collect();
        let known: Vec<&[u8]> = row_keys.iter().map(Vec::as_slice).collect();
        let known = self.catalog.get(&known).await.map_err(error::catalog)?;
        for ((wanted, chunks), known) in batch.iter().zip(known) {
            let known = known.as_ref().map(MissingRow::of).transpose().map_err(error::catalog)?;
            let mut row = MissingRow::new(wanted.volume, clock::now_ms(), chunks);
            if let Some(known) = known {
                // Found by another look, and not back yet.
                row.add(&known);
            }
            change.checks.extend(wanted.checks.iter().cloned());
            change = change.put(keys::missing(wanted.version, self.node), row.encode());
        }
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }

    /// Says in the log which files lost a copy.
    async fn tell_missing(&self, wanted: &Wanted, chunks: &[MissingChunk], named: &mut u64) -> Result<()> {
        *named += 1;
        if *named > NAMED_MAX {
            if *named == NAMED_MAX + 1 {
                tracing::error!("and more files of which this node lacks chunks; `stoker risk` counts them");
            }
            return Ok(());
        }
        let volume = self.volumes.by_id(wanted.volume).await?;
        let volume = volume.map_or_else(|| wanted.volume.to_string(), |volume| volume.name.clone());
        let first = self.names_of(wanted.version).await?.into_iter().next();
        let key = match first {
            Some(located) => self.names.path_of(&located.spot).await.map_err(error::catalog)?,
            None => None,
        };
        let file = key.map_or_else(|| "(no name)".to_owned(), |key| key.escape_ascii().to_string());
        tracing::error!(
            volume, file, version = %wanted.version, chunks = chunks.len(),
            "chunks that this node is to have are not on its drives: its copy does not count, and is brought back from \
             those who have it"
        );
        Ok(())
    }

    /// Reads the header of every record that only rings have.
    async fn compare_headers(self: &Arc<Core>) {
        let drives = self.rings.drives();
        let is_here = |chunk: &ChunkId| drives.iter().any(|drive| drive.ring.stat(chunk).is_some());
        self.inventory.bad.lock().unwrap().retain(is_here);
        for drive in self.rings.drives() {
            for page in drive.ring.pages() {
                let is_meant = |info: &&RecordInfo| !info.clean && info.kind == RecordKind::Chunk;
                let dirty: Vec<ChunkId> = page.iter().filter(is_meant).map(|info| info.chunk).collect();
                for part in dirty.chunks(HEADERS_AT_ONCE) {
                    if self.check_open().is_err() || drive.is_failed() {
                        return;
                    }
                    let read = part.iter().map(|chunk| drive.ring.has_sound_header(*chunk));
                    let read = futures_util::future::join_all(read).await;
                    if self.check_open().is_err() {
                        return;
                    }
                    for (chunk, is_sound) in part.iter().zip(read) {
                        if !is_sound && drive.ring.stat(chunk).is_some_and(|info| !info.clean) {
                            tracing::error!(%chunk, "the header of a record that only rings have cannot be read");
                            add(&self.stats.scrub_bad, 1);
                            self.inventory.bad.lock().unwrap().insert(*chunk);
                        }
                    }
                }
            }
        }
    }

    /// Asks the other holders for chunks that are not here and need not be, if enough of them have them.
    /// False if one did not answer.
    async fn compare_with_peers(
        self: &Arc<Core>,
        doubtful: Vec<(Wanted, Vec<MissingChunk>)>,
    ) -> Result<bool> {
        let (missing, is_sure) = self.lacking_by_peers(doubtful).await;
        self.note_missing(missing, &mut 0).await?;
        Ok(is_sure)
    }

    /// Of chunks that are not here, those that too few of the others have; false if one of these did not answer.
    pub(crate) async fn lacking_by_peers(
        &self,
        doubtful: Vec<(Wanted, Vec<MissingChunk>)>,
    ) -> (Vec<(Wanted, Vec<MissingChunk>)>, bool) {
        let view = self.cell.view();
        // Versions may share a chunk; it is asked for once.
        let mut asked: BTreeMap<NodeId, BTreeSet<(ChunkId, u32)>> = BTreeMap::new();
        for (wanted, chunks) in &doubtful {
            for node in wanted.nodes.iter().filter(|node| **node != self.node && !view.is_down(**node)) {
                asked.entry(*node).or_default().extend(chunks.iter().map(|one| (one.chunk(), one.len)));
            }
        }
        let mut have: HashMap<ChunkId, BTreeSet<NodeId>> = HashMap::new();
        let mut silent: BTreeSet<NodeId> = BTreeSet::new();
        for (node, chunks) in asked {
            let chunks: Vec<(ChunkId, u32)> = chunks.into_iter().collect();
            match self.cell.have(node, &chunks).await {
                Ok(which) => {
                    for ((chunk, _), _) in chunks.iter().zip(which).filter(|(_, has)| *has) {
                        have.entry(*chunk).or_default().insert(node);
                    }
                }
                Err(fault) => {
                    tracing::debug!(%node, "it does not say what it has: {fault}");
                    silent.insert(node);
                }
            }
        }
        let mut missing = Vec::new();
        // Whoever does not answer may have them: the next comparison asks again. What a node or a drive held that is gone is
        // protected again without this one.
        let is_sure = |wanted: &Wanted| {
            let answers = |node: &NodeId| !silent.contains(node) && !view.is_down(*node);
            wanted.nodes.iter().all(answers) && wanted.drives.iter().all(|drive| view.is_drive_live(*drive))
        };
        for (wanted, mut chunks) in doubtful.into_iter().filter(|(wanted, _)| is_sure(wanted)) {
            // Whoever has it for another version may drop it when that one goes.
            let holders = |chunk: &ChunkId| {
                have.get(chunk).map_or(0, |nodes| nodes.intersection(&wanted.nodes).count())
            };
            chunks.retain(|one| holders(&one.chunk()) < wanted.copies);
            chunks.retain(|one| !self.has_copy(&one.chunk(), one.len));
            if !chunks.is_empty() {
                missing.push((wanted, chunks));
            }
        }
        (missing, silent.is_empty())
    }

    /// A segment file that was removed under a running ring can be read as long as the ring runs, and not after.
    async fn look_at_segment_files(self: &Arc<Core>) {
        for drive in self.rings.drives().into_iter().filter(|drive| !drive.is_failed()) {
            let mut gone = self.segment_files_gone(&drive).await;
            if !gone.is_empty() {
                // One that is just being replaced lies there in a moment.
                tokio::time::sleep(FILES_PAUSE).await;
                let still = self.segment_files_gone(&drive).await;
                gone.retain(|path| still.contains(path));
            }
            if let Some(first) = gone.first() {
                let why =
                    format!("{} of its segment files are gone, the first is {}", gone.len(), first.display());
                self.rings.fail(&drive, why);
            }
        }
    }

    async fn segment_files_gone(&self, drive: &Drive) -> Vec<PathBuf> {
        let ring = drive.ring.clone();
        self.tasks.blocking(move || ring.files_gone()).await.unwrap_or_default()
    }
}
