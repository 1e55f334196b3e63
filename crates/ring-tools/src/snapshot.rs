//! A ring at rest, read without writing a byte: what recovery finds, and access to the bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stoker_format::{BLOCK, ChunkId, RecordPlace};
use stoker_ring::engine::{Segment, State};
use stoker_ring::index::{Entry, Index};
use stoker_ring::read::Life;
use stoker_ring::recovery::{Media, Recovered, recover};
use stoker_ring::stats::NoWake;
use stoker_ring::{Buf, Drive};

use crate::failure::Failure;

/// Missing files that are named.
const MISSING_NAMED_MAX: usize = 20;

/// Bytes that a [`Window`] reads at a time.
const WINDOW: usize = 4 << 20;

/// An open drive and what was found on it.
pub struct Snapshot {
    /// The drive; holds the lock.
    pub drive: Drive,
    /// What recovery found.
    pub recovered: Recovered,
    index: Arc<Index>,
}

impl Snapshot {
    /// Segment files that were made and are not there, a few of them.
    pub fn missing_files(&self) -> impl Iterator<Item = std::path::PathBuf> + '_ {
        self.recovered.missing.iter().take(MISSING_NAMED_MAX).map(|segment| self.drive.segment_path(*segment))
    }

    /// Opens a ring for looking only.
    pub fn take(path: &Path) -> Result<Snapshot, Failure> {
        let drive = Drive::open_read_only(path)?;
        let shape = drive.shape();
        // Looking at a ring must not fail because of a cap that its server would have; memory is the only limit.
        let index = Index::new(usize::MAX, shape.segment_count, 0, Arc::new(NoWake));
        let recovered = recover(&drive, shape, &index)?;
        Ok(Snapshot { drive, recovered, index })
    }

    /// Every live record in the order of the drive.
    pub fn records(&self) -> Vec<(ChunkId, Entry)> {
        let mut records = Vec::with_capacity(self.index.len());
        self.index.for_each(|chunk, entry| records.push((*chunk, *entry)));
        records.sort_by_key(|(_, entry)| (entry.segment, entry.payload_offset));
        records
    }

    /// A live record.
    pub fn record(&self, chunk: &ChunkId) -> Option<Entry> {
        self.index.get(chunk)
    }

    /// The life that headers of a segment must prove.
    pub fn life(&self, segment: u32) -> Life {
        let (shape, segment) = (self.drive.shape(), &self.recovered.segments[segment as usize]);
        Life {
            ring: shape.ring,
            generation: segment.generation,
            nonce: segment.nonce,
            segment_size: shape.segment_size,
        }
    }

    /// The place that a header at an offset must prove.
    pub fn place(&self, segment: u32, offset: u32) -> RecordPlace {
        let life = self.life(segment);
        RecordPlace {
            ring: life.ring,
            generation: life.generation,
            nonce: life.nonce,
            offset,
            segment_size: life.segment_size,
        }
    }

    /// Number of segments by state.
    pub fn segments_by_state(&self) -> BTreeMap<&'static str, u32> {
        let mut counts = BTreeMap::new();
        for segment in &self.recovered.segments {
            *counts.entry(state_name(segment)).or_insert(0) += 1;
        }
        counts
    }

    /// A reader of this drive.
    pub fn window(&self) -> Window<'_> {
        let size = self.drive.shape().segment_size as usize;
        Window { drive: &self.drive, size, segment: u32::MAX, start: 0, buf: Buf::heap(0) }
    }
}

/// The state of a segment at rest, in one word.
pub fn state_name(segment: &Segment) -> &'static str {
    match segment.state {
        State::Unprepared | State::Preparing => "unprepared",
        State::Free | State::Freeing { .. } => "free",
        // Recovery calls a segment without a footer closing: it was open when the ring stopped.
        State::Opening { .. } | State::Open | State::Closing => "open",
        State::Closed | State::Reclaiming => "closed",
        State::Damaged => "damaged",
    }
}

/// Reads ranges of segments; neighbours of what was asked for come along.
pub struct Window<'a> {
    drive: &'a Drive,
    size: usize,
    segment: u32,
    start: usize,
    buf: Buf,
}

impl Window<'_> {
    /// The bytes at any offset of a segment; None if the drive cannot read them.
    pub fn get(&mut self, segment: u32, offset: u32, len: usize) -> Option<&[u8]> {
        let offset = offset as usize;
        let end = offset.checked_add(len).filter(|&end| end <= self.size)?;
        let inside = segment == self.segment && offset >= self.start && end <= self.start + self.buf.len();
        if !inside && !self.load(segment, offset, end) {
            return None;
        }
        self.buf.as_slice().get(offset - self.start..end - self.start)
    }

    fn load(&mut self, segment: u32, offset: usize, end: usize) -> bool {
        let start = offset / BLOCK * BLOCK;
        let need = (end - start).next_multiple_of(BLOCK);
        // If the neighbours cannot be read, what was asked for may still be.
        for want in [need.max(WINDOW).min(self.size - start), need] {
            if self.buf.capacity() < want {
                self.buf = Buf::heap(want);
            }
            self.buf.set_len(want);
            if self.drive.read(segment, start as u32, &mut self.buf).is_ok() {
                (self.segment, self.start) = (segment, start);
                return true;
            }
        }
        self.segment = u32::MAX;
        false
    }
}
