//! Numbers of the registry.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stoker_store::Counter;

/// What was asked, and what that took.
#[derive(Default)]
pub(crate) struct Stats {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub upstream_requests: AtomicU64,
    pub upstream_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub evicted_bytes: AtomicU64,
    pub refused: AtomicU64,
}

pub(crate) fn add(number: &AtomicU64, more: u64) {
    number.fetch_add(more, Relaxed);
}

impl Stats {
    pub fn counters(&self, held_bytes: u64) -> Vec<Counter> {
        let of = |name: &str, help: &str, number: &AtomicU64| {
            Counter::new(&format!("registry_{name}_total"), help, &[], number.load(Relaxed) as f64)
        };
        vec![
            of("hits", "Manifests and blobs that were in the volume", &self.hits),
            of("misses", "Manifests and blobs that were not", &self.misses),
            of("upstream_requests", "Requests to upstream registries", &self.upstream_requests),
            of("upstream_bytes", "Bytes from upstream registries", &self.upstream_bytes),
            of("sent_bytes", "Bytes to clients", &self.sent_bytes),
            of("evicted_bytes", "Bytes that left the volume for others", &self.evicted_bytes),
            of("refused", "Bytes of an upstream that were not what their digest says", &self.refused),
            Counter::new(
                "registry_held_bytes",
                "Bytes of images in the volume, as far as this node knows",
                &[],
                held_bytes as f64,
            ),
        ]
    }
}
