//! One request and its answer, counted when the last byte is handed over or the client is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stoker_store::Place;
use tokio::time::Instant;
use tracing::Span;

use crate::counters::Counters;
use crate::operation::Operation;

/// Where a connection is: between requests, or in one. Counts the changes, so that none is missed by who looks rarely.
#[derive(Clone, Default)]
pub(crate) struct Pace(Arc<AtomicU64>);

impl Pace {
    /// Changes so far; odd while a request is being answered.
    pub(crate) fn turns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn turn(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A request that is being answered.
pub(crate) struct Exchange {
    counters: Arc<Counters>,
    pace: Pace,
    place: Arc<Place>,
    begun: Instant,
    operation: Operation,
    status: u16,
    sent_bytes: u64,
    span: Span,
}

impl Exchange {
    /// A request has come.
    pub(crate) fn begin(counters: Arc<Counters>, pace: Pace, place: Arc<Place>, span: Span) -> Exchange {
        pace.turn();
        place.set_busy(true);
        counters.begin();
        let begun = Instant::now();
        Exchange {
            counters,
            pace,
            place,
            begun,
            operation: Operation::Unknown,
            status: 0,
            sent_bytes: 0,
            span,
        }
    }

    /// Where what is done for it belongs, in a trace.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Its signature is right: strangers do not take its connection's place.
    pub(crate) fn proves(&self) {
        self.place.prove();
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
        if !self.span.is_disabled() {
            self.span.record("rpc.method", self.operation.name());
            self.span.record("http.response.status_code", self.status);
            self.span.record("http.response.body.size", self.sent_bytes);
            if self.status >= 500 && self.status != 501 {
                self.span.record("otel.status_code", "ERROR");
            }
        }
        self.pace.turn();
        self.place.set_busy(false);
        self.counters.end(self.operation, self.status, self.begun.elapsed(), self.sent_bytes);
    }
}
