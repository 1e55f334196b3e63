//! Chunks that are in an object of the lake and on no drive, because their file was too large for the rings
//! ([`spill`](crate::drain::spill)): where they are, and when the object may go. As with chunks on drives, that is when no file that
//! is not in the lake under its own name needs them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use stoker_catalog::kv::{Commit, Range, Write};
use stoker_format::{ChunkId, ChunkRun, VersionId, VolumeId};
use stoker_schema::rows::{GarbageRow, RowValue, SpillRow, TombstoneRow, VersionRow, keys};
use stoker_store::Result;

use crate::core::Core;
use crate::publish::owners;
use crate::reader::Slice;
use crate::stage::Extent;
use crate::{clock, error, rings};

/// Objects that an open file remembers.
const KNOWN_MAX: usize = 1_024;

/// Versions that are looked up together.
const AT_ONCE: usize = 500;

/// An object of spilled chunks.
type Object = Arc<(SpillRow, Arc<Extent>)>;

/// Those that an open file has read from, by version.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<VersionId, Object>>);

impl Known {
    /// Nothing of what was known counts any more.
    pub fn forget(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// Whether a chunk of a layout is spilled.
pub(crate) fn is_spilled(chunk: &ChunkId) -> bool {
    chunk.index & ChunkRun::SPILLED != 0
}

impl Core {
    /// The object that has a spilled chunk, and the chunk as a piece of it.
    pub async fn spilled_at(&self, known: &Known, slice: &Slice) -> Result<(Slice, Arc<Extent>)> {
        let version = slice.chunk.version;
        let found = known.0.lock().unwrap().get(&version).cloned();
        let found = match found {
            Some(found) => found,
            None => {
                let missing = || rings::missing(&slice.chunk);
                let row = self.catalog.get(&[&keys::spill(version)]).await.map_err(error::catalog)?;
                let row = row.into_iter().next().flatten().ok_or_else(missing)?;
                let row = SpillRow::of(&row).map_err(error::catalog)?;
                let extent = self.extent_of(VolumeId(row.volume), row.key.clone(), row.etag.clone()).await?;
                let found = Arc::new((row, extent.ok_or_else(missing)?));
                let mut known = known.0.lock().unwrap();
                if known.len() >= KNOWN_MAX {
                    known.clear();
                }
                known.insert(version, found.clone());
                found
            }
        };
        let (row, extent) = (&found.0, &found.1);
        let chunk_start = row.offset(slice.chunk.index).ok_or_else(|| rings::missing(&slice.chunk))?;
        Ok((Slice { chunk_start, ..*slice }, extent.clone()))
    }

    async fn spills(&self, versions: &[VersionId]) -> Result<Vec<(VersionId, SpillRow, u64)>> {
        let mut found = Vec::new();
        for versions in versions.chunks(AT_ONCE) {
            let rows: Vec<Vec<u8>> = versions.iter().map(|version| keys::spill(*version)).collect();
            let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
            let rows = self.catalog.get(&rows).await.map_err(error::catalog)?;
            for (version, row) in versions.iter().zip(rows) {
                if let Some(row) = row {
                    found.push((*version, SpillRow::of(&row).map_err(error::catalog)?, row.seq));
                }
            }
        }
        Ok(found)
    }

    /// Adds what follows for the lake from chunks that nothing refers to any more.
    pub async fn forget_spilled(&self, commit: &mut Commit, garbage: &[GarbageRow]) -> Result<()> {
        let mut gone: BTreeMap<VersionId, Vec<(u32, u32)>> = BTreeMap::new();
        for run in garbage.iter().flat_map(|garbage| &garbage.runs).filter(|run| run.at(0).is_spilled()) {
            gone.entry(VersionId(run.version)).or_default().push((run.first_index, run.count));
        }
        let versions: Vec<VersionId> = gone.keys().copied().collect();
        for (version, mut row, seq) in self.spills(&versions).await? {
            let mut is_over = false;
            for (first, count) in &gone[&version] {
                is_over |= row.forget(*first, *count);
            }
            let key = keys::spill(version);
            *commit = std::mem::take(commit).seq(key.clone(), seq);
            match is_over {
                true => commit.writes.extend(end(version, &row)),
                false => commit.writes.push(Write::Put(key, row.encode())),
            }
        }
        Ok(())
    }

    /// A version is in the lake by itself: its spilled chunks are from now on like those that rings have dropped, and the objects go
    /// that nobody else needs. In the transaction that says so, since nothing else would tell of them any more. Gives the others
    /// that have some of those chunks and are in the lake as well.
    pub async fn unspill(
        &self,
        change: &mut Commit,
        version: VersionId,
        runs: &[ChunkRun],
    ) -> Result<Vec<VersionId>> {
        let (mut free, mut others) = (Vec::new(), Vec::new());
        let spilled: Vec<ChunkRun> = runs.iter().filter(|run| run.is_spilled()).copied().collect();
        for owner in owners(&spilled, VersionId::ZERO) {
            if self.is_free(owner, version).await? {
                free.push(owner);
                let range = Range::prefix(&keys::shares(owner), AT_ONCE);
                let shares = self.catalog.range(range).await.map_err(error::catalog)?.rows;
                others.extend(shares.iter().filter_map(|row| keys::sharer(&row.key)));
            }
        }
        if free.is_empty() {
            return Ok(others);
        }
        for (owner, row, seq) in self.spills(&free).await? {
            *change = std::mem::take(change).seq(keys::spill(owner), seq);
            change.writes.extend(end(owner, &row));
        }
        let rows = self.names.version_rows(version).await.map_err(error::catalog)?;
        let upload_parts = rows.into_iter().next().map(|row| row.upload_parts).unwrap_or_default();
        let is_free = |run: &ChunkRun| free.binary_search(&run.version).is_ok();
        let runs: Vec<ChunkRun> =
            runs.iter().map(|run| if is_free(run) { run.unspilled() } else { *run }).collect();
        for (at, row) in (0..).zip(VersionRow::split(&runs, upload_parts)) {
            change.writes.push(Write::Put(keys::version(version, at), row.encode()));
        }
        others.retain(|other| *other != version);
        Ok(others)
    }
}

/// The object of a version goes.
fn end(version: VersionId, row: &SpillRow) -> Vec<Write> {
    let volume = VolumeId(row.volume);
    let tombstone =
        TombstoneRow { since_ms: clock::now_ms(), etag: Some(row.etag.clone()), name_record: None };
    vec![
        Write::Delete(keys::spill(version)),
        Write::Delete(keys::spilled(volume, version)),
        Write::Put(keys::tombstone(volume, &row.key), tombstone.encode()),
    ]
}
