//! One read and the sources that could answer it: whom to ask, when to ask a second one. Pure: time is an argument.
//!
//! The best is asked first. One that fails is followed by the next at once. One that is late, by its own measure, is joined
//! by the next, and the first good answer wins; that is paid from a [`Budget`], so that a cluster in which everything is
//! slow is not asked for everything twice. One that is hopelessly late is joined in any case.

use std::sync::atomic::{AtomicU32, Ordering};

/// Parts of a hedge that a read pays in, and what a hedge costs: one read of twenty may be asked twice.
const PAID_IN: u32 = 1;
const COST: u32 = 20;

/// Hedges that can be saved up.
const SAVED_MAX: u32 = 16 * COST;

/// Sources that are asked at the same time, at most.
const RUNNING_MAX: usize = 3;

/// What hedges may cost.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU32);

impl Default for Budget {
    fn default() -> Budget {
        Budget(AtomicU32::new(SAVED_MAX))
    }
}

impl Budget {
    /// A read begins.
    pub fn pay_in(&self) {
        if self.0.load(Ordering::Relaxed) < SAVED_MAX {
            let more = |saved: u32| Some((saved + PAID_IN).min(SAVED_MAX));
            let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    fn take(&self) -> bool {
        let less = |saved: u32| saved.checked_sub(COST);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// A source as a read sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entrant<S> {
    pub source: S,
    /// Late after this.
    pub late_us: u64,
    /// Hopelessly late after this.
    pub hopeless_us: u64,
    /// It has the bytes as far as anybody knows; others are asked only when these have failed.
    pub is_likely: bool,
}

/// The read.
#[derive(Debug)]
pub(crate) struct Race<S> {
    entrants: Vec<Entrant<S>>,
    next: usize,
    /// Those asked that have not answered, with the time since.
    running: Vec<(usize, u64)>,
    look_at_us: u64,
    hedges: u32,
}

impl<S: Copy + PartialEq> Race<S> {
    /// A race between sources, the one to be asked first in front.
    pub fn new(entrants: Vec<Entrant<S>>) -> Race<S> {
        Race { entrants, next: 0, running: Vec::with_capacity(RUNNING_MAX), look_at_us: 0, hedges: 0 }
    }

    /// The first source to be asked; none if there is nobody.
    pub fn start(&mut self, now_us: u64) -> Option<S> {
        self.ask_next(now_us)
    }

    /// Sources that were asked although another had not answered.
    pub fn hedges(&self) -> u32 {
        self.hedges
    }

    /// Sources that have been asked and have not answered, with the time since.
    pub fn running(&self) -> impl Iterator<Item = (S, u64)> + '_ {
        self.running.iter().map(|(at, since_us)| (self.entrants[*at].source, *since_us))
    }

    /// A source cannot answer. The next one to be asked; none if another is under way or nobody is left.
    pub fn failed(&mut self, source: S, now_us: u64) -> Option<S> {
        self.running.retain(|(at, _)| self.entrants[*at].source != source);
        match self.running.last() {
            Some((at, since_us)) => {
                self.look_at_us = since_us + self.entrants[*at].late_us;
                None
            }
            None => self.ask_next(now_us),
        }
    }

    /// When somebody will be late; none if nobody could be asked then.
    pub fn look_at_us(&self) -> Option<u64> {
        let has_next = self.entrants.get(self.next).is_some_and(|next| next.is_likely);
        let can = (1..RUNNING_MAX).contains(&self.running.len()) && has_next;
        can.then_some(self.look_at_us)
    }

    /// That time has come: who is to be asked as well, if anybody.
    pub fn late(&mut self, now_us: u64, budget: &Budget) -> Option<S> {
        if self.look_at_us().is_none_or(|at_us| now_us < at_us) {
            return None;
        }
        // The one that was asked last has had its time too.
        let (at, since_us) = self.running[self.running.len() - 1];
        let entrant = &self.entrants[at];
        let hopeless_at_us = since_us + entrant.hopeless_us;
        if now_us < hopeless_at_us && !budget.take() {
            self.look_at_us = (now_us + entrant.late_us.max(1)).min(hopeless_at_us);
            return None;
        }
        self.hedges += 1;
        self.ask_next(now_us)
    }

    fn ask_next(&mut self, now_us: u64) -> Option<S> {
        let entrant = self.entrants.get(self.next)?;
        self.running.push((self.next, now_us));
        self.next += 1;
        self.look_at_us = now_us + entrant.late_us;
        Some(entrant.source)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entrant(source: u8, late_us: u64) -> Entrant<u8> {
        Entrant { source, late_us, hopeless_us: 10 * late_us, is_likely: true }
    }

    #[test]
    fn one_that_fails_is_followed_at_once() {
        let mut race = Race::new(vec![entrant(1, 10), entrant(2, 10)]);
        assert_eq!(race.start(0), Some(1));
        assert_eq!(race.failed(1, 3), Some(2));
        assert_eq!(race.failed(2, 5), None);
        assert_eq!((race.running().count(), race.hedges()), (0, 0));
    }

    #[test]
    fn one_that_is_late_is_joined() {
        let budget = Budget::default();
        let mut race = Race::new((1..=5).map(|source| entrant(source, 10 * u64::from(source))).collect());
        assert_eq!(race.start(100), Some(1));
        assert_eq!(race.look_at_us(), Some(110));
        assert_eq!(race.late(109, &budget), None);
        assert_eq!(race.late(110, &budget), Some(2));
        // Each has its time.
        assert_eq!(race.look_at_us(), Some(130));
        assert_eq!(race.failed(1, 120), None);
        assert_eq!(race.look_at_us(), Some(130));
        assert_eq!(race.late(130, &budget), Some(3));
        assert_eq!(race.late(160, &budget), Some(4));
        // No more than three at a time.
        assert_eq!(race.look_at_us(), None);
        assert_eq!(race.failed(3, 170), None);
        assert_eq!(race.look_at_us(), Some(200));
        assert_eq!(race.running().collect::<Vec<_>>(), [(2, 110), (4, 160)]);
    }

    #[test]
    fn without_a_budget_only_the_hopeless_are_joined() {
        let budget = Budget(AtomicU32::new(0));
        let mut race = Race::new(vec![entrant(1, 10), entrant(2, 10)]);
        race.start(0);
        assert_eq!(race.late(10, &budget), None);
        assert_eq!(race.look_at_us(), Some(20));
        assert_eq!(race.late(95, &budget), None);
        assert_eq!(race.look_at_us(), Some(100));
        assert_eq!(race.late(100, &budget), Some(2));
    }

    #[test]
    fn the_unlikely_are_asked_only_when_others_failed() {
        let budget = Budget::default();
        let unlikely = Entrant { is_likely: false, ..entrant(2, 10) };
        let mut race = Race::new(vec![entrant(1, 10), unlikely]);
        race.start(0);
        assert_eq!(race.look_at_us(), None);
        assert_eq!(race.late(1_000, &budget), None);
        assert_eq!(race.failed(1, 1_000), Some(2));
    }

    #[test]
    fn one_read_of_twenty_may_be_asked_twice() {
        let budget = Budget(AtomicU32::new(0));
        let hedged = (0..1_000).filter(|_| {
            budget.pay_in();
            budget.take()
        });
        assert_eq!(hedged.count(), 50);
        (0..10_000).for_each(|_| budget.pay_in());
        assert_eq!((0..100).filter(|_| budget.take()).count(), 16);
    }

    proptest! {
        /// Whatever happens, nobody is asked twice, few run at once, and it ends only when all have failed.
        #[test]
        fn every_race_ends(
            shape in proptest::collection::vec((1..100u64, any::<bool>()), 0..6),
            events in proptest::collection::vec((0..60u64, 0..4u8), 0..60),
            saved in 0..3u32,
        ) {
            let entrants = shape.iter().enumerate().map(|(at, (late_us, is_likely))| Entrant {
                source: at as u8,
                late_us: *late_us,
                hopeless_us: late_us * 3,
                is_likely: *is_likely,
            });
            let budget = Budget(AtomicU32::new(saved * COST));
            let mut race = Race::new(entrants.collect());
            let (mut now_us, mut asked, mut failed) = (0, Vec::new(), 0);
            asked.extend(race.start(now_us));
            for (passed, event) in events {
                now_us += passed;
                let running: Vec<u8> = race.running().map(|(source, _)| source).collect();
                match running.get(event as usize) {
                    Some(source) => {
                        failed += 1;
                        asked.extend(race.failed(*source, now_us));
                    }
                    None => asked.extend(race.late(now_us, &budget)),
                }
                prop_assert!(race.running().count() <= RUNNING_MAX);
                let mut once = asked.clone();
                once.dedup();
                prop_assert_eq!(&once, &asked);
                prop_assert_eq!(asked.len(), failed + race.running().count());
                let is_over = race.running().count() == 0;
                prop_assert_eq!(is_over, failed == shape.len());
            }
        }
    }
}
