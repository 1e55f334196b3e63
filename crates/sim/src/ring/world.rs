//! The real engine over a simulated drive, one step at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use stoker_format::{BLOCK, ChunkId, KeyId, RecordPlace, RingId, SEAL_TAG_LEN, Seal, VolumeId, crc32c};
use stoker_ring::buffer::{Buf, Pool};
use stoker_ring::engine::{Command, Done, Engine, EngineParts, Io, Outcome};
use stoker_ring::error::ErrorKind;
use stoker_ring::index::{Entry, Index, Pin};
use stoker_ring::read::{self, Life};
use stoker_ring::recovery::{self, Media, Report, Shape};
use stoker_ring::settings::{Settings, SyncMode};
use stoker_ring::stats::{NoWake, Stats};
use stoker_ring::tables::Tables;

use super::model::{Known, Model};
use crate::drive::{Faults, SimDrive};
use crate::rng::Rng;

/// Size and behaviour of the ring of one seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Segments.
    pub segments: u32,
    /// Bytes per segment.
    pub segment_size: u32,
    /// How writes become durable.
    pub sync: SyncMode,
    /// What goes wrong.
    pub faults: Faults,
    /// Percent of appends that never drain.
    pub never_percent: u64,
    /// Percent of finished appends that are marked clean soon.
    pub clean_percent: u64,
    /// Volume 1 allows leases.
    pub leases: bool,
    /// Requests in this history.
    pub requests: usize,
}

impl Plan {
    /// The plan that a seed stands for.
    pub fn of(rng: &mut Rng) -> Plan {
        let segment_size = [128, 128, 256][rng.below(3)] << 10;
        let mut faults = Faults::default();
        match rng.below(10) {
            0 => faults.rot_percent = 2,
            1 => faults.misdirected_percent = 2,
            2 => faults.no_space_percent = 40,
            3 => faults.fail_write_at = Some(rng.between(20, 200) as u64),
            4 => faults.read_fail_percent = 3,
            _ => {}
        }
        Plan {
            segments: rng.between(8, 14) as u32,
            segment_size: segment_size as u32,
            sync: if rng.percent(50) { SyncMode::Dsync } else { SyncMode::Flush },
            faults,
            never_percent: [0, 0, 20, 50][rng.below(4)],
            clean_percent: [0, 30, 60, 90][rng.below(4)],
            leases: rng.percent(40),
            requests: rng.between(100, 500),
        }
    }

    fn shape(&self) -> Shape {
        Shape { ring: RING, segment_size: self.segment_size, segment_count: self.segments }
    }

    fn settings(&self) -> Settings {
        Settings {
            sync: self.sync,
            index_bytes_max: 1 << 20,
            in_flight_bytes_max: 256 << 10,
            batch_bytes_max: 24 << 10,
            small_bytes_max: 8 << 10,
            never_share: 0.4,
            rescue_share: 0.2,
            ..Settings::default()
        }
    }
}

const RING: RingId = RingId([7; 16]);

/// What a request was, for when its answer comes.
#[derive(Clone, Debug)]
pub enum Ask {
    /// An append of this chunk; `evictable` if it may be dropped once durable.
    Put {
        /// Chunk.
        chunk: ChunkId,
        /// Clean from the start.
        evictable: bool,
    },
    /// A delete of these chunks.
    Delete(Vec<ChunkId>),
    /// A lease on this chunk's segment.
    Lease(ChunkId),
    /// A close of all open segments.
    Close,
}

/// A held lease: a file and what has to be in it.
#[derive(Clone, Debug)]
struct Held {
    inode: u64,
    offset: usize,
    content: super::model::Content,
    chunk: ChunkId,
}

/// One ring in the middle of its history.
pub struct World {
    /// Its shape.
    pub plan: Plan,
    /// The engine under test.
    pub engine: Engine<Ask>,
    /// Its index.
    pub index: Arc<Index>,
    /// Its drive.
    pub drive: SimDrive,
    /// What it promised.
    pub model: Model,
    /// Commands that the drive has not finished.
    pub in_flight: Vec<Command>,
    held: Vec<Held>,
    /// Readers in the middle of a read.
    readers: Vec<(Pin, ChunkId, Entry)>,
    /// Chunks that were deleted while they were being written: either order is right, for good.
    pub unsure: BTreeSet<ChunkId>,
    now_us: u64,
    /// Requests refused as full.
    pub refusals: u64,
    /// What the last recovery saw.
    pub report: Report,
    pool: Arc<Pool>,
    /// Print every step, for finding out why a seed fails.
    trace: bool,
}

type Check = std::result::Result<(), String>;

impl World {
    /// An empty drive.
    pub fn new(plan: Plan, rng: &mut Rng) -> Result<World, String> {
        let drive = SimDrive::new(plan.segments, plan.segment_size, plan.faults);
        let pool = Pool::new(8 << 20).map_err(|e| e.to_string())?;
        World::open(plan, drive, Model::default(), Vec::new(), pool, rng)
    }

    fn open(
        plan: Plan,
        drive: SimDrive,
        model: Model,
        held: Vec<Held>,
        pool: Arc<Pool>,
        rng: &mut Rng,
    ) -> Result<World, String> {
        let settings = plan.settings();
        let index = Index::new(settings.index_entries_max(), plan.segments, rng.number(), Arc::new(NoWake));
        let recovered = recovery::recover(&drive, plan.shape(), &index).map_err(|e| e.to_string())?;
        let mut nonces = Rng::new(rng.number());
        let mut engine = Engine::new(EngineParts {
            ring: RING,
            segment_size: plan.segment_size,
            index: index.clone(),
            tables: Arc::new(Tables::new(settings.tables_bytes_max)),
            stats: Arc::new(Stats::default()),
            pool: pool.clone(),
            segments: recovered.segments,
            next_seq: recovered.next_seq,
            entropy: Box::new(move || nonces.number()),
            settings,
        });
        engine.set_leasable(VolumeId(1), plan.leases);
        let mut world = World {
            plan,
            engine,
            index,
            drive,
            model,
            in_flight: Vec::new(),
            held,
            readers: Vec::new(),
            unsure: BTreeSet::new(),
            now_us: 0,
            refusals: 0,
            report: recovered.report,
            pool,
            trace: std::env::var_os("STOKER_SIM_TRACE").is_some(),
        };
        world.pump()?;
        Ok(world)
    }

    /// Lets the engine move and takes its answers.
    pub fn pump(&mut self) -> Check {
        self.now_us += 50;
        self.engine.set_time(self.now_us / 1000, self.now_us);
        self.engine.pump();
        self.in_flight.extend(self.engine.take_commands());
        for done in self.engine.take_done() {
            self.answer(done)?;
        }
        for damage in self.engine.take_damages() {
            let faults = &self.plan.faults;
            if faults.rot_percent + faults.misdirected_percent == 0 {
                return Err(format!("damage without a fault: {damage:?}"));
            }
            // Reported, not silent: whoever reads the report repairs it from another copy.
            if let Some(content) = self.model.content(&damage.chunk) {
                self.model.set(damage.chunk, Known::Either(content));
            }
        }
        Ok(())
    }

    /// Lets time go by.
    pub fn advance_ms(&mut self, ms: u64) -> Check {
        self.now_us += ms * 1000;
        self.pump()
    }

    fn answer(&mut self, done: Done<Ask>) -> Check {
        let poisoned = self.engine.poisoned().is_some();
        if self.trace {
            eprintln!("answer {:?}: {:?}", done.token, done.result);
        }
        match (done.token, done.result) {
            (Ask::Put { chunk, evictable }, Ok(())) => {
                if let Some(Known::Either(content)) = self.model.get(&chunk).cloned()
                    && !evictable
                    && !self.unsure.contains(&chunk)
                {
                    self.model.set(chunk, Known::Present(content));
                }
            }
            (Ask::Put { chunk, .. }, Err(error)) if error.kind == ErrorKind::Full => {
                self.refusals += 1;
                self.model.set(chunk, Known::Absent);
                self.check_refusal(&error.message)?;
            }
            (Ask::Delete(chunks), Ok(())) => {
                let sure = chunks.into_iter().filter(|chunk| !self.unsure.contains(chunk));
                sure.for_each(|chunk| self.model.set(chunk, Known::Absent));
            }
            // A delete needs a little room itself; a ring that cannot make any stays full for ever.
            (Ask::Delete(_), Err(error)) if error.kind == ErrorKind::Full => {
                if self.plan.faults.no_space_percent + self.plan.faults.read_fail_percent == 0 {
                    return Err(format!("a delete was refused: {error}; {}", self.engine.describe()));
                }
            }
            (Ask::Lease(chunk), Ok(())) => self.hold(chunk),
            (_, Err(_)) | (Ask::Close, Ok(())) if poisoned => {}
            (Ask::Lease(_), Err(_)) | (Ask::Close, Ok(())) => {}
            (ask, Err(error)) => return Err(format!("{ask:?} failed: {error}")),
        }
        Ok(())
    }

    /// A ring may refuse only when it is full of must-keep bytes, or of segments it cannot make.
    fn check_refusal(&self, why: &str) -> Check {
        let free = self.engine.counts();
        let capacity = u64::from(self.plan.segments) * u64::from(self.plan.segment_size);
        let keep: u64 = self.engine.segments().iter().map(|s| s.keep_bytes).sum();
        // On a handful of segments, those that streams keep open are a large part.
        let enough = if self.plan.leases { 15 } else { 30 };
        let faults = &self.plan.faults;
        if why.contains("share")
            || faults.no_space_percent + faults.read_fail_percent > 0
            || keep * 100 >= capacity * enough
        {
            return Ok(());
        }
        Err(format!("refused although only {keep} of {capacity} bytes are must-keep ({why}; {free:?})"))
    }

    fn hold(&mut self, chunk: ChunkId) {
        let (Some(entry), Some(content)) = (self.index.get(&chunk), self.model.content(&chunk)) else {
            return;
        };
        // The chunk may have moved to a segment without a lease meanwhile; a client would ask again.
        if self.engine.segments()[entry.segment as usize].leased {
            let inode = self.drive.inode(entry.segment);
            self.held.push(Held { inode, offset: entry.payload_offset as usize, content, chunk });
        }
    }

    /// The drive finishes a random command.
    pub fn finish_one(&mut self, rng: &mut Rng) -> Check {
        if self.in_flight.is_empty() {
            return Ok(());
        }
        let command = self.in_flight.swap_remove(rng.below(self.in_flight.len()));
        if self.trace {
            eprintln!("finish {:?} {}", command.op, describe(&command.io));
        }
        let (op, outcome) = match command.io {
            Io::Scan { segment } => (command.op, self.scan(segment)),
            io => self.drive.execute(command.op, io, rng),
        };
        self.engine.complete(op, outcome);
        self.pump()
    }

    fn scan(&self, id: u32) -> Outcome {
        let segment = &self.engine.segments()[id as usize];
        let place = RecordPlace {
            ring: RING,
            generation: segment.generation,
            nonce: segment.nonce,
            offset: 0,
            segment_size: self.plan.segment_size,
        };
        match recovery::scan(&self.drive, id, &place, &mut Report::default()) {
            Ok(scan) => Outcome::Scanned(scan.lines),
            Err(e) => Outcome::Failed(e.to_string()),
        }
    }

    /// A crash at this very moment, looked at from the outside: recovers a copy and checks every promise.
    pub fn check_crash(&self, rng: &mut Rng) -> Check {
        let survive = [0, 10, 50, 90, 100][rng.below(5)];
        let image = self.drive.crash(self.in_flight.iter().map(|c| &c.io), survive, rng);
        let settings = self.plan.settings();
        let index =
            Index::new(settings.index_entries_max(), self.plan.segments, rng.number(), Arc::new(NoWake));
        let recovered = recovery::recover(&image, self.plan.shape(), &index);
        let recovered = recovered.map_err(|e| format!("recovery failed: {e}"))?;
        let faulty = self.plan.faults.rot_percent + self.plan.faults.misdirected_percent > 0;
        if recovered.report.damaged > 0 && !faulty {
            return Err(format!("a crash alone damaged a segment: {:?}", recovered.report));
        }
        let size = self.plan.segment_size;
        let lives: Vec<Life> = recovered.segments.iter().map(|s| life(s.generation, s.nonce, size)).collect();
        check_promises(&self.model, &image, &index, &lives, &self.plan)
            .map_err(|e| format!("after a crash with {survive} % of unflushed sectors: {e}"))
    }

    /// A crash for good: history goes on with what was left.
    pub fn crash(mut self, rng: &mut Rng) -> Result<World, String> {
        let survive = [0, 10, 50, 90, 100][rng.below(5)];
        let in_flight = self.in_flight.iter().map(|c| &c.io);
        let drive = match rng.percent(40) {
            true => self.drive.kill(in_flight, rng),
            false => self.drive.crash(in_flight, survive, rng),
        };
        self.readers.clear();
        // Leases die with no one: their holders keep the files.
        self.check_leases()?;
        let model = std::mem::take(&mut self.model);
        let mut plan = self.plan.clone();
        plan.faults.fail_write_at = None;
        let mut drive = drive;
        drive.faults.fail_write_at = None;
        let held = std::mem::take(&mut self.held);
        let mut world = World::open(plan, drive, model, held, self.pool.clone(), rng)?;
        world.check_now()?;
        // What was under way is settled now: what is there stays, what is not never was.
        let settled: Vec<(ChunkId, Known)> = world
            .model
            .iter()
            .filter_map(|(chunk, known)| match known {
                Known::Either(content) if world.index.get(chunk).is_some() => {
                    Some((*chunk, Known::Present(content.clone())))
                }
                Known::Either(_) => Some((*chunk, Known::Absent)),
                // A fault took it (checked above).
                Known::Present(_) if world.index.get(chunk).is_none() => Some((*chunk, Known::Absent)),
                _ => None,
            })
            .collect();
        settled.into_iter().for_each(|(chunk, known)| world.model.set(chunk, known));
        Ok(world)
    }

    /// Checks every promise against the running ring.
    pub fn check_now(&self) -> Check {
        let lives: Vec<Life> = self
            .engine
            .segments()
            .iter()
            .map(|s| life(s.generation, s.nonce, self.plan.segment_size))
            .collect();
        check_promises(&self.model, &self.drive, &self.index, &lives, &self.plan)
    }

    /// A reader starts, or one that started ends.
    pub fn read_some(&mut self, chunk: ChunkId, rng: &mut Rng) {
        if self.readers.len() < 3
            && let Some((entry, pin)) = self.index.pin(&chunk)
        {
            self.readers.push((pin, chunk, entry));
        } else if !self.readers.is_empty() {
            self.readers.swap_remove(rng.below(self.readers.len()));
        }
    }

    /// Every reader ends.
    pub fn end_readers(&mut self) {
        self.readers.clear();
    }

    /// Under a reader that has started nothing changes, whatever happens to the record meanwhile.
    pub fn check_readers(&self) -> Check {
        for (_, chunk, entry) in &self.readers {
            let (start, len) = (entry.payload_offset as usize, entry.len as usize);
            let bytes = self.drive.peek(entry.segment, start, len).ok_or("a segment that is read is gone")?;
            let faults = &self.plan.faults;
            let faulty = faults.rot_percent + faults.misdirected_percent > 0;
            if stoker_format::crc32c(bytes) != entry.crc && !faulty {
                return Err(format!("{chunk} changed under a reader"));
            }
        }
        Ok(())
    }

    /// A leased file shows the leased bytes for as long as the lease is held (R4).
    pub fn check_leases(&self) -> Check {
        for held in &self.held {
            let seen = self.drive.leased_bytes(held.inode, held.offset, held.content.len());
            if seen != Some(&held.content[..])
                && self.plan.faults.rot_percent + self.plan.faults.misdirected_percent == 0
            {
                return Err(format!("a lease on {} shows other bytes", held.chunk));
            }
        }
        Ok(())
    }
}

fn describe(io: &Io) -> String {
    match io {
        Io::Write { segment, offset, data, durable } => {
            format!("write {} bytes to {segment}+{offset}, durable {durable}", data.len())
        }
        Io::Read { segment, offset, buf } => format!("read {} bytes of {segment}+{offset}", buf.len()),
        Io::Flush { segment } => format!("flush {segment}"),
        Io::Prepare { segment, replace, .. } => format!("prepare {segment}, replace {replace}"),
        Io::Scan { segment } => format!("scan {segment}"),
        Io::MarkLeased { segment } => format!("mark {segment} leased"),
    }
}

fn life(generation: stoker_format::Generation, nonce: u64, segment_size: u32) -> Life {
    Life { ring: RING, generation, nonce, segment_size }
}

/// Compares what can be read with what was promised.
fn check_promises(model: &Model, drive: &SimDrive, index: &Index, lives: &[Life], plan: &Plan) -> Check {
    let faulty = plan.faults.rot_percent + plan.faults.misdirected_percent > 0;
    for (chunk, known) in model.iter() {
        let entry = index.get(chunk);
        match (known, entry) {
            (Known::Absent, None) | (Known::Either(_), None) => {}
            (Known::Absent, Some(_)) if faulty => {}
            (Known::Absent, Some(entry)) => {
                return Err(format!("{chunk} came back from the dead: {entry:?}"));
            }
            (Known::Present(_), None) if faulty && drive.was_tainted => {}
            (Known::Present(_), None) => return Err(format!("acknowledged {chunk} is lost")),
            (Known::Present(content) | Known::Either(content), Some(entry)) => {
                check_bytes(chunk, &entry, content, drive, &lives[entry.segment as usize], faulty)?;
            }
        }
    }
    let mut ghosts = None;
    index.for_each(|chunk, _| {
        if model.get(chunk).is_none() {
            ghosts = Some(*chunk);
        }
    });
    ghosts.map_or(Ok(()), |chunk| Err(format!("{chunk} was never written")))
}

/// What opens a record, if it is one of the fourth of all that are sealed. The ring keeps it and does not look into it.
pub fn seal_of(chunk: &ChunkId, len: usize) -> Option<Arc<Seal>> {
    let salt = chunk.to_bytes();
    let sum = crc32c(&salt);
    let tag = |at: usize| sum.wrapping_mul(at as u32 | 1).to_le_bytes()[at % 4];
    let tags = (0..len.div_ceil(BLOCK) * SEAL_TAG_LEN).map(tag).collect();
    sum.is_multiple_of(4).then(|| Arc::new(Seal { key: KeyId(sum | 1), salt, tags }))
}

/// Reads a record as a reader does: whole, and one block of it.
fn check_bytes(
    chunk: &ChunkId,
    entry: &Entry,
    content: &[u8],
    drive: &SimDrive,
    life: &Life,
    faulty: bool,
) -> Check {
    if entry.len as usize != content.len() {
        return Err(format!("{chunk} has {} bytes, not {}", entry.len, content.len()));
    }
    let read = |offset: u32, len: usize| {
        let mut buf = Buf::heap(len);
        drive.read(entry.segment, offset, &mut buf).map(|()| buf).map_err(|e| e.to_string())
    };
    let seal = seal_of(chunk, content.len());
    let table = if content.len() <= BLOCK && seal.is_none() {
        vec![entry.crc]
    } else {
        let (offset, len) = read::header_place(entry);
        match read::record_of(chunk, entry, life, read(offset, len)?.as_slice()) {
            Some(record) if record.seal() != seal.as_deref().cloned() => {
                return Err(format!("{chunk} has another seal at {entry:?}"));
            }
            Some(record) => record.table,
            None if faulty => return Ok(()),
            None => return Err(format!("the header of {chunk} cannot be read at {entry:?}")),
        }
    };
    for (offset, len) in [(0, content.len()), (content.len() / 2, 1.max(content.len() / 7))] {
        let plan = read::plan(chunk, entry, offset, len).map_err(|e| e.to_string())?;
        let bytes = read(plan.offset, plan.len)?;
        if plan.bad_block(entry, &table, bytes.as_slice()).is_some() {
            if faulty {
                continue;
            }
            return Err(format!("{chunk} fails its CRC at {entry:?}"));
        }
        if bytes.as_slice()[plan.view.clone()] != content[offset..offset + len] {
            return Err(format!("{chunk} returned wrong bytes"));
        }
    }
    Ok(())
}
