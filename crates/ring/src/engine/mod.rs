//! The decisions of a ring, pure: requests, completions and time go in, I/O commands and answers come out.
//!
//! A driver executes the commands on a real drive; the simulation executes them on a simulated one, in any order,
//! and crashes between any two. No I/O, no clock and no thread is in here.
//!
//! - `writer` places records: large ones alone, small ones packed into a batch (`packer`);
//! - `landing` follows their writes until they are durable and visible;
//! - `reclaimer` frees segments and moves what must stay; `victims` chooses them;
//! - `segments` keeps the state of every segment and what lives in it.

mod command;
mod landing;
mod packer;
mod reclaimer;
mod segments;
mod victims;
mod writer;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use stoker_format::{ChunkId, Death, RECORD_LEN_MAX, RecordKind, RingId, Seal, Seq, VolumeId, encode_deaths};

use crate::admission::{Admission, Occasion};
use crate::buffer::{Buf, Pool};
use crate::error::{ErrorKind, RingError};
use crate::index::{Entry, Index, Marks};
use crate::settings::Settings;
use crate::stats::Stats;
use crate::tables::Tables;

pub use command::{Append, Command, Crcs, Damage, Done, Io, OpId, Outcome, Retention, WriteData};
pub use packer::record_span;
use reclaimer::Reclaim;
pub use segments::{HeaderCopy, Segment, SegmentCounts, State};
use writer::{InFlight, Stream};

/// A record waiting for its place.
pub(crate) struct Item<T> {
    chunk: ChunkId,
    volume: VolumeId,
    kind: RecordKind,
    marks: Marks,
    payload: Buf,
    crcs: Crcs,
    token: Option<T>,
    /// Relocation: the entry that this copy replaces.
    from: Option<Entry>,
    /// Dead records: what they say, for the footer.
    deaths: Vec<Death>,
    seal: Option<Arc<Seal>>,
}

impl<T> Item<T> {
    /// Aux bytes that each of its blocks has in the header.
    fn aux(&self) -> u8 {
        stoker_format::seal_aux(self.seal.is_some())
    }
}

/// Records that share a segment: one volume if it allows leases (R4), and relocations apart from fresh writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamKey {
    /// The volume that has the segment for itself; zero for the shared stream.
    pub volume: VolumeId,
    /// Moved records.
    pub relocation: bool,
}

/// What the engine is made of; the driver hands it over after recovery.
pub struct EngineParts {
    /// Numbers.
    pub settings: Settings,
    /// Identity, in every record.
    pub ring: RingId,
    /// Bytes per segment.
    pub segment_size: u32,
    /// Index, shared with readers.
    pub index: Arc<Index>,
    /// CRC tables, shared with readers.
    pub tables: Arc<Tables>,
    /// Counters, shared with everyone.
    pub stats: Arc<Stats>,
    /// Memory for batches.
    pub pool: Arc<Pool>,
    /// State of the segments as recovered.
    pub segments: Vec<Segment>,
    /// First sequence number to give out.
    pub next_seq: Seq,
    /// Source of nonces.
    pub entropy: Box<dyn FnMut() -> u64 + Send>,
}

/// The state of one ring.
pub struct Engine<T> {
    settings: Settings,
    ring: RingId,
    segment_size: u32,
    index: Arc<Index>,
    tables: Arc<Tables>,
    stats: Arc<Stats>,
    pool: Arc<Pool>,
    segments: Vec<Segment>,
    free: VecDeque<u32>,
    census: SegmentCounts,
    /// Segments being made, and leased ones whose replacement has to be tried again.
    preparing: u32,
    replace_again: u32,
    /// Deaths recorded in all segments.
    deaths_total: u64,
    next_seq: Seq,
    next_order: u64,
    entropy: Box<dyn FnMut() -> u64 + Send>,
    streams: BTreeMap<StreamKey, Stream<T>>,
    leasable: std::collections::BTreeSet<VolumeId>,
    ops: HashMap<OpId, InFlight<T>>,
    next_op: u64,
    in_flight_bytes: usize,
    records_in_flight: usize,
    /// Record writes that the drive has not ended.
    writes_in_flight: usize,
    /// Written, not yet covered by a flush.
    written: Vec<writer::Records<T>>,
    never_bytes: u64,
    /// Never-draining bytes that are queued or being written.
    never_queued: u64,
    prepare_pause_until_ms: u64,
    /// Somebody waits until every segment is prepared.
    prepares_all: bool,
    winding_down: bool,
    /// Deletes went to the relocation stream since it was last looked at.
    deletes_passed_on: bool,
    reclaim: Option<Reclaim>,
    lease_waiters: HashMap<u32, Vec<T>>,
    close_waiters: Vec<(T, Vec<u32>)>,
    admission: Admission,
    admission_hits_seen: u64,
    coldest_cache: (u32, Option<f64>),
    poisoned: Option<String>,
    now_ms: u64,
    now_us: u64,
    commands: Vec<Command>,
    done: Vec<Done<T>>,
    damages: Vec<Damage>,
}

impl<T> Engine<T> {
    /// Takes up a recovered ring.
    pub fn new(parts: EngineParts) -> Engine<T> {
        let mut engine = Engine {
            admission: Admission::new(parts.settings.index_entries_max().min(1 << 20)),
            settings: parts.settings,
            ring: parts.ring,
            segment_size: parts.segment_size,
            index: parts.index,
            tables: parts.tables,
            stats: parts.stats,
            pool: parts.pool,
            segments: parts.segments,
            free: VecDeque::new(),
            census: SegmentCounts::default(),
            preparing: 0,
            replace_again: 0,
            deaths_total: 0,
            next_seq: parts.next_seq,
            next_order: 1,
            entropy: parts.entropy,
            streams: BTreeMap::new(),
            leasable: Default::default(),
            ops: HashMap::new(),
            next_op: 1,
            in_flight_bytes: 0,
            records_in_flight: 0,
            writes_in_flight: 0,
            written: Vec::new(),
            never_bytes: 0,
            never_queued: 0,
            prepare_pause_until_ms: 0,
            prepares_all: false,
            winding_down: false,
            deletes_passed_on: false,
            reclaim: None,
            lease_waiters: HashMap::new(),
            close_waiters: Vec::new(),
            admission_hits_seen: 0,
            coldest_cache: (0, None),
            poisoned: None,
            now_ms: 0,
            now_us: 0,
            commands: Vec::new(),
            done: Vec::new(),
            damages: Vec::new(),
        };
        engine.take_up_segments();
        engine
    }

    /// Tells the time; wall clock for headers, monotonic for latencies.
    pub fn set_time(&mut self, unix_ms: u64, monotonic_us: u64) {
        (self.now_ms, self.now_us) = (unix_ms, monotonic_us);
    }

    /// Lets a volume have segments for itself, so that leases on them can be given out; false if too many have.
    pub fn set_leasable(&mut self, volume: VolumeId, leasable: bool) -> bool {
        if !leasable {
            self.leasable.remove(&volume);
            return true;
        }
        // Each such volume keeps up to two segments open; a quarter of the ring at most is held that way.
        let room = self.leasable.len() < (self.segments.len() / 8).max(1);
        if room && volume != VolumeId(0) {
            self.leasable.insert(volume);
        }
        self.leasable.contains(&volume)
    }

    /// Largest payload that fits this ring's segments.
    pub fn record_len_max(&self) -> usize {
        // An eighth of a segment bounds what a closing segment can waste, and with it what relocation needs (R3).
        RECORD_LEN_MAX.min(self.segment_size as usize / 8)
    }

    /// Queues a record; its answer comes through [`Engine::take_done`].
    pub fn append(&mut self, append: Append, token: T) {
        let fits = append.seal.as_ref().is_none_or(|seal| seal.fits(append.payload.len()));
        let refusal = if let Some(why) = &self.poisoned {
            Some(RingError::new(ErrorKind::Poisoned, why.clone()))
        } else if append.payload.is_empty() || append.payload.len() > self.record_len_max() {
            let (len, max) = (append.payload.len(), self.record_len_max());
            Some(RingError::new(ErrorKind::Invalid, format!("a record holds 1 to {max} bytes, not {len}")))
        } else if !fits {
            Some(RingError::new(ErrorKind::Invalid, "the seal of a record does not fit its bytes"))
        } else if append.retention == Retention::Never
            && self.never_bytes + self.never_queued + append.payload.len() as u64 > self.never_max()
        {
            self.stats.refused_full.add(1);
            let max = self.never_max();
            Some(RingError::new(
                ErrorKind::Full,
                format!("volumes that never drain have filled their share of {max} bytes"),
            ))
        } else {
            None
        };
        if let Some(error) = refusal {
            self.done.push(Done { token, result: Err(error), payload: Some(append.payload) });
            return;
        }
        let marks = match append.retention {
            Retention::Dirty => Marks::default(),
            Retention::Clean => Marks::CLEAN,
            Retention::Never => Marks::NEVER,
        };
        let name = if append.kind == RecordKind::Name { Marks::NAME } else { Marks::default() };
        let sealed = if append.seal.is_some() { Marks::SEALED } else { Marks::default() };
        if append.retention == Retention::Never {
            self.never_queued += append.payload.len() as u64;
        }
        let volume = if self.leasable.contains(&append.volume) { append.volume } else { VolumeId(0) };
        self.enqueue(
            StreamKey { volume, relocation: false },
            Item {
                chunk: append.chunk,
                volume: append.volume,
                kind: append.kind,
                marks: marks.with(name).with(sealed),
                payload: append.payload,
                crcs: append.crcs,
                token: Some(token),
                from: None,
                deaths: Vec::new(),
                seal: append.seal,
            },
        );
    }

    /// Forgets records at once and durably: when the answer comes, no crash brings them back.
    pub fn delete(&mut self, chunks: &[ChunkId], token: T) {
        let Some(token) = self.token_unless_poisoned(token) else { return };
        if chunks.is_empty() {
            self.done.push(Done { token, result: Ok(()), payload: None });
            return;
        }
        let below = self.next_seq;
        let mut deaths = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            if let Some(gone) = self.index.remove_if(chunk, |_| true) {
                self.forget(&gone);
                self.tables.remove(chunk);
            }
            deaths.push(Death { chunk: *chunk, below });
        }
        self.cancel_in_flight(chunks);
        self.enqueue_deaths(deaths, false, Some(token));
    }

    fn enqueue_deaths(&mut self, deaths: Vec<Death>, relocation: bool, token: Option<T>) {
        let payload = Buf::copy_of(&encode_deaths(&deaths));
        assert!(payload.len() <= self.record_len_max(), "the caller splits long delete lists");
        let crcs = Crcs::of(payload.as_slice());
        let item = Item {
            chunk: ChunkId::from_bytes([0; 16]),
            volume: VolumeId(0),
            kind: RecordKind::Dead,
            marks: Marks::default(),
            payload,
            crcs,
            token,
            from: None,
            deaths,
            seal: None,
        };
        self.enqueue(StreamKey { volume: VolumeId(0), relocation }, item);
    }

    /// Most deaths that one delete may carry.
    pub fn deaths_max(&self) -> usize {
        (self.segment_size as usize / 64 / stoker_format::DEATH_LEN).min(2000)
    }

    /// Changes marks of records (clean, dirty, pinned, unpinned); unknown records are skipped. Returns how many changed.
    pub fn remark(&mut self, chunks: &[ChunkId], change: impl Fn(Marks) -> Marks) -> usize {
        let mut changed = 0;
        for chunk in chunks {
            let Some((before, after)) = self.index.remark(chunk, &change) else { continue };
            if before.marks != after.marks {
                self.forget(&before);
                self.account(&after);
                changed += 1;
            }
        }
        changed
    }

    /// Gives the token back, or answers it: a poisoned drive takes nothing more.
    fn token_unless_poisoned(&mut self, token: T) -> Option<T> {
        let Some(why) = self.poisoned.clone() else { return Some(token) };
        let result = Err(RingError::new(ErrorKind::Poisoned, why));
        self.done.push(Done { token, result, payload: None });
        None
    }

    /// Asks that every open segment be closed; answered when their footers are durable.
    pub fn close_open(&mut self, token: T) {
        let Some(token) = self.token_unless_poisoned(token) else { return };
        let open: Vec<u32> = self.streams.values_mut().filter_map(|s| s.segment.take()).collect();
        let mut waiting = Vec::new();
        for id in open {
            if matches!(self.segments[id as usize].state, State::Opening { .. }) {
                // An opening segment has no records yet; it stays the stream's next one.
                let key = self.segments[id as usize].stream;
                self.streams.get_mut(&key).expect("the stream of an opening segment").segment = Some(id);
                continue;
            }
            self.begin_close(id);
            waiting.push(id);
        }
        self.close_waiters.push((token, waiting));
        self.settle_close_waiters();
    }

    fn settle_close_waiters(&mut self) {
        let segments = &self.segments;
        for (_, waiting) in &mut self.close_waiters {
            waiting.retain(|&id| segments[id as usize].state == State::Closing);
        }
        while let Some(at) = self.close_waiters.iter().position(|(_, waiting)| waiting.is_empty()) {
            let (token, _) = self.close_waiters.swap_remove(at);
            self.done.push(Done { token, result: Ok(()), payload: None });
        }
    }

    /// Asks for a lease on a record's segment: answered once it is durable that the segment must be replaced, not reused.
    pub fn lease(&mut self, chunk: &ChunkId, token: T) {
        let refusal = match self.index.get(chunk) {
            None => Some(RingError::new(ErrorKind::NotFound, format!("no record {chunk}"))),
            Some(entry) if !self.segments[entry.segment as usize].leasable => Some(RingError::new(
                ErrorKind::Invalid,
                format!("volume {} gives no leases: its records share segments", entry.volume),
            )),
            Some(entry) => {
                if !self.segments[entry.segment as usize].leased {
                    let waiters = self.lease_waiters.entry(entry.segment).or_default();
                    waiters.push(token);
                    if waiters.len() == 1 {
                        let op = self.issue(Io::MarkLeased { segment: entry.segment });
                        self.ops.insert(op, InFlight::MarkLeased(entry.segment));
                    }
                    return;
                }
                None
            }
        };
        self.done.push(Done { token, result: refusal.map_or(Ok(()), Err), payload: None });
    }

    /// Notes that a chunk was wanted and not here; says whether to write it to flash.
    pub fn admits(&mut self, chunk: &ChunkId, staged: bool) -> bool {
        let hits = self.index.touches();
        let new_hits = hits - std::mem::replace(&mut self.admission_hits_seen, hits);
        let room = self.poisoned.is_none() && self.has_room();
        self.admission.set_residents((!room).then(|| self.index.len()));
        if self.admission.touch(chunk, new_hits) {
            (0..self.segments.len()).for_each(|id| self.index.segment(id as u32).cool());
            self.coldest_cache.0 = 0;
        }
        let coldest = if room { None } else { self.coldest() };
        self.admission.admits(chunk, Occasion { staged, room, coldest })
    }

    /// Commands to execute.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Answers to give.
    pub fn take_done(&mut self) -> Vec<Done<T>> {
        std::mem::take(&mut self.done)
    }

    /// Records found unreadable since the last call.
    pub fn take_damages(&mut self) -> Vec<Damage> {
        std::mem::take(&mut self.damages)
    }

    /// Why the drive takes no more writes, if so.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.as_deref()
    }

    /// Record writes that the drive has not ended.
    pub fn writes_in_flight(&self) -> usize {
        self.writes_in_flight
    }

    /// True while commands are under way or answers are owed.
    pub fn is_busy(&self) -> bool {
        !self.ops.is_empty() || self.streams.values().any(|s| !s.queue.is_empty())
    }

    /// Gives up at once: everyone who waits hears that the ring is closed. For a driver that is dropped.
    pub fn abandon(&mut self) {
        self.poison("the ring's driver was dropped".into());
        for (_, op) in std::mem::take(&mut self.ops) {
            match op {
                InFlight::Records(records) => self.fail_records(records),
                InFlight::Flush(all) => all.into_iter().for_each(|records| self.fail_records(records)),
                _ => {}
            }
        }
    }

    /// Prepares every segment as soon as the drive can, also right after a start.
    pub fn prepare_all(&mut self) {
        self.prepares_all = true;
    }

    /// Starts nothing new in the background: the ring is about to be closed.
    pub fn wind_down(&mut self) {
        self.prepare_pause_until_ms = u64::MAX;
        self.winding_down = true;
    }

    /// Payload bytes that wait for a place.
    pub fn queued_bytes(&self) -> usize {
        self.streams.values().map(|s| s.queued_bytes).sum()
    }

    /// The segments, for people and tests.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Streams, reclaim and counts in one line, for finding out why a ring waits.
    pub fn describe(&self) -> String {
        let streams = self.streams.iter().map(|(key, s)| {
            let state = s.segment.map(|id| (id, self.segments[id as usize].state));
            format!("{key:?}: {} queued, {} batches, segment {state:?}", s.queue.len(), s.batches_in_flight)
        });
        let streams: Vec<String> = streams.collect();
        let reclaim = self.reclaim.as_ref().map(Reclaim::describe);
        let (ops, bytes) = (self.ops.len(), self.in_flight_bytes);
        format!("{streams:?}, {reclaim:?}, {:?}, {ops} commands, {bytes} bytes in flight", self.counts())
    }

    fn issue(&mut self, io: Io) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        self.commands.push(Command { op, io });
        op
    }

    /// A write or flush failed: nothing more is written here, ever; everyone who waits is told.
    fn poison(&mut self, why: String) {
        self.stats.io_errors.add(1);
        if self.poisoned.is_some() {
            return;
        }
        let error = RingError::new(ErrorKind::Poisoned, why.clone());
        self.poisoned = Some(why);
        self.reclaim = None;
        for stream in self.streams.values_mut() {
            stream.queued_bytes = 0;
            for item in stream.queue.drain(..) {
                if let Some(token) = item.token {
                    self.done.push(Done { token, result: Err(error.clone()), payload: Some(item.payload) });
                }
            }
        }
        for records in std::mem::take(&mut self.written) {
            self.fail_records(records);
        }
        let waiters = std::mem::take(&mut self.lease_waiters).into_values().flatten();
        for token in waiters.chain(std::mem::take(&mut self.close_waiters).into_iter().map(|(t, _)| t)) {
            self.done.push(Done { token, result: Err(error.clone()), payload: None });
        }
    }
}
