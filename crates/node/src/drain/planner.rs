//! When a version drains. Pure: takes events and time, says what is due.

use std::collections::{BTreeSet, HashMap};

use stoker_format::VersionId;

/// Versions kept in mind; what is beyond is found again by reading the catalog's dirty rows.
const TASKS_MAX: usize = 200_000;

/// Longest pause between tries.
const PAUSE_MS_MAX: u64 = 30_000;

/// A version that has to reach the lake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub version: VersionId,
    pub bytes: u64,
    /// Oldest change that is not in the lake.
    pub since_ms: u64,
    /// When it may go.
    pub due_ms: u64,
    /// Failed tries.
    pub tries: u32,
    /// Somebody asked for it, whatever the policy.
    pub demanded: bool,
}

/// When a file that changed is due: quiet for a while, or its oldest change too old.
pub(crate) fn due_ms(since_ms: u64, changed_ms: u64, quiet_s: u32, lag_max_s: u32) -> u64 {
    (changed_ms + u64::from(quiet_s) * 1_000).min(since_ms + u64::from(lag_max_s) * 1_000)
}

/// Versions by the time that they are due.
#[derive(Default)]
pub(crate) struct Planner {
    tasks: HashMap<VersionId, Task>,
    order: BTreeSet<(u64, VersionId)>,
    active: HashMap<VersionId, Task>,
    /// Noted while they were under way: perhaps under a name that was not there when that began.
    again: HashMap<VersionId, Task>,
    bytes: u64,
    overflowed: bool,
}

impl Planner {
    /// A version is dirty. Known ones keep what was demanded of them.
    pub fn note(&mut self, mut task: Task) {
        if self.active.contains_key(&task.version) {
            task.demanded |= self.again.get(&task.version).is_some_and(|known| known.demanded);
            self.again.insert(task.version, task);
            return;
        }
        if let Some(old) = self.tasks.remove(&task.version) {
            self.order.remove(&(old.due_ms, old.version));
            self.bytes -= old.bytes;
            task.demanded |= old.demanded;
            task.tries = old.tries;
            if task.tries > 0 {
                task.due_ms = task.due_ms.max(old.due_ms);
            } else if old.demanded {
                // Whoever notes it again may not know that somebody waits for it.
                task.due_ms = task.due_ms.min(old.due_ms);
            }
        } else if self.tasks.len() >= TASKS_MAX {
            self.overflowed = true;
            return;
        }
        self.order.insert((task.due_ms, task.version));
        self.bytes += task.bytes;
        self.tasks.insert(task.version, task);
    }

    /// Whether a version waits for its turn.
    pub fn waits(&self, version: &VersionId) -> bool {
        self.tasks.contains_key(version)
    }

    /// Whether somebody asked for a version that waits for its turn or has it.
    pub fn is_demanded(&self, version: &VersionId) -> bool {
        let plans = [&self.tasks, &self.active, &self.again];
        plans.iter().any(|plan| plan.get(version).is_some_and(|task| task.demanded))
    }

    /// The next version that is due; it counts as under way until `done` or `retry`.
    pub fn next(&mut self, now_ms: u64) -> Option<Task> {
        let &(due_ms, version) = self.order.first()?;
        if due_ms > now_ms {
            return None;
        }
        self.order.pop_first();
        let task = self.tasks.remove(&version)?;
        self.active.insert(version, task.clone());
        Some(task)
    }

    /// When the next one is due.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.order.first().map(|(due_ms, _)| *due_ms)
    }

    /// A version reached the lake, or is nobody's business any more.
    pub fn done(&mut self, version: VersionId) {
        self.leave(version);
        if let Some(task) = self.again.remove(&version) {
            self.note(task);
        }
    }

    fn leave(&mut self, version: VersionId) -> Option<Task> {
        let task = self.active.remove(&version)?;
        self.bytes -= task.bytes;
        Some(task)
    }

    /// Like [`Self::leave`] for one that comes again anyway.
    fn leave_for_now(&mut self, version: VersionId) -> Option<Task> {
        let mut task = self.leave(version)?;
        task.demanded |= self.again.remove(&version).is_some_and(|again| again.demanded);
        Some(task)
    }

    /// It did not work: again later, with growing pauses. `jitter` is any number.
    pub fn retry(&mut self, version: VersionId, now_ms: u64, jitter: u64) {
        if let Some(mut task) = self.leave_for_now(version) {
            let pause_ms = (250u64 << task.tries.min(10)).min(PAUSE_MS_MAX);
            task.due_ms = now_ms + pause_ms / 2 + jitter % (pause_ms / 2 + 1);
            task.tries += 1;
            self.note(task);
        }
    }

    /// Not its turn yet: again at a given time, which is no failure.
    pub fn postpone(&mut self, version: VersionId, due_ms: u64) {
        if let Some(mut task) = self.leave_for_now(version) {
            task.due_ms = due_ms;
            self.note(task);
        }
    }

    /// True once when versions were dropped for lack of room and there is room again.
    pub fn take_overflow(&mut self) -> bool {
        self.tasks.len() < TASKS_MAX / 2 && std::mem::take(&mut self.overflowed)
    }

    /// Files, bytes and the oldest change that are not in the lake.
    pub fn sums(&self) -> (u64, u64, Option<u64>) {
        let all = || self.tasks.values().chain(self.active.values());
        (all().count() as u64, self.bytes, all().map(|task| task.since_ms).min())
    }

    /// Bytes that are not in the lake.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Versions under way.
    pub fn active(&self) -> usize {
        self.active.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: u8, due_ms: u64) -> Task {
        Task { version: VersionId([id; 12]), bytes: 1, since_ms: 0, due_ms, tries: 0, demanded: false }
    }

    #[test]
    fn what_was_demanded_is_not_put_off() {
        let mut planner = Planner::default();
        planner.note(Task { demanded: true, ..task(1, 0) });
        planner.note(task(1, 5_000));
        assert_eq!(planner.next(1).map(|task| task.demanded), Some(true));
    }

    #[test]
    fn quiet_files_go_soon_and_busy_ones_at_the_lag() {
        let check = |since, changed, expect| assert_eq!(due_ms(since, changed, 10, 300), expect);
        check(1_000, 1_000, 11_000);
        check(1_000, 200_000, 210_000);
        check(1_000, 295_000, 301_000);
    }

    #[test]
    fn ten_minutes_of_appends_are_two_uploads() {
        // One append a second; each publish replaces the version but keeps the age of the oldest change.
        let (mut uploads, mut since) = (0, None);
        let mut planner = Planner::default();
        let mut last: Option<VersionId> = None;
        for second in 0..=900u64 {
            let now = second * 1_000;
            if second < 600 {
                let mut id = [0; 12];
                id[..8].copy_from_slice(&second.to_be_bytes());
                let version = VersionId(id);
                // What was replaced has no name when its time comes.
                last = Some(version);
                let oldest = *since.get_or_insert(now);
                let due = due_ms(oldest, now, 10, 300);
                planner.note(Task {
                    version,
                    bytes: 1,
                    since_ms: oldest,
                    due_ms: due,
                    tries: 0,
                    demanded: false,
                });
            }
            while let Some(task) = planner.next(now) {
                planner.done(task.version);
                if Some(task.version) == last {
                    since = None;
                    uploads += 1;
                }
            }
        }
        assert_eq!(uploads, 2);
    }

    #[test]
    fn retries_wait_longer_and_keep_their_place() {
        let mut planner = Planner::default();
        planner.note(task(1, 0));
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let task = planner.next(now).unwrap();
            planner.retry(task.version, now, u64::MAX / 3);
            let due = planner.next_due_ms().unwrap();
            pauses.push(due - now);
            now = due;
        }
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1] * 2) && pauses[11] <= PAUSE_MS_MAX);
        assert!(pauses[11] > pauses[0]);
    }

    #[test]
    fn a_version_that_is_done_is_forgotten() {
        let mut planner = Planner::default();
        planner.note(task(1, 0));
        assert!(planner.next(0).is_some());
        planner.done(VersionId([1; 12]));
        assert_eq!(planner.sums(), (0, 0, None));
    }

    #[test]
    fn a_version_noted_while_under_way_comes_again() {
        let mut planner = Planner::default();
        planner.note(task(1, 0));
        assert!(planner.next(0).is_some());
        // Under a name that was not there when it began, for example.
        planner.note(task(1, 0));
        assert!(planner.next(0).is_none());
        planner.done(VersionId([1; 12]));
        assert!(planner.next(0).is_some());
        planner.done(VersionId([1; 12]));
        assert_eq!(planner.sums(), (0, 0, None));
    }
}
