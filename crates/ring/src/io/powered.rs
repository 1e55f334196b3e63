//! An executor on a drive that can lose power: only what was made durable is sure to be there afterwards. (D49)
//!
//! For tests on real files. Before a block is written its old bytes are kept, until the write is durable: by its own
//! completion if it is a durable one, by a flush otherwise. When the power goes, every block that is not durable is put
//! back to its old bytes or left as it is, by a throw of the dice, and nothing is done or acknowledged any more.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use stoker_format::BLOCK;

use super::{Executor, Job, Tag};
use crate::buffer::Buf;
use crate::drive::Drive;
use crate::engine::{Io, OpId, Outcome};
use crate::sys::{read_exact, write_all};

/// The power of some drives: it goes for all of them at the same moment.
#[derive(Default)]
pub struct Power {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Default)]
struct State {
    is_off: bool,
    /// Writes that the kernel has.
    in_flight: usize,
    /// Old bytes of blocks that are not durable, by file and place, with the write that they are about.
    old: HashMap<(usize, u64), Kept>,
    /// Blocks that were put back.
    undone: u64,
}

/// The old bytes of a block.
struct Kept {
    file: Arc<File>,
    bytes: Buf,
    /// The write that is not durable.
    by: OpId,
    /// The kernel has done it.
    is_done: bool,
}

impl fmt::Debug for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Power")
    }
}

fn name_of(file: &Arc<File>) -> usize {
    Arc::as_ptr(file) as usize
}

impl Power {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power. `keeps` is asked for each block that is not durable whether the drive got it down in time.
    /// Gives how many it did not.
    pub fn cut(&self, mut keeps: impl FnMut() -> bool) -> io::Result<u64> {
        let mut state = self.lock();
        state.is_off = true;
        // What the kernel has cannot be called back; it lands first.
        while state.in_flight > 0 {
            state = self.landed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for ((_, offset), kept) in std::mem::take(&mut state.old) {
            if !keeps() {
                write_all(&kept.file, offset, &kept.bytes)?;
                state.undone += 1;
            }
        }
        Ok(state.undone)
    }

    /// Whether it is gone.
    pub fn is_off(&self) -> bool {
        self.lock().is_off
    }
}

/// What is done for the engine.
enum Doing {
    Write { file: usize, durable: bool },
    Flush { before: Vec<(usize, u64)> },
}

/// The executor.
pub(crate) struct Powered {
    inner: Box<dyn Executor>,
    drive: Arc<Drive>,
    power: Arc<Power>,
    doing: HashMap<OpId, Doing>,
    /// Answers to what came after the power went.
    refused: Vec<(Tag, Outcome)>,
}

fn dark() -> Outcome {
    Outcome::Failed("the power is off".into())
}

impl Powered {
    pub fn new(inner: Box<dyn Executor>, drive: Arc<Drive>, power: Arc<Power>) -> Powered {
        Powered { inner, drive, power, doing: HashMap::new(), refused: Vec::new() }
    }

    /// Notes what is about to happen; false if the power is off.
    fn note(&mut self, op: OpId, io: &Io) -> bool {
        let mut state = self.power.lock();
        if state.is_off {
            return false;
        }
        match io {
            Io::Write { segment, offset, data, durable } => {
                let Some((file, start)) = self.drive.file(*segment) else { return true };
                let first = start + u64::from(*offset);
                for at in (first..first + data.len() as u64).step_by(BLOCK) {
                    let key = (name_of(&file), at);
                    // The oldest bytes are those that are durable.
                    if let Some(kept) = state.old.get_mut(&key) {
                        (kept.by, kept.is_done) = (op, false);
                        continue;
                    }
                    let mut bytes = Buf::heap(BLOCK);
                    bytes.set_len(BLOCK);
                    if read_exact(&file, at, &mut bytes).is_err() {
                        return false;
                    }
                    state.old.insert(key, Kept { file: file.clone(), bytes, by: op, is_done: false });
                }
                state.in_flight += 1;
                self.doing.insert(op, Doing::Write { file: name_of(&file), durable: *durable });
            }
            Io::Flush { segment } => {
                let Some((file, _)) = self.drive.file(*segment) else { return true };
                let name = name_of(&file);
                let is_here = |(key, kept): &(&(usize, u64), &Kept)| key.0 == name && kept.is_done;
                let before = state.old.iter().filter(is_here).map(|(key, _)| *key).collect();
                self.doing.insert(op, Doing::Flush { before });
            }
            _ => {}
        }
        true
    }

    /// Follows what happened; what ended in the dark was never acknowledged.
    fn follow(&mut self, op: OpId, outcome: Outcome) -> Outcome {
        let Some(doing) = self.doing.remove(&op) else { return outcome };
        let mut state = self.power.lock();
        let failed = matches!(outcome, Outcome::Failed(_));
        let is_off = state.is_off;
        match doing {
            Doing::Write { file, durable } => {
                state.in_flight -= 1;
                self.power.landed.notify_all();
                // Numbers of writes are those of one ring.
                let is_mine = |key: &(usize, u64), kept: &Kept| key.0 == file && kept.by == op;
                if durable && !failed && !is_off {
                    state.old.retain(|key, kept| !is_mine(key, kept));
                } else {
                    let mine = state.old.iter_mut().filter(|(key, kept)| is_mine(key, kept));
                    mine.for_each(|(_, kept)| kept.is_done = true);
                }
            }
            Doing::Flush { before } => {
                if !failed && !is_off {
                    for key in &before {
                        // Written again since: that write is not covered.
                        if state.old.get(key).is_some_and(|kept| kept.is_done) {
                            state.old.remove(key);
                        }
                    }
                }
            }
        }
        if is_off { dark() } else { outcome }
    }
}

impl Executor for Powered {
    fn name(&self) -> String {
        format!("{}, on a drive that can lose power", self.inner.name())
    }

    fn submit(&mut self, job: Job) {
        let goes = match &job.tag {
            Tag::Engine(op) => self.note(*op, &job.io),
            Tag::Reader(_) => !self.power.is_off(),
        };
        match goes {
            true => self.inner.submit(job),
            false => self.refused.push((job.tag, dark())),
        }
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>, max: usize) {
        let mut done = Vec::new();
        self.inner.reap(&mut done, max);
        for (tag, outcome) in done {
            let outcome = match &tag {
                Tag::Engine(op) => self.follow(*op, outcome),
                Tag::Reader(_) => outcome,
            };
            out.push((tag, outcome));
        }
        out.append(&mut self.refused);
    }

    fn ready(&mut self) -> bool {
        !self.refused.is_empty() || self.inner.ready()
    }

    fn completion_event(&mut self) -> io::Result<Option<OwnedFd>> {
        self.inner.completion_event()
    }

    fn wait(&mut self, timeout_ms: u32) {
        if self.refused.is_empty() {
            self.inner.wait(timeout_ms);
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }

    fn segment_changed(&mut self, segment: u32) {
        if let Some((file, _)) = self.drive.file(segment) {
            // Made anew, and durable: what was there before is nobody's business.
            let name = name_of(&file);
            self.power.lock().old.retain(|key, _| key.0 != name);
        }
        self.inner.segment_changed(segment);
    }
}
