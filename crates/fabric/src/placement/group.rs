//! Wide groups: the nodes of all shards of an erasure-coded chunk.
//!
//! Each shard has a node of its own, and no domain has more shards than may be lost. Nodes are taken in the order of preference, those
//! of a full domain left out. Such greedy choices (of a matroid, as mathematicians call it) have two properties that count here: they find
//! a group whenever there is one, and a node that joins or leaves changes at most one member of it. A group that stands is written in the
//! layout of its chunk; from then on only [`Candidates::refill`] and [`Candidates::moves`] are asked.

use std::collections::BTreeMap;
use std::fmt;

use stoker_format::NodeId;

use super::candidates::{Candidates, Entry};
use super::domain::Spread;
use super::key::Key;

/// What a group has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Shards, `k + m`.
    pub shards: usize,
    /// Most shards in one domain: `m`, so that losing it loses nothing. Nodes hold one, whatever this says.
    pub per_domain: usize,
    /// Which domain.
    pub spread: Spread,
}

/// A shard that is to lie elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which shard.
    pub shard: usize,
    /// Who holds it.
    pub from: NodeId,
    /// Who is to hold it.
    pub to: NodeId,
}

/// Why there is no such group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// Nodes or domains are too few.
    Places {
        /// What was asked for.
        group: Group,
        /// Shards that could be placed.
        possible: usize,
        /// Nodes that may be chosen.
        nodes: usize,
        /// Domains that they are in.
        domains: usize,
        /// Nodes that could not be chosen because nobody knows their domain.
        unlabelled: usize,
    },
    /// A holder that stays is no candidate, so that nobody knows its domain.
    Unknown(NodeId),
}

impl Candidates {
    /// The nodes of a new group, in the order of its shards.
    pub fn group(&self, key: Key, group: Group) -> Result<Vec<NodeId>, Narrow> {
        self.refill(key, group, &vec![None; group.shards])
    }

    /// The nodes of a group of which some are lost (`None`): who is left stays.
    pub fn refill(&self, key: Key, group: Group, holders: &[Option<NodeId>]) -> Result<Vec<NodeId>, Narrow> {
        assert_eq!(holders.len(), group.shards, "a holder for each shard");
        let mut room = Room::new(group);
        for &node in holders.iter().flatten() {
            match self.entry(node) {
                Some(entry) => room.take(entry),
                None if group.spread == Spread::Node => {}
                None => return Err(Narrow::Unknown(node)),
            }
        }
        let taken = |node: NodeId| holders.contains(&Some(node));
        let mut next = self.rank(key).entries().filter(|entry| !taken(entry.node) && room.fits(entry));
        let filled: Vec<NodeId> = holders
            .iter()
            .map_while(|holder| holder.or_else(|| next.next().map(|entry| entry.node)))
            .collect();
        if filled.len() < group.shards { Err(self.narrow(group)) } else { Ok(filled) }
    }

    /// What has to move so that a group lies where a new one would: shards on nodes that are preferred stay, and the others go to the
    /// preferred ones that have none. A node that joined gains at most one shard, and nothing else moves.
    pub fn moves(&self, key: Key, group: Group, holders: &[NodeId]) -> Result<Vec<Move>, Narrow> {
        assert_eq!(holders.len(), group.shards, "a holder for each shard");
        let wanted = self.group(key, group)?;
        let mut free = wanted.iter().filter(|node| !holders.contains(node));
        let misplaced = holders.iter().enumerate().filter(|(_, node)| !wanted.contains(node));
        let made = misplaced.zip(&mut free).map(|((shard, &from), &to)| Move { shard, from, to });
        Ok(made.collect())
    }

    fn narrow(&self, group: Group) -> Narrow {
        let labels = self.entries().iter().map(|entry| label(entry, group.spread));
        let mut counts = BTreeMap::<Label, usize>::new();
        labels.flatten().for_each(|label| *counts.entry(label).or_default() += 1);
        let limit = if group.spread == Spread::Node { 1 } else { group.per_domain };
        let nodes: usize = counts.values().sum();
        Narrow::Places {
            group,
            possible: counts.values().map(|&count| count.min(limit)).sum(),
            nodes,
            domains: counts.len(),
            unlabelled: self.len() - nodes,
        }
    }
}

/// What shards must not share too often.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Node(NodeId),
    Domain(u32),
}

/// The domain of a node. One without a label may share it with anyone.
fn label(entry: &Entry, spread: Spread) -> Option<Label> {
    match spread {
        Spread::Node => Some(Label::Node(entry.node)),
        Spread::Tor => entry.tor.map(Label::Domain),
        Spread::Power => entry.power.map(Label::Domain),
    }
}

/// What is left of each domain.
struct Room {
    group: Group,
    used: BTreeMap<Label, usize>,
}

impl Room {
    fn new(group: Group) -> Room {
        Room { group, used: BTreeMap::new() }
    }

    /// Counts a node in.
    fn take(&mut self, entry: &Entry) {
        if let Some(label) = label(entry, self.group.spread) {
            *self.used.entry(label).or_default() += 1;
        }
    }

    /// Counts a node in if its domain has room.
    fn fits(&mut self, entry: &Entry) -> bool {
        let limit = if self.group.spread == Spread::Node { 1 } else { self.group.per_domain };
        let Some(label) = label(entry, self.group.spread) else { return false };
        let used = self.used.entry(label).or_default();
        let fits = *used < limit;
        *used += usize::from(fits);
        fits
    }
}

impl fmt::Display for Narrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(node) => write!(f, "the domain of node {node}, which holds a shard, is not known"),
            Self::Places { group, possible, nodes, domains, unlabelled } => {
                let Group { shards, per_domain, spread } = group;
                let domain = match spread {
                    Spread::Node => {
                        return write!(f, "{shards} shards need {shards} nodes, there are {nodes}");
                    }
                    Spread::Tor => "switch",
                    Spread::Power => "power feed",
                };
                write!(
                    f,
                    "{shards} shards with at most {per_domain} per {domain} do not fit: there is room for {possible} \
                     ({nodes} nodes, {domain} labels: {domains})"
                )?;
                match unlabelled {
                    0 => Ok(()),
                    _ => write!(f, "; {unlabelled} nodes have no {domain} label"),
                }
            }
        }
    }
}

impl std::error::Error for Narrow {}
