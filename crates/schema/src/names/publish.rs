//! Making a version visible (R6, the catalog's half).

use stoker_format::{DriveId, NodeId, VersionId, VolumeId};

use super::accounts::{Counted, Done, Quota};
use super::change::{Forgotten, forget_dependents, garbage_writes};
use super::links::{Links, linked_rows};
use super::past::{Keeping, Kept, is_null};
use super::path::Spot;
use super::{Located, Names, Refusal, TRIES_MAX};
use crate::rows::{DirtyRow, Drain, EntryRow, FileRow, RefRow, RowValue, RunRow, VersionRow, keys};
use stoker_catalog::Result;
use stoker_catalog::kv::{BoxFuture, Check, Commit, Range, Write};

/// A version to be made visible.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file. Number of publishes, the age of undrained changes and, unless it brings one, the inode of a new file
    /// are filled in here.
    pub file: FileRow,
    /// Rows of its layout, unless that is simple or there already.
    pub layout: Vec<VersionRow>,
    /// Owners of the chunks that it takes over from the version that it replaces.
    pub inherited: Vec<VersionId>,
    /// Chunks of the version that it replaces which it does not use any more, if it takes over others.
    pub dropped: Vec<RunRow>,
    /// What else must hold, like the guards; counted behind them.
    pub checks: Vec<Check>,
    /// What else changes.
    pub writes: Vec<Write>,
    /// The checkpoint set whose publish makes it visible and lets it drain.
    pub set: Option<u64>,
    /// The other names of the file, if the version is one of the same file: they get it, too. Without them a name that is
    /// one of several becomes a file of its own.
    pub links: Option<Links>,
    /// The file that this becomes one more name of. It must be as it is here.
    pub link: Option<Box<Located>>,
    /// The directory that it lies in must be there: none is made but that of a key that ends with `/`.
    pub is_within: bool,
    /// Quotas hold; none if it has to be taken as it is, because it is there already.
    pub quota: Option<Quota>,
    /// What the name had stays as a former version; none if it goes.
    pub keeping: Option<Keeping>,
}

impl Plan {
    /// A file whose layout needs nothing else.
    pub fn simple(file: FileRow) -> Plan {
        let (layout, inherited, dropped, checks, writes, links, link, quota) = Default::default();
        let (set, is_within, keeping) = (None, false, None);
        Plan { file, layout, inherited, dropped, checks, writes, set, links, link, is_within, quota, keeping }
    }
}

/// A version that goes on with chunks of the one before it.
struct Successor<'h> {
    version: VersionId,
    /// Owners of what it goes on with.
    owners: &'h [VersionId],
    /// What it does not go on with.
    dropped: &'h [RunRow],
}

/// What a change makes of a name.
pub(super) struct Put {
    /// The file as written.
    pub file: FileRow,
    /// What it replaces, and what becomes of that.
    pub replaced: Option<(FileRow, Forgotten)>,
    /// Where that stays.
    pub kept: Option<Kept>,
}

/// A version that is visible now.
#[derive(Clone, Debug)]
pub struct Published {
    /// Commit.
    pub seq: u64,
    /// Place.
    pub spot: Spot,
    /// The file as written.
    pub file: FileRow,
    /// What it replaced, and what became of that.
    pub replaced: Option<(FileRow, Forgotten)>,
    /// The other names of the file, which have the version now, too.
    pub links: Vec<(Spot, FileRow)>,
    /// Where the version that it replaced stays.
    pub kept: Option<Kept>,
    /// Somebody whom it counts for has a soft limit.
    pub has_soft_limit: bool,
}

impl Names {
    /// Publishes a file under a key. `plan` sees what is there now and makes the new one; it may be called again when
    /// others got in between. `guards` are checks that must hold for any publish.
    pub async fn publish<'p>(
        &self,
        volume: VolumeId,
        key: &[u8],
        guards: &[Check],
        mut plan: impl FnMut(Option<&Located>) -> BoxFuture<'p, std::result::Result<Plan, Refusal>>,
    ) -> std::result::Result<Published, Refusal> {
        for _ in 0..TRIES_MAX {
            let way = self.way(volume, key).await?;
            let present = match way.missing.is_empty() {
                true => {
                    let name = way.name.to_vec();
                    self.file_at(Spot { volume, parent: way.reached, name }).await?
                }
                false => None,
            };
            let planned = plan(present.as_ref()).await?;
            if planned.is_within && way.missing.len() > usize::from(key.ends_with(b"/")) {
                return Err(Refusal::NotFound);
            }
            let mut change = Commit::new();
            let parent = self.make_way(&mut change, volume, &way).await?;
            let spot = Spot { volume, parent, name: way.name.to_vec() };
            let firm: Vec<Check> = guards.iter().chain(&planned.checks).cloned().collect();
            let others = planned.links.clone().filter(|_| present.is_some());
            let mut counted = Counted::at(volume, key).limited(planned.quota);
            if let Some(others) = &others
                && self.is_home(volume).await?
            {
                for (other, _) in &others.others {
                    let path = self.path_of(&other.spot).await?.ok_or(Refusal::Contended)?;
                    counted.elsewhere(path, 0, planned.file.size as i64 - other.file.size as i64);
                }
            }
            let Put { file, replaced, kept } = self.put_file(&mut change, &spot, present, planned).await?;
            let links = others.map_or_else(Vec::new, |others| linked_rows(&others, &file));
            if let Some(done) = self.attempt_counted(&firm, change, counted).await? {
                let Done { seq, has_soft_limit } = done;
                return Ok(Published { seq, spot, file, replaced, links, kept, has_soft_limit });
            }
        }
        Err(Refusal::Contended)
    }

    pub(super) async fn put_file(
        &self,
        change: &mut Commit,
        spot: &Spot,
        present: Option<Located>,
        plan: Plan,
    ) -> std::result::Result<Put, Refusal> {
        let row_key = spot.row_key();
        let mut file = plan.file.clone();
        file.links = present.as_ref().and_then(|old| old.file.links).filter(|_| plan.links.is_some());
        let is_parted = present.as_ref().is_some_and(|old| old.file.links.is_some()) && file.links.is_none();
        file.inode = match &present {
            // The number stays with the other names.
            Some(_) if is_parted => self.inodes.next().await?,
            Some(old) => old.file.inode,
            // Numbers that only a lake's object had are not ours.
            None if file.inode != 0 && file.inode < 1 << 63 => file.inode,
            None => self.inodes.next().await?,
        };
        file.publishes = present.as_ref().map_or(0, |old| old.file.publishes).wrapping_add(1);
        if let (Drain::Dirty, Some(old)) = (file.drain, &present)
            && old.file.drain == Drain::Dirty
            && old.file.dirty_since_ms > 0
        {
            file.dirty_since_ms = file.dirty_since_ms.min(old.file.dirty_since_ms);
        }
        if file.lake.is_none() && file.drain != Drain::Clean {
            // What the lake still shows under this name, to be replaced or removed there.
            file.lake = present.as_ref().and_then(|old| old.file.lake.clone());
        }
        if let (Some(source), None) = (&plan.link, &present) {
            self.join(change, source, spot, &mut file).await?;
        }
        let same = present.as_ref().is_some_and(|old| old.file.version == file.version);
        // One that is published again because nobody knew whether it was is no other version.
        let is_again = same && present.as_ref().is_some_and(|old| old.file.name_record == file.name_record);
        let keeping = plan.keeping.as_ref().filter(|_| !is_again);
        let mut kept = None;
        if let Some(keeping) = keeping {
            let step =
                self.step(change, spot.volume, &keeping.key, present.as_ref().map(|old| &old.file)).await?;
            let past = file.past.get_or_insert_default();
            (past.number, past.is_null) = (step.number, keeping.is_suspended);
            if keeping.is_suspended {
                self.drop_null(change, spot.volume, &keeping.key).await?;
            }
            let stays = |old: &&Located| !(keeping.is_suspended && is_null(&old.file));
            if let Some(old) = present.as_ref().filter(stays) {
                kept = Some(self.keep(change, old, keeping, step.former).await?);
                // An object elsewhere is that of the former version, and goes with it.
                file.lake = file.lake.take().filter(|lake| lake.key == keeping.key);
            }
        } else if let Some(old) = present.as_ref().filter(|_| is_again) {
            file.past = old.file.past.clone();
        }
        let gone = present.as_ref().filter(|_| kept.is_none()).map(|old| &old.file);
        if let Some(old) = gone.filter(|_| !is_again) {
            self.check_unlocked(old, false)?;
        }
        self.charge(change, spot.volume, gone, Some(&file));
        let links = plan.links.as_ref().filter(|_| file.links.is_some() && present.is_some());
        if let Some(links) = links {
            self.put_links(change, spot.volume, &file, links);
        }
        let others = links.map_or(&[][..], |links| &links.others);
        let mut replaced = None;
        match present {
            Some(old) => {
                change.checks.push(Check::Seq(row_key.clone(), old.seq));
                if is_parted {
                    self.part(change, spot, &old.file).await?;
                    forget_dependents(change, spot, &old.file);
                }
                if kept.is_some() {
                    let version = old.file.version();
                    if !plan.inherited.is_empty() {
                        share_writes(change, &plan.inherited, version, file.version());
                    }
                    replaced = Some((old.file, Forgotten::Shared(version)));
                } else if !same {
                    let old_name = (spot, &old.file);
                    let fate = match plan.inherited.as_slice() {
                        [] => self.forget_all(change, old_name, others).await?,
                        owners => {
                            let successor =
                                Successor { version: file.version(), owners, dropped: &plan.dropped };
                            self.inherit(change, old_name, others, successor).await?
                        }
                    };
                    replaced = Some((old.file, fate));
                } else {
                    if let Some(source) = old.file.source.as_ref().filter(|_| old.file.source != file.source)
                    {
                        let (volume, inode) = (VolumeId(source.volume), old.file.inode);
                        let dependent = keys::dependent(volume, &source.key, file.version(), inode);
                        change.writes.push(Write::Delete(dependent));
                    }
                    let record = old.file.name_record.filter(|_| old.file.name_record != file.name_record);
                    let record = record.map(VersionId);
                    change.writes.extend(record.into_iter().flat_map(|record| garbage_writes(record, &[])));
                }
            }
            None => change.checks.push(Check::Absent(row_key.clone())),
        }
        let version = file.version();
        change.writes.push(Write::Put(row_key, EntryRow::File(Box::new(file.clone())).encode()));
        change.writes.push(Write::Put(
            keys::reference(version, spot.volume, spot.parent, &spot.name),
            RefRow {}.encode(),
        ));
        if let Some(source) = &file.source {
            let dependent = keys::dependent(VolumeId(source.volume), &source.key, version, file.inode);
            change.writes.push(Write::Put(dependent, Vec::new()));
        }
        for (part, row) in plan.layout.iter().enumerate() {
            change.writes.push(Write::Put(keys::version(version, part as u16), row.encode()));
        }
        if same && file.drain != Drain::Conflict {
            change.writes.push(Write::Delete(keys::conflict(spot.volume, spot.parent, &spot.name)));
        }
        if file.drain != Drain::Clean {
            dirty_writes(change, spot.volume, &file, plan.set);
        }
        change.writes.extend(plan.writes);
        Ok(Put { file, replaced, kept })
    }

    /// The new version keeps using the chunks of the old one, whose rows go. Where others refer to the old one, it
    /// stays, and the new one becomes one user more.
    async fn inherit(
        &self,
        change: &mut Commit,
        (spot, old): (&Spot, &FileRow),
        others: &[(Located, [u8; 12])],
        successor: Successor<'_>,
    ) -> Result<Forgotten> {
        let Successor { version: successor, owners, dropped } = successor;
        let before = change.writes.len();
        let fate = self.forget_all(change, (spot, old), others).await?;
        if let Forgotten::Shared(_) = fate {
            share_writes(change, owners, old.version(), successor);
            return Ok(fate);
        }
        // Its chunks live on but for some, its name record does not.
        let garbage = keys::garbage_all(old.version());
        let chunks = |write: &Write| matches!(write, Write::Put(key, _) if key.starts_with(&garbage));
        let tail: Vec<Write> = change.writes.drain(before..).filter(|write| !chunks(write)).collect();
        change.writes.extend(tail);
        change.writes.extend(garbage_writes(old.version(), dropped));
        for &owner in owners {
            if owner == old.version() {
                // The owner ends here: if others use its chunks, the successor is one of them by name.
                let shares = Range::prefix(&keys::shares(owner), 1);
                if !self.catalog.range(shares).await?.rows.is_empty() {
                    change.writes.push(Write::Put(keys::share(owner, successor), Vec::new()));
                }
            } else {
                self.move_share(change, owner, old.version(), successor).await?;
            }
        }
        Ok(fate)
    }

    /// If a version is a named user of the chunks of an owner, its successor is from now on.
    pub async fn move_share(
        &self,
        change: &mut Commit,
        owner: VersionId,
        from: VersionId,
        to: VersionId,
    ) -> Result<()> {
        let key = keys::share(owner, from);
        if let Some(row) = self.catalog.get(&[&key]).await?.pop().flatten() {
            change.checks.push(Check::Seq(key.clone(), row.seq));
            change.writes.push(Write::Delete(key));
            change.writes.push(Write::Put(keys::share(owner, to), Vec::new()));
        }
        Ok(())
    }
}

/// Rows that say: `user` uses chunks of these owners too, which it has from `source`. The caller checks that the source
/// stays as it is.
pub fn share_writes(change: &mut Commit, owners: &[VersionId], source: VersionId, user: VersionId) {
    for &owner in owners {
        change.writes.push(Write::Put(keys::share(owner, user), Vec::new()));
        if owner != source {
            change.writes.push(Write::Put(keys::share(owner, source), Vec::new()));
        }
    }
}

/// Rows that say: these bytes are only on these drives.
pub fn dirty_writes(change: &mut Commit, volume: VolumeId, file: &FileRow, set: Option<u64>) {
    let row = DirtyRow {
        volume: volume.0,
        bytes: file.allocated(),
        since_ms: file.dirty_since_ms,
        changed_ms: file.modified_ms,
        set,
        home: file.home,
    }
    .encode();
    for holder in &file.holders {
        let key = keys::dirty(NodeId(holder.node), DriveId(holder.drive), file.version());
        change.writes.push(Write::Put(key, row.clone()));
    }
}
