//! A drive that remembers what is durable and what only looks so.
//!
//! Reads see every completed write. A crash keeps what was made durable and, of everything else, a random subset of
//! sectors: torn, reordered, lost. Faults plant rot, misdirected writes and failing I/O, and remember which bytes they
//! touched, so that a checker knows what may be missing and that nothing may be wrong.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use stoker_format::GRAIN;
use stoker_ring::buffer::{Buf, blocks_up};
use stoker_ring::engine::{Io, OpId, Outcome, WriteData};
use stoker_ring::error::Result;
use stoker_ring::recovery::Media;

use crate::rng::Rng;

const SECTOR: usize = 512;
const BLOCK: usize = 4096;

/// How a record header and a footer begin, and what of a header is never padding.
const RECORD_MAGIC: &[u8] = b"STOKERRC";
const FOOTER_MAGIC: &[u8] = b"STOKERFT";
const HEADER_BYTES: usize = 96;

#[derive(Clone, Debug)]
struct Write {
    segment: u32,
    offset: usize,
    bytes: Vec<u8>,
}

/// Bytes of one segment file; replaced files keep their number for those who hold a lease.
#[derive(Clone, Debug)]
struct File {
    inode: u64,
    /// What a read returns. Shared until written, so that a crash image costs only what differs.
    live: Arc<Vec<u8>>,
    /// What a crash certainly keeps.
    durable: Arc<Vec<u8>>,
}

/// Which faults a drive has.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// Percent of writes that land somewhere else.
    pub misdirected_percent: u64,
    /// Percent of steps that flip a bit.
    pub rot_percent: u64,
    /// Percent of prepares that find no space.
    pub no_space_percent: u64,
    /// Percent of reads that fail.
    pub read_fail_percent: u64,
    /// The n-th write fails.
    pub fail_write_at: Option<u64>,
    /// Every write fails.
    pub is_failing: bool,
}

/// A simulated drive of equal segments.
#[derive(Clone, Debug)]
pub struct SimDrive {
    segment_size: usize,
    files: Vec<Option<File>>,
    /// Completed, not yet durable.
    unflushed: Vec<Write>,
    /// Old files that leases may show.
    replaced: HashMap<u64, Arc<Vec<u8>>>,
    next_inode: u64,
    leased: Vec<bool>,
    /// Faults in force.
    pub faults: Faults,
    /// A planted bug: a leased segment is written again in place, instead of being replaced by another file.
    pub reuses_leased: bool,
    /// Byte ranges (segment, start, end) that a fault has touched.
    pub tainted: Vec<(u32, usize, usize)>,
    /// A fault has touched something, at some time.
    pub was_tainted: bool,
    writes: u64,
}

impl SimDrive {
    /// A drive with nothing on it.
    pub fn new(segments: u32, segment_size: u32, faults: Faults) -> SimDrive {
        SimDrive {
            segment_size: segment_size as usize,
            files: vec![None; segments as usize],
            unflushed: Vec::new(),
            replaced: HashMap::new(),
            next_inode: 1,
            leased: vec![false; segments as usize],
            faults,
            reuses_leased: false,
            tainted: Vec::new(),
            was_tainted: false,
            writes: 0,
        }
    }

    /// The file behind a segment, as a lease would hold it.
    pub fn inode(&self, segment: u32) -> u64 {
        self.files[segment as usize].as_ref().map_or(0, |f| f.inode)
    }

    /// What a lease holder sees.
    pub fn leased_bytes(&self, inode: u64, offset: usize, len: usize) -> Option<&[u8]> {
        let live = self.files.iter().flatten().find(|f| f.inode == inode).map(|f| &f.live);
        live.or_else(|| self.replaced.get(&inode))?.get(offset..offset + len)
    }

    /// Bytes that are on the drive now, for workloads that store ring images as user data.
    pub fn peek(&self, segment: u32, offset: usize, len: usize) -> Option<&[u8]> {
        self.files[segment as usize].as_ref()?.live.get(offset..offset + len)
    }

    /// True if a fault touched any of these bytes.
    pub fn is_tainted(&self, segment: u32, start: usize, end: usize) -> bool {
        self.tainted.iter().any(|&(s, a, b)| s == segment && a < end && start < b)
    }

    /// Flips a bit somewhere.
    pub fn rot(&mut self, rng: &mut Rng) {
        let segment = rng.below(self.files.len());
        let Some(file) = &mut self.files[segment] else { return };
        let (at, bit) = (rng.below(self.segment_size), 1u8 << rng.below(8));
        Arc::make_mut(&mut file.live)[at] ^= bit;
        Arc::make_mut(&mut file.durable)[at] ^= bit;
        self.tainted.push((segment as u32, at, at + 1));
        self.was_tainted = true;
    }

    /// Flips a bit in each of `percent` of the record headers; says how many that are.
    pub fn flip_headers(&mut self, percent: u64, rng: &mut Rng) -> usize {
        let mut flipped = 0;
        for (segment, file) in self.files.iter_mut().enumerate() {
            let Some(file) = file else { continue };
            let is_header = |at: &usize| file.durable[*at..].starts_with(RECORD_MAGIC);
            let headers: Vec<usize> = (BLOCK..self.segment_size).step_by(GRAIN).filter(is_header).collect();
            for start in headers {
                if !rng.percent(percent) {
                    continue;
                }
                let (at, bit) = (start + rng.below(HEADER_BYTES), 1u8 << rng.below(8));
                Arc::make_mut(&mut file.live)[at] ^= bit;
                Arc::make_mut(&mut file.durable)[at] ^= bit;
                self.tainted.push((segment as u32, at, at + 1));
                self.was_tainted = true;
                flipped += 1;
            }
        }
        flipped
    }

    /// Overwrites `percent` of the blocks with record headers by zeros, and all footers: nothing tells of these records any more.
    pub fn zero_records(&mut self, percent: u64, rng: &mut Rng) -> usize {
        let mut zeroed = 0;
        for (segment, file) in self.files.iter_mut().enumerate() {
            let Some(file) = file else { continue };
            let last = self.segment_size - BLOCK;
            let has_header = |at: &usize| {
                (*at..at + BLOCK).step_by(GRAIN).any(|at| file.durable[at..].starts_with(RECORD_MAGIC))
            };
            let blocks: Vec<usize> = (BLOCK..last).step_by(BLOCK).filter(has_header).collect();
            let chosen: Vec<usize> = blocks.into_iter().filter(|_| rng.percent(percent)).collect();
            if chosen.is_empty() {
                continue;
            }
            for at in
                chosen.iter().copied().chain(file.durable[last..].starts_with(FOOTER_MAGIC).then_some(last))
            {
                Arc::make_mut(&mut file.live)[at..at + BLOCK].fill(0);
                Arc::make_mut(&mut file.durable)[at..at + BLOCK].fill(0);
                self.tainted.push((segment as u32, at, at + BLOCK));
            }
            self.was_tainted = true;
            zeroed += chosen.len();
        }
        zeroed
    }

    /// Removes the files of `percent` of the segments; says how many that are.
    pub fn lose_segments(&mut self, percent: u64, rng: &mut Rng) -> usize {
        let mut lost = 0;
        for (segment, file) in self.files.iter_mut().enumerate() {
            if file.is_some() && rng.percent(percent) {
                *file = None;
                self.unflushed.retain(|write| write.segment != segment as u32);
                self.tainted.push((segment as u32, 0, self.segment_size));
                self.was_tainted = true;
                lost += 1;
            }
        }
        lost
    }

    /// Executes a command to its end.
    pub fn execute(&mut self, op: OpId, io: Io, rng: &mut Rng) -> (OpId, Outcome) {
        let outcome = match io {
            Io::Write { segment, offset, data, durable } => self.write(segment, offset, data, durable, rng),
            Io::Read { .. } if rng.percent(self.faults.read_fail_percent) => {
                Outcome::Failed("simulated read error".into())
            }
            Io::Read { segment, offset, mut buf } => match self.read(segment, offset, &mut buf) {
                Ok(()) => Outcome::Read(buf),
                Err(e) => Outcome::Failed(e.to_string()),
            },
            Io::Flush { segment } => {
                self.flush(segment);
                Outcome::Done(WriteData::default())
            }
            Io::Prepare { segment, header, replace } => self.prepare(segment, &header, replace, rng),
            Io::Scan { .. } => unreachable!("the world scans with the real scanner"),
            Io::MarkLeased { segment } => {
                self.leased[segment as usize] = true;
                Outcome::Done(WriteData::default())
            }
        };
        (op, outcome)
    }

    fn write(&mut self, segment: u32, offset: u32, data: WriteData, durable: bool, rng: &mut Rng) -> Outcome {
        self.writes += 1;
        if self.faults.is_failing || self.faults.fail_write_at == Some(self.writes) {
            return Outcome::Failed("simulated write error".into());
        }
        let mut write = Write { segment, offset: offset as usize, bytes: gather(&data) };
        if rng.percent(self.faults.misdirected_percent) {
            let len = write.bytes.len();
            self.was_tainted = true;
            self.tainted.push((segment, write.offset, write.offset + len));
            write.offset = rng.below((self.segment_size - len) / BLOCK + 1) * BLOCK;
            self.tainted.push((segment, write.offset, write.offset + len));
        }
        self.apply(&write);
        if durable {
            self.apply_durable(&write);
        } else {
            self.unflushed.push(write);
        }
        Outcome::Done(data)
    }

    fn apply(&mut self, write: &Write) {
        if let Some(file) = &mut self.files[write.segment as usize] {
            Arc::make_mut(&mut file.live)[write.offset..][..write.bytes.len()].copy_from_slice(&write.bytes);
        }
    }

    fn apply_durable(&mut self, write: &Write) {
        if let Some(file) = &mut self.files[write.segment as usize] {
            Arc::make_mut(&mut file.durable)[write.offset..][..write.bytes.len()]
                .copy_from_slice(&write.bytes);
        }
    }

    fn flush(&mut self, segment: u32) {
        let (now, later) =
            std::mem::take(&mut self.unflushed).into_iter().partition(|w| w.segment == segment);
        self.unflushed = later;
        let now: Vec<Write> = now;
        now.iter().for_each(|write| self.apply_durable(write));
    }

    fn prepare(&mut self, segment: u32, header: &[u8], replace: bool, rng: &mut Rng) -> Outcome {
        if self.faults.is_failing || rng.percent(self.faults.no_space_percent) {
            return Outcome::Failed("simulated: no space left on device".into());
        }
        let mut bytes = vec![0; self.segment_size];
        bytes[..header.len()].copy_from_slice(header);
        let last = self.segment_size - header.len();
        bytes[last..].copy_from_slice(header);
        self.unflushed.retain(|w| w.segment != segment);
        self.tainted.retain(|t| t.0 != segment);
        let bytes = Arc::new(bytes);
        let old = self.files[segment as usize].as_ref().filter(|_| self.reuses_leased);
        let inode = old.map_or(self.next_inode, |old| old.inode);
        let file = File { inode, live: bytes.clone(), durable: bytes };
        self.next_inode += 1;
        if let Some(old) = self.files[segment as usize].replace(file) {
            assert!(replace, "an existing segment was prepared again without being replaced");
            self.replaced.insert(old.inode, old.live);
        }
        self.leased[segment as usize] = false;
        Outcome::Done(WriteData::default())
    }

    /// The drive after the process was killed: the drive finishes some of what was `in_flight`, and whoever opens it next
    /// makes all that was written durable first.
    pub fn kill<'a>(&self, in_flight: impl Iterator<Item = &'a Io>, rng: &mut Rng) -> SimDrive {
        let mut after = self.clone();
        for io in in_flight {
            if let Io::Write { segment, offset, data, .. } = io
                && rng.percent(50)
            {
                let write = Write { segment: *segment, offset: *offset as usize, bytes: gather(data) };
                after.apply(&write);
                after.unflushed.push(write);
            }
        }
        (0..after.files.len() as u32).for_each(|segment| after.flush(segment));
        after
    }

    /// The drive after a power cut while `in_flight` was under way: `survive_percent` of the sectors that were not
    /// durable yet happen to be there.
    pub fn crash<'a>(
        &self,
        in_flight: impl Iterator<Item = &'a Io>,
        survive_percent: u64,
        rng: &mut Rng,
    ) -> SimDrive {
        let mut after = self.clone();
        let mut pending = std::mem::take(&mut after.unflushed);
        for io in in_flight {
            match io {
                Io::Write { segment, offset, data, .. } => {
                    pending.push(Write { segment: *segment, offset: *offset as usize, bytes: gather(data) });
                }
                Io::Prepare { segment, header, replace } if rng.percent(50) => {
                    let faults = std::mem::take(&mut after.faults);
                    after.prepare(*segment, header, *replace, rng);
                    after.faults = faults;
                    pending.retain(|w| w.segment != *segment);
                }
                Io::MarkLeased { segment } if rng.percent(50) => after.leased[*segment as usize] = true,
                _ => {}
            }
        }
        // The cache writes back in any order.
        for at in (1..pending.len()).rev() {
            pending.swap(at, rng.below(at + 1));
        }
        for write in &pending {
            for (n, sector) in write.bytes.chunks(SECTOR).enumerate() {
                if rng.percent(survive_percent) {
                    let offset = write.offset + n * SECTOR;
                    after.apply_durable(&Write { segment: write.segment, offset, bytes: sector.to_vec() });
                }
            }
        }
        for file in after.files.iter_mut().flatten() {
            file.live = file.durable.clone();
        }
        after
    }
}

fn gather(data: &WriteData) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len());
    if let Some(head) = &data.head {
        bytes.extend_from_slice(head.as_slice());
        bytes.resize(blocks_up(bytes.len()), 0);
    }
    if let Some(body) = &data.body {
        bytes.extend_from_slice(body.head(data.body_head));
        bytes.extend_from_slice(body.as_slice());
        bytes.resize(data.len(), 0);
    }
    bytes
}

impl Media for SimDrive {
    fn exists(&self, segment: u32) -> Result<bool> {
        Ok(self.files[segment as usize].is_some())
    }

    fn read(&self, segment: u32, offset: u32, buf: &mut Buf) -> io::Result<()> {
        let file =
            self.files[segment as usize].as_ref().ok_or_else(|| io::Error::other("no such segment"))?;
        let (start, end) = (offset as usize, offset as usize + buf.len());
        let bytes =
            file.live.get(start..end).ok_or_else(|| io::Error::other("read past the end of a segment"))?;
        assert!(start.is_multiple_of(BLOCK) && buf.len().is_multiple_of(BLOCK), "unaligned read");
        buf.as_mut_slice().copy_from_slice(bytes);
        Ok(())
    }

    fn leased(&self, segment: u32) -> bool {
        self.leased[segment as usize]
    }

    fn foreign_is_error(&self) -> bool {
        true
    }
}
