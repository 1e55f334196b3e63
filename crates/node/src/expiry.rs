//! What expires goes by a clock that cannot jump.
//!
//! Uploads, sets and the like are given up after a while, and with them parts that were acknowledged. A clock that is days ahead,
//! set wrong by hand or by a dead battery, must not do that. So the time that expiries go by ([`Confirmed`]) moves on with what this
//! process saw pass on a clock that only counts, and takes over what the wall says only if
//! - both agree, or the wall is not much ahead of the last time that was written down (a restart), or
//! - the clock of another machine agrees with the wall, or
//! - everything that could expire has waited out its time by what was seen here.
//!
//! Until then it stands still while the node is stopped, and falls behind: things live longer than they should, never shorter.
//! Nothing else may decide by the wall clock that acknowledged bytes are given up.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stoker_store::Result;
use tokio::time::Instant;

use crate::core::Core;
use crate::identity::write_durable;
use crate::{clock, error};

/// Clocks that differ by less agree; and a wall that is ahead by less was set right, not wrong.
const AGREE_MS: u64 = 5 * 60_000;

/// A node that was stopped for less is not asked for a second clock.
const STOPPED_MS: u64 = 15 * 60_000;

/// Whatever can expire has done so after this long: the longest deadline of a set, and a day.
const DOUBT_MS_MAX: u64 = stoker_store::SET_DEADLINE_S_MAX as u64 * 1_000 + 24 * 3_600_000;

/// How often the time is written down.
const WRITE_MS: u64 = 60_000;

/// A time that only moves with what was seen to pass, or what others confirm. Pure: clocks are arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Confirmed {
    /// Milliseconds since 1970, when the counting clock was at `steady_ms`.
    now_ms: u64,
    steady_ms: u64,
    /// Since when the wall says something that nobody confirms, by the counting clock.
    doubted_ms: Option<u64>,
}

impl Confirmed {
    /// At a start; `last_ms` is the time that was written down before.
    fn begin(last_ms: Option<u64>, wall_ms: u64, steady_ms: u64) -> Confirmed {
        match last_ms {
            Some(last_ms) if wall_ms > last_ms.saturating_add(STOPPED_MS) => {
                Confirmed { now_ms: last_ms, steady_ms, doubted_ms: Some(steady_ms) }
            }
            _ => Confirmed { now_ms: wall_ms, steady_ms, doubted_ms: None },
        }
    }

    /// The time now; never ahead of the wall.
    fn at(&mut self, wall_ms: u64, steady_ms: u64) -> u64 {
        let seen_ms = self.now_ms + steady_ms.saturating_sub(self.steady_ms);
        let is_ahead = wall_ms > seen_ms.saturating_add(AGREE_MS);
        let waited_ms = self.doubted_ms.map_or(0, |since_ms| steady_ms.saturating_sub(since_ms));
        self.steady_ms = steady_ms;
        self.doubted_ms = match (is_ahead, self.doubted_ms) {
            (true, _) if waited_ms >= DOUBT_MS_MAX => None,
            (true, since_ms) => Some(since_ms.unwrap_or(steady_ms)),
            (false, _) => None,
        };
        self.now_ms = if self.doubted_ms.is_some() { seen_ms } else { wall_ms };
        self.now_ms.min(wall_ms)
    }

    /// The clock of another machine says `other_ms` while the wall says `wall_ms`.
    fn confirm(&mut self, other_ms: u64, wall_ms: u64, steady_ms: u64) {
        if other_ms.abs_diff(wall_ms) <= AGREE_MS {
            *self = Confirmed { now_ms: wall_ms, steady_ms, doubted_ms: None };
        }
    }
}

/// The times that expiries of a node go by: its own, and that of its catalog.
pub(crate) struct Expiry {
    path: PathBuf,
    begun: Instant,
    own: Mutex<Confirmed>,
    /// None until the catalog was asked for the time.
    catalog: Mutex<Option<Confirmed>>,
    /// What was written down at the start, of the catalog.
    catalog_last_ms: Option<u64>,
    written_ms: Mutex<u64>,
}

impl Expiry {
    /// Reads what was written down; `last_start_ms` counts where nothing was.
    pub fn open(dir: &Path, last_start_ms: Option<u64>) -> Expiry {
        let path = dir.join("clock");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let (own, catalog) = (numbers.next().flatten(), numbers.next().flatten());
        let own = Confirmed::begin(own.or(last_start_ms), clock::now_ms(), 0);
        Expiry {
            path,
            begun: Instant::now(),
            own: Mutex::new(own),
            catalog: Mutex::default(),
            catalog_last_ms: catalog,
            written_ms: Mutex::default(),
        }
    }

    fn steady_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// The time by which something of this node's clock may have expired, milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        let mut own = self.own.lock().unwrap();
        let was_doubted = own.doubted_ms.is_some();
        let (wall_ms, steady_ms) = (clock::now_ms(), self.steady_ms());
        let now_ms = own.at(wall_ms, steady_ms);
        if own.doubted_ms.is_some() && !was_doubted {
            let ahead_s = wall_ms.saturating_sub(now_ms) / 1_000;
            tracing::warn!(
                ahead_s,
                "the clock jumped ahead: nothing expires by it until another clock agrees"
            );
        }
        now_ms
    }

    /// The same of the catalog's clock, which says `catalog_ms`.
    fn of_catalog(&self, catalog_ms: u64) -> u64 {
        let steady_ms = self.steady_ms();
        let mut known = self.catalog.lock().unwrap();
        let begin = || Confirmed::begin(self.catalog_last_ms, catalog_ms, steady_ms);
        known.get_or_insert_with(begin).at(catalog_ms, steady_ms)
    }

    /// Whether a clock says something that nobody confirmed: the own one, that of the catalog.
    fn doubts(&self) -> (bool, bool) {
        self.now_ms();
        let is_doubted = |clock: &Confirmed| clock.doubted_ms.is_some();
        let own = is_doubted(&self.own.lock().unwrap());
        (own, self.catalog.lock().unwrap().as_ref().is_some_and(is_doubted))
    }

    /// Another machine says what time it is.
    fn confirm(&self, other_ms: u64, catalog_ms: Option<u64>) {
        let steady_ms = self.steady_ms();
        self.own.lock().unwrap().confirm(other_ms, clock::now_ms(), steady_ms);
        if let (Some(clock), Some(catalog_ms)) = (self.catalog.lock().unwrap().as_mut(), catalog_ms) {
            clock.confirm(other_ms, catalog_ms, steady_ms);
        }
    }

    /// Writes the time down, for the next start.
    pub fn write(&self) {
        let own_ms = self.now_ms();
        let steady_ms = self.steady_ms();
        let catalog = self.catalog.lock().unwrap().map(|clock| {
            // As it is now if it only counted on.
            clock.now_ms + steady_ms.saturating_sub(clock.steady_ms)
        });
        let text = match catalog.or(self.catalog_last_ms) {
            Some(catalog_ms) => format!("{own_ms} {catalog_ms}\n"),
            None => format!("{own_ms}\n"),
        };
        match write_durable(&self.path, text.as_bytes()) {
            Ok(()) => *self.written_ms.lock().unwrap() = steady_ms,
            Err(fault) => tracing::warn!("{}: {fault}", self.path.display()),
        }
    }

    fn is_due(&self) -> bool {
        let written_ms = *self.written_ms.lock().unwrap();
        written_ms == 0 || self.steady_ms() >= written_ms + WRITE_MS
    }
}

impl Core {
    /// The time by which deadlines that the catalog's clock set have passed.
    pub async fn deadlines_ms(&self) -> Result<u64> {
        Ok(self.expiry.of_catalog(self.catalog.now_ms().await.map_err(error::catalog)?))
    }

    /// Watches the clocks: asks others for theirs while one is doubted, and writes the time down.
    pub async fn watch_clocks(self: &Arc<Core>) {
        let is_due = self.expiry.is_due();
        let (own, catalog) = self.expiry.doubts();
        if is_due && (own || catalog) {
            let catalog_ms = self.catalog.now_ms().await.ok();
            for node in self.cell.others().into_iter().filter(|node| !self.cell.is_suspect(*node)) {
                if let Ok(other_ms) = self.cell.time_of(node).await {
                    self.expiry.confirm(other_ms, catalog_ms);
                }
            }
        }
        if is_due {
            let core = self.clone();
            self.tasks.blocking(move || core.expiry.write()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3_600_000;
    const NOW: u64 = 20_000 * DAY;

    /// Steps: what the wall says, what the counting clock says, what is believed.
    fn check(mut clock: Confirmed, steps: &[(u64, u64, u64)]) {
        for (wall_ms, steady_ms, expect) in steps {
            assert_eq!(clock.at(*wall_ms, *steady_ms), *expect, "{wall_ms} {steady_ms} {clock:?}");
        }
    }

    #[test]
    fn a_clock_that_goes_is_believed() {
        let begin = Confirmed::begin(None, NOW, 0);
        // Set a little, both ways; far back, and from there on.
        check(begin, &[(NOW + 10, 10, NOW + 10), (NOW + AGREE_MS, 20, NOW + AGREE_MS), (NOW, 30, NOW)]);
        check(begin, &[(NOW - 9 * DAY, 10, NOW - 9 * DAY), (NOW - 8 * DAY, DAY + 10, NOW - 8 * DAY)]);
        // A restart.
        let again = Confirmed::begin(Some(NOW), NOW + STOPPED_MS, 5);
        check(again, &[(NOW + STOPPED_MS + 1, 6, NOW + STOPPED_MS + 1)]);
    }

    #[test]
    fn a_jump_is_not_believed_until_it_was_waited_out() {
        let week = 7 * DAY;
        for begin in [Confirmed::begin(Some(NOW), NOW + 8 * DAY, 0), Confirmed::begin(None, NOW, 0)] {
            let ahead = NOW + 8 * DAY;
            check(begin, &[(ahead + 10, 10, NOW + 10), (ahead + week, week, NOW + week)]);
            // Set right again: what was seen to pass is what it says.
            check(begin, &[(ahead, 0, NOW), (NOW + 70, 70, NOW + 70), (NOW + 80, 80, NOW + 80)]);
            // Nobody sets it right.
            let (long, end) = (DOUBT_MS_MAX - 1, DOUBT_MS_MAX);
            check(
                begin,
                &[(ahead, 0, NOW), (ahead + long, long, NOW + long), (ahead + end, end, ahead + end)],
            );
        }
    }

    #[test]
    fn a_second_clock_ends_the_doubt() {
        let ahead = NOW + 8 * DAY;
        let mut clock = Confirmed::begin(Some(NOW), ahead, 0);
        clock.confirm(NOW, ahead, 5);
        assert_eq!(clock.at(ahead + 10, 10), NOW + 10, "the other one says that it is wrong");
        clock.confirm(ahead + AGREE_MS, ahead + 20, 20);
        assert_eq!(clock.at(ahead + 30, 30), ahead + 30);
    }
}
