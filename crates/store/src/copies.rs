//! What is true of the copies of a file, in words. `explain`, the console, receipts and the greeting of a node say it with these
//! functions and no other way, so that they cannot contradict each other.

use crate::file::DrainState;
use crate::receipt::Receipt;
use crate::volume::Class;

/// Whether a copy can be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// It can.
    Readable,
    /// Its node does not answer, or was declared down; it may come back.
    Away,
    /// Its drive was given up.
    Gone,
}

/// A node that holds something of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyPlace {
    /// Name of the node.
    pub node: String,
    /// It is the node that is asked.
    pub is_here: bool,
    /// Whether what it holds can be read.
    pub reach: Reach,
}

/// What receipt and membership say of a file. (D94)
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyFacts {
    /// Copies of each byte that were acknowledged and that no drive is known to lack.
    pub copies: u32,
    /// Who holds something of it, each node once. Of a large file these may be more than there are copies.
    pub places: Vec<CopyPlace>,
    /// How far it is on its way to the lake.
    pub drain: DrainState,
    /// The lake has its bytes, though not yet as its own object.
    pub is_in_lake: bool,
}

/// `1 copy on 1 node`, `2 copies of each byte, on 5 nodes`.
pub fn copies_words(copies: u32, nodes: usize) -> String {
    match (copies, nodes) {
        (1, 0 | 1) => "1 copy on 1 node".to_owned(),
        (1, nodes) => format!("1 copy, on {nodes} nodes"),
        (count, nodes) if nodes <= count as usize => format!("{count} copies on {count} nodes"),
        // The chunks of a large file go to different peers.
        (count, nodes) => format!("{count} copies of each byte, on {nodes} nodes"),
    }
}

/// The same of a receipt, as it was when it was made.
pub fn receipt_copies_words(receipt: &Receipt) -> String {
    let mut nodes: Vec<&str> = receipt.holders.iter().map(|holder| holder.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if receipt.copies == 0 && matches!(receipt.drain, DrainState::Dirty | DrainState::Conflict) {
        return "in the lake, as another object".to_owned();
    }
    let mut words = copies_words(receipt.copies, nodes.len());
    if receipt.drain == DrainState::Dirty && receipt.lake_etag.is_some() {
        words.push_str(" and one in the lake, for want of nodes");
    }
    words
}

/// How a class commits in a cluster where a write now makes so many copies.
pub fn class_words(class: Class, copies: u32) -> String {
    match (class, copies) {
        (Class::Auto, 0 | 1) => {
            "auto: one copy, since there is one node; two as soon as there is another".to_owned()
        }
        (Class::Auto, copies) => format!("auto: {copies} copies on {copies} nodes"),
        (class, _) => class.as_str().to_owned(),
    }
}

/// What a write has reached when it is acknowledged, where writes make so many copies.
pub fn commit_words(copies: u32) -> String {
    match copies {
        0 | 1 => "one copy on this node: a file is lost if its drive dies before the file is in the lake"
            .to_owned(),
        copies => format!(
            "{copies} copies on {copies} nodes before a write is acknowledged; a file that is not in the lake yet outlives {}",
            if copies == 2 { "one of them".to_owned() } else { format!("{} of them", copies - 1) }
        ),
    }
}

impl CopyFacts {
    /// Copies of each byte that can surely be read now. A file that lies on more nodes than it has copies may have lost both copies
    /// of some byte with any two of them.
    pub fn readable(&self) -> u32 {
        let (readable, nodes) = (self.count(Reach::Readable), self.places.len() as u32);
        if nodes > self.copies {
            self.copies.saturating_sub(nodes - readable)
        } else {
            readable.min(self.copies)
        }
    }

    fn count(&self, reach: Reach) -> u32 {
        self.places.iter().filter(|place| place.reach == reach).count() as u32
    }

    fn names(&self, reach: Reach) -> String {
        let mut names: Vec<String> = self
            .places
            .iter()
            .filter(|place| place.reach == reach)
            .map(
                |place| {
                    if place.is_here { format!("{} (this node)", place.node) } else { place.node.clone() }
                },
            )
            .collect();
        names.sort_unstable();
        names.join(", ")
    }

    /// Where it is, and with what it would be lost.
    pub fn words(&self) -> String {
        if self.drain == DrainState::Clean {
            return "in the lake, confirmed".to_owned();
        }
        let until = match self.drain {
            DrainState::Never => "",
            _ => " before the file is in the lake",
        };
        if self.is_in_lake && self.places.is_empty() {
            return "the lake has its bytes, as another object until this one is drained".to_owned();
        }
        let (readable, nodes) = (self.readable(), self.count(Reach::Readable));
        let mut words = match (readable, nodes) {
            (0, 0) if self.count(Reach::Away) > 0 => "no copy can be read now".to_owned(),
            (0, 0) => "no copy is left".to_owned(),
            (0, _) => format!(
                "some of it may have no copy that can be read: the rest is on {}",
                self.names(Reach::Readable)
            ),
            (1, 1) => {
                format!("one copy, on {}; lost if the drive dies{until}", self.names(Reach::Readable))
            }
            (1, _) => format!(
                "one copy of some of its bytes, on {}; lost if one of these drives dies{until}",
                self.names(Reach::Readable)
            ),
            (copies, nodes) => {
                format!("{}: {}", copies_words(copies, nodes as usize), self.names(Reach::Readable))
            }
        };
        if self.count(Reach::Away) > 0 {
            words.push_str(&format!(
                "; {} may have a copy and cannot be read from now",
                self.names(Reach::Away)
            ));
        }
        if self.is_in_lake {
            words.push_str("; the lake has its bytes, too");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(copies: u32, drain: DrainState, places: &[(&str, Reach)]) -> CopyFacts {
        let place = |(node, reach): &(&str, Reach)| CopyPlace {
            node: (*node).to_owned(),
            is_here: *node == "n0",
            reach: *reach,
        };
        CopyFacts { copies, places: places.iter().map(place).collect(), drain, is_in_lake: false }
    }

    #[test]
    fn sentences() {
        use Reach::*;
        let check = |copies, drain, places: &[(&str, Reach)], expect: &str| {
            assert_eq!(facts(copies, drain, places).words(), expect);
        };
        check(2, DrainState::Clean, &[], "in the lake, confirmed");
        check(
            1,
            DrainState::Dirty,
            &[("n0", Readable)],
            "one copy, on n0 (this node); lost if the drive dies before the file is in the lake",
        );
        check(1, DrainState::Never, &[("n1", Readable)], "one copy, on n1; lost if the drive dies");
        check(
            2,
            DrainState::Never,
            &[("n1", Readable), ("n0", Readable)],
            "2 copies on 2 nodes: n0 (this node), n1",
        );
        check(
            2,
            DrainState::Dirty,
            &[("n1", Away), ("n0", Readable)],
            "one copy, on n0 (this node); lost if the drive dies before the file is in the lake; n1 may have a copy and \
             cannot be read from now",
        );
        check(
            2,
            DrainState::Dirty,
            &[("n1", Away), ("n2", Gone)],
            "no copy can be read now; n1 may have a copy and cannot be read from now",
        );
        check(2, DrainState::Conflict, &[("n1", Gone), ("n2", Gone)], "no copy is left");
        let copied = CopyFacts { is_in_lake: true, ..facts(0, DrainState::Dirty, &[]) };
        assert_eq!(copied.words(), "the lake has its bytes, as another object until this one is drained");
        check(
            2,
            DrainState::Dirty,
            &[("n0", Readable), ("n1", Readable), ("n2", Readable)],
            "2 copies of each byte, on 3 nodes: n0 (this node), n1, n2",
        );
        check(
            2,
            DrainState::Dirty,
            &[("n1", Readable), ("n2", Readable), ("n3", Gone)],
            "one copy of some of its bytes, on n1, n2; lost if one of these drives dies before the file is in the lake",
        );
    }

    /// Every way in which the chunks of a file can lie on nodes, and every state of these nodes: what is said is never better than
    /// what is true, and where it says exactly how many copies there are it is not worse either.
    #[test]
    fn what_is_said_of_copies_is_true_of_every_placement() {
        const NODES: usize = 4;
        let reaches = [Reach::Readable, Reach::Away, Reach::Gone];
        let pairs: Vec<Vec<usize>> = (0..NODES)
            .flat_map(|one| (one + 1..NODES).map(move |two| vec![one, two]))
            .chain((0..NODES).map(|one| vec![one]))
            .collect();
        let mut seen = 0;
        for states in 0..reaches.len().pow(NODES as u32) {
            let reach = |node: usize| reaches[states / reaches.len().pow(node as u32) % reaches.len()];
            // Two chunks, each wherever the write put it; all chunks of a write have as many copies.
            for (first, second) in pairs.iter().flat_map(|one| pairs.iter().map(move |two| (one, two))) {
                if first.len() != second.len() {
                    continue;
                }
                let holders: Vec<usize> =
                    (0..NODES).filter(|node| first.contains(node) || second.contains(node)).collect();
                let place = |node: &usize| CopyPlace {
                    node: format!("n{node}"),
                    is_here: *node == 0,
                    reach: reach(*node),
                };
                let facts = CopyFacts {
                    copies: first.len() as u32,
                    places: holders.iter().map(place).collect(),
                    drain: DrainState::Dirty,
                    is_in_lake: false,
                };
                let left = |chunk: &[usize]| {
                    chunk.iter().filter(|node| reach(**node) == Reach::Readable).count() as u32
                };
                let truth = left(first).min(left(second));
                let words = facts.words();
                assert!(facts.readable() <= truth, "{words}: {first:?} {second:?} leave {truth}");
                if holders.len() <= first.len() {
                    assert_eq!(facts.readable(), truth, "{words}");
                }
                if truth == 0 {
                    assert!(words.starts_with("no copy") || words.starts_with("some of it may"), "{words}");
                }
                if words.contains("copies") {
                    assert!(truth >= 2, "{words}: {first:?} {second:?}");
                }
                if truth < 2 && words.starts_with("one copy") {
                    assert!(words.contains("lost if"), "{words}");
                }
                if words.starts_with("no copy is left") {
                    let hopeless = |chunk: &[usize]| chunk.iter().all(|node| reach(*node) == Reach::Gone);
                    assert!(hopeless(first) && hopeless(second), "{words}");
                }
                for node in &holders {
                    let is_named = words.contains(&format!("n{node}"));
                    assert_eq!(is_named, reach(*node) != Reach::Gone, "{words}: n{node}");
                }
                seen += 1;
            }
        }
        assert!(seen > 3_000, "{seen}");
    }

    #[test]
    fn classes_say_what_they_do_here() {
        assert!(class_words(Class::Auto, 1).starts_with("auto: one copy, since there is one node"));
        assert_eq!(class_words(Class::Auto, 2), "auto: 2 copies on 2 nodes");
        assert_eq!(class_words(Class::Two, 2), "two");
        assert!(commit_words(1).contains("this node") && !commit_words(2).contains("this node"));
        assert!(commit_words(3).contains("outlives 2 of them"));
    }
}
