//! Files out of names, drives and the lake: which version of each key is the newest one that has all its bytes, and where
//! they are. No I/O.

use std::collections::{BTreeMap, HashMap, HashSet};

use stoker_format::{ChunkRun, VersionId, VolumeId};
use stoker_lake::ObjectInfo;
use stoker_schema::rows::{Drain, FileRow, LakeRef, SourceRef, SpillRow, TombstoneRow};
use stoker_store::Result;

use super::drives::Inventory;
use super::replay::{Moment, Named, Replayed};
use stoker_host::clock::minted_ms;
use stoker_records::attributes;
use stoker_records::lake_file::{lake_row, past_of};
use stoker_records::lake_keys::{AWAY, OPEN, open_key, parse_spill};
use stoker_records::layout::RunList;
use stoker_records::properties::Properties;

/// A volume, as far as it matters here.
#[derive(Clone, Copy)]
pub(super) struct Whose {
    pub volume: VolumeId,
    /// Its files go to a lake.
    pub drains: bool,
    /// Nobody else writes there: what is in the lake is in the catalog.
    pub owned: bool,
    pub now_ms: u64,
}

/// Length of the chunks of files that only the lake knows.
const CHUNK_LEN: u32 = 4 << 20;

/// A file that comes back.
pub(super) struct Settled {
    pub key: Vec<u8>,
    pub row: FileRow,
    pub runs: Vec<ChunkRun>,
    pub upload_parts: Vec<(u64, u32)>,
    pub set: Option<(u64, Option<u32>)>,
}

/// What comes back.
#[derive(Default)]
pub(super) struct Outcome {
    pub files: Vec<Settled>,
    pub tombstones: Vec<(Vec<u8>, TombstoneRow)>,
    /// Where chunks are that files need and that are on no drive.
    pub spills: Vec<(VersionId, SpillRow)>,
    /// Keys of which records tell and whose bytes are nowhere.
    pub lost: Vec<Vec<u8>>,
    /// Keys of which an older catalog tells and nothing else: they were deleted since, or are lost.
    pub untold: Vec<Vec<u8>>,
    /// Records of what was deleted or replaced.
    pub dead: Vec<VersionId>,
}

/// Decides for a volume.
pub(super) fn settle(
    whose: Whose,
    replayed: &Replayed,
    inventory: &Inventory,
    objects: &BTreeMap<Vec<u8>, ObjectInfo>,
) -> Result<Outcome> {
    let mut settler = Settler {
        whose,
        inventory,
        lake: Lake::new(replayed, objects),
        used: HashSet::new(),
        out: Outcome::default(),
    };
    // A record says what a file was called when it was drained; the lake follows renames of directories after that.
    let mut names: BTreeMap<Vec<u8>, Vec<Named>> = BTreeMap::new();
    for (key, versions) in &replayed.names {
        for named in versions {
            let moved = settler.lake.moved(named).filter(|_| whose.drains);
            names.entry(moved.unwrap_or(key).to_vec()).or_default().push(named.clone());
        }
    }
    for (key, versions) in &mut names {
        versions.sort_by_key(|named| (named.seq, named.id));
        settler.name(key, versions, replayed)?;
    }
    let recorded = names.iter().flat_map(|(key, versions)| versions.iter().map(move |named| (key, named)));
    let recorded = recorded.map(|(key, named)| (named.id, (key.as_slice(), named.seq))).collect();
    settler.lake_only(replayed, &recorded)?;
    settler.spills();
    settler.out.dead.extend_from_slice(&replayed.buried);
    Ok(settler.out)
}

/// The version that an object says it is.
fn version_of(object: &ObjectInfo) -> Option<VersionId> {
    attributes::version(object.attributes.as_ref()?)?.parse().ok()
}

/// The name that an object was written under, and a commit before that.
fn name_of(object: &ObjectInfo) -> Option<(VersionId, u64)> {
    attributes::name(object.attributes.as_ref()?)
}

/// Whether an object was written before something happened. Commits say it; of an object that does not know of any, the
/// clocks have to.
fn is_before(object: &ObjectInfo, moment: &Moment) -> bool {
    match name_of(object) {
        Some((_, seq)) => seq < moment.seq,
        None => version_of(object).map_or(object.modified_ms, minted_ms) < minted_ms(moment.id),
    }
}

/// The lake under the names that its objects have now.
struct Lake<'l> {
    objects: &'l BTreeMap<Vec<u8>, ObjectInfo>,
    /// From a name to the object.
    shown: BTreeMap<Vec<u8>, &'l ObjectInfo>,
    by_version: HashMap<VersionId, Vec<&'l ObjectInfo>>,
    /// Chunks of versions that went there before those were published.
    spills: HashMap<VersionId, SpillRow>,
    /// Where each name is now, and the commit before that.
    by_name: HashMap<VersionId, (Vec<u8>, u64)>,
    /// Objects whose names moved on; what is to be removed of them.
    left: Vec<&'l ObjectInfo>,
}

impl<'l> Lake<'l> {
    fn new(replayed: &Replayed, objects: &'l BTreeMap<Vec<u8>, ObjectInfo>) -> Lake<'l> {
        let (shown, by_version, spills, by_name, left) = Default::default();
        let mut lake = Lake { objects, shown, by_version, spills, by_name, left };
        let mut latest: HashMap<VersionId, (u64, &[u8])> = HashMap::new();
        let mut moved = Vec::new();
        // What was kept for open reads has no name, and nobody reads it any more.
        let is_kept = |key: &[u8], object: &ObjectInfo| {
            key.starts_with(OPEN) && version_of(object).is_some_and(|version| open_key(version) == key)
        };
        lake.left
            .extend(objects.iter().filter(|(key, object)| is_kept(key, object)).map(|(_, object)| object));
        let named = objects.iter().filter(|(key, object)| !is_kept(key, object));
        for (key, object) in named.clone().filter(|(key, _)| !key.starts_with(AWAY)) {
            if let Some((name, seq)) = name_of(object) {
                let known = latest.entry(name).or_insert((seq, key));
                *known = (*known).max((seq, key));
            }
        }
        for (key, object) in named {
            if let Some((version, first, stride)) = parse_spill(key) {
                let count = u32::try_from(object.size.div_ceil(u64::from(stride))).unwrap_or(0);
                let (key, etag) = (key.clone(), object.etag.clone());
                let row = SpillRow { volume: 0, key, etag, first, count, stride, gone: Vec::new() };
                lake.spills.insert(version, row);
                continue;
            }
            if let Some(version) = version_of(object) {
                lake.by_version.entry(version).or_default().push(object);
            }
            if key.starts_with(AWAY) {
                continue;
            }
            let name = name_of(object);
            // Copied to another key by a rename, and not yet removed here.
            if name.and_then(|(name, _)| latest.get(&name)).is_some_and(|(_, now)| *now != key.as_slice()) {
                lake.left.push(object);
                continue;
            }
            // Of a directory that was renamed, the lake may have the old name still.
            let mut shown = key.clone();
            for moved in &replayed.renames {
                if is_before(object, &moved.moment) {
                    shown = moved.key(shown);
                }
            }
            if let Some((name, seq)) = name {
                lake.by_name.insert(name, (shown.clone(), seq));
            }
            match shown == *key {
                true => drop(lake.shown.insert(shown, object)),
                false => moved.push((shown, key, object)),
            }
        }
        // Two directories that swapped their names have objects under each other's.
        let gone: HashSet<&[u8]> = moved.iter().map(|(_, key, _)| key.as_slice()).collect();
        for (shown, _, object) in &moved {
            if !objects.contains_key(shown) || gone.contains(shown.as_slice()) {
                lake.shown.entry(shown.clone()).or_insert(object);
            }
        }
        lake
    }

    /// Whether the lake has these chunks.
    fn has_spilled(&self, run: &ChunkRun) -> bool {
        let Some(row) = self.spills.get(&run.version) else { return false };
        let size = self.objects.get(&row.key).map_or(0, |object| object.size);
        let last = row.offset(run.first_index.saturating_add(run.count - 1));
        row.offset(run.first_index).is_some() && last.is_some_and(|at| at + u64::from(run.last_len) <= size)
    }

    /// The key that a name has now, if the lake has heard of it later than its record.
    fn moved(&self, named: &Named) -> Option<&[u8]> {
        let (key, seq) = self.by_name.get(&named.id)?;
        (*seq >= named.seq).then_some(key.as_slice())
    }
}

struct Settler<'s> {
    whose: Whose,
    inventory: &'s Inventory,
    lake: Lake<'s>,
    /// Lake keys whose objects have a file.
    used: HashSet<Vec<u8>>,
    out: Outcome,
}

impl Settler<'_> {
    /// The drives that hold a version; none if some of it is on no drive. (D123)
    fn held(&self, named: &Named) -> Option<u64> {
        let runs = named.runs.as_ref()?;
        let size: u64 = runs.iter().map(ChunkRun::byte_len).fold(0, u64::saturating_add);
        if size != named.size {
            return None;
        }
        let spilled = runs.iter().filter(|run| run.is_spilled());
        if !spilled.clone().all(|run| self.lake.has_spilled(run)) {
            return None;
        }
        if runs.iter().any(|run| !run.is_hole() && !run.is_spilled()) {
            return self.inventory.holders(runs);
        }
        // No chunk proves that it was not deleted after an older catalog was written: its record does, or what it has in
        // the lake.
        match named.drive {
            Some(drive) => Some(1 << drive),
            None => runs.iter().any(ChunkRun::is_spilled).then_some(1),
        }
    }

    fn name(&mut self, key: &[u8], versions: &[Named], replayed: &Replayed) -> Result<()> {
        let in_lake = |named: &Named| self.whose.drains && self.lake.by_version.contains_key(&named.version);
        let best = versions.iter().rev().find(|named| self.held(named).is_some() || in_lake(named));
        let here = self.lake.shown.get(key).copied();
        // The lake has another version of ours that is later by commits and by clocks: the record is of one that was
        // replaced, and was to go. Where the two do not agree, what is on the drives counts.
        let is_latest = |named: &&Named| {
            let Some(theirs) = here.and_then(version_of).filter(|theirs| *theirs != named.version) else {
                return true;
            };
            let later_commit = here.and_then(name_of).is_none_or(|(_, seq)| seq > named.seq);
            !later_commit || minted_ms(theirs) <= minted_ms(named.version)
        };
        let Some(named) = best.filter(is_latest) else {
            // What the lake shows under this name is newer, or all there is.
            if here.is_none() || !self.whose.drains {
                self.lose(key, versions);
            }
            return Ok(());
        };
        let replaced = versions.iter().take_while(|older| older.id != named.id);
        self.out.dead.extend(replaced.map(|older| older.id));
        if !self.whose.drains {
            match self.held(named) {
                Some(drives) => self.keep(key, named, Drain::Never, None, None, drives),
                None => self.lose(key, versions),
            }
            return Ok(());
        }
        if let Some(object) = here {
            self.used.insert(object.key.clone());
        }
        let expected = self.lake.objects.get(key);
        let expected = expected.filter(|object| self.whose.owned || version_of(object).is_some());
        let expected = expected.map(|object| LakeRef { key: object.key.clone(), etag: object.etag.clone() });
        if let Some(object) = here.filter(|object| version_of(object) == Some(named.version)) {
            match is_same(named, object)? {
                true => self.clean(key, named, object),
                false => self.relying(key, named, object, expected),
            }
            return Ok(());
        }
        if let Some(drives) = self.held(named) {
            self.keep(key, named, Drain::Dirty, expected, None, drives);
            return Ok(());
        }
        let elsewhere = self.lake.by_version.get(&named.version).into_iter().flatten().copied();
        let Some(object) = elsewhere.min_by_key(|object| object.key.starts_with(AWAY)) else { return Ok(()) };
        // A record with an id of its own is a second name, and so is what has its name still.
        let keeps_name = replayed
            .names
            .get(&object.key)
            .is_some_and(|versions| versions.iter().any(|other| other.version == named.version));
        if named.id != named.version || keeps_name || object.key.starts_with(AWAY) {
            self.relying(key, named, object, expected);
        } else {
            self.used.insert(object.key.clone());
            self.clean(key, named, object);
        }
        Ok(())
    }

    fn lose(&mut self, key: &[u8], versions: &[Named]) {
        match versions.iter().any(|named| named.drive.is_some()) {
            true => self.out.lost.push(key.to_vec()),
            false => self.out.untold.push(key.to_vec()),
        }
    }

    /// Objects that no record tells of. `recorded` has the key of each record, and a commit that it came after.
    fn lake_only(&mut self, replayed: &Replayed, recorded: &HashMap<VersionId, (&[u8], u64)>) -> Result<()> {
        if !self.whose.drains {
            return Ok(());
        }
        let shown: Vec<(Vec<u8>, ObjectInfo)> =
            self.lake.shown.iter().map(|(key, object)| (key.clone(), (*object).clone())).collect();
        let named: HashSet<Vec<u8>> = self.out.files.iter().map(|file| file.key.clone()).collect();
        for (key, object) in shown {
            if self.used.contains(&object.key) || named.contains(&key) {
                continue;
            }
            // It was on its way under this name when it was renamed, and has its bytes on drives.
            let record = name_of(&object).and_then(|(name, seq)| Some((recorded.get(&name)?, seq)));
            if record.is_some_and(|((now, later), seq)| *now != key.as_slice() && *later > seq) {
                self.lake.left.extend(self.lake.objects.get(&object.key));
                continue;
            }
            let deleted = replayed.deleted.get(&key);
            if deleted.is_some_and(|moment| is_before(&object, moment)) {
                continue;
            }
            let shard = replayed.shards.get(&key).filter(|named| version_of(&object) == Some(named.version));
            if let Some(named) = shard {
                self.clean(&key, named, &object);
            } else if self.whose.owned || object.key != key {
                let row = lake_row(self.whose.volume, CHUNK_LEN, &object)?;
                let (runs, upload_parts) = Default::default();
                self.out.files.push(Settled { key, row, runs, upload_parts, set: None });
            }
        }
        let live: HashSet<&[u8]> = self.out.files.iter().map(|file| file.key.as_slice()).collect();
        let mut gone: BTreeMap<&[u8], Option<VersionId>> = BTreeMap::new();
        gone.extend(self.lake.left.iter().map(|object| (object.key.as_slice(), None)));
        gone.extend(replayed.deleted.iter().map(|(key, moment)| (key.as_slice(), Some(moment.id))));
        for (key, record) in gone.into_iter().filter(|(key, _)| !live.contains(key)) {
            let etag = self.lake.objects.get(key).map(|object| object.etag.clone());
            let name_record = record.map(|record| record.0);
            self.out
                .tombstones
                .push((key.to_vec(), TombstoneRow { since_ms: self.whose.now_ms, etag, name_record }));
        }
        Ok(())
    }

    /// Where the chunks are that went to the lake before their files were published; what nobody needs is to go.
    fn spills(&mut self) {
        let mut needed: HashMap<VersionId, Vec<(u32, u32)>> = HashMap::new();
        for run in self.out.files.iter().flat_map(|file| &file.runs).filter(|run| run.is_spilled()) {
            let first = run.unspilled().first_index;
            needed.entry(run.version).or_default().push((first, first + run.count));
        }
        for (version, mut row) in std::mem::take(&mut self.lake.spills) {
            let Some(mut needed) = needed.remove(&version) else {
                if self.whose.drains {
                    let etag = Some(row.etag);
                    let tombstone = TombstoneRow { since_ms: self.whose.now_ms, etag, name_record: None };
                    self.out.tombstones.push((row.key, tombstone));
                }
                continue;
            };
            needed.sort_unstable();
            needed.push((row.first.saturating_add(row.count), u32::MAX));
            let mut at = row.first;
            for (start, end) in needed {
                if start > at {
                    row.forget(at, start - at);
                }
                at = at.max(end);
            }
            row.volume = self.whose.volume.0;
            self.out.spills.push((version, row));
        }
    }

    /// The lake has it.
    fn clean(&mut self, key: &[u8], named: &Named, object: &ObjectInfo) {
        let lake = Some(LakeRef { key: object.key.clone(), etag: object.etag.clone() });
        self.keep(key, named, Drain::Clean, lake, None, 0);
    }

    /// The lake has its bytes, under another name or with other properties.
    fn relying(&mut self, key: &[u8], named: &Named, object: &ObjectInfo, expected: Option<LakeRef>) {
        let (volume, key_there, etag) = (self.whose.volume.0, object.key.clone(), object.etag.clone());
        let source = SourceRef { volume, key: key_there, etag };
        self.keep(key, named, Drain::Dirty, expected, Some(source), 1);
    }

    fn keep(
        &mut self,
        key: &[u8],
        named: &Named,
        drain: Drain,
        lake: Option<LakeRef>,
        source: Option<SourceRef>,
        drives: u64,
    ) {
        let mut list = RunList::default();
        // Of what the lake has by itself, chunks that went there before are not needed.
        let is_there = drain == Drain::Clean || source.is_some();
        let runs = named.runs.iter().flatten();
        runs.for_each(|run| list.push_run(&if is_there { run.unspilled() } else { *run }));
        let holders = self.inventory.rows(drives);
        let row = FileRow {
            inode: 0,
            version: named.version.0,
            size: named.size,
            etag: named.etag.clone(),
            modified_ms: named.modified_ms,
            crc64: named.crc64,
            layout: list.layout(named.version),
            home: holders.first().map(|holder| holder.node).unwrap_or_default(),
            holders,
            drain,
            lake,
            source,
            dirty_since_ms: if drain == Drain::Clean { 0 } else { named.modified_ms },
            publishes: 0,
            name_record: (named.id != named.version).then_some(named.id.0),
            properties: named.properties.clone(),
            links: None,
            past: past_of(key),
        };
        self.out.files.push(Settled {
            key: key.to_vec(),
            row,
            runs: list.runs().to_vec(),
            upload_parts: named.upload_parts.clone(),
            set: named.set,
        });
    }
}

/// Whether an object has the properties that a record tells of.
fn is_same(named: &Named, object: &ObjectInfo) -> Result<bool> {
    let properties = Properties::decode(&named.properties)?;
    let name = (named.id, named.seq);
    let wanted = attributes::describe(named.version, named.etag.clone(), name, &properties.attributes);
    Ok(object.attributes.as_ref().is_some_and(|kept| attributes::is_same(kept, &wanted)))
}
