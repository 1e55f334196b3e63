//! What a replica is asked to do, and who waits for it.

use std::borrow::Cow;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::batch::Work;
use crate::engine::embedded::ledger::CommitName;
use crate::engine::embedded::writer::Answer;
use crate::kv::Commit;

/// Commits and who waits for them.
pub(super) struct Request {
    pub work: Order,
    pub bytes: usize,
    pub answer: oneshot::Sender<Answer>,
    /// Goes with the commit and not with its caller, who may give up waiting.
    pub _room: OwnedSemaphorePermit,
}

impl Request {
    /// The same as it is in an entry.
    pub(super) fn as_work(&self) -> Work<'_> {
        match &self.work {
            Order::Commit(commit, name) => Work::Commit(Cow::Borrowed(commit), *name),
            Order::ClientOpen(client) => Work::ClientOpen(*client),
        }
    }
}

/// What is to be done.
pub(super) enum Order {
    Commit(Commit, Option<CommitName>),
    ClientOpen(u128),
}
