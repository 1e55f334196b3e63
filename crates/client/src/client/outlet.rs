//! The sending end of a writer: bytes wait here until the node grants memory for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use stoker_store::{Buf, HatchIn, Result, StoreError};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::frame::{DATA_LEN_MAX, DataSum, InHatch, Kind, OutFrame};
use crate::outbox::Outbox;

/// Fewer bytes go by the socket: a system call costs no more than the copy of as many.
const HATCH_LEN_MIN: usize = 64 << 10;

/// Permits of a buffer; they come back when its last byte is with the kernel.
pub(super) type Pass = Arc<(OwnedSemaphorePermit, OwnedSemaphorePermit)>;

#[derive(Default)]
struct State {
    queue: VecDeque<(Bytes, Pass)>,
    wanted: u64,
    granted: u64,
    sent: u64,
    failed: Option<StoreError>,
}

/// A writer's stream to the node.
pub(super) struct Outlet {
    id: u64,
    sum: DataSum,
    /// Memory that the node has, too; the connection may get it later.
    hatch: Arc<OnceLock<Arc<HatchIn>>>,
    state: Mutex<State>,
    changed: Notify,
}

impl Outlet {
    pub fn new(id: u64, sum: DataSum, hatch: Arc<OnceLock<Arc<HatchIn>>>) -> Outlet {
        Outlet { id, sum, hatch, state: Mutex::default(), changed: Notify::new() }
    }

    /// The writer's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Memory that needs no copy on its way to the node.
    pub fn memory(&self) -> Option<Buf> {
        self.hatch.get()?.room()
    }

    /// Queues bytes, asks for memory, sends what may be sent.
    pub fn push(&self, bytes: Bytes, pass: Pass, outbox: &Outbox) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.wanted += bytes.len() as u64;
        state.queue.push_back((bytes, pass));
        outbox.push(OutFrame::control(Kind::Want, self.id, &state.wanted));
        self.pump(&mut state, outbox);
        Ok(())
    }

    /// The node has memory for this many bytes in all.
    pub fn grant(&self, total: u64, outbox: &Outbox) {
        let mut state = self.state.lock().unwrap();
        state.granted = state.granted.max(total);
        self.pump(&mut state, outbox);
        self.changed.notify_one();
    }

    /// Under the lock, so that frames leave in the order of the bytes.
    fn pump(&self, state: &mut State, outbox: &Outbox) {
        while state.sent < state.granted {
            let Some((bytes, pass)) = state.queue.front_mut() else { return };
            let room = usize::try_from(state.granted - state.sent).unwrap_or(usize::MAX);
            let piece = bytes.split_to(bytes.len().min(room).min(DATA_LEN_MAX));
            state.sent += piece.len() as u64;
            outbox.push(self.frame(piece).guarded(pass.clone()));
            if bytes.is_empty() {
                state.queue.pop_front();
            }
        }
    }

    /// Bytes on their way: through the hatch if it has room, else with the frame.
    fn frame(&self, bytes: Bytes) -> OutFrame {
        let hatch = self.hatch.get().filter(|_| bytes.len() >= HATCH_LEN_MIN);
        let place = hatch.and_then(|hatch| hatch.pass(&bytes).or_else(|| Some((hatch.put(&bytes)?, 0))));
        match place {
            Some((slot, offset)) => {
                OutFrame::data_at(self.id, InHatch { slot, offset, len: bytes.len() as u32 })
            }
            None => OutFrame::data(self.id, bytes, self.sum),
        }
    }

    /// Nothing more can be sent.
    pub fn fail(&self, error: StoreError) {
        let queue = {
            let mut state = self.state.lock().unwrap();
            state.failed.get_or_insert(error);
            std::mem::take(&mut state.queue)
        };
        drop(queue);
        self.changed.notify_one();
    }

    /// Why nothing more can be sent, if so.
    pub fn failure(&self) -> Option<StoreError> {
        self.state.lock().unwrap().failed.clone()
    }

    /// Waits until every queued byte is in the outbox; returns how many bytes that are in all.
    pub async fn drained(&self) -> Result<u64> {
        loop {
            {
                let state = self.state.lock().unwrap();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.queue.is_empty() {
                    return Ok(state.sent);
                }
            }
            self.changed.notified().await;
        }
    }
}
