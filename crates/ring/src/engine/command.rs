//! What goes into the engine and what comes out of it: requests, I/O commands, outcomes, answers.

use std::sync::Arc;

use stoker_format::{BLOCK, ChunkId, FooterEntry, RecordKind, Seal, VolumeId};

use crate::buffer::Buf;
use crate::error::Result;
use crate::tables::Table;

/// Names an I/O command; completions carry it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// Memory of one write: an optional head block area, then a body whose headroom may hold the header.
#[derive(Debug, Default)]
pub struct WriteData {
    /// Written first.
    pub head: Option<Buf>,
    /// Written after it, in whole blocks.
    pub body: Option<Buf>,
    /// Bytes of the body's headroom that are part of the write.
    pub body_head: usize,
}

impl WriteData {
    /// Bytes that reach the drive.
    pub fn len(&self) -> usize {
        let head = self.head.as_ref().map_or(0, |b| crate::buffer::blocks_up(b.len()));
        let body = self.body.as_ref().map_or(0, |b| crate::buffer::blocks_up(b.len()));
        head + self.body_head + body
    }

    /// True if nothing would be written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a driver has to do. Offsets are inside the segment and block-aligned.
#[derive(Debug)]
pub enum Io {
    /// Write; if `durable`, completion means it survives power loss.
    Write {
        /// Segment to write into.
        segment: u32,
        /// Where.
        offset: u32,
        /// What.
        data: WriteData,
        /// Completion waits for stable media.
        durable: bool,
    },
    /// Read `buf.len()` bytes (whole blocks).
    Read {
        /// Segment to read from.
        segment: u32,
        /// Where.
        offset: u32,
        /// Destination.
        buf: Buf,
    },
    /// Make every completed write of a segment durable.
    Flush {
        /// Segment.
        segment: u32,
    },
    /// Make a segment writable: exists, has full size, is zero-written, carries this header twice; all durable. With
    /// `replace`, the old file is not touched but replaced, atomically.
    Prepare {
        /// Segment.
        segment: u32,
        /// Encoded segment header for the first and the last block.
        header: Box<[u8]>,
        /// A lease may still show the old file.
        replace: bool,
    },
    /// Read the whole segment and list its records as a footer would.
    Scan {
        /// Segment.
        segment: u32,
    },
    /// Remember durably that a lease on this segment was given out.
    MarkLeased {
        /// Segment.
        segment: u32,
    },
}

/// A command of the engine.
#[derive(Debug)]
pub struct Command {
    /// Its name.
    pub op: OpId,
    /// What to do.
    pub io: Io,
}

/// How a command ended.
#[derive(Debug)]
pub enum Outcome {
    /// Write, flush, prepare, mark: done; a write gives its memory back.
    Done(WriteData),
    /// Read: the bytes.
    Read(Buf),
    /// Scan: the records found.
    Scanned(Vec<FooterEntry>),
    /// It failed, in words.
    Failed(String),
}

/// How long a record stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retention {
    /// Must-keep until it is marked clean.
    Dirty,
    /// A copy of what the lake has.
    Clean,
    /// Must-keep for good: its volume never drains.
    Never,
}

/// CRCs of a payload, computed where the bytes were touched last.
#[derive(Clone, Debug)]
pub enum Crcs {
    /// At most one block.
    One(u32),
    /// A table and the CRC of the whole.
    Many(Table, u32),
}

impl Crcs {
    /// As a table.
    pub fn table(&self) -> Table {
        match self {
            Crcs::One(crc) => Arc::new([*crc]),
            Crcs::Many(table, _) => table.clone(),
        }
    }

    /// Computes the CRCs of a payload.
    pub fn of(payload: &[u8]) -> Crcs {
        if payload.len() <= BLOCK {
            return Crcs::One(stoker_format::crc32c(payload));
        }
        let table = stoker_format::block_table(payload);
        let whole = stoker_format::table_crc(&table, payload.len());
        Crcs::Many(table.into(), whole)
    }

    /// The CRCs of a buffer, computed unless whoever filled it did so.
    pub fn of_buf(payload: &mut Buf) -> Crcs {
        match payload.take_block_table() {
            Some(table) if payload.len() > BLOCK => {
                let whole = stoker_format::table_crc(&table, payload.len());
                Crcs::Many(table.into(), whole)
            }
            _ => Crcs::of(payload.as_slice()),
        }
    }

    /// CRC of the whole payload.
    pub fn whole(&self) -> u32 {
        match self {
            Crcs::One(crc) | Crcs::Many(_, crc) => *crc,
        }
    }

    /// One CRC per block.
    pub fn blocks(&self) -> &[u32] {
        match self {
            Crcs::One(crc) => std::slice::from_ref(crc),
            Crcs::Many(table, _) => table,
        }
    }
}

/// One record to append.
#[derive(Debug)]
pub struct Append {
    /// Its id.
    pub chunk: ChunkId,
    /// Its owner.
    pub volume: VolumeId,
    /// Chunk or name record.
    pub kind: RecordKind,
    /// How long it stays.
    pub retention: Retention,
    /// Its bytes.
    pub payload: Buf,
    /// Their CRCs.
    pub crcs: Crcs,
    /// What opens them, if they are sealed.
    pub seal: Option<Arc<Seal>>,
}

/// The answer to one append or delete.
#[derive(Debug)]
pub struct Done<T> {
    /// Who asked.
    pub token: T,
    /// Durable, or why not.
    pub result: Result<()>,
    /// The caller's memory.
    pub payload: Option<Buf>,
}

/// A record that cannot be read any more, for whoever can repair it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Which one.
    pub chunk: ChunkId,
    /// True if nothing of it is left here.
    pub gone: bool,
}
