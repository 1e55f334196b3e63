//! A thread for what takes long and must not hold up the driver: making segments, scanning them, marking leases.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use stoker_format::RecordPlace;

use super::{EventWake, Tag};
use crate::drive::Drive;
use crate::engine::{Io, Outcome, WriteData};
use crate::index::Index;
use crate::recovery::{Report, scan};
use crate::stats::Wake;

type Finished = Arc<Mutex<Vec<(Tag, Outcome, Option<u32>)>>>;

/// Runs slow commands one after the other.
pub(crate) struct Background {
    jobs: Option<Sender<(Tag, Io)>>,
    finished: Finished,
    thread: Option<JoinHandle<()>>,
    pending: usize,
}

impl Background {
    pub fn new(drive: Arc<Drive>, index: Arc<Index>, wake: Arc<EventWake>) -> std::io::Result<Background> {
        let (jobs, inbox) = channel();
        let finished = Finished::default();
        let out = finished.clone();
        let thread = std::thread::Builder::new()
            .name("stoker-slow".into())
            .spawn(move || run(&drive, &index, &wake, &inbox, &out))?;
        Ok(Background { jobs: Some(jobs), finished, thread: Some(thread), pending: 0 })
    }

    /// No thread: every command goes to the executor.
    pub fn none() -> Background {
        Background { jobs: None, finished: Finished::default(), thread: None, pending: 0 }
    }

    /// Takes a command if it is of the slow kind; gives it back otherwise.
    pub fn take(&mut self, tag: Tag, io: Io) -> Option<(Tag, Io)> {
        if let Some(jobs) = &self.jobs
            && matches!(io, Io::Prepare { .. } | Io::Scan { .. } | Io::MarkLeased { .. })
        {
            self.pending += 1;
            jobs.send((tag, io)).expect("the thread lives until dropped");
            return None;
        }
        Some((tag, io))
    }

    /// Collects what has finished; segments whose file changed come with it.
    pub fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>, changed: &mut Vec<u32>) {
        if self.pending == 0 {
            return;
        }
        for (tag, outcome, segment) in self.finished.lock().unwrap().drain(..) {
            self.pending -= 1;
            changed.extend(segment);
            out.push((tag, outcome));
        }
    }

    /// True if something waits to be collected.
    pub fn has_finished(&self) -> bool {
        self.pending > 0 && !self.finished.lock().unwrap().is_empty()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(drive: &Drive, index: &Index, wake: &EventWake, inbox: &Receiver<(Tag, Io)>, out: &Finished) {
    while let Ok((tag, io)) = inbox.recv() {
        let mut changed = None;
        let outcome = match io {
            Io::Prepare { segment, header, replace } => {
                changed = Some(segment);
                drive.prepare(segment, &header, replace).map(|()| Outcome::Done(WriteData::default()))
            }
            Io::MarkLeased { segment } => {
                drive.mark_leased(segment).map(|()| Outcome::Done(WriteData::default()))
            }
            Io::Scan { segment } => {
                let (generation, nonce) = index.segment(segment).life();
                let shape = drive.shape();
                let place = RecordPlace {
                    ring: shape.ring,
                    generation,
                    nonce,
                    offset: 0,
                    segment_size: shape.segment_size,
                };
                scan(drive, segment, &place, &mut Report::default()).map(|scan| Outcome::Scanned(scan.lines))
            }
            other => unreachable!("{other:?} is not slow"),
        };
        let outcome = outcome.unwrap_or_else(|e| Outcome::Failed(e.to_string()));
        out.lock().unwrap().push((tag, outcome, changed));
        wake.wake();
    }
}
