//! The rings of this node as one place for chunks.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_catalog::kv::Check;
use stoker_catalog::rows::{DriveRow, DriveState, HolderRow, RowValue, keys};
use stoker_format::{ChunkId, ChunkRun, DriveId, NodeId, VersionId};
use stoker_ring::{ErrorKind as RingKind, Pool, Put, Ring};
use stoker_store::{Buf, ErrorKind, Result, StoreError};

use crate::{clock, error};

/// Index of the record that carries a version's name; no file has that many chunks.
pub(crate) const NAME_INDEX: u32 = u32::MAX;

/// One ring and what the catalog knows of its drive.
pub(crate) struct Drive {
    pub ring: Ring,
    pub path: PathBuf,
    pub id: DriveId,
    pub row: DriveRow,
    /// Not chosen for new chunks until then.
    pub refused_until_ms: AtomicU64,
}

/// How long a full drive is left out, if there are others.
const REFUSED_MS: u64 = 1_000;

/// One part in so many of the buffers is for reads alone.
const READ_SHARE: usize = 8;

/// The rings of this node.
pub(crate) struct Rings {
    node: NodeId,
    drives: Vec<Drive>,
    pool: Arc<Pool>,
}

/// The ids of a layout's chunks with their lengths.
pub(crate) fn chunks(runs: &[ChunkRun]) -> impl Iterator<Item = (ChunkId, u32)> + '_ {
    runs.iter().flat_map(|run| {
        (0..run.count).map(|at| {
            let len = if at + 1 == run.count { run.last_len } else { run.chunk_len };
            (ChunkId::new(run.version, run.first_index + at), len)
        })
    })
}

impl Rings {
    pub fn new(node: NodeId, drives: Vec<Drive>, pool: Arc<Pool>) -> Rings {
        assert!(!drives.is_empty(), "a node has at least one drive");
        Rings { node, drives, pool }
    }

    pub fn drives(&self) -> &[Drive] {
        &self.drives
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Memory for bytes on their way to a drive. Some is left for reads, so that writers that wait for a drive or for their
    /// clients do not stop them.
    pub async fn write_buffer(&self, len: usize) -> Buf {
        self.pool.get_leaving(len, self.pool.size() / READ_SHARE).await
    }

    /// The same bytes in little memory, if they are few in much: they may have to wait for what follows.
    pub fn fitting(&self, buf: Buf) -> Buf {
        if buf.len() > buf.capacity() / 8 {
            return buf;
        }
        let mut small = self.pool.take(buf.len()).unwrap_or_else(|| Buf::heap(buf.len()));
        small.set_len(0);
        small.fill(buf.as_slice());
        small
    }

    /// The drive that a new chunk goes to: chunks of a file are striped over all drives that take writes. A name record
    /// goes where the first chunk would.
    pub fn pick(&self, version: VersionId, index: u32) -> usize {
        let index = if index == NAME_INDEX { 0 } else { index };
        let spread = u32::from_be_bytes(version.0[8..12].try_into().expect("four bytes"));
        let count = self.drives.len();
        let first = (spread.wrapping_add(index) as usize) % count;
        let now_ms = clock::now_ms();
        let takes = |at: &usize| self.drives[*at].refused_until_ms.load(Ordering::Relaxed) <= now_ms;
        (0..count).map(|step| (first + step) % count).find(takes).unwrap_or(first)
    }

    /// Appends records to a drive. One that refuses is left out by [`Self::pick`] for a while.
    pub async fn append(&self, at: usize, puts: Vec<Put>) -> Result<()> {
        let drive = &self.drives[at];
        match drive.ring.append(puts).await {
            Ok(_) => Ok(()),
            Err(fault) => {
                let pause_ms = match fault.kind {
                    RingKind::Full => REFUSED_MS,
                    RingKind::Poisoned | RingKind::Io => u64::MAX / 2,
                    // Not the drive's fault.
                    _ => 0,
                };
                drive.refused_until_ms.store(clock::now_ms() + pause_ms, Ordering::Relaxed);
                Err(error::ring(fault))
            }
        }
    }

    /// The drive that has a chunk.
    pub fn find(&self, chunk: &ChunkId) -> Option<&Drive> {
        self.drives.iter().find(|drive| drive.ring.stat(chunk).is_some())
    }

    /// The same by its number.
    pub fn position(&self, chunk: &ChunkId) -> Option<usize> {
        self.drives.iter().position(|drive| drive.ring.stat(chunk).is_some())
    }

    /// The drive that has a chunk and will not drop it.
    pub fn precious_at(&self, chunk: &ChunkId) -> Option<usize> {
        let keeps = |drive: &Drive| drive.ring.stat(chunk).is_some_and(|record| !record.clean);
        self.drives.iter().position(keeps)
    }

    /// Bytes that all rings together hold at most.
    pub async fn capacity(&self) -> u64 {
        let mut bytes = 0;
        for drive in &self.drives {
            bytes += drive.ring.status().await.map_or(0, |status| {
                status.superblock.segment_size * u64::from(status.superblock.segment_count)
            });
        }
        bytes
    }

    /// Tells the rings that the lake has these chunks.
    pub async fn mark_clean(&self, ids: Vec<ChunkId>) -> Result<()> {
        for drive in &self.drives {
            drive.ring.mark_clean(ids.clone()).await.map_err(error::ring)?;
        }
        Ok(())
    }

    /// Makes chunks precious; true if every one of them is here. If not, nothing is changed.
    pub async fn mark_dirty(&self, ids: Vec<ChunkId>) -> Result<bool> {
        if !ids.iter().all(|id| self.find(id).is_some()) {
            return Ok(false);
        }
        for drive in &self.drives {
            drive.ring.mark_dirty(ids.clone()).await.map_err(error::ring)?;
        }
        // One may have been dropped between the look and the mark.
        Ok(ids.iter().all(|id| self.precious_at(id).is_some()))
    }

    /// Deletes chunks wherever they are; durable when this returns.
    pub async fn delete(&self, ids: &[ChunkId]) -> Result<()> {
        for drive in &self.drives {
            let here: Vec<ChunkId> = ids.iter().filter(|id| drive.ring.stat(id).is_some()).copied().collect();
            if !here.is_empty() {
                drive.ring.delete(here).await.map_err(error::ring)?;
            }
        }
        Ok(())
    }

    /// Who holds chunks on these drives.
    pub fn holders(&self, drives: impl IntoIterator<Item = usize>) -> Vec<HolderRow> {
        let row = |at: usize| HolderRow::new(self.node, self.drives[at].id, self.drives[at].row.incarnation);
        drives.into_iter().map(row).collect()
    }

    /// Checks that these drives still count at the life that acknowledged (R6).
    pub fn guards(&self, holders: &[HolderRow]) -> Result<Vec<Check>> {
        let guard = |holder: &HolderRow| {
            let drive = self.drives.iter().find(|drive| drive.id.0 == holder.drive);
            match drive.filter(|drive| drive.row.incarnation == holder.incarnation) {
                Some(drive) => Ok(Check::Value(keys::drive(drive.id), drive.row.encode())),
                None => {
                    let drive = DriveId(holder.drive);
                    let message = format!(
                        "some of these bytes were written to drive {drive}, which is not here any more: write them again"
                    );
                    Err(StoreError::new(ErrorKind::Unavailable, message))
                }
            }
        };
        holders.iter().map(guard).collect()
    }

    /// Closes all rings.
    pub async fn close(&self) {
        for drive in &self.drives {
            if let Err(fault) = drive.ring.clone().close().await {
                tracing::warn!(drive = %drive.path.display(), "closing the ring: {fault:?}");
            }
        }
    }
}

/// The row of a live drive.
pub(crate) fn drive_row(node: NodeId, ring: [u8; 16], incarnation: u64) -> DriveRow {
    DriveRow { node: node.0, ring, incarnation, state: DriveState::Live }
}

/// The error for a chunk that should be here and is not.
pub(crate) fn missing(chunk: &ChunkId) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("chunk {chunk} is on no drive of this node and in no lake"))
}
