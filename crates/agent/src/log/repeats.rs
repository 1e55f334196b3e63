//! The same line again and again: a node without descriptors would say ten times a second that it cannot accept. (D101)

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a line is not said again.
const PAUSE: Duration = Duration::from_secs(30);
/// Lines that are remembered; beyond that all are forgotten, and said once more.
const LINES_MAX: usize = 1024;

/// Which lines were said lately.
#[derive(Default)]
pub struct Repeats(HashMap<u64, (Instant, u64)>);

impl Repeats {
    /// Whether a line is said: none if it was a moment ago, otherwise how often it was left out since then.
    pub fn admit(&mut self, line: u64, now: Instant) -> Option<u64> {
        match self.0.get_mut(&line) {
            Some((said, skipped)) if now.duration_since(*said) < PAUSE => {
                *skipped += 1;
                None
            }
            Some((said, skipped)) => {
                *said = now;
                Some(std::mem::take(skipped))
            }
            None => {
                if self.0.len() >= LINES_MAX {
                    self.0.clear();
                }
                self.0.insert(line, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_line_is_said_once_in_a_while_and_others_at_once() {
        let begun = clock::now();
        let mut repeats = Repeats::default();
        let mut at = |seconds, line| repeats.admit(line, begun + Duration::from_secs(seconds));
        assert_eq!((at(0, 1), at(0, 2)), (Some(0), Some(0)));
        assert_eq!((at(1, 1), at(29, 1)), (None, None));
        assert_eq!((at(30, 1), at(31, 1)), (Some(2), None));
        assert_eq!(at(61, 1), Some(1));
        for line in 10..10_000 {
            assert_eq!(at(62, line), Some(0));
        }
        assert!(repeats.0.len() <= LINES_MAX);
    }
}
