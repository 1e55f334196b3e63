//! Which blocks are in which bundle. Pure: who lists and reads bundles tells it, and it says what is where and what goes first.

use std::collections::{HashMap, HashSet};

use stoker_format::VersionId;
use stoker_store::Key;

use crate::bundle::Record;
use crate::digest::{Digest, DigestMap};

/// A bundle in this process.
pub(crate) type BundleId = u32;

/// A file of the directory, as a listing shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub key: Key,
    pub version: VersionId,
    pub size: u64,
    pub modified_ms: u64,
}

/// What a file turned out to be.
pub(crate) enum Content {
    Blocks {
        records: Vec<Record>,
        written_ms: u64,
    },
    /// Damaged, or no bundle.
    Bad,
    /// Of a newer release.
    TooNew,
    /// It cannot be read now; it counts for the cap, and is looked at again.
    Unread,
}

struct Bundle {
    listed: Listed,
    records: Vec<Record>,
    written_ms: u64,
    /// When the last of its blocks expires.
    expires_ms: u64,
    used_ms: u64,
    is_bad: bool,
    is_unread: bool,
}

#[derive(Clone, Copy)]
struct Place {
    bundle: BundleId,
    record: u32,
    reads: u8,
}

/// A block that is in a bundle.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub bundle: BundleId,
    pub listed: Listed,
    pub record: Record,
    /// How often it was asked for, this time included.
    pub reads: u8,
}

/// All that is known of the directory.
#[derive(Default)]
pub(crate) struct Index {
    bundles: HashMap<BundleId, Bundle>,
    by_key: HashMap<Key, BundleId>,
    places: DigestMap<Place>,
    next: BundleId,
    bytes: u64,
    blocks_max: usize,
}

impl Index {
    pub fn new(blocks_max: usize) -> Index {
        Index { blocks_max, ..Index::default() }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn blocks(&self) -> usize {
        self.places.len()
    }

    pub fn bundles(&self) -> usize {
        self.bundles.len()
    }

    pub fn bundles_bad(&self) -> usize {
        self.bundles.values().filter(|bundle| bundle.is_bad).count()
    }

    pub fn ids(&self) -> Vec<BundleId> {
        self.bundles.keys().copied().collect()
    }

    /// Whether this version of a file is known.
    pub fn knows(&self, listed: &Listed) -> bool {
        let known = self.by_key.get(&listed.key).and_then(|id| self.bundles.get(id));
        known.is_some_and(|bundle| bundle.listed.version == listed.version && !bundle.is_unread)
    }

    /// The time of the newest bundle, of those that are not later than this.
    pub fn newest_ms(&self, limit_ms: u64) -> u64 {
        let times = self.bundles.values().map(|bundle| bundle.written_ms);
        times.filter(|time| *time <= limit_ms).max().unwrap_or(0)
    }

    /// Whether a block is still found where it was.
    pub fn is_at(&self, digest: &Digest, bundle: BundleId) -> bool {
        self.places.get(digest).is_some_and(|place| place.bundle == bundle)
    }

    /// The bundle that a block is in.
    pub fn bundle_of(&self, digest: &Digest) -> Option<(BundleId, &Listed)> {
        let place = self.places.get(digest)?;
        self.bundles.get(&place.bundle).map(|bundle| (place.bundle, &bundle.listed))
    }

    fn look(&self, digest: &Digest, now_ms: u64) -> Option<(Place, &Bundle, &Record)> {
        let place = *self.places.get(digest)?;
        let bundle = self.bundles.get(&place.bundle)?;
        let record = bundle.records.get(place.record as usize)?;
        (record.expires_ms > now_ms).then_some((place, bundle, record))
    }

    /// A block, without using it.
    pub fn peek(&self, digest: &Digest, now_ms: u64) -> Option<&Record> {
        self.look(digest, now_ms).map(|(_, _, record)| record)
    }

    /// Takes note that the bundle of a block was used.
    pub fn touch(&mut self, digest: &Digest, now_ms: u64) {
        let bundle = self.places.get(digest).and_then(|place| self.bundles.get_mut(&place.bundle));
        if let Some(bundle) = bundle {
            bundle.used_ms = bundle.used_ms.max(now_ms);
        }
    }

    /// A block that is used.
    pub fn find(&mut self, digest: &Digest, now_ms: u64) -> Option<Found> {
        let (place, bundle, record) = self.look(digest, now_ms)?;
        let reads = place.reads.saturating_add(1);
        let found = Found { bundle: place.bundle, listed: bundle.listed.clone(), record: *record, reads };
        self.touch(digest, now_ms);
        if let Some(place) = self.places.get_mut(digest) {
            place.reads = reads;
        }
        Some(found)
    }

    /// Takes a bundle in, unless it is known; another version of it is forgotten. Of two blocks of one name the one of the newer
    /// bundle counts.
    pub fn add(&mut self, listed: Listed, content: Content) -> Option<BundleId> {
        if self.knows(&listed) {
            return None;
        }
        if let Some(old) = self.by_key.get(&listed.key) {
            self.remove(*old);
        }
        let is_unread = matches!(content, Content::Unread);
        let (mut records, written_ms, is_bad) = match content {
            Content::Blocks { records, written_ms } => (records, written_ms, false),
            Content::Bad => (Vec::new(), listed.modified_ms, true),
            Content::TooNew | Content::Unread => (Vec::new(), listed.modified_ms, false),
        };
        if self.places.len() + records.len() > self.blocks_max {
            tracing::warn!(
                "{}: its {} blocks are not looked at, there are too many",
                listed.key,
                records.len()
            );
            records = Vec::new();
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        for (number, record) in records.iter().enumerate() {
            let older = |place: &Place| match self.bundles.get(&place.bundle) {
                Some(other) => (other.written_ms, &other.listed.key) <= (written_ms, &listed.key),
                None => true,
            };
            if self.places.get(&record.digest).is_none_or(older) {
                self.places.insert(record.digest, Place { bundle: id, record: number as u32, reads: 0 });
            }
        }
        // What cannot be read says nothing about when it expires.
        let expires_ms = records.iter().map(|record| record.expires_ms).max().unwrap_or(u64::MAX);
        self.bytes += listed.size;
        self.by_key.insert(listed.key.clone(), id);
        self.bundles.insert(
            id,
            Bundle { listed, records, written_ms, expires_ms, used_ms: written_ms, is_bad, is_unread },
        );
        Some(id)
    }

    /// Forgets a bundle and its blocks.
    pub fn remove(&mut self, id: BundleId) {
        let Some(bundle) = self.bundles.remove(&id) else { return };
        self.by_key.remove(&bundle.listed.key);
        self.bytes -= bundle.listed.size;
        for record in &bundle.records {
            if self.places.get(&record.digest).is_some_and(|place| place.bundle == id) {
                self.places.remove(&record.digest);
            }
        }
    }

    /// Forgets the bundles among `before` that a listing does not show.
    pub fn keep(&mut self, before: &[BundleId], listed: &[Listed]) -> Vec<BundleId> {
        let shown: HashSet<&Key> = listed.iter().map(|one| &one.key).collect();
        let is_gone =
            |id: &&BundleId| self.bundles.get(id).is_some_and(|bundle| !shown.contains(&bundle.listed.key));
        let gone: Vec<BundleId> = before.iter().filter(is_gone).copied().collect();
        gone.iter().for_each(|id| self.remove(*id));
        gone
    }

    /// Forgets a block of a bundle.
    pub fn forget(&mut self, digest: &Digest, bundle: Option<BundleId>) {
        let is_meant = |place: &Place| bundle.is_none_or(|bundle| place.bundle == bundle);
        if self.places.get(digest).is_some_and(is_meant) {
            self.places.remove(digest);
        }
    }

    pub fn clear(&mut self) {
        // Numbers are not used again: somebody may still read a bundle of before.
        *self = Index { next: self.next, ..Index::new(self.blocks_max) };
    }

    /// What has to be deleted so that so many bytes and blocks more are within the limits: what expired, what is damaged, then
    /// what was not used for longest.
    pub fn victims(&self, room: &Room, now_ms: u64) -> Vec<(BundleId, Listed)> {
        let (mut bytes, mut blocks) = (self.bytes + room.bytes, self.places.len() + room.blocks);
        let mut bundles = self.bundles.len() + 1;
        let is_over = |bytes: u64, blocks: usize, bundles: usize| {
            bytes > room.bytes_max || blocks > self.blocks_max || bundles > room.bundles_max
        };
        if !is_over(bytes, blocks, bundles) {
            return Vec::new();
        }
        let mut order: Vec<(&BundleId, &Bundle)> = self.bundles.iter().collect();
        order.sort_by_key(|(_, bundle)| {
            let is_useless = bundle.expires_ms <= now_ms || bundle.is_bad;
            (!is_useless, bundle.used_ms, bundle.written_ms, &bundle.listed.key)
        });
        let mut victims = Vec::new();
        for (id, bundle) in order {
            if !is_over(bytes, blocks, bundles) {
                break;
            }
            bytes = bytes.saturating_sub(bundle.listed.size);
            // Of a block that is elsewhere, too, the place stays.
            let own = bundle.records.iter().filter(|record| self.is_at(&record.digest, *id)).count();
            blocks = blocks.saturating_sub(own);
            bundles -= 1;
            victims.push((*id, bundle.listed.clone()));
        }
        victims
    }
}

/// What is to be written, and the limits.
pub(crate) struct Room {
    pub bytes: u64,
    pub blocks: usize,
    pub bytes_max: u64,
    pub bundles_max: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::NEVER;

    fn listed(name: &str, version: u8, size: u64) -> Listed {
        let version = VersionId([version; 12]);
        Listed { key: Key::new(name).unwrap(), version, size, modified_ms: 0 }
    }

    fn blocks(names: &[u8], written_ms: u64, expires_ms: u64) -> Content {
        let record = |name: &u8| Record {
            digest: Digest([*name; 16]),
            offset: 0,
            len: 1,
            sum: written_ms,
            written_ms,
            expires_ms,
        };
        Content::Blocks { records: names.iter().map(record).collect(), written_ms }
    }

    fn sum(index: &Index, name: u8) -> Option<u64> {
        index.peek(&Digest([name; 16]), 0).map(|record| record.sum)
    }

    #[test]
    fn the_newer_of_two_blocks_counts_in_whatever_order_they_come() {
        for order in [[0, 1], [1, 0]] {
            let mut index = Index::new(100);
            for which in order {
                match which {
                    0 => index.add(listed("a", 1, 10), blocks(&[1, 2], 100, NEVER)).unwrap(),
                    _ => index.add(listed("b", 1, 10), blocks(&[2, 3], 200, NEVER)).unwrap(),
                };
            }
            assert_eq!([1, 2, 3, 4].map(|name| sum(&index, name)), [Some(100), Some(200), Some(200), None]);
            assert_eq!((index.bytes(), index.blocks(), index.bundles()), (20, 3, 2));
        }
    }

    #[test]
    fn another_version_replaces_and_a_vanished_one_is_forgotten() {
        let mut index = Index::new(100);
        index.add(listed("a", 1, 10), blocks(&[1], 100, NEVER));
        index.add(listed("a", 1, 10), blocks(&[9], 100, NEVER));
        assert_eq!(sum(&index, 9), None, "that version is known");
        index.add(listed("a", 2, 7), blocks(&[2], 50, NEVER));
        assert_eq!((sum(&index, 1), sum(&index, 2), index.bytes()), (None, Some(50), 7));
        let before = index.ids();
        index.add(listed("late", 1, 1), blocks(&[3], 60, NEVER));
        index.keep(&before, &[]);
        assert_eq!((sum(&index, 2), sum(&index, 3), index.bytes()), (None, Some(60), 1));
    }

    #[test]
    fn victims_are_the_expired_then_the_bad_then_the_unused() {
        let mut index = Index::new(100);
        index.add(listed("old", 1, 10), blocks(&[1], 100, NEVER));
        index.add(listed("used", 1, 10), blocks(&[2], 90, NEVER));
        index.add(listed("bad", 1, 10), Content::Bad);
        index.add(listed("expired", 1, 10), blocks(&[3], 500, 600));
        assert!(index.find(&Digest([2; 16]), 700).is_some());
        let victims = |bytes, bytes_max| {
            let room = Room { bytes, blocks: 1, bytes_max, bundles_max: 10 };
            index.victims(&room, 700).iter().map(|(_, one)| one.key.to_string()).collect::<Vec<_>>()
        };
        assert!(victims(10, 50).is_empty());
        assert_eq!(victims(10, 45), ["bad"]);
        assert_eq!(victims(10, 25), ["bad", "expired", "old"]);
        assert_eq!(victims(10, 10), ["bad", "expired", "old", "used"]);
        let room = Room { bytes: 0, blocks: 99, bytes_max: 1000, bundles_max: 10 };
        assert_eq!(index.victims(&room, 700).len(), 3, "too many blocks");
        let room = Room { bytes: 0, blocks: 0, bytes_max: 1000, bundles_max: 3 };
        assert_eq!(index.victims(&room, 700).len(), 2, "too many bundles");
    }

    #[test]
    fn blocks_are_bounded() {
        let mut index = Index::new(2);
        index.add(listed("a", 1, 10), blocks(&[1, 2], 100, NEVER));
        index.add(listed("b", 1, 10), blocks(&[3], 100, NEVER));
        assert_eq!((index.blocks(), index.bundles(), index.bytes()), (2, 2, 20));
    }
}
