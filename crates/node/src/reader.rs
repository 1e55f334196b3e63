//! Reading: memory, then drives, then the lake. Every byte was verified on its way in.

use std::sync::Arc;

use bytes::Bytes;
use stoker_catalog::rows::FileRow;
use stoker_format::{ChunkId, ChunkRun, NodeId, VolumeId};
use stoker_ring::ErrorKind as RingKind;
use stoker_store::{BoxFuture, ErrorKind, File, FileInfo, Leased, Result, StoreError};

use crate::cache::{Cache, PIECE, bytes_of};
use crate::core::{Core, add};
use crate::error;
use crate::pins::Pin;
use crate::rings;
use crate::stage::Extent;
use crate::volumes::Volume;

/// A wish for at least this much of a piece brings the whole piece.
const WHOLE_PIECE_FROM: usize = 64 << 10;

/// Times that a chunk which moved between two looks is looked for again.
pub(crate) const LOOKS_MAX: usize = 8;

/// An open version.
pub(crate) struct NodeFile {
    core: Arc<Core>,
    volume: VolumeId,
    info: FileInfo,
    runs: Vec<ChunkRun>,
    /// Where the bytes are in the lake, if they are.
    extent: Option<Arc<Extent>>,
    /// Other nodes that hold chunks.
    peers: Vec<NodeId>,
    _pins: Vec<Pin>,
}

/// A chunk and a range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub chunk: ChunkId,
    /// Bytes of the chunk that belong to the file.
    pub chunk_len: usize,
    /// Where the chunk starts in the file.
    pub chunk_start: u64,
    pub offset: usize,
    pub len: usize,
}

/// The chunk at an offset of a file.
pub(crate) fn slice_at(runs: &[ChunkRun], offset: u64, len: usize) -> Option<Slice> {
    let after = runs.partition_point(|run| run.file_offset <= offset);
    let run = runs.get(after.checked_sub(1)?)?;
    let within = offset - run.file_offset;
    if within >= run.byte_len() || run.chunk_len == 0 {
        return None;
    }
    let step = within / u64::from(run.chunk_len);
    let at = (within % u64::from(run.chunk_len)) as usize;
    let chunk_len = if step + 1 == u64::from(run.count) { run.last_len } else { run.chunk_len } as usize;
    Some(Slice {
        chunk: ChunkId::new(run.version, run.first_index + step as u32),
        chunk_len,
        chunk_start: run.file_offset + step * u64::from(run.chunk_len),
        offset: at,
        len: len.min(chunk_len - at),
    })
}

impl NodeFile {
    pub fn new(
        core: Arc<Core>,
        volume: VolumeId,
        info: FileInfo,
        runs: Vec<ChunkRun>,
        extent: Option<Arc<Extent>>,
        peers: Vec<NodeId>,
        pins: Vec<Pin>,
    ) -> NodeFile {
        NodeFile { core, volume, info, runs, extent, peers, _pins: pins }
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub fn runs(&self) -> &[ChunkRun] {
        &self.runs
    }

    async fn piece(&self, offset: u64, len: usize) -> Result<Bytes> {
        let len = len.min(self.info.size.saturating_sub(offset) as usize);
        if len == 0 {
            return Ok(Bytes::new());
        }
        let lost =
            || StoreError::new(ErrorKind::Corrupt, format!("the layout of `{}` has a hole", self.info.key));
        let slice = slice_at(&self.runs, offset, len).ok_or_else(lost)?;
        let bytes = self.core.read_slice(&slice, self.extent.as_ref(), &self.peers).await?;
        add(&self.core.stats.read_bytes, bytes.len() as u64);
        Ok(bytes)
    }
}

impl File for NodeFile {
    fn info(&self) -> &FileInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(self.piece(offset, len))
    }

    fn lease(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<Leased>> {
        Box::pin(self.lease_range(offset, len))
    }
}

impl Core {
    /// Bytes of a chunk: at most to the end of the piece that the slice starts in.
    pub async fn read_slice(
        self: &Arc<Core>,
        slice: &Slice,
        extent: Option<&Arc<Extent>>,
        peers: &[NodeId],
    ) -> Result<Bytes> {
        let piece = slice.offset / PIECE;
        let start = piece * PIECE;
        let end = (start + PIECE).min(slice.chunk_len);
        let want = slice.offset..(slice.offset + slice.len).min(end);
        if let Some(bytes) = self.cache.get(slice.chunk, piece as u32, end - start) {
            add(&self.stats.cache_hits, 1);
            if bytes.len() >= want.end - start {
                return Ok(bytes.slice(want.start - start..want.end - start));
            }
        }
        add(&self.stats.cache_misses, 1);
        let whole = want.len() >= WHOLE_PIECE_FROM || want.len() == end - start;
        let range = if whole { start..end } else { want.clone() };
        for _ in 0..LOOKS_MAX {
            let Some(drive) = self.rings.find(&slice.chunk) else { break };
            match self.read_drive(&drive.ring, slice.chunk, piece as u32, range.clone(), whole).await {
                Ok(bytes) => return Ok(bytes.slice(want.start - range.start..want.end - range.start)),
                // Moved or dropped between the look and the read.
                Err(fault) if fault.kind == RingKind::NotFound => continue,
                Err(fault) if matches!(fault.kind, RingKind::Corrupt | RingKind::Io) => {
                    tracing::error!(chunk = %slice.chunk, "a drive gave bad bytes: {}", fault.message);
                    match extent.is_some() || !peers.is_empty() {
                        true => break,
                        false => return Err(error::ring(fault)),
                    }
                }
                Err(fault) => return Err(error::ring(fault)),
            }
        }
        if let Some(chunk) = self.flights.landed(slice.chunk, piece) {
            return Ok(chunk.slice(want));
        }
        if let Some(bytes) = self.read_cell(slice, range.clone(), peers, extent).await? {
            if whole && self.cache.wants(slice.chunk, piece as u32) {
                self.cache.put_copy(slice.chunk, piece as u32, &bytes);
            }
            return Ok(bytes.slice(want.start - range.start..want.end - range.start));
        }
        let Some(extent) = extent else { return Err(rings::missing(&slice.chunk)) };
        let chunk = self.fetch(slice, extent).await?;
        Ok(chunk.slice(want))
    }

    async fn read_drive(
        &self,
        ring: &stoker_ring::Ring,
        chunk: ChunkId,
        piece: u32,
        range: std::ops::Range<usize>,
        whole: bool,
    ) -> stoker_ring::Result<Bytes> {
        let keep = whole && self.cache.wants(chunk, piece);
        if keep
            && Cache::is_large(range.len())
            && let Some(buf) = self.cache.slot()
        {
            let view = ring.read_into(chunk, range.start, range.len(), buf).await?;
            let at = view.range();
            return Ok(self.cache.put(chunk, piece, bytes_of(view.into_buf(), at)));
        }
        let view = ring.read(chunk, range.start, range.len()).await?;
        let at = view.range();
        let bytes = bytes_of(view.into_buf(), at);
        if keep && !Cache::is_large(range.len()) {
            return Ok(self.cache.put(chunk, piece, bytes));
        }
        Ok(bytes)
    }

    /// Opens a file that was looked up.
    pub async fn file(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        file: &FileRow,
        pin: Pin,
    ) -> Result<NodeFile> {
        let (runs, part_sizes) = self.names.runs_and_parts(file).await.map_err(error::catalog)?;
        // A later version may go on with these chunks and die before this reader is done.
        let owners = crate::publish::owners(&runs, file.version());
        let pins = owners.into_iter().map(|owner| self.pins.pin(owner)).chain([pin]).collect();
        let info = FileInfo { part_sizes, ..Core::info(key, file)? };
        let extent = self.extent(volume, file).await?;
        let peers: Vec<NodeId> = file.holders.iter().map(|holder| NodeId(holder.node)).collect();
        let peers = self.cell.by_latency(peers);
        Ok(NodeFile::new(self.clone(), volume.id, info, runs, extent, peers, pins))
    }
}

#[cfg(test)]
mod tests {
    use stoker_format::VersionId;

    use super::*;

    #[test]
    fn offsets_find_their_chunk() {
        let version = VersionId([1; 12]);
        let run = |file_offset, first_index, count, chunk_len, last_len| ChunkRun {
            file_offset,
            version,
            first_index,
            count,
            chunk_len,
            last_len,
        };
        let runs = [run(0, 0, 3, 100, 40), run(240, 7, 1, 10, 10)];
        let check = |offset, expect: Option<(u32, usize, usize)>| {
            let found = slice_at(&runs, offset, 1000).map(|s| (s.chunk.index, s.offset, s.len));
            assert_eq!(found, expect, "{offset}");
        };
        check(0, Some((0, 0, 100)));
        check(99, Some((0, 99, 1)));
        check(100, Some((1, 0, 100)));
        check(239, Some((2, 39, 1)));
        check(240, Some((7, 0, 10)));
        check(249, Some((7, 9, 1)));
        check(250, None);
    }
}
