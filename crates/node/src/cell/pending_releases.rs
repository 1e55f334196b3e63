//! Releases that no holder has confirmed yet: a write is over which others hold chunks of (R7). A holder that misses its release keeps the
//! bytes for as long as this boot lasts, so it is sent until it is confirmed. Whoever was asked to hold something and did not answer may
//! hold it as well. (D57)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use stoker_format::{NodeId, VersionId};

/// Releases remembered. What is beyond stays with its holders until this node boots again.
const RELEASES_MAX: usize = 100_000;

/// A use of a version: the number tells several apart.
type Use = (VersionId, u64);

#[derive(Default)]
struct Releases {
    /// Asked without an answer, while the write goes on.
    asked: BTreeMap<Use, BTreeSet<NodeId>>,
    /// To be told.
    due: BTreeSet<(NodeId, u64, VersionId)>,
}

/// Releases that no node has confirmed yet.
#[derive(Default)]
pub(super) struct PendingReleases(Mutex<Releases>);

impl PendingReleases {
    /// A node was asked to hold a version, and nobody knows whether it does.
    pub fn asked(&self, node: NodeId, version: VersionId, hold: u64) {
        let mut words = self.0.lock().unwrap();
        if words.asked.len() >= RELEASES_MAX {
            words.asked.pop_first();
        }
        words.asked.entry((version, hold)).or_default().insert(node);
    }

    /// A write is over: those who may hold it without having said so are to be told.
    pub fn over(&self, version: VersionId, hold: u64) {
        let words = &mut *self.0.lock().unwrap();
        let nodes = words.asked.remove(&(version, hold)).unwrap_or_default();
        nodes.into_iter().for_each(|node| words.owe(node, hold, version));
    }

    /// A node did not hear the word.
    pub fn missed(&self, node: NodeId, versions: &[VersionId], hold: u64) {
        let words = &mut *self.0.lock().unwrap();
        versions.iter().for_each(|version| words.owe(node, hold, *version));
    }

    /// Takes up to so many words of one use number to one of these nodes, to be told now. Those to nodes that hold nothing
    /// any more are dropped.
    pub fn take(
        &self,
        max: usize,
        is_over: impl Fn(NodeId) -> bool,
        answers: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, u64, Vec<VersionId>)> {
        let words = &mut *self.0.lock().unwrap();
        words.due.retain(|(node, ..)| !is_over(*node));
        let &(node, hold, _) = words.due.iter().find(|(node, ..)| answers(*node))?;
        let same = words.due.iter().filter(|(to, number, _)| (*to, *number) == (node, hold));
        let versions: Vec<VersionId> = same.map(|(.., version)| *version).take(max).collect();
        for version in &versions {
            words.due.remove(&(node, hold, *version));
        }
        Some((node, hold, versions))
    }
}

impl Releases {
    fn owe(&mut self, node: NodeId, hold: u64, version: VersionId) {
        if self.due.len() >= RELEASES_MAX {
            self.due.pop_first();
        }
        self.due.insert((node, hold, version));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId([1; 16]);
    const B: NodeId = NodeId([2; 16]);

    fn version(id: u8) -> VersionId {
        VersionId([id; 12])
    }

    #[test]
    fn who_did_not_answer_is_told_when_the_write_is_over() {
        let pending = PendingReleases::default();
        pending.asked(A, version(1), 7);
        assert_eq!(pending.take(9, |_| false, |_| true), None);
        pending.over(version(1), 8);
        assert_eq!(pending.take(9, |_| false, |_| true), None);
        pending.over(version(1), 7);
        assert_eq!(pending.take(9, |_| false, |_| false), None);
        assert_eq!(pending.take(9, |_| false, |_| true), Some((A, 7, vec![version(1)])));
        assert_eq!(pending.take(9, |_| false, |_| true), None);
    }

    #[test]
    fn words_are_grouped_and_those_to_nodes_that_are_gone_are_dropped() {
        let pending = PendingReleases::default();
        pending.missed(A, &[version(1), version(2), version(3)], 0);
        pending.missed(B, &[version(1)], 0);
        assert_eq!(pending.take(2, |_| false, |_| true), Some((A, 0, vec![version(1), version(2)])));
        assert_eq!(pending.take(2, |node| node == A, |_| true), Some((B, 0, vec![version(1)])));
        assert_eq!(pending.take(2, |_| false, |_| true), None);
    }
}
