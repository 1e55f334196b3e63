//! Reading: memory first, then whoever answers soonest. Every byte was verified on its way in.
//!
//! An open file is one version, however long it is open. Where its bytes are changes meanwhile: they are drained and leave the
//! drives, their object moves with a rename, holders come and go. A handle goes by what it knew when it was opened, asks nobody, and
//! looks again ([`Core::whereabouts`]) when nobody has the bytes where it believed them to be.

use std::collections::HashSet;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use stoker_format::{ChunkId, ChunkRun, NodeId, VolumeId};
use stoker_qos::Tag;
use stoker_ring::{ReadView, RingError};
use stoker_schema::rows::FileRow;
use stoker_store::{BoxFuture, ErrorKind, File, FileInfo, Leased, Result, Seek, StoreError, Subject};

use crate::cache::{Cache, PIECE, bytes_of};
use crate::core::{Core, add};
use crate::numbers::Tally;
use crate::pins::Pin;
use crate::sources::Wish;
use crate::spilled::{Known, is_spilled};
use crate::stage::Extent;
use crate::volumes::Volume;
use crate::{admission, error, rings};

/// A wish for at least this much of a piece brings the whole piece.
const WHOLE_PIECE_FROM: usize = 64 << 10;

/// Pieces that are read at once, if so much is wanted and none of it is in memory.
const PIECES_AT_ONCE: usize = 2;

/// Times that a chunk which moved between two looks is looked for again.
pub(crate) const LOOKS_MAX: usize = 8;

/// What is read from holes, at most at once. It costs no memory until somebody writes to it, and nobody does.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// First pause before an object that is just being replaced is looked for again; doubles up to [`REPLACED_PAUSE_MAX`].
const REPLACED_PAUSE: Duration = Duration::from_millis(20);
const REPLACED_PAUSE_MAX: Duration = Duration::from_millis(100);

/// An open version.
pub(crate) struct NodeFile {
    core: Arc<Core>,
    volume: VolumeId,
    /// Of whom and for whom it is read.
    work: Tag,
    tally: Arc<Tally>,
    info: FileInfo,
    runs: Vec<ChunkRun>,
    whereabouts: RwLock<Arc<Whereabouts>>,
    spilled: Known,
    _pins: Vec<Pin>,
}

/// Where the bytes of a version are, as far as its rows say.
#[derive(Default)]
pub(crate) struct Whereabouts {
    /// In the lake, if they are.
    pub extent: Option<Arc<Extent>>,
    /// Other nodes that hold chunks.
    pub peers: Vec<NodeId>,
    /// This node wrote it, and nothing but rings has it.
    pub is_home: bool,
    /// A name refers to it.
    pub is_named: bool,
}

impl Whereabouts {
    /// Whether whoever reads would ask the same places.
    fn is_same(&self, other: &Whereabouts) -> bool {
        let object = |at: &Whereabouts| {
            at.extent.as_ref().map(|extent| (extent.volume, extent.key.clone(), extent.etag.clone()))
        };
        let peers = |at: &Whereabouts| at.peers.iter().copied().collect::<HashSet<NodeId>>();
        object(self) == object(other) && peers(self) == peers(other)
    }
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

/// Why a drive did not give bytes of a chunk.
#[derive(Debug)]
pub(crate) enum DriveFault {
    /// The ring says so.
    Ring(RingError),
    /// They could not be opened.
    Sealed(StoreError),
}

impl From<RingError> for DriveFault {
    fn from(fault: RingError) -> DriveFault {
        DriveFault::Ring(fault)
    }
}

/// What lies at an offset of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkOrHole {
    /// Bytes of a chunk.
    Chunk(Slice),
    /// Zeros that are stored nowhere, up to there.
    Hole { end: u64 },
}

impl ChunkOrHole {
    /// Where in the file it ends.
    pub fn end(&self) -> u64 {
        match self {
            ChunkOrHole::Chunk(slice) => slice.chunk_start + slice.chunk_len as u64,
            ChunkOrHole::Hole { end } => *end,
        }
    }
}

/// What lies at an offset of a file; none behind its end.
pub(crate) fn layout_at(runs: &[ChunkRun], offset: u64, len: usize) -> Option<ChunkOrHole> {
    let after = runs.partition_point(|run| run.file_offset <= offset);
    let run = runs.get(after.checked_sub(1)?)?;
    let within = offset - run.file_offset;
    if within >= run.byte_len() || run.chunk_len == 0 {
        return None;
    }
    if run.is_hole() {
        return Some(ChunkOrHole::Hole { end: run.end() });
    }
    let step = within / u64::from(run.chunk_len);
    let at = (within % u64::from(run.chunk_len)) as usize;
    let chunk_len = if step + 1 == u64::from(run.count) { run.last_len } else { run.chunk_len } as usize;
    Some(ChunkOrHole::Chunk(Slice {
        chunk: ChunkId::new(run.version, run.first_index + step as u32),
        chunk_len,
        chunk_start: run.file_offset + step * u64::from(run.chunk_len),
        offset: at,
        len: len.min(chunk_len - at),
    }))
}

/// The first offset from this one on where bytes are stored, or a hole begins. The end of a file is a hole.
pub(crate) fn seek(runs: &[ChunkRun], size: u64, offset: u64, what: Seek) -> Option<u64> {
    let from = runs.partition_point(|run| run.end() <= offset);
    let is_it = |run: &&ChunkRun| run.is_hole() == (what == Seek::Hole) && run.byte_len() > 0;
    let found = runs[from..].iter().find(is_it).map(|run| run.file_offset.max(offset));
    let end = (what == Seek::Hole).then_some(size);
    found.or(end).filter(|_| offset < size)
}

impl NodeFile {
    pub fn new(
        core: Arc<Core>,
        volume: &Volume,
        info: FileInfo,
        runs: Vec<ChunkRun>,
        whereabouts: Whereabouts,
        pins: Vec<Pin>,
    ) -> NodeFile {
        let (work, volume) = (core.work_on(volume), volume.id);
        let tally = core.tallies.of(volume);
        let whereabouts = RwLock::new(Arc::new(whereabouts));
        NodeFile {
            core,
            volume,
            work,
            tally,
            info,
            runs,
            whereabouts,
            spilled: Known::default(),
            _pins: pins,
        }
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Of whom and for whom it is read.
    pub fn work(&self) -> Tag {
        self.work
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
            || StoreError::new(ErrorKind::Corrupt, format!("the layout of `{}` ends early", self.info.key));
        let slice = match layout_at(&self.runs, offset, len).ok_or_else(lost)? {
            ChunkOrHole::Chunk(slice) => slice,
            ChunkOrHole::Hole { end } => {
                let len = (end - offset).min(len.min(ZEROS.len()) as u64) as usize;
                add(&self.tally.reads, 1);
                return Ok(Bytes::from_static(&ZEROS[..len]));
            }
        };
        // What is in memory is plain, and not for those who have no key any more.
        self.core.vault.check(self.volume)?;
        self.core.pass(self.work, slice.len as u64).await?;
        let begun = tokio::time::Instant::now();
        let bytes = admission::working(self.work, self.read_slice(&slice)).await?;
        self.core.stats.read_times.note(begun.elapsed());
        add(&self.core.stats.read_bytes, bytes.len() as u64);
        add(&self.tally.reads, 1);
        add(&self.tally.read_bytes, bytes.len() as u64);
        Ok(bytes)
    }

    async fn read_slice(&self, slice: &Slice) -> Result<Bytes> {
        let mut at = self.whereabouts.read().unwrap().clone();
        let mut pause = REPLACED_PAUSE;
        let mut looks = 0;
        loop {
            looks += 1;
            let is_home = at.is_home && slice.chunk.version == self.info.version;
            let read = match at.extent.is_none() && is_spilled(&slice.chunk) {
                true => self.read_spilled(slice).await,
                false => self.core.read_slice(slice, at.extent.as_ref(), &at.peers, is_home).await,
            };
            let fault = match read {
                Err(fault) if may_be_elsewhere(&fault) => fault,
                read => return read,
            };
            let now = match self.core.whereabouts(self.volume, &self.info).await {
                Ok(now) => Arc::new(now),
                // Without the catalog nobody knows why it is not there.
                Err(unknown) => return Err(if rings::is_missing(&fault) { unknown } else { fault }),
            };
            let is_same = now.is_same(&at);
            let may_come = is_replaced(&fault) && now.is_named;
            // What is known of one that lost its name is not forgotten: its object may only be out of reach for a moment.
            let is_unknown = !now.is_named && now.extent.is_none();
            if looks == LOOKS_MAX || is_unknown || (is_same && !may_come) {
                return Err(self.why_missing(fault, &now));
            }
            if is_same {
                // The object was just replaced, and the row that says so comes after it.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(REPLACED_PAUSE_MAX);
            }
            tracing::debug!(chunk = %slice.chunk, "looked for again: {fault}");
            self.whereabouts.write().unwrap().clone_from(&now);
            at = now;
        }
    }

    /// Bytes of a chunk that went to the lake before its file was published.
    async fn read_spilled(&self, slice: &Slice) -> Result<Bytes> {
        let read = match self.core.spilled_at(&self.spilled, slice).await {
            Ok((slice, extent)) => self.core.read_slice(&slice, Some(&extent), &[], false).await,
            Err(fault) => Err(fault),
        };
        if read.is_err() {
            self.spilled.forget();
        }
        read
    }

    /// Who reads a version keeps it from being deleted, unless its node was declared down meanwhile. Then nothing is damaged.
    fn why_missing(&self, fault: StoreError, now: &Whereabouts) -> StoreError {
        if now.is_named || !rings::is_missing(&fault) {
            return fault;
        }
        let key = &self.info.key;
        let message = format!(
            "`{key}` was replaced or deleted while this node did not answer, and what it was is gone: open it again"
        );
        StoreError::new(ErrorKind::Unavailable, message)
    }
}

/// Whether the bytes may be somewhere else than where they were looked for.
fn may_be_elsewhere(fault: &StoreError) -> bool {
    use ErrorKind::{Conflict, Corrupt, NotFound, Unavailable};
    matches!(fault.kind, Conflict | Corrupt | NotFound | Unavailable)
}

/// Whether the lake has another object there.
fn is_replaced(fault: &StoreError) -> bool {
    fault.kind == ErrorKind::Conflict && fault.subject == Subject::Lake
}

impl File for NodeFile {
    fn info(&self) -> &FileInfo {
        &self.info
    }

    fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(self.piece(offset, len))
    }

    fn seek(&self, offset: u64, what: Seek) -> BoxFuture<'_, Result<Option<u64>>> {
        Box::pin(std::future::ready(Ok(seek(&self.runs, self.info.size, offset, what))))
    }

    fn lease(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<Leased>> {
        Box::pin(self.lease_range(offset, len))
    }
}

impl Core {
    /// Bytes of a chunk: at most to the end of the piece that the slice starts in, or of the next one.
    pub async fn read_slice(
        self: &Arc<Core>,
        slice: &Slice,
        extent: Option<&Arc<Extent>>,
        peers: &[NodeId],
        is_home: bool,
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
        if let Some(chunk) = self.flights.landed(slice.chunk, slice.chunk_len, piece, self.cell.has_others())
        {
            return Ok(chunk.slice(want));
        }
        let whole = want.len() >= WHOLE_PIECE_FROM || want.len() == end - start;
        let (want, range) = match self.long_range(slice) {
            Some(range) => (slice.offset..(slice.offset + slice.len).min(range.end), range),
            None if whole => (want, start..end),
            None => (want.clone(), want),
        };
        let within = want.start - range.start..want.end - range.start;
        let piece = (whole || range.len() > PIECE).then_some(piece as u32);
        let wish = Wish { slice, range, piece, extent, holders: peers, is_home };
        Ok(self.read_best(&wish).await?.slice(within))
    }

    /// Several pieces, if a slice wants them from their beginning.
    fn long_range(&self, slice: &Slice) -> Option<std::ops::Range<usize>> {
        let next = slice.offset + PIECE;
        let end = (slice.offset + PIECES_AT_ONCE * PIECE).min(slice.chunk_len);
        let rest = (slice.offset + slice.len).checked_sub(next)?;
        let is_wanted = slice.offset.is_multiple_of(PIECE) && next < end;
        let is_wanted = is_wanted && (rest >= WHOLE_PIECE_FROM || next + rest >= end);
        let is_cached = || self.cache.has(slice.chunk, (next / PIECE) as u32, end - next);
        (is_wanted && !is_cached()).then_some(slice.offset..end)
    }

    /// Keeps those of the pieces that came together which somebody wanted before.
    pub fn keep_pieces(&self, chunk: ChunkId, first: u32, bytes: &[u8]) {
        for (piece, bytes) in (first..).zip(bytes.chunks(PIECE)) {
            if self.cache.wants(chunk, piece) {
                self.cache.put_copy(chunk, piece, bytes);
            }
        }
    }

    /// The wanted bytes of what a ring read, plain.
    async fn opened(&self, chunk: ChunkId, view: ReadView) -> std::result::Result<Bytes, DriveFault> {
        let at = view.range();
        let Some(sealed) = view.sealed().cloned() else { return Ok(bytes_of(view.into_buf(), at)) };
        let mut buf = view.into_buf();
        self.open_view(chunk, &sealed, &mut buf).await.map_err(DriveFault::Sealed)?;
        Ok(bytes_of(buf, at))
    }

    pub async fn read_drive(
        &self,
        ring: &stoker_ring::Ring,
        chunk: ChunkId,
        piece: Option<u32>,
        range: std::ops::Range<usize>,
    ) -> std::result::Result<Bytes, DriveFault> {
        if range.len() > PIECE {
            let bytes = self.opened(chunk, ring.read(chunk, range.start, range.len()).await?).await?;
            if let Some(first) = piece {
                self.keep_pieces(chunk, first, &bytes);
            }
            return Ok(bytes);
        }
        let keep = piece.filter(|piece| self.cache.wants(chunk, *piece));
        if let Some(piece) = keep
            && Cache::is_large(range.len())
            && let Some(buf) = self.cache.slot()
        {
            let view = ring.read_into(chunk, range.start, range.len(), buf).await?;
            return Ok(self.cache.put(chunk, piece, self.opened(chunk, view).await?));
        }
        let bytes = self.opened(chunk, ring.read(chunk, range.start, range.len()).await?).await?;
        if let Some(piece) = keep
            && !Cache::is_large(range.len())
        {
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
        let pins = self.pins.pin_reader(pin, &runs);
        let mut info = FileInfo { part_sizes, ..Core::info(key, file)? };
        info.expires = self.expires(volume, key, &info);
        let whereabouts = self.row_says(volume, file).await?;
        if let Some(extent) = &whereabouts.extent
            && let Some((chunk, len)) = rings::chunks(&runs).next()
            && self.rings.position(&chunk, len as usize).is_none()
        {
            // It will be asked for, and the catalog may not answer then. If it does not now, that is told when it matters.
            let _ = self.sums(extent, &(0..file.size)).await;
        }
        Ok(NodeFile::new(self.clone(), volume, info, runs, whereabouts, pins))
    }

    /// Where the bytes of a file are.
    async fn row_says(&self, volume: &Arc<Volume>, file: &FileRow) -> Result<Whereabouts> {
        let extent = self.extent(volume, file).await?;
        let peers: Vec<NodeId> = file.holders.iter().map(|holder| NodeId(holder.node)).collect();
        let peers = self.cell.by_latency(peers);
        let is_home = extent.is_none() && file.home == self.node.0 && !peers.is_empty();
        Ok(Whereabouts { extent, peers, is_home, is_named: true })
    }

    /// Where the bytes of an open version are now: by one of its names, or what was kept in the lake for those who read it.
    async fn whereabouts(&self, volume: VolumeId, open: &FileInfo) -> Result<Whereabouts> {
        let version = open.version;
        let mut found: Option<Whereabouts> = None;
        for located in self.names_of(version).await? {
            let Some(volume) = self.volumes.by_id(located.spot.volume).await? else { continue };
            let here = self.row_says(&volume, &located.file).await?;
            if found.as_ref().is_none_or(|found| found.extent.is_none()) {
                found = Some(here);
            }
        }
        match found {
            Some(found) => Ok(found),
            None => {
                let extent = match self.kept_open(volume, version).await? {
                    Some(kept) => Some(kept),
                    None => self.left_object(volume, version, open.key.as_bytes()).await?,
                };
                Ok(Whereabouts { extent, ..Whereabouts::default() })
            }
        }
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
            let found = layout_at(&runs, offset, 1000).map(|found| match found {
                ChunkOrHole::Chunk(slice) => (slice.chunk.index, slice.offset, slice.len),
                ChunkOrHole::Hole { end } => panic!("a hole up to {end}"),
            });
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

    #[test]
    fn holes_are_found_from_both_sides() {
        let data = |file_offset, len| ChunkRun {
            file_offset,
            version: VersionId([1; 12]),
            first_index: 0,
            count: 1,
            chunk_len: len,
            last_len: len,
        };
        let tib = 1 << 40;
        let runs = [ChunkRun::hole(0, 100), data(100, 50), data(150, 50), ChunkRun::hole(200, tib)];
        let size = 200 + tib;
        assert_eq!(layout_at(&runs, 0, 1), Some(ChunkOrHole::Hole { end: 100 }));
        assert_eq!(layout_at(&runs, 100, 1).map(|found| found.end()), Some(150));
        assert_eq!(layout_at(&runs, size - 1, 1), Some(ChunkOrHole::Hole { end: size }));
        assert_eq!(layout_at(&runs, size, 1), None);
        for (offset, at_data, at_hole) in [
            (0, Some(100), Some(0)),
            (99, Some(100), Some(99)),
            (100, Some(100), Some(200)),
            (170, Some(170), Some(200)),
            (200, None, Some(200)),
            (size - 1, None, Some(size - 1)),
            (size, None, None),
            (u64::MAX, None, None),
        ] {
            assert_eq!(seek(&runs, size, offset, Seek::Data), at_data, "data from {offset}");
            assert_eq!(seek(&runs, size, offset, Seek::Hole), at_hole, "a hole from {offset}");
        }
        assert_eq!(seek(&runs[1..3], 200, 120, Seek::Hole), Some(200), "the end is a hole");
        assert_eq!(seek(&[], 0, 0, Seek::Hole), None);
    }
}
