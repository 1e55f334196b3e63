//! Which bytes to read for a range of a record, and whether what came back is true (R2). Pure.

use std::ops::Range;

use stoker_format::{
    BLOCK, ChunkId, Record, RecordHeader, RecordPlace, RingId, crc32c, header_len, table_crc,
};

use crate::buffer::blocks_up;
use crate::error::{ErrorKind, Result, RingError};
use crate::index::Entry;

/// A read of whole drive blocks that covers whole payload blocks that cover the wanted bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadPlan {
    /// Segment.
    pub segment: u32,
    /// Block-aligned start inside the segment.
    pub offset: u32,
    /// Block-aligned length.
    pub len: usize,
    /// Payload blocks covered, by number; each is checked.
    pub blocks: Range<usize>,
    /// Where the first of them starts in what was read.
    pub data_start: usize,
    /// The wanted bytes in what was read.
    pub view: Range<usize>,
}

/// Plans the read of `len` bytes at `offset` of a record.
pub fn plan(chunk: &ChunkId, entry: &Entry, offset: usize, len: usize) -> Result<ReadPlan> {
    let end = offset.checked_add(len).filter(|&end| end <= entry.len as usize && len > 0);
    let Some(end) = end else {
        let message =
            format!("read of {len} bytes at {offset} lies beyond record {chunk} of {} bytes", entry.len);
        return Err(RingError::new(ErrorKind::Invalid, message));
    };
    let blocks = offset / BLOCK..end.div_ceil(BLOCK);
    let first = entry.payload_offset as usize + blocks.start * BLOCK;
    let last = entry.payload_offset as usize + (blocks.end * BLOCK).min(entry.len as usize);
    let start = first / BLOCK * BLOCK;
    let data_start = first - start;
    let view_start = data_start + offset - blocks.start * BLOCK;
    Ok(ReadPlan {
        segment: entry.segment,
        offset: start as u32,
        len: blocks_up(last) - start,
        blocks,
        data_start,
        view: view_start..view_start + len,
    })
}

impl ReadPlan {
    /// The first payload block whose CRC differs; None if all agree.
    pub fn bad_block(&self, entry: &Entry, table: &[u32], bytes: &[u8]) -> Option<usize> {
        self.blocks.clone().find(|&block| {
            let start = self.data_start + (block - self.blocks.start) * BLOCK;
            let len = BLOCK.min(entry.len as usize - block * BLOCK);
            match (bytes.get(start..start + len), table.get(block)) {
                (Some(bytes), Some(&expected)) => crc32c(bytes) != expected,
                _ => true,
            }
        })
    }
}

impl ReadPlan {
    /// Where the whole blocks are in what was read.
    pub fn blocks_range(&self, entry: &Entry) -> Range<usize> {
        let len = (self.blocks.end * BLOCK).min(entry.len as usize) - self.blocks.start * BLOCK;
        self.data_start..self.data_start + len
    }
}

impl ReadPlan {
    /// CRC32C of the wanted bytes out of the table; none if they begin or end inside a block.
    pub fn crc(&self, entry: &Entry, table: &[u32]) -> Option<u32> {
        let range = self.blocks_range(entry);
        if self.view != range {
            return None;
        }
        let len = range.len();
        table.get(self.blocks.clone()).map(|blocks| table_crc(blocks, len))
    }
}

/// Where the header of a record, table included, has to be read: block-aligned start and length.
pub fn header_place(entry: &Entry) -> (u32, usize) {
    let start = entry.header_offset as usize / BLOCK * BLOCK;
    let end = entry.header_offset as usize + header_len(entry.len as usize, entry.aux());
    (start as u32, blocks_up(end) - start)
}

/// The life of a segment, that headers in it must prove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Ring.
    pub ring: RingId,
    /// Number of the life.
    pub generation: stoker_format::Generation,
    /// Seed of its CRCs.
    pub nonce: u64,
    /// Bytes per segment.
    pub segment_size: u32,
}

/// The record, without its payload, out of a header read at [`header_place`]; None if it is not this one.
pub fn record_of(chunk: &ChunkId, entry: &Entry, life: &Life, bytes: &[u8]) -> Option<Record> {
    let place = RecordPlace {
        ring: life.ring,
        generation: life.generation,
        nonce: life.nonce,
        offset: entry.header_offset,
        segment_size: life.segment_size,
    };
    let record = RecordHeader::decode(bytes.get(entry.header_offset as usize % BLOCK..)?, &place).ok()?;
    let same = (record.header.chunk, record.header.len) == (*chunk, entry.len);
    same.then_some(record)
}

/// The CRC table of the same.
pub fn table_of(chunk: &ChunkId, entry: &Entry, life: &Life, bytes: &[u8]) -> Option<Vec<u32>> {
    record_of(chunk, entry, life, bytes).map(|record| record.table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Marks;
    use stoker_format::{Seq, VersionId, VolumeId};

    fn entry(payload_offset: u32, len: u32) -> Entry {
        Entry {
            seq: Seq(1),
            segment: 3,
            header_offset: 4096,
            payload_offset,
            len,
            crc: 0,
            volume: VolumeId(1),
            marks: Marks::default(),
        }
    }

    #[test]
    fn plans_cover_whole_blocks_and_show_the_range() {
        let chunk = ChunkId::new(VersionId([1; 12]), 0);
        let check = |payload_offset, len, at, n, want: (u32, usize, Range<usize>, Range<usize>)| {
            let plan = plan(&chunk, &entry(payload_offset, len), at, n).unwrap();
            assert_eq!((plan.offset, plan.len, plan.blocks, plan.view), want);
        };
        check(8192, 10_000, 0, 10_000, (8192, 12_288, 0..3, 0..10_000));
        check(8192, 10_000, 4096, 4096, (12_288, 4096, 1..2, 0..4096));
        check(8192, 10_000, 5000, 10, (12_288, 4096, 1..2, 904..914));
        check(8192 + 192, 4000, 100, 50, (8192, 8192, 0..1, 292..342));
        let payload: Vec<u8> = (0..10_000u32).map(|n| (n * 7) as u8).collect();
        let table = stoker_format::block_table(&payload);
        for (range, known) in [(0..10_000, true), (4096..8192, true), (8192..10_000, true), (1..4096, false)]
        {
            let entry = entry(8192, 10_000);
            let plan = plan(&chunk, &entry, range.start, range.len()).unwrap();
            assert_eq!(plan.crc(&entry, &table), known.then(|| crc32c(&payload[range])));
        }
        assert!(plan(&chunk, &entry(8192, 100), 90, 11).is_err());
        assert!(plan(&chunk, &entry(8192, 100), usize::MAX, 2).is_err());
        assert!(plan(&chunk, &entry(8192, 100), 0, 0).is_err());
    }
}
