//! The receiving end of a writer: granted memory that the connection fills.
//!
//! Bytes are read from the socket straight into buffers of the store. A client says how much it has, the pump fetches
//! a buffer and grants what fits; only then do bytes come. So the task that reads the connection never waits for the
//! store, and a writer that sends nothing costs no memory.

use std::collections::VecDeque;
use std::sync::Mutex;

use stoker_format::VersionId;
use stoker_store::{Buf, Finish};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use super::session::Slot;
use crate::message::Request;

/// Buffers that a writer may hold: one that is filled and the next.
const BUFFERS_MAX: usize = 2;

/// A buffer of the store, and the permit for it.
pub(super) struct Posted {
    pub buf: Buf,
    pub permit: OwnedSemaphorePermit,
}

impl Posted {
    fn room(&self) -> usize {
        self.buf.capacity() - self.buf.len()
    }
}

/// What the client summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sum {
    /// CRC-64/NVME.
    Whole(u64),
    /// CRC32C.
    Late(u32),
}

/// What is to be published.
pub(super) struct Wish {
    pub len: u64,
    pub sum: Sum,
    pub finish: Finish,
    /// The version that it goes on with, if only the end names it.
    pub base: Option<VersionId>,
}

impl Wish {
    /// The writer that a request ends, and how; the request if it ends none.
    pub fn of(request: Request) -> Result<(u64, Wish), Box<Request>> {
        match request {
            Request::Finish { writer, len, crc64, finish } => {
                Ok((writer, Wish { len, sum: Sum::Whole(crc64), finish, base: None }))
            }
            Request::FinishOn { writer, len, crc32c, finish, base } => {
                Ok((writer, Wish { len, sum: Sum::Late(crc32c), finish, base: Some(VersionId(base)) }))
            }
            other => Err(Box::new(other)),
        }
    }
}

/// The client's wish to publish.
pub(super) struct Finishing {
    pub request: u64,
    pub slot: Slot,
    pub wish: Wish,
    /// Kept, so that the pump is not told to give up.
    pub _keep: oneshot::Sender<()>,
}

#[derive(Default)]
struct State {
    wanted: u64,
    granted: u64,
    received: u64,
    /// In the order in which they are filled; while one is being read into, it is not here.
    posted: VecDeque<Posted>,
    full: VecDeque<Posted>,
    finishing: Option<Finishing>,
}

impl State {
    fn room(&self) -> u64 {
        self.posted.iter().map(|posted| posted.room() as u64).sum()
    }
}

/// What the pump does next.
pub(super) enum Step {
    /// Write this to the store.
    Write(Posted),
    /// Fetch a buffer and post it. If the writer holds one already, only for as long as nothing else changes: waiting
    /// for memory while holding some could last for ever.
    Fetch { holds_one: bool },
    /// Tell the client that it may send this many bytes in all.
    Grant(u64),
    /// All bytes are written: publish.
    Publish(Finishing),
    /// Nothing; the client owes bytes.
    AwaitBytes,
    /// Nothing; the client has nothing more to send for now.
    AwaitWish,
}

/// Shared by the task that reads the connection and the pump.
#[derive(Default)]
pub(super) struct Inlet {
    /// Its bytes need no CRC-64: it is an edit whose base is named at its end.
    pub is_late: bool,
    state: Mutex<State>,
    changed: Notify,
}

impl Inlet {
    pub fn new(is_late: bool) -> Inlet {
        Inlet { is_late, ..Inlet::default() }
    }

    /// The client has this many bytes in all.
    pub fn want(&self, total: u64) {
        let mut state = self.state.lock().unwrap();
        if total > state.wanted {
            state.wanted = total;
            self.changed.notify_one();
        }
    }

    /// Bytes that may still come.
    pub fn credit(&self) -> u64 {
        let state = self.state.lock().unwrap();
        state.granted - state.received
    }

    /// Takes the buffer that is to be filled next; it goes back with [`Self::received`].
    pub fn take(&self) -> Option<Posted> {
        self.state.lock().unwrap().posted.pop_front()
    }

    /// `count` bytes arrived and were checked; `full` buffers may be written and `open` has room.
    pub fn received(&self, count: u64, full: Vec<Posted>, open: Option<Posted>) {
        let mut state = self.state.lock().unwrap();
        state.received += count;
        state.full.extend(full);
        if let Some(open) = open {
            state.posted.push_front(open);
        }
        self.changed.notify_one();
    }

    /// The client wants to publish.
    pub fn finish(&self, finishing: Finishing) {
        self.state.lock().unwrap().finishing = Some(finishing);
        self.changed.notify_one();
    }

    /// The wish to publish, if there is one and the writer failed before it could be carried out.
    pub fn take_finishing(&self) -> Option<Finishing> {
        self.state.lock().unwrap().finishing.take()
    }

    /// A buffer that may be filled.
    pub fn post(&self, posted: Posted) {
        self.state.lock().unwrap().posted.push_back(posted);
    }

    /// What to do now.
    pub fn step(&self) -> Step {
        let mut state = self.state.lock().unwrap();
        if let Some(full) = state.full.pop_front() {
            return Step::Write(full);
        }
        if state.finishing.is_some() {
            // Everything that will ever come is here: frames of a connection keep their order.
            while let Some(last) = state.posted.pop_front() {
                if !last.buf.is_empty() {
                    return Step::Write(last);
                }
            }
            return Step::Publish(state.finishing.take().expect("looked at above"));
        }
        let wanting = state.wanted.saturating_sub(state.granted);
        let room = state.room().saturating_sub(state.granted - state.received);
        if wanting > 0 && room > 0 {
            state.granted += wanting.min(room);
            return Step::Grant(state.granted);
        }
        if wanting > 0 && state.posted.len() < BUFFERS_MAX {
            return Step::Fetch { holds_one: !state.posted.is_empty() || state.granted > state.received };
        }
        if state.granted > state.received { Step::AwaitBytes } else { Step::AwaitWish }
    }

    /// Waits until [`Self::step`] may answer differently.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The buffers that an idle client keeps from others, to be written or given back.
    pub fn take_idle(&self) -> Vec<Posted> {
        let mut state = self.state.lock().unwrap();
        // Granted bytes are on their way into these.
        if state.granted > state.received {
            return Vec::new();
        }
        state.posted.drain(..).collect()
    }

    /// Bytes received so far.
    pub fn len(&self) -> u64 {
        self.state.lock().unwrap().received
    }
}
