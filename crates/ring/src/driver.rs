//! The driver thread of one drive: takes requests, lets the engine decide, has the executor do it, gives answers.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stoker_format::{ChunkId, VolumeId};
use tokio::io::unix::AsyncFd;

use crate::buffer::Buf;
use crate::engine::{Append, Damage, Done, Engine, Io, Outcome, SegmentCounts};
use crate::error::{ErrorKind, Result, RingError};
use crate::gate::Pass;
use crate::index::Marks;
use crate::io::{Background, EventWake, Executor, Job, Tag};
use crate::stats::{Stats, Wake};
use crate::sys;

/// A request to the driver.
pub(crate) enum Request {
    Append(Vec<Append>, Arc<Call>),
    AppendOne(Append, Arc<Call>),
    Delete(Vec<ChunkId>, Arc<Call>),
    Remark(Vec<ChunkId>, fn(Marks) -> Marks, Arc<Answer<usize>>),
    Read { segment: u32, offset: u32, buf: Buf, answer: Arc<Answer<Result<Buf>>> },
    Lease(ChunkId, Arc<Call>),
    Leasable(VolumeId, bool, Arc<Answer<bool>>),
    Admits(ChunkId, bool, Arc<Answer<bool>>),
    CloseSegments(Arc<Call>),
    WaitPrepared(Arc<Call>),
    Snapshot(Arc<Answer<Snapshot>>),
    Stop(Arc<Call>),
}

/// What the driver knows at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub counts: SegmentCounts,
    pub keep_bytes: u64,
    pub clean_bytes: u64,
    pub queued_bytes: usize,
    pub poisoned: Option<String>,
    pub engine: String,
    pub describe: String,
}

/// A value that will be there.
pub(crate) struct Answer<V>(Mutex<(Option<V>, Option<Waker>)>);

impl<V> Answer<V> {
    pub fn new() -> Arc<Answer<V>> {
        Arc::new(Answer(Mutex::new((None, None))))
    }

    pub fn give(&self, value: V) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = Some(value);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub async fn wait(&self) -> V {
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock().unwrap();
            match state.0.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    state.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

struct CallState {
    left: usize,
    error: Option<RingError>,
    /// The first buffer apart from the others: most calls have one, and need no list.
    first: Option<Buf>,
    others: Vec<Buf>,
    waker: Option<Waker>,
}

/// A request with one or many parts; it is answered when the last part is.
pub(crate) struct Call {
    state: Mutex<CallState>,
    started: Instant,
    _pass: Option<Pass>,
}

impl Call {
    pub fn new(parts: usize) -> Arc<Call> {
        Call::with_pass(parts, None)
    }

    /// A call that holds a share of the queue's budget until its last part is answered.
    #[expect(clippy::disallowed_methods, reason = "the edge: latencies are measured here")]
    pub fn with_pass(parts: usize, pass: Option<Pass>) -> Arc<Call> {
        let state = CallState { left: parts, error: None, first: None, others: Vec::new(), waker: None };
        Arc::new(Call { state: Mutex::new(state), started: Instant::now(), _pass: pass })
    }

    /// One part ended; returns who has to be woken if it was the last.
    fn part(&self, result: Result<()>, payload: Option<Buf>) -> (bool, Option<Waker>) {
        let mut state = self.state.lock().unwrap();
        state.left -= 1;
        match state.first {
            None => state.first = payload,
            Some(_) => state.others.extend(payload),
        }
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        let last = state.left == 0;
        (last, if last { state.waker.take() } else { None })
    }

    /// Waits for the last part.
    pub async fn wait(&self) -> Result<()> {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock().unwrap();
            if state.left > 0 {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(state.error.take().map_or(Ok(()), Err))
        })
        .await
    }

    /// The callers' buffers, in the order of durability.
    pub fn take_payloads(&self) -> (Option<Buf>, Vec<Buf>) {
        let mut state = self.state.lock().unwrap();
        (state.first.take(), std::mem::take(&mut state.others))
    }
}

/// Where requests wait for the driver.
pub(crate) struct Inbox {
    queue: Mutex<Option<VecDeque<Request>>>,
    /// Looked at while spinning, without taking the lock.
    len: std::sync::atomic::AtomicUsize,
    wake: Arc<EventWake>,
}

impl Inbox {
    pub fn new(wake: Arc<EventWake>) -> Inbox {
        Inbox { queue: Mutex::new(Some(VecDeque::new())), len: Default::default(), wake }
    }

    /// Hands a request over; an error if the driver has stopped.
    pub fn push(&self, request: Request) -> Result<()> {
        {
            let mut queue = self.queue.lock().unwrap();
            let Some(queue) = queue.as_mut() else {
                return Err(RingError::new(ErrorKind::Closed, "the ring is closed"));
            };
            queue.push_back(request);
            self.len.store(queue.len(), std::sync::atomic::Ordering::SeqCst);
        }
        self.wake.wake();
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.len.load(std::sync::atomic::Ordering::SeqCst) == 0
    }

    fn take(&self, into: &mut VecDeque<Request>) {
        if self.is_empty() {
            return;
        }
        if let Some(queue) = self.queue.lock().unwrap().as_mut() {
            std::mem::swap(queue, into);
            self.len.store(0, std::sync::atomic::Ordering::SeqCst);
        }
    }

    fn close(&self) -> VecDeque<Request> {
        self.len.store(0, std::sync::atomic::Ordering::SeqCst);
        self.queue.lock().unwrap().take().unwrap_or_default()
    }
}

type Reader = Arc<Answer<Result<Buf>>>;

/// The loop around engine and executor.
pub(crate) struct Driver {
    engine: Engine<Arc<Call>>,
    executor: Box<dyn Executor>,
    background: Background,
    inbox: Arc<Inbox>,
    wake: Arc<EventWake>,
    stats: Arc<Stats>,
    damages: Arc<Mutex<Vec<Damage>>>,
    spin: Duration,
    /// Length of the next spin, and how many sleeps were not avoided since the last that was.
    spin_now: (Duration, u32),
    readers: Vec<Option<Reader>>,
    readers_idle: Vec<usize>,
    prepared_waiters: Vec<Arc<Call>>,
    stopping: Vec<Arc<Call>>,
    /// The runtime's clock, so that a simulation's time is the engine's.
    started: tokio::time::Instant,
    now_unix_ms: Box<dyn Fn() -> u64 + Send>,
    /// Wall clock in milliseconds, and when it was read.
    wall: (u64, u64),
    /// When the last step began.
    looked_us: u64,
    // Kept for their capacity between steps.
    requests: VecDeque<Request>,
    finished: Vec<(Tag, Outcome)>,
    changed: Vec<u32>,
    wakers: Vec<Waker>,
}

/// What a driver is made of.
pub(crate) struct DriverParts {
    pub engine: Engine<Arc<Call>>,
    pub executor: Box<dyn Executor>,
    pub background: Background,
    pub inbox: Arc<Inbox>,
    pub wake: Arc<EventWake>,
    pub stats: Arc<Stats>,
    pub damages: Arc<Mutex<Vec<Damage>>>,
    pub now_unix_ms: Box<dyn Fn() -> u64 + Send>,
    pub spin: Duration,
}

/// Completions taken at a time. Taking all of them lets requests march in step: the drive idles while they are answered,
/// and the callers while it works. In small groups the first are on their way again before the last are looked at. (D11)
const REAP_MAX: usize = 16;

/// Jobs under way up to which it may pay to spin.
const SPIN_JOBS_MAX: usize = 2;

/// Sleeps after which spinning is tried again.
const SPINS_VAIN_MAX: u32 = 16;

/// Damage reports kept until somebody asks; older ones are counted in the statistics.
const DAMAGES_MAX: usize = 4096;

impl Driver {
    pub fn new(parts: DriverParts) -> Driver {
        Driver {
            engine: parts.engine,
            executor: parts.executor,
            background: parts.background,
            inbox: parts.inbox,
            wake: parts.wake,
            stats: parts.stats,
            damages: parts.damages,
            spin: parts.spin,
            spin_now: (parts.spin, 0),
            readers: Vec::new(),
            readers_idle: Vec::new(),
            prepared_waiters: Vec::new(),
            stopping: Vec::new(),
            started: tokio::time::Instant::now(),
            wall: ((parts.now_unix_ms)(), 0),
            looked_us: 0,
            now_unix_ms: parts.now_unix_ms,
            requests: VecDeque::new(),
            finished: Vec::new(),
            changed: Vec::new(),
            wakers: Vec::new(),
        }
    }

    /// Runs on a thread of its own until asked to stop.
    pub fn run(mut self) {
        while self.stopping.is_empty() || self.is_busy() {
            if !self.step() {
                self.sleep();
            }
        }
        self.stop();
    }

    /// Runs as a task of the caller's runtime until asked to stop: requests of that thread then cost no thread hop.
    pub async fn run_local(mut self) -> std::io::Result<()> {
        let event = self.executor.completion_event()?.map(sys::async_fd).transpose()?;
        while self.stopping.is_empty() || self.is_busy() {
            if self.step() {
                // Whoever got an answer now makes the next request; those are taken together.
                yield_once().await;
            } else {
                self.wait_local(event.as_ref()).await?;
            }
        }
        self.stop();
        Ok(())
    }

    async fn wait_local(&mut self, event: Option<&AsyncFd<OwnedFd>>) -> std::io::Result<()> {
        std::future::poll_fn(|cx| {
            let idle = self.wake.may_sleep(Some(cx.waker()));
            if !idle || !self.inbox.is_empty() || self.background.has_finished() || self.executor.ready() {
                return Poll::Ready(Ok(()));
            }
            let Some(event) = event else { return Poll::Pending };
            match event.poll_read_ready(cx) {
                Poll::Ready(Ok(mut guard)) => {
                    sys::eventfd_clear(event.get_ref());
                    guard.clear_ready();
                    Poll::Ready(Ok(()))
                }
                Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await?;
        self.wake.awake();
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.engine.is_busy() || self.executor.in_flight() > 0
    }

    /// Counts the time since the last step for what was under way all the while.
    fn note_busy(&mut self, now_us: u64) {
        let passed_us = now_us.saturating_sub(std::mem::replace(&mut self.looked_us, now_us));
        if self.readers.len() > self.readers_idle.len() {
            self.stats.read_busy_us.add(passed_us);
        }
        if self.engine.writes_in_flight() > 0 {
            self.stats.write_busy_us.add(passed_us);
        }
    }

    /// Does everything that can be done without waiting; false if there was nothing.
    #[expect(clippy::disallowed_methods, reason = "the edge: time enters the engine here")]
    fn step(&mut self) -> bool {
        let mut requests = std::mem::take(&mut self.requests);
        self.inbox.take(&mut requests);
        let mut worked = !requests.is_empty();
        let now_us = self.started.elapsed().as_micros() as u64;
        // The wall clock goes into headers only; the monotonic one carries it on between looks.
        if now_us - self.wall.1 > 1_000_000 {
            self.wall = ((self.now_unix_ms)(), now_us);
        }
        self.engine.set_time(self.wall.0 + (now_us - self.wall.1) / 1000, now_us);
        self.note_busy(now_us);
        for request in requests.drain(..) {
            match self.stopping.is_empty() {
                true => self.request(request),
                false => self.refuse(request),
            }
        }
        self.requests = requests;
        let mut finished = std::mem::take(&mut self.finished);
        self.executor.reap(&mut finished, REAP_MAX);
        self.background.reap(&mut finished, &mut self.changed);
        for segment in self.changed.drain(..) {
            self.executor.segment_changed(segment);
        }
        worked |= !finished.is_empty();
        for (tag, outcome) in finished.drain(..) {
            self.finish(tag, outcome);
        }
        self.finished = finished;
        self.engine.pump();
        for command in self.engine.take_commands() {
            worked = true;
            if let Some((tag, io)) = self.background.take(Tag::Engine(command.op), command.io) {
                self.executor.submit(Job { tag, io });
            }
        }
        self.executor.kick();
        self.stats.in_flight.set(self.executor.in_flight() as u64);
        let answers = self.engine.take_done();
        if !answers.is_empty() {
            worked = true;
            let now = Instant::now();
            answers.into_iter().for_each(|done| self.answer(done, now));
        }
        if worked {
            self.keep_damages();
            self.tell_prepared();
            self.wakers.drain(..).for_each(Waker::wake);
        }
        worked
    }

    /// Looks for work a little longer, then sleeps.
    fn sleep(&mut self) {
        if self.spins_to_work() {
            return;
        }
        let idle = self.wake.may_sleep(None);
        if idle && self.inbox.is_empty() && !self.background.has_finished() {
            self.executor.wait(500);
        }
        self.wake.awake();
    }

    /// Spins while that pays: a request often follows its predecessor's answer sooner than a thread falls asleep and is
    /// woken again. Spinning in vain halves the next spin; now and then a full one is tried.
    #[expect(clippy::disallowed_methods, reason = "the edge: spinning is bounded by time")]
    fn spins_to_work(&mut self) -> bool {
        // With much under way a completion wakes the driver soon, and the core is better used by the callers.
        if self.executor.in_flight() > SPIN_JOBS_MAX {
            return false;
        }
        let (length, vain) = self.spin_now;
        if length.is_zero() {
            self.spin_now = if vain >= SPINS_VAIN_MAX { (self.spin, 0) } else { (length, vain + 1) };
            return false;
        }
        let until = Instant::now() + length;
        while Instant::now() < until {
            for _ in 0..16 {
                if !self.inbox.is_empty() || self.executor.ready() {
                    self.spin_now = (self.spin, 0);
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        let half = length / 2;
        self.spin_now = (if half.as_micros() < 4 { Duration::ZERO } else { half }, vain + 1);
        false
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Append(appends, call) => {
                for append in appends {
                    self.engine.append(append, call.clone());
                }
            }
            Request::AppendOne(append, call) => self.engine.append(append, call),
            Request::Delete(chunks, call) => self.engine.delete(&chunks, call),
            Request::Remark(chunks, change, answer) => answer.give(self.engine.remark(&chunks, change)),
            Request::Read { segment, offset, buf, answer } => {
                let number = match self.readers_idle.pop() {
                    Some(number) => number,
                    None => {
                        self.readers.push(None);
                        self.readers.len() - 1
                    }
                };
                self.readers[number] = Some(answer);
                let io = Io::Read { segment, offset, buf };
                self.executor.submit(Job { tag: Tag::Reader(number), io });
            }
            Request::Lease(chunk, call) => self.engine.lease(&chunk, call),
            Request::Leasable(volume, on, answer) => answer.give(self.engine.set_leasable(volume, on)),
            Request::Admits(chunk, staged, answer) => answer.give(self.engine.admits(&chunk, staged)),
            Request::CloseSegments(call) => self.engine.close_open(call),
            Request::WaitPrepared(call) => {
                self.engine.prepare_all();
                self.prepared_waiters.push(call);
            }
            Request::Snapshot(answer) => answer.give(self.snapshot()),
            Request::Stop(call) => {
                if self.stopping.is_empty() {
                    self.engine.wind_down();
                    self.engine.close_open(Call::new(1));
                }
                self.stopping.push(call);
                // Nothing new is taken, or a busy ring would never close.
                for late in self.inbox.close() {
                    self.refuse(late);
                }
            }
        }
    }

    fn finish(&mut self, tag: Tag, outcome: Outcome) {
        match tag {
            Tag::Engine(op) => self.engine.complete(op, outcome),
            Tag::Reader(number) => {
                let answer = self.readers[number].take().expect("a reader that waits");
                self.readers_idle.push(number);
                answer.give(match outcome {
                    Outcome::Read(buf) => Ok(buf),
                    Outcome::Failed(why) => {
                        self.stats.io_errors.add(1);
                        Err(RingError::new(ErrorKind::Io, format!("read failed: {why}")))
                    }
                    other => unreachable!("a read ended as {other:?}"),
                });
            }
        }
    }

    fn answer(&mut self, done: Done<Arc<Call>>, now: Instant) {
        let (last, waker) = done.token.part(done.result, done.payload);
        if last {
            let waited = now.saturating_duration_since(done.token.started);
            self.stats.append_latency.record_us(waited.as_micros() as u64);
        }
        self.wakers.extend(waker);
    }

    fn tell_prepared(&mut self) {
        let over = !self.stopping.is_empty() || self.engine.poisoned().is_some();
        if !self.prepared_waiters.is_empty() && (over || self.engine.counts().unprepared == 0) {
            let calls = self.prepared_waiters.drain(..);
            self.wakers.extend(calls.filter_map(|call| call.part(Ok(()), None).1));
        }
    }

    fn keep_damages(&mut self) {
        let new = self.engine.take_damages();
        if !new.is_empty() {
            let mut damages = self.damages.lock().unwrap();
            let room = DAMAGES_MAX.saturating_sub(damages.len());
            damages.extend(new.into_iter().take(room));
        }
    }

    fn snapshot(&self) -> Snapshot {
        let segments = self.engine.segments();
        Snapshot {
            counts: self.engine.counts(),
            keep_bytes: segments.iter().map(|s| s.keep_bytes).sum(),
            clean_bytes: segments.iter().map(|s| s.clean_bytes).sum(),
            queued_bytes: self.engine.queued_bytes(),
            poisoned: self.engine.poisoned().map(str::to_owned),
            engine: self.executor.name(),
            describe: self.engine.describe(),
        }
    }

    /// Answers a request that came too late.
    fn refuse(&mut self, request: Request) {
        let closed = || RingError::new(ErrorKind::Closed, "the ring is closed");
        let wakers = &mut self.wakers;
        match request {
            Request::Append(appends, call) => {
                for append in appends {
                    wakers.extend(call.part(Err(closed()), Some(append.payload)).1);
                }
            }
            Request::AppendOne(append, call) => {
                wakers.extend(call.part(Err(closed()), Some(append.payload)).1);
            }
            Request::Read { answer, .. } => answer.give(Err(closed())),
            Request::Remark(_, _, answer) => answer.give(0),
            Request::Admits(_, _, answer) | Request::Leasable(_, _, answer) => answer.give(false),
            Request::Snapshot(answer) => answer.give(self.snapshot()),
            Request::Stop(call) => self.stopping.push(call),
            Request::Delete(_, call)
            | Request::Lease(_, call)
            | Request::CloseSegments(call)
            | Request::WaitPrepared(call) => wakers.extend(call.part(Err(closed()), None).1),
        }
    }

    /// Tells those who asked for the stop, after the drive is let go: whoever closed a ring can open it again.
    fn stop(mut self) {
        let stopping = std::mem::take(&mut self.stopping);
        drop(self);
        for waker in stopping.into_iter().filter_map(|call| call.part(Ok(()), None).1) {
            waker.wake();
        }
    }
}

/// A driver that ends without having been stopped (its task was dropped) leaves nobody waiting.
impl Drop for Driver {
    fn drop(&mut self) {
        for request in self.inbox.close() {
            self.refuse(request);
        }
        self.engine.abandon();
        for done in self.engine.take_done() {
            self.wakers.extend(done.token.part(done.result, done.payload).1);
        }
        let waiting = self.prepared_waiters.drain(..).chain(self.stopping.drain(..));
        self.wakers.extend(waiting.filter_map(|call| call.part(Ok(()), None).1));
        for answer in self.readers.drain(..).flatten() {
            answer.give(Err(RingError::new(ErrorKind::Closed, "the ring is closed")));
        }
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[expect(clippy::disallowed_methods, reason = "the edge: wall time enters headers here")]
pub(crate) fn unix_now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
