//! Repairs what a read or the scrubber found bad on a drive of this node. A clean chunk is dropped: the next read brings it
//! back sound. A must-keep one is written again with bytes from another copy, and only with those that the ring's own
//! checksum knows; nothing else replaces a copy in place.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use stoker_format::{ChunkId, NodeId, RecordKind, VolumeId, crc32c};
use stoker_qos::{Class, Tag};
use stoker_ring::{Put, RecordInfo, Retention};
use stoker_schema::rows::{DirtyRow, RowValue, keys};
use stoker_store::{ErrorKind, Result, StoreError};
use tokio::sync::Semaphore;

use crate::admission::working;
use crate::cell::{Stored, Summed};
use crate::core::{Core, add};
use crate::reader::Slice;
use crate::stage::Extent;
use crate::{clock, error};

/// Chunks that wait for their repair; those beyond are found again by their next read.
const WAITING_MAX: usize = 1_024;

/// Repairs at the same time.
const AT_ONCE: usize = 2;

/// What could not be repaired is left alone for this long.
const PAUSE_MS: u64 = 10_000;

/// Repairs under way.
pub(crate) struct ReadRepair {
    /// Chunks, each with the time until which nobody else needs to begin.
    busy: Mutex<HashMap<ChunkId, u64>>,
    permits: Semaphore,
    pub stats: ReadRepairStats,
}

/// Counters of repairs.
#[derive(Default)]
pub(crate) struct ReadRepairStats {
    pub replaced: AtomicU64,
    pub dropped: AtomicU64,
    pub failed: AtomicU64,
}

impl Default for ReadRepair {
    fn default() -> ReadRepair {
        ReadRepair {
            busy: Mutex::default(),
            permits: Semaphore::new(AT_ONCE),
            stats: ReadRepairStats::default(),
        }
    }
}

/// What is wrong with a copy.
enum Bad {
    /// The bytes on this drive.
    Damaged { drive: usize, lake: Option<(Slice, Arc<Extent>)> },
    /// It should be here and is not.
    Missing { len: usize },
}

enum Repaired {
    /// Sound bytes are in its place.
    Replaced,
    /// It was clean, and is gone.
    Dropped,
    /// There is nothing to repair any more.
    Needless,
}

impl ReadRepair {
    /// True if the caller is to repair it.
    fn begin(&self, chunk: ChunkId, now_ms: u64) -> bool {
        let mut busy = self.busy.lock().unwrap();
        if busy.len() >= WAITING_MAX {
            busy.retain(|_, until_ms| *until_ms > now_ms);
        }
        if busy.len() >= WAITING_MAX || busy.get(&chunk).is_some_and(|until_ms| *until_ms > now_ms) {
            return false;
        }
        busy.insert(chunk, u64::MAX);
        true
    }

    fn end(&self, chunk: ChunkId, is_sound: bool, now_ms: u64) {
        let mut busy = self.busy.lock().unwrap();
        match is_sound {
            true => busy.remove(&chunk),
            false => busy.insert(chunk, now_ms + PAUSE_MS),
        };
    }
}

impl Core {
    /// Repairs a chunk on a drive here, in the background. `holders` are asked first for its bytes, then other peers, then
    /// the lake.
    pub fn repair_copy(
        self: &Arc<Core>,
        drive: usize,
        chunk: ChunkId,
        holders: &[NodeId],
        lake: Option<(Slice, Arc<Extent>)>,
    ) {
        self.begin_mend(chunk, holders, Bad::Damaged { drive, lake });
    }

    /// Brings a chunk back that a row says is here, in the background.
    pub fn mend_missing(self: &Arc<Core>, slice: &Slice, holders: &[NodeId]) {
        self.begin_mend(slice.chunk, holders, Bad::Missing { len: slice.chunk_len });
    }

    fn begin_mend(self: &Arc<Core>, chunk: ChunkId, holders: &[NodeId], bad: Bad) {
        if self.check_open().is_err() || !self.read_repair.begin(chunk, clock::now_ms()) {
            return;
        }
        let (core, holders, work) = (self.clone(), holders.to_vec(), self.work.begin());
        self.tasks.spawn(async move {
            let _work = work;
            // What is collected meanwhile must not come back.
            let _pin = core.pins.pin(chunk.version);
            let _permit = core.read_repair.permits.acquire().await;
            let mended = async {
                match bad {
                    Bad::Damaged { drive, lake } => core.mend_damaged(drive, chunk, &holders, lake).await,
                    Bad::Missing { len } => core.bring_back(chunk, len, &holders).await,
                }
            };
            let ended = working(Tag::of(Class::Repair), mended).await;
            let stats = &core.read_repair.stats;
            match &ended {
                Ok(Repaired::Replaced) => {
                    tracing::warn!(%chunk, "a bad copy was replaced by a sound one");
                    add(&stats.replaced, 1);
                }
                Ok(Repaired::Dropped) => {
                    tracing::warn!(%chunk, "bad bytes of a chunk that the lake has: dropped");
                    add(&stats.dropped, 1);
                }
                Ok(Repaired::Needless) => {}
                Err(fault) => {
                    tracing::error!(%chunk, "a bad copy cannot be repaired now: {fault}");
                    add(&stats.failed, 1);
                    core.inventory.note_bad(chunk);
                }
            }
            if ended.is_ok() {
                core.inventory.note_sound(&chunk);
            }
            core.read_repair.end(chunk, ended.is_ok(), clock::now_ms());
        });
    }

    async fn mend_damaged(
        self: &Arc<Core>,
        drive: usize,
        chunk: ChunkId,
        holders: &[NodeId],
        lake: Option<(Slice, Arc<Extent>)>,
    ) -> Result<Repaired> {
        let Some(place) = self.rings.drive(drive) else { return Ok(Repaired::Needless) };
        let ring = &place.ring;
        let Some(info) = ring.stat(&chunk) else { return Ok(Repaired::Needless) };
        let bytes = match info.clean {
            true => None,
            false => self.sound_bytes(&info, holders, lake).await?,
        };
        // From here on nobody declares it clean or must-keep.
        let _marks = self.marks.read().await;
        let Some(info) = ring.stat(&chunk) else { return Ok(Repaired::Needless) };
        if info.clean {
            ring.delete(vec![chunk]).await.map_err(error::ring)?;
            return Ok(Repaired::Dropped);
        }
        let Some(stored) = bytes else {
            return Err(StoreError::new(ErrorKind::Corrupt, "no other copy of it can be read"));
        };
        self.append_sound(drive, &info, stored).await?;
        Ok(Repaired::Replaced)
    }

    /// The bytes that the ring's own checksum knows, from elsewhere.
    async fn sound_bytes(
        self: &Arc<Core>,
        info: &RecordInfo,
        holders: &[NodeId],
        lake: Option<(Slice, Arc<Extent>)>,
    ) -> Result<Option<Stored>> {
        let is_sound = |bytes: &Bytes| bytes.len() == info.len as usize && crc32c(bytes) == info.crc;
        let from_peers = self.read_peers(info.chunk, info.len as usize, holders).await?;
        if let Some(stored) = from_peers {
            // A sealed one may have been sealed anew there; then its tags say what the sum cannot.
            let is_it = match stored.seal.is_some() {
                false => !info.sealed && is_sound(&stored.bytes.bytes),
                true => info.sealed && self.is_authentic(info.volume, info.chunk, &stored).await,
            };
            if is_it {
                return Ok(Some(stored));
            }
        }
        match lake {
            // What the lake has is plain, and would be sealed to other bytes than the ring knows.
            Some(_) if info.sealed => Ok(None),
            Some((slice, extent)) => {
                let bytes = Some(self.fetch(&slice, &extent, None).await?).filter(is_sound);
                let summed = |bytes| Summed { bytes, crc: None, is_claimed: false };
                Ok(bytes.map(|bytes| Stored { bytes: summed(bytes), seal: None }))
            }
            None => Ok(None),
        }
    }

    async fn append_sound(&self, drive: usize, info: &RecordInfo, stored: Stored) -> Result<()> {
        let Stored { bytes: Summed { bytes, .. }, seal } = stored;
        let mut payload = self.rings.write_buffer(bytes.len()).await;
        payload.set_len(0);
        payload.fill(&bytes);
        let retention = if info.never { Retention::Never } else { Retention::Dirty };
        let _permit = self.rings.turn(&info.chunk).await;
        if info.kind == RecordKind::Chunk && self.rings.find(&info.chunk, bytes.len() + 1).is_some() {
            // Somebody brought more of it meanwhile.
            return Ok(());
        }
        let (chunk, volume, kind) = (info.chunk, info.volume, info.kind);
        let put = Put { chunk, volume, kind, retention, payload, seal };
        // On the same drive: that is the one which rows say has it.
        self.rings.append(drive, vec![put]).await
    }

    async fn bring_back(
        self: &Arc<Core>,
        chunk: ChunkId,
        len: usize,
        holders: &[NodeId],
    ) -> Result<Repaired> {
        let Some(stored) = self.read_peers(chunk, len, holders).await? else {
            return Err(StoreError::new(ErrorKind::Corrupt, "no other copy of it can be read"));
        };
        let Stored { bytes: Summed { bytes, .. }, seal } = stored;
        let _marks = self.marks.read().await;
        // On a drive which rows say has it: where it would go now may be another one than where it went.
        let drives: Vec<_> =
            self.rings.numbered().into_iter().filter(|(_, drive)| !drive.is_failed()).collect();
        let rows = drives.iter().map(|(_, drive)| keys::dirty(self.node, drive.id, chunk.version));
        let rows: Vec<Vec<u8>> = rows.collect();
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let rows = self.catalog.get(&rows).await.map_err(error::catalog)?;
        let there = drives.iter().zip(rows).find_map(|((at, _), row)| Some((*at, row?)));
        let _permit = self.rings.turn(&chunk).await;
        let Some((at, row)) = there.filter(|_| self.rings.find(&chunk, len).is_none()) else {
            // Drained, deleted or moved since it was looked up.
            return Ok(Repaired::Needless);
        };
        let dirty = DirtyRow::of(&row).map_err(error::catalog)?;
        let volume = self.volumes.by_id(VolumeId(dirty.volume)).await?;
        let Some(volume) = volume else { return Ok(Repaired::Needless) };
        let mut payload = self.rings.write_buffer(bytes.len()).await;
        payload.set_len(0);
        payload.fill(&bytes);
        let retention = Core::retention(&volume);
        let put = Put { chunk, volume: volume.id, kind: RecordKind::Chunk, retention, payload, seal };
        self.rings.append(at, vec![put]).await?;
        Ok(Repaired::Replaced)
    }
}
