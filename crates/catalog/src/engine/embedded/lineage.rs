//! Which catalog a file is: what it may be used for, under which epochs its commits were written, and who
//! follows it. Kept in the file, changed in the transaction of the commit that changes it.

use redb::{ReadTransaction, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::file::{META, damaged, failed};
use super::standby::Members;
use crate::epoch::Epoch;
use crate::error::{CatalogError, Result};
use crate::wire;

const META_LINEAGE: &str = "lineage";

/// Most epochs that are remembered. A standby that was away for longer gets a snapshot.
const SPANS_MAX: usize = 64;

/// What a file may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Role {
    /// A catalog that nobody follows.
    #[default]
    Alone,
    /// A catalog that serves other nodes and may have standbys.
    Primary,
    /// A copy that follows a primary; becomes one by a promotion and by nothing else.
    Standby,
    /// One of the replicas of a group, which elects who leads.
    Replica,
}

/// A place in the history of a catalog: the last commit, and the epoch in which it was written. Of two files
/// at the same position one is a copy of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Position {
    /// The epoch that wrote the commit.
    pub epoch: Epoch,
    /// The commit.
    pub seq: u64,
}

/// The commits of one epoch: from `seq_first` up to the next epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct EpochSpan {
    epoch: Epoch,
    seq_first: u64,
}

/// What a file knows of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lineage {
    pub role: Role,
    /// Oldest first, never empty.
    #[serde(deserialize_with = "crate::wire::limited::<_, _, SPANS_MAX>")]
    spans: Vec<EpochSpan>,
    /// The highest epoch that this file heard of; it takes nothing from a lower one.
    pub promised: Epoch,
    pub members: Members,
    /// The commit that set the members.
    pub members_at: Position,
}

impl Lineage {
    /// That of a file which was never a primary's or a standby's.
    pub(super) fn new(role: Role) -> Lineage {
        Lineage {
            role,
            spans: vec![EpochSpan { epoch: Epoch::default(), seq_first: 0 }],
            promised: Epoch::default(),
            members: Members::default(),
            members_at: Position::default(),
        }
    }

    /// That of a copy which follows, and promised this.
    pub(super) fn copied(&self, promised: Epoch) -> Lineage {
        Lineage { role: Role::Standby, promised: self.promised.max(promised), ..self.clone() }
    }

    pub(super) fn load(snapshot: &ReadTransaction) -> Result<Lineage> {
        let meta = snapshot.open_table(META).map_err(failed)?;
        let stored = meta.get(META_LINEAGE).map_err(failed)?;
        let Some(stored) = stored else { return Ok(Lineage::new(Role::Alone)) };
        match wire::decode::<Lineage>(stored.value()) {
            Ok(lineage) if !lineage.spans.is_empty() => Ok(lineage),
            _ => Err(damaged("the file does not know which epochs wrote it")),
        }
    }

    pub(super) fn save(&self, transaction: &WriteTransaction) -> Result<()> {
        let mut meta = transaction.open_table(META).map_err(failed)?;
        meta.insert(META_LINEAGE, wire::encode(self).as_slice()).map_err(failed)?;
        Ok(())
    }

    /// The epoch that writes now, or wrote last.
    pub(super) fn epoch(&self) -> Epoch {
        self.spans.last().map(|span| span.epoch).unwrap_or_default()
    }

    /// The position of a commit of this history.
    pub(super) fn position(&self, seq: u64) -> Position {
        let span = self.spans.iter().rfind(|span| span.seq_first <= seq);
        Position { epoch: span.map(|span| span.epoch).unwrap_or_default(), seq }
    }

    /// Whether a file at `position` holds the beginning of this history, which ends at `seq`.
    pub(super) fn holds(&self, position: &Position, seq: u64) -> bool {
        let Some(index) = self.spans.iter().position(|span| span.epoch == position.epoch) else {
            return false;
        };
        let last = self.spans.get(index + 1).map_or(seq, |next| next.seq_first.saturating_sub(1));
        (self.spans[index].seq_first..=last).contains(&position.seq)
    }

    /// From the commit behind `seq` on, `epoch` writes.
    pub(super) fn begin(&mut self, epoch: Epoch, seq: u64) {
        let seq_first = seq.saturating_add(1);
        // One that wrote nothing leaves no trace.
        self.spans.retain(|span| span.seq_first < seq_first);
        self.spans.push(EpochSpan { epoch, seq_first });
        if self.spans.len() > SPANS_MAX {
            self.spans.remove(0);
        }
        self.promised = self.promised.max(epoch);
    }

    /// Fails if another epoch has taken over.
    pub(super) fn rules(&self) -> Result<()> {
        if self.promised > self.epoch() {
            return Err(CatalogError::foreign(format!(
                "this catalog was replaced by epoch {}; let it follow that one as a standby",
                self.promised
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use stoker_format::NodeId;

    use super::*;

    #[test]
    fn positions_of_other_histories_are_told_apart() {
        let a = Epoch::first(NodeId([1; 16]));
        let (again, b) = (a.restarted(), a.promoted(NodeId([2; 16])));
        let mut lineage = Lineage::new(Role::Primary);
        lineage.begin(a, 10);
        lineage.begin(again, 20);
        lineage.begin(b, 20);
        let table = [
            (Epoch::default(), 0, true),
            (Epoch::default(), 10, true),
            (Epoch::default(), 11, false),
            (a, 10, false),
            (a, 11, true),
            (a, 20, true),
            // Written by `a` before it was gone, and never seen by `b`.
            (a, 21, false),
            (again, 21, false),
            (b, 21, true),
            (b, 30, true),
            (b, 31, false),
        ];
        for (epoch, seq, held) in table {
            assert_eq!(lineage.holds(&Position { epoch, seq }, 30), held, "{epoch} {seq}");
            if held {
                assert_eq!(lineage.position(seq), Position { epoch, seq });
            }
        }
        assert_eq!(lineage.epoch(), b);
    }

    #[test]
    fn old_spans_are_forgotten_and_then_not_believed() {
        let mut lineage = Lineage::new(Role::Primary);
        let mut epoch = Epoch::first(NodeId([1; 16]));
        let first = epoch;
        for seq in 1..200 {
            lineage.begin(epoch, seq);
            epoch = epoch.restarted();
        }
        assert_eq!(lineage.spans.len(), SPANS_MAX);
        assert!(!lineage.holds(&Position { epoch: first, seq: 2 }, 1000));
        assert!(!lineage.holds(&Position::default(), 1000));
        assert!(lineage.holds(&lineage.position(199), 1000));
    }
}
