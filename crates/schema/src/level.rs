//! The level of a cluster: in which forms its nodes may write rows, messages and files (R14).
//!
//! A release reads every form up to the newest that it knows, and writes those that the level allows. So nodes of two releases live together:
//! as long as one of them is older, all write what it can read, and a node may go back to the release before. Once every member can
//! read the forms of the next level, one of them raises it, by a transaction that fails if a member came, or started again, meanwhile. From
//! then on older releases refuse to start, and say why. The level never falls.
//!
//! What changes its form says since which level it is written: a row by [`RowValue::SINCE`], anything else by asking [`KnownLevel`].

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};

use serde::{Deserialize, Serialize};

use crate::rows::RowValue;

/// A level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Level(pub u16);

impl Level {
    /// That of a cluster that says nothing: the forms of the first release.
    pub const FIRST: Level = Level(1);
    /// The highest that this release can read, and write.
    ///
    /// 2: rows of nodes without the address of S3, which nothing ever set; refusals of a peer say what they are about; the highest commit that a
    /// node saw has a sum.
    ///
    /// 3: the catalog of a cluster without a database is kept by a group of nodes, which elects who leads.
    ///
    /// 4: tenants, and volumes of tenants (a release that does not know them would show them to everybody); encrypted volumes: rows of data
    /// keys, sealed records, and messages that carry them.
    ///
    /// 5: witnesses, nodes that vote and hold nothing (a release that does not know them would send them chunks).
    ///
    /// 6: volumes that keep versions (a release that does not know them would replace and delete what has to stay).
    ///
    /// 7: lakes with names, and replicas of volumes (a release that does not know them would drain without a note for the replica).
    pub const NEWEST: Level = Level(7);
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The level of the cluster. Without such a row it is the first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LevelRow {
    /// The level.
    pub level: Level,
    /// A person wants it to stay as it is.
    pub is_held: bool,
    /// Since when it is this high, milliseconds since 1970 by the catalog's clock.
    pub since_ms: u64,
}

impl Default for LevelRow {
    fn default() -> LevelRow {
        LevelRow { level: Level::FIRST, is_held: false, since_ms: 0 }
    }
}

impl RowValue for LevelRow {
    const TABLE: &'static str = "level";
}

/// What a node can read in one of its boots. A node without such a row, or with one of another boot, runs a release that knows no levels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadsRow {
    /// The boot that says so.
    pub session: [u8; 16],
    /// The highest level that it can read.
    pub newest: Level,
    /// Its release, for people.
    pub release: String,
}

impl RowValue for ReadsRow {
    const TABLE: &'static str = "levels of nodes";
}

/// The level of the cluster as a node knows it. It may be behind; what it allows then is still read by everybody.
#[derive(Debug)]
pub struct KnownLevel(AtomicU16);

impl Default for KnownLevel {
    fn default() -> KnownLevel {
        KnownLevel(AtomicU16::new(Level::FIRST.0))
    }
}

impl KnownLevel {
    /// What may be written.
    pub fn get(&self) -> Level {
        Level(self.0.load(Ordering::Relaxed))
    }

    /// The cluster is at least at this level.
    pub fn saw(&self, level: Level) {
        self.0.fetch_max(level.0, Ordering::Relaxed);
    }
}

/// The level to rise to: the highest that all members can read, if that is higher and nobody holds it. Of each member, what it can
/// read in its present boot.
pub fn next(row: &LevelRow, members: impl IntoIterator<Item = Level>) -> Option<Level> {
    let all = members.into_iter().min()?;
    Some(all).filter(|level| *level > row.level && !row.is_held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_rises_when_all_can_read_it() {
        let check = |level: u16, is_held: bool, members: &[u16], expect: Option<u16>| {
            let row = LevelRow { level: Level(level), is_held, since_ms: 0 };
            assert_eq!(
                next(&row, members.iter().copied().map(Level)),
                expect.map(Level),
                "{level} {members:?}"
            );
        };
        check(1, false, &[2, 2, 2], Some(2));
        check(1, false, &[2, 1, 2], None);
        check(1, false, &[4, 3, 5], Some(3));
        check(1, true, &[2, 2], None);
        check(2, false, &[2, 2], None);
        check(3, false, &[2, 2], None);
        check(1, false, &[], None);
    }

    #[test]
    fn what_is_known_never_falls() {
        let known = KnownLevel::default();
        assert_eq!(known.get(), Level::FIRST);
        known.saw(Level(3));
        known.saw(Level(2));
        assert_eq!(known.get(), Level(3));
    }
}
