//! What a gateway is told when it begins.

use std::net::SocketAddr;

use crate::export::Export;
use crate::handle::HandleKey;

/// Numbers and parts.
#[derive(Clone, Debug)]
pub struct NfsOptions {
    /// Where it listens; port 0 for any that is free.
    pub listen: Vec<SocketAddr>,
    /// Which volumes are shown to whom; without any, all of them to this machine.
    pub exports: Vec<Export>,
    /// Connections at the same time, a quarter of them from one source; who needs a place gets that of another (see `admission`).
    pub connections_max: usize,
    /// Requests of one connection that are worked on at the same time.
    pub requests_max: usize,
    /// Bytes of requests that are in memory, of all connections; half of them of one source.
    pub bytes_in_max: usize,
    /// Bytes that answers to reads may take, of all connections; half of them of one source.
    pub bytes_out_max: usize,
    /// Bytes that were written and not published, of one volume.
    pub buffer_bytes_max: usize,
    /// Tells handles of this cluster from all others; the same on all nodes.
    pub handle_key: HandleKey,
    /// Tells this gateway from those of other nodes; the same after a restart.
    pub place: String,
    /// The time, nanoseconds since 1970.
    pub now_ns: fn() -> i64,
}

impl NfsOptions {
    /// The usual numbers.
    pub fn new(
        listen: Vec<SocketAddr>,
        handle_key: HandleKey,
        place: impl Into<String>,
        now_ns: fn() -> i64,
    ) -> NfsOptions {
        NfsOptions {
            listen,
            exports: Vec::new(),
            connections_max: 1024,
            requests_max: 64,
            bytes_in_max: 128 << 20,
            bytes_out_max: 128 << 20,
            buffer_bytes_max: 256 << 20,
            handle_key,
            place: place.into(),
            now_ns,
        }
    }
}
