//! A simulated machine: a clock that may be wrong, one drive, and at most one process of a node, which can be killed,
//! stopped, or lose power at any moment.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use stoker_format::{BLOCK, ClusterId, DriveId, FORMAT_VERSION, KeyId, Layout, NodeId, RingId, Superblock};
use stoker_node::World;
use stoker_ring::buffer::Buf;
use stoker_ring::engine::{Io, OpId, Outcome};
use stoker_ring::recovery::Media;
use stoker_ring::{Ending, TwinDrive};
use tokio::sync::Notify;

use super::mutations::Mutation;
use super::trace::Trace;
use crate::drive::{Faults, SimDrive};
use crate::rng::Rng;

/// Bytes of a segment: the least there is, so that reclaim has work with few bytes.
const SEGMENT_BYTES: u32 = 64 << 10;

/// Milliseconds since 1970 at the start of every run.
pub const EPOCH_MS: u64 = 1_700_000_000_000;

/// A machine.
pub struct Machine {
    /// Its number.
    pub at: usize,
    trace: Trace,
    mutation: Option<Mutation>,
    state: Mutex<State>,
}

struct State {
    /// Counts processes; only the last one can be alive.
    epoch: u64,
    is_up: bool,
    is_stopped: bool,
    stopped: Vec<Waker>,
    drive: SimDrive,
    in_flight: BTreeMap<u64, Io>,
    /// Where the last write of records to each segment ended, of those that are done.
    ended: BTreeMap<u32, u32>,
    next_io: u64,
    cluster: Option<ClusterId>,
    ids: ([u8; 16], [u8; 16]),
    segments: u32,
    skew_ms: i64,
    slow_ms: usize,
    rng: Rng,
    died: Arc<Notify>,
}

/// How a process ends against its will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// Killed: the drive finishes what it has.
    Kill,
    /// Power loss: of what was not durable only this share of the sectors is there.
    Power {
        /// Percent.
        survive_percent: u64,
    },
}

/// What vanishes from a drive without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vanish {
    /// A bit of record headers flips.
    Headers,
    /// Blocks that begin records read as zeros.
    Records,
    /// Segment files are removed.
    Segments,
}

/// One process on a machine.
pub struct Process {
    /// Where it runs.
    pub machine: Arc<Machine>,
    epoch: u64,
    /// Told when it is over.
    pub died: Arc<Notify>,
}

impl Machine {
    /// A machine with an empty drive.
    pub fn new(
        at: usize,
        segments: u32,
        mutation: Option<Mutation>,
        trace: Trace,
        mut rng: Rng,
    ) -> Arc<Machine> {
        let (mut drive, mut ring) = ([0; 16], [0; 16]);
        rng.fill(&mut drive);
        rng.fill(&mut ring);
        let state = State {
            epoch: 0,
            is_up: false,
            is_stopped: false,
            stopped: Vec::new(),
            drive: SimDrive::new(segments, SEGMENT_BYTES, Faults::default()),
            in_flight: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_io: 0,
            cluster: None,
            ids: (drive, ring),
            segments,
            skew_ms: 0,
            slow_ms: 0,
            rng,
            died: Arc::default(),
        };
        Arc::new(Machine { at, trace, mutation, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Starts a process.
    pub fn start(self: &Arc<Machine>) -> Arc<Process> {
        let mut state = self.state();
        assert!(!state.is_up, "one process at a time");
        state.epoch += 1;
        (state.is_up, state.is_stopped) = (true, false);
        state.died = Arc::default();
        Arc::new(Process { machine: self.clone(), epoch: state.epoch, died: state.died.clone() })
    }

    /// Whether a process runs or is stopped.
    pub fn is_up(&self) -> bool {
        self.state().is_up
    }

    /// Whether it would answer a ping.
    pub fn answers(&self) -> bool {
        let state = self.state();
        state.is_up && !state.is_stopped
    }

    /// Ends the process, whatever it does.
    pub fn end(&self, death: Death) {
        let mut guard = self.state();
        let state = &mut *guard;
        state.is_up = false;
        state.is_stopped = false;
        let in_flight = std::mem::take(&mut state.in_flight);
        state.drive = match death {
            Death::Kill => state.drive.kill(in_flight.values(), &mut state.rng),
            Death::Power { survive_percent } => {
                state.drive.crash(in_flight.values(), survive_percent, &mut state.rng)
            }
        };
        let (stopped, died) = (std::mem::take(&mut state.stopped), state.died.clone());
        drop(guard);
        died.notify_waiters();
        stopped.into_iter().for_each(Waker::wake);
    }

    /// Stops the process (SIGSTOP): it does nothing, and notices nothing of it.
    pub fn stop(&self) {
        self.state().is_stopped = true;
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        let mut state = self.state();
        state.is_stopped = false;
        let stopped = std::mem::take(&mut state.stopped);
        drop(state);
        stopped.into_iter().for_each(Waker::wake);
    }

    /// Sets the clock wrong by so much.
    pub fn set_skew_ms(&self, skew_ms: i64) {
        self.state().skew_ms = skew_ms;
    }

    /// Every I/O takes up to so long.
    pub fn set_slow_ms(&self, slow_ms: usize) {
        self.state().slow_ms = slow_ms;
    }

    /// Whether a write is under way in front of one that is done: a power cut would leave a hole there.
    pub fn has_hole(&self) -> bool {
        let state = self.state();
        state.in_flight.values().any(|io| match io {
            Io::Write { segment, offset, .. } => state.ended.get(segment).is_some_and(|end| offset < end),
            _ => false,
        })
    }

    /// Flips a bit on the drive.
    pub fn rot(&self) {
        let state = &mut *self.state();
        state.drive.rot(&mut state.rng);
    }

    /// Some of what the drive has vanishes, while no process runs; says how much.
    pub fn vanish(&self, what: Vanish, percent: u64) -> usize {
        let state = &mut *self.state();
        assert!(!state.is_up, "a process has it in its index");
        match what {
            Vanish::Headers => state.drive.flip_headers(percent, &mut state.rng),
            Vanish::Records => state.drive.zero_records(percent, &mut state.rng),
            Vanish::Segments => state.drive.lose_segments(percent, &mut state.rng),
        }
    }

    /// The drive takes no write any more.
    pub fn fail_drive(&self) {
        self.state().drive.faults.is_failing = true;
    }

    /// Whether it takes none.
    pub fn is_failing(&self) -> bool {
        self.state().drive.faults.is_failing
    }

    /// Somebody puts an empty drive in the place of the one that is there, while no process runs.
    pub fn replace_drive(&self) {
        let state = &mut *self.state();
        assert!(!state.is_up, "a process would still see the old one");
        state.drive = SimDrive::new(state.segments, SEGMENT_BYTES, Faults::default());
        state.rng.fill(&mut state.ids.0);
        state.rng.fill(&mut state.ids.1);
    }

    /// The file system of the drive has no room for another segment, or has it again.
    pub fn set_full(&self, is_full: bool) {
        self.state().drive.faults.no_space_percent = if is_full { 100 } else { 0 };
    }
}

impl Process {
    fn alive(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.machine.state();
        (state.is_up && state.epoch == self.epoch).then_some(state)
    }

    /// Whether it is this process that runs.
    pub fn is_alive(&self) -> bool {
        self.alive().is_some()
    }

    /// The cluster that the drive belongs to from its first use on.
    pub fn set_cluster(&self, cluster: Option<ClusterId>) {
        let mut state = self.machine.state();
        state.cluster = state.cluster.or(cluster);
    }

    fn finish(&self, number: u64, ending: Ending) {
        let Some(mut state) = self.alive() else { return };
        let Some(io) = state.in_flight.remove(&number) else { return };
        let outcome = state.execute(io);
        drop(state);
        ending.give(outcome);
    }
}

impl State {
    fn execute(&mut self, io: Io) -> Outcome {
        if let Io::Write { segment, offset, data, .. } = &io {
            let end = offset + data.len() as u32;
            match offset {
                // The header of another life of the segment.
                0 => drop(self.ended.remove(segment)),
                // What ends with the segment is its footer and the other header.
                _ if end < SEGMENT_BYTES => drop(self.ended.insert(*segment, end)),
                _ => {}
            }
        }
        self.drive.execute(OpId(0), io, &mut self.rng).1
    }
}

impl World for Process {
    fn now_ms(&self) -> u64 {
        let now_ms = EPOCH_MS + self.machine.trace.now_ms();
        now_ms.saturating_add_signed(self.machine.state().skew_ms)
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.machine.state().rng.fill(bytes);
    }

    fn poll_alive(&self, cx: &mut Context<'_>) -> Poll<bool> {
        match self.alive() {
            None => Poll::Ready(false),
            Some(mut state) if state.is_stopped => {
                state.stopped.push(cx.waker().clone());
                Poll::Pending
            }
            Some(_) => Poll::Ready(true),
        }
    }
}

/// The drive as a process sees it.
pub struct ProcessDrive(pub Arc<Process>);

impl Media for ProcessDrive {
    fn exists(&self, segment: u32) -> stoker_ring::Result<bool> {
        self.0.machine.state().drive.exists(segment)
    }

    fn read(&self, segment: u32, offset: u32, buf: &mut Buf) -> io::Result<()> {
        self.0.machine.state().drive.read(segment, offset, buf)?;
        // Only a scan reads so much at once.
        if self.0.machine.mutation == Some(Mutation::StopAtHole) && buf.len() > SEGMENT_BYTES as usize / 2 {
            let blocks =
                buf.as_mut_slice().chunks_mut(BLOCK).skip_while(|block| block.iter().any(|b| *b != 0));
            blocks.for_each(|block| block.fill(0));
        }
        Ok(())
    }

    fn leased(&self, segment: u32) -> bool {
        self.0.machine.state().drive.leased(segment)
    }

    fn foreign_is_error(&self) -> bool {
        true
    }
}

impl TwinDrive for ProcessDrive {
    fn superblock(&self) -> Superblock {
        let state = self.0.machine.state();
        Superblock {
            cluster: state.cluster.unwrap_or(ClusterId::ZERO),
            node: NodeId::ZERO,
            drive: DriveId(state.ids.0),
            ring: RingId(state.ids.1),
            incarnation: 1,
            boot: self.0.epoch,
            update: self.0.epoch,
            segment_size: u64::from(SEGMENT_BYTES),
            segment_count: state.segments,
            layout: Layout::Directory,
            created_unix_ms: EPOCH_MS,
            data_offset: 0,
            label: String::new(),
            key: KeyId(0),
            format_version: FORMAT_VERSION,
            reader_version_min: 1,
            features_incompat: 0,
            features_ro_compat: 0,
            features_compat: 0,
        }
    }

    fn start(&self, mut io: Io, ending: Ending) {
        let process = &self.0;
        if process.machine.mutation == Some(Mutation::SkipFlush)
            && let Io::Write { durable, .. } = &mut io
        {
            *durable = false;
        }
        let Some(mut state) = process.alive() else { return };
        let slow_ms = state.slow_ms;
        // Most I/Os are over within a millisecond, which is what the clock can tell.
        let quick_percent = if slow_ms == 0 { 70 } else { 50 };
        let delay_ms = if state.rng.percent(quick_percent) { 0 } else { state.rng.below(3 + slow_ms) };
        if !matches!(io, Io::Read { .. }) {
            process.machine.trace.note(format_args!("m{} {}", process.machine.at, words(&io)));
        }
        if delay_ms == 0 {
            let outcome = state.execute(io);
            drop(state);
            ending.give(outcome);
            return;
        }
        let number = state.next_io;
        state.next_io += 1;
        state.in_flight.insert(number, io);
        drop(state);
        let process = process.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(delay_ms as u64)).await;
            process.finish(number, ending);
        });
    }

    fn random_u64(&self) -> u64 {
        self.0.machine.state().rng.number()
    }

    fn now_unix_ms(&self) -> u64 {
        self.0.now_ms()
    }
}

fn words(io: &Io) -> String {
    match io {
        Io::Write { segment, offset, data, .. } => format!("write {segment}+{offset} {}", data.len()),
        Io::Read { segment, offset, buf } => format!("read {segment}+{offset} {}", buf.len()),
        Io::Flush { segment } => format!("flush {segment}"),
        Io::Prepare { segment, .. } => format!("prepare {segment}"),
        Io::Scan { segment } => format!("scan {segment}"),
        Io::MarkLeased { segment } => format!("lease {segment}"),
    }
}
