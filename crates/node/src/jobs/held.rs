//! What this node holds for jobs: chunks of staged sources, which its rings do not drop as long as somebody leads jobs and says so.
//!
//! Everything held is on a lease. Whoever leads renews it every few seconds for as long as a job needs the source; a job that is over, a
//! leader that is gone and a cluster that forgot all end it the same way, and nothing stays pinned. What is held is bounded by a share of the
//! rings, and given up before writers have to wait for room: a hint makes things faster, never impossible (R18).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use stoker_format::{ChunkId, VolumeId};
use stoker_ring::Ring;
use stoker_store::{BoxFuture, Result, StoreError};
use tokio::time::Instant;

use crate::cell::{JobAsk, JobHolds, StageFile, from_wire};
use crate::core::Core;
use crate::reader::Slice;

/// The share of its rings that a node holds for jobs at most.
const ROOM_PERCENT: u64 = 50;
/// When so much of its rings has to stay, jobs lose what is held for them.
const CROWDED_PERCENT: u64 = 85;
/// Chunks that are held at most, for their memory.
const CHUNKS_MAX: usize = 4_000_000;
/// Chunks of one question that are brought at the same time.
const FETCHES_MAX: usize = 8;
/// A lease is no longer than this, whatever is asked.
const LEASE_MAX: Duration = Duration::from_secs(600);
/// Pause between two looks for leases that are over.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Ids in one message to a ring.
const MARKS_AT_ONCE: usize = 2_000;

/// A source: a directory of a volume, for a cell.
pub(crate) type SourceId = [u8; 16];

/// What is held.
#[derive(Default)]
pub(crate) struct Held(Mutex<Table>);

#[derive(Default)]
struct Table {
    sources: HashMap<SourceId, Source>,
    /// How many sources hold a chunk, and its bytes.
    chunks: HashMap<ChunkId, (u32, u32)>,
    bytes: u64,
}

struct Source {
    until: Instant,
    /// The round in which each was named last.
    chunks: HashMap<ChunkId, u64>,
}

impl Table {
    /// Whether there is room for it; held from then on.
    fn hold(
        &mut self,
        source: SourceId,
        round: u64,
        until: Instant,
        (chunk, len): (ChunkId, u32),
        room: u64,
    ) -> bool {
        let known = self.chunks.contains_key(&chunk);
        if !known && (self.bytes + u64::from(len) > room || self.chunks.len() >= CHUNKS_MAX) {
            return false;
        }
        let of = self.sources.entry(source).or_insert_with(|| Source { until, chunks: HashMap::new() });
        of.until = of.until.max(until);
        if of.chunks.insert(chunk, round).is_none() {
            let counted = self.chunks.entry(chunk).or_insert((0, len));
            counted.0 += 1;
            if counted.0 == 1 {
                self.bytes += u64::from(len);
            }
        }
        true
    }

    /// Lets go of some chunks of a source; gives those that nobody holds any more.
    fn drop_from(&mut self, source: SourceId, goes: impl Fn(&ChunkId, u64) -> bool) -> Vec<ChunkId> {
        let Some(of) = self.sources.get_mut(&source) else { return Vec::new() };
        let gone: Vec<ChunkId> =
            of.chunks.iter().filter(|(chunk, round)| goes(chunk, **round)).map(|(chunk, _)| *chunk).collect();
        for chunk in &gone {
            of.chunks.remove(chunk);
        }
        if of.chunks.is_empty() {
            self.sources.remove(&source);
        }
        let mut free = Vec::new();
        for chunk in gone {
            let Some(counted) = self.chunks.get_mut(&chunk) else { continue };
            counted.0 -= 1;
            if counted.0 == 0 {
                self.bytes -= u64::from(counted.1);
                self.chunks.remove(&chunk);
                free.push(chunk);
            }
        }
        free
    }
}

impl Held {
    /// Sources and bytes that are held.
    pub fn numbers(&self) -> (usize, u64) {
        let table = self.0.lock().unwrap();
        (table.sources.len(), table.bytes)
    }

    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().bytes
    }
}

impl Core {
    /// Answers whoever leads jobs.
    pub(crate) async fn job_here(self: &Arc<Core>, ask: JobAsk) -> JobHolds {
        let room_bytes = self.job_room().await;
        let mut holds = JobHolds { room_bytes, ..JobHolds::default() };
        match ask {
            JobAsk::Hold { source, round, lease_ms, chunks } => {
                let lease = Lease { source, round, until: until(lease_ms) };
                let wanted: Vec<_> = chunks.iter().map(|(chunk, len)| (from_wire(chunk), *len)).collect();
                holds.held = self.hold_those_here(&lease, &wanted, room_bytes, &mut holds.trouble).await;
            }
            JobAsk::Stage { source, round, lease_ms, files } => {
                let lease = Lease { source, round, until: until(lease_ms) };
                self.stage_for_job(&lease, files, &mut holds).await;
            }
            JobAsk::Keep { source, since_round, lease_ms } => {
                let free = {
                    let mut table = self.held.0.lock().unwrap();
                    if let Some(of) = table.sources.get_mut(&source) {
                        of.until = of.until.max(until(lease_ms));
                    }
                    table.drop_from(source, |_, round| round < since_round)
                };
                self.unpin(free).await;
                holds.bytes = vec![self.count_held(source).await];
            }
            JobAsk::Release { sources } => {
                for source in sources {
                    let free = self.held.0.lock().unwrap().drop_from(source, |_, _| true);
                    self.unpin(free).await;
                }
            }
            JobAsk::Count { sources } => {
                for source in sources {
                    holds.bytes.push(self.count_held(source).await);
                }
            }
        }
        holds
    }

    /// Bytes that this node holds for jobs at most: a share of its rings, less if much of them has to stay for others.
    async fn job_room(&self) -> u64 {
        let (kept, room) = self.rings.crowding(0).await;
        let held = self.held.bytes();
        let others = kept.saturating_sub(held);
        (room * ROOM_PERCENT / 100).min((room * CROWDED_PERCENT / 100).saturating_sub(others))
    }

    /// Bytes on drives that are held for a source: what the rings say now, not what was asked for.
    async fn count_held(&self, source: SourceId) -> u64 {
        let chunks: Vec<(ChunkId, u32)> = {
            let table = self.held.0.lock().unwrap();
            let Some(of) = table.sources.get(&source) else { return 0 };
            of.chunks
                .keys()
                .map(|chunk| (*chunk, table.chunks.get(chunk).map_or(0, |known| known.1)))
                .collect()
        };
        let (mut bytes, mut loose) = (0, Vec::new());
        for (at, (chunk, len)) in chunks.into_iter().enumerate() {
            match self.rings.find(&chunk, len as usize) {
                Some(drive) => {
                    bytes += u64::from(len);
                    // A repair may have written it anew, without the mark.
                    loose.extend(drive.ring.stat(&chunk).filter(|record| !record.pinned).map(|_| chunk));
                }
                // Gone, or shorter: it is not held any more, so that it can be brought again.
                None => {
                    let free = self.held.0.lock().unwrap().drop_from(source, |known, _| *known == chunk);
                    debug_assert!(free.len() <= 1);
                }
            }
            if at % 10_000 == 9_999 {
                tokio::task::yield_now().await;
            }
        }
        self.pin(loose).await;
        bytes
    }

    async fn pin(&self, chunks: Vec<ChunkId>) {
        for part in chunks.chunks(MARKS_AT_ONCE) {
            for drive in self.rings.drives() {
                if let Err(fault) = drive.ring.pin_records(part.to_vec()).await {
                    tracing::debug!("chunks are not pinned: {fault}");
                }
            }
        }
    }

    async fn unpin(&self, chunks: Vec<ChunkId>) {
        for part in chunks.chunks(MARKS_AT_ONCE) {
            for drive in self.rings.drives() {
                if let Err(fault) = drive.ring.unpin_records(part.to_vec()).await {
                    tracing::debug!("chunks are not let go: {fault}");
                }
            }
        }
    }

    /// Holds what is here of these; says which.
    async fn hold_those_here(
        &self,
        lease: &Lease,
        wanted: &[(ChunkId, u32)],
        room: u64,
        trouble: &mut Option<String>,
    ) -> Vec<bool> {
        let here: Vec<bool> = wanted.iter().map(|(chunk, len)| self.has_copy(chunk, *len)).collect();
        let (mut held, mut pinned) = (Vec::with_capacity(wanted.len()), Vec::new());
        {
            let mut table = self.held.0.lock().unwrap();
            for (one, is_here) in wanted.iter().zip(&here) {
                let is_held = *is_here && table.hold(lease.source, lease.round, lease.until, *one, room);
                if *is_here && !is_held {
                    *trouble = Some(no_room(room));
                }
                held.push(is_held);
                pinned.extend(is_held.then_some(one.0));
            }
        }
        self.pin(pinned).await;
        // One may have been dropped between the look and the mark.
        for (one, is_held) in wanted.iter().zip(&mut held).filter(|(_, is_held)| **is_held) {
            *is_held = self.has_copy(&one.0, one.1);
        }
        held
    }

    /// Brings chunks from the lake that are not here, and holds all of them.
    async fn stage_for_job(self: &Arc<Core>, lease: &Lease, files: Vec<StageFile>, holds: &mut JobHolds) {
        for file in files {
            let (volume, key, etag) = file.object;
            let extent = match self.extent_at(VolumeId(volume), key, etag).await {
                Ok(extent) => extent,
                Err(fault) => {
                    holds.held.extend(file.chunks.iter().map(|_| false));
                    holds.trouble = Some(fault.message);
                    continue;
                }
            };
            let room = holds.room_bytes;
            let mut brought: Vec<BoxFuture<'static, Result<(bool, u64)>>> =
                Vec::with_capacity(file.chunks.len());
            for (chunk, len, chunk_start) in &file.chunks {
                let (core, extent, lease) = (self.clone(), extent.clone(), *lease);
                let (chunk, len, chunk_start) = (from_wire(chunk), *len as usize, *chunk_start);
                let slice = Slice { chunk, chunk_len: len, chunk_start, offset: 0, len };
                brought
                    .push(Box::pin(async move { core.bring_for_job(&lease, &slice, &extent, room).await }));
            }
            let mut brought = futures_util::stream::iter(brought).buffered(FETCHES_MAX);
            while let Some(one) = brought.next().await {
                match one {
                    Ok((is_held, lake_bytes)) => {
                        holds.held.push(is_held);
                        holds.lake_bytes += lake_bytes;
                        if !is_held {
                            holds.trouble = Some(no_room(room));
                        }
                    }
                    Err(fault) => {
                        holds.held.push(false);
                        holds.trouble = Some(fault.message);
                    }
                }
            }
        }
    }

    /// Whether a chunk is held now, and the bytes that came from the lake for it.
    async fn bring_for_job(
        self: &Arc<Core>,
        lease: &Lease,
        slice: &Slice,
        extent: &Arc<crate::stage::Extent>,
        room: u64,
    ) -> Result<(bool, u64)> {
        let (chunk, len) = (slice.chunk, slice.chunk_len as u32);
        // Before its bytes are asked for: what has no room is not asked for again and again.
        let has_room = {
            let mut table = self.held.0.lock().unwrap();
            table.hold(lease.source, lease.round, lease.until, (chunk, len), room)
        };
        if !has_room {
            return Ok((false, 0));
        }
        let staged = self.stage_chunk(slice, extent).await;
        let is_here = self.has_copy(&chunk, len);
        if is_here {
            self.pin(vec![chunk]).await;
        } else {
            let free = self.held.0.lock().unwrap().drop_from(lease.source, |known, _| *known == chunk);
            self.unpin(free).await;
        }
        let lake_bytes = staged?;
        if !is_here {
            return Err(StoreError::new(
                stoker_store::ErrorKind::Full,
                "the drives took no more of what is clean",
            ));
        }
        Ok((is_here, lake_bytes))
    }

    /// Lets go of what nobody renewed, and of the rest when writers need the room.
    pub(crate) async fn sweep_held(self: Arc<Core>) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            if self.held.bytes() == 0 {
                continue;
            }
            let now = Instant::now();
            let over: Vec<SourceId> = {
                let table = self.held.0.lock().unwrap();
                table.sources.iter().filter(|(_, of)| of.until <= now).map(|(source, _)| *source).collect()
            };
            for source in over {
                tracing::info!("what was staged for a job is let go: nobody leads jobs that need it");
                let free = self.held.0.lock().unwrap().drop_from(source, |_, _| true);
                self.unpin(free).await;
            }
            let (kept, room) = self.rings.crowding(0).await;
            if kept > room * CROWDED_PERCENT / 100 {
                let source = {
                    let table = self.held.0.lock().unwrap();
                    table.sources.iter().max_by_key(|(_, of)| of.chunks.len()).map(|(source, _)| *source)
                };
                if let Some(source) = source {
                    tracing::warn!(
                        "what was staged for a job is let go: the drives need the room for writes"
                    );
                    let free = self.held.0.lock().unwrap().drop_from(source, |_, _| true);
                    self.unpin(free).await;
                }
            }
        }
    }
}

/// Lets go of what an earlier boot pinned on a drive: whoever leads jobs names again what they need.
pub(crate) async fn unpin_leftovers(ring: &Ring) -> stoker_ring::Result<()> {
    let pinned: Vec<ChunkId> =
        ring.pages().flatten().filter(|info| info.pinned).map(|info| info.chunk).collect();
    for part in pinned.chunks(MARKS_AT_ONCE) {
        ring.unpin_records(part.to_vec()).await?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Lease {
    source: SourceId,
    round: u64,
    until: Instant,
}

fn until(lease_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(lease_ms).min(LEASE_MAX)
}

fn no_room(room: u64) -> String {
    format!("a node holds at most {room} bytes for jobs, and they are taken")
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_format::VersionId;

    fn chunk(index: u32) -> ChunkId {
        ChunkId::new(VersionId([1; 12]), index)
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunk_is_held_as_long_as_one_source_holds_it() {
        let mut table = Table::default();
        let until = Instant::now() + Duration::from_secs(1);
        let (one, two) = ([1; 16], [2; 16]);
        assert!(table.hold(one, 1, until, (chunk(1), 10), 30));
        assert!(table.hold(one, 1, until, (chunk(1), 10), 30));
        assert!(table.hold(two, 1, until, (chunk(1), 10), 30));
        assert!(table.hold(two, 1, until, (chunk(2), 20), 30));
        assert_eq!(table.bytes, 30);
        assert!(!table.hold(two, 1, until, (chunk(3), 1), 30), "there is no room for more");
        assert!(table.hold(one, 2, until, (chunk(2), 20), 30), "what is held takes no more room");
        assert_eq!(table.drop_from(one, |_, round| round < 2), []);
        assert_eq!(table.drop_from(two, |_, _| true), [chunk(1)]);
        assert_eq!((table.bytes, table.sources.len()), (20, 1));
        assert_eq!(table.drop_from(one, |_, _| true), [chunk(2)]);
        assert!(table.bytes == 0 && table.chunks.is_empty() && table.sources.is_empty());
        assert!(table.drop_from(one, |_, _| true).is_empty());
    }
}
