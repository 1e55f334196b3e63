//! Writes what comes back into a catalog that nobody else uses.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt;
use stoker_catalog::engine::Embedded;
use stoker_catalog::kv::{Catalog, Commit, Outcome as Committed, Write};
use stoker_format::VersionId;
use stoker_schema::names::{Names, Plan, Published, Refusal};
use stoker_schema::rows::{
    Drain, GarbageRow, Layout, RekeyRow, RowValue, SetRow, SetState, ShardRow, VersionRow, keys,
};
use stoker_store::{ErrorKind, Result, StoreError};

use super::knowledge::VolumeFound;
use super::lakes::SetFound;
use super::replay::Moved;
use super::settle::{Outcome, Settled};
use super::{LOST_NAMED, SalvageReport};
use crate::Tell;
use stoker_host::clock;
use stoker_records::error;
use stoker_records::layout::owners;

/// Files written at the same time: they share flushes.
const AT_ONCE: usize = 64;

/// Rows of one commit.
const ROWS_AT_ONCE: usize = 1_000;

/// Sets that are back, by their directories.
type Sets = BTreeMap<Vec<u8>, SetFound>;

/// A catalog in the making.
pub(super) struct Rebuild {
    names: Names,
    catalog: Arc<Embedded>,
    /// Versions that use the chunks of an owner.
    users: BTreeMap<VersionId, BTreeSet<VersionId>>,
    inode_next: u64,
    report: SalvageReport,
}

/// A shard that was written down as a file, and is to be one of its set.
struct Shard {
    set: u64,
    number: Option<u32>,
    writer: String,
    published: Published,
}

impl Rebuild {
    /// Begins; inodes are handed out from above the one that is given.
    pub async fn begin(catalog: Arc<Embedded>, inode_next: u64) -> Result<Rebuild> {
        let names = Names::new(catalog.clone());
        let (users, report) = Default::default();
        Ok(Rebuild { names, catalog, users, inode_next, report })
    }

    /// Writes down a volume.
    pub async fn volume(
        &mut self,
        volume: &VolumeFound,
        settled: Outcome,
        sets: Vec<SetFound>,
        tell: Tell<'_>,
    ) -> Result<()> {
        let report = &mut self.report;
        name_some(volume, &settled.lost, &mut report.lost_files, &mut report.lost);
        name_some(volume, &settled.untold, &mut report.untold_files, &mut report.untold);
        let sets = self.sets(volume, &settled.files, sets).await?;
        for file in &settled.files {
            for owner in owners(&file.runs, VersionId(file.row.version)) {
                self.users.entry(owner).or_default().insert(VersionId(file.row.version));
            }
            self.users.entry(VersionId(file.row.version)).or_default().insert(VersionId(file.row.version));
            self.report.files += 1;
            self.report.bytes += file.row.size;
            if file.row.drain == Drain::Dirty {
                self.report.dirty_files += 1;
                self.report.dirty_bytes += file.row.allocated();
            }
        }
        let mut dead = dead_records(&settled);
        for (version, row) in &settled.spills {
            dead.push(Write::Put(keys::spill(*version), row.encode()));
            dead.push(Write::Put(keys::spilled(volume.id(), *version), Vec::new()));
        }
        let done_before = self.report.files - settled.files.len() as u64;
        let names = &self.names;
        let written = settled.files.into_iter().map(|file| put(names, volume, file, &sets));
        let mut written = futures_util::stream::iter(written).buffer_unordered(AT_ONCE);
        let (mut shards, mut done) = (Vec::new(), done_before);
        while let Some(shard) = written.next().await {
            shards.extend(shard?);
            done += 1;
            tell("writing names", done);
        }
        drop(written);
        self.shards(shards).await?;
        self.report.deletes += settled.tombstones.len() as u64;
        let rows = settled.tombstones.iter();
        let writes = rows.map(|(key, row)| Write::Put(keys::tombstone(volume.id(), key), row.encode()));
        self.write(writes.chain(dead).collect()).await
    }

    /// Directories that were renamed: records of the files in them have the old names, and are written anew soon after the
    /// start. Until then the record of the rename stays.
    pub async fn renames(&self, volume: &VolumeFound, renames: &[Moved]) -> Result<()> {
        let mut writes = Vec::new();
        for (at, Moved { to, moment, .. }) in renames.iter().enumerate() {
            let later = renames[at + 1..].iter().filter(|later| later.moment.seq != moment.seq);
            let now = later.fold(to.clone(), |now, later| later.key(now));
            let spot = self.names.resolve(volume.id(), &now).await.map_err(error::catalog)?;
            if let Some(spot) = spot.filter(|spot| spot.name.is_empty()) {
                let row = RekeyRow { since_ms: clock::now_ms(), name_record: Some(moment.id.0) };
                writes.push(Write::Put(keys::rekey_directory(volume.id(), spot.parent), row.encode()));
            }
        }
        self.write(writes).await
    }

    /// Hangs the directories of sets, so that files find them. Gives the sets that are back.
    async fn sets(&mut self, volume: &VolumeFound, files: &[Settled], sets: Vec<SetFound>) -> Result<Sets> {
        let mut back = Sets::new();
        let highest = sets.iter().map(|set| set.set + 1).max().unwrap_or(0);
        self.inode_next = self.inode_next.max(highest);
        if self.inode_next > 0 {
            let next = Write::Put(keys::NEXT_INODE.to_vec(), self.inode_next.to_le_bytes().to_vec());
            self.write(vec![next]).await?;
            // Numbers that were taken from the row before are not to be used.
            self.names = Names::new(self.catalog.clone());
        }
        let names: BTreeSet<&[u8]> = files.iter().map(|file| file.key.as_slice()).collect();
        let mut counts: HashMap<u64, u32> = HashMap::new();
        for (set, _) in files.iter().filter_map(|file| file.set) {
            *counts.entry(set).or_default() += 1;
        }
        for set in sets {
            let mut inside = names.range(set.target.as_slice()..);
            if !inside.next().is_some_and(|key| key.starts_with(&set.target)) {
                continue;
            }
            let count = counts.get(&set.set).copied().unwrap_or(0);
            let row = SetRow {
                state: SetState::Published,
                owner: set.owner.clone(),
                target: set.target.clone(),
                expected: set.expected.unwrap_or(count),
                deadline_ms: 0,
                created_ms: set.begun_ms,
                closed_ms: if set.published_ms == 0 { clock::now_ms() } else { set.published_ms },
                drains: volume.whose().drains,
            };
            match self.names.set_rebuild(volume.id(), set.set, &row).await {
                Ok(()) => drop(back.insert(set.target.clone(), set)),
                // Two sets had this name, one after the other; the files are those of the last.
                Err(Refusal::Exists) => {}
                Err(refusal) => return Err(error::refusal(refusal)),
            }
        }
        self.report.sets += back.len() as u64;
        Ok(back)
    }

    /// Rows of shards.
    async fn shards(&self, mut shards: Vec<Shard>) -> Result<()> {
        shards.sort_by(|a, b| {
            (a.set, a.number, &a.published.spot.name).cmp(&(b.set, b.number, &b.published.spot.name))
        });
        let mut taken: HashSet<(u64, u32)> =
            shards.iter().filter_map(|shard| Some((shard.set, shard.number?))).collect();
        let mut writes = Vec::new();
        for shard in shards {
            let number = match shard.number {
                Some(number) => number,
                None => {
                    let free =
                        (0..).find(|number| !taken.contains(&(shard.set, *number))).unwrap_or(u32::MAX);
                    taken.insert((shard.set, free));
                    free
                }
            };
            let file = &shard.published.file;
            let row = ShardRow {
                parent: shard.published.spot.parent,
                name: shard.published.spot.name.clone(),
                version: file.version,
                size: file.size,
                crc64: file.crc64,
                node: file.home,
                session: [0; 16],
                writer: shard.writer,
                added_ms: file.modified_ms,
            };
            writes.push(Write::Put(keys::shard(shard.set, number), row.encode()));
        }
        self.write(writes).await
    }

    async fn write(&self, writes: Vec<Write>) -> Result<()> {
        for writes in writes.chunks(ROWS_AT_ONCE) {
            let commit = Commit { checks: Vec::new(), writes: writes.to_vec() };
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Committed::Done { .. } => {}
                Committed::Failed { .. } => {
                    return Err(StoreError::new(ErrorKind::Conflict, "somebody else writes this catalog"));
                }
            }
        }
        Ok(())
    }

    /// Writes who shares chunks with whom, and gives the report.
    pub async fn end(self) -> Result<SalvageReport> {
        let mut writes = Vec::new();
        for (owner, users) in &self.users {
            if users.len() > 1 {
                let others = users.iter().filter(|user| *user != owner);
                writes.extend(others.map(|user| Write::Put(keys::share(*owner, *user), Vec::new())));
            }
        }
        self.write(writes).await?;
        Ok(self.report)
    }
}

/// Counts keys, and names some.
fn name_some(volume: &VolumeFound, keys: &[Vec<u8>], count: &mut u64, named: &mut Vec<String>) {
    *count += keys.len() as u64;
    let room = LOST_NAMED.saturating_sub(named.len());
    let some = keys.iter().take(room);
    named.extend(some.map(|key| format!("{}/{}", volume.name, String::from_utf8_lossy(key))));
}

/// Rows that let the records of the dead go. Were they left on the drives, they would look alive to the next salvage once the records
/// of their deletes are gone.
fn dead_records(settled: &Outcome) -> Vec<Write> {
    let live = |file: &Settled| file.row.name_record.unwrap_or(file.row.version);
    let live: HashSet<[u8; 12]> = settled.files.iter().map(live).collect();
    let mut dead: Vec<VersionId> =
        settled.dead.iter().filter(|record| !live.contains(&record.0)).copied().collect();
    dead.sort_unstable();
    dead.dedup();
    let row = GarbageRow { settled: true, runs: Vec::new() }.encode();
    dead.into_iter().map(|record| Write::Put(keys::garbage(record, 0), row.clone())).collect()
}

/// Writes down a file, and what goes with it; gives the shard that it is.
async fn put(names: &Names, volume: &VolumeFound, file: Settled, sets: &Sets) -> Result<Option<Shard>> {
    let Settled { key, row, runs, upload_parts, set } = file;
    let layout = match row.layout {
        Layout::Rows | Layout::Sparse { .. } => VersionRow::split(&runs, upload_parts),
        Layout::Simple { .. } => Vec::new(),
    };
    let planned = names.publish(volume.id(), &key, &[], |_| {
        let plan = Plan { layout: layout.clone(), ..Plan::simple(row.clone()) };
        Box::pin(async move { Ok(plan) })
    });
    let published = planned.await.map_err(error::refusal)?;
    let elsewhere = published.file.lake.as_ref().filter(|lake| row.drain == Drain::Clean && lake.key != key);
    if let Some(lake) = elsewhere {
        // Its object follows the rename, and stays until then.
        let version = published.file.version();
        let rekey = RekeyRow { since_ms: clock::now_ms(), name_record: None };
        let commit = Commit::new()
            .put(keys::dependent(volume.id(), &lake.key, version, published.file.inode), Vec::new())
            .put(keys::rekey_file(volume.id(), version), rekey.encode());
        let _ = names.catalog().commit(commit).await.map_err(error::catalog)?;
    }
    let told = folders(&key).find_map(|target| {
        let found = sets.get(target)?;
        let shard = found.shards.get(&key[target.len()..])?;
        Some((found.set, Some(shard.0), shard.1.clone()))
    });
    let is_back = |id: u64| folders(&key).any(|target| sets.get(target).is_some_and(|found| found.set == id));
    let recorded = set.filter(|(id, _)| is_back(*id));
    let shard = told.or_else(|| recorded.map(|(id, number)| (id, number, String::new())));
    Ok(shard.map(|(set, number, writer)| Shard { set, number, writer, published }))
}

/// Every directory that a key is in, with its `/`.
fn folders(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &key[..=at])
}
