//! How many retries are left: a lake that is down is not asked again and again.

use std::sync::{Mutex, PoisonError};

/// What a success gives back.
const REFUND: f64 = 0.1;

/// A bucket of retries.
pub(super) struct Budget {
    left: Mutex<f64>,
    max: f64,
}

impl Budget {
    pub fn new(max: u32) -> Budget {
        Budget { left: Mutex::new(f64::from(max)), max: f64::from(max) }
    }

    /// Takes one retry; false if none is left.
    pub fn take(&self) -> bool {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let has_one = *left >= 1.0;
        if has_one {
            *left -= 1.0;
        }
        has_one
    }

    /// A request worked.
    pub fn refund(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = (*left + REFUND).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_successes_earn_a_retry() {
        let budget = Budget::new(2);
        assert!(budget.take() && budget.take() && !budget.take());
        for _ in 0..11 {
            budget.refund();
        }
        assert!(budget.take() && !budget.take());
        for _ in 0..1000 {
            budget.refund();
        }
        assert!(budget.take() && budget.take() && !budget.take(), "more than the bucket holds");
    }
}
