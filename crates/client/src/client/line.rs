//! A connection on which one thread asks and waits, with system calls that block. (D62)
//!
//! A call on a [`Link`](super::link::Link) wakes the task that reads the socket and then the thread that asked. A thread
//! that may be blocked saves both switches by reading the answer itself. Lines belong to a link and are used no longer than
//! it is; what must share a connection (open files, leases, writers) goes over the link.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use stoker_format::crc32c;
use stoker_store::{ErrorKind, Result, StoreError};

use super::Inner;
use super::link::{self, Lost, Reply};
use crate::fault::Fault;
use crate::frame::{FLAG_MORE, HEADER_LEN, Header, Kind, OutFrame, RESPONSE_LEN_MAX};
use crate::hello::Welcome;
use crate::message;
use crate::socket::{READ_AHEAD, Stream};

/// Lines of one link; more threads at once share the link.
const LINES_MAX: usize = 16;

/// Why a line gives no answer.
#[derive(Debug)]
pub(super) enum Ended {
    /// The call took longer than it may.
    Late,
    /// The connection is gone.
    Lost(Lost),
}

/// A connection for one call at a time.
pub(super) struct Line {
    stream: UnixStream,
    id_next: u64,
    /// Bytes that came in and are not looked at yet.
    ahead: Vec<u8>,
    is_usable: bool,
}

impl Line {
    /// Connects and says hello to the node that the link is to.
    pub async fn connect(inner: &Inner, welcome: &Welcome) -> Result<Line> {
        let unusable = |error: io::Error| StoreError::new(ErrorKind::Unavailable, error.to_string());
        let options = &inner.options;
        let (stream, own) = link::dial(&inner.endpoint, inner.token.as_deref(), options).await?;
        let Stream::Unix(stream) = stream else {
            return Err(StoreError::new(ErrorKind::Invalid, "lines are for Unix sockets"));
        };
        if (own.version, own.cluster) != (welcome.version, welcome.cluster) {
            return Err(StoreError::new(ErrorKind::Unavailable, "another node listens there now"));
        }
        let stream = stream.into_std().map_err(unusable)?;
        Line::new(stream, options.call_timeout, options.stall_timeout).map_err(unusable)
    }

    fn new(stream: UnixStream, call_timeout: Duration, stall_timeout: Duration) -> io::Result<Line> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(call_timeout))?;
        stream.set_write_timeout(Some(stall_timeout))?;
        Ok(Line { stream, id_next: 1, ahead: Vec::with_capacity(READ_AHEAD), is_usable: true })
    }

    /// False if the line ends with this call.
    pub fn is_usable(&self) -> bool {
        self.is_usable
    }

    /// Sends a request and waits for the answer; as long as it takes if there is no deadline.
    pub fn call(&mut self, control: &[u8], deadline_ms: u32) -> std::result::Result<Reply, Ended> {
        let id = self.id_next;
        self.id_next += 1;
        let frame = OutFrame::new(Kind::Request, id, deadline_ms, control, Bytes::new());
        let lost = |fault: Fault, sent| Ended::Lost(Lost { error: fault.into_error(), sent });
        // Used again once there is an answer.
        self.is_usable = false;
        let mut sent = 0;
        while sent < frame.head.len() {
            match self.stream.write(&frame.head[sent..]) {
                Ok(0) => return Err(lost(Fault::Io(io::ErrorKind::WriteZero.into()), sent > 0)),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_late(&error) => return Err(lost(Fault::Stalled, sent > 0)),
                Err(error) => return Err(lost(error.into(), sent > 0)),
            }
        }
        match self.answer(id, deadline_ms > 0) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(Ended::Late),
            Err(fault) => Err(lost(fault, true)),
        }
    }

    /// The answer to a request; none if it does not come in time.
    fn answer(&mut self, id: u64, in_time: bool) -> std::result::Result<Option<Reply>, Fault> {
        let (mut partial, mut is_leaving) = (Vec::new(), false);
        loop {
            if !self.fill(HEADER_LEN, in_time)? {
                return Ok(None);
            }
            let mut raw = [0; HEADER_LEN];
            raw.copy_from_slice(&self.ahead[..HEADER_LEN]);
            let header = Header::decode(&raw)?;
            let control_end = HEADER_LEN + header.control_len as usize;
            let end = control_end + header.payload_len as usize;
            // A frame that has begun goes on.
            if !self.fill(end, true)? {
                return Err(Fault::Stalled);
            }
            let control = &self.ahead[HEADER_LEN..control_end];
            header.check(control)?;
            match header.kind {
                Kind::Response if header.id == id => {
                    if partial.len() + control.len() > RESPONSE_LEN_MAX {
                        return Err(Fault::broken("an answer that does not end"));
                    }
                    header.check_payload(crc32c(&self.ahead[control_end..end]))?;
                    partial.extend_from_slice(control);
                    if header.flags & FLAG_MORE == 0 {
                        let response = message::decode(&partial)?;
                        let payload = Bytes::copy_from_slice(&self.ahead[control_end..end]);
                        self.ahead.drain(..end);
                        // Nothing else may be under way on a line.
                        self.is_usable = !is_leaving && self.ahead.is_empty();
                        return Ok(Some(Reply::new(response, payload)));
                    }
                }
                Kind::Goaway => {
                    let error: StoreError = message::decode(control)?;
                    if error.kind != ErrorKind::Closed {
                        return Err(Fault::Told(error));
                    }
                    is_leaving = true;
                }
                _ => return Err(Fault::broken("the node sent a frame that nobody asked for")),
            }
            self.ahead.drain(..end);
        }
    }

    /// Reads until so many bytes are there; false if they do not come in time.
    fn fill(&mut self, len: usize, in_time: bool) -> std::result::Result<bool, Fault> {
        while self.ahead.len() < len {
            let held = self.ahead.len();
            self.ahead.resize(len.max(READ_AHEAD), 0);
            let read = self.stream.read(&mut self.ahead[held..]);
            self.ahead.truncate(held + read.as_ref().map_or(0, |count| *count));
            match read {
                Ok(0) => return Err(Fault::Io(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_late(&error) && in_time => return Ok(false),
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The lines of a link.
pub(super) struct Lines(Mutex<Held>);

struct Held {
    idle: Vec<Line>,
    /// Lines that there are, with those in use.
    count: usize,
    /// The node takes no more of them, or none at all can be made.
    is_refused: bool,
}

/// The right to make a line.
pub(super) struct Place<'a> {
    lines: &'a Lines,
    is_kept: bool,
}

impl Place<'_> {
    /// There is one line more.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.lines.0.lock().unwrap().count -= 1;
        }
    }
}

impl Lines {
    /// No lines yet; never any where they cannot be made.
    pub fn new(can_be_made: bool) -> Lines {
        Lines(Mutex::new(Held { idle: Vec::new(), count: 0, is_refused: !can_be_made }))
    }

    /// The line that was used last; none inside if one has to be made, none at all if that is not allowed.
    pub fn take(&self) -> Option<Option<Line>> {
        let mut held = self.0.lock().unwrap();
        match held.idle.pop() {
            Some(line) => Some(Some(line)),
            None if held.is_refused || held.count >= LINES_MAX => None,
            None => Some(None),
        }
    }

    /// The right to make one more.
    pub fn place(&self) -> Option<Place<'_>> {
        let mut held = self.0.lock().unwrap();
        if held.is_refused || held.count >= LINES_MAX {
            return None;
        }
        held.count += 1;
        Some(Place { lines: self, is_kept: false })
    }

    /// Makes no more, and lets go of those that nobody uses.
    pub fn refuse(&self) {
        let mut held = self.0.lock().unwrap();
        held.is_refused = true;
        held.count -= held.idle.len();
        let idle = std::mem::take(&mut held.idle);
        drop(held);
        drop(idle);
    }

    /// A line is not in use any more.
    pub fn give_back(&self, line: Line) {
        let mut held = self.0.lock().unwrap();
        if line.is_usable() && !held.is_refused {
            held.idle.push(line);
            return;
        }
        held.count -= 1;
        drop(held);
        drop(line);
    }
}
