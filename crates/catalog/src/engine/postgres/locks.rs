//! What a commit locks, so that commits that have nothing to do with each other run side by side and the others one after
//! the other.
//!
//! A commit says beforehand what it reads and writes. It takes all its locks first, in the order of their numbers, and
//! only then looks at rows: whoever waits holds no lock that somebody before it wants, so nobody waits in a circle, and
//! what the checks see stays until the commit is durable. Rows are not locked but numbers, in three levels:
//!
//! | lock | shared by | alone for |
//! |---|---|---|
//! | [`EVERYTHING`] | every commit | ranges wider than a granule, and commits with very many keys |
//! | a granule: the first [`GRANULE_BYTES`] of a key | who checks or writes a row in it | who counts or deletes a range in it |
//! | a key | who checks it | who writes it |
//! | a counter, by the key that its rows begin with | | who checks its sum |
//!
//! Two keys with one number only wait for each other without need.

use std::collections::BTreeMap;

use stoker_format::crc64;

use crate::engine::changes::{Change, Changes};
use crate::kv::{Check, prefix_end};

/// The lock of the whole catalog.
pub(super) const EVERYTHING: i64 = 0;
/// What the rows of one directory, version or upload have in common. A wider range is right, too, but stops everybody.
const GRANULE_BYTES: usize = 13;

/// How a number is locked. Larger ones include what is below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// With others who only look.
    Shared,
    /// Alone, except that commits of one transaction may add to the same counter, since sums have no order.
    Add,
    /// Alone.
    Alone,
}

/// The locks of a commit, or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Locks(BTreeMap<i64, Mode>);

impl Locks {
    /// The locks of a commit; that of everything if there were more than `most`.
    pub(super) fn of(checks: &[Check], changes: &Changes<'_>, most: usize) -> Locks {
        let mut locks = Locks::default();
        locks.take(EVERYTHING, Mode::Shared);
        for check in checks {
            match check {
                Check::Absent(key) | Check::Present(key) | Check::Seq(key, _) | Check::Value(key, _) => {
                    locks.key(key, Mode::Shared);
                }
                Check::AtMost { start, end, .. } => locks.range(start, end),
                Check::SumAtMost { start, .. } => locks.take(number(start) | 1, Mode::Alone),
            }
        }
        changes.ranges.iter().for_each(|(start, end)| locks.range(start, end));
        for (key, change) in &changes.keys {
            locks.key(key, if matches!(change, Change::Add(_)) { Mode::Add } else { Mode::Alone });
        }
        if locks.0.len() > most { Locks::everything() } else { locks }
    }

    /// The lock that nobody else gets anything beside.
    pub(super) fn everything() -> Locks {
        Locks(BTreeMap::from([(EVERYTHING, Mode::Alone)]))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether commits with these locks have an effect on each other if they are in one transaction.
    pub(super) fn conflict(&self, other: &Locks) -> bool {
        self.meets(other, Mode::excludes)
    }

    /// Whether a transaction with the other locks has to wait for one with these.
    pub(super) fn stops(&self, other: &Locks) -> bool {
        self.meets(other, |one, other| one != Mode::Shared || other != Mode::Shared)
    }

    fn meets(&self, other: &Locks, excludes: fn(Mode, Mode) -> bool) -> bool {
        let (few, many) = if self.len() < other.len() { (self, other) } else { (other, self) };
        few.0.iter().any(|(id, mode)| many.0.get(id).is_some_and(|other| excludes(*mode, *other)))
    }

    /// Takes the locks of another commit, too.
    pub(super) fn join(&mut self, other: &Locks) {
        other.0.iter().for_each(|(id, mode)| self.take(*id, *mode));
    }

    /// Numbers, and which of them to lock alone, in the order in which everybody takes them.
    pub(super) fn columns(&self) -> (Vec<i64>, Vec<bool>) {
        self.0.iter().map(|(id, mode)| (*id, *mode != Mode::Shared)).unzip()
    }

    fn key(&mut self, key: &[u8], mode: Mode) {
        self.take(granule(key), Mode::Shared);
        self.take(number(key) | 1, mode);
    }

    fn range(&mut self, start: &[u8], end: &[u8]) {
        let id = match start.get(..GRANULE_BYTES) {
            _ if start >= end => return,
            // All keys of the range begin like its start.
            Some(prefix) if prefix_end(prefix).is_none_or(|past| end <= past.as_slice()) => granule(start),
            _ => EVERYTHING,
        };
        self.take(id, Mode::Alone);
    }

    fn take(&mut self, id: i64, mode: Mode) {
        self.0
            .entry(id)
            .and_modify(|had| *had = if *had == mode { mode } else { mode.with(*had) })
            .or_insert(mode);
    }
}

impl Mode {
    fn excludes(self, other: Mode) -> bool {
        !matches!((self, other), (Mode::Shared, Mode::Shared) | (Mode::Add, Mode::Add))
    }

    /// For somebody who does both.
    fn with(self, other: Mode) -> Mode {
        if self.excludes(other) { Mode::Alone } else { self }
    }
}

fn granule(key: &[u8]) -> i64 {
    // Even numbers, and never that of everything.
    (number(&key[..key.len().min(GRANULE_BYTES)]) & !1).max(2)
}

/// The same in every program that shares a database.
fn number(bytes: &[u8]) -> i64 {
    let sum = crc64(bytes);
    i64::from((sum ^ sum >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::Commit;

    fn locks(commit: &Commit) -> Locks {
        Locks::of(&commit.checks, &Changes::new(&commit.writes).unwrap(), usize::MAX)
    }

    #[test]
    fn commits_that_see_or_undo_each_other_conflict() {
        let dir = b"E0000aaaaaaaa".to_vec();
        let key = |name: &str| [&dir, name.as_bytes()].concat();
        let far = b"E0000bbbbbbbbx".to_vec();
        let end = prefix_end(&dir).unwrap();
        let count = || Commit::new().at_most(dir.clone(), end.clone(), 1);
        let clear = || Commit::new().delete_range(dir.clone(), end.clone());
        let table = [
            (Commit::new().put(key("a"), ""), Commit::new().put(key("b"), ""), false),
            (Commit::new().put(key("a"), ""), Commit::new().put(key("a"), ""), true),
            (Commit::new().absent(key("a")), Commit::new().put(key("a"), ""), true),
            (Commit::new().absent(key("a")), Commit::new().absent(key("a")), false),
            (Commit::new().add(key("a"), 1), Commit::new().add(key("a"), 2), false),
            (Commit::new().add(key("a"), 1), Commit::new().present(key("a")), true),
            (Commit::new().add(key("a"), 1), Commit::new().delete(key("a")), true),
            (Commit::new().add(key("a"), 1).present(key("a")), Commit::new().add(key("a"), 1), true),
            (count(), Commit::new().put(key("a"), ""), true),
            (count(), Commit::new().put(far.clone(), ""), false),
            (count(), clear(), true),
            (clear(), Commit::new().absent(key("a")), true),
            (clear(), Commit::new().absent(far.clone()), false),
            // A range that is wider than a granule meets everything, also keys that are shorter than one.
            (Commit::new().delete_range("E", "F"), Commit::new().absent(far.clone()), true),
            (Commit::new().delete_range("E", "F"), Commit::new().put("E", ""), true),
            (
                Commit::new().at_most(dir.clone(), [&end, &b"x"[..]].concat(), 1),
                Commit::new().put("E", ""),
                true,
            ),
            (Commit::new().delete_range("b", "a"), Commit::new().put("a", ""), false),
            (Commit::new().sum_at_most("#b", "#c", 1), Commit::new().sum_at_most("#b", "#c", 2), true),
            (Commit::new().sum_at_most("#b", "#c", 1), Commit::new().sum_at_most("#c", "#d", 1), false),
            (Commit::new().sum_at_most("#b", "#c", 1), Commit::new().add("#b1", -1), false),
        ];
        for (one, other, expected) in table {
            assert_eq!(locks(&one).conflict(&locks(&other)), expected, "{one:?} {other:?}");
            assert_eq!(locks(&other).conflict(&locks(&one)), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn very_many_keys_take_one_lock() {
        let commit = (0..100u32).fold(Commit::new(), |commit, n| commit.put(n.to_be_bytes(), ""));
        let changes = Changes::new(&commit.writes).unwrap();
        assert_eq!(Locks::of(&[], &changes, 99), Locks::everything());
        assert!(Locks::everything().conflict(&locks(&Commit::new().absent("a"))));
        let (ids, alone) = Locks::of(&[], &changes, 1000).columns();
        assert!(ids.is_sorted() && ids[0] == EVERYTHING && !alone[0]);
        assert!(ids.iter().all(|id| (0..1 << 32).contains(id)));
    }
}
