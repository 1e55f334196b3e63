//! Reads a drive back after any crash: footers of closed segments, a scan of open ones.
//!
//! The scan does not stop at a hole, because acknowledged records may lie behind it. It looks at every grain for a
//! header whose identity and seeded CRC fit this place in this life of the segment (R1), skips the payloads of those it
//! found, and believes a record only if its payload agrees too.

use std::collections::{BTreeMap, HashMap};
use std::io;

use stoker_format::{
    BLOCK, ChunkId, Footer, FooterEntry, GRAIN, Generation, Record, RecordFault, RecordFlags, RecordHeader,
    RecordKind, RecordPlace, RingId, SegmentHeader, SegmentKind, SegmentState, Seq, Superblock, crc32c,
    decode_deaths, footer_span, header_len, header_span,
};

use crate::buffer::{Buf, blocks_up};
use crate::engine::{HeaderCopy, Segment, State, StreamKey};
use crate::error::{ErrorKind, Result, RingError};
use crate::index::{Entry, Index};

/// Bytes read at a time.
const WINDOW: usize = 1 << 20;

/// Blocking access to the segments of a drive.
pub trait Media {
    /// Whether the segment exists with its full size; an error if it is there but cut short.
    fn exists(&self, segment: u32) -> Result<bool>;
    /// Reads `buf.len()` bytes (whole blocks) at a block offset.
    fn read(&self, segment: u32, offset: u32, buf: &mut Buf) -> io::Result<()>;
    /// Whether a lease on it was given out.
    fn leased(&self, segment: u32) -> bool;
    /// Whether bytes of another ring mean a mistake (a stray file) or just old contents (a raw device).
    fn foreign_is_error(&self) -> bool;
}

/// What a recovery saw.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// Segments read by their footer.
    pub footers: u32,
    /// Segments that had to be scanned.
    pub scanned: u32,
    /// Footers that were there but wrong; those segments were scanned.
    pub bad_footers: u32,
    /// Segments with neither a header nor a footer that can be read.
    pub damaged: u32,
    /// Live records.
    pub records: u64,
    /// Deaths applied.
    pub deaths: u64,
    /// Headers whose payload was not written whole: never acknowledged.
    pub torn: u64,
    /// Headers of an earlier life of their segment.
    pub stale: u64,
    /// Headers of another ring.
    pub foreign: u64,
    /// Headers that belong elsewhere.
    pub misplaced: u64,
    /// Headers with the right identity and a wrong CRC.
    pub corrupt: u64,
    /// Blocks that the drive could not read, in segments that had to be scanned.
    pub unreadable_blocks: u64,
    /// Bytes read from the drive.
    pub bytes_read: u64,
}

impl Report {
    fn count(&mut self, fault: &RecordFault) {
        match fault {
            RecordFault::NotARecord | RecordFault::Short { .. } => {}
            RecordFault::Foreign => self.foreign += 1,
            RecordFault::Stale => self.stale += 1,
            RecordFault::Misplaced => self.misplaced += 1,
            RecordFault::TooNew(_) | RecordFault::Corrupt => self.corrupt += 1,
        }
    }
}

/// A drive as it was read back; the index was filled on the way.
pub struct Recovered {
    /// Every segment.
    pub segments: Vec<Segment>,
    /// First free sequence number.
    pub next_seq: Seq,
    /// Segments that were made and are not there any more.
    pub missing: Vec<u32>,
    /// What was seen.
    pub report: Report,
}

/// What to expect on the drive.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Identity.
    pub ring: RingId,
    /// Bytes per segment.
    pub segment_size: u32,
    /// Number of segments.
    pub segment_count: u32,
}

impl Shape {
    /// The shape that a superblock describes.
    pub fn of(superblock: &Superblock) -> Shape {
        Shape {
            ring: superblock.ring,
            segment_size: superblock.segment_size as u32,
            segment_count: superblock.segment_count,
        }
    }
}

/// Reads every segment and fills the index. Deaths win over all older records of their chunk.
pub fn recover(media: &dyn Media, shape: Shape, index: &Index) -> Result<Recovered> {
    let mut recovery = Recovery {
        media,
        shape,
        index,
        report: Report::default(),
        deaths: HashMap::new(),
        next_seq: 1,
        segments: Vec::with_capacity(shape.segment_count as usize),
        suspects: Vec::new(),
    };
    for id in 0..shape.segment_count {
        let segment = recovery.segment(id)?;
        recovery.segments.push(segment);
    }
    recovery.finish()
}

struct Recovery<'a> {
    media: &'a dyn Media,
    shape: Shape,
    index: &'a Index,
    report: Report,
    deaths: HashMap<ChunkId, Seq>,
    next_seq: u64,
    segments: Vec<Segment>,
    /// Records that somebody with a lease could have planted.
    suspects: Vec<(ChunkId, Entry)>,
}

/// The life of a segment, from whichever of its two witnesses is newer.
enum Life {
    Header(SegmentHeader),
    Footer(Footer),
    Unknown,
}

impl Recovery<'_> {
    fn segment(&mut self, id: u32) -> Result<Segment> {
        let mut segment = Segment::unprepared(id);
        if !self.media.exists(id)? {
            return Ok(segment);
        }
        segment.leased = self.media.leased(id);
        let (life, weak_copy) = self.life(id)?;
        segment.weak_copy = weak_copy;
        match life {
            Life::Unknown => segment.state = State::Damaged,
            Life::Header(header) => {
                self.next_seq = self.next_seq.max(header.first_seq.0);
                take_life(&mut segment, header.generation, header.nonce, header.first_seq);
                segment.leasable = header.leasable;
                segment.stream =
                    StreamKey { volume: header.volume, relocation: header.kind == SegmentKind::Relocation };
                match header.state {
                    SegmentState::Free => segment.state = State::Free,
                    SegmentState::Open => self.scan_into(&mut segment)?,
                }
            }
            Life::Footer(footer) => {
                self.next_seq = self.next_seq.max(footer.last_seq.0 + 1);
                take_life(&mut segment, footer.generation, footer.nonce, footer.first_seq);
                segment.leasable = footer.leasable;
                segment.stream =
                    StreamKey { volume: footer.volume, relocation: footer.kind == SegmentKind::Relocation };
                match self.footer_lines(id, &footer)? {
                    Some(lines) => {
                        self.report.footers += 1;
                        segment.state = State::Closed;
                        segment.entry_count = lines.len() as u32;
                        segment.cursor = footer.records_end;
                        segment.last_seq = footer.last_seq;
                        self.take_lines(&mut segment, &lines);
                        let spare = footer.entries_offset.saturating_sub(footer.records_end);
                        if spare >= self.shape.segment_size / 8 {
                            // Worth taking up again where it ended.
                            segment.lines = lines;
                        }
                    }
                    None => {
                        self.report.bad_footers += 1;
                        self.scan_into(&mut segment)?;
                    }
                }
            }
        }
        Ok(segment)
    }

    fn read(&mut self, id: u32, offset: u32, len: usize) -> io::Result<Buf> {
        let mut buf = Buf::heap(len);
        self.report.bytes_read += len as u64;
        self.media.read(id, offset, &mut buf).map(|()| buf)
    }

    fn life(&mut self, id: u32) -> Result<(Life, HeaderCopy)> {
        let last = self.shape.segment_size - BLOCK as u32;
        let (first, last) = match (self.read(id, 0, BLOCK), self.read(id, last, BLOCK)) {
            // What cannot be read must not be taken for what was never written.
            (Err(e), Err(_)) => {
                return Err(RingError::io(format!("reading the headers of segment {id}"), &e));
            }
            (first, last) => (first.ok(), last.ok()),
        };
        let mut foreign = false;
        let mut header_in = |block: &Option<Buf>| {
            let header = SegmentHeader::decode(block.as_ref()?.as_slice()).ok()?;
            foreign |= header.ring != self.shape.ring;
            (header.ring == self.shape.ring && header.segment.0 == id).then_some(header)
        };
        let headers = [header_in(&first), header_in(&last)];
        let footer = last.as_ref().and_then(|block| Footer::decode(block.as_slice()).ok());
        foreign |= footer.as_ref().is_some_and(|f| f.ring != self.shape.ring);
        let footer = footer.filter(|f| f.ring == self.shape.ring && f.segment.0 == id);
        let header = headers.iter().flatten().max_by_key(|h| h.generation).copied();
        let life = match (header, footer) {
            (Some(header), Some(footer)) if footer.generation < header.generation => Life::Header(header),
            (_, Some(footer)) => Life::Footer(footer),
            (Some(header), None) => Life::Header(header),
            (None, None) if foreign && self.media.foreign_is_error() => {
                let message =
                    format!("segment {id} belongs to another ring than its drive: do not mix their files");
                return Err(RingError::new(ErrorKind::Foreign, message));
            }
            (None, None) => Life::Unknown,
        };
        let (generation, last_is_good) = match &life {
            Life::Header(best) => {
                (best.generation, headers[1].is_some_and(|h| h.generation == best.generation))
            }
            Life::Footer(footer) => (footer.generation, true),
            Life::Unknown => (Generation(0), true),
        };
        let first_is_good = headers[0].is_some_and(|h| h.generation == generation);
        Ok((life, if last_is_good && !first_is_good { HeaderCopy::First } else { HeaderCopy::Last }))
    }

    fn footer_lines(&mut self, id: u32, footer: &Footer) -> Result<Option<Vec<FooterEntry>>> {
        let span = footer_span(footer.entry_count as usize);
        let size = self.shape.segment_size as usize;
        if span + BLOCK > size || footer.entries_offset as usize != size - span {
            return Ok(None);
        }
        let bytes = self.read(id, footer.entries_offset, span - BLOCK);
        Ok(bytes.ok().and_then(|bytes| footer.decode_entries(bytes.as_slice()).ok()))
    }

    fn scan_into(&mut self, segment: &mut Segment) -> Result<()> {
        self.report.scanned += 1;
        let place = RecordPlace {
            ring: self.shape.ring,
            generation: segment.generation,
            nonce: segment.nonce,
            offset: 0,
            segment_size: self.shape.segment_size,
        };
        let mut scan = scan(self.media, segment.id, &place, &mut self.report)
            .map_err(|e| RingError::io(format!("scan of segment {}", segment.id), &e))?;
        if segment.leasable {
            // Whoever holds a lease can read the nonce and could plant headers in a payload whose own header is torn:
            // such a header must not speak for another volume, nor of deaths.
            let volume = segment.stream.volume;
            scan.lines.retain(|line| line.volume == volume && line.kind != RecordKind::Dead);
        }
        segment.state = State::Closing;
        if scan.unreadable > 0 {
            // Records may lie where the drive cannot read. The segment is never touched again; what was found is served.
            segment.state = State::Damaged;
            segment.stuck = true;
            self.report.unreadable_blocks += u64::from(scan.unreadable);
        }
        segment.footer_good = false;
        segment.cursor = scan.end;
        segment.last_seq = scan.last_seq.max(segment.first_seq);
        self.next_seq = self.next_seq.max(scan.last_seq.0 + 1);
        self.take_lines(segment, &scan.lines);
        segment.entry_count = scan.lines.len() as u32;
        if segment.state == State::Closing {
            segment.lines = scan.lines;
        }
        Ok(())
    }

    fn take_lines(&mut self, segment: &mut Segment, lines: &[FooterEntry]) {
        let planted = segment.leasable && !segment.footer_good;
        for line in lines {
            self.next_seq = self.next_seq.max(line.seq.0.saturating_add(1));
            if line.kind == RecordKind::Dead {
                segment.deaths += 1;
                segment.below_max = segment.below_max.max(line.seq);
                let below = self.deaths.entry(line.chunk).or_insert(line.seq);
                *below = (*below).max(line.seq);
            } else if planted {
                self.suspects.push((line.chunk, Entry::from_footer(segment.id, line)));
            } else {
                let _ = self.index.insert(line.chunk, Entry::from_footer(segment.id, line));
            }
        }
    }

    fn finish(mut self) -> Result<Recovered> {
        self.apply_deaths();
        // Records of leasable segments that were scanned come last: a chunk that another volume owns is not theirs.
        for (chunk, entry) in std::mem::take(&mut self.suspects) {
            if self.index.get(&chunk).is_none_or(|known| known.volume == entry.volume) {
                let _ = self.index.insert(chunk, entry);
            }
        }
        self.apply_deaths();
        let missing = self.tell_damage_from_absence();
        self.report.records = self.index.len() as u64;
        let next_seq = Seq(self.next_seq);
        Ok(Recovered { segments: self.segments, next_seq, missing, report: self.report })
    }

    fn apply_deaths(&mut self) {
        for (chunk, below) in &self.deaths {
            if self.index.remove_if(chunk, |entry| entry.seq < *below).is_some() {
                self.report.deaths += 1;
            }
        }
    }

    /// Segments are prepared in order: an unreadable one behind the last readable one was never prepared. Gives those in front
    /// of it that are not there at all.
    fn tell_damage_from_absence(&mut self) -> Vec<u32> {
        let mut missing = Vec::new();
        let prepared = |s: &Segment| s.stuck || !matches!(s.state, State::Unprepared | State::Damaged);
        let end = self.segments.iter().rposition(prepared).map_or(0, |at| at + 1);
        for (at, segment) in self.segments.iter_mut().enumerate() {
            if prepared(segment) {
                continue;
            }
            // A segment file appears by rename, whole and with headers; on a flat drive only its place in the order tells.
            let was_made = at < end || (segment.state == State::Damaged && self.media.foreign_is_error());
            if was_made && segment.state == State::Unprepared {
                // Its file is gone. There is nothing in it that another life of the segment could harm: it is made again.
                missing.push(segment.id);
            } else {
                segment.state = if was_made { State::Damaged } else { State::Unprepared };
            }
            self.report.damaged += u32::from(was_made);
        }
        missing
    }
}

fn take_life(segment: &mut Segment, generation: Generation, nonce: u64, first_seq: Seq) {
    (segment.generation, segment.nonce, segment.first_seq) = (generation, nonce, first_seq);
}

/// Records found by reading a whole segment.
pub struct Scan {
    /// As its footer would list them, deaths one by one.
    pub lines: Vec<FooterEntry>,
    /// Where the records end, torn ones included.
    pub end: u32,
    /// Highest sequence number seen, torn ones included.
    pub last_seq: Seq,
    /// Blocks that the drive could not read.
    pub unreadable: u32,
}

/// Finds every record of one life of a segment. `place.offset` is not used.
pub fn scan(media: &dyn Media, id: u32, place: &RecordPlace, report: &mut Report) -> io::Result<Scan> {
    let mut reader = Reader {
        media,
        id,
        size: place.segment_size as usize,
        start: 0,
        buf: None,
        bytes_read: 0,
        unreadable: Default::default(),
    };
    let mut found = find_headers(&mut reader, place, report)?;
    found.sort_by_key(|record| record.header.payload_offset);
    let mut scan = Scan { lines: Vec::new(), end: BLOCK as u32, last_seq: Seq(0), unreadable: 0 };
    for record in found {
        let header = &record.header;
        let headers_end =
            header.header_offset as usize + header_span(header.len as usize, header.aux_per_block);
        let end = headers_end.max((header.payload_offset + header.len) as usize);
        scan.end = scan.end.max(blocks_up(end) as u32);
        scan.last_seq = scan.last_seq.max(header.seq);
        match sound_lines(&mut reader, &record)? {
            Some(lines) => scan.lines.extend(lines),
            None => report.torn += 1,
        }
    }
    scan.lines.sort_by_key(|line| line.header_offset);
    report.bytes_read += reader.bytes_read;
    scan.unreadable = reader.unreadable.len() as u32;
    Ok(scan)
}

/// Pass one: headers on the grid, payloads of those found skipped unread.
fn find_headers(reader: &mut Reader, place: &RecordPlace, report: &mut Report) -> io::Result<Vec<Record>> {
    let end = place.segment_size as usize - BLOCK;
    let mut payloads: BTreeMap<usize, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut at = BLOCK;
    while at + GRAIN <= end {
        if let Some((&start, &stop)) = payloads.range(..=at).next_back()
            && at >= start
            && at < stop
        {
            at = stop.next_multiple_of(GRAIN);
            continue;
        }
        let Some(bytes) = reader.get(at, RECORD_PROBE.min(end - at))? else {
            // Counted by the reader. The probe may reach into the next block: look at the rest of this one as well.
            at = match reader.get(at, GRAIN)? {
                Some(_) => at + GRAIN,
                None => (at / BLOCK + 1) * BLOCK,
            };
            continue;
        };
        let place = RecordPlace { offset: at as u32, ..*place };
        let result = match RecordHeader::decode(bytes, &place) {
            Err(RecordFault::Short { need }) if at + need <= end + BLOCK => match reader.get(at, need)? {
                Some(bytes) => RecordHeader::decode(bytes, &place),
                None => Err(RecordFault::Corrupt),
            },
            other => other,
        };
        match result {
            Ok(record) => {
                let header = &record.header;
                let start = header.payload_offset as usize;
                payloads.insert(start, start + header.len as usize);
                at += header_span(header.len as usize, header.aux_per_block);
                found.push(record);
            }
            Err(fault) => {
                report.count(&fault);
                at += GRAIN;
            }
        }
    }
    Ok(found)
}

/// Enough for the header of a record of up to 64 KiB.
const RECORD_PROBE: usize = 192;

/// Pass two: the footer lines of a record whose payload agrees with its table; None if it is torn.
fn sound_lines(reader: &mut Reader, record: &Record) -> io::Result<Option<Vec<FooterEntry>>> {
    let header = &record.header;
    debug_assert!(record.table.len() * 4 <= header_len(header.len as usize, header.aux_per_block));
    let (mut at, end) = (header.payload_offset as usize, (header.payload_offset + header.len) as usize);
    let mut payload = Vec::new();
    for expected in &record.table {
        let len = BLOCK.min(end - at);
        match reader.get(at, len)? {
            // A record that was moved although a block of it was bad keeps its good ones.
            Some(bytes) if crc32c(bytes) == *expected || header.flags.contains(RecordFlags::DAMAGED) => {
                if header.kind == RecordKind::Dead {
                    payload.extend_from_slice(bytes);
                }
            }
            _ => return Ok(None),
        }
        at += len;
    }
    let line = FooterEntry::from(header);
    if header.kind != RecordKind::Dead {
        return Ok(Some(vec![line]));
    }
    let Ok(deaths) = decode_deaths(&payload) else { return Ok(None) };
    Ok(Some(deaths.into_iter().map(|d| FooterEntry { chunk: d.chunk, seq: d.below, ..line }).collect()))
}

/// A window that slides over a segment.
struct Reader<'a> {
    media: &'a dyn Media,
    id: u32,
    size: usize,
    start: usize,
    buf: Option<Buf>,
    bytes_read: u64,
    /// Blocks that could not be read, by offset.
    unreadable: std::collections::BTreeSet<usize>,
}

impl Reader<'_> {
    /// The bytes at an offset; None if the drive cannot read them.
    fn get(&mut self, offset: usize, len: usize) -> io::Result<Option<&[u8]>> {
        assert!(offset + len <= self.size);
        let inside =
            self.buf.as_ref().is_some_and(|b| offset >= self.start && offset + len <= self.start + b.len());
        if !inside && !self.load(offset, len) {
            return Ok(None);
        }
        let buf = self.buf.as_ref().expect("loaded");
        Ok(Some(&buf.as_slice()[offset - self.start..][..len]))
    }

    fn load(&mut self, offset: usize, len: usize) -> bool {
        self.start = offset / BLOCK * BLOCK;
        for want in [WINDOW, blocks_up(offset + len - self.start)] {
            let want = want.max(blocks_up(offset + len - self.start)).min(self.size - self.start);
            let mut buf = match self.buf.take() {
                Some(buf) if buf.capacity() >= want => buf,
                _ => Buf::heap(want.max(WINDOW)),
            };
            buf.set_len(want);
            self.bytes_read += want as u64;
            let read = self.media.read(self.id, self.start as u32, &mut buf);
            if read.is_ok() {
                self.buf = Some(buf);
                return true;
            }
        }
        self.unreadable.insert(offset / BLOCK * BLOCK);
        false
    }
}
