//! Points between the steps of a change at which a test can kill the process.

/// A step was done. Does nothing outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(super) fn point(_step: &str) {}

#[cfg(test)]
pub(super) use armed::{EXIT_CODE, arm, point};

#[cfg(test)]
mod armed {
    use std::sync::atomic::{AtomicI64, Ordering};

    /// How a killed process is told from one that failed.
    pub const EXIT_CODE: i32 = 77;

    static STEPS_LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

    /// Kills the process at the n-th point from now.
    pub fn arm(steps: i64) {
        STEPS_LEFT.store(steps, Ordering::SeqCst);
    }

    /// A step was done; perhaps the last.
    pub fn point(_step: &str) {
        if STEPS_LEFT.load(Ordering::Relaxed) != i64::MAX && STEPS_LEFT.fetch_sub(1, Ordering::SeqCst) == 0 {
            std::process::exit(EXIT_CODE);
        }
    }
}
