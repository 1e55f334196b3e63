//! How long a leader may answer reads by itself.
//!
//! A follower that heard the leader votes for nobody for as long as an election takes at least. So once a majority answered to a question of
//! the leader, nobody else leads before that time is over, counted from when the question was asked. Time is that of a clock that goes on
//! while a process is paused; a read is checked after it was read, so that a pause in between does no harm.

use std::collections::VecDeque;
use std::time::Duration;

/// Questions that may wait for their answers; more are forgotten from the oldest on.
const ASKED_MAX: usize = 64;

/// The lease of a leader.
#[derive(Debug)]
pub struct Lease {
    /// How long it lasts from the question on.
    length: Duration,
    asked: VecDeque<(u64, Duration)>,
    last: u64,
    until: Duration,
}

impl Lease {
    /// One that has not begun.
    pub fn new(length: Duration) -> Lease {
        Lease { length, asked: VecDeque::new(), last: 0, until: Duration::ZERO }
    }

    /// The number of a question that is asked now.
    pub fn ask(&mut self, now: Duration) -> u64 {
        self.last += 1;
        self.asked.push_back((self.last, now));
        if self.asked.len() > ASKED_MAX {
            self.asked.pop_front();
        }
        self.last
    }

    /// A majority answered to a question. Gives the time at which it was asked.
    pub fn confirmed(&mut self, number: u64) -> Option<Duration> {
        let at = self.asked.iter().find(|(asked, _)| *asked == number).map(|(_, at)| *at)?;
        self.asked.retain(|(asked, _)| *asked > number);
        self.until = self.until.max(at + self.length);
        Some(at)
    }

    /// Until when it lasts.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// It is over, and what was asked before says nothing any more.
    pub fn end(&mut self) {
        self.asked.clear();
        self.until = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_from_the_question_on_and_not_from_the_answer() {
        let ms = Duration::from_millis;
        let mut lease = Lease::new(ms(100));
        let (first, second) = (lease.ask(ms(10)), lease.ask(ms(50)));
        assert_eq!(lease.confirmed(second), Some(ms(50)));
        assert_eq!(lease.until(), ms(150));
        assert_eq!(lease.confirmed(first), None, "an older answer adds nothing");
        let third = lease.ask(ms(60));
        lease.end();
        assert_eq!((lease.confirmed(third), lease.until()), (None, Duration::ZERO));
    }
}
