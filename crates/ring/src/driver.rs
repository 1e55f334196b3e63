//! The driver thread of one drive: takes requests, lets the engine decide, has the executor do it, gives answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use stoker_format::{ChunkId, VolumeId};

use crate::buffer::Buf;
use crate::engine::{Append, Damage, Done, Engine, Io, Outcome, SegmentCounts};
use crate::error::{ErrorKind, Result, RingError};
use crate::gate::Pass;
use crate::index::Marks;
use crate::io::{Background, EventWake, Executor, Job, Tag};
use crate::stats::{Stats, Wake};

/// A request to the driver.
pub(crate) enum Request {
    Append(Vec<Append>, Arc<Call>),
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
                Some(value) => std::task::Poll::Ready(value),
                None => {
                    state.1 = Some(cx.waker().clone());
                    std::task::Poll::Pending
                }
            }
        })
        .await
    }
}

struct CallState {
    left: usize,
    error: Option<RingError>,
    payloads: Vec<Buf>,
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
        let state = CallState { left: parts, error: None, payloads: Vec::new(), waker: None };
        Arc::new(Call { state: Mutex::new(state), started: Instant::now(), _pass: pass })
    }

    /// One part ended; returns who has to be woken if it was the last.
    fn part(&self, result: Result<()>, payload: Option<Buf>) -> (bool, Option<Waker>) {
        let mut state = self.state.lock().unwrap();
        state.left -= 1;
        state.payloads.extend(payload);
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        let last = state.left == 0;
        (last, if last { state.waker.take() } else { None })
    }

    /// Waits for the last part; the callers' buffers come back in the order of durability.
    pub async fn wait(&self) -> (Result<()>, Vec<Buf>) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock().unwrap();
            if state.left > 0 {
                state.waker = Some(cx.waker().clone());
                return std::task::Poll::Pending;
            }
            let result = state.error.take().map_or(Ok(()), Err);
            std::task::Poll::Ready((result, std::mem::take(&mut state.payloads)))
        })
        .await
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
    pub engine: Engine<Arc<Call>>,
    pub executor: Box<dyn Executor>,
    pub background: Background,
    pub inbox: Arc<Inbox>,
    pub wake: Arc<EventWake>,
    pub stats: Arc<Stats>,
    pub damages: Arc<Mutex<Vec<Damage>>>,
    pub spin: Duration,
    pub readers: Vec<Option<Reader>>,
    pub readers_idle: Vec<usize>,
    pub prepared_waiters: Vec<Arc<Call>>,
    pub stopping: Option<Arc<Call>>,
}

/// Damage reports kept until somebody asks; older ones are counted in the statistics.
const DAMAGES_MAX: usize = 4096;

impl Driver {
    /// Runs until asked to stop.
    #[expect(clippy::disallowed_methods, reason = "the edge: time enters the engine here")]
    pub fn run(mut self) {
        let start = Instant::now();
        let (mut requests, mut finished, mut wakers) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut changed = Vec::new();
        // Written often, read by nobody but the engine; a cached wall clock is good enough for headers.
        let mut unix_ms = unix_now_ms();
        loop {
            self.inbox.take(&mut requests);
            let mut worked = !requests.is_empty();
            self.engine.set_time(unix_ms, start.elapsed().as_micros() as u64);
            for request in requests.drain(..) {
                self.request(request);
            }
            self.executor.reap(&mut finished);
            self.background.reap(&mut finished, &mut changed);
            changed.drain(..).for_each(|segment| self.executor.segment_changed(segment));
            worked |= !finished.is_empty();
            for (tag, outcome) in finished.drain(..) {
                self.finished(tag, outcome, &mut wakers);
            }
            self.engine.pump();
            for command in self.engine.take_commands() {
                worked = true;
                if let Some((tag, io)) = self.background.take(Tag::Engine(command.op), command.io) {
                    self.executor.submit(Job { tag, io });
                }
            }
            self.executor.kick();
            for done in self.engine.take_done() {
                worked = true;
                self.answer(done, &mut wakers);
            }
            self.keep_damages();
            self.tell_prepared(&mut wakers);
            wakers.drain(..).for_each(Waker::wake);
            if self.stopping.is_some() && !self.engine.is_busy() && self.executor.in_flight() == 0 {
                break;
            }
            if !worked {
                self.idle();
                unix_ms = unix_now_ms();
            }
        }
        self.stop();
    }

    /// Looks for work a little longer, then sleeps.
    #[expect(clippy::disallowed_methods, reason = "the edge: spinning is bounded by time")]
    fn idle(&mut self) {
        if self.executor.in_flight() == 0 && !self.spin.is_zero() {
            let until = Instant::now() + self.spin;
            while Instant::now() < until {
                for _ in 0..32 {
                    if !self.inbox.is_empty() {
                        return;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        self.wake.about_to_sleep();
        if self.inbox.is_empty() && !self.background.has_finished() {
            self.executor.wait(500);
        }
        self.wake.awake();
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Append(appends, call) => {
                for append in appends {
                    self.engine.append(append, call.clone());
                }
            }
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
            Request::WaitPrepared(call) => self.prepared_waiters.push(call),
            Request::Snapshot(answer) => answer.give(self.snapshot()),
            Request::Stop(call) => {
                self.engine.wind_down();
                self.engine.close_open(Call::new(1));
                self.stopping = Some(call);
            }
        }
    }

    fn finished(&mut self, tag: Tag, outcome: Outcome, _wakers: &mut Vec<Waker>) {
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

    fn answer(&mut self, done: Done<Arc<Call>>, wakers: &mut Vec<Waker>) {
        let (last, waker) = done.token.part(done.result, done.payload);
        if last {
            self.stats.append_latency.record_us(done.token.started.elapsed().as_micros() as u64);
        }
        wakers.extend(waker);
    }

    fn tell_prepared(&mut self, wakers: &mut Vec<Waker>) {
        let over = self.stopping.is_some() || self.engine.poisoned().is_some();
        if !self.prepared_waiters.is_empty() && (over || self.engine.counts().unprepared == 0) {
            wakers.extend(self.prepared_waiters.drain(..).filter_map(|call| call.part(Ok(()), None).1));
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

    /// Refuses what came too late, then tells the one who asked.
    fn stop(mut self) {
        let closed = || RingError::new(ErrorKind::Closed, "the ring is closed");
        let mut wakers = Vec::new();
        for request in self.inbox.close() {
            let call = match request {
                Request::Append(appends, call) => {
                    for append in appends {
                        wakers.extend(call.part(Err(closed()), Some(append.payload)).1);
                    }
                    continue;
                }
                Request::Read { answer, .. } => {
                    answer.give(Err(closed()));
                    continue;
                }
                Request::Remark(_, _, answer) => {
                    answer.give(0);
                    continue;
                }
                Request::Admits(_, _, answer) | Request::Leasable(_, _, answer) => {
                    answer.give(false);
                    continue;
                }
                Request::Snapshot(answer) => {
                    answer.give(self.snapshot());
                    continue;
                }
                Request::Stop(call) => {
                    wakers.extend(call.part(Ok(()), None).1);
                    continue;
                }
                Request::Delete(_, call)
                | Request::Lease(_, call)
                | Request::CloseSegments(call)
                | Request::WaitPrepared(call) => call,
            };
            wakers.extend(call.part(Err(closed()), None).1);
        }
        let stopping = self.stopping.take();
        // The drive's lock goes before the answer, so that whoever closed a ring can open it again.
        drop(self);
        wakers.into_iter().for_each(Waker::wake);
        if let Some(waker) = stopping.and_then(|call| call.part(Ok(()), None).1) {
            waker.wake();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the edge: wall time enters headers here")]
pub(crate) fn unix_now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
