//! What a log is at: its open segment, its place in the chain, how far it is durable.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::sync::Arc;

use crate::line::{Begin, End, Entry, Event, Hash, encode};
use crate::log::{LogOptions, Unwritable};
use crate::segment::{self, HEADS};
use crate::time;

/// The segment that lines are added to.
pub(crate) struct Open {
    pub file: Arc<File>,
    pub len: u64,
    pub begun_ms: u64,
    /// Its first event.
    pub first: u64,
}

#[derive(Default)]
pub(crate) struct State {
    /// None if the next line begins another one.
    pub open: Option<Open>,
    /// Of the open segment, or of the last one that was.
    pub number: u64,
    /// Segments that were closed and not flushed since.
    pub closed: Vec<Arc<File>>,
    /// A file was made, and the directory not flushed since.
    pub is_new: bool,
    pub seq: u64,
    pub chain: Hash,
    pub durable: u64,
    /// Somebody waits until this line is durable.
    pub wanted: u64,
    /// Lines wait to be flushed that nobody waits for.
    pub is_dirty: bool,
    pub head_seq: u64,
    pub head_ms: u64,
    pub shipped: u64,
    pub disk_bytes: u64,
    pub failed: Option<Unwritable>,
    pub is_stopping: bool,
    last_ms: u64,
    line: Vec<u8>,
}

impl State {
    /// Goes on where a log ended; the event that says so.
    pub fn recover(options: &LogOptions) -> io::Result<(State, Event)> {
        segment::make_dir(&options.dir)?;
        let mut state = State { shipped: segment::shipped(&options.dir), ..State::default() };
        let mut torn = 0;
        let segments = segment::list(&options.dir)?;
        for (number, path) in &segments {
            state.number = *number;
            state.disk_bytes += fs::metadata(path)?.len();
        }
        for (number, path) in segments.iter().rev() {
            let Some(sound) = segment::scan(path)? else {
                // A crash while it was begun: there is nothing in it that was acknowledged.
                torn += segment::cut_torn(path, 0)?;
                fs::remove_file(path)?;
                state.number = number.saturating_sub(1);
                continue;
            };
            torn += segment::cut_torn(path, sound.len)?;
            (state.seq, state.chain) = (sound.seq, sound.chain);
            if !sound.is_closed && *number == state.number {
                let begun_ms = time::parse(&sound.begin.time).unwrap_or_default();
                let file = Arc::new(segment::open_to_append(path)?);
                state.open = Some(Open { file, len: sound.len, begun_ms, first: sound.begin.first });
            }
            break;
        }
        state.disk_bytes = state.disk_bytes.saturating_sub(torn);
        let mut started = Event::of_service("Started");
        if torn > 0 {
            started.detail = format!("{torn} bytes of lines that a crash cut off were taken away");
        }
        let signed = segment::heads(&options.dir.join(HEADS))?;
        if let Some(head) = signed.iter().rfind(|head| head.seq > state.seq) {
            // Heads are signed of durable lines, so that these were there. Their numbers are not used again.
            started.result = "failed: Corrupt".to_owned();
            started.detail = format!("events {} to {} were there and are missing", state.seq + 1, head.seq);
            tracing::error!("the audit log: {}; run `stoker audit verify`", started.detail);
            state.seq = head.seq;
            state.open = None;
        }
        (state.durable, state.head_seq) = (state.seq, state.seq);
        Ok((state, started))
    }

    /// Writes an event.
    pub fn write(&mut self, options: &LogOptions, event: Event) -> io::Result<()> {
        if self.is_stopping {
            return Err(io::Error::other("the node stops"));
        }
        if self.open.as_ref().is_some_and(|open| open.len >= options.segment_bytes_max) {
            self.rotate(options)?;
        }
        if self.disk_bytes >= options.disk_bytes_max {
            self.let_go(options)?;
            if self.disk_bytes >= options.disk_bytes_max {
                let message = format!(
                    "its segments have {} bytes, which is all they may have, and are not in the volume yet",
                    self.disk_bytes
                );
                return Err(io::Error::new(io::ErrorKind::StorageFull, message));
            }
        }
        let now_ms = self.now_ms();
        if self.open.is_none() {
            self.begin(options, now_ms)?;
        }
        let entry = Entry { seq: self.seq + 1, time: time::format(now_ms), event };
        self.add(&entry)?;
        self.seq += 1;
        self.failed = None;
        Ok(())
    }

    /// Lines do not go back in time, whatever the clock does.
    fn now_ms(&mut self) -> u64 {
        self.last_ms = self.last_ms.max(time::now_ms());
        self.last_ms
    }

    fn add<T: serde::Serialize>(&mut self, line: &T) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.line);
        let chain = encode(self.chain, line, &mut bytes);
        let open = self.open.as_mut().expect("somebody opened a segment");
        let written = (&*open.file).write_all(&bytes);
        match written {
            Ok(()) => {
                open.len += bytes.len() as u64;
                self.disk_bytes += bytes.len() as u64;
                self.chain = chain;
            }
            Err(_) => {
                // Half a line must not stay: what comes next would stand behind it.
                if open.file.set_len(open.len).is_err() {
                    self.open = None;
                }
            }
        }
        self.line = bytes;
        written
    }

    fn begin(&mut self, options: &LogOptions, now_ms: u64) -> io::Result<()> {
        let number = self.number + 1;
        let path = options.dir.join(segment::name(number));
        let file = segment::open_to_append(&path)?;
        file.set_len(0)?;
        let first = self.seq + 1;
        self.open = Some(Open { file: Arc::new(file), len: 0, begun_ms: now_ms, first });
        let begin = Begin {
            segment: number,
            node: options.node.clone(),
            first,
            time: time::format(now_ms),
            prev: self.chain.to_string(),
        };
        match self.add(&begin) {
            Ok(()) => {
                (self.number, self.is_new) = (number, true);
                Ok(())
            }
            Err(fault) => {
                self.open = None;
                Err(fault)
            }
        }
    }

    /// Closes the open segment with a head of its own.
    pub fn rotate(&mut self, options: &LogOptions) -> io::Result<()> {
        if self.open.is_none() {
            return Ok(());
        }
        let now_ms = self.now_ms();
        let key = options.keys.first().ok_or_else(|| io::Error::other("there is no key"))?;
        let head = key.sign(&options.node, self.number, self.seq, self.chain, time::format(now_ms));
        self.add(&End { end: head })?;
        if let Some(open) = self.open.take() {
            self.closed.push(open.file);
        }
        self.begin(options, now_ms)
    }

    /// A head of what is durable, as a line, and whether it takes the place of all before: of a segment that is closed, the end has one.
    pub fn head(&self, options: &LogOptions) -> Option<(Vec<u8>, bool)> {
        let key = options.keys.first()?;
        let head = key.sign(&options.node, self.number, self.seq, self.chain, time::format(time::now_ms()));
        let mut line = serde_json::to_vec(&head).expect("plain data encodes");
        line.push(b'\n');
        let first = self.open.as_ref().map_or(self.seq, |open| open.first);
        Some((line, self.head_seq < first))
    }

    /// Closes a segment that is old, and lets go of others if there is little room.
    pub fn keep_bounds(&mut self, options: &LogOptions) -> io::Result<()> {
        let age_ms = options.segment_age_max.as_millis() as u64;
        let now_ms = self.now_ms();
        let is_old = |open: &Open| now_ms.saturating_sub(open.begun_ms) >= age_ms && self.seq >= open.first;
        if self.open.as_ref().is_some_and(is_old) {
            self.rotate(options)?;
        }
        if self.disk_bytes > options.disk_bytes_max / 4 * 3 {
            self.let_go(options)?;
        }
        Ok(())
    }

    /// Removes segments that are in the volume, oldest first, until half of the room is free. A line says which: the chain begins with others then.
    fn let_go(&mut self, options: &LogOptions) -> io::Result<()> {
        let mut gone = None;
        for (number, path) in segment::list(&options.dir)? {
            if number > self.shipped || number >= self.number || self.disk_bytes <= options.disk_bytes_max / 2
            {
                break;
            }
            let len = fs::metadata(&path)?.len();
            fs::remove_file(&path)?;
            self.disk_bytes = self.disk_bytes.saturating_sub(len);
            gone = Some(number);
        }
        let Some(number) = gone else { return Ok(()) };
        let detail = format!("{RELEASED}{number}");
        self.write(options, Event { detail, ..Event::of_service(RELEASE) })
    }
}

/// The action of the line that says which segments are only in the volume.
pub(crate) const RELEASE: &str = "Release";
const RELEASED: &str = "only in the volume: segments up to ";

/// The same of segments that were old enough to be deleted.
const EXPIRED: &str = "as old as wanted, and deleted: segments up to ";

pub(crate) fn expired(number: u64) -> Event {
    Event { detail: format!("{EXPIRED}{number}"), ..Event::of_service(RELEASE) }
}

/// The last segment that a line says is not here any more.
pub(crate) fn released(event: &Event) -> Option<u64> {
    let is_it = event.action == RELEASE && event.principal == crate::log::SERVICE;
    let detail = is_it.then_some(event.detail.as_str())?;
    detail.strip_prefix(RELEASED).or_else(|| detail.strip_prefix(EXPIRED))?.parse().ok()
}
