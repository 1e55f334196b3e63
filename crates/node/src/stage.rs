//! Bytes from the lake: one request per cold chunk, whoever waits for it, and none that does not match its sum. Nothing else reads
//! from a lake what users see.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use stoker_format::{ChunkId, NodeId, RecordKind, VersionId, VolumeId};
use stoker_lake::{Lake, LakeErrorKind};
use stoker_ring::{Put, Retention};
use stoker_schema::rows::{Drain, FileRow, LakeKeyRow, RowValue, TombstoneRow, keys};
use stoker_store::{Buf, ErrorKind, Result, StoreError, Subject};
use tokio::sync::Semaphore;

use crate::admission::inherit;
use crate::cache::PIECE;
use crate::core::{Core, add};
use crate::reader::{NodeFile, Slice};
use crate::sums::Sums;
use crate::volumes::Volume;
use crate::{clock, error, sum_notes};

/// Times that bytes which do not match their sums are asked for.
const GETS_MAX: usize = 2;

/// Chunks fetched from lakes at the same time.
const FETCHES_MAX: usize = 32;

/// Where a version's bytes are in a lake; every read carries the etag.
pub(crate) struct Extent {
    pub lake: Arc<dyn Lake>,
    pub volume: VolumeId,
    pub key: Vec<u8>,
    pub etag: String,
    /// What is known of its bytes, once somebody asked: whoever has a file open reads on while the catalog does not answer.
    sums: Mutex<Option<Arc<Sums>>>,
    _user: Option<ObjectUser>,
}

impl Extent {
    /// Which object it is.
    pub fn object(&self) -> Object {
        (self.volume.0, self.key.clone(), self.etag.clone())
    }
}

/// A lake object: volume, lake key and etag.
pub(crate) type Object = (u32, Vec<u8>, String);

/// Lake objects that are read here by whom their version does not tell: open copies that rely on the object of another file, and
/// peers that this node reads for. They are not replaced or removed under a reader, within reason (R11). Whoever reads the version
/// that an object is has pinned it.
#[derive(Default)]
pub(crate) struct Objects(Mutex<HashMap<Object, usize>>);

struct ObjectUser(Arc<Objects>, Object);

impl Objects {
    fn add_user(self: &Arc<Objects>, object: Object) -> ObjectUser {
        *self.0.lock().unwrap().entry(object.clone()).or_default() += 1;
        ObjectUser(self.clone(), object)
    }

    /// Whether anybody reads that object.
    pub fn is_used(&self, volume: VolumeId, key: &[u8], etag: &str) -> bool {
        self.0.lock().unwrap().contains_key(&(volume.0, key.to_vec(), etag.to_owned()))
    }
}

impl Drop for ObjectUser {
    fn drop(&mut self) {
        let mut objects = self.0.0.lock().unwrap();
        if let Some(count) = objects.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                objects.remove(&self.1);
            }
        }
    }
}

type Flight = Shared<BoxFuture<'static, Result<Bytes>>>;

/// Fetches under way, and what they brought for those who read on.
pub(crate) struct Flights {
    /// By how much of the chunk the file has that asked for it: another one may have more of it.
    flights: Mutex<HashMap<(ChunkId, usize), Flight>>,
    permits: Arc<Semaphore>,
    landed: Mutex<Landed>,
}

impl Flights {
    /// Keeps at most so many bytes for those who read on.
    pub fn new(landed_bytes_max: usize) -> Flights {
        let landed = Landed { bytes_max: landed_bytes_max, ..Landed::default() };
        Flights {
            flights: Mutex::default(),
            permits: Arc::new(Semaphore::new(FETCHES_MAX)),
            landed: Mutex::new(landed),
        }
    }

    /// A chunk that came a moment ago, for one whose file has so much of it and who reads a piece. It stays for others if there
    /// are any.
    pub fn landed(&self, chunk: ChunkId, len: usize, piece: usize, has_others: bool) -> Option<Bytes> {
        let mut landed = self.landed.lock().unwrap();
        let bytes = if has_others { landed.peek(chunk) } else { landed.take(chunk, piece) };
        bytes.filter(|bytes| bytes.len() >= len)
    }
}

/// Chunks that came from a lake and were not read to their end yet. Whoever reads in pieces asks the lake once, and does
/// not look like somebody who comes back. In a cluster they stay until newer ones come: what one node reads, others often
/// read as well.
#[derive(Default)]
struct Landed {
    /// Oldest first, each with the pieces that nobody has read yet.
    chunks: VecDeque<(ChunkId, Bytes, u64)>,
    bytes: usize,
    bytes_max: usize,
}

impl Landed {
    fn put(&mut self, chunk: ChunkId, bytes: &Bytes, has_others: bool) {
        let pieces = bytes.len().div_ceil(PIECE);
        // A single piece has nobody who reads on; more than a mask holds does not happen.
        let pieces_min = if has_others { 1 } else { 2 };
        let has_more = |(known, old, _): &(ChunkId, Bytes, u64)| *known == chunk && old.len() >= bytes.len();
        if !(pieces_min..64).contains(&pieces) || self.chunks.iter().any(has_more) {
            return;
        }
        self.forget(chunk);
        self.bytes += bytes.len();
        self.chunks.push_back((chunk, bytes.clone(), (1 << pieces) - 1));
        while self.bytes > self.bytes_max {
            let Some((_, oldest, _)) = self.chunks.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    fn peek(&self, chunk: ChunkId) -> Option<Bytes> {
        self.chunks.iter().find(|(known, ..)| *known == chunk).map(|(_, bytes, _)| bytes.clone())
    }

    fn take(&mut self, chunk: ChunkId, piece: usize) -> Option<Bytes> {
        let at = self.chunks.iter().position(|(known, ..)| *known == chunk)?;
        let (_, bytes, unread) = &mut self.chunks[at];
        let bytes = bytes.clone();
        *unread &= !(1 << piece.min(63));
        if *unread == 0 {
            self.drop_at(at);
        }
        Some(bytes)
    }

    fn drop_at(&mut self, at: usize) {
        if let Some((_, bytes, _)) = self.chunks.remove(at) {
            self.bytes -= bytes.len();
        }
    }

    fn forget(&mut self, chunk: ChunkId) {
        if let Some(at) = self.chunks.iter().position(|(known, ..)| *known == chunk) {
            self.drop_at(at);
        }
    }
}

impl Core {
    /// Where a file's bytes are in the lake, if they are.
    pub async fn extent(&self, volume: &Arc<Volume>, file: &FileRow) -> Result<Option<Arc<Extent>>> {
        let (volume, key, etag, is_copy) = match (&file.source, &file.lake) {
            (Some(source), _) if file.drain != Drain::Clean => {
                let Some(volume) = self.volumes.by_id(VolumeId(source.volume)).await? else {
                    return Ok(None);
                };
                (volume, &source.key, &source.etag, true)
            }
            (_, Some(lake)) if file.drain == Drain::Clean => (volume.clone(), &lake.key, &lake.etag, false),
            _ => return Ok(None),
        };
        let id = volume.id;
        // A file that is all here can be read while its lake is away.
        let lake = match volume.lake(self.volumes.lakes()).await {
            Ok(lake) => lake,
            Err(fault) => {
                tracing::warn!(volume = volume.name, "{fault}");
                // Its second lake knows the object by another etag, which is looked up when it is read.
                match &volume.replica {
                    Some(replica) => replica.other_lake(self.volumes.lakes()).await.ok(),
                    None => None,
                }
            }
        };
        let (key, etag) = (key.clone(), etag.clone());
        Ok(lake.map(|lake| {
            let user = is_copy.then(|| self.objects.add_user((id.0, key.clone(), etag.clone())));
            Arc::new(Extent { lake, volume: id, key, etag, sums: Mutex::default(), _user: user })
        }))
    }

    /// What was kept in the lake for those who have a version open that no name refers to any more.
    pub async fn kept_open(&self, volume: VolumeId, version: VersionId) -> Result<Option<Arc<Extent>>> {
        let key = crate::drain::open_key(version);
        let rows = [keys::lake_key(volume, &key), keys::tombstone(volume, &key)];
        let found = self.catalog.get(&[&rows[0], &rows[1]]).await.map_err(error::catalog)?;
        let [Some(row), Some(tombstone)] = &found[..] else { return Ok(None) };
        let row = LakeKeyRow::of(row).map_err(error::catalog)?;
        let tombstone = TombstoneRow::of(tombstone).map_err(error::catalog)?;
        // While somebody writes there, what is there is not confirmed; and only what was put there for readers is to go again.
        let confirmed =
            row.etag.filter(|etag| row.session == [0; 16] && tombstone.etag.as_ref() == Some(etag));
        match confirmed {
            Some(etag) => self.extent_of(volume, key, etag).await,
            None => Ok(None),
        }
    }

    /// An object by its key and etag.
    pub async fn extent_of(
        &self,
        volume: VolumeId,
        key: Vec<u8>,
        etag: String,
    ) -> Result<Option<Arc<Extent>>> {
        let Some(volume) = self.volumes.by_id(volume).await? else { return Ok(None) };
        let lake = volume.lake(self.volumes.lakes()).await?;
        Ok(lake.map(|lake| {
            Arc::new(Extent { lake, volume: volume.id, key, etag, sums: Mutex::default(), _user: None })
        }))
    }

    /// The same as a peer that asks for bytes out of the lake says it.
    pub async fn extent_at(&self, volume: VolumeId, key: Vec<u8>, etag: String) -> Result<Arc<Extent>> {
        let gone = || StoreError::new(ErrorKind::NotFound, "that lake is not known here");
        let volume = self.volumes.by_id(volume).await?.ok_or_else(gone)?;
        let lake = volume.lake(self.volumes.lakes()).await?.ok_or_else(gone)?;
        let user = Some(self.objects.add_user((volume.id.0, key.clone(), etag.clone())));
        Ok(Arc::new(Extent { lake, volume: volume.id, key, etag, sums: Mutex::default(), _user: user }))
    }

    /// What is known of a range of an object.
    pub async fn sums(&self, extent: &Extent, range: &Range<u64>) -> Result<Option<Arc<Sums>>> {
        let held = extent.sums.lock().unwrap().clone();
        if held.as_ref().is_some_and(|sums| sums.covers(range)) {
            return Ok(held);
        }
        let found = self.sums_of(extent.volume, &extent.key, &extent.etag, range).await?;
        extent.sums.lock().unwrap().clone_from(&found);
        Ok(found)
    }

    /// A whole chunk from the lake, or from the node of another cell that asks the lake for all.
    pub async fn fetch(
        self: &Arc<Core>,
        slice: &Slice,
        extent: &Arc<Extent>,
        via: Option<NodeId>,
    ) -> Result<Bytes> {
        let piece = slice.offset / PIECE;
        let has_others = self.cell.has_others();
        if let Some(bytes) = self.flights.landed(slice.chunk, slice.chunk_len, piece, has_others) {
            return Ok(bytes);
        }
        let flight = {
            let mut flights = self.flights.flights.lock().unwrap();
            let flight = flights.entry((slice.chunk, slice.chunk_len)).or_insert_with(|| {
                let (core, slice, extent) = (self.clone(), *slice, extent.clone());
                // A task of its own: the first reader may go away while others wait.
                let task = self.tasks.spawn(inherit(async move {
                    let got = core.fetch_now(&slice, &extent, via).await;
                    if let Ok(bytes) = &got {
                        core.flights.landed.lock().unwrap().put(slice.chunk, bytes, has_others);
                    }
                    core.flights.flights.lock().unwrap().remove(&(slice.chunk, slice.chunk_len));
                    got
                }));
                let closed = |_| Err(StoreError::new(ErrorKind::Closed, "this node is stopping"));
                task.map(move |joined| joined.unwrap_or_else(closed)).boxed().shared()
            });
            flight.clone()
        };
        let bytes = flight.await?;
        // This piece is read now.
        let _ = self.flights.landed(slice.chunk, slice.chunk_len, piece, has_others);
        Ok(bytes)
    }

    async fn fetch_now(
        self: &Arc<Core>,
        slice: &Slice,
        extent: &Arc<Extent>,
        via: Option<NodeId>,
    ) -> Result<Bytes> {
        let _permit = self.flights.permits.acquire().await;
        let bytes = match via {
            Some(node) => self.fetch_via(node, slice, extent).await,
            None => None,
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => match self.fetch_from_lake(slice, extent).await {
                Err(fault) if fault.kind == ErrorKind::Corrupt => {
                    self.in_place_of_lake(slice, extent).await?.ok_or(fault)?
                }
                fetched => fetched?,
            },
        };
        for piece in 0..bytes.len().div_ceil(PIECE) {
            if self.cache.wants(slice.chunk, piece as u32) {
                let part = &bytes[piece * PIECE..((piece + 1) * PIECE).min(bytes.len())];
                self.cache.put_copy(slice.chunk, piece as u32, part);
            }
        }
        self.admit(slice.chunk, extent.volume, &bytes, false).await;
        Ok(bytes)
    }

    /// A chunk out of the lake, held against its sums. Bytes that do not match are asked for once more, since they may have
    /// changed on their way, and then nobody gets them.
    async fn fetch_from_lake(self: &Arc<Core>, slice: &Slice, extent: &Arc<Extent>) -> Result<Bytes> {
        let range = slice.chunk_start..slice.chunk_start + slice.chunk_len as u64;
        let sums = self.sums(extent, &range).await?;
        let around = sums.as_ref().map_or(range.clone(), |sums| sums.around(&range));
        let step = u64::from(sums.as_ref().map_or(self.chunk_bytes.max(1), |sums| sums.piece_len()));
        let pieces = around.start / step..around.end.div_ceil(step);
        if self.sums.is_bad(&extent.object(), pieces, clock::now_ms()) {
            return Err(sum_notes::bad(extent));
        }
        let mut bad = around.start / step;
        for _ in 0..GETS_MAX {
            let bytes = match self.get_from_lake(extent, around.clone()).await {
                // Some lakes check by themselves.
                Err(fault) if fault.kind == ErrorKind::Corrupt => continue,
                bytes => bytes?,
            };
            let Some(piece) = sums.as_ref().and_then(|sums| sums.mismatch(around.start, &bytes)) else {
                self.note_sums(extent, sums.as_deref(), around.start, &bytes);
                let start = (range.start - around.start) as usize;
                return Ok(bytes.slice(start..start + slice.chunk_len));
            };
            bad = piece;
        }
        Err(self.lake_is_bad(extent, bad).await)
    }

    /// A chunk that the lake lost, from whoever has it on a drive; then the lake gets it back.
    async fn in_place_of_lake(
        self: &Arc<Core>,
        slice: &Slice,
        extent: &Arc<Extent>,
    ) -> Result<Option<Bytes>> {
        let found = match self.read_peers(slice.chunk, slice.chunk_len, &[]).await? {
            Some(stored) => Some(self.open_stored(extent.volume, slice.chunk, stored).await?),
            None => None,
        };
        let found = found.filter(|bytes| bytes.len() >= slice.chunk_len);
        let found = found.map(|bytes| bytes.slice(..slice.chunk_len));
        if found.is_some() {
            self.repair_lake(extent);
        }
        Ok(found)
    }

    async fn get_from_lake(&self, extent: &Extent, range: Range<u64>) -> Result<Bytes> {
        let len = (range.end - range.start) as usize;
        let got = self.get_from_either(extent, range).await;
        let bytes = got.map_err(|fault| match fault.kind {
            LakeErrorKind::Changed | LakeErrorKind::NotFound => {
                let message = format!(
                    "`{}` was changed or removed in the lake by somebody else while it was read",
                    String::from_utf8_lossy(&extent.key)
                );
                StoreError::about(ErrorKind::Conflict, Subject::Lake, message)
            }
            _ => error::lake(fault),
        })?;
        add(&self.stats.lake_read_bytes, bytes.len() as u64);
        if bytes.len() != len {
            let message = format!("the lake gave {} bytes instead of {len}", bytes.len());
            return Err(StoreError::about(ErrorKind::Unavailable, Subject::Lake, message));
        }
        Ok(bytes)
    }

    /// Keeps a chunk from the lake on a drive, if the ring thinks that it is worth it.
    async fn admit(self: &Arc<Core>, chunk: ChunkId, volume: VolumeId, bytes: &Bytes, staged: bool) -> bool {
        let at = self.rings.pick(chunk.version, chunk.index);
        let Some(drive) = self.rings.drive(at) else { return false };
        if !matches!(drive.ring.admits(chunk, staged).await, Ok(true)) {
            return false;
        }
        let _permit = self.rings.turn(&chunk).await;
        if self.rings.find(&chunk, bytes.len()).is_some() {
            return false;
        }
        let mut payload = self.rings.pool().take(bytes.len()).unwrap_or_else(|| Buf::heap(bytes.len()));
        payload.set_len(bytes.len());
        payload.as_mut_slice().copy_from_slice(bytes);
        let retention = Retention::Clean;
        let mut puts = vec![Put { chunk, volume, kind: RecordKind::Chunk, retention, payload, seal: None }];
        if let Err(fault) = self.vault.seal(&mut puts) {
            tracing::debug!(%chunk, "not kept on a drive: {fault}");
            return false;
        }
        match self.rings.append(at, puts).await {
            Ok(()) => true,
            Err(fault) => {
                tracing::debug!(%chunk, "not kept on a drive: {fault}");
                false
            }
        }
    }

    /// Brings all of a file into the rings; returns the bytes that came from the lake.
    pub async fn stage_file(self: &Arc<Core>, file: &NodeFile, extent: Option<&Arc<Extent>>) -> Result<u64> {
        let mut came = 0;
        for (chunk_start, chunk, len) in crate::rings::placed_chunks(file.runs()) {
            let len = len as usize;
            if self.rings.find(&chunk, len).is_some() {
                continue;
            }
            let Some(extent) = extent else { return Err(crate::rings::missing(&chunk)) };
            let slice = Slice { chunk, chunk_len: len, chunk_start, offset: 0, len };
            came += self.stage_chunk(&slice, extent).await?;
        }
        Ok(came)
    }

    /// Brings a chunk into the rings, if they take it; returns the bytes that came from the lake.
    pub async fn stage_chunk(self: &Arc<Core>, slice: &Slice, extent: &Arc<Extent>) -> Result<u64> {
        let (chunk, len) = (slice.chunk, slice.chunk_len);
        if self.rings.find(&chunk, len).is_some() {
            return Ok(0);
        }
        let bytes = self.fetch(slice, extent, self.cell.far_turn(chunk)).await?;
        self.flights.landed.lock().unwrap().forget(chunk);
        self.admit(chunk, extent.volume, &bytes, true).await;
        Ok(bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_landed_stays_until_it_is_read_or_crowded_out() {
        let chunk = |index| ChunkId::new(VersionId([1; 12]), index);
        let bytes = |pieces: usize| Bytes::from(vec![1; pieces * PIECE - 5]);
        let mut landed = Landed { bytes_max: 6 * PIECE, ..Landed::default() };
        landed.put(chunk(0), &bytes(1), false);
        assert!(landed.take(chunk(0), 0).is_none());
        landed.put(chunk(1), &bytes(3), false);
        landed.put(chunk(1), &bytes(3), false);
        for piece in [0, 0, 2, 1] {
            assert!(landed.take(chunk(1), piece).is_some(), "{piece}");
        }
        assert!(landed.take(chunk(1), 0).is_none());
        assert_eq!(landed.bytes, 0);
        (2..5).for_each(|index| landed.put(chunk(index), &bytes(3), false));
        assert!(landed.take(chunk(2), 0).is_none());
        assert!(landed.take(chunk(4), 0).is_some());
        landed.forget(chunk(4));
        assert_eq!((landed.chunks.len(), landed.bytes), (1, 3 * PIECE - 5));
        // In a cluster a single piece stays too, however often it is read.
        landed.put(chunk(6), &bytes(1), true);
        assert!(landed.peek(chunk(6)).is_some() && landed.peek(chunk(6)).is_some());
    }
}
