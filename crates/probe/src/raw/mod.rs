//! The drive without the ring: one file, one thread, io_uring with everything that makes it fast.
//!
//! This is what the ring is compared with, so nothing of the ring is used here: registered buffers, a registered file,
//! SINGLE_ISSUER and DEFER_TASKRUN, submissions in batches, RWF_DSYNC on each write.

mod arena;
mod streams;
mod tcp;

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use io_uring::types::Fixed;
use io_uring::{IoUring, opcode, squeue};

use super::measure::{Meter, Round};
use super::workload::{Job, Limit, Mix, Order};
use crate::clock;
use crate::progress::Progress;
use crate::rng::Rng;
use arena::Arena;
pub use streams::Streams;
pub use tcp::TcpLeg;

/// Bytes that one step of the progress bar stands for while a file is written for the first time.
const STEP: u64 = 128 << 20;

/// A file of a fixed size, every extent of it written.
pub struct RawFile {
    file: File,
    size: u64,
    direct: bool,
}

impl RawFile {
    /// Makes the file and writes all of it once.
    pub fn make(path: &Path, size: u64, progress: &Progress) -> io::Result<RawFile> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        arena::allocate(&file, size)?;
        let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
        let (file, direct) = match direct {
            Ok(file) => (file, true),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (file, false),
            Err(e) => return Err(e),
        };
        let raw = RawFile { file, size, direct };
        let job = Job { len: 4 << 20, depth: 8, mix: Mix::Writes, order: Order::Sequential };
        let mut queue = raw.queue(&job)?;
        queue.write_flags = 0;
        let mut done = 0;
        while done < size {
            let round = queue.round(Limit::Bytes(STEP.min(size - done)))?;
            progress.add(round.bytes);
            done += round.bytes;
        }
        drop(queue);
        raw.file.sync_all()?;
        Ok(raw)
    }

    /// What is there already, to be read and never written: a drive that is all ring.
    pub fn of_others(path: &Path) -> io::Result<RawFile> {
        let mut file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let size = file.seek(io::SeekFrom::End(0))?;
        Ok(RawFile { file, size, direct: true })
    }

    /// How long it is.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// A queue for one kind of load.
    pub fn queue(&self, job: &Job) -> io::Result<RawQueue<'_>> {
        let arena = Arena::new(job.len * job.depth)?;
        let ring = build(job.depth as u32)?;
        // SAFETY: the arena is owned by the queue, which outlives every operation (see its Drop).
        let is_registered = unsafe { ring.submitter().register_buffers(&[arena.iovec()]) }.is_ok();
        ring.submitter().register_files(&[self.file.as_raw_fd()])?;
        Ok(RawQueue {
            ring,
            arena,
            is_registered,
            write_flags: libc::RWF_DSYNC,
            file: self,
            job: *job,
            started: vec![clock::now(); job.depth],
            in_flight: 0,
            position: 0,
            number: 0,
            rng: Rng::new(0x5eed),
        })
    }
}

fn build(depth: u32) -> io::Result<IoUring> {
    let entries = depth.next_power_of_two();
    let fast = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
    // Kernels before 6.1 know neither flag.
    fast.or_else(|_| IoUring::new(entries))
}

/// An io_uring on a [`RawFile`], with memory for one operation per slot.
pub struct RawQueue<'a> {
    ring: IoUring,
    arena: Arena,
    is_registered: bool,
    write_flags: i32,
    file: &'a RawFile,
    job: Job,
    started: Vec<Instant>,
    in_flight: usize,
    position: u64,
    number: u64,
    rng: Rng,
}

impl RawQueue<'_> {
    /// Whether the kernel took the buffers; without, it pins memory for every operation.
    pub fn is_registered(&self) -> bool {
        self.is_registered
    }

    /// Keeps the queue full until the limit, then waits for the last operation.
    pub fn round(&mut self, limit: Limit) -> io::Result<Round> {
        let mut idle: Vec<usize> = (0..self.job.depth).collect();
        let mut meter = Meter::start();
        let mut issued = 0;
        loop {
            let now = clock::now();
            while limit.is_open(meter.elapsed_s(now), issued) {
                let Some(slot) = idle.pop() else { break };
                self.started[slot] = now;
                self.push(slot)?;
                issued += self.job.len as u64;
            }
            if self.in_flight == 0 {
                return Ok(meter.finish());
            }
            self.ring.submit_and_wait(1)?;
            let now = clock::now();
            for completion in self.ring.completion() {
                self.in_flight -= 1;
                let slot = completion.user_data() as usize;
                match completion.result() {
                    done if done == self.job.len as i32 => meter.note(self.job.len, now - self.started[slot]),
                    done if done < 0 => return Err(io::Error::from_raw_os_error(-done)),
                    done => return Err(io::Error::other(format!("only {done} of {} bytes", self.job.len))),
                }
                idle.push(slot);
            }
        }
    }

    fn push(&mut self, slot: usize) -> io::Result<()> {
        let is_write = match self.job.mix {
            Mix::Writes => true,
            Mix::Reads => false,
            Mix::Half => self.number.is_multiple_of(2),
        };
        let offset = self.offset(is_write);
        self.number += 1;
        if is_write {
            let stamp = [self.number.to_le_bytes(), offset.to_le_bytes()].concat();
            self.arena.slot_mut(slot, self.job.len)[..16].copy_from_slice(&stamp);
        }
        let (memory, len) = (self.arena.slot(slot, self.job.len), self.job.len as u32);
        let (file, flags) = (Fixed(0), self.write_flags);
        let entry: squeue::Entry = match (is_write, self.is_registered) {
            (true, true) => {
                opcode::WriteFixed::new(file, memory, len, 0).offset(offset).rw_flags(flags).build()
            }
            (true, false) => opcode::Write::new(file, memory, len).offset(offset).rw_flags(flags).build(),
            (false, true) => opcode::ReadFixed::new(file, memory, len, 0).offset(offset).build(),
            (false, false) => opcode::Read::new(file, memory, len).offset(offset).build(),
        };
        // SAFETY: the memory is this slot's part of the arena, which no other operation uses before this one is reaped,
        // and the arena is unmapped only after the last one was (see Drop).
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }.map_err(io::Error::other)?;
        self.in_flight += 1;
        Ok(())
    }

    fn offset(&mut self, is_write: bool) -> u64 {
        let len = self.job.len as u64;
        let places = self.file.size / len;
        let is_random = match self.job.order {
            Order::Sequential => false,
            Order::RandomReads => !is_write,
            Order::Random => true,
        };
        if is_random {
            return self.rng.below(places) * len;
        }
        let place = self.position;
        self.position = (place + 1) % places;
        place * len
    }
}

impl Drop for RawQueue<'_> {
    fn drop(&mut self) {
        // After an error the kernel may still write to the arena: it must not be unmapped before.
        while self.in_flight > 0 && self.ring.submit_and_wait(1).is_ok() {
            self.in_flight -= self.ring.completion().count();
        }
        if self.in_flight > 0 {
            self.arena.leak();
        }
    }
}
