//! A ring on a simulated drive: the same engine, driver and recovery, with everything that the operating system gives
//! (I/O, wall clock, random numbers) from whoever simulates it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use stoker_format::{RecordPlace, Superblock};

use crate::drive::{Drive, DriveKind};
use crate::engine::{Io, Outcome};
use crate::index::Index;
use crate::io::{EventWake, Executor, Job, Tag};
use crate::recovery::{Media, Report, Shape, scan};
use crate::stats::Wake;

/// A drive that exists in a simulation only.
pub trait TwinDrive: Media + Send + Sync + 'static {
    /// Identity and geometry; its boot is another one at every start.
    fn superblock(&self) -> Superblock;
    /// Begins an I/O, which ends when its ending is given an outcome. All kinds come but `Scan`.
    fn start(&self, io: Io, ending: Ending);
    /// A random number.
    fn random_u64(&self) -> u64;
    /// Milliseconds since the epoch, by the clock of the machine that the drive sits in.
    fn now_unix_ms(&self) -> u64;
}

type Finished = Arc<Mutex<VecDeque<(Tag, Outcome)>>>;

/// Where the outcome of an I/O goes. Dropped without one, the I/O never ends, as after a crash.
pub struct Ending {
    tag: Tag,
    finished: Finished,
    wake: Arc<EventWake>,
}

impl Ending {
    /// The I/O is over.
    pub fn give(self, outcome: Outcome) {
        self.finished.lock().unwrap().push_back((self.tag, outcome));
        self.wake.wake();
    }
}

/// What a ring lies on.
pub(crate) enum Place {
    Drive(Arc<Drive>),
    Twin(Box<Superblock>),
}

impl Place {
    pub fn superblock(&self) -> &Superblock {
        match self {
            Place::Drive(drive) => drive.superblock(),
            Place::Twin(superblock) => superblock,
        }
    }

    pub fn gives_leases(&self) -> bool {
        matches!(self, Place::Drive(drive) if drive.kind() == DriveKind::Directory)
    }

    pub fn lease_file(&self, segment: u32) -> io::Result<OwnedFd> {
        match self {
            Place::Drive(drive) => drive.lease_file(segment),
            Place::Twin(_) => Err(io::Error::other("a simulated drive gives no leases")),
        }
    }

    pub fn is_direct(&self) -> bool {
        matches!(self, Place::Drive(drive) if drive.is_direct())
    }
}

/// Hands the driver's jobs to a simulated drive.
pub(crate) struct TwinExecutor {
    drive: Arc<dyn TwinDrive>,
    index: Arc<Index>,
    wake: Arc<EventWake>,
    finished: Finished,
    in_flight: usize,
}

impl TwinExecutor {
    pub fn new(drive: Arc<dyn TwinDrive>, index: Arc<Index>, wake: Arc<EventWake>) -> TwinExecutor {
        TwinExecutor { drive, index, wake, finished: Finished::default(), in_flight: 0 }
    }

    fn scan(&self, segment: u32) -> Outcome {
        let (generation, nonce) = self.index.segment(segment).life();
        let shape = Shape::of(&self.drive.superblock());
        let place =
            RecordPlace { ring: shape.ring, generation, nonce, offset: 0, segment_size: shape.segment_size };
        match scan(self.drive.as_ref(), segment, &place, &mut Report::default()) {
            Ok(scan) => Outcome::Scanned(scan.lines),
            Err(fault) => Outcome::Failed(fault.to_string()),
        }
    }
}

impl Executor for TwinExecutor {
    fn name(&self) -> String {
        "simulated".into()
    }

    fn submit(&mut self, job: Job) {
        self.in_flight += 1;
        let ending = Ending { tag: job.tag, finished: self.finished.clone(), wake: self.wake.clone() };
        match job.io {
            Io::Scan { segment } => ending.give(self.scan(segment)),
            io => self.drive.start(io, ending),
        }
    }

    fn kick(&mut self) {}

    fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>, max: usize) {
        let mut finished = self.finished.lock().unwrap();
        let count = finished.len().min(max);
        self.in_flight -= count;
        out.extend(finished.drain(..count));
    }

    fn ready(&mut self) -> bool {
        !self.finished.lock().unwrap().is_empty()
    }

    fn completion_event(&mut self) -> io::Result<Option<OwnedFd>> {
        // The wake is enough: whoever gives an outcome wakes the task.
        Ok(None)
    }

    fn wait(&mut self, _timeout_ms: u32) {
        unreachable!("a simulated drive is driven by a task, which never blocks")
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn segment_changed(&mut self, _segment: u32) {}
}
