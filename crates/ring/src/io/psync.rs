//! The fallback where io_uring is not allowed: `preadv2` and `pwritev2` on a few threads.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use super::{EventWake, Executor, Job, Tag};
use crate::buffer::blocks_up;
use crate::drive::Drive;
use crate::engine::{Io, Outcome, WriteData};
use crate::stats::Wake;
use crate::sys::{self, read_exact};

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    finished: Vec<(Tag, Outcome)>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    drive: Arc<Drive>,
    wake: Arc<EventWake>,
}

/// Threads that do positional I/O.
pub(crate) struct Psync {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
}

impl Psync {
    pub fn new(drive: Arc<Drive>, wake: Arc<EventWake>, threads: usize) -> io::Result<Psync> {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new(), drive, wake });
        let spawn = |n| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("stoker-io-{n}")).spawn(move || run(&shared))
        };
        let threads = (0..threads.max(1)).map(spawn).collect::<io::Result<Vec<_>>>()?;
        Ok(Psync { shared, threads, in_flight: 0 })
    }
}

impl Executor for Psync {
    fn name(&self) -> String {
        format!("preadv2/pwritev2 on {} threads", self.threads.len())
    }

    fn submit(&mut self, job: Job) {
        self.in_flight += 1;
        self.shared.queue.lock().unwrap().jobs.push_back(job);
        self.shared.work.notify_one();
    }

    fn kick(&mut self) {}

    fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>, max: usize) {
        let mut queue = self.shared.queue.lock().unwrap();
        let count = queue.finished.len().min(max);
        self.in_flight -= count;
        out.extend(queue.finished.drain(..count));
    }

    fn ready(&mut self) -> bool {
        !self.shared.queue.lock().unwrap().finished.is_empty()
    }

    fn completion_event(&mut self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn wait(&mut self, timeout_ms: u32) {
        if self.shared.queue.lock().unwrap().finished.is_empty() {
            sys::wait_readable(self.shared.wake.fd(), timeout_ms as i32);
        }
        sys::eventfd_clear(self.shared.wake.fd());
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn segment_changed(&mut self, _segment: u32) {}
}

impl Drop for Psync {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    loop {
        let job = {
            let mut queue = shared.queue.lock().unwrap();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.closed {
                    return;
                }
                queue = shared.work.wait(queue).unwrap();
            }
        };
        let outcome = execute(&shared.drive, job.io).unwrap_or_else(|e| Outcome::Failed(e.to_string()));
        shared.queue.lock().unwrap().finished.push((job.tag, outcome));
        shared.wake.wake();
    }
}

fn execute(drive: &Drive, io: Io) -> io::Result<Outcome> {
    let file = |segment| drive.file(segment).ok_or_else(|| io::Error::other("no such segment"));
    match io {
        Io::Write { segment, offset, data, durable } => {
            let (file, start) = file(segment)?;
            write(&file, start + u64::from(offset), &data, durable)?;
            Ok(Outcome::Done(data))
        }
        Io::Read { segment, offset, mut buf } => {
            let (file, start) = file(segment)?;
            read_exact(&file, start + u64::from(offset), &mut buf)?;
            Ok(Outcome::Read(buf))
        }
        Io::Flush { segment } => {
            file(segment)?.0.sync_data()?;
            Ok(Outcome::Done(WriteData::default()))
        }
        other => unreachable!("{other:?} goes to the background thread"),
    }
}

/// The memory of a write as the kernel wants it, less what is written already.
pub(super) fn parts_of(data: &WriteData, done: usize) -> ([libc::iovec; 2], usize) {
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
    let (mut count, mut skip) = (0, done);
    let head = data.head.as_ref().map(|b| (b.io_ptr(0), blocks_up(b.len())));
    let body = data.body.as_ref().map(|b| (b.io_ptr(data.body_head), data.body_head + blocks_up(b.len())));
    for (ptr, len) in head.into_iter().chain(body) {
        let cut = skip.min(len);
        skip -= cut;
        if cut < len {
            parts[count] = libc::iovec { iov_base: ptr.wrapping_add(cut).cast(), iov_len: len - cut };
            count += 1;
        }
    }
    (parts, count)
}

fn write(file: &std::fs::File, offset: u64, data: &WriteData, durable: bool) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        let (parts, count) = parts_of(data, done);
        match sys::write_at(file.as_raw_fd(), &parts[..count], offset + done as u64, durable)? {
            0 => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            n => done += n,
        }
    }
    Ok(())
}
