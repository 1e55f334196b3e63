//! The loader: threads that take the pieces of a plan, each with its lane.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cuda::Entered;
use crate::device::Device;
use crate::error::{GpuError, LoadError};
use crate::lane::Lane;
use crate::plan::{Piece, Plan};
use crate::report::{Clock, Counts, Report, add, now};

/// Where bytes come from. Called by several threads, which it may block.
pub trait Source: Sync {
    /// Why bytes cannot be had.
    type Fault: Send;

    /// Puts at least one and at most `len` bytes of a file into `room` and says where in there they are. Bytes that fail their
    /// check are an error, never a result. The room begins at a block, and ends [`crate::SLACK`] behind `len`.
    fn read(
        &self,
        file: usize,
        offset: u64,
        len: usize,
        room: &mut [u8],
    ) -> Result<Range<usize>, Self::Fault>;
}

impl<S: Source> Source for &S {
    type Fault = S::Fault;

    fn read(&self, file: usize, offset: u64, len: usize, room: &mut [u8]) -> Result<Range<usize>, S::Fault> {
        (**self).read(file, offset, len, room)
    }
}

/// How much is done at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Threads that read; so many reads are under way.
    pub threads: usize,
    /// Bytes of a read.
    pub piece: usize,
    /// Buffers of each thread.
    pub buffers: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { threads: 16, piece: 4 << 20, buffers: 2 }
    }
}

/// Most threads, and most bytes of a piece: what is pinned is both multiplied.
const THREADS_MAX: usize = 64;
const PIECE_MAX: usize = 16 << 20;
const BUFFERS_MAX: usize = 8;

/// Fills memory of one device. Its buffers stay for the next load.
#[derive(Debug)]
pub struct Loader {
    device: Device,
    settings: Settings,
    idle: Mutex<Vec<Lane>>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Lane")
    }
}

impl Loader {
    /// A loader; nothing is allocated before the first load.
    pub fn new(device: Device, settings: Settings) -> Loader {
        let settings = Settings {
            threads: settings.threads.clamp(1, THREADS_MAX),
            piece: settings.piece.clamp(stoker_format::BLOCK, PIECE_MAX),
            buffers: settings.buffers.clamp(1, BUFFERS_MAX),
        };
        Loader { device, settings, idle: Mutex::default() }
    }

    /// What it fills.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it settled for.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Reads all of a plan and has it on the device when it returns. After an error nothing is under way any more, and what the
    /// memory holds is undefined.
    ///
    /// # Safety
    /// Every segment's `to` is memory of the device with at least `len` bytes, no two overlap, and nobody else reads or writes
    /// them during the call.
    pub unsafe fn load<S: Source>(
        &self,
        source: &S,
        plan: &Plan,
        cancel: &AtomicBool,
    ) -> Result<Report, LoadError<S::Fault>> {
        let begun = now();
        let counts = Counts::default();
        let threads = self.settings.threads.min(plan.pieces.len());
        let work = Work {
            loader: self,
            source,
            plan,
            cancel,
            counts: &counts,
            next: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            fault: Mutex::new(None),
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let thread = std::thread::Builder::new().name("stoker-gpu".to_owned());
                // Fewer threads take longer; none at all is what this one is for.
                if thread.spawn_scoped(scope, || work.run()).is_err() {
                    break;
                }
            }
        });
        if work.next.load(Ordering::Relaxed) < plan.pieces.len() && work.is_well() {
            work.run();
        }
        let begun_threads = work.begun.load(Ordering::Relaxed);
        match work.fault.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(fault) => Err(fault),
            None => Ok(counts.report(begun_threads, begun)),
        }
    }

    fn enter(&self) -> Result<Option<Entered>, GpuError> {
        match &self.device {
            Device::Host => Ok(None),
            Device::Cuda(cuda) => cuda.enter().map(Some),
        }
    }

    fn lane(&self) -> Result<Lane, GpuError> {
        let idle = self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        idle.map_or_else(|| Lane::new(&self.device, self.settings.piece, self.settings.buffers), Ok)
    }

    fn give_back(&self, lane: Lane) {
        let mut idle = self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if idle.len() < self.settings.threads {
            idle.push(lane);
        }
    }
}

/// One load, seen by its threads.
struct Work<'a, S: Source> {
    loader: &'a Loader,
    source: &'a S,
    plan: &'a Plan,
    cancel: &'a AtomicBool,
    counts: &'a Counts,
    next: AtomicUsize,
    /// Threads that have a lane.
    begun: AtomicUsize,
    /// The first error; it ends the others.
    fault: Mutex<Option<LoadError<S::Fault>>>,
}

impl<S: Source> Work<'_, S> {
    fn is_well(&self) -> bool {
        self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_none()
    }

    fn run(&self) {
        if let Err(fault) = self.pieces() {
            let mut first = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            first.get_or_insert(fault);
        }
    }

    fn pieces(&self) -> Result<(), LoadError<S::Fault>> {
        let _entered = self.loader.enter()?;
        let mut lane = match self.loader.lane() {
            // With less pinned memory fewer threads do the same.
            Err(GpuError::OutOfMemory { .. }) if self.begun.load(Ordering::Relaxed) > 0 => return Ok(()),
            lane => lane?,
        };
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut clock = Clock(self.counts);
        while let Some(piece) = self.plan.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if !self.is_well() {
                return Ok(());
            }
            self.piece(piece, &mut lane, &mut clock)?;
        }
        lane.finish(&mut clock)?;
        self.loader.give_back(lane);
        Ok(())
    }

    fn piece(
        &self,
        piece: &Piece,
        lane: &mut Lane,
        clock: &mut Clock<'_>,
    ) -> Result<(), LoadError<S::Fault>> {
        let (mut at, end) = (piece.offset, piece.offset + piece.len as u64);
        let mut first = piece.first;
        while at < end {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(LoadError::Cancelled);
            }
            let wanted = (end - at) as usize;
            let room = lane.room(wanted, clock)?;
            let len = room.len();
            let read = clock.reads(|| self.source.read(piece.file, at, wanted, room));
            let found = read.map_err(LoadError::Source)?;
            assert!(
                found.start < found.end && found.end <= len && found.len() <= wanted,
                "a source gave {found:?} of a room of {len} for {wanted}"
            );
            add(&self.counts.bytes_read, found.len() as u64);
            let read_end = at + found.len() as u64;
            while let Some(segment) = self.plan.segments.get(first)
                && segment.file == piece.file
                && segment.offset < read_end
            {
                let start = segment.offset.max(at);
                let stop = segment.end().min(read_end);
                if start < stop {
                    let begin = found.start + (start - at) as usize;
                    let part = begin..begin + (stop - start) as usize;
                    // SAFETY: inside of the segment, whose memory the caller of `load` promised; no two overlap.
                    unsafe { lane.copy(segment.to + (start - segment.offset), part)? };
                    add(&self.counts.copies, 1);
                    add(&self.counts.bytes, stop - start);
                }
                if segment.end() > read_end {
                    break;
                }
                first += 1;
            }
            lane.keep(found.end);
            at = read_end;
        }
        Ok(())
    }
}
