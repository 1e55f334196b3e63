//! Frees closed segments, oldest first, and moves what must stay (R3).
//!
//! A victim needs a sixteenth of its space reclaimable, and what it must keep has to fit the room that relocation has:
//! so every reclaim that starts also ends, and ends with more free space than before. Mostly precious segments are
//! passed over in place instead of being rewritten. Nothing else may free space.

use std::collections::{HashMap, VecDeque};

use stoker_format::{
    BLOCK, ChunkId, DEATH_LEN, Death, FOOTER_ENTRY_LEN, Footer, FooterEntry, RecordHeader, RecordKind,
    RecordPlace, Seq, VolumeId, crc32c, footer_span,
};

use super::segments::{Segment, State};
use super::writer::InFlight;
use super::{Crcs, Damage, Engine, Io, Item, OpId, Outcome, StreamKey};
use crate::buffer::{Buf, blocks_up};
use crate::index::{Entry, Marks};

/// Records that lie close together are read in one piece up to this size.
const WINDOW: usize = 1 << 20;

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

/// Why space is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Urgency {
    /// To have some in stock.
    Ahead,
    /// A writer waits.
    Now,
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

    /// Bytes of clean records that may be carried over: little of the flash budget, and never the room of precious ones.
    fn rescue_budget(&self, id: u32) -> u64 {
        let share = (self.stats.user_bytes.get() as f64 * self.settings.rescue_share) as u64;
        let flash = share.saturating_sub(self.stats.relocated_bytes.get());
        let segment = &self.segments[id as usize];
        let largest = self.record_len_max() + 4 * BLOCK;
        let bound = self.keep_bound(id) + 2 * largest;
        let room = self.relocation_room(segment.stream.volume, largest).saturating_sub(bound);
        let gain = (self.usable() / 2).saturating_sub(bound);
        flash.min(room as u64).min(gain as u64)
    }

    /// What moving a segment's precious records may cost at most, padding and footer included.
    fn keep_bound(&self, id: u32) -> usize {
        let segment = &self.segments[id as usize];
        let windows = 2 + self.segment_size as usize / WINDOW;
        let deaths = self.deaths_needed(id);
        let death_records = deaths.div_ceil(self.deaths_max().max(1));
        segment.keep_bytes as usize
            + windows * 2 * BLOCK
            + deaths * (DEATH_LEN + FOOTER_ENTRY_LEN)
            + death_records * 2 * BLOCK
    }

    /// Deaths of a segment that have to outlive it, at most.
    fn deaths_needed(&self, id: u32) -> usize {
        let segment = &self.segments[id as usize];
        if segment.deaths == 0 || !self.is_extant_below(id, segment.below_max) {
            return 0;
        }
        segment.deaths as usize
    }

    /// True if another segment may hold records older than `below`.
    fn is_extant_below(&self, id: u32, below: Seq) -> bool {
        self.segments.iter().any(|s| s.id != id && s.may_hold_below(below))
    }

    /// Space that relocation of one volume could fill right now if records of up to `largest` bytes come.
    fn relocation_room(&self, volume: VolumeId, largest: usize) -> usize {
        let key = StreamKey { volume, relocation: true };
        let open = self.streams.get(&key).map_or(0, |s| self.remaining(s).saturating_sub(largest));
        open + self.free.len() * self.usable().saturating_sub(largest)
    }

    /// True if reclaiming the segment certainly ends, and gains space.
    fn is_victim(&self, id: u32) -> bool {
        let segment = &self.segments[id as usize];
        segment.state == State::Closed && !segment.stuck && self.would_be_victim(id)
    }

    fn would_be_victim(&self, id: u32) -> bool {
        let segment = &self.segments[id as usize];
        if segment.keep_bytes == 0 && self.deaths_needed(id) == 0 {
            return true;
        }
        let bound = self.keep_bound(id);
        let largest = segment.keep_max as usize;
        bound + 2 * largest <= self.usable()
            && segment.keep_bytes as usize <= self.segment_size as usize / 16 * 15
            && bound <= self.relocation_room(segment.stream.volume, largest)
    }

    /// True if closing a half-filled segment would make it a victim.
    pub(super) fn worth_closing(&self, id: u32) -> bool {
        let segment = &self.segments[id as usize];
        segment.state == State::Open
            && segment.in_flight == 0
            && !segment.lines.is_empty()
            && self.would_be_victim(id)
    }

    /// Oldest first; a hot segment is passed over once. A mostly precious one costs more flash than it gains, so it
    /// comes last, and only when somebody waits.
    fn pick_victim(&mut self, urgency: Urgency) -> Option<u32> {
        // Deaths live as long as the oldest segment does; moving it, gain or not, lets them go.
        if let Some(oldest) = self.oldest_if_deaths_pile_up() {
            return Some(oldest);
        }
        // Space that was never written counts as no gain here, or two half-filled segments could chase each other.
        let cheap = |s: &&Segment| s.keep_bytes * 2 <= u64::from(s.cursor);
        let candidates = self.segments.iter().filter(|s| self.is_victim(s.id));
        let mut victims: Vec<(u64, u32)> =
            candidates.clone().filter(cheap).map(|s| (s.order, s.id)).collect();
        if victims.is_empty() && urgency == Urgency::Now {
            victims.extend(candidates.map(|s| (s.keep_bytes, s.id)).min());
        }
        victims.sort_unstable();
        for &(_, id) in &victims {
            let hot = self.mean_heat(id).is_some_and(|heat| heat >= 1.0);
            let segment = &mut self.segments[id as usize];
            if hot && !segment.spared {
                segment.spared = true;
                segment.order = self.next_order;
                self.next_order += 1;
                continue;
            }
            return Some(id);
        }
        victims.first().map(|&(_, id)| id)
    }

    /// True if the lists of the dead take more than an eighth of the ring.
    fn deaths_pile_up(&self) -> bool {
        let bytes = self.deaths_total * (DEATH_LEN + FOOTER_ENTRY_LEN) as u64;
        bytes * 8 > self.segments.len() as u64 * u64::from(self.segment_size)
    }

    fn oldest_if_deaths_pile_up(&self) -> Option<u32> {
        if !self.deaths_pile_up() {
            return None;
        }
        let closed = self.segments.iter().filter(|s| s.state == State::Closed && !s.stuck);
        let oldest = closed.min_by_key(|s| s.first_seq)?;
        let fits = self.keep_bound(oldest.id)
            <= self.relocation_room(oldest.stream.volume, oldest.keep_max as usize);
        fits.then_some(oldest.id)
    }

    pub(super) fn mean_heat(&self, id: u32) -> Option<f64> {
        let clean = self.segments[id as usize].clean_count;
        (clean > 0).then(|| f64::from(self.index.segment(id).heat()) / f64::from(clean))
    }

    /// Mean touches per clean record of the coldest segment that could be given up.
    pub(super) fn coldest(&mut self) -> Option<f64> {
        if self.coldest_cache.0 == 0 {
            let heats = (0..self.segments.len() as u32)
                .filter(|&id| self.segments[id as usize].state == State::Closed)
                .map(|id| {
                    let segment = &self.segments[id as usize];
                    let clean_share = segment.clean_bytes as f64 / f64::from(self.segment_size);
                    let dead =
                        self.segment_size as u64 - segment.keep_bytes.min(u64::from(self.segment_size));
                    // A segment of dead bytes is free for the taking.
                    if clean_share < 0.01 && dead * 16 >= u64::from(self.segment_size) {
                        0.0
                    } else {
                        self.mean_heat(id).unwrap_or(f64::INFINITY)
                    }
                });
            let coldest = heats.fold(f64::INFINITY, f64::min);
            self.coldest_cache = (64, coldest.is_finite().then_some(coldest));
        }
        self.coldest_cache.0 -= 1;
        self.coldest_cache.1
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
            aux_per_block: 0,
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
        reclaim.moving_bytes += deaths.len() * DEATH_LEN;
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
            let Some((crcs, sound)) = self.crcs_of(&line, &bytes[at(line.header_offset)..], payload) else {
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
            reclaim.moving_bytes += payload.len();
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
                },
            );
        }
    }

    /// The CRCs of a record and whether its payload agrees; None if they cannot be known and the payload is not whole.
    fn crcs_of(&self, line: &FooterEntry, header: &[u8], payload: &[u8]) -> Option<(Crcs, bool)> {
        let segment = &self.segments[self.reclaim.as_ref()?.segment as usize];
        let place = RecordPlace {
            ring: self.ring,
            generation: segment.generation,
            nonce: segment.nonce,
            offset: line.header_offset,
            segment_size: self.segment_size,
        };
        if payload.len() <= BLOCK {
            return Some((Crcs::One(line.payload_crc), crc32c(payload) == line.payload_crc));
        }
        if let Ok(record) = RecordHeader::decode(header, &place) {
            let fresh = stoker_format::block_table(payload);
            let sound = fresh == record.table;
            return Some((Crcs::Many(record.table.into(), line.payload_crc), sound));
        }
        // The header rotted. If the whole payload still agrees with its CRC, its table can be made anew.
        let crcs = Crcs::of(payload);
        (crcs.whole() == line.payload_crc).then_some((crcs, true))
    }

    /// A copy landed or was not needed any more.
    pub(super) fn moved_or_dropped(&mut self, len: usize) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.moving -= 1;
            reclaim.moving_bytes -= len;
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
