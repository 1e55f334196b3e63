//! What is not in the lake and where its copies are: the dirty rows as one table. What would be lost, and what is most
//! endangered, is decided from it and from nothing else.

use std::collections::{BTreeSet, HashMap};

use stoker_format::{DriveId, NodeId, VersionId};
use stoker_schema::rows::{DirtyRow, MissingChunk, MissingRow, PartRow, RowValue, keys};
use stoker_store::{Result, Risk};

use crate::cell::View;
use crate::core::Core;
use crate::error;

/// Versions that are looked at; of more than these nothing is said.
const VERSIONS_MAX: usize = 500_000;

/// A version that is not in the lake.
#[derive(Clone, Debug)]
pub(crate) struct Undrained {
    pub volume: u32,
    pub bytes: u64,
    pub since_ms: u64,
    pub home: NodeId,
    /// Drives that hold some of it.
    pub places: Vec<(NodeId, DriveId)>,
    /// It is a copy by reference of something that a lake has.
    pub is_in_lake: bool,
    /// Nodes that lack chunks of it, whatever their places say, and which; none if there are too many to tell.
    pub lacking: Vec<(NodeId, Option<BTreeSet<MissingChunk>>)>,
}

/// What becomes of a version when some places are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Every chunk is still somewhere.
    Safe,
    /// Its chunks are spread over several nodes, of which some are gone: it cannot be told from here.
    Doubtful,
    /// Some of it is nowhere.
    Lost,
}

impl Undrained {
    pub fn is_on(&self, node: NodeId) -> bool {
        self.places.iter().any(|(at, _)| *at == node)
    }

    /// Whether a node lacks chunks that it should have.
    fn lacks(&self, node: NodeId) -> bool {
        self.lacking.iter().any(|(at, _)| *at == node)
    }

    /// Nodes that have what they should have of it, in places that count.
    pub fn copies(&self, counts: impl Fn(NodeId, DriveId) -> bool) -> usize {
        let counting = self.places.iter().filter(|(node, drive)| !self.lacks(*node) && counts(*node, *drive));
        counting.map(|(node, _)| *node).collect::<BTreeSet<NodeId>>().len()
    }

    /// Whether nodes that can be read from lack some of it, but not all of them the same.
    fn is_scattered(&self, counts: impl Fn(NodeId, DriveId) -> bool) -> bool {
        let is_read = |node: NodeId| self.places.iter().any(|(at, drive)| *at == node && counts(*at, *drive));
        let mut all =
            self.lacking.iter().filter(|(node, _)| is_read(*node)).map(|(_, chunks)| chunks.as_ref());
        let Some(first) = all.next() else { return false };
        let Some(first) = first else { return all.next().is_some() };
        let is_everywhere = |chunk: &&MissingChunk| {
            let lacks = |(node, chunks): &(NodeId, Option<BTreeSet<MissingChunk>>)| {
                !is_read(*node) || chunks.as_ref().is_some_and(|chunks| chunks.contains(*chunk))
            };
            self.lacking.iter().all(lacks)
        };
        !first.iter().any(|chunk| is_everywhere(&chunk))
    }

    /// What is left of it in places that count. The home has all of it. All others together have all of it, too, and each of
    /// them if there are no more than the class of its volume asks for.
    pub fn fate(&self, class_copies: usize, counts: impl Fn(NodeId, DriveId) -> bool) -> Fate {
        if self.bytes == 0 || self.is_in_lake {
            return Fate::Safe;
        }
        let is_whole = |is_meant: &dyn Fn(NodeId) -> bool| {
            let mut places = self.places.iter().filter(|(node, _)| is_meant(*node)).peekable();
            places.peek().is_some() && places.all(|(node, drive)| !self.lacks(*node) && counts(*node, *drive))
        };
        let others: BTreeSet<NodeId> =
            self.places.iter().map(|(node, _)| *node).filter(|node| *node != self.home).collect();
        let each = others.len() < class_copies;
        if is_whole(&|node| node == self.home)
            || is_whole(&|node| node != self.home)
            || (each && others.iter().any(|other| is_whole(&|node| node == *other)))
        {
            Fate::Safe
        } else if others.is_empty() || (self.copies(&counts) == 0 && !self.is_scattered(&counts)) {
            Fate::Lost
        } else {
            Fate::Doubtful
        }
    }
}

/// A part of an upload that is not complete.
pub(crate) struct Part {
    pub upload: VersionId,
    pub number: u16,
    pub version: VersionId,
    pub bytes: u64,
    pub since_ms: u64,
    pub places: Vec<(NodeId, DriveId)>,
}

/// Everything that is not in the lake.
#[derive(Default)]
pub(crate) struct Census {
    pub versions: HashMap<VersionId, Undrained>,
    pub parts: Vec<Part>,
    /// Copies that a commit makes, by volume.
    pub copies: HashMap<u32, usize>,
    /// There was more than is looked at.
    pub at_least: bool,
}

impl Census {
    pub fn add(&mut self, version: VersionId, place: (NodeId, DriveId), row: &DirtyRow) {
        if self.versions.len() >= VERSIONS_MAX && !self.versions.contains_key(&version) {
            self.at_least = true;
            return;
        }
        let known = self.versions.entry(version).or_insert_with(|| Undrained {
            volume: row.volume,
            bytes: row.bytes,
            since_ms: row.since_ms,
            home: NodeId(row.home),
            places: Vec::new(),
            is_in_lake: false,
            lacking: Vec::new(),
        });
        known.places.push(place);
    }

    pub fn fate(&self, undrained: &Undrained, counts: impl Fn(NodeId, DriveId) -> bool) -> Fate {
        undrained.fate(self.copies.get(&undrained.volume).copied().unwrap_or(1), counts)
    }

    /// What is lost if these nodes die now. `counts` says which places can be read from now.
    pub fn risk(
        &self,
        now_ms: u64,
        counts: impl Fn(NodeId, DriveId) -> bool,
        dies: impl Fn(NodeId) -> bool,
    ) -> Risk {
        let mut risk = Risk::default();
        let survives = |node: NodeId, drive: DriveId| !dies(node) && counts(node, drive);
        for undrained in self.versions.values().filter(|one| one.places.iter().any(|(node, _)| dies(*node))) {
            risk.undrained_files += 1;
            risk.undrained_bytes += undrained.bytes;
            risk.oldest_age_ms = risk.oldest_age_ms.max(now_ms.saturating_sub(undrained.since_ms));
            if undrained.bytes > 0 && !undrained.is_in_lake && undrained.copies(&counts) == 1 {
                risk.one_copy_files += 1;
                risk.one_copy_bytes += undrained.bytes;
            }
            // What nobody can read now is not lost by this.
            if self.fate(undrained, &counts) == Fate::Lost {
                continue;
            }
            match self.fate(undrained, survives) {
                Fate::Safe => {}
                Fate::Doubtful => {
                    risk.doubtful_files += 1;
                    risk.doubtful_bytes += undrained.bytes;
                }
                Fate::Lost => {
                    risk.lost_files += 1;
                    risk.lost_bytes += undrained.bytes;
                }
            }
        }
        let is_lost = |part: &&Part| {
            let any = |counts: &dyn Fn(NodeId, DriveId) -> bool| {
                part.places.iter().any(|(node, drive)| counts(*node, *drive))
            };
            any(&counts) && !any(&survives)
        };
        risk.lost_parts = self.parts.iter().filter(is_lost).count() as u64;
        risk
    }
}

impl Core {
    /// Counts everything that is not in the lake.
    pub(crate) async fn census(&self) -> Result<Census> {
        let mut census = Census::default();
        self.each(keys::DIRTY.to_vec(), |row| {
            let dirty = DirtyRow::of(row).map_err(error::catalog)?;
            let key = &row.key;
            if let (Some(node), Some(drive), Some(version)) =
                (keys::dirty_node(key), keys::dirty_drive(key), keys::dirty_version(key))
            {
                census.add(version, (node, drive), &dirty);
            }
            Ok(())
        })
        .await?;
        self.each(keys::PARTS.to_vec(), |row| {
            let part = PartRow::of(row).map_err(error::catalog)?;
            let place =
                |holder: &stoker_schema::rows::HolderRow| (NodeId(holder.node), DriveId(holder.drive));
            let (Some(upload), Some(number)) = (keys::part_upload(&row.key), keys::part_number(&row.key))
            else {
                return Ok(());
            };
            match census.parts.len() < VERSIONS_MAX {
                true => census.parts.push(Part {
                    upload,
                    number,
                    version: VersionId(part.version),
                    bytes: part.size,
                    since_ms: part.modified_ms,
                    places: part.holders.iter().map(place).collect(),
                }),
                false => census.at_least = true,
            }
            Ok(())
        })
        .await?;
        self.count_missing(&mut census).await?;
        for volume in self.volumes.all_and_leaving().await? {
            census.copies.insert(volume.id.0, self.class(&volume).copies());
        }
        // A copy of a lake object is listed as undrained on one node, and yet nothing of it is only there.
        let lonely: Vec<VersionId> = census
            .versions
            .iter()
            .filter(|(_, one)| one.bytes > 0 && one.copies(|_, _| true) <= 1)
            .map(|(version, _)| *version)
            .collect();
        for version in lonely {
            let names = self.names_of(version).await?;
            let is_in_lake = names.first().is_some_and(|located| located.file.source.is_some());
            if let Some(one) = census.versions.get_mut(&version) {
                one.is_in_lake = is_in_lake;
            }
        }
        Ok(census)
    }

    /// Takes what nodes lack into account.
    async fn count_missing(&self, census: &mut Census) -> Result<()> {
        let mut parts: HashMap<VersionId, BTreeSet<NodeId>> = HashMap::new();
        self.each(keys::MISSING.to_vec(), |row| {
            let Some((version, node)) = keys::missing_parts(&row.key) else { return Ok(()) };
            let missing = MissingRow::of(row).map_err(error::catalog)?;
            let chunks = (!missing.more).then(|| missing.chunks.into_iter().collect());
            match census.versions.get_mut(&version) {
                Some(undrained) => undrained.lacking.push((node, chunks)),
                None => drop(parts.entry(version).or_default().insert(node)),
            }
            Ok(())
        })
        .await?;
        if !parts.is_empty() {
            for part in &mut census.parts {
                let lacks =
                    |node: &NodeId| parts.get(&part.version).is_some_and(|nodes| nodes.contains(node));
                part.places.retain(|(node, _)| !lacks(node));
            }
        }
        Ok(())
    }

    /// Whether a place can be read from now, as far as this node can tell.
    pub(crate) fn is_readable(&self, view: &View, node: NodeId, drive: DriveId) -> bool {
        // A row may tell of a drive that is not there any more.
        if node == self.node && !self.rings.has_drive(drive) {
            return false;
        }
        if !self.cell.is_joined() {
            return node == self.node;
        }
        let answers = node == self.node || !self.cell.is_suspect(node);
        answers && !view.is_down(node) && view.session(node).is_some() && view.is_drive_live(drive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(at: u8) -> NodeId {
        NodeId([at; 16])
    }

    #[test]
    fn what_is_left_of_a_version() {
        // Home 1; places as node and drive; class; nodes that are gone.
        let check = |places: &[(u8, u8)], copies: usize, gone: &[u8], expect: Fate| {
            let one = Undrained {
                volume: 1,
                bytes: 10,
                since_ms: 0,
                home: node(1),
                places: places.iter().map(|(at, drive)| (node(*at), DriveId([*drive; 16]))).collect(),
                is_in_lake: false,
                lacking: Vec::new(),
            };
            let counts = |at: NodeId, drive: DriveId| !gone.contains(&at.0[0]) && drive.0[0] != 99;
            assert_eq!(one.fate(copies, counts), expect, "{places:?} {copies} {gone:?}");
            let empty = Undrained { bytes: 0, ..one.clone() };
            assert_eq!(empty.fate(copies, counts), Fate::Safe);
            assert_eq!(Undrained { is_in_lake: true, ..one }.fate(copies, counts), Fate::Safe);
        };
        check(&[(1, 1)], 1, &[], Fate::Safe);
        check(&[(1, 1)], 1, &[1], Fate::Lost);
        check(&[(1, 1), (2, 2)], 2, &[1], Fate::Safe);
        check(&[(1, 1), (2, 2)], 2, &[2], Fate::Safe);
        check(&[(1, 1), (2, 2)], 2, &[1, 2], Fate::Lost);
        // Each of the others has a part of it.
        check(&[(1, 1), (2, 2), (3, 3)], 2, &[1], Fate::Safe);
        check(&[(1, 1), (2, 2), (3, 3)], 2, &[2, 3], Fate::Safe);
        check(&[(1, 1), (2, 2), (3, 3)], 2, &[1, 2], Fate::Doubtful);
        check(&[(1, 1), (2, 2), (3, 3)], 2, &[1, 2, 3], Fate::Lost);
        // Each of the others has all of it.
        check(&[(1, 1), (2, 2), (3, 3)], 3, &[1, 2], Fate::Safe);
        // One of the drives of a node is gone.
        check(&[(1, 1), (1, 99)], 1, &[], Fate::Lost);
        check(&[(1, 1), (1, 99), (2, 2)], 2, &[], Fate::Safe);
        check(&[(1, 1), (1, 99), (2, 2)], 2, &[2], Fate::Doubtful);
        // The home has nothing of it any more.
        check(&[(2, 2)], 2, &[1], Fate::Safe);
        check(&[(2, 2)], 2, &[2], Fate::Lost);
    }

    #[test]
    fn a_node_that_lacks_chunks_is_no_holder() {
        // Nodes 1 (the home) and 2, class two; chunks that each lacks; nodes that are gone.
        let check = |lacking: &[(u8, &[u32])], gone: &[u8], copies: usize, expect: Fate| {
            let chunk = |index: &u32| MissingChunk { version: [7; 12], index: *index, len: 1 };
            let lack = |(at, chunks): &(u8, &[u32])| (node(*at), Some(chunks.iter().map(chunk).collect()));
            let one = Undrained {
                volume: 1,
                bytes: 10,
                since_ms: 0,
                home: node(1),
                places: vec![(node(1), DriveId([1; 16])), (node(2), DriveId([2; 16]))],
                is_in_lake: false,
                lacking: lacking.iter().map(lack).collect(),
            };
            let counts = |at: NodeId, _: DriveId| !gone.contains(&at.0[0]);
            assert_eq!(one.copies(counts), copies, "{lacking:?} {gone:?}");
            assert_eq!(one.fate(2, counts), expect, "{lacking:?} {gone:?}");
        };
        check(&[], &[], 2, Fate::Safe);
        check(&[(2, &[0])], &[], 1, Fate::Safe);
        check(&[(2, &[0])], &[2], 1, Fate::Safe);
        check(&[(2, &[0])], &[1], 0, Fate::Lost);
        check(&[(1, &[0])], &[2], 0, Fate::Lost);
        check(&[(1, &[0]), (2, &[0, 1])], &[], 0, Fate::Lost);
        // Each has what the other lacks.
        check(&[(1, &[0]), (2, &[1])], &[], 0, Fate::Doubtful);
        check(&[(1, &[0]), (2, &[1])], &[2], 0, Fate::Lost);
    }
}
