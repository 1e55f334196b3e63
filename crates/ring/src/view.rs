//! What callers give to a ring and what they get back.

use std::ops::{Deref, Range};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use stoker_format::{ChunkId, RecordKind, Seal, Seq, Superblock, VolumeId};

use crate::buffer::Buf;
use crate::engine::{Append, Crcs, Retention, SegmentCounts};
use crate::index::{Entry, Marks};
use crate::recovery::Report;
use crate::settings::SyncMode;

/// A record to append.
#[derive(Debug)]
pub struct Put {
    /// Its id; never written twice with different bytes.
    pub chunk: ChunkId,
    /// Its owner.
    pub volume: VolumeId,
    /// Chunk or name record.
    pub kind: RecordKind,
    /// How long it stays.
    pub retention: Retention,
    /// Its bytes.
    pub payload: Buf,
    /// What opens them, if they are ciphertext: it is kept in the header, and comes back with what is read.
    pub seal: Option<Arc<Seal>>,
}

impl Put {
    /// A chunk that is must-keep until marked clean.
    pub fn chunk(chunk: ChunkId, volume: VolumeId, payload: Buf) -> Put {
        Put { chunk, volume, kind: RecordKind::Chunk, retention: Retention::Dirty, payload, seal: None }
    }

    /// Computes the CRCs here, on the caller's thread, where the bytes are still in its cache.
    pub(crate) fn into_append(mut self) -> Append {
        let crcs = Crcs::of_buf(&mut self.payload);
        let Put { chunk, volume, kind, retention, payload, seal } = self;
        Append { chunk, volume, kind, retention, payload, crcs, seal }
    }
}

/// Bytes in the buffer that the drive wrote them to; verified, unless whoever asked said that it does so itself.
#[derive(Debug)]
pub struct ReadView {
    pub(crate) buf: Buf,
    pub(crate) range: Range<usize>,
    pub(crate) crc: Option<u32>,
    pub(crate) sealed: Option<SealedBlocks>,
}

/// The whole blocks around the wanted bytes of a sealed record.
#[derive(Clone, Debug)]
pub struct SealedBlocks {
    /// What opens them.
    pub seal: Arc<Seal>,
    /// Owner of the record.
    pub volume: VolumeId,
    /// Bytes of the whole record.
    pub len: u32,
    /// Number of the first block.
    pub first: usize,
    /// Where the blocks are in the buffer.
    pub range: Range<usize>,
}

impl ReadView {
    /// What the bytes are sealed with, if they are.
    pub fn sealed(&self) -> Option<&SealedBlocks> {
        self.sealed.as_ref()
    }

    /// CRC32C of the wanted bytes, if they are whole blocks of their record: it follows from the sums that they are
    /// verified with.
    pub fn crc32c(&self) -> Option<u32> {
        self.crc
    }

    /// The memory, for the next read; the wanted bytes are at the range given by `range`.
    pub fn into_buf(self) -> Buf {
        self.buf
    }

    /// Where the wanted bytes are in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for ReadView {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf.as_slice()[self.range.clone()]
    }
}

/// What is known of a live record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordInfo {
    /// Id.
    pub chunk: ChunkId,
    /// Owner.
    pub volume: VolumeId,
    /// Chunk or name record.
    pub kind: RecordKind,
    /// Payload bytes.
    pub len: u32,
    /// CRC32C of the payload.
    pub crc: u32,
    /// Segment.
    pub segment: u32,
    /// Header inside the segment.
    pub header_offset: u32,
    /// Payload inside the segment.
    pub payload_offset: u32,
    /// Order in the ring.
    pub seq: Seq,
    /// May be dropped.
    pub clean: bool,
    /// Never drains.
    pub never: bool,
    /// Kept by request.
    pub pinned: bool,
    /// A block failed its CRC when it was moved.
    pub damaged: bool,
    /// Its bytes are ciphertext.
    pub sealed: bool,
}

impl RecordInfo {
    /// The public view of an index entry.
    pub fn of(chunk: ChunkId, entry: &Entry) -> RecordInfo {
        RecordInfo {
            chunk,
            volume: entry.volume,
            kind: entry.kind(),
            len: entry.len,
            crc: entry.crc,
            segment: entry.segment,
            header_offset: entry.header_offset,
            payload_offset: entry.payload_offset,
            seq: entry.seq,
            clean: entry.marks.has(Marks::CLEAN),
            never: entry.marks.has(Marks::NEVER),
            pinned: entry.marks.has(Marks::PINNED),
            damaged: entry.marks.has(Marks::DAMAGED),
            sealed: entry.marks.has(Marks::SEALED),
        }
    }
}

/// A right to read a record straight from its segment file. The bytes behind it never change (R4); the holder checks
/// them against the table, or calls them unverified.
#[derive(Debug)]
pub struct Lease {
    /// Read-only descriptor of the segment file.
    pub file: OwnedFd,
    /// Where the payload starts in it.
    pub offset: u64,
    /// Payload bytes.
    pub len: u32,
    /// CRC32C of each 4 KiB block.
    pub table: Arc<[u32]>,
}

/// The state of a ring at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// Identity and geometry.
    pub superblock: Superblock,
    /// Segments by state.
    pub segments: SegmentCounts,
    /// Live records.
    pub records: usize,
    /// Drive bytes of records that must stay.
    pub keep_bytes: u64,
    /// Drive bytes of records that may be dropped.
    pub clean_bytes: u64,
    /// Payload bytes waiting for the drive.
    pub queued_bytes: usize,
    /// Why the drive takes no more writes, if so.
    pub poisoned: Option<String>,
    /// What does the I/O, in words.
    pub io_engine: String,
    /// Why not io_uring, if a fallback was chosen.
    pub io_fallback: Option<String>,
    /// Whether I/O bypasses the page cache.
    pub direct: bool,
    /// How writes become durable.
    pub sync: SyncMode,
    /// What recovery saw when the ring was opened.
    pub recovery: Report,
    /// Segments whose file was gone when the ring was opened: what they held is lost here.
    pub segments_missing: Vec<u32>,
    /// Upper bound of memory.
    pub memory_bytes_max: usize,
    /// Streams and reclaim in one line, for support.
    pub detail: String,
}

/// Where a scrub stands.
#[derive(Clone, Copy, Default, Debug)]
pub struct ScrubCursor {
    pub(crate) shard: usize,
    /// Records checked so far in this lap.
    pub checked: u64,
}
