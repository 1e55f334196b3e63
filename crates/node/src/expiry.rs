//! What expires goes by a clock that cannot jump. (D86)
//!
//! Uploads, sets and the like are given up after a while, and with them parts that were acknowledged. A clock that is days ahead,
//! set wrong by hand or by a dead battery, must not do that. So the time that expiries go by ([`Confirmed`]) moves on with what this
//! process saw pass on a clock that only counts, and takes over what the wall says only if
//! - both agree, or the wall is not much ahead of the last time that was written down (a restart), or
//! - the clocks of other machines agree with the wall, and none contradicts, or
//! - everything that could expire has waited out its time by what was seen here.
//!
//! Until then it stands still while the node is stopped, and falls behind: things live longer than they should, never shorter.
//! Nothing else may decide by the wall clock that acknowledged bytes are given up. A node that has no time written down, and finds
//! what others left, knows nothing of the time until others agree.
//!
//! The catalog's clock is that of some node, which must not be asked to confirm itself. It is held against this node's own clock
//! only, once that is believed: whoever keeps the catalog is no more than one of those who confirm that one.
//!
//! A clock that is behind does no harm where it is read, and much where it stamps: what was begun by it looks old as soon as it is
//! set right. What is stamped for an expiry is therefore never older than what was seen to pass ([`Expiry::stamp_ms`]).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stoker_catalog::kv::{Catalog, Range};
use stoker_format::NodeId;
use stoker_schema::rows::{RowValue, SessionRow, keys};
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

/// How often others are asked for theirs while a clock is doubted.
const ASK_MS: u64 = 10_000;

/// The year 10,000: a file that says more is damaged.
const TIME_MS_MAX: u64 = 253_402_300_800_000;

/// Nodes that are asked.
const WITNESSES_MAX: usize = 16;

/// What is known of the time at a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// It was at least this late, milliseconds since 1970.
    Last(u64),
    /// Nothing is there that could expire: any time is right.
    New,
    /// Nothing.
    Nothing,
}

impl Known {
    /// What the catalog knows: the last start of this node, or that it is the first one of all.
    pub async fn of(catalog: &dyn Catalog, node: NodeId) -> Result<Known> {
        let key = keys::session(node);
        if let Some(row) = catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten() {
            return Ok(Known::Last(SessionRow::of(&row).map_err(error::catalog)?.since_ms));
        }
        let others = catalog.range(Range::prefix(keys::SESSIONS, 1)).await.map_err(error::catalog)?;
        Ok(if others.rows.is_empty() { Known::New } else { Known::Nothing })
    }
}

/// The wall says something that nobody confirms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Doubt {
    /// Since when, by the counting clock.
    since_ms: u64,
    /// How far it is ahead of what was counted; another number is another doubt.
    ahead_ms: i64,
}

/// A time that only moves with what was seen to pass, or what others confirm. Pure: clocks are arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Confirmed {
    /// It is at least this late: milliseconds since 1970, when the counting clock was at `steady_ms`.
    now_ms: u64,
    /// The same as far as can be told: for stamps, which may be too late and not too early.
    high_ms: u64,
    steady_ms: u64,
    doubt: Option<Doubt>,
}

impl Confirmed {
    fn sure(wall_ms: u64, steady_ms: u64) -> Confirmed {
        Confirmed { now_ms: wall_ms, high_ms: wall_ms, steady_ms, doubt: None }
    }

    /// At a start.
    fn begin(known: Known, wall_ms: u64, steady_ms: u64) -> Confirmed {
        let (now_ms, high_ms) = match known {
            Known::New => return Confirmed::sure(wall_ms, steady_ms),
            Known::Nothing => (0, wall_ms),
            Known::Last(last_ms) => {
                let fits = last_ms.saturating_sub(AGREE_MS)..=last_ms.saturating_add(STOPPED_MS);
                if fits.contains(&wall_ms) {
                    return Confirmed::sure(wall_ms, steady_ms);
                }
                (last_ms, last_ms)
            }
        };
        let doubt = Doubt { since_ms: steady_ms, ahead_ms: wall_ms.wrapping_sub(high_ms) as i64 };
        Confirmed { now_ms, high_ms, steady_ms, doubt: Some(doubt) }
    }

    /// The time now; never ahead of the wall.
    fn at(&mut self, wall_ms: u64, steady_ms: u64) -> u64 {
        let passed_ms = steady_ms.saturating_sub(self.steady_ms);
        self.now_ms = self.now_ms.saturating_add(passed_ms);
        self.high_ms = self.high_ms.saturating_add(passed_ms);
        self.steady_ms = steady_ms;
        let agrees =
            wall_ms.abs_diff(self.high_ms) <= AGREE_MS && wall_ms <= self.now_ms.saturating_add(AGREE_MS);
        let ahead_ms = wall_ms.wrapping_sub(self.high_ms) as i64;
        let is_same = |doubt: &Doubt| doubt.ahead_ms.abs_diff(ahead_ms) <= AGREE_MS;
        match self.doubt.filter(is_same) {
            _ if agrees => *self = Confirmed::sure(wall_ms, steady_ms),
            None => self.doubt = Some(Doubt { since_ms: steady_ms, ahead_ms }),
            Some(doubt) if steady_ms.saturating_sub(doubt.since_ms) >= DOUBT_MS_MAX => {
                *self = Confirmed::sure(wall_ms, steady_ms);
            }
            Some(_) => {}
        }
        self.now_ms.min(wall_ms)
    }

    /// The clocks of other machines say this while the wall says `wall_ms`.
    fn confirm(&mut self, others: &[u64], wall_ms: u64, steady_ms: u64) {
        if !others.is_empty() && others.iter().all(|other_ms| other_ms.abs_diff(wall_ms) <= AGREE_MS) {
            *self = Confirmed::sure(wall_ms, steady_ms);
        }
    }

    /// A clock that is believed says `own_ms`, and this one `wall_ms`: it may be behind that, but not ahead.
    fn judge(&mut self, own_ms: u64, wall_ms: u64, steady_ms: u64) {
        let is_ahead = wall_ms > self.now_ms && wall_ms.saturating_add(AGREE_MS) >= self.high_ms;
        let limit_ms = own_ms.saturating_add(AGREE_MS);
        if own_ms.abs_diff(wall_ms) <= AGREE_MS || (is_ahead && wall_ms <= limit_ms) {
            *self = Confirmed::sure(wall_ms, steady_ms);
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
    /// When it was written down last and others were asked last, by the counting clock.
    written_ms: Mutex<Option<u64>>,
    asked_ms: Mutex<Option<u64>>,
}

impl Expiry {
    /// Reads what was written down; `known` counts where nothing was.
    pub fn open(dir: &Path, known: Known) -> Expiry {
        let path = dir.join("clock");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut numbers =
            text.split_whitespace().map(|number| number.parse().ok().filter(|number| *number < TIME_MS_MAX));
        let (own, catalog) = (numbers.next().flatten(), numbers.next().flatten());
        let own = Confirmed::begin(own.map_or(known, Known::Last), clock::now_ms(), 0);
        Expiry {
            path,
            begun: Instant::now(),
            own: Mutex::new(own),
            catalog: Mutex::default(),
            catalog_last_ms: catalog,
            written_ms: Mutex::default(),
            asked_ms: Mutex::default(),
        }
    }

    fn steady_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// This node's clock as it is now, and what it says to expiries.
    fn own(&self) -> (Confirmed, u64) {
        let mut own = self.own.lock().unwrap();
        let was_doubted = own.doubt.is_some();
        let (wall_ms, steady_ms) = (clock::now_ms(), self.steady_ms());
        let now_ms = own.at(wall_ms, steady_ms);
        if let Some(doubt) = own.doubt
            && !was_doubted
        {
            let ahead_s = doubt.ahead_ms / 1_000;
            tracing::warn!(ahead_s, "the clock jumped: nothing expires by it until other clocks agree");
        }
        (*own, now_ms)
    }

    /// The time by which something of this node's clock may have expired, milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.own().1
    }

    /// The time for what expires by this node's clock or another's: the wall's, unless it is behind what was seen to pass. (D107)
    pub fn stamp_ms(&self) -> u64 {
        let (own, wall_ms) = (self.own().0, clock::now_ms());
        let steady_ms = self.steady_ms();
        let catalog = *self.catalog.lock().unwrap();
        let passed = |clock: Confirmed| clock.high_ms + steady_ms.saturating_sub(clock.steady_ms);
        let seen_ms = catalog.map_or(0, passed).max(own.high_ms);
        if seen_ms > wall_ms.saturating_add(AGREE_MS) { seen_ms } else { wall_ms }
    }

    /// The catalog's clock says `catalog_ms`: by when deadlines have passed, and what new ones are counted from.
    fn of_catalog(&self, catalog_ms: u64) -> (u64, u64) {
        let own = self.own().0;
        let steady_ms = self.steady_ms();
        let known = self.catalog_last_ms.map_or(Known::Nothing, Known::Last);
        let mut catalog = self.catalog.lock().unwrap();
        let clock = catalog.get_or_insert_with(|| Confirmed::begin(known, catalog_ms, steady_ms));
        clock.at(catalog_ms, steady_ms);
        if clock.doubt.is_some() && own.doubt.is_none() {
            clock.judge(own.now_ms, catalog_ms, steady_ms);
        }
        (clock.now_ms.min(catalog_ms), clock.high_ms.max(catalog_ms))
    }

    /// Whether a clock says something that nobody confirmed: the own one, that of the catalog.
    fn doubts(&self) -> (bool, bool) {
        let is_doubted = |clock: &Confirmed| clock.doubt.is_some();
        let own = is_doubted(&self.own().0);
        (own, self.catalog.lock().unwrap().as_ref().is_some_and(is_doubted))
    }

    /// Other machines say what time it is.
    fn confirm(&self, others: &[u64]) {
        let steady_ms = self.steady_ms();
        self.own.lock().unwrap().confirm(others, clock::now_ms(), steady_ms);
    }

    /// Writes the time down, for the next start.
    pub fn write(&self) {
        let own_ms = self.own().0.now_ms;
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
            Ok(()) => *self.written_ms.lock().unwrap() = Some(steady_ms),
            Err(fault) => tracing::warn!("{}: {fault}", self.path.display()),
        }
    }

    fn is_due(&self, last_ms: &Mutex<Option<u64>>, pause_ms: u64) -> bool {
        let last_ms = *last_ms.lock().unwrap();
        last_ms.is_none_or(|last_ms| self.steady_ms() >= last_ms + pause_ms)
    }
}

impl Core {
    /// The time by which deadlines that the catalog's clock set have passed.
    pub async fn deadlines_ms(&self) -> Result<u64> {
        Ok(self.catalog_times_ms().await?.0)
    }

    /// The same, and the time that a new deadline is counted from.
    pub async fn catalog_times_ms(&self) -> Result<(u64, u64)> {
        Ok(self.expiry.of_catalog(self.catalog.now_ms().await.map_err(error::catalog)?))
    }

    /// Watches the clocks: asks others for theirs while one is doubted, and writes the time down.
    pub async fn watch_clocks(self: &Arc<Core>) {
        let is_due = self.expiry.is_due(&self.expiry.written_ms, WRITE_MS);
        let (own, catalog) = self.expiry.doubts();
        let is_asked = (own || catalog) && self.expiry.is_due(&self.expiry.asked_ms, ASK_MS);
        if is_asked && own {
            let nodes = self.cell.others().into_iter().filter(|node| !self.cell.is_suspect(*node));
            let asked = nodes.take(WITNESSES_MAX).map(|node| self.cell.time_of(node));
            let told = futures_util::future::join_all(asked).await;
            let told: Vec<u64> = told.into_iter().flatten().collect();
            self.expiry.confirm(&told);
        }
        if is_asked {
            *self.expiry.asked_ms.lock().unwrap() = Some(self.expiry.steady_ms());
        }
        if is_asked || is_due {
            // Every node knows the catalog's time, also one that no set asked for it.
            let _ = self.deadlines_ms().await;
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
        let begin = Confirmed::begin(Known::New, NOW, 0);
        // Set a little, both ways; far back, and from there on.
        check(begin, &[(NOW + 10, 10, NOW + 10), (NOW + AGREE_MS, 20, NOW + AGREE_MS), (NOW, 30, NOW)]);
        check(begin, &[(NOW - 9 * DAY, 10, NOW - 9 * DAY), (NOW - 8 * DAY, DAY + 10, NOW - 8 * DAY)]);
        // A restart.
        let again = Confirmed::begin(Known::Last(NOW), NOW + STOPPED_MS, 5);
        check(again, &[(NOW + STOPPED_MS + 1, 6, NOW + STOPPED_MS + 1)]);
    }

    #[test]
    fn a_jump_is_not_believed_until_it_was_waited_out() {
        let week = 7 * DAY;
        for (known, wall_ms) in [(Known::Last(NOW), NOW + 8 * DAY), (Known::New, NOW)] {
            let begin = Confirmed::begin(known, wall_ms, 0);
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
    fn another_jump_is_another_doubt() {
        let (long, end) = (DOUBT_MS_MAX - DAY, DOUBT_MS_MAX);
        // Behind for almost as long as everything lives, then ahead: nothing of that was waited for.
        let begin = Confirmed::begin(Known::New, NOW, 0);
        check(
            begin,
            &[(NOW - 8 * DAY, 0, NOW - 8 * DAY), (NOW + long - 8 * DAY, long, NOW + long - 8 * DAY)],
        );
        let mut clock = begin;
        clock.at(NOW - 8 * DAY, 0);
        check(clock, &[(NOW + end + 8 * DAY, end, NOW + end)]);
        // Set right: that is what was counted.
        check(clock, &[(NOW + 70, 70, NOW + 70), (NOW + 80, 80, NOW + 80)]);
    }

    #[test]
    fn who_knows_nothing_believes_nothing_alone() {
        let mut clock = Confirmed::begin(Known::Nothing, NOW, 0);
        check(
            clock,
            &[(NOW, 0, 0), (NOW + 10, 10, 10), (NOW + DOUBT_MS_MAX, DOUBT_MS_MAX, NOW + DOUBT_MS_MAX)],
        );
        clock.confirm(&[NOW + 20], NOW + 20, 20);
        check(clock, &[(NOW + 30, 30, NOW + 30)]);
    }

    #[test]
    fn other_clocks_end_the_doubt() {
        let ahead = NOW + 8 * DAY;
        let mut clock = Confirmed::begin(Known::Last(NOW), ahead, 0);
        for others in [&[NOW][..], &[ahead, NOW], &[]] {
            clock.confirm(others, ahead, 5);
            assert_eq!(clock.at(ahead + 10, 10), NOW + 10, "one says that it is wrong, or nobody is there");
        }
        clock.confirm(&[ahead + AGREE_MS], ahead + 20, 20);
        assert_eq!(clock.at(ahead + 30, 30), ahead + 30);
    }

    #[test]
    fn the_catalogs_clock_is_held_against_the_own_one() {
        let ahead = NOW + 8 * DAY;
        for known in [Known::Last(NOW), Known::Nothing] {
            let begin = Confirmed::begin(known, ahead, 0);
            let mut clock = begin;
            clock.judge(NOW, ahead, 0);
            assert_eq!(clock, begin, "it is ahead of one that is believed");
            clock.judge(ahead + DAY, ahead, 0);
            assert_eq!(clock, Confirmed::sure(ahead, 0), "it is not");
        }
        // One that fell behind is not right because another one is ahead of it.
        let begin = Confirmed::begin(Known::Last(ahead), NOW, 0);
        let mut clock = begin;
        clock.judge(ahead, NOW, 0);
        assert_eq!(clock, begin);
        clock.judge(NOW + 1, NOW, 0);
        assert_eq!(clock, Confirmed::sure(NOW, 0));
    }
}
