//! The segments of a ring: their states, what lives in them, and the moves between states. (D5)
//!
//! ```text
//! unprepared -> preparing -> free -> opening -> open -> closing -> closed -> reclaiming -> freeing -> free
//! ```
//! A segment is free only once its header on the drive says so, durably (R8): until then its old records would come
//! back after a crash. Only this module and the reclaimer change a state.

use stoker_format::{
    BLOCK, FOOTER_ENTRY_LEN, Footer, FooterEntry, Generation, SegmentHeader, SegmentId, SegmentKind,
    SegmentState, Seq, VolumeId, encode_footer, footer_span,
};

use super::packer::record_span;
use super::writer::{InFlight, Stream};
use super::{Engine, Io, StreamKey, WriteData};
use crate::buffer::Buf;
use crate::index::{Entry, Marks};

/// How long to wait before a segment that could not be made is tried again.
const PREPARE_PAUSE_MS: u64 = 1000;

/// How long after a start the drive is left to those who wait for it: until then only what is needed soon is prepared. (D190)
const PREPARE_QUIET_US: u64 = 10_000_000;

/// Free segments above the low water that are prepared at once.
const PREPARED_AHEAD: u32 = 1;

/// Where a segment is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Does not exist on the drive yet.
    Unprepared,
    /// Being created and zero-written.
    Preparing,
    /// Empty, durably so.
    Free,
    /// Its header is being written; records wait.
    Opening {
        /// Header writes still under way.
        writes: u8,
    },
    /// Takes records.
    Open,
    /// Takes no more records; its footer waits for the last of them, or is being written.
    Closing,
    /// Complete, with a footer.
    Closed,
    /// Its records are being moved or dropped.
    Reclaiming,
    /// Its header is being rewritten as free.
    Freeing {
        /// Header writes still under way.
        writes: u8,
    },
    /// Both copies of its header are unreadable: never touched again, its records are lost.
    Damaged,
}

/// One segment.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its number.
    pub id: u32,
    /// Where it is in its life.
    pub state: State,
    /// Its life's number.
    pub generation: Generation,
    /// Seeds the header CRCs of this life.
    pub nonce: u64,
    /// No record in it is older.
    pub first_seq: Seq,
    /// Newest record in it.
    pub last_seq: Seq,
    /// Who writes into it.
    pub stream: StreamKey,
    /// Holds one volume only.
    pub leasable: bool,
    /// A lease on it was given out, in this boot or before.
    pub leased: bool,
    /// Reclaim order.
    pub order: u64,
    /// Records listed in its footer.
    pub entry_count: u32,
    /// End of its records.
    pub cursor: u32,
    /// Footer lines so far; only while it is open or closing.
    pub lines: Vec<FooterEntry>,
    /// Record writes that are not durable yet.
    pub in_flight: u32,
    /// Drive bytes of records that must be kept.
    pub keep_bytes: u64,
    /// Drive bytes of records that may be dropped.
    pub clean_bytes: u64,
    /// Records that may be dropped.
    pub clean_count: u32,
    /// Largest record that must be kept, an upper bound.
    pub keep_max: u32,
    /// Deaths recorded in it.
    pub deaths: u32,
    /// Highest `below` of those.
    pub below_max: Seq,
    /// A read of it failed while it was being reclaimed: it is left alone.
    pub stuck: bool,
    /// The reclaimer passed it over once.
    pub spared: bool,
    /// The copy of its header that may be torn or old; rewritten first, so that one good copy is always left. (D14)
    pub weak_copy: HeaderCopy,
    /// Its footer was written or read well; otherwise the reclaimer scans it.
    pub footer_good: bool,
}

impl Segment {
    /// A segment that is not on the drive yet.
    pub fn unprepared(id: u32) -> Segment {
        Segment {
            id,
            state: State::Unprepared,
            generation: Generation(0),
            nonce: 0,
            first_seq: Seq(0),
            last_seq: Seq(0),
            stream: StreamKey { volume: VolumeId(0), relocation: false },
            leasable: false,
            leased: false,
            order: 0,
            entry_count: 0,
            cursor: BLOCK as u32,
            lines: Vec::new(),
            in_flight: 0,
            keep_bytes: 0,
            clean_bytes: 0,
            clean_count: 0,
            keep_max: 0,
            deaths: 0,
            below_max: Seq(0),
            stuck: false,
            spared: false,
            weak_copy: HeaderCopy::Last,
            footer_good: true,
        }
    }

    /// True if the drive may hold records of this segment with a sequence number below `below`.
    pub fn may_hold_below(&self, below: Seq) -> bool {
        // A segment that is opening may be an old one taken up again.
        let holds = !matches!(self.state, State::Unprepared | State::Preparing | State::Free);
        holds && self.first_seq < below
    }
}

/// Which of the two copies of a segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderCopy {
    /// In the first block.
    First,
    /// In the last block, where the footer will be.
    Last,
}

impl HeaderCopy {
    fn other(self) -> HeaderCopy {
        match self {
            HeaderCopy::First => HeaderCopy::Last,
            HeaderCopy::Last => HeaderCopy::First,
        }
    }
}

/// How many segments are in which state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SegmentCounts {
    /// Not on the drive yet, or being made.
    pub unprepared: u32,
    /// Empty.
    pub free: u32,
    /// Opening, open or closing.
    pub open: u32,
    /// Complete.
    pub closed: u32,
    /// Being reclaimed.
    pub reclaiming: u32,
    /// Unreadable.
    pub damaged: u32,
}

impl SegmentCounts {
    fn of(&mut self, state: State) -> &mut u32 {
        match state {
            State::Unprepared | State::Preparing => &mut self.unprepared,
            State::Free => &mut self.free,
            State::Opening { .. } | State::Open | State::Closing => &mut self.open,
            State::Closed => &mut self.closed,
            State::Reclaiming | State::Freeing { .. } => &mut self.reclaiming,
            State::Damaged => &mut self.damaged,
        }
    }
}

impl<T> Engine<T> {
    /// Sorts the recovered segments into queues and takes up the last one of each stream where it ended. That keeps a
    /// restart from wasting space, and above all keeps the room that relocation had (R3). (D13)
    pub(super) fn take_up_segments(&mut self) {
        let mut old: Vec<u32> = Vec::new();
        for id in 0..self.segments.len() as u32 {
            let segment = &self.segments[id as usize];
            self.index.segment(id).set_life(segment.generation, segment.nonce);
            *self.census.of(segment.state) += 1;
            self.deaths_total += u64::from(segment.deaths);
            match segment.state {
                State::Free => self.free.push_back(id),
                State::Closed | State::Closing => old.push(id),
                _ => {}
            }
        }
        let index = self.index.clone();
        index.for_each(|_, entry| self.account(entry));
        old.sort_by_key(|&id| std::cmp::Reverse(self.segments[id as usize].first_seq));
        for &id in &old {
            let segment = &mut self.segments[id as usize];
            let key = segment.stream;
            // A closed segment gives up its footer for a header again; only if the first copy is there to back it.
            let usable = !segment.lines.is_empty()
                && (segment.state == State::Closing || segment.weak_copy == HeaderCopy::Last);
            if usable && self.streams.entry(key).or_default().segment.is_none() {
                self.set_state(id, State::Opening { writes: 1 });
                self.write_header(id, SegmentState::Open);
                self.streams.get_mut(&key).expect("just made").segment = Some(id);
            } else if segment.state == State::Closed {
                segment.lines = Vec::new();
            }
        }
        for &id in old.iter().rev() {
            self.segments[id as usize].order = self.next_order;
            self.next_order += 1;
            self.write_footer_when_quiet(id);
        }
    }

    /// Counts a live record in its segment.
    pub(super) fn account(&mut self, entry: &Entry) {
        let span = record_span(entry.len as usize, entry.aux(), self.settings.small_bytes_max) as u64;
        let segment = &mut self.segments[entry.segment as usize];
        if entry.marks.must_keep() {
            segment.keep_bytes += span;
            segment.keep_max = segment.keep_max.max(span as u32);
        } else {
            segment.clean_bytes += span;
            segment.clean_count += 1;
        }
        if entry.marks.has(Marks::NEVER) {
            self.never_bytes += u64::from(entry.len);
        }
    }

    /// Stops counting a record in its segment.
    pub(super) fn forget(&mut self, entry: &Entry) {
        let span = record_span(entry.len as usize, entry.aux(), self.settings.small_bytes_max) as u64;
        let segment = &mut self.segments[entry.segment as usize];
        if entry.marks.must_keep() {
            segment.keep_bytes -= span;
        } else {
            segment.clean_bytes -= span;
            segment.clean_count -= 1;
        }
        if entry.marks.has(Marks::NEVER) {
            self.never_bytes -= u64::from(entry.len);
        }
    }

    pub(super) fn never_max(&self) -> u64 {
        let bytes = self.segments.len() as f64 * f64::from(self.segment_size);
        (bytes * self.settings.never_share) as u64
    }

    /// Free segments at which the reclaimer starts to make more.
    pub(super) fn low_water(&self) -> u32 {
        self.settings.reserved_segments + (self.segments.len() / 64).clamp(1, 8) as u32
    }

    /// True if a user record could be placed without anything leaving for it, now or soon after.
    pub(super) fn has_room(&self) -> bool {
        // A new ring is still being written with zeroes: what is not prepared yet is room all the same.
        let unused = self.free.len() as u32 + self.census.unprepared;
        self.index.len() < self.index.max() && unused > self.low_water() + 1
    }

    fn header_of(&self, id: u32, state: SegmentState) -> SegmentHeader {
        let segment = &self.segments[id as usize];
        let kind = match state {
            SegmentState::Free => SegmentKind::None,
            SegmentState::Open if segment.stream.relocation => SegmentKind::Relocation,
            SegmentState::Open => SegmentKind::User,
        };
        SegmentHeader {
            state,
            kind,
            leasable: segment.leasable,
            ring: self.ring,
            segment: SegmentId(id),
            volume: segment.stream.volume,
            generation: segment.generation,
            first_seq: segment.first_seq,
            nonce: segment.nonce,
            opened_unix_ms: self.now_ms,
            segment_size: u64::from(self.segment_size),
            key: stoker_format::KeyId(0),
        }
    }

    /// Writes the weaker copy of a segment's header. The other follows when it is durable: a power cut that tore both
    /// would leave a segment that nobody dares to use.
    fn write_header(&mut self, id: u32, state: SegmentState) {
        let offset = match self.segments[id as usize].weak_copy {
            HeaderCopy::First => 0,
            HeaderCopy::Last => self.segment_size - BLOCK as u32,
        };
        let bytes = self.header_of(id, state).encode();
        let data = WriteData { head: Some(Buf::copy_of(&bytes)), body: None, body_head: 0 };
        self.stats.padding_bytes.add(BLOCK as u64);
        let op = self.issue(Io::Write { segment: id, offset, data, durable: true });
        self.ops.insert(op, InFlight::Header(id));
    }

    /// Takes a free segment for a stream; user streams leave the reserve to relocation.
    pub(super) fn open_segment(&mut self, key: StreamKey) -> Option<u32> {
        if !key.relocation && self.free.len() as u32 <= self.settings.reserved_segments {
            return None;
        }
        let id = self.free.pop_front()?;
        let nonce = (self.entropy)();
        let first_seq = self.next_seq;
        let leased = self.segments[id as usize].leased;
        let segment = &mut self.segments[id as usize];
        *segment = Segment {
            generation: Generation(segment.generation.0 + 1),
            nonce,
            first_seq,
            last_seq: first_seq,
            stream: key,
            leasable: key.volume != VolumeId(0),
            leased,
            weak_copy: segment.weak_copy,
            state: segment.state,
            ..Segment::unprepared(id)
        };
        self.index.segment(id).reset_heat();
        self.index.segment(id).set_life(self.segments[id as usize].generation, nonce);
        self.write_header(id, SegmentState::Open);
        self.set_state(id, State::Opening { writes: 2 });
        Some(id)
    }

    /// A header write finished.
    pub(super) fn header_written(&mut self, id: u32) {
        let segment = &mut self.segments[id as usize];
        segment.weak_copy = segment.weak_copy.other();
        let (state, next) = match self.segments[id as usize].state {
            State::Opening { writes: 2 } => (State::Opening { writes: 1 }, Some(SegmentState::Open)),
            State::Freeing { writes: 2 } => (State::Freeing { writes: 1 }, Some(SegmentState::Free)),
            State::Opening { writes: 1 } => (State::Open, None),
            State::Freeing { writes: 1 } => {
                self.free.push_back(id);
                (State::Free, None)
            }
            other => unreachable!("header of segment {id} written in state {other:?}"),
        };
        self.set_state(id, state);
        if let Some(state) = next.filter(|_| self.poisoned.is_none()) {
            self.write_header(id, state);
        }
    }

    /// True if a record of `span` bytes with `lines` footer lines still fits an open segment.
    pub(super) fn fits(&self, id: u32, span: usize, lines: usize) -> bool {
        let segment = &self.segments[id as usize];
        let footer = footer_span(segment.lines.len() + lines);
        segment.cursor as usize + span + footer <= self.segment_size as usize
    }

    /// Takes no more records into a segment.
    pub(super) fn begin_close(&mut self, id: u32) {
        assert_eq!(self.segments[id as usize].state, State::Open);
        self.set_state(id, State::Closing);
        self.segments[id as usize].order = self.next_order;
        self.next_order += 1;
        self.write_footer_when_quiet(id);
    }

    /// The footer promises that all it lists is there, so it is written after the last record is durable.
    pub(super) fn write_footer_when_quiet(&mut self, id: u32) {
        let segment = &self.segments[id as usize];
        // On a poisoned drive a record that failed would be in the footer's list.
        if segment.state != State::Closing || segment.in_flight > 0 || self.poisoned.is_some() {
            return;
        }
        if segment.lines.is_empty() {
            self.free_segment(id);
            self.settle_close_waiters();
            return;
        }
        let span = footer_span(segment.lines.len());
        let footer = Footer {
            ring: self.ring,
            segment: SegmentId(id),
            volume: segment.stream.volume,
            generation: segment.generation,
            first_seq: segment.first_seq,
            last_seq: segment.last_seq,
            nonce: segment.nonce,
            closed_unix_ms: self.now_ms,
            kind: if segment.stream.relocation { SegmentKind::Relocation } else { SegmentKind::User },
            leasable: segment.leasable,
            records_end: segment.cursor,
            entry_size: FOOTER_ENTRY_LEN as u16,
            entry_count: segment.lines.len() as u32,
            entries_offset: self.segment_size - span as u32,
            entries_crc: 0,
        };
        let bytes = encode_footer(&footer, &segment.lines);
        assert_eq!(bytes.len(), span);
        let data = WriteData { head: Some(Buf::copy_of(&bytes)), body: None, body_head: 0 };
        self.stats.padding_bytes.add(span as u64);
        let offset = footer.entries_offset;
        let op = self.issue(Io::Write { segment: id, offset, data, durable: true });
        self.ops.insert(op, InFlight::Footer(id));
    }

    /// The footer is durable.
    pub(super) fn footer_written(&mut self, id: u32) {
        self.set_state(id, State::Closed);
        let segment = &mut self.segments[id as usize];
        segment.entry_count = segment.lines.len() as u32;
        segment.lines = Vec::new();
        segment.footer_good = true;
        self.settle_close_waiters();
    }

    /// Makes an emptied segment free on the drive; a leased one is replaced by a new file (R4).
    pub(super) fn free_segment(&mut self, id: u32) {
        let segment = &mut self.segments[id as usize];
        assert!(matches!(segment.state, State::Reclaiming | State::Closing));
        segment.generation = Generation(segment.generation.0 + 1);
        segment.nonce = 0;
        (segment.keep_bytes, segment.clean_bytes, segment.clean_count, segment.keep_max) = (0, 0, 0, 0);
        self.deaths_total -= u64::from(segment.deaths);
        (segment.deaths, segment.below_max, segment.spared) = (0, Seq(0), false);
        segment.lines = Vec::new();
        self.stats.reclaimed_segments.add(1);
        if segment.leased || self.lease_waiters.contains_key(&id) {
            self.stats.replaced_segments.add(1);
            self.prepare(id, true);
        } else {
            self.write_header(id, SegmentState::Free);
            self.set_state(id, State::Freeing { writes: 2 });
        }
    }

    fn prepare(&mut self, id: u32, replace: bool) {
        if !replace {
            self.segments[id as usize].generation = Generation(1);
        }
        let header = self.header_of(id, SegmentState::Free).encode();
        // Until it is replaced, a leased segment keeps its old records on the drive: `Freeing` counts as holding them.
        self.set_state(id, if replace { State::Freeing { writes: 1 } } else { State::Preparing });
        let op = self.issue(Io::Prepare { segment: id, header: Box::from(&header[..]), replace });
        self.ops.insert(op, InFlight::Prepare { segment: id, replace });
    }

    /// Prepares the next segment in the background, one at a time and in order.
    pub(super) fn prepare_next(&mut self) {
        let wanted = self.census.unprepared + self.replace_again > 0 && self.preparing == 0;
        if !wanted || self.poisoned.is_some() || self.now_ms < self.prepare_pause_until_ms {
            return;
        }
        let is_ahead = self.free.len() as u32 >= self.low_water() + PREPARED_AHEAD;
        if is_ahead && !self.prepares_all && self.now_us < PREPARE_QUIET_US && self.replace_again == 0 {
            return;
        }
        let first = |state| self.segments.iter().position(|s| s.state == state);
        if let Some(id) = first(State::Freeing { writes: 0 }) {
            self.prepare(id as u32, true);
        } else if let Some(id) = first(State::Unprepared) {
            self.prepare(id as u32, false);
        }
    }

    /// A segment could not be made (no space, or a lease holds the old file's blocks): its space is missing until a
    /// later try succeeds.
    pub(super) fn prepare_failed(&mut self, id: u32, replace: bool) {
        self.stats.io_errors.add(1);
        self.prepare_pause_until_ms = self.now_ms + PREPARE_PAUSE_MS;
        // The old file is still in place and its records could come back, so it stays `Freeing`.
        self.set_state(id, if replace { State::Freeing { writes: 0 } } else { State::Unprepared });
    }

    /// True if a segment becomes free without anybody's help.
    pub(super) fn segment_is_coming(&self) -> bool {
        let making = self.now_ms >= self.prepare_pause_until_ms;
        self.segments.iter().any(|s| match s.state {
            State::Preparing | State::Closing => true,
            State::Freeing { writes } => writes > 0 || making,
            State::Unprepared => making,
            _ => false,
        })
    }

    /// A segment was created or replaced.
    pub(super) fn prepared(&mut self, id: u32) {
        self.set_state(id, State::Free);
        self.segments[id as usize].leased = false;
        self.stats.prepared_bytes.add(u64::from(self.segment_size));
        self.free.push_back(id);
    }

    /// Counts of segments by state.
    pub fn counts(&self) -> SegmentCounts {
        self.census
    }

    /// The one place that changes a state; the census follows.
    pub(super) fn set_state(&mut self, id: u32, state: State) {
        let old = std::mem::replace(&mut self.segments[id as usize].state, state);
        *self.census.of(old) -= 1;
        *self.census.of(state) += 1;
        self.preparing =
            self.preparing + u32::from(state == State::Preparing) - u32::from(old == State::Preparing);
        let retry = State::Freeing { writes: 0 };
        self.replace_again = self.replace_again + u32::from(state == retry) - u32::from(old == retry);
    }

    /// Segments freed since the ring was opened.
    pub fn reclaimed_segments(&self) -> u64 {
        self.stats.reclaimed_segments.get()
    }

    /// Share of the ring that holds bytes which must stay.
    pub fn must_keep_share(&self) -> f64 {
        let keep: u64 = self.segments.iter().map(|s| s.keep_bytes).sum();
        keep as f64 / (self.segments.len() as f64 * f64::from(self.segment_size))
    }

    /// Bytes of a segment that records and their footer lines can use.
    pub(super) fn usable(&self) -> usize {
        self.segment_size as usize - 2 * BLOCK
    }

    /// Space left in a stream's open segment.
    pub(super) fn remaining(&self, stream: &Stream<T>) -> usize {
        stream.segment.map_or(0, |id| {
            let segment = &self.segments[id as usize];
            let used = segment.cursor as usize + segment.lines.len() * FOOTER_ENTRY_LEN + 2 * BLOCK;
            (self.segment_size as usize).saturating_sub(used)
        })
    }
}
