//! Error budgets: how many bad ones an objective allows in thirty days, how fast they are used up, and when that is told.
//!
//! It is told when the budget burns fast both over a long while, so that it matters, and over a short one, so that it still goes on.

use serde::{Deserialize, Serialize};

use crate::window::{Sums, Window};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// Hours that a budget is for.
const BUDGET_HOURS: u64 = 30 * 24;

/// Fewer in the short while say nothing.
const SAMPLES_MIN: u64 = 60;

/// A pair of whiles, and the burn rate that is too much in both.
struct Rule {
    burn: Burn,
    long_ms: u64,
    short_ms: u64,
    rate: f64,
}

/// 14.4 uses up a fiftieth of the budget of thirty days in an hour, 6 a twentieth in six hours.
const RULES: [Rule; 2] = [
    Rule { burn: Burn::Fast, long_ms: HOUR_MS, short_ms: 5 * MINUTE_MS, rate: 14.4 },
    Rule { burn: Burn::Slow, long_ms: 6 * HOUR_MS, short_ms: 30 * MINUTE_MS, rate: 6.0 },
];

/// How fast a budget is used up, if too fast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Burn {
    /// Somebody should look today.
    Slow,
    /// Somebody should look now.
    Fast,
}

/// How an objective does, for people and programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BudgetStatus {
    /// Good ones of thirty days.
    pub good: u64,
    /// Bad ones of thirty days.
    pub bad: u64,
    /// Share of the budget that is left; below zero it is overdrawn.
    pub left: f64,
    /// Burn rate of five minutes, an hour, six hours; none without data.
    pub burn_5m: Option<f64>,
    /// See `burn_5m`.
    pub burn_1h: Option<f64>,
    /// See `burn_5m`.
    pub burn_6h: Option<f64>,
    /// Whether that is too fast.
    pub burning: Option<Burn>,
}

/// The budget of one objective.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Budget {
    minutes: Window,
    hours: Window,
    /// What was told.
    pub told: Option<Burn>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            minutes: Window::new(MINUTE_MS, 6 * 60),
            hours: Window::new(HOUR_MS, BUDGET_HOURS),
            told: None,
        }
    }
}

impl Budget {
    pub fn add(&mut self, run_ms: u64, good: u64, bad: u64) {
        if good > 0 || bad > 0 {
            self.minutes.add(run_ms, good, bad);
            self.hours.add(run_ms, good, bad);
        }
    }

    /// Whether it burns too fast; none also if there is too little to go by.
    pub fn burning(&self, run_ms: u64, target: f64) -> Option<Burn> {
        let is_too_much = |last_ms: u64, rate: f64| {
            let sums = self.minutes.sums(run_ms, last_ms);
            sums.all() >= SAMPLES_MIN && sums.burn(target).is_some_and(|burn| burn >= rate)
        };
        // The first minutes of a long while are not a long while.
        let is_known = |rule: &Rule| self.minutes.known_ms(run_ms, rule.long_ms) >= rule.short_ms;
        let holds = |rule: &&Rule| {
            is_known(rule) && is_too_much(rule.long_ms, rule.rate) && is_too_much(rule.short_ms, rule.rate)
        };
        RULES.iter().find(holds).map(|rule| rule.burn)
    }

    /// What was told is over: lately no more was bad than is allowed. No data is no end.
    pub fn is_calm(&self, told: Burn, run_ms: u64, target: f64) -> bool {
        let rule = RULES.iter().find(|rule| rule.burn == told);
        let burn = rule.and_then(|rule| self.minutes.sums(run_ms, rule.short_ms).burn(target));
        burn.is_some_and(|burn| burn <= 1.0)
    }

    pub fn status(&self, run_ms: u64, target: f64) -> BudgetStatus {
        let month: Sums = self.hours.sums(run_ms, BUDGET_HOURS * HOUR_MS);
        let burn = |last_ms: u64| self.minutes.sums(run_ms, last_ms).burn(target);
        BudgetStatus {
            good: month.good,
            bad: month.bad,
            left: 1.0 - month.burn(target).unwrap_or(0.0),
            burn_5m: burn(5 * MINUTE_MS),
            burn_1h: burn(HOUR_MS),
            burn_6h: burn(6 * HOUR_MS),
            burning: self.burning(run_ms, target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Minutes with bad ones in a thousand, oldest first, after six good hours.
    fn check(minutes: &[(u64, u64)], expect: Option<Burn>) {
        let mut budget = Budget::default();
        let mut minute = 0;
        for (count, bad) in [(360, 0)].iter().chain(minutes) {
            for _ in 0..*count {
                budget.add(minute * MINUTE_MS, 1_000 - bad, *bad);
                minute += 1;
            }
        }
        assert_eq!(budget.burning((minute - 1) * MINUTE_MS, 0.99), expect, "{minutes:?}");
    }

    #[test]
    fn both_whiles_must_burn() {
        check(&[], None);
        check(&[(4, 1_000)], None);
        check(&[(10, 1_000)], Some(Burn::Fast));
        // It is over: the short while is good again.
        check(&[(10, 1_000), (6, 0)], None);
        // Seven times the allowed share, for hours.
        check(&[(60, 70)], None);
        check(&[(350, 70)], Some(Burn::Slow));
        check(&[(360, 50)], None);
    }

    #[test]
    fn too_few_say_nothing() {
        let mut budget = Budget::default();
        budget.add(0, 1, 0);
        budget.add(9 * MINUTE_MS, 0, 59);
        assert_eq!(budget.burning(9 * MINUTE_MS, 0.99), None);
        budget.add(9 * MINUTE_MS, 0, 1);
        assert_eq!(budget.burning(9 * MINUTE_MS, 0.99), Some(Burn::Fast));
        // Nothing was known before the last minutes.
        let mut budget = Budget::default();
        budget.add(0, 0, 1_000);
        budget.add(4 * MINUTE_MS - 1, 0, 1_000);
        assert_eq!(budget.burning(4 * MINUTE_MS - 1, 0.99), None);
        assert_eq!(budget.burning(4 * MINUTE_MS, 0.99), Some(Burn::Fast));
        assert_eq!(Budget::default().status(0, 0.99).left, 1.0);
        assert_eq!(Budget::default().status(0, 0.99).burn_5m, None);
    }

    #[test]
    fn the_end_needs_data() {
        let mut budget = Budget::default();
        budget.add(0, 0, 1_000);
        assert!(!budget.is_calm(Burn::Fast, 0, 0.99));
        assert!(!budget.is_calm(Burn::Fast, 10 * MINUTE_MS, 0.99));
        budget.add(10 * MINUTE_MS, 990, 10);
        assert!(budget.is_calm(Burn::Fast, 10 * MINUTE_MS, 0.99));
        assert!(!budget.is_calm(Burn::Slow, 10 * MINUTE_MS, 0.99));
    }

    #[test]
    fn what_is_left() {
        let mut budget = Budget::default();
        budget.add(0, 9_950, 50);
        let status = budget.status(HOUR_MS, 0.99);
        assert!((status.left - 0.5).abs() < 1e-9, "{status:?}");
        assert_eq!((status.good, status.bad, status.burn_5m), (9_950, 50, None));
        // Thirty days later it is forgotten.
        assert_eq!(budget.status(31 * 24 * HOUR_MS, 0.99).left, 1.0);
    }
}
