//! The hatch of a connection: memory that its client shares with this node.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use stoker_store::{ErrorKind, HatchOut, Result, StoreError};
use tokio::sync::OwnedSemaphorePermit;

use super::session::{Begun, Call};
use crate::frame::OutFrame;
use crate::message::{self, Response};

/// Most slots of one connection.
const SLOTS_MAX: usize = 16;
/// Fewer are of no use.
const SLOTS_MIN: usize = 4;

impl Call {
    /// Makes a hatch and sends its descriptor.
    pub(super) fn hatch(self, slots: u32) {
        let (hatch, room, descriptor) = match self.hatch_made(slots as usize) {
            Ok(made) => made,
            Err(error) => return self.reply(Response::Error(error)),
        };
        let (slot, is_kept) = {
            let mut tables = self.session.tables.lock().unwrap();
            // Nobody waits for it any more: the next who asks gets one.
            let Some(Begun { slot, .. }) = tables.calls.remove(&self.id) else { return };
            (slot, self.session.hatch.set((hatch, room)).is_ok())
        };
        if !is_kept {
            return self.session.answer(self.id, &Response::Error(taken()), Bytes::new(), slot);
        }
        let control = message::encode(&Response::Hatch);
        let frame = OutFrame::lease(self.id, &control, Bytes::new(), vec![descriptor]);
        self.session.outbox().push(frame.guarded(slot));
    }

    /// As much of what was asked for as there is.
    fn hatch_made(&self, slots: usize) -> Result<(HatchOut, OwnedSemaphorePermit, OwnedFd)> {
        let refused = |kind, message: &str| StoreError::new(kind, message);
        if self.session.descriptors.is_none() {
            return Err(refused(ErrorKind::Invalid, "memory is shared over a Unix socket only"));
        }
        if self.session.hatch.get().is_some() {
            return Err(taken());
        }
        let all = &self.session.shared.hatch_slots;
        let full = || refused(ErrorKind::Full, "other clients have all the memory for it");
        let slots = slots.clamp(SLOTS_MIN, SLOTS_MAX).min(all.available_permits());
        if slots < SLOTS_MIN {
            return Err(full());
        }
        let room = all.clone().try_acquire_many_owned(slots as u32).map_err(|_| full())?;
        let (hatch, descriptor) = HatchOut::make(slots)
            .map_err(|error| refused(ErrorKind::Unavailable, &format!("no memory to share: {error}")))?;
        Ok((hatch, room, descriptor))
    }
}

fn taken() -> StoreError {
    StoreError::new(ErrorKind::Conflict, "this connection has a hatch")
}
