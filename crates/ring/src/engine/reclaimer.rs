//! Frees closed segments, oldest first, and moves what must stay (R3).
//!
//! A victim needs a sixteenth of its space reclaimable, and what it must keep has to fit the room that relocation has:
//! so every reclaim that starts also ends, and ends with more free space than before. Mostly must-keep segments are
//! passed over in place instead of being rewritten. Nothing else may free space.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use stoker_format::{
    BLOCK, ChunkId, DEATH_LEN, Death, Footer, FooterEntry, RecordFlags, RecordHeader, RecordKind,
    RecordPlace, Seal, VolumeId, crc32c, footer_span,
};

use super::segments::State;
use super::victims::Urgency;
use super::writer::InFlight;
use super::{Crcs, Damage, Engine, Io, Item, OpId, Outcome, StreamKey};
use crate::buffer::{Buf, blocks_up};
use crate::index::{Entry, Marks};

/// Records that lie close together are read in one piece up to this size.
pub(super) const WINDOW: usize = 1 << 20;

/// Reads for relocation under way at the same time.
const READS_MAX: usize = 2;

/// One segment on its way to being free.
pub(super) struct Reclaim {
    segment: u32,
    phase: Phase,
    lines: Vec<FooterEntry>,
    next: usize,
    reads: HashMap<OpId, Window>,
    /// Copies that are queued or being written.
    moving: usize,
    moving_bytes: usize,
    rescue_bytes: u64,
    deaths: Vec<Death>,
    /// Records that the list did not name were looked up in the index.
    swept: bool,
    cancelled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Waiting for the list of records.
    Listing,
    /// Reading and re-appending what stays.
    Moving,
    /// Waiting for readers to leave.
    Unpinning,
}

/// Records that one read covers.
struct Window {
    start: u32,
    records: Vec<(FooterEntry, Entry)>,
}

impl Reclaim {
    pub(super) fn describe(&self) -> String {
        let (at, of) = (self.next, self.lines.len());
        format!(
            "reclaim of {}: {:?} {at}/{of}, {} reads, {} moving",
            self.segment,
            self.phase,
            self.reads.len(),
            self.moving
        )
    }
}

impl<T> Engine<T> {
    /// Starts a reclaim before the ring runs dry.
    pub(super) fn start_reclaim_if_low(&mut self) {
        // Segments that are being freed count: otherwise more is given up than is needed.
        let low = self.free.len() as u32 + self.census.reclaiming <= self.low_water();
        if low && self.census.unprepared == 0 && self.reclaim.is_none() && !self.winding_down {
            self.start_reclaim(Urgency::Ahead);
        }
    }

    /// Starts freeing the best victim; false if there is none.
    pub(super) fn start_reclaim(&mut self, urgency: Urgency) -> bool {
        if self.reclaim.is_some() || self.poisoned.is_some() {
            return false;
        }
        let Some(id) = self.pick_victim(urgency) else { return false };
        self.set_state(id, State::Reclaiming);
        let segment = &self.segments[id as usize];
        let io = if segment.footer_good {
            let span = footer_span(segment.entry_count as usize);
            let mut buf = self.pool.take(span).unwrap_or_else(|| Buf::heap(span));
            buf.set_len(span);
            Io::Read { segment: id, offset: self.segment_size - span as u32, buf }
        } else {
            Io::Scan { segment: id }
        };
        let op = self.issue(io);
        self.ops.insert(op, InFlight::Reclaim);
        let rescue_bytes = self.rescue_budget(id);
        self.reclaim = Some(Reclaim {
            segment: id,
            phase: Phase::Listing,
            lines: Vec::new(),
            next: 0,
            reads: HashMap::new(),
            moving: 0,
            moving_bytes: 0,
            rescue_bytes,
            deaths: Vec::new(),
            swept: false,
            cancelled: false,
        });
        true
    }

    /// The list of records or the bytes of some of them arrived.
    pub(super) fn reclaim_input(&mut self, op: OpId, outcome: Outcome) {
        let Some(reclaim) = &mut self.reclaim else { return };
        let id = reclaim.segment;
        if let Some(window) = reclaim.reads.remove(&op) {
            return match outcome {
                Outcome::Read(buf) => self.move_window(window, buf.as_slice()),
                // Unreadable for now, or for good: the segment stays as it is, whole, and is not tried again (R3).
                _ => {
                    self.segments[id as usize].stuck = true;
                    drop(window);
                    self.cancel_reclaim();
                }
            };
        }
        let lines = match outcome {
            Outcome::Read(buf) => self.decode_footer(id, buf.as_slice()),
            Outcome::Scanned(lines) => Some(lines),
            _ => None,
        };
        match lines {
            Some(mut lines) => {
                lines.sort_by_key(|line| line.header_offset);
                let reclaim = self.reclaim.as_mut().expect("seen above");
                (reclaim.lines, reclaim.phase) = (lines, Phase::Moving);
            }
            // A bad footer falls back to a scan; if even that fails the segment stays as it is.
            None if self.segments[id as usize].footer_good => {
                self.segments[id as usize].footer_good = false;
                let op = self.issue(Io::Scan { segment: id });
                self.ops.insert(op, InFlight::Reclaim);
            }
            None => self.cancel_reclaim(),
        }
    }

    fn decode_footer(&self, id: u32, bytes: &[u8]) -> Option<Vec<FooterEntry>> {
        let footer = Footer::decode(bytes.get(bytes.len().checked_sub(BLOCK)?..)?).ok()?;
        let segment = &self.segments[id as usize];
        if footer.generation != segment.generation || footer.nonce != segment.nonce {
            return None;
        }
        footer.decode_entries(bytes).ok()
    }

    /// True if [`Engine::advance_reclaim`] would do something now.
    pub(super) fn reclaim_can_advance(&self) -> bool {
        self.reclaim.as_ref().is_some_and(|reclaim| match reclaim.phase {
            Phase::Moving if reclaim.next < reclaim.lines.len() => {
                reclaim.reads.len() < READS_MAX
                    && reclaim.moving_bytes <= self.settings.in_flight_bytes_max / 2
            }
            Phase::Moving => reclaim.reads.is_empty() && reclaim.moving == 0,
            Phase::Listing | Phase::Unpinning => false,
        })
    }

    /// Drives the current reclaim as far as it goes without waiting.
    pub(super) fn advance_reclaim(&mut self) {
        while let Some(reclaim) = &self.reclaim {
            let id = reclaim.segment;
            match reclaim.phase {
                Phase::Listing => return,
                Phase::Moving if reclaim.cancelled => {
                    if reclaim.reads.is_empty() && reclaim.moving == 0 {
                        self.reclaim = None;
                        self.set_state(id, State::Closed);
                        self.segments[id as usize].order = self.next_order;
                        self.next_order += 1;
                    }
                    return;
                }
                Phase::Moving => {
                    let limit = self.settings.in_flight_bytes_max / 2;
                    if reclaim.next < reclaim.lines.len() {
                        if reclaim.reads.len() >= READS_MAX || reclaim.moving_bytes > limit {
                            return;
                        }
                        self.next_window();
                    } else if !reclaim.deaths.is_empty() {
                        self.move_deaths();
                    } else if reclaim.reads.is_empty() && reclaim.moving == 0 {
                        self.reclaim.as_mut().expect("seen above").phase = Phase::Unpinning;
                    } else {
                        return;
                    }
                }
                Phase::Unpinning => {
                    if self.segments[id as usize].keep_bytes > 0 || self.segments[id as usize].clean_bytes > 0
                    {
                        self.sweep_unlisted(id);
                        continue;
                    }
                    if self.index.segment(id).pins() > 0 && !self.index.segment(id).want_unpinned() {
                        return;
                    }
                    self.reclaim = None;
                    self.coldest_cache.0 = 0;
                    self.free_segment(id);
                }
            }
        }
    }

    /// The list did not name every live record (a header rotted before a scan): the index still knows their places.
    fn sweep_unlisted(&mut self, id: u32) {
        let mut unlisted: Vec<(ChunkId, Entry)> = Vec::new();
        self.index.for_each(|chunk, entry| {
            if entry.segment == id {
                unlisted.push((*chunk, *entry));
            }
        });
        assert!(!unlisted.is_empty(), "segment {id} counts bytes of records that nobody knows");
        let reclaim = self.reclaim.as_mut().expect("under way");
        if std::mem::replace(&mut reclaim.swept, true) {
            unlisted.iter().for_each(|(chunk, entry)| self.lose(chunk, entry));
            return;
        }
        let line = |(chunk, e): &(ChunkId, Entry)| FooterEntry {
            chunk: *chunk,
            seq: e.seq,
            header_offset: e.header_offset,
            payload_offset: e.payload_offset,
            len: e.len,
            volume: e.volume,
            flags: e.marks.to_flags(),
            payload_crc: e.crc,
            kind: e.kind(),
            aux_per_block: e.aux(),
            // The header says which; it is read before the record is moved.
            key: stoker_format::KeyId(0),
        };
        reclaim.lines = unlisted.iter().map(line).collect();
        reclaim.lines.sort_by_key(|line| line.header_offset);
        (reclaim.next, reclaim.phase) = (0, Phase::Moving);
    }

    /// Decides about records in list order until a piece worth reading is gathered.
    fn next_window(&mut self) {
        let Some(reclaim) = self.reclaim.as_mut() else { return };
        let id = reclaim.segment;
        let lines = std::mem::take(&mut reclaim.lines);
        let mut next = reclaim.next;
        let mut window = Window { start: 0, records: Vec::new() };
        let mut end = 0usize;
        while next < lines.len() {
            let line = lines[next];
            if line.kind == RecordKind::Dead {
                self.keep_death_if_needed(id, line);
                next += 1;
                continue;
            }
            let Some(entry) = self.index.get(&line.chunk).filter(|e| e.segment == id && e.seq == line.seq)
            else {
                next += 1;
                continue;
            };
            let rescue = self.deserves_rescue(&entry);
            if !entry.marks.must_keep() && !rescue {
                self.evict(&line.chunk, &entry);
                next += 1;
                continue;
            }
            let line_end = blocks_up((line.payload_offset + line.len) as usize);
            let start = if window.records.is_empty() {
                line.header_offset / BLOCK as u32 * BLOCK as u32
            } else {
                window.start
            };
            if !window.records.is_empty() && line_end.max(end) - start as usize > WINDOW {
                break;
            }
            if rescue {
                self.reclaim.as_mut().expect("under way").rescue_bytes -= u64::from(entry.len);
                self.stats.rescued_records.add(1);
            }
            (window.start, end) = (start, end.max(line_end));
            window.records.push((line, entry));
            next += 1;
        }
        let read = (!window.records.is_empty()).then(|| {
            let span = end - window.start as usize;
            let mut buf = self.pool.take(span).unwrap_or_else(|| Buf::heap(span));
            buf.set_len(span);
            let op = self.issue(Io::Read { segment: id, offset: window.start, buf });
            self.ops.insert(op, InFlight::Reclaim);
            op
        });
        let reclaim = self.reclaim.as_mut().expect("under way");
        (reclaim.lines, reclaim.next) = (lines, next);
        if let Some(op) = read {
            reclaim.reads.insert(op, window);
        }
    }

    fn deserves_rescue(&self, entry: &Entry) -> bool {
        let Some(reclaim) = &self.reclaim else { return false };
        entry.marks.has(Marks::TOUCHED)
            && !entry.marks.must_keep()
            && !entry.marks.has(Marks::RESCUED)
            && reclaim.rescue_bytes > u64::from(entry.len)
            && self.free.len() as u32 > self.settings.reserved_segments
    }

    /// A death outlives its segment while any other segment may still hold a record that it kills.
    fn keep_death_if_needed(&mut self, id: u32, line: FooterEntry) {
        let death = Death { chunk: line.chunk, below: line.seq };
        if self.is_extant_below(id, death.below) {
            self.reclaim.as_mut().expect("under way").deaths.push(death);
        }
    }

    fn move_deaths(&mut self) {
        let max = self.deaths_max();
        let reclaim = self.reclaim.as_mut().expect("under way");
        let rest = reclaim.deaths.split_off(reclaim.deaths.len().min(max));
        let deaths = std::mem::replace(&mut reclaim.deaths, rest);
        reclaim.moving += 1;
        reclaim.moving_bytes += blocks_up(deaths.len() * DEATH_LEN);
        self.enqueue_deaths(deaths, true, None);
    }

    fn evict(&mut self, chunk: &ChunkId, entry: &Entry) {
        // Readers may have changed its marks meanwhile; only a record that must stay, stays.
        let gone = self.index.remove_if(chunk, |e| e.same_place(entry) && !e.marks.must_keep());
        if let Some(gone) = gone {
            self.forget(&gone);
            self.tables.remove(chunk);
            self.stats.evicted_records.add(1);
            self.stats.evicted_bytes.add(u64::from(gone.len));
        }
    }

    fn lose(&mut self, chunk: &ChunkId, entry: &Entry) {
        if let Some(gone) = self.index.remove_if(chunk, |e| e.same_place(entry)) {
            self.forget(&gone);
            self.tables.remove(chunk);
            self.stats.lost_records.add(1);
            self.damages.push(Damage { chunk: *chunk, gone: true });
        }
    }

    /// Checks the records of a window and queues copies of them.
    fn move_window(&mut self, window: Window, bytes: &[u8]) {
        if self.reclaim.as_ref().is_some_and(|reclaim| reclaim.cancelled) {
            return;
        }
        for (line, entry) in window.records {
            let at = |offset: u32| (offset - window.start) as usize;
            let payload = &bytes[at(line.payload_offset)..][..line.len as usize];
            let Some((crcs, seal, sound)) = self.crcs_of(&line, &bytes[at(line.header_offset)..], payload)
            else {
                self.lose(&line.chunk, &entry);
                continue;
            };
            let mut marks = entry.marks.without(Marks::TOUCHED);
            if !sound {
                // Good blocks stay readable, bad ones stay detectable: the table travels as it is.
                marks = marks.with(Marks::DAMAGED);
                self.stats.corrupt_blocks.add(1);
                self.damages.push(Damage { chunk: line.chunk, gone: false });
            }
            if !entry.marks.must_keep() {
                marks = marks.with(Marks::RESCUED);
            }
            let mut copy = self.pool.take(payload.len()).unwrap_or_else(|| Buf::heap(payload.len()));
            copy.set_len(payload.len());
            copy.as_mut_slice().copy_from_slice(payload);
            let reclaim = self.reclaim.as_mut().expect("under way");
            reclaim.moving += 1;
            // What it takes of memory: a copy of a few bytes has a block of its own until it is written.
            reclaim.moving_bytes += blocks_up(payload.len());
            let leasable =
                self.segments[entry.segment as usize].leasable && self.leasable.contains(&line.volume);
            let volume = if leasable { line.volume } else { VolumeId(0) };
            self.enqueue(
                StreamKey { volume, relocation: true },
                Item {
                    chunk: line.chunk,
                    volume: line.volume,
                    kind: line.kind,
                    marks,
                    payload: copy,
                    crcs,
                    token: None,
                    from: Some(entry),
                    deaths: Vec::new(),
                    seal,
                },
            );
        }
    }

    /// The CRCs of a record, its seal, and whether its payload agrees; None if they cannot be known and the payload is not whole,
    /// or if it is sealed: then nothing opens it without its header.
    fn crcs_of(
        &self,
        line: &FooterEntry,
        header: &[u8],
        payload: &[u8],
    ) -> Option<(Crcs, Option<Arc<Seal>>, bool)> {
        let segment = &self.segments[self.reclaim.as_ref()?.segment as usize];
        let place = RecordPlace {
            ring: self.ring,
            generation: segment.generation,
            nonce: segment.nonce,
            offset: line.header_offset,
            segment_size: self.segment_size,
        };
        let is_sealed = line.flags.contains(RecordFlags::ENCRYPTED);
        if payload.len() <= BLOCK && !is_sealed {
            return Some((Crcs::One(line.payload_crc), None, crc32c(payload) == line.payload_crc));
        }
        if let Ok(record) = RecordHeader::decode(header, &place) {
            let seal = record.seal().map(Arc::new);
            if seal.is_some() != is_sealed {
                return None;
            }
            let fresh = stoker_format::block_table(payload);
            let sound = fresh == record.table;
            let crcs = match payload.len() <= BLOCK {
                true => Crcs::One(line.payload_crc),
                false => Crcs::Many(record.table.into(), line.payload_crc),
            };
            return Some((crcs, seal, sound));
        }
        if is_sealed {
            return None;
        }
        // The header rotted. If the whole payload still agrees with its CRC, its table can be made anew.
        let crcs = Crcs::of(payload);
        (crcs.whole() == line.payload_crc).then_some((crcs, None, true))
    }

    /// A copy landed or was not needed any more.
    pub(super) fn moved_or_dropped(&mut self, len: usize) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.moving -= 1;
            reclaim.moving_bytes -= blocks_up(len);
        }
    }

    /// Leaves the victim as it is; copies under way still land. Unreachable while the room for relocation is kept.
    pub(super) fn cancel_reclaim(&mut self) {
        let Some(reclaim) = &mut self.reclaim else { return };
        reclaim.cancelled = true;
        reclaim.phase = Phase::Moving;
        reclaim.next = reclaim.lines.len();
        reclaim.deaths.clear();
        let keys: Vec<StreamKey> = self.streams.keys().filter(|k| k.relocation).copied().collect();
        for key in keys {
            let dropped: Vec<usize> = match self.streams.get_mut(&key) {
                Some(stream) => {
                    // Deletes of users that were passed on to this stream stay.
                    let queue = std::mem::take(&mut stream.queue);
                    let (kept, copies): (VecDeque<_>, VecDeque<_>) =
                        queue.into_iter().partition(|i| i.token.is_some());
                    stream.queue = kept;
                    copies.iter().map(|item| item.payload.len()).collect()
                }
                None => Vec::new(),
            };
            let bytes: usize = dropped.iter().sum();
            self.stats.queued_bytes.sub(bytes as u64);
            if let Some(stream) = self.streams.get_mut(&key) {
                stream.queued_bytes -= bytes;
            }
            dropped.into_iter().for_each(|len| self.moved_or_dropped(len));
        }
    }
}
