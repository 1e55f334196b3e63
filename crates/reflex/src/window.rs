//! Good and bad over time, in steps, within bounds.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A bounded ring of counts, one for each step of time in which there were any.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Window {
    step_ms: u64,
    steps_max: u64,
    steps: VecDeque<Step>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Step {
    at: u64,
    good: u64,
    bad: u64,
}

/// Sums over a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sums {
    pub good: u64,
    pub bad: u64,
}

impl Sums {
    pub fn all(&self) -> u64 {
        self.good.saturating_add(self.bad)
    }

    /// How many times as fast as allowed the budget for bad ones is used up; none if there is nothing to go by.
    pub fn burn(&self, target: f64) -> Option<f64> {
        let all = self.all();
        (all > 0).then(|| self.bad as f64 / all as f64 / (1.0 - target))
    }
}

impl Window {
    pub fn new(step_ms: u64, steps_max: u64) -> Window {
        assert!(step_ms > 0 && steps_max > 0, "a window has a length");
        Window { step_ms, steps_max, steps: VecDeque::new() }
    }

    pub fn add(&mut self, run_ms: u64, good: u64, bad: u64) {
        let at = run_ms / self.step_ms;
        match self.steps.back_mut().filter(|last| last.at >= at) {
            Some(last) => {
                last.good = last.good.saturating_add(good);
                last.bad = last.bad.saturating_add(bad);
            }
            None => self.steps.push_back(Step { at, good, bad }),
        }
        while self.steps.front().is_some_and(|first| first.at + self.steps_max <= at) {
            self.steps.pop_front();
        }
    }

    /// How much of the last so many milliseconds something is known of, from the first step with data to now.
    pub fn known_ms(&self, run_ms: u64, last_ms: u64) -> u64 {
        let at = run_ms / self.step_ms;
        let steps = last_ms.div_ceil(self.step_ms).min(self.steps_max);
        let first = self.steps.iter().find(|step| step.at + steps > at && step.at <= at);
        first.map_or(0, |first| (at - first.at + 1) * self.step_ms)
    }

    /// Of the last so many milliseconds, in whole steps.
    pub fn sums(&self, run_ms: u64, last_ms: u64) -> Sums {
        let at = run_ms / self.step_ms;
        let steps = last_ms.div_ceil(self.step_ms).min(self.steps_max);
        let recent = self.steps.iter().filter(|step| step.at + steps > at && step.at <= at);
        recent.fold(Sums::default(), |sums, step| Sums {
            good: sums.good.saturating_add(step.good),
            bad: sums.bad.saturating_add(step.bad),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_last_steps() {
        let mut window = Window::new(60_000, 10);
        for minute in 0..30 {
            window.add(minute * 60_000 + 5, 90, 10);
        }
        assert_eq!(window.steps.len(), 10);
        let now = 29 * 60_000 + 7;
        for (last_ms, expect) in [(1, 1), (60_000, 1), (60_001, 2), (300_000, 5), (86_400_000, 10)] {
            let sums = window.sums(now, last_ms);
            assert_eq!((sums.good, sums.bad), (expect * 90, expect * 10), "{last_ms}");
        }
        assert_eq!((window.known_ms(now, 300_000), window.known_ms(now + 600_000, 300_000)), (300_000, 0));
        // What is long ago is not in it, also if nothing came since.
        assert_eq!(window.sums(now + 5 * 60_000, 300_000), Sums::default());
        assert_eq!(window.sums(now, 60_000).burn(0.99).map(|burn| burn.round()), Some(10.0));
        assert_eq!(Sums::default().burn(0.99), None);
    }

    #[test]
    fn it_is_bounded_and_never_overflows() {
        let mut window = Window::new(1, 3);
        for at in [0, 5, 5, 4, 9] {
            window.add(at, u64::MAX, u64::MAX);
        }
        assert!(window.steps.len() <= 3);
        assert_eq!(window.sums(9, 100).all(), u64::MAX);
    }
}
