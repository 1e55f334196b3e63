//! The log of a node, as those who write to it have it.
//!
//! An event becomes a line and is written to the file before [`Log::append`] returns, so that it survives the end of the process. One thread
//! flushes what was written since, for all who wait: with a [`Ticket`] an answer waits until its line is on the drive. The same thread signs
//! heads, closes segments and lets go of those that are elsewhere.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::flood::Flood;
use crate::head::{PublicKey, SigningKey};
use crate::line::{DENIED, Event, OK};
use crate::state::State;
use crate::{segment, time};

/// Who does what the log does by itself.
pub const SERVICE: &str = "service audit";

/// Whether answers wait for the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// Those to calls that only a full log has; others are flushed soon.
    Auto,
    /// All of them.
    Answer,
    /// None: a loss of power can take the last moments.
    Soon,
}

/// How a log is kept.
pub struct LogOptions {
    /// Its directory.
    pub dir: PathBuf,
    /// The node.
    pub node: String,
    /// Keys of the cluster: the first signs, all of them are known.
    pub keys: Vec<SigningKey>,
    /// Every read and every look is written down, of all volumes.
    pub is_full: bool,
    /// Whether answers wait for the drive.
    pub flush: Flush,
    /// What cannot be written down is not done.
    pub refuses: bool,
    /// A segment that is longer is closed.
    pub segment_bytes_max: u64,
    /// A segment that is older is closed.
    pub segment_age_max: Duration,
    /// All segments together.
    pub disk_bytes_max: u64,
    /// What nobody waits for is flushed after this time.
    pub flush_every: Duration,
    /// How often heads are signed.
    pub head_every: Duration,
}

impl LogOptions {
    /// The usual ones.
    pub fn new(dir: &Path, node: &str, keys: Vec<SigningKey>) -> LogOptions {
        LogOptions {
            dir: dir.to_path_buf(),
            node: node.to_owned(),
            keys,
            is_full: false,
            flush: Flush::Auto,
            refuses: false,
            segment_bytes_max: 64 << 20,
            segment_age_max: Duration::from_secs(86_400),
            disk_bytes_max: 4 << 30,
            flush_every: Duration::from_millis(200),
            head_every: Duration::from_secs(10),
        }
    }
}

/// A line could not be written, or not be made durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unwritable(pub String);

impl std::fmt::Display for Unwritable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the audit log cannot be written: {}", self.0)
    }
}

/// How far lines are on the drive.
#[derive(Clone, Default)]
struct Durable {
    seq: u64,
    /// The last one of those that may be lost, and why.
    lost: Option<(u64, Unwritable)>,
}

/// Waits until a line is on the drive.
pub struct Ticket {
    seq: u64,
    durable: watch::Receiver<Durable>,
}

impl Ticket {
    /// Whether there is nothing to wait for.
    pub fn is_done(&self) -> bool {
        self.durable.borrow().seq >= self.seq
    }

    /// Waits.
    pub async fn wait(&self) -> Result<(), Unwritable> {
        let mut durable = self.durable.clone();
        loop {
            {
                let durable = durable.borrow_and_update();
                if durable.seq >= self.seq {
                    return Ok(());
                }
                if let Some((to, fault)) = &durable.lost
                    && *to >= self.seq
                {
                    return Err(fault.clone());
                }
            }
            if durable.changed().await.is_err() {
                return Err(Unwritable("the node stops".to_owned()));
            }
        }
    }
}

/// What a log counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Lines.
    pub lines: u64,
    /// Of them, calls that were denied.
    pub denied: u64,
    /// Denied calls that were counted and have no line of their own.
    pub suppressed: u64,
    /// Lines that could not be written.
    pub lost: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of all segments here.
    pub disk_bytes: u64,
    /// Bytes that they may have.
    pub disk_bytes_max: u64,
    /// Closed segments that are not in the volume yet.
    pub unshipped: u64,
    /// 1 if the last line could not be written.
    pub is_failed: bool,
}

#[derive(Default)]
struct Counters {
    lines: AtomicU64,
    denied: AtomicU64,
    suppressed: AtomicU64,
    lost: AtomicU64,
    flushes: AtomicU64,
}

pub(crate) struct Shared {
    pub options: LogOptions,
    state: Mutex<State>,
    wake: Condvar,
    durable: watch::Sender<Durable>,
    counters: Counters,
    flood: Mutex<Flood>,
}

/// The log.
pub struct Log {
    shared: Arc<Shared>,
    flusher: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Log {
    /// Opens a log, or begins one. What a crash left of the last line is taken away.
    pub fn open(options: LogOptions) -> io::Result<Log> {
        if options.keys.is_empty() {
            return Err(io::Error::other("a log needs a key to sign its heads"));
        }
        let (state, started) = State::recover(&options)?;
        let shared = Arc::new(Shared {
            options,
            state: Mutex::new(state),
            wake: Condvar::new(),
            durable: watch::Sender::default(),
            counters: Counters::default(),
            flood: Mutex::default(),
        });
        let flushing = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("stoker-audit".to_owned());
        let flusher = thread.spawn(move || flushing.flush_until_stopped())?;
        let log = Log { shared, flusher: Mutex::new(Some(flusher)) };
        log.append(started).map_err(|fault| io::Error::other(fault.to_string()))?;
        Ok(log)
    }

    /// Whether every read is written down, of all volumes.
    pub fn is_full(&self) -> bool {
        self.shared.options.is_full
    }

    /// Why nothing may be done now: the log cannot be written, and says that nothing is done without it.
    pub fn refusal(&self) -> Option<Unwritable> {
        let failed = || self.shared.lock().failed.clone();
        self.shared.options.refuses.then(failed).flatten()
    }

    /// What is not done if it cannot be written down.
    pub fn refuses(&self) -> bool {
        self.shared.options.refuses
    }

    /// Whether an answer waits for the drive: to a call that a full log alone has, or to another.
    pub fn awaits(&self, is_full: bool) -> bool {
        match self.shared.options.flush {
            Flush::Auto => is_full,
            Flush::Answer => true,
            Flush::Soon => false,
        }
    }

    /// Writes a line. It survives the end of the process when this returns, and a loss of power soon.
    pub fn append(&self, event: Event) -> Result<Ticket, Unwritable> {
        self.shared.append(event, false)
    }

    /// The same, and asks for a flush: somebody is going to wait for it.
    pub fn append_now(&self, event: Event) -> Result<Ticket, Unwritable> {
        self.shared.append(event, true)
    }

    /// Writes a line about a call that was not allowed, unless there are too many of them: then they are counted, and a line says how many.
    pub fn denied(&self, event: Event) {
        let fits = {
            let mut flood = self.shared.flood.lock().unwrap_or_else(PoisonError::into_inner);
            flood.take(&event.principal, time::monotonic_ms())
        };
        if fits {
            let _ = self.append(Event { result: DENIED.to_owned(), ..event });
        } else {
            self.shared.counters.suppressed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What it counts.
    pub fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let state = self.shared.lock();
        Counts {
            lines: read(&counters.lines),
            denied: read(&counters.denied),
            suppressed: read(&counters.suppressed),
            lost: read(&counters.lost),
            flushes: read(&counters.flushes),
            disk_bytes: state.disk_bytes,
            disk_bytes_max: self.shared.options.disk_bytes_max,
            unshipped: state.number.saturating_sub(1).saturating_sub(state.shipped),
            is_failed: state.failed.is_some(),
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.shared.options.dir
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.shared.options.node
    }

    /// What its heads are checked with.
    pub fn public_keys(&self) -> Vec<PublicKey> {
        self.shared.options.keys.iter().map(SigningKey::public).collect()
    }

    /// Closed segments that are not in the volume yet, oldest first.
    pub fn unshipped(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let (number, shipped) = {
            let state = self.shared.lock();
            (state.number, state.shipped)
        };
        let mut found = segment::list(self.dir())?;
        found.retain(|(one, _)| *one > shipped && *one < number);
        Ok(found)
    }

    /// A segment, and all before it, are in the volume.
    pub fn shipped(&self, number: u64) -> io::Result<()> {
        segment::set_shipped(self.dir(), number)?;
        self.shared.lock().shipped = number;
        Ok(())
    }

    /// Segments up to this one are about to be deleted from the volume, as their age wants it: a line says so.
    pub fn expires(&self, number: u64) -> Result<(), Unwritable> {
        self.shared.append(crate::state::expired(number), false).map(drop)
    }

    /// Closes the segment that is open, and begins another one.
    pub fn rotate(&self) -> Result<(), Unwritable> {
        self.shared.rotate()
    }

    /// Flushes and signs what there is, and ends. Lines that come later are refused.
    pub fn stop(&self) {
        if self.shared.lock().is_stopping {
            return;
        }
        self.shared.look_after();
        self.shared.lock().is_stopping = true;
        self.shared.wake.notify_all();
        let flusher = self.flusher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(flusher) = flusher {
            let _ = flusher.join();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, event: Event, is_urgent: bool) -> Result<Ticket, Unwritable> {
        let (event, durable) = (event.sound(), self.durable.subscribe());
        let is_denied = event.result == DENIED;
        let mut state = self.lock();
        if let Err(fault) = state.write(&self.options, event) {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
            if state.failed.is_none() {
                tracing::error!("the audit log cannot be written: {fault}");
            }
            let fault = Unwritable(fault.to_string());
            state.failed = Some(fault.clone());
            return Err(fault);
        }
        self.counters.lines.fetch_add(1, Ordering::Relaxed);
        self.counters.denied.fetch_add(u64::from(is_denied), Ordering::Relaxed);
        let seq = state.seq;
        if is_urgent {
            state.wanted = seq;
            drop(state);
            self.wake.notify_one();
        } else if !std::mem::replace(&mut state.is_dirty, true) {
            drop(state);
            self.wake.notify_one();
        }
        Ok(Ticket { seq, durable })
    }

    fn rotate(&self) -> Result<(), Unwritable> {
        let mut state = self.lock();
        state.rotate(&self.options).map_err(|fault| Unwritable(fault.to_string()))
    }

    fn flush_until_stopped(&self) {
        let mut looked_ms = time::monotonic_ms();
        loop {
            let is_stopping = self.wait_for_work();
            let flushed = self.flush();
            let now_ms = time::monotonic_ms();
            if !is_stopping && now_ms.saturating_sub(looked_ms) >= 1000 {
                looked_ms = now_ms;
                self.look_after();
            }
            if flushed {
                self.sign(is_stopping, now_ms);
            }
            if is_stopping {
                return;
            }
        }
    }

    /// Waits until somebody waits for a flush, until lines have waited for long enough, or for a second; whether it is the last time.
    fn wait_for_work(&self) -> bool {
        let mut state = self.lock();
        let until_urgent = |state: &mut State| !state.is_stopping && state.wanted <= state.durable;
        if state.is_dirty || state.seq > state.durable {
            state = self
                .wake
                .wait_timeout_while(state, self.options.flush_every, until_urgent)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        } else {
            let idle = |state: &mut State| until_urgent(state) && !state.is_dirty;
            state = self
                .wake
                .wait_timeout_while(state, Duration::from_secs(1), idle)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if state.is_dirty {
                state = self
                    .wake
                    .wait_timeout_while(state, self.options.flush_every, until_urgent)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
        state.is_stopping
    }

    /// Makes durable what was written; whether it is.
    fn flush(&self) -> bool {
        let (closed, open, target, is_new): (Vec<Arc<File>>, _, u64, bool) = {
            let mut state = self.lock();
            state.is_dirty = false;
            if state.seq == state.durable && state.closed.is_empty() {
                return true;
            }
            let open = state.open.as_ref().map(|open| Arc::clone(&open.file));
            (std::mem::take(&mut state.closed), open, state.seq, std::mem::take(&mut state.is_new))
        };
        let synced = closed.iter().chain(&open).try_for_each(|file| file.sync_data());
        let synced = synced.and_then(|()| if is_new { segment::sync_dir(&self.options.dir) } else { Ok(()) });
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        match synced {
            Ok(()) => {
                state.durable = state.durable.max(target);
                drop(state);
                self.durable.send_modify(|durable| durable.seq = durable.seq.max(target));
                true
            }
            Err(fault) => {
                tracing::error!("the audit log cannot be flushed: {fault}");
                let fault = Unwritable(fault.to_string());
                state.failed = Some(fault.clone());
                // Nobody knows what of it is on the drive: another file is begun, and nothing is said of this one.
                state.open = None;
                state.durable = target;
                drop(state);
                self.durable.send_modify(|durable| durable.lost = Some((target, fault)));
                false
            }
        }
    }

    /// What is done about once a second.
    fn look_after(&self) {
        let suppressed = {
            let mut flood = self.flood.lock().unwrap_or_else(PoisonError::into_inner);
            flood.suppressed()
        };
        for (principal, count) in suppressed {
            let detail = format!("{count} more calls were denied and have no lines of their own");
            let action = "Suppressed".to_owned();
            let result = DENIED.to_owned();
            let _ = self.append(Event { principal, action, result, detail, ..Event::default() }, false);
        }
        let is_failed = self.lock().failed.is_some();
        if is_failed {
            let lost = self.counters.lost.load(Ordering::Relaxed);
            let detail = format!("lines can be written again; {lost} were lost since the start");
            let resumed = Event { detail, ..Event::of_service("Resumed") };
            if self.append(resumed, false).is_ok() {
                tracing::info!("the audit log can be written again");
            }
        }
        let mut state = self.lock();
        if let Err(fault) = state.keep_bounds(&self.options) {
            tracing::warn!("segments of the audit log cannot be looked after: {fault}");
        }
    }

    fn sign(&self, is_last: bool, now_ms: u64) {
        let (seq, head) = {
            let mut state = self.lock();
            // Of what is durable alone: a head of lines that a crash takes would look like lines that somebody took.
            if state.durable != state.seq || state.head_seq == state.seq {
                return;
            }
            let is_due = now_ms.saturating_sub(state.head_ms) >= self.options.head_every.as_millis() as u64;
            if !is_last && !is_due && state.seq - state.head_seq < HEAD_LINES_MAX {
                return;
            }
            state.head_ms = now_ms;
            (state.seq, state.head(&self.options))
        };
        let Some((line, replaces)) = head else { return };
        match segment::write_head(&self.options.dir, &line, replaces) {
            Ok(()) => self.lock().head_seq = seq,
            Err(fault) => tracing::warn!("a head of the audit log cannot be written: {fault}"),
        }
    }
}

/// Lines after which a head is signed, however soon that is.
const HEAD_LINES_MAX: u64 = 4096;

impl Event {
    /// Something that the log does by itself.
    pub fn of_service(action: &str) -> Event {
        let (principal, action) = (SERVICE.to_owned(), action.to_owned());
        Event { principal, action, result: OK.to_owned(), ..Event::default() }
    }
}
