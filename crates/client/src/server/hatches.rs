//! The hatch of a connection: memory that its client shares with this node.

use stoker_store::{ErrorKind, Hatch, StoreError};

use super::session::{Begun, Call};
use crate::frame::OutFrame;
use crate::message::{self, Response};

/// Most slots of one connection.
const SLOTS_MAX: u32 = 16;

impl Call {
    /// Makes a hatch and sends its descriptor.
    pub(super) fn hatch(self, slots: u32) {
        let descriptor = match self.hatch_made(slots.clamp(1, SLOTS_MAX)) {
            Ok(descriptor) => descriptor,
            Err(error) => return self.reply(Response::Error(error)),
        };
        let begun = self.session.tables.lock().unwrap().calls.remove(&self.id);
        let Some(Begun { slot, .. }) = begun else { return };
        let frame = OutFrame::lease(
            self.id,
            &message::encode(&Response::Hatch),
            bytes::Bytes::new(),
            vec![descriptor],
        );
        self.session.outbox().push(frame.guarded(slot));
    }

    fn hatch_made(&self, slots: u32) -> Result<std::os::fd::OwnedFd, StoreError> {
        let refused = |kind, message: &str| StoreError::new(kind, message);
        if self.session.descriptors.is_none() {
            return Err(refused(ErrorKind::Invalid, "memory is shared over a Unix socket only"));
        }
        let room = self.session.shared.hatch_slots.clone().try_acquire_many_owned(slots);
        let room = room.map_err(|_| refused(ErrorKind::Full, "other clients have all the memory for it"))?;
        let (hatch, descriptor) = Hatch::make(slots as usize)
            .map_err(|error| refused(ErrorKind::Unavailable, &format!("no memory to share: {error}")))?;
        match self.session.hatch.set((hatch, room)) {
            Ok(()) => Ok(descriptor),
            Err(_) => Err(refused(ErrorKind::Conflict, "this connection has a hatch")),
        }
    }
}
