//! A circle of points at one step. What is added is averaged into the point of its moment; the point of the moment that has not
//! ended yet is kept too, so that a restart goes on with it.

use stoker_store::{Averages, FIGURES, HistoryPoint, HistoryRequest};

/// A point, and how many samples it is made of.
#[derive(Clone, PartialEq, Debug)]
pub struct Slot {
    pub at_ms: u64,
    pub samples: u32,
    pub values: [f32; FIGURES.len()],
}

/// A circle of points.
pub struct Tier {
    every_ms: u64,
    slots: Vec<Option<Slot>>,
    now: Option<(u64, u32, Averages)>,
}

impl Tier {
    pub fn new(every_ms: u64, len: usize) -> Tier {
        Tier { every_ms, slots: vec![None; len], now: None }
    }

    pub fn every_ms(&self) -> u64 {
        self.every_ms
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn slot(&self, at: usize) -> Option<&Slot> {
        self.slots.get(at)?.as_ref()
    }

    /// Where a moment has its place.
    fn place(&self, at_ms: u64) -> usize {
        ((at_ms / self.every_ms) % self.slots.len() as u64) as usize
    }

    /// Takes a point back that was kept; one that cannot be of this circle is not taken.
    pub fn restore(&mut self, at: usize, slot: Slot) -> bool {
        let is_of_here = slot.at_ms.is_multiple_of(self.every_ms) && self.place(slot.at_ms) == at;
        if is_of_here {
            self.slots[at] = Some(slot);
        }
        is_of_here
    }

    /// Takes a sample; the place of the point that changed.
    pub fn add(&mut self, at_ms: u64, values: &[(usize, f64)]) -> usize {
        let begin_ms = at_ms - at_ms % self.every_ms;
        if self.now.as_ref().is_none_or(|(now, ..)| *now != begin_ms) {
            self.now = Some(self.resume(begin_ms));
        }
        let at = self.place(begin_ms);
        if let Some((_, samples, averages)) = &mut self.now {
            *samples = samples.saturating_add(1);
            values.iter().for_each(|(figure, value)| averages.add(*figure, *value, 1));
            self.slots[at] = Some(Slot { at_ms: begin_ms, samples: *samples, values: averages.values() });
        }
        at
    }

    /// The moment that begins then, with what is known of it.
    fn resume(&self, begin_ms: u64) -> (u64, u32, Averages) {
        let mut averages = Averages::default();
        let known = self.slots[self.place(begin_ms)].as_ref().filter(|slot| slot.at_ms == begin_ms);
        let Some(slot) = known else { return (begin_ms, 0, averages) };
        for (figure, value) in slot.values.iter().enumerate() {
            averages.add(figure, f64::from(*value), slot.samples);
        }
        (begin_ms, slot.samples, averages)
    }

    /// Finished points, at a step that is no finer than this circle's. A longer step that has not ended is made of those that have.
    pub fn points(&self, request: HistoryRequest, now_ms: u64) -> Vec<HistoryPoint> {
        let every_ms = request.every_ms.max(self.every_ms);
        let begin_ms = request.since_ms.saturating_sub(request.since_ms % every_ms);
        // What is older than the circle is long is of its last round; what is in the future was written by another clock.
        let oldest_ms = now_ms.saturating_sub(self.every_ms * self.slots.len() as u64);
        let end_ms = now_ms - now_ms % self.every_ms;
        let mut slots: Vec<&Slot> = self.slots.iter().flatten().collect();
        slots.retain(|slot| slot.at_ms >= begin_ms.max(oldest_ms) && slot.at_ms < end_ms);
        slots.sort_unstable_by_key(|slot| slot.at_ms);
        let mut points: Vec<(u64, Averages)> = Vec::new();
        for slot in slots {
            let at_ms = slot.at_ms - slot.at_ms % every_ms;
            if points.last().is_none_or(|(last, _)| *last != at_ms) {
                points.push((at_ms, Averages::default()));
            }
            let Some((_, averages)) = points.last_mut() else { continue };
            for (figure, value) in slot.values.iter().enumerate() {
                averages.add(figure, f64::from(*value), slot.samples.max(1));
            }
        }
        points.into_iter().map(|(at_ms, averages)| HistoryPoint::new(at_ms, &averages.values())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: u64 = 10;

    fn all(tier: &Tier, every_ms: u64, now_ms: u64) -> Vec<(u64, Option<f64>)> {
        let points = tier.points(HistoryRequest { since_ms: 0, every_ms }, now_ms);
        points.iter().map(|point| (point.at_ms, point.value(0))).collect()
    }

    #[test]
    fn samples_become_points_and_points_coarser_points() {
        let mut tier = Tier::new(EVERY, 8);
        for (at_ms, value) in [(101, 1.0), (105, 3.0), (112, 10.0), (119, 20.0), (121, 7.0)] {
            tier.add(at_ms, &[(0, value)]);
        }
        assert_eq!(all(&tier, EVERY, 122), [(100, Some(2.0)), (110, Some(15.0))], "120 has not ended");
        assert_eq!(all(&tier, 40, 170), [(80, Some(8.5)), (120, Some(7.0))]);
        assert_eq!(all(&tier, 40, 122), [(80, Some(8.5))], "what has ended of it");
        assert_eq!(all(&tier, EVERY, 200), [(120, Some(7.0))], "the circle is over for the others");
    }

    #[test]
    fn a_moment_goes_on_after_a_restart() {
        let mut tier = Tier::new(EVERY, 4);
        tier.add(101, &[(0, 1.0)]);
        let kept = tier.slot(tier.place(100)).unwrap().clone();
        let mut again = Tier::new(EVERY, 4);
        assert!(!again.restore(again.place(110), kept.clone()), "not its place");
        assert!(!again.restore(again.place(100), Slot { at_ms: 101, ..kept.clone() }), "not its moment");
        assert!(again.restore(again.place(100), kept));
        again.add(103, &[(0, 5.0)]);
        assert_eq!(all(&again, EVERY, 110), [(100, Some(3.0))]);
    }

    #[test]
    fn a_clock_that_goes_back_leaves_no_future() {
        let mut tier = Tier::new(EVERY, 4);
        tier.add(1_000, &[(0, 1.0)]);
        tier.add(500, &[(0, 2.0)]);
        assert_eq!(all(&tier, EVERY, 520), [(500, Some(2.0))]);
    }
}
