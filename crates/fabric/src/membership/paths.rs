//! Which address of a node to use: the one it last spoke from, and the next one when a ping stays unanswered.

use std::net::SocketAddr;
use std::time::Duration;

/// The addresses of one peer, one of them in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    current: usize,
    heard_at: Option<Duration>,
}

impl Paths {
    /// Where to send.
    pub(super) fn address(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        addresses.get(self.current).or(addresses.first()).copied()
    }

    /// The peer spoke, from here.
    pub(super) fn heard(&mut self, from: SocketAddr, addresses: &[SocketAddr], now: Duration) {
        self.heard_at = Some(now);
        if let Some(index) = addresses.iter().position(|address| *address == from) {
            self.current = index;
        }
    }

    /// Tells whether the peer spoke since.
    pub(super) fn heard_since(&self, then: Duration) -> bool {
        self.heard_at.is_some_and(|at| at >= then)
    }

    /// The address in use did not answer.
    pub(super) fn turn(&mut self, addresses: &[SocketAddr]) {
        self.current = (self.current + 1) % addresses.len().max(1);
    }
}
