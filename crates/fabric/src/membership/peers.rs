//! What is known of every other node, in the order of ids.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use foca::{Member, State};
use stoker_format::NodeId;

use super::identity::Identity;
use super::paths::Paths;

/// Nodes that are remembered, at most; more than a cluster has.
pub const PEERS_MAX: usize = 16_384;

/// All other nodes.
#[derive(Debug, Default)]
pub(super) struct Peers {
    records: BTreeMap<NodeId, Record>,
    up: usize,
    digest: u64,
}

/// One other node.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) identity: Identity,
    pub(super) condition: Condition,
    pub(super) paths: Paths,
    /// The boot that the caller was told of.
    pub(super) told_boot: Option<u64>,
    /// When this boot was first seen.
    pub(super) boot_since: Duration,
}

/// How a node is, in the eyes of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Up,
    /// Since then.
    Suspect(Duration),
    Gone,
    Left,
}

impl Peers {
    pub(super) fn get(&self, node: NodeId) -> Option<&Record> {
        self.records.get(&node)
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Record> {
        self.records.get_mut(&node)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= PEERS_MAX
    }

    /// How many are up.
    pub(super) fn up(&self) -> usize {
        self.up
    }

    /// A sum over the nodes that are up, equal where the same are up.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Takes a new identity or condition of a node; the condition before it, if it was known.
    pub(super) fn set(
        &mut self,
        identity: &Identity,
        condition: Condition,
        now: Duration,
    ) -> Option<Condition> {
        let record = self.records.entry(identity.node);
        let mut before = None;
        let record = record
            .and_modify(|record| {
                before = Some(record.condition);
                if record.condition == Condition::Up {
                    self.up -= 1;
                    self.digest ^= sum(&record.identity);
                }
                if record.identity.boot != identity.boot {
                    record.boot_since = now;
                    record.paths = Paths::default();
                }
                record.identity = identity.clone();
                record.condition = condition;
            })
            .or_insert_with(|| Record {
                identity: identity.clone(),
                condition,
                paths: Paths::default(),
                told_boot: None,
                boot_since: now,
            });
        if record.condition == Condition::Up {
            self.up += 1;
            self.digest ^= sum(identity);
        }
        before
    }

    /// Forgets a node that is not up.
    pub(super) fn forget(&mut self, identity: &Identity) {
        if let Some(record) = self.records.get(&identity.node)
            && record.identity == *identity
            && record.condition != Condition::Up
        {
            self.records.remove(&identity.node);
        }
    }

    /// The first node after this one that is up.
    pub(super) fn up_after(&self, node: NodeId) -> Option<&Record> {
        let mut range = self.records.range((Bound::Excluded(node), Bound::Unbounded));
        range.find(|(_, record)| record.condition == Condition::Up).map(|(_, record)| record)
    }

    /// What is known of the nodes after this one, as news for others. An incarnation of 0 claims the least.
    pub(super) fn after(&self, node: NodeId) -> impl Iterator<Item = Member<Identity>> {
        let range = self.records.range((Bound::Excluded(node), Bound::Unbounded));
        range.map(|(_, record)| record.news())
    }
}

impl Record {
    /// What is known, as news for others.
    pub(super) fn news(&self) -> Member<Identity> {
        let state = if self.condition == Condition::Up { State::Alive } else { State::Down };
        Member::new(self.identity.clone(), 0, state)
    }
}

/// One identity's part of the digest.
pub(super) fn sum(identity: &Identity) -> u64 {
    let node = u128::from_le_bytes(identity.node.0);
    let words = [node as u64, (node >> 64) as u64, identity.boot, u64::from(identity.renewal)];
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, word| {
        let mixed = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    })
}
