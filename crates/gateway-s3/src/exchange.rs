//! One request and its answer, counted when the last byte is handed over or the client is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

use crate::counters::Counters;
use crate::operation::Operation;

/// Whether a connection is between requests.
#[derive(Clone, Default)]
pub(crate) struct Pace(Arc<AtomicBool>);

impl Pace {
    /// True while a request is being answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set_busy(&self, busy: bool) {
        self.0.store(busy, Ordering::Relaxed);
    }
}

/// A request that is being answered.
pub(crate) struct Exchange {
    counters: Arc<Counters>,
    pace: Pace,
    begun: Instant,
    operation: Operation,
    status: u16,
    sent_bytes: u64,
}

impl Exchange {
    /// A request has come.
    pub(crate) fn begin(counters: Arc<Counters>, pace: Pace) -> Exchange {
        pace.set_busy(true);
        counters.begin();
        let begun = Instant::now();
        Exchange { counters, pace, begun, operation: Operation::Unknown, status: 0, sent_bytes: 0 }
    }

    /// What it asks for.
    pub(crate) fn asks(&mut self, operation: Operation) {
        self.operation = operation;
    }

    /// What it is told.
    pub(crate) fn answers(&mut self, status: u16) {
        self.status = status;
    }

    /// Bytes of the body on their way.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.pace.set_busy(false);
        self.counters.end(self.operation, self.status, self.begun.elapsed(), self.sent_bytes);
    }
}
