//! Choosing nodes for copies, and the order in which nodes come for a key.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stoker_format::NodeId;

use super::key::{Key, fold};
use super::map::{Domain, Spread};
use super::score::Seed;

/// More copies than any class asks for.
pub const COPIES_MAX: usize = 16;

/// A node that may be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which node.
    pub node: NodeId,
    /// Its share of the chunks, relative to the others. 0 is never chosen.
    pub weight: u32,
    /// What it fails together with.
    pub domain: Domain,
}

/// What is asked of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The node that accepted the write. It holds the first copy if it is a candidate.
    pub home: Option<NodeId>,
    /// How many copies, at most [`COPIES_MAX`].
    pub copies: usize,
    /// What the copies must not share.
    pub spread: Spread,
    /// Nodes that failed within this write.
    pub exclude: &'a [NodeId],
}

/// The nodes for the copies, in order of preference. Less than demanded is a variant of its own, so that nobody
/// overlooks it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Choice {
    /// As many copies as demanded, spread as demanded.
    Placed {
        /// Home first, if it is a candidate.
        nodes: Vec<NodeId>,
        /// The widest spread that they have, at least the demanded one.
        spread_reached: Spread,
    },
    /// As many copies as demanded, but too close together: an error, or a degraded commit that the receipt tells.
    BelowSpread {
        /// Home first, if it is a candidate.
        nodes: Vec<NodeId>,
        /// The widest spread that they have, below the demanded one.
        spread_reached: Spread,
    },
    /// Fewer nodes than copies.
    NotEnough {
        /// Those that there are.
        found: Vec<NodeId>,
    },
}

/// The candidates of one map, prepared once for many keys.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// By node id, so that ties and the order of the input decide nothing.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    seed: Seed,
    node: NodeId,
    tor: Option<u32>,
    power: Option<u32>,
}

impl Candidates {
    /// Prepares candidates. Of several with one id the first counts; those of weight 0 are left out.
    pub fn new(candidates: impl IntoIterator<Item = Candidate>) -> Candidates {
        let mut tors = Labels::default();
        let mut powers = Labels::default();
        let mut by_node = BTreeMap::new();
        for candidate in candidates.into_iter().filter(|candidate| candidate.weight > 0) {
            by_node.entry(candidate.node).or_insert_with(|| Entry {
                seed: Seed::new(fold(candidate.node.0), candidate.weight),
                node: candidate.node,
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

    /// All candidates, the preferred one first: the next peer within a write, the computed places of a clean chunk.
    pub fn rank(&self, key: Key) -> Rank<'_> {
        let scores = self.entries.iter().enumerate();
        let heap = scores.map(|(index, entry)| Reverse((entry.seed.score(key.0), index as u32)));
        Rank { entries: &self.entries, heap: heap.collect() }
    }

    /// Chooses nodes for copies. Where the spread cannot be had, the copies are as far apart as the labels allow.
    pub fn place(&self, key: Key, demand: &Demand) -> Choice {
        assert!(demand.copies <= COPIES_MAX, "{} copies demanded", demand.copies);
        let mut open: Vec<(u64, &Entry)> = self
            .entries
            .iter()
            .filter(|entry| !demand.exclude.contains(&entry.node))
            .map(|entry| (entry.seed.score(key.0), entry))
            .collect();
        let mut chosen: Vec<&Entry> = Vec::with_capacity(demand.copies);
        if let Some(home) = open.iter().position(|(_, entry)| Some(entry.node) == demand.home)
            && demand.copies > 0
        {
            chosen.push(open.swap_remove(home).1);
        }
        for spread in [Spread::Power, Spread::Tor, Spread::Node].into_iter().filter(|s| *s <= demand.spread) {
            while chosen.len() < demand.copies {
                // A first copy without a label would keep every other one from being apart from it.
                let fits = |entry: &Entry| {
                    (demand.copies == 1 || entry.has(spread))
                        && chosen.iter().all(|other| entry.differs(other, spread))
                };
                let open = open.iter().filter(|(_, entry)| fits(entry));
                let Some((_, best)) = open.min_by_key(|(score, entry)| (*score, entry.node)) else {
                    break;
                };
                chosen.push(best);
            }
        }
        Choice::of(&chosen, demand)
    }
}

impl Entry {
    fn has(&self, spread: Spread) -> bool {
        match spread {
            Spread::Node => true,
            Spread::Tor => self.tor.is_some(),
            Spread::Power => self.power.is_some(),
        }
    }

    fn differs(&self, other: &Entry, spread: Spread) -> bool {
        let apart = match spread {
            Spread::Node => true,
            Spread::Tor => self.tor != other.tor,
            Spread::Power => self.power != other.power,
        };
        self.node != other.node && self.has(spread) && other.has(spread) && apart
    }
}

impl Choice {
    fn of(chosen: &[&Entry], demand: &Demand) -> Choice {
        let nodes: Vec<NodeId> = chosen.iter().map(|entry| entry.node).collect();
        if nodes.len() < demand.copies {
            return Choice::NotEnough { found: nodes };
        }
        let apart = |spread: Spread| {
            let mut pairs = chosen
                .iter()
                .enumerate()
                .flat_map(|(at, one)| chosen[..at].iter().map(move |two| (one, two)));
            pairs.all(|(one, two)| one.differs(two, spread))
        };
        let placed = apart(demand.spread);
        let widest = [Spread::Power, Spread::Tor]
            .into_iter()
            .filter(|spread| placed || *spread < demand.spread)
            .find(|spread| apart(*spread));
        let spread_reached = widest.unwrap_or(Spread::Node);
        if placed {
            Choice::Placed { nodes, spread_reached }
        } else {
            Choice::BelowSpread { nodes, spread_reached }
        }
    }
}

/// Candidates in the order of preference for one key.
#[derive(Clone, Debug)]
pub struct Rank<'a> {
    entries: &'a [Entry],
    heap: BinaryHeap<Reverse<(u64, u32)>>,
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
