//! io_uring: registered files, registered buffers, batched submission, one ring per driver thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::psync::parts_of;
use super::{EventWake, Executor, Job, Tag};
use crate::buffer::{Buf, Pool};
use crate::drive::Drive;
use crate::engine::{Io, Outcome, WriteData};
use crate::settings::Settings;
use crate::sys;

/// `user_data` of the poll on the wake descriptor.
const WAKE: u64 = u64::MAX;

/// The kernel takes registered buffers of up to this size.
const REGISTERED_MAX: usize = 1 << 30;

struct Slot {
    job: Job,
    offset: u64,
    len: usize,
    done: usize,
    /// Memory list of a write in two parts; the kernel reads it until the completion.
    parts: Option<Box<[libc::iovec; 2]>>,
}

/// One io_uring on one drive.
pub(crate) struct Uring {
    ring: IoUring,
    drive: Arc<Drive>,
    wake: Arc<EventWake>,
    arena: (*mut u8, usize),
    fixed_buffers: bool,
    iopoll: bool,
    slots: Vec<Option<Slot>>,
    idle: Vec<usize>,
    in_flight: usize,
    wake_armed: bool,
    /// The kernel does not take submissions any more.
    broken: Option<io::Error>,
    features: String,
    /// Keeps the registered arena mapped for as long as the ring.
    _pool: Arc<Pool>,
}

// SAFETY: the raw arena pointer is only compared and offset; the memory belongs to `_pool`, which is Send and Sync.
unsafe impl Send for Uring {}

impl Uring {
    /// Sets a ring up; the error says why io_uring cannot be used here.
    pub fn new(
        drive: Arc<Drive>,
        pool: Arc<Pool>,
        wake: Arc<EventWake>,
        settings: &Settings,
    ) -> io::Result<Uring> {
        let ring = build(settings)?;
        let mut uring = Uring {
            arena: pool.region(),
            fixed_buffers: false,
            iopoll: settings.iopoll,
            slots: Vec::new(),
            idle: Vec::new(),
            in_flight: 0,
            wake_armed: false,
            broken: None,
            features: String::new(),
            ring,
            drive,
            wake,
            _pool: pool,
        };
        uring.register()?;
        let mut features = vec!["io_uring"];
        for (on, name) in [
            (uring.fixed_buffers, "registered buffers"),
            (settings.sqpoll, "SQPOLL"),
            (settings.iopoll, "IOPOLL"),
        ] {
            if on {
                features.push(name);
            }
        }
        uring.features = features.join(", ");
        Ok(uring)
    }

    /// Whether completions of this drive can be polled: needs O_DIRECT and a driver with poll queues.
    pub fn can_poll(drive: &Drive) -> io::Result<()> {
        let file = drive.superblock_file()?;
        let mut ring: IoUring = IoUring::builder().setup_iopoll().build(4)?;
        let buf = Buf::heap(stoker_format::BLOCK);
        let entry =
            opcode::Read::new(Fd(file.as_raw_fd()), buf.io_ptr(0), stoker_format::BLOCK as u32).build();
        // SAFETY: buffer and file outlive the wait for the only completion.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            // A polled ring may come back empty-handed.
            ring.submit_and_wait(1)?;
            match ring.completion().next().map(|cqe| cqe.result()) {
                Some(result) if result < 0 => return Err(io::Error::from_raw_os_error(-result)),
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }

    /// Registers the arena (where a low memlock limit refuses it, plain buffers do), the segment files, and the lock: the
    /// kernel lets go of registered files only after the last request, so that after a kill nobody opens the drive
    /// while old writes are still landing. (D12)
    fn register(&mut self) -> io::Result<()> {
        let (base, size) = self.arena;
        let parts: Vec<libc::iovec> = (0..size)
            .step_by(REGISTERED_MAX)
            .map(|at| libc::iovec {
                iov_base: base.wrapping_add(at).cast(),
                iov_len: REGISTERED_MAX.min(size - at),
            })
            .collect();
        // SAFETY: the arena stays mapped while `_pool` lives, which is longer than the ring.
        self.fixed_buffers = unsafe { self.ring.submitter().register_buffers(&parts) }.is_ok();
        let count = self.drive.shape().segment_count;
        self.ring.submitter().register_files_sparse(count + 1)?;
        self.ring.submitter().register_files_update(count, &[self.drive.lock_fd()])?;
        (0..count).for_each(|segment| self.segment_changed(segment));
        Ok(())
    }

    fn fixed_index(&self, ptr: *const u8, len: usize) -> Option<u16> {
        let (base, size) = self.arena;
        let at = ptr.addr().checked_sub(base.addr()).filter(|at| at + len <= size)?;
        let (first, last) = (at / REGISTERED_MAX, (at + len - 1) / REGISTERED_MAX);
        (self.fixed_buffers && first == last).then_some(first as u16)
    }

    /// Builds the entry for what is left of a slot's job.
    fn entry(&mut self, index: usize) -> Result<squeue::Entry, String> {
        let slot = self.slots[index].as_mut().expect("a slot in use");
        let segment = match &slot.job.io {
            Io::Write { segment, .. } | Io::Read { segment, .. } | Io::Flush { segment } => *segment,
            other => unreachable!("{other:?} goes to the background thread"),
        };
        let Some(start) = self.drive.start_of(segment) else { return Err("no such segment".into()) };
        let at = start + slot.offset + slot.done as u64;
        let file = Fixed(segment);
        let wide = self.slots[index].as_ref().expect("in use");
        let entry = match &wide.job.io {
            Io::Flush { .. } => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Io::Read { buf, .. } => {
                let (ptr, len) = (buf.io_ptr(0).wrapping_add(wide.done), (wide.len - wide.done) as u32);
                let fixed = self.fixed_index(ptr, len as usize);
                match fixed {
                    Some(index) => opcode::ReadFixed::new(file, ptr, len, index).offset(at).build(),
                    None => opcode::Read::new(file, ptr, len).offset(at).build(),
                }
            }
            Io::Write { data, durable, .. } => {
                let (parts, count) = parts_of(data, wide.done);
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                if count == 1 {
                    let (ptr, len) = (parts[0].iov_base.cast::<u8>(), parts[0].iov_len);
                    let fixed = self.fixed_index(ptr, len);
                    match (fixed, len as u32) {
                        (Some(index), len) => {
                            opcode::WriteFixed::new(file, ptr, len, index).offset(at).rw_flags(flags).build()
                        }
                        (None, len) => opcode::Write::new(file, ptr, len).offset(at).rw_flags(flags).build(),
                    }
                } else {
                    let slot = self.slots[index].as_mut().expect("in use");
                    let list = slot.parts.insert(Box::new(parts)).as_ptr();
                    opcode::Writev::new(file, list, count as u32).offset(at).rw_flags(flags).build()
                }
            }
            other => unreachable!("{other:?} goes to the background thread"),
        };
        Ok(entry.user_data(index as u64))
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: buffers and iovecs of the entry live in its slot, which stays until its completion is reaped.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            self.submit_now();
            if self.broken.is_some() {
                return;
            }
        }
    }

    fn submit_now(&mut self) {
        if let Err(e) = self.ring.submit()
            && !is_passing(&e)
        {
            self.broken = Some(e);
        }
    }

    /// Ends every job as failed; their memory is not given back, since the kernel may still use it.
    fn fail_all(&mut self, why: &str, out: &mut Vec<(Tag, Outcome)>) {
        for slot in self.slots.drain(..).flatten() {
            let Slot { job, parts, .. } = slot;
            std::mem::forget((job.io, parts));
            out.push((job.tag, Outcome::Failed(format!("io_uring: {why}"))));
        }
        self.idle.clear();
        self.in_flight = 0;
    }

    /// Deferred completions appear only when asked for.
    fn fetch_completions(&mut self) {
        // SAFETY: no pointer is passed.
        let _ = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, GETEVENTS, None) };
    }

    fn arm_wake(&mut self) {
        if self.wake_armed || self.iopoll {
            return;
        }
        let fd = Fd(self.wake.fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE);
        self.push(&entry);
        self.wake_armed = true;
    }

    /// One completion: done, failed, or to be continued.
    fn complete(&mut self, index: usize, result: i32, out: &mut Vec<(Tag, Outcome)>) {
        let slot = self.slots[index].as_mut().expect("completion of a slot in use");
        let again = match result {
            r if r == -libc::EINTR || r == -libc::EAGAIN => true,
            r if r < 0 => false,
            r => {
                slot.done += r as usize;
                // A short count is no error; what is left is asked for again. Nothing at all is.
                r > 0 && slot.done < slot.len
            }
        };
        if again && let Ok(entry) = self.entry(index) {
            return self.push(&entry);
        }
        let slot = self.slots[index].take().expect("seen above");
        self.idle.push(index);
        self.in_flight -= 1;
        let outcome = if result < 0 {
            Outcome::Failed(io::Error::from_raw_os_error(-result).to_string())
        } else if slot.done < slot.len {
            Outcome::Failed(format!("only {} of {} bytes", slot.done, slot.len))
        } else {
            match slot.job.io {
                Io::Read { buf, .. } => Outcome::Read(buf),
                Io::Write { data, .. } => Outcome::Done(data),
                _ => Outcome::Done(WriteData::default()),
            }
        };
        out.push((slot.job.tag, outcome));
    }
}

/// The kernel may still use the memory of what is under way: it is given back only after the last completion.
impl Drop for Uring {
    fn drop(&mut self) {
        let mut rest = Vec::new();
        while self.in_flight > 0 && self.broken.is_none() {
            match self.ring.submit_and_wait(1) {
                Err(e) if !is_passing(&e) => self.broken = Some(e),
                _ => self.reap(&mut rest, usize::MAX),
            }
        }
        // A ring that cannot be asked any more keeps its memory for ever rather than have it used by two.
        self.slots.drain(..).flatten().for_each(std::mem::forget);
    }
}

/// Errors of a submission that go away by themselves.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME))
}

impl Executor for Uring {
    fn name(&self) -> String {
        self.features.clone()
    }

    fn submit(&mut self, job: Job) {
        let (offset, len) = match &job.io {
            Io::Write { offset, data, .. } => (u64::from(*offset), data.len()),
            Io::Read { offset, buf, .. } => (u64::from(*offset), Buf::len(buf)),
            _ => (0, 0),
        };
        let slot = Slot { job, offset, len, done: 0, parts: None };
        let index = match self.idle.pop() {
            Some(index) => index,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[index] = Some(slot);
        self.in_flight += 1;
        match self.entry(index) {
            Ok(entry) => self.push(&entry),
            // Without a file there is nothing to submit; a completion that failed says so in the usual way.
            Err(_) => {
                let entry = opcode::Nop::new().build().user_data(index as u64);
                self.push(&entry);
            }
        }
    }

    fn kick(&mut self) {
        if !self.ring.submission().is_empty() {
            self.submit_now();
        }
    }

    fn reap(&mut self, out: &mut Vec<(Tag, Outcome)>, max: usize) {
        if self.in_flight > 0 && (self.iopoll || self.ring.completion().is_empty()) {
            self.fetch_completions();
        }
        if let Some(e) = &self.broken {
            let why = e.to_string();
            return self.fail_all(&why, out);
        }
        while out.len() < max {
            let Some(cqe) = self.ring.completion().next() else { return };
            if cqe.user_data() == WAKE {
                sys::eventfd_clear(self.wake.fd());
                self.wake_armed = false;
            } else {
                self.complete(cqe.user_data() as usize, cqe.result(), out);
            }
        }
    }

    fn ready(&mut self) -> bool {
        // The flag says that deferred completions wait to be fetched; looking at it costs no system call.
        !self.ring.completion().is_empty() || self.ring.submission().taskrun()
    }

    fn completion_event(&mut self) -> io::Result<Option<OwnedFd>> {
        let event = sys::eventfd()?;
        self.ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(Some(event))
    }

    fn wait(&mut self, timeout_ms: u32) {
        if self.iopoll {
            // A polled ring cannot wait for a wake; with work under way it polls, without it waits outside.
            if self.in_flight == 0 {
                sys::wait_readable(self.wake.fd(), timeout_ms as i32);
                sys::eventfd_clear(self.wake.fd());
            }
            return;
        }
        self.arm_wake();
        let time = Timespec::new().sec(u64::from(timeout_ms / 1000)).nsec(timeout_ms % 1000 * 1_000_000);
        let args = SubmitArgs::new().timespec(&time);
        let _ = self.ring.submitter().submit_with_args(1, &args);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn segment_changed(&mut self, segment: u32) {
        if let Some((file, _)) = self.drive.file(segment) {
            let _ = self.ring.submitter().register_files_update(segment, &[file.as_raw_fd()]);
        }
    }
}

/// IORING_ENTER_GETEVENTS.
const GETEVENTS: u32 = 1;

/// Sets up an io_uring as a ring with these settings would, and gives it back: whether the machine lets us.
pub fn uring_allowed(settings: &Settings) -> io::Result<()> {
    build(settings).map(drop)
}

fn build(settings: &Settings) -> io::Result<IoUring> {
    let depth = settings.queue_depth.next_power_of_two();
    let mut builder = IoUring::builder();
    builder.setup_cqsize(depth * 2);
    if settings.iopoll {
        builder.setup_iopoll();
    }
    if settings.sqpoll {
        builder.setup_sqpoll(1000);
        return builder.build(depth);
    }
    let mut modern = builder.clone();
    modern.setup_single_issuer();
    if !settings.iopoll {
        modern.setup_defer_taskrun().setup_taskrun_flag();
    }
    modern.build(depth).or_else(|_| builder.build(depth))
}
