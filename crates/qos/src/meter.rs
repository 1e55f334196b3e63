//! What a resource was seen to do, so that nobody has to say it. (R18)
//!
//! A window of [`WINDOW_NS`] counts if the resource was busy for half of it or more; its rate is what was done, by the time in which
//! something was in flight. The capacity is the best window of the last [`EPOCHS`] minutes: one that was asked for little says little, and
//! one that got slower is noticed after that time. Reads and writes are measured apart, and where both are known the slower one counts:
//! what is promised holds for either. Windows of both kinds say nothing of one.

use crate::settings::{Capacity, Cost, Rate};

/// A window: long enough that a flush or two do not decide it.
pub(crate) const WINDOW_NS: u64 = 500_000_000;

/// Best windows are remembered by the minute.
const EPOCH_NS: u64 = 60_000_000_000;

/// Minutes that count.
pub(crate) const EPOCHS: usize = 16;

/// Of a window of one kind so many parts in a hundred may be of the other.
const OTHER_PERCENT: u64 = 10;

/// The best of one kind, by minute.
#[derive(Clone, Copy, Debug, Default)]
struct Best {
    epochs: [(u64, u64); EPOCHS],
}

impl Best {
    fn all(&self) -> (u64, u64) {
        self.epochs.iter().fold((0, 0), |(bytes, ops), one| (bytes.max(one.0), ops.max(one.1)))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Of this window: since when, for how long it was busy, and what was done: bytes and operations of reads and of writes.
    since: u64,
    busy: u64,
    done: [(u64, u64); 2],
    /// Since when something is in flight.
    begun: Option<u64>,
    epoch: u64,
    best: [Best; 2],
    /// What it did in an earlier life; counts until something better is known.
    recalled: Capacity,
}

impl Meter {
    /// The first of those in flight began.
    pub fn begin(&mut self, now: u64) {
        if self.begun.is_none() {
            self.begun = Some(now);
            if self.busy == 0 && self.done == [(0, 0); 2] {
                self.since = now;
            }
        }
    }

    /// Something is done.
    pub fn end(&mut self, now: u64, cost: Cost, is_idle: bool) {
        let kind = &mut self.done[usize::from(cost.is_write)];
        kind.0 += cost.bytes;
        kind.1 += u64::from(cost.ops);
        if is_idle || now.saturating_sub(self.since) >= WINDOW_NS {
            let begun = self.begun.take().unwrap_or(now);
            self.busy += now.saturating_sub(begun);
            self.begun = (!is_idle).then_some(now);
        }
        if now.saturating_sub(self.since) >= WINDOW_NS {
            self.close(now);
        }
    }

    fn close(&mut self, now: u64) {
        let (length, busy, done) = (now.saturating_sub(self.since), self.busy, self.done);
        (self.since, self.busy, self.done) = (now, 0, [(0, 0); 2]);
        let epoch = now / EPOCH_NS;
        if epoch != self.epoch {
            for best in &mut self.best {
                // What lies between two busy minutes was not measured: as many of the old ones go.
                let gone = epoch.saturating_sub(self.epoch).min(EPOCHS as u64);
                (1..=gone)
                    .for_each(|step| best.epochs[((self.epoch + step) % EPOCHS as u64) as usize] = (0, 0));
            }
            self.epoch = epoch;
        }
        if busy < length / 2 || busy == 0 {
            return;
        }
        let at = (epoch % EPOCHS as u64) as usize;
        for (kind, other) in [(0, 1), (1, 0)] {
            let (own, theirs) = (done[kind], done[other]);
            if own.1 == 0 || theirs.0 * 100 > own.0 * OTHER_PERCENT || theirs.1 * 100 > own.1 * OTHER_PERCENT
            {
                continue;
            }
            let rate = |amount: u64| (u128::from(amount) * 1_000_000_000 / u128::from(busy)) as u64;
            let best = &mut self.best[kind].epochs[at];
            *best = (best.0.max(rate(own.0)), best.1.max(rate(own.1)));
        }
    }

    /// What it can do, as far as it was seen.
    pub fn capacity(&self) -> Capacity {
        let [reads, writes] = self.best.map(|best| best.all());
        let slower = |a: u64, b: u64| match (a, b) {
            (0, 0) => None,
            (0, known) | (known, 0) => Some(known),
            (a, b) => Some(a.min(b)),
        };
        let or_before = |seen: Option<u64>, before: Option<u64>| match (seen, before) {
            // Small operations move few bytes, and large ones are few: neither says that it became slower.
            (Some(seen), Some(before)) => Some(seen.max(before)),
            (seen, before) => seen.or(before),
        };
        Rate {
            bytes_per_s: or_before(slower(reads.0, writes.0), self.recalled.bytes_per_s),
            ops_per_s: or_before(slower(reads.1, writes.1), self.recalled.ops_per_s),
        }
    }

    /// What it could do before this process began.
    pub fn recall(&mut self, capacity: Capacity) {
        self.recalled = capacity;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs one operation after the other for so long; gives the time at its end.
    fn run(meter: &mut Meter, from: u64, ms: u64, each_ns: u64, cost: Cost) -> u64 {
        let mut now = from;
        while now < from + ms * MS {
            meter.begin(now);
            now += each_ns;
            meter.end(now, cost, true);
        }
        now
    }

    #[test]
    fn the_best_window_is_the_capacity_and_the_slower_kind_counts() {
        let mut meter = Meter::default();
        assert_eq!(meter.capacity(), Rate::default());
        // 1 MB in a millisecond: 1 GB/s of reads.
        let mut now = run(&mut meter, 0, 2_000, MS, Cost::bytes(1_000_000));
        assert_eq!(meter.capacity(), Rate { bytes_per_s: Some(1_000_000_000), ops_per_s: Some(1_000) });
        // Writes take twice as long.
        now = run(&mut meter, now, 2_000, 2 * MS, Cost::write(1_000_000));
        assert_eq!(meter.capacity(), Rate { bytes_per_s: Some(500_000_000), ops_per_s: Some(500) });
        // Who asks for less does not make it slower.
        for _ in 0..1_000 {
            now += 9 * MS;
            meter.begin(now);
            now += MS;
            meter.end(now, Cost::write(1_000_000), true);
        }
        assert_eq!(meter.capacity().bytes_per_s, Some(500_000_000));
        // After many minutes it is what it does by then.
        for _ in 0..EPOCHS + 1 {
            now += 60_000 * MS;
            now = run(&mut meter, now, 1_000, 4 * MS, Cost::write(1_000_000));
        }
        assert_eq!(meter.capacity().bytes_per_s, Some(250_000_000));
    }

    #[test]
    fn what_was_known_before_counts_until_more_is_seen() {
        let mut meter = Meter::default();
        meter.recall(Rate::bytes(700_000_000));
        run(&mut meter, 0, 1_000, 2 * MS, Cost::bytes(1_000_000));
        assert_eq!(meter.capacity().bytes_per_s, Some(700_000_000));
        run(&mut meter, 2_000 * MS, 1_000, MS, Cost::bytes(1_000_000));
        assert_eq!(meter.capacity().bytes_per_s, Some(1_000_000_000));
    }
}
