//! The entries that a replica has at hand: those that are not applied, and as many of the older ones as others may need.

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Result, Storage, StorageError};

use crate::replica::Point;

/// What an entry takes besides its bytes.
const ENTRY_OVERHEAD_BYTES: usize = 64;

pub(crate) struct Window {
    pub(crate) hard: HardState,
    pub(crate) conf: ConfState,
    /// The last entry that is not here any more.
    base: Point,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// What is applied: whoever needs more than is here gets a copy of that.
    applied: Point,
}

impl Window {
    /// One behind `base`, up to which everything is applied.
    pub(crate) fn new(hard: HardState, conf: ConfState, base: Point, entries: Vec<Entry>) -> Window {
        let mut window = Window { hard, conf, base, entries: VecDeque::new(), bytes: 0, applied: base };
        window.append(entries);
        window
    }

    fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    /// Adds entries, in the place of those from the first one on.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        assert!(
            (self.base.index + 1..=self.last() + 1).contains(&first),
            "entries from {first} on do not follow {}..{}",
            self.base.index,
            self.last()
        );
        let kept = (first - self.base.index - 1) as usize;
        for gone in self.entries.drain(kept..) {
            self.bytes -= size(&gone);
        }
        self.bytes += entries.iter().map(size).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Takes note of what is applied, and lets go of old entries above this many bytes.
    pub(crate) fn applied(&mut self, point: Point, bytes_max: usize) {
        self.applied = point;
        while self.bytes > bytes_max && self.base.index < point.index {
            let Some(gone) = self.entries.pop_front() else { break };
            self.bytes -= size(&gone);
            self.base = Point { index: gone.index, term: gone.term };
        }
    }

    /// Begins anew behind a copy of what somebody else applied.
    pub(crate) fn reset(&mut self, point: Point, conf: ConfState) {
        (self.base, self.applied, self.conf) = (point, point, conf);
        self.entries.clear();
        self.bytes = 0;
    }

    /// Entries that are not applied.
    pub(crate) fn unapplied(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.index > self.applied.index)
    }

    /// Where it stands.
    pub(crate) fn point(&self) -> Point {
        self.applied
    }
}

fn size(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD_BYTES
}

impl Storage for Window {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.base.index {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let (from, to) = ((low - self.base.index - 1) as usize, (high - self.base.index - 1) as usize);
        let max = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            // The first one goes in any case.
            let room = bytes == 0 || bytes + size(entry) as u64 <= max;
            bytes += size(entry) as u64;
            room
        };
        Ok(self.entries.range(from..to).take_while(fits).cloned().collect())
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.base.index {
            return Ok(self.base.term);
        }
        if index < self.base.index {
            return Err(StorageError::Compacted.into());
        }
        let entry = self.entries.get((index - self.base.index - 1) as usize);
        entry.map(|entry| entry.term).ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// Says only where it would be; the bytes are sent beside, by who has them.
    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        if self.applied.index < request_index {
            return Err(StorageError::SnapshotTemporarilyUnavailable.into());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.applied.index, self.applied.term);
        *metadata.mut_conf_state() = self.conf.clone();
        Ok(snapshot)
    }
}
