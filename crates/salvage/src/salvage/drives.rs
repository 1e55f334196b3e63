//! What is on the drives: name records, and which chunks are where.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use stoker_format::{
    ChunkId, ChunkRun, ClusterId, DriveId, KeyId, NameRecord, NodeId, RecordKind, Seal, VersionId, VolumeId,
};
use stoker_keys::{DataKey, Place};
use stoker_ring::{OpenOptions, Ring};
use stoker_schema::rows::{DriveRow, HolderRow};
use stoker_store::{ErrorKind, Result, StoreError};

use crate::Tell;
use stoker_records::error;
use stoker_records::layout::{NAME_INDEX, chunks, drive_row};

/// Drives that can be told apart in an inventory.
const DRIVES_MAX: usize = 64;

/// Memory for the index of a ring that is read.
const INDEX_BYTES: usize = 4 << 30;

/// A drive that was read.
pub(super) struct ReadDrive {
    pub id: DriveId,
    pub node: NodeId,
    pub row: DriveRow,
}

impl ReadDrive {
    pub fn holder(&self) -> HolderRow {
        HolderRow::new(self.node, self.id, self.row.incarnation)
    }
}

/// A name record, and on which drive it was.
pub(super) struct Recorded {
    pub id: VersionId,
    pub drive: usize,
    pub record: NameRecord,
}

/// Everything that the drives told.
#[derive(Default)]
pub(super) struct Inventory {
    pub drives: Vec<ReadDrive>,
    pub records: Vec<Recorded>,
    /// Length of each chunk, and a bit for each drive that has it.
    chunks: HashMap<ChunkId, (u32, u64)>,
    /// Name records that could not be read.
    pub unreadable: u64,
    /// Name records of encrypted volumes, until somebody has their keys.
    sealed: Vec<SealedName>,
}

/// A sealed name record.
struct SealedName {
    drive: usize,
    place: Place,
    seal: Arc<Seal>,
    bytes: Vec<u8>,
}

impl Inventory {
    /// Reads the rings of a node, which must not run.
    pub async fn read(&mut self, paths: &[PathBuf], cluster: ClusterId, tell: Tell<'_>) -> Result<()> {
        for path in paths {
            if self.drives.len() == DRIVES_MAX {
                let message = format!("more than {DRIVES_MAX} drives; salvage cells one after the other");
                return Err(StoreError::new(ErrorKind::Invalid, message));
            }
            let settings =
                stoker_ring::Settings { index_bytes_max: INDEX_BYTES, ..stoker_ring::Settings::default() };
            let open = OpenOptions { settings, cluster: Some(cluster), pool: None };
            let at = path.clone();
            let ring = tokio::task::spawn_blocking(move || Ring::open(&at, open)).await;
            let ring = ring.map_err(|fault| crate::broken(path, &fault))?.map_err(error::ring)?;
            let read = self.read_ring(&ring, tell).await;
            ring.close().await.map_err(error::ring)?;
            read?;
        }
        Ok(())
    }

    async fn read_ring(&mut self, ring: &Ring, tell: Tell<'_>) -> Result<()> {
        let superblock = ring.status().await.map_err(error::ring)?.superblock;
        let drive = self.drives.len();
        let row = drive_row(superblock.node, superblock.ring.0, superblock.incarnation.max(1));
        self.drives.push(ReadDrive { id: superblock.drive, node: superblock.node, row });
        for page in ring.pages() {
            for info in page {
                match info.kind {
                    RecordKind::Chunk => {
                        if info.damaged {
                            continue;
                        }
                        let held = self.chunks.entry(info.chunk).or_insert((info.len, 0));
                        // Files that use the front of a chunk may have left only that somewhere: it is no copy of the whole.
                        if held.0 < info.len {
                            *held = (info.len, 0);
                        }
                        if held.0 == info.len {
                            held.1 |= 1 << drive;
                        }
                    }
                    RecordKind::Name if info.chunk.index == NAME_INDEX => {
                        self.read_name(ring, drive, info.chunk, info.len as usize).await;
                        tell("reading name records", self.records.len() as u64);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    async fn read_name(&mut self, ring: &Ring, drive: usize, chunk: ChunkId, len: usize) {
        let read = ring.read(chunk, 0, len).await.map_err(|fault| fault.message);
        if let Ok(view) = &read
            && let Some(sealed) = view.sealed()
        {
            let (volume, len) = (sealed.volume, sealed.len);
            let place = Place { volume, chunk, kind: RecordKind::Name, len };
            let (seal, bytes) = (sealed.seal.clone(), view.to_vec());
            self.sealed.push(SealedName { drive, place, seal, bytes });
            return;
        }
        let record = read.and_then(|bytes| NameRecord::decode(&bytes).map_err(|fault| fault.to_string()));
        match record {
            Ok(record) => self.records.push(Recorded { id: chunk.version, drive, record }),
            Err(fault) => {
                tracing::warn!("a name record cannot be read: {fault}");
                self.unreadable += 1;
            }
        }
    }

    /// Opens name records of encrypted volumes. Says how many stay closed.
    pub fn open_sealed(&mut self, key: impl Fn(VolumeId, KeyId) -> Option<Arc<DataKey>>) -> u64 {
        let mut closed = 0;
        for SealedName { drive, place, seal, mut bytes } in std::mem::take(&mut self.sealed) {
            let opened =
                key(place.volume, seal.key).is_some_and(|key| key.open(&place, &seal, 0, &mut bytes));
            match NameRecord::decode(&bytes) {
                _ if !opened => closed += 1,
                Ok(record) => self.records.push(Recorded { id: place.chunk.version, drive, record }),
                Err(_) => self.unreadable += 1,
            }
        }
        closed
    }

    /// Drives that hold some of these chunks; none if a chunk is on no drive.
    pub fn holders(&self, runs: &[ChunkRun]) -> Option<u64> {
        let mut all = 0;
        for (chunk, len) in chunks(runs) {
            let (held, drives) = *self.chunks.get(&chunk)?;
            // A file may use the beginning of a chunk.
            if drives == 0 || held < len {
                return None;
            }
            all |= drives;
        }
        Some(all)
    }

    /// Rows of the holders in a set of drives.
    pub fn rows(&self, drives: u64) -> Vec<HolderRow> {
        let is_in = |at: &usize| drives & (1 << at) != 0;
        (0..self.drives.len()).filter(is_in).map(|at| self.drives[at].holder()).collect()
    }
}
