//! Pieces of transactions: making directories, forgetting a reference, pruning empty directories.

use stoker_format::{DriveId, NodeId, VersionId, VolumeId};

use super::path::{Spot, Way};
use super::{Located, Names, Refusal};
use crate::rows::{
    DirRow, EntryRow, FileRow, GarbageRow, HISTORY, HolderRow, Layout, NOWHERE, ROOT, RUNS_PER_ROW, RowValue,
    RunRow, keys,
};
use stoker_catalog::Result;
use stoker_catalog::kv::{Check, Commit, Range, Write, prefix_end};

/// What became of a version when a reference to it went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forgotten {
    /// Others still refer to it.
    Shared(VersionId),
    /// Nobody does: its chunks are garbage now.
    Garbage(VersionId),
}

/// A version as one of its references knows it.
pub(super) struct Held<'r> {
    pub version: VersionId,
    pub size: u64,
    pub layout: &'r Layout,
    pub holders: &'r [HolderRow],
}

pub(super) fn range_check(prefix: &[u8], max: usize) -> Check {
    Check::AtMost { start: prefix.to_vec(), end: prefix_end(prefix).expect("tables are not 0xff"), max }
}

pub(super) fn range_delete(prefix: &[u8]) -> Write {
    Write::DeleteRange(prefix.to_vec(), prefix_end(prefix).expect("tables are not 0xff"))
}

/// Rows that hand a version to the collector, with these chunks and its name record. Nothing is left of a hole.
pub fn garbage_writes(version: VersionId, runs: &[RunRow]) -> Vec<Write> {
    let runs: Vec<RunRow> = runs.iter().filter(|run| !run.is_hole()).copied().collect();
    let row = |part: usize, runs: &[RunRow]| {
        let row = GarbageRow { settled: false, runs: runs.to_vec() };
        Write::Put(keys::garbage(version, part as u16), row.encode())
    };
    match runs.is_empty() {
        true => vec![row(0, &[])],
        false => runs.chunks(RUNS_PER_ROW).enumerate().map(|(part, runs)| row(part, runs)).collect(),
    }
}

/// The row that hands the record of a delete to the collector. It goes after everything that was dead by then: as long as a drive
/// has what was deleted, something has to say that it was (R6).
pub fn delete_record_garbage(record: VersionId) -> Vec<Write> {
    garbage_writes(record, &[RunRow::nothing(record)])
}

/// Takes away what is there because one name has a version; gives the reference that goes.
fn forget_name(change: &mut Commit, spot: &Spot, file: &FileRow) -> Vec<u8> {
    let version = file.version();
    let own = keys::reference(version, spot.volume, spot.parent, &spot.name);
    change.writes.push(Write::Delete(own.clone()));
    change.writes.push(Write::Delete(keys::conflict(spot.volume, spot.parent, &spot.name)));
    if let Some(record) = file.name_record {
        change.writes.extend(garbage_writes(VersionId(record), &[]));
    }
    forget_dependents(change, spot, file);
    own
}

/// The name relies on no lake object any more.
pub(super) fn forget_dependents(change: &mut Commit, spot: &Spot, file: &FileRow) {
    if let Some(source) = &file.source {
        let volume = VolumeId(source.volume);
        change.writes.push(Write::Delete(keys::dependent(volume, &source.key, file.version(), file.inode)));
    }
    if let Some(lake) = &file.lake {
        change.writes.push(Write::Delete(keys::dependent(
            spot.volume,
            &lake.key,
            file.version(),
            file.inode,
        )));
    }
}

impl Names {
    /// Adds the directories that a way lacks; returns the last one. The ones that exist must stay.
    pub(super) async fn make_way(&self, change: &mut Commit, volume: VolumeId, way: &Way<'_>) -> Result<u64> {
        if way.reached != ROOT && way.reached != HISTORY {
            change.checks.push(Check::Present(keys::directory(volume, way.reached)));
        }
        let mut parent = way.reached;
        for (depth, name) in way.missing.iter().enumerate() {
            let inode = self.inodes.next().await?;
            let entry = keys::entry(volume, parent, name);
            if depth == 0 {
                change.checks.push(Check::Absent(entry.clone()));
            }
            change.writes.push(Write::Put(entry, EntryRow::Directory(inode).encode()));
            let row = DirRow { parent, name: name.to_vec() };
            change.writes.push(Write::Put(keys::directory(volume, inode), row.encode()));
            parent = inode;
        }
        Ok(parent)
    }

    /// Takes a file's reference to its version away; the version itself goes with the last one. The caller removes or
    /// replaces the entry, and checks it.
    pub(super) async fn forget(&self, change: &mut Commit, spot: &Spot, file: &FileRow) -> Result<Forgotten> {
        self.forget_all(change, (spot, file), &[]).await
    }

    /// The same of a file with several names, which all go together.
    pub(super) async fn forget_all(
        &self,
        change: &mut Commit,
        (spot, file): (&Spot, &FileRow),
        others: &[(Located, [u8; 12])],
    ) -> Result<Forgotten> {
        let mut own = vec![forget_name(change, spot, file)];
        own.extend(others.iter().map(|(other, _)| forget_name(change, &other.spot, &other.file)));
        // Each name may have been copied to drives of its own.
        let mut holders = file.holders.clone();
        holders.extend(others.iter().flat_map(|(other, _)| other.file.holders.iter().cloned()));
        let held = Held { version: file.version(), size: file.size, layout: &file.layout, holders: &holders };
        self.let_go(change, spot.volume, &own, held).await
    }

    /// What follows when references to a version are deleted, which the caller does in the same change.
    pub(super) async fn let_go(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        own: &[Vec<u8>],
        held: Held<'_>,
    ) -> Result<Forgotten> {
        let version = held.version;
        let all = keys::references(version);
        let rows = self.catalog.range(Range::prefix(&all, own.len() + 1)).await?.rows;
        if let Some(other) = rows.iter().find(|row| !own.contains(&row.key)) {
            // The one that makes us leave the chunks alone must itself stay.
            change.checks.push(Check::Present(other.key.clone()));
            return Ok(Forgotten::Shared(version));
        }
        change.checks.push(range_check(&all, own.len()));
        let runs = self.version_runs(version, held.size, held.layout).await?;
        let runs: Vec<RunRow> = runs.iter().map(RunRow::from).collect();
        change.writes.extend(garbage_writes(version, &runs));
        change.writes.push(range_delete(&keys::version_all(version)));
        for holder in held.holders {
            let row = keys::dirty(NodeId(holder.node), DriveId(holder.drive), version);
            change.writes.push(Write::Delete(row));
        }
        change.writes.push(Write::Delete(keys::rekey_file(volume, version)));
        Ok(Forgotten::Garbage(version))
    }

    /// Removes the directories that are empty once an entry is gone.
    pub(super) async fn prune(&self, change: &mut Commit, spot: &Spot) -> std::result::Result<(), Refusal> {
        let mut at = spot.parent;
        let mut gone = spot.row_key();
        while at != ROOT && at != HISTORY {
            let entries = keys::entries(spot.volume, at);
            // From the end: deletes mostly come in order, and the last entry stays longest.
            let rows = self.catalog.range(Range::prefix(&entries, 2).reversed()).await?.rows;
            if let Some(other) = rows.iter().find(|row| row.key != gone) {
                // Two that delete the last two entries must not both think that the other one stays.
                change.checks.push(Check::Present(other.key.clone()));
                return Ok(());
            }
            // What this change itself puts there is not in the catalog yet.
            let filled = |write: &Write| matches!(write, Write::Put(key, _) if *key != gone && key.starts_with(&entries));
            if change.writes.iter().any(filled) {
                return Ok(());
            }
            let (row_key, set_key) = (keys::directory(spot.volume, at), keys::set(spot.volume, at));
            let rows = self.catalog.get(&[&row_key, &set_key]).await?;
            let Some(row) = &rows[0] else {
                // Somebody pruned it already; the checks of this change will tell.
                return Ok(());
            };
            let directory = DirRow::of(row)?;
            if directory.parent == NOWHERE {
                // The directory of an open set, which lasts as long as the set.
                return Ok(());
            }
            if rows[1].is_some() {
                // A published set is gone when its last file is.
                change.writes.push(Write::Delete(set_key));
                change.writes.push(Write::Delete(keys::set_work(spot.volume, at)));
                change.writes.push(range_delete(&keys::shards(at)));
            }
            change.checks.push(range_check(&entries, 1));
            change.checks.push(Check::Seq(row_key.clone(), row.seq));
            gone = keys::entry(spot.volume, directory.parent, &directory.name);
            change.writes.push(Write::Delete(row_key));
            change.writes.push(Write::Delete(gone.clone()));
            at = directory.parent;
        }
        Ok(())
    }
}
