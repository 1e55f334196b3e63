//! Choosing nodes for copies, and the order in which nodes come for a key.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stoker_format::NodeId;

use super::domain::{Domain, Spread};
use super::key::{Key, fold};
use super::score::Seed;

/// A node that may be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which node.
    pub node: NodeId,
    /// Its share of the chunks, relative to the others. 0 is never chosen.
    pub weight: u32,
    /// Where it stands.
    pub domain: Domain,
}

/// The candidates of a cluster at one moment, prepared once for many keys.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// By node id, so that ties and the order of the input decide nothing.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    seed: Seed,
    pub(super) node: NodeId,
    cell: Option<u32>,
    pub(super) tor: Option<u32>,
    pub(super) power: Option<u32>,
}

impl Candidates {
    /// Prepares candidates. Of several with one id the first counts; those of weight 0 are left out.
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Candidates {
        let (mut cells, mut tors, mut powers) = (Labels::default(), Labels::default(), Labels::default());
        let mut by_node = BTreeMap::new();
        for candidate in candidates.into_iter().filter(|candidate| candidate.weight > 0) {
            by_node.entry(candidate.node).or_insert_with(|| Entry {
                seed: Seed::new(fold(candidate.node.0), candidate.weight),
                node: candidate.node,
                cell: cells.number(candidate.domain.cell),
                tor: tors.number(candidate.domain.tor),
                power: powers.number(candidate.domain.power),
            });
        }
        Candidates { entries: by_node.into_values().collect() }
    }

    /// How many nodes may be chosen.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether there is nobody to choose.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All candidates, the preferred one first: the computed places of a clean chunk.
    pub fn rank(&self, key: Key) -> Rank<'_> {
        let scores = self.entries.iter().enumerate();
        let heap = scores.map(|(index, entry)| Reverse((entry.seed.score(key.0), index as u32)));
        Rank { entries: &self.entries, heap: heap.collect() }
    }

    /// Nodes that may take the next copy, the preferred one first: those of the cell of the first holder, then others.
    /// Never one that has a copy, nor one that is closer to a copy than the spread allows. (D43)
    pub fn takers(&self, key: Key, taken: &[NodeId], spread: Spread) -> Vec<NodeId> {
        let holders: Vec<&Entry> = taken.iter().filter_map(|node| self.entry(*node)).collect();
        // A holder that is no candidate any more cannot be told apart from anybody.
        if spread != Spread::Node && holders.len() < taken.len() {
            return Vec::new();
        }
        let fits = |entry: &Entry| {
            !taken.contains(&entry.node) && holders.iter().all(|other| entry.differs(other, spread))
        };
        let home = taken.first().and_then(|node| self.entry(*node));
        let ranked: Vec<&Entry> = self.rank(key).entries().filter(|entry| fits(entry)).collect();
        let (near, far): (Vec<&Entry>, Vec<&Entry>) =
            ranked.into_iter().partition(|entry| home.is_none_or(|home| home.cell == entry.cell));
        near.into_iter().chain(far).map(|entry| entry.node).collect()
    }

    /// All candidates, in no order that says anything.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn entry(&self, node: NodeId) -> Option<&Entry> {
        let at = self.entries.binary_search_by_key(&node, |entry| entry.node).ok()?;
        Some(&self.entries[at])
    }
}

impl Entry {
    fn differs(&self, other: &Entry, spread: Spread) -> bool {
        let apart = |one: Option<u32>, two: Option<u32>| one.is_some() && two.is_some() && one != two;
        match spread {
            Spread::Node => true,
            Spread::Tor => apart(self.tor, other.tor),
            Spread::Power => apart(self.power, other.power),
        }
    }
}

/// Candidates in the order of preference for one key.
#[derive(Clone, Debug)]
pub struct Rank<'a> {
    entries: &'a [Entry],
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl<'a> Rank<'a> {
    pub(super) fn entries(mut self) -> impl Iterator<Item = &'a Entry> {
        std::iter::from_fn(move || {
            let Reverse((_, index)) = self.heap.pop()?;
            Some(&self.entries[index as usize])
        })
    }
}

impl Iterator for Rank<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        let Reverse((_, index)) = self.heap.pop()?;
        Some(self.entries[index as usize].node)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.heap.len(), Some(self.heap.len()))
    }
}

impl ExactSizeIterator for Rank<'_> {}

/// Labels as small numbers, so that comparing them costs nothing.
#[derive(Default)]
struct Labels(BTreeMap<String, u32>);

impl Labels {
    fn number(&mut self, label: Option<String>) -> Option<u32> {
        let next = self.0.len() as u32;
        label.map(|label| *self.0.entry(label).or_insert(next))
    }
}
