//! Names of requests, for logs and for people who ask about them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out names that do not repeat.
pub(crate) struct RequestIds {
    next: AtomicU64,
}

impl RequestIds {
    /// Starts somewhere else at each start of the gateway.
    pub(crate) fn new(seed: u64) -> RequestIds {
        RequestIds { next: AtomicU64::new(seed) }
    }

    /// The next one: 16 hex digits.
    pub(crate) fn next(&self) -> String {
        // SplitMix64: a bijection, so that different counts give different names.
        let mut mixed = self.next.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        format!("{:016X}", mixed ^ (mixed >> 31))
    }
}
