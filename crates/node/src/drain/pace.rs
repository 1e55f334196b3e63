//! Drains give way. While clients write, a drain takes a small share of what they write, so that a burst (a checkpoint)
//! lands at the speed of the drives; it catches up when they pause. It does not give way when a drain is waited for,
//! when rings fill up, or when it is late. (D27) While windows for checkpoints have most of what drives take it pauses: those are short, and it
//! moves to the gaps between. (D247)

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock;

/// Of sixteen bytes that clients write, one is drained meanwhile.
const SHARE: u64 = 16;

/// Nobody wrote for so long: the drain need not give way.
const QUIET_MS: u64 = 100;

/// Bytes that a drain may be ahead of its share, so that it takes turns with writers instead of trickling.
const AHEAD: u64 = 32 << 20;

const LOOK: Duration = Duration::from_millis(10);

/// Who may go how far.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes that may still be drained while clients write.
    credit: AtomicU64,
    written_ms: AtomicU64,
    demanded: AtomicUsize,
    is_urgent: AtomicBool,
    is_crowded: AtomicBool,
}

/// A drain that somebody waits for; ends when dropped.
pub(crate) struct Demanded<'p>(&'p Pace);

impl Drop for Demanded<'_> {
    fn drop(&mut self) {
        self.0.demanded.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    /// A client wrote.
    pub fn wrote(&self, bytes: u64) {
        self.written_ms.store(clock::now_ms(), Ordering::Relaxed);
        let more = |credit: u64| Some((credit + bytes / SHARE).min(AHEAD));
        let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Somebody waits for a drain.
    pub fn demand(&self) -> Demanded<'_> {
        self.demanded.fetch_add(1, Ordering::Relaxed);
        Demanded(self)
    }

    /// Rings fill up, or the drain is late.
    pub fn set_urgent(&self, is_urgent: bool) {
        self.is_urgent.store(is_urgent, Ordering::Relaxed);
    }

    /// Windows for checkpoints have most of what drives take.
    pub fn set_crowded(&self, is_crowded: bool) {
        self.is_crowded.store(is_crowded, Ordering::Relaxed);
    }

    fn waits_for_nobody(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed) || self.demanded.load(Ordering::Relaxed) > 0
    }

    fn is_free(&self, now_ms: u64) -> bool {
        self.waits_for_nobody()
            // A clock that was set back must not stop drains.
            || (!self.is_crowded.load(Ordering::Relaxed)
                && self.written_ms.load(Ordering::Relaxed).abs_diff(now_ms) > QUIET_MS)
    }

    /// Waits until so many bytes may be drained.
    pub async fn turn(&self, bytes: u64) {
        // The credit is bounded, so no wish may be larger.
        let bytes = bytes.min(AHEAD);
        loop {
            let less = |credit: u64| credit.checked_sub(bytes);
            if self.is_free(clock::now_ms())
                || (!self.is_crowded.load(Ordering::Relaxed)
                    && self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok())
            {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_drain_takes_its_share_and_no_more() {
        let pace = Pace::default();
        // Nobody wrote yet.
        pace.turn(1 << 30).await;
        pace.wrote(160);
        assert_eq!(pace.credit.load(Ordering::Relaxed), 10);
        pace.turn(10).await;
        assert_eq!(pace.credit.load(Ordering::Relaxed), 0);
        assert!(!pace.is_free(clock::now_ms()));
        let demanded = pace.demand();
        assert!(pace.is_free(clock::now_ms()));
        pace.turn(1 << 30).await;
        drop(demanded);
        assert!(!pace.is_free(clock::now_ms()));
        pace.set_urgent(true);
        assert!(pace.is_free(clock::now_ms()));
        pace.set_urgent(false);
        assert!(pace.is_free(clock::now_ms() + QUIET_MS + 1));
        pace.set_crowded(true);
        assert!(!pace.is_free(clock::now_ms() + QUIET_MS + 1));
        drop(pace.demand());
        pace.set_urgent(true);
        assert!(pace.is_free(clock::now_ms()));
        pace.set_urgent(false);
        pace.set_crowded(false);
        pace.wrote(1 << 40);
        assert_eq!(pace.credit.load(Ordering::Relaxed), AHEAD);
    }
}
