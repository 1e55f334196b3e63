//! What the gateway counts. Numbers only; `/metrics` is made from them elsewhere.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use stoker_store::Counter;

use crate::operation::Operation;

/// Upper bounds of the latency buckets in milliseconds; the last bucket has none.
const BUCKETS_MS: [u64; 11] = [1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000, 30_000];

/// Answers by first digit of the status; 0 for exchanges that ended before there was one. What is not implemented is no failure of ours,
/// and has a class of its own.
const CLASSES: [&str; 7] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx", "501"];
const NOT_IMPLEMENTED: usize = 6;

#[derive(Default)]
struct Tally {
    by_class: [AtomicU64; CLASSES.len()],
    micros: AtomicU64,
    buckets: [AtomicU64; BUCKETS_MS.len()],
}

/// All counts of a gateway.
pub(crate) struct Counters {
    tallies: Vec<Tally>,
    in_flight: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    connections: AtomicU64,
    connections_accepted: AtomicU64,
    connections_rejected: AtomicU64,
    connections_shed: AtomicU64,
    handshakes_failed: AtomicU64,
    bodies_broken: AtomicU64,
}

impl Counters {
    /// All zero.
    pub(crate) fn new() -> Counters {
        Counters {
            tallies: Operation::ALL.iter().map(|_| Tally::default()).collect(),
            in_flight: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            connections_accepted: AtomicU64::new(0),
            connections_rejected: AtomicU64::new(0),
            connections_shed: AtomicU64::new(0),
            handshakes_failed: AtomicU64::new(0),
            bodies_broken: AtomicU64::new(0),
        }
    }

    /// A request began.
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// A request ended.
    pub(crate) fn end(&self, operation: Operation, status: u16, elapsed: Duration, sent_bytes: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.sent_bytes.fetch_add(sent_bytes, Relaxed);
        let tally = &self.tallies[operation as usize];
        let class = match status {
            501 => NOT_IMPLEMENTED,
            _ => usize::from(status / 100).min(NOT_IMPLEMENTED - 1),
        };
        tally.by_class[class].fetch_add(1, Relaxed);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        tally.micros.fetch_add(micros, Relaxed);
        if let Some(bucket) = BUCKETS_MS.iter().position(|bound_ms| micros <= bound_ms * 1000) {
            tally.buckets[bucket].fetch_add(1, Relaxed);
        }
    }

    /// Bytes of request bodies came in.
    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A body could not be read to its end.
    pub(crate) fn body_broken(&self) {
        self.bodies_broken.fetch_add(1, Relaxed);
    }

    /// A connection came: there was a place for it, or not.
    pub(crate) fn connection_begin(&self, has_place: bool) {
        self.connections.fetch_add(u64::from(has_place), Relaxed);
        let count = if has_place { &self.connections_accepted } else { &self.connections_rejected };
        count.fetch_add(1, Relaxed);
    }

    /// A connection had to make room for another.
    pub(crate) fn connection_shed(&self) {
        self.connections_shed.fetch_add(1, Relaxed);
    }

    /// A connection that had a place is closed.
    pub(crate) fn connection_end(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    /// A TLS handshake did not work out.
    pub(crate) fn handshake_failed(&self) {
        self.handshakes_failed.fetch_add(1, Relaxed);
    }

    /// Everything, as of now.
    pub(crate) fn list(&self) -> Vec<Counter> {
        let mut list = Vec::new();
        for (operation, tally) in Operation::ALL.iter().zip(&self.tallies) {
            push_tally(&mut list, *operation, tally);
        }
        for (name, help, value) in [
            ("s3_requests_in_flight", "Requests that are being answered.", &self.in_flight),
            ("s3_sent_bytes_total", "Bytes of answer bodies.", &self.sent_bytes),
            (
                "s3_received_bytes_total",
                "Bytes of request bodies as they were on the wire.",
                &self.received_bytes,
            ),
            ("s3_connections", "Open connections.", &self.connections),
            ("s3_connections_accepted_total", "Connections that were served.", &self.connections_accepted),
            (
                "s3_connections_rejected_total",
                "Connections that were turned away at the limit.",
                &self.connections_rejected,
            ),
            (
                "s3_connections_shed_total",
                "Connections that were closed to make room for others at the limit.",
                &self.connections_shed,
            ),
            (
                "s3_tls_handshakes_failed_total",
                "TLS handshakes that did not work out.",
                &self.handshakes_failed,
            ),
            (
                "s3_bodies_broken_total",
                "Answers broken off because their bytes could not be read.",
                &self.bodies_broken,
            ),
        ] {
            list.push(counter(name, help, Vec::new(), value.load(Relaxed) as f64));
        }
        list
    }
}

fn push_tally(list: &mut Vec<Counter>, operation: Operation, tally: &Tally) {
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut count = 0;
    for (class, value) in CLASSES.iter().zip(&tally.by_class) {
        let value = value.load(Relaxed);
        count += value;
        if value > 0 {
            let labels = vec![label("operation", operation.name()), label("status", class)];
            list.push(counter(
                "s3_requests_total",
                "Requests by operation and class of status.",
                labels,
                value as f64,
            ));
        }
    }
    if count == 0 {
        return;
    }
    let help = "Time from the head of a request to the end of its answer.";
    let labels = |bound: Option<&str>| {
        let mut labels = vec![label("operation", operation.name())];
        labels.extend(bound.map(|bound| label("le", bound)));
        labels
    };
    let mut below = 0;
    for (bound_ms, value) in BUCKETS_MS.iter().zip(&tally.buckets) {
        below += value.load(Relaxed);
        let bound = format!("{}", *bound_ms as f64 / 1000.0);
        list.push(counter("s3_request_seconds_bucket", help, labels(Some(&bound)), below as f64));
    }
    list.push(counter("s3_request_seconds_bucket", help, labels(Some("+Inf")), count as f64));
    list.push(counter("s3_request_seconds_count", help, labels(None), count as f64));
    let seconds = tally.micros.load(Relaxed) as f64 / 1e6;
    list.push(counter("s3_request_seconds_sum", help, labels(None), seconds));
}

fn counter(name: &str, help: &str, labels: Vec<(String, String)>, value: f64) -> Counter {
    Counter { name: name.to_owned(), help: help.to_owned(), labels, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(list: &[Counter], name: &str, label: Option<&str>) -> Option<f64> {
        let fits = |counter: &&Counter| {
            counter.name == name
                && label.is_none_or(|label| counter.labels.iter().any(|(_, value)| value == label))
        };
        list.iter().find(fits).map(|counter| counter.value)
    }

    #[test]
    fn requests_are_counted_by_operation_and_class() {
        let counters = Counters::new();
        counters.begin();
        counters.begin();
        counters.end(Operation::GetObject, 206, Duration::from_millis(3), 100);
        counters.end(Operation::GetObject, 404, Duration::from_secs(60), 10);
        counters.begin();
        counters.end(Operation::Unknown, 501, Duration::from_secs(60), 10);
        let list = counters.list();
        assert_eq!(value(&list, "s3_requests_total", Some("2xx")), Some(1.0));
        assert_eq!(value(&list, "s3_requests_total", Some("4xx")), Some(1.0));
        assert_eq!(value(&list, "s3_requests_total", Some("501")), Some(1.0));
        assert_eq!(value(&list, "s3_requests_total", Some("5xx")), None);
        assert_eq!(value(&list, "s3_request_seconds_bucket", Some("0.002")), Some(0.0));
        assert_eq!(value(&list, "s3_request_seconds_bucket", Some("0.005")), Some(1.0));
        assert_eq!(value(&list, "s3_request_seconds_bucket", Some("30")), Some(1.0));
        assert_eq!(value(&list, "s3_request_seconds_bucket", Some("+Inf")), Some(2.0));
        assert_eq!(value(&list, "s3_sent_bytes_total", None), Some(120.0));
        assert_eq!(value(&list, "s3_requests_in_flight", None), Some(0.0));
    }

    #[test]
    fn connections_are_counted() {
        let counters = Counters::new();
        counters.connection_begin(true);
        counters.connection_begin(false);
        counters.connection_begin(true);
        counters.connection_end();
        assert_eq!(value(&counters.list(), "s3_connections", None), Some(1.0));
        assert_eq!(value(&counters.list(), "s3_connections_rejected_total", None), Some(1.0));
    }
}
