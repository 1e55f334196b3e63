//! Windows for checkpoints: when a job may write one, so that many jobs do not write theirs at once. (D247)
//!
//! **The problem.** Jobs that were started together checkpoint together. What drives take is shared then, and each of them stands still for as
//! long as all of them need, although drives idle in the minutes between.
//!
//! **The parts.** A job asks for a window when it is about to write, says how much, and is told how long to wait: until so much is free of what
//! drives take ([`PARTS`]) as it will need for as long as it will need it. How much that is, is learned: how fast it wrote when it was least
//! disturbed, and how often it writes. When it is done it says so, and the rest of its window is free. Who was pushed back once comes later the
//! next time as well, as its interval counts from its last checkpoint: so jobs spread by themselves, and after a while nobody waits.
//!
//! A window can also be announced for later. Who comes early waits for it, who comes late gets the next gap.
//!
//! **Bounds.** Nobody waits longer than they said, and at most [`WAIT_MS_MAX`]: if nothing is free until then, the window is where the least
//! is taken. A window that nobody ends is over after twice its length. Drains pause while
//! windows have most of what drives take ([`Broker::is_crowded`]), and move to the gaps between.
//!
//! A window is advice about time, and grants nothing: a job that does not ask writes all the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Longest wait.
pub const WAIT_MS_MAX: u64 = 600_000;
/// Jobs that are told apart, and windows that are given; of more, those that were silent longest are forgotten.
pub const RHYTHMS_MAX: usize = 96;
/// What drives take, in parts of windows.
pub const PARTS: u32 = 1_000;

/// What a job takes of which nothing is known.
const PARTS_UNKNOWN: u32 = 125;
/// How long it takes.
const LENGTH_MS_UNKNOWN: u64 = 30_000;
/// A window is no shorter and no longer.
const LENGTH_MS_MIN: u64 = 50;
const LENGTH_MS_MAX: u64 = 3_600_000;
/// A window may be announced so long before.
const AHEAD_MS_MAX: u64 = 86_400_000;
/// Who does not come within so long of what they announced comes late.
const LATE_MS: u64 = 5_000;
/// Windows are given beside each other up to here as long as nobody has to wait too long for it: the rest is for drains, and above it they
/// pause.
const CROWDED_PARTS: u32 = PARTS * 2 / 3;
/// Of a rate that is not reached any more so many parts are kept each time.
const KEPT_OF_16: u64 = 15;

/// What a job asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ask {
    /// Bytes that it will write; 0 if it does not know.
    pub bytes: u64,
    /// When, milliseconds; none for now.
    pub at_ms: Option<u64>,
    /// It waits no longer.
    pub wait_ms_max: u64,
}

/// What it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// When it begins.
    pub start_ms: u64,
    /// When it should be done.
    pub end_ms: u64,
    /// Others write at the same time more than drives take.
    pub is_crowded: bool,
    /// When it will write the next one, by its rhythm.
    pub next_ms: Option<u64>,
}

/// How a job writes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Rhythm {
    /// When it last wanted to write.
    due_ms: u64,
    /// Pause between two of its checkpoints.
    interval_ms: Option<u64>,
    /// Bytes of the last one.
    bytes: u64,
    /// How fast it wrote when it was least disturbed.
    bytes_per_s: Option<u64>,
    /// How long the last ones took from the beginning of the window: a job goes on to the end of a step before it writes.
    length_ms: Option<u64>,
    /// Checkpoints that it finished.
    count: u64,
}

/// A time at which a job writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Window {
    job: String,
    start_ms: u64,
    end_ms: u64,
    parts: u32,
    /// It came, and was told to begin then.
    is_claimed: bool,
}

impl Window {
    fn length_ms(&self) -> u64 {
        self.end_ms - self.start_ms
    }

    /// When it is free: one that takes longer than expected has drives all the same.
    fn free_ms(&self, now_ms: u64) -> u64 {
        match self.is_claimed && self.end_ms <= now_ms {
            true => now_ms + self.length_ms() / 8,
            false => self.end_ms,
        }
    }

    fn is_over(&self, now_ms: u64) -> bool {
        let patience_ms = if self.is_claimed { self.length_ms() } else { 0 };
        now_ms >= self.end_ms.saturating_add(patience_ms)
    }
}

/// Windows that were given, and what is known of jobs. A plain value: who keeps it decides where.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Broker {
    windows: Vec<Window>,
    rhythms: BTreeMap<String, Rhythm>,
}

impl Broker {
    /// Gives a window to a job. `capacity` is what drives take, in bytes per second; none if nobody knows.
    pub fn ask(&mut self, job: &str, ask: Ask, capacity: Option<u64>, now_ms: u64) -> Given {
        self.sweep(now_ms);
        let at_ms = ask.at_ms.map_or(now_ms, |at_ms| at_ms.clamp(now_ms, now_ms + AHEAD_MS_MAX));
        let is_now = at_ms == now_ms;
        if let Some(given) = self.again(job, is_now, now_ms) {
            return given;
        }
        self.windows.retain(|window| window.job != job);
        self.make_room(job);
        if is_now {
            self.note_due(job, ask.bytes, now_ms);
        }
        let (parts, length_ms) = self.need(job, ask.bytes, capacity);
        let latest_ms = at_ms + ask.wait_ms_max.min(WAIT_MS_MAX);
        let (start_ms, taken) = self.gap(parts, length_ms, at_ms, latest_ms, now_ms);
        let end_ms = start_ms + length_ms;
        let window = Window { job: job.to_owned(), start_ms, end_ms, parts, is_claimed: is_now };
        let at = self.windows.partition_point(|other| other.start_ms <= start_ms);
        self.windows.insert(at, window);
        Given { start_ms, end_ms, is_crowded: taken + parts > PARTS, next_ms: self.next_ms(job) }
    }

    /// A job is done with its window; false if it had none.
    pub fn end(&mut self, job: &str, bytes: u64, now_ms: u64) -> bool {
        let Some(at) = self.windows.iter().position(|window| window.job == job && window.is_claimed) else {
            return false;
        };
        let window = self.windows.remove(at);
        let took_ms = now_ms.saturating_sub(window.start_ms);
        if let Some(rhythm) = self.rhythms.get_mut(job)
            // One that is over before it began says nothing of its rate.
            && took_ms > 0
        {
            rhythm.count += 1;
            rhythm.length_ms = Some(rhythm.length_ms.map_or(took_ms, |known| known.midpoint(took_ms)));
            if bytes > 0 {
                rhythm.bytes = bytes;
                let rate = (u128::from(bytes) * 1_000 / u128::from(took_ms)) as u64;
                let kept = rhythm.bytes_per_s.map_or(0, |kept| kept / 16 * KEPT_OF_16);
                rhythm.bytes_per_s = Some(rate.max(kept).max(1));
            }
        }
        self.sweep(now_ms);
        true
    }

    /// Of what drives take so much is given to windows that are open now, in parts of [`PARTS`].
    pub fn open_parts(&self, now_ms: u64) -> u32 {
        let open =
            |window: &&Window| window.start_ms <= now_ms && !window.is_over(now_ms) && window.is_claimed;
        self.windows.iter().filter(open).map(|window| window.parts).sum()
    }

    /// Windows have most of what drives take: drains had better wait.
    pub fn is_crowded(&self, now_ms: u64) -> bool {
        self.open_parts(now_ms) > CROWDED_PARTS
    }

    /// When a job will write, by its rhythm.
    pub fn next_ms(&self, job: &str) -> Option<u64> {
        let rhythm = self.rhythms.get(job)?;
        Some(rhythm.due_ms + rhythm.interval_ms?)
    }

    /// Whether there is a window that is not over.
    pub fn has_windows(&self, now_ms: u64) -> bool {
        self.windows.iter().any(|window| !window.is_over(now_ms))
    }

    /// The window that a job has already: all its ranks have one, and one that was announced is there for who comes.
    fn again(&mut self, job: &str, is_now: bool, now_ms: u64) -> Option<Given> {
        let next_ms = self.next_ms(job);
        let window = self.windows.iter_mut().find(|window| window.job == job)?;
        if !is_now && !window.is_claimed {
            // It announces something else.
            return None;
        }
        let is_late = !window.is_claimed && now_ms > window.start_ms + LATE_MS.min(window.length_ms() / 4);
        if is_late {
            return None;
        }
        if is_now && !window.is_claimed {
            window.is_claimed = true;
            self.note_due(job, 0, now_ms);
        }
        let window = self.windows.iter().find(|window| window.job == job)?;
        Some(Given { start_ms: window.start_ms, end_ms: window.end_ms, is_crowded: false, next_ms })
    }

    fn note_due(&mut self, job: &str, bytes: u64, now_ms: u64) {
        let rhythm = self.rhythms.entry(job.to_owned()).or_default();
        if rhythm.due_ms > 0 {
            let seen_ms = now_ms.saturating_sub(rhythm.due_ms);
            // Half of what is seen: steps are not even, and one pause is not a rhythm.
            rhythm.interval_ms = Some(rhythm.interval_ms.map_or(seen_ms, |known| known.midpoint(seen_ms)));
        }
        rhythm.due_ms = now_ms;
        if bytes > 0 {
            rhythm.bytes = bytes;
        }
    }

    /// Forgets others, if there are too many.
    fn make_room(&mut self, job: &str) {
        if !self.rhythms.contains_key(job) && self.rhythms.len() >= RHYTHMS_MAX {
            let oldest = self.rhythms.iter().min_by_key(|(_, rhythm)| rhythm.due_ms);
            if let Some(oldest) = oldest.map(|(job, _)| job.clone()) {
                self.windows.retain(|window| window.job != oldest);
                self.rhythms.remove(&oldest);
            }
        }
        // What was announced for later goes first.
        self.windows.truncate(RHYTHMS_MAX - 1);
    }

    /// How much of what drives take a job needs, and for how long.
    fn need(&self, job: &str, bytes: u64, capacity: Option<u64>) -> (u32, u64) {
        let rhythm = self.rhythms.get(job);
        let bytes = if bytes > 0 { bytes } else { rhythm.map_or(0, |rhythm| rhythm.bytes) };
        let rate = rhythm.and_then(|rhythm| rhythm.bytes_per_s);
        let guess = capacity.map(|capacity| capacity / u64::from(PARTS) * u64::from(PARTS_UNKNOWN));
        let length_ms = match rate.or(guess).filter(|rate| *rate > 0) {
            Some(rate) if bytes > 0 => (u128::from(bytes) * 1_000).div_ceil(u128::from(rate)) as u64,
            _ => LENGTH_MS_UNKNOWN,
        };
        let length_ms = length_ms.max(rhythm.and_then(|rhythm| rhythm.length_ms).unwrap_or(0));
        let parts = match (rate, capacity) {
            (Some(rate), Some(capacity)) if capacity > 0 => {
                let parts = (u128::from(rate) * u128::from(PARTS)).div_ceil(u128::from(capacity));
                u32::try_from(parts).unwrap_or(PARTS)
            }
            _ => PARTS_UNKNOWN,
        };
        (parts.clamp(1, PARTS), length_ms.clamp(LENGTH_MS_MIN, LENGTH_MS_MAX))
    }

    /// The first time at which so much is free for so long, beside drains if there is one; if there is none until the latest, that at which
    /// the least is taken.
    fn gap(&self, parts: u32, length_ms: u64, from_ms: u64, latest_ms: u64, now_ms: u64) -> (u64, u32) {
        let mut starts: Vec<u64> = self.windows.iter().map(|window| window.free_ms(now_ms)).collect();
        starts.retain(|start_ms| (from_ms..=latest_ms).contains(start_ms));
        starts.push(from_ms);
        starts.sort_unstable();
        starts.dedup();
        let all: Vec<(u64, u32)> = starts
            .into_iter()
            .map(|start_ms| (start_ms, self.taken(start_ms, start_ms + length_ms, now_ms)))
            .collect();
        let first = |most: u32| all.iter().find(|(_, taken)| *taken == 0 || taken + parts <= most).copied();
        let least = || all.iter().min_by_key(|(_, taken)| *taken).copied();
        first(CROWDED_PARTS).or_else(|| first(PARTS)).or_else(least).unwrap_or((from_ms, 0))
    }

    /// The most that is taken at any time between two.
    fn taken(&self, from_ms: u64, to_ms: u64, now_ms: u64) -> u32 {
        let over: Vec<(u64, u64, u32)> = self
            .windows
            .iter()
            .map(|window| (window.start_ms, window.free_ms(now_ms), window.parts))
            .filter(|(start_ms, free_ms, _)| *start_ms < to_ms && *free_ms > from_ms)
            .collect();
        let at = |at_ms: u64| -> u32 {
            let open = over.iter().filter(|(start_ms, free_ms, _)| *start_ms <= at_ms && *free_ms > at_ms);
            open.map(|(_, _, parts)| parts).sum()
        };
        // It only grows where a window begins.
        let begins = over.iter().map(|(start_ms, _, _)| (*start_ms).max(from_ms));
        begins.map(at).max().unwrap_or(0)
    }

    fn sweep(&mut self, now_ms: u64) {
        self.windows.retain(|window| !window.is_over(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Option<u64> = Some(1_600_000);

    fn ask(broker: &mut Broker, job: &str, now_ms: u64) -> Given {
        broker.ask(job, Ask { bytes: 5_000_000, at_ms: None, wait_ms_max: 60_000 }, CAPACITY, now_ms)
    }

    /// A broker that knows of jobs that each of them needs nearly a third of what drives take, for ten seconds.
    fn taught(jobs: &[&str]) -> Broker {
        let mut broker = Broker::default();
        for job in jobs {
            ask(&mut broker, job, 1_000);
            assert!(broker.end(job, 5_000_000, 11_000));
        }
        broker
    }

    #[test]
    fn as_many_write_as_drives_take_and_the_next_one_waits() {
        let mut broker = taught(&["a", "b", "c", "d", "e"]);
        let starts: Vec<u64> =
            ["a", "b", "c"].iter().map(|job| ask(&mut broker, job, 100_000).start_ms).collect();
        assert_eq!(starts, [100_000, 100_000, 110_000], "a third of the drives is for drains");
        // Every rank of a job has the window of the job.
        assert_eq!(ask(&mut broker, "c", 105_000).start_ms, 110_000);
        // One that is done early makes room for others.
        assert!(broker.end("a", 5_000_000, 102_000));
        assert!(!broker.end("a", 5_000_000, 102_000));
        assert_eq!(ask(&mut broker, "d", 102_000).start_ms, 102_000);
        assert!(!broker.is_crowded(103_000));
        // Who does not wait takes the part of drains, if there is nothing else.
        let now = Ask { bytes: 5_000_000, at_ms: None, wait_ms_max: 0 };
        assert_eq!(broker.ask("e", now, CAPACITY, 103_000).start_ms, 103_000);
        assert!(broker.is_crowded(103_000) && !broker.is_crowded(125_000));
    }

    #[test]
    fn nobody_waits_longer_than_they_said() {
        let jobs: Vec<String> = (0..90).map(|at| format!("job-{at}")).collect();
        let names: Vec<&str> = jobs.iter().map(String::as_str).collect();
        let mut broker = taught(&names);
        for job in &names {
            let given = ask(&mut broker, job, 200_000);
            assert!((200_000..=260_000).contains(&given.start_ms), "{given:?}");
        }
        let long = Ask { bytes: 1, at_ms: None, wait_ms_max: u64::MAX };
        let given = broker.ask("x", long, CAPACITY, 200_000);
        assert!(given.start_ms <= 200_000 + WAIT_MS_MAX);
    }

    #[test]
    fn what_was_announced_is_kept_and_who_is_late_gets_the_next_gap() {
        let mut broker = taught(&["a", "b", "c"]);
        let later = Ask { bytes: 5_000_000, at_ms: Some(150_000), wait_ms_max: 60_000 };
        assert_eq!(broker.ask("a", later, CAPACITY, 100_000).start_ms, 150_000);
        assert_eq!(broker.ask("b", later, CAPACITY, 100_000).start_ms, 150_000);
        assert_eq!(ask(&mut broker, "c", 145_000).start_ms, 160_000, "others have it then");
        assert_eq!(ask(&mut broker, "a", 149_000).start_ms, 150_000, "who comes early waits");
        assert_eq!(ask(&mut broker, "b", 156_000).start_ms, 156_000, "and who is late gets what is free");
    }

    #[test]
    fn a_rhythm_is_learned() {
        let mut broker = Broker::default();
        for round in 1..=4 {
            ask(&mut broker, "a", round * 100_000);
            broker.end("a", 5_000_000, round * 100_000 + 10_000);
        }
        assert_eq!(broker.next_ms("a"), Some(500_000));
        assert_eq!(broker.need("a", 0, CAPACITY), (313, 10_000));
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_nobody_ends_is_over() {
        let mut broker = Broker::default();
        for job in 0..300_u64 {
            ask(&mut broker, &format!("job-{job}"), 1_000 + job);
        }
        assert!(broker.rhythms.len() <= RHYTHMS_MAX && broker.windows.len() <= RHYTHMS_MAX);
        ask(&mut broker, "last", 10_000_000);
        assert_eq!(broker.windows.len(), 1, "a job that died holds nothing");
        let never = Ask { bytes: u64::MAX, at_ms: Some(u64::MAX), wait_ms_max: u64::MAX };
        broker.ask("far", never, Some(1), 10_000_000);
        broker.end("far", u64::MAX, 0);
        for job in 0..200_u64 {
            broker.ask(&format!("{job:0>129}"), never, Some(u64::MAX), 1_800_000_000_000 + job);
            ask(&mut broker, &format!("{job:0>129}"), 1_800_000_000_000 + job);
        }
        assert!(serde_json::to_vec(&broker).unwrap().len() < 60 << 10, "it is a row");
    }
}
