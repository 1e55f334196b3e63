//! Leases of a connection: what its client holds, and the answers that hand descriptors over.
//!
//! A lease ends when the client says so, closes the file or goes away. Its descriptors may live longer in a client that
//! keeps them; what they show does not change, so the only cost is the space of segments that were replaced.

use stoker_store::{LEASE_DESCRIPTORS_MAX, Leased, Leases, NoLease};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::session::{Begun, Call, no_such};
use crate::frame::OutFrame;
use crate::lease;
use crate::message::{self, Response};

/// A lease that the client holds.
pub(super) struct Held {
    /// The file that it belongs to.
    pub file: u64,
    /// Its descriptors, of those that the connection may have.
    _descriptors: OwnedSemaphorePermit,
}

fn refusal(reason: NoLease, until: u64) -> Response {
    Response::NoLease { reason, until }
}

impl Call {
    pub(super) async fn lease(self, file: u64, offset: u64, len: u64, mut dropped: oneshot::Receiver<()>) {
        if self.session.descriptors.is_none() {
            return self.reply(refusal(NoLease::NotLocal, u64::MAX));
        }
        let found = self.session.tables.lock().unwrap().files.get(&file).cloned();
        let Some(open) = found else { return self.reply(Response::Error(no_such("file"))) };
        // Not waited for: a client that takes no answers would hold up the leases of all others.
        let Ok(turn) = self.session.shared.lease_answers.clone().try_acquire_owned() else {
            return self.reply(refusal(NoLease::Limit, offset.saturating_add(len)));
        };
        let leased = tokio::select! {
            leased = self.in_time(open.lease(offset, len)) => leased,
            _ = &mut dropped => return,
        };
        match leased {
            Ok(Leased::Granted(leases)) => self.grant(file, leases, turn),
            Ok(Leased::Refused { reason, until }) => self.reply(refusal(reason, until)),
            Err(error) => self.reply(Response::Error(error)),
        }
    }

    fn grant(self, file: u64, leases: Leases, turn: OwnedSemaphorePermit) {
        let count = leases.descriptors.len();
        assert!((1..=LEASE_DESCRIPTORS_MAX).contains(&count), "a file gave {count} descriptors");
        let room = self.session.descriptors.clone();
        let Some(permit) = room.and_then(|room| room.try_acquire_many_owned(count as u32).ok()) else {
            return self.reply(refusal(NoLease::Limit, u64::MAX));
        };
        let begun = {
            let mut tables = self.session.tables.lock().unwrap();
            let begun = tables.calls.remove(&self.id);
            // Closed in this moment: nobody would end the lease.
            if begun.is_some() && tables.files.contains_key(&file) {
                tables.leases.insert(self.id, Held { file, _descriptors: permit });
            }
            begun
        };
        let Some(Begun { slot, .. }) = begun else { return };
        let (response, payload) = lease::encode(&leases);
        let control = message::encode(&response);
        let frame = OutFrame::lease(self.id, &control, payload, leases.descriptors);
        self.session.outbox().push(frame.guarded((slot, turn)));
    }
}
