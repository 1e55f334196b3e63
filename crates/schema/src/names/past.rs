//! Versions that are not the present one of their name. (D210)
//!
//! In a volume that keeps versions, what a name had moves into [`HISTORY`] when the name gets something else or nothing, in the same
//! transaction. There it is a file as any other: it refers to its chunks by a row of its own (R11), it drains or moves to a lake key of its own,
//! and a drive that is lost is made up for by the same rows. So nothing that looks after bytes has to know of versions.
//!
//! Entries of one key lie beside one another, the latest first. A deleted name has a marker there, an empty file that says so. Numbers count
//! up within a key; whoever adds one checks that no later one came meanwhile.
//!
//! What has to stay ([`PastRow::is_locked`]) is taken out by no transaction of this crate, whoever asks: [`Names::check_unlocked`].

use std::sync::Arc;

use stoker_format::{PastId, VersionId, VolumeId, past_key};

use super::accounts::{Counted, Done};
use super::change::{Forgotten, forget_dependents, range_check};
use super::path::Spot;
use super::{Located, Names, Refusal, TRIES_MAX};
use crate::rows::{Drain, EntryRow, FileRow, HISTORY, Layout, PastRow, RefRow, RekeyRow, RowValue, keys};
use stoker_catalog::kv::{Check, Commit, Range, Write, prefix_end};
use stoker_catalog::{CatalogError, Result};

/// The time by which what had to stay may go, milliseconds since 1970.
pub type LockClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What becomes of a version that its name loses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keeping {
    /// The whole key of the name.
    pub key: Vec<u8>,
    /// New versions have no id of their own, and take the place of the one that has none.
    pub is_suspended: bool,
    /// Milliseconds since 1970.
    pub now_ms: u64,
}

/// One of the versions of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The one that has no id of its own.
    Null,
    /// This one.
    Id(PastId),
}

/// A version that was kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Where it is now.
    pub spot: Spot,
    /// The file as it is there.
    pub file: FileRow,
}

/// A version that is gone.
#[derive(Clone, Debug)]
pub struct RemovedVersion {
    /// Commit.
    pub seq: u64,
    /// What it was.
    pub file: FileRow,
    /// What became of its content.
    pub fate: Forgotten,
    /// It was the present one of its name.
    pub was_present: bool,
    /// The version that is the present one in its place, where it is now.
    pub promoted: Option<Kept>,
}

/// What the removal of a version is about.
#[derive(Clone, Copy, Debug)]
pub struct Removing<'r> {
    /// The version.
    pub version: &'r Located,
    /// It is the present one of its name.
    pub is_present: bool,
    /// The one that is going to be the present one.
    pub promoted: Option<&'r Located>,
}

/// The id of a version of a name by its row; none if it has none of its own.
pub fn id_of(file: &FileRow) -> Option<PastId> {
    let past = file.past.as_ref().filter(|past| !past.is_null)?;
    Some(PastId { number: past.number, version: file.version() })
}

fn number_of(file: &FileRow) -> Option<u64> {
    file.past.as_ref().map(|past| past.number)
}

pub(super) fn is_null(file: &FileRow) -> bool {
    file.past.as_ref().is_none_or(|past| past.is_null)
}

fn is_marker(file: &FileRow) -> bool {
    file.past.as_ref().is_some_and(|past| past.is_marker)
}

/// What a change does with what its name has.
pub(super) struct Step {
    /// Number of what comes.
    pub number: u64,
    /// Number of what is there, should it be kept.
    pub former: u64,
}

impl Names {
    /// The same, with the time by which what had to stay may go. Without it nothing that has a time to stay may.
    #[must_use]
    pub fn releasing(mut self, clock: LockClock) -> Names {
        self.released_ms = clock;
        self
    }

    /// Refuses to let go what has to stay (R19).
    pub(super) fn check_unlocked(&self, file: &FileRow, bypass: bool) -> std::result::Result<(), Refusal> {
        match file.past.as_ref().is_some_and(|past| past.is_locked((self.released_ms)(), bypass)) {
            true => Err(Refusal::Locked),
            false => Ok(()),
        }
    }

    /// The latest former version of a key, and the one before it.
    async fn latest_pasts(&self, volume: VolumeId, key: &[u8]) -> Result<Vec<Located>> {
        let names = keys::entry(volume, HISTORY, &keys::past_names(key));
        let rows = self.catalog.range(Range::prefix(&names, 2)).await?.rows;
        rows.iter().map(|row| past_row(volume, row.seq, &row.key, &row.value)).collect()
    }

    /// No later version of the key may come, nor may the latest one go.
    fn hold_latest(&self, change: &mut Commit, volume: VolumeId, key: &[u8], latest: Option<&Located>) {
        let names = keys::entry(volume, HISTORY, &keys::past_names(key));
        let end = match latest {
            Some(latest) => {
                let row_key = latest.spot.row_key();
                change.checks.push(Check::Present(row_key.clone()));
                row_key
            }
            None => prefix_end(&names).expect("a table is not 0xff"),
        };
        change.checks.push(Check::AtMost { start: names, end, max: 0 });
    }

    /// Numbers for a change of a key, which fails if another one gets them.
    pub(super) async fn step(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        key: &[u8],
        present: Option<&FileRow>,
    ) -> Result<Step> {
        let latest = self.latest_pasts(volume, key).await?.into_iter().next();
        self.hold_latest(change, volume, key, latest.as_ref());
        let last = latest.as_ref().and_then(|latest| number_of(&latest.file)).unwrap_or(0);
        let former = present.and_then(number_of).filter(|number| *number > last).unwrap_or(last + 1);
        let number = if present.is_some() { former + 1 } else { last + 1 };
        Ok(Step { number, former })
    }

    /// What a name has becomes a former version of it. The caller replaces or removes the entry, and checks it.
    pub(super) async fn keep(
        &self,
        change: &mut Commit,
        old: &Located,
        keeping: &Keeping,
        number: u64,
    ) -> Result<Kept> {
        let (volume, version) = (old.spot.volume, old.file.version());
        let own = keys::reference(version, volume, old.spot.parent, &old.spot.name);
        change.writes.push(Write::Delete(own));
        change.writes.push(Write::Delete(keys::conflict(volume, old.spot.parent, &old.spot.name)));
        forget_dependents(change, &old.spot, &old.file);
        let past =
            PastRow { number, is_null: is_null(&old.file), ..old.file.past.clone().unwrap_or_default() };
        let mut file = FileRow {
            // The number of the name stays with the name.
            inode: self.inodes.next().await?,
            links: None,
            past: Some(past),
            ..old.file.clone()
        };
        match file.drain {
            Drain::Clean => {}
            // What the lake shows under the name is replaced by what the name has next.
            Drain::Dirty | Drain::Never => file.lake = None,
            // What somebody put there under the name is not in the way of this one.
            Drain::Conflict => (file.drain, file.lake) = (Drain::Dirty, None),
        }
        let id = PastId { number, version };
        let spot = Spot { volume, parent: HISTORY, name: keys::past_name(&keeping.key, id) };
        self.put_past(change, &spot, &file, keeping);
        Ok(Kept { spot, file })
    }

    /// A file in the history, with all that is there because it is.
    fn put_past(&self, change: &mut Commit, spot: &Spot, file: &FileRow, keeping: &Keeping) {
        let (volume, version) = (spot.volume, file.version());
        change.writes.push(Write::Put(spot.row_key(), EntryRow::File(Box::new(file.clone())).encode()));
        let reference = keys::reference(version, volume, HISTORY, &spot.name);
        change.writes.push(Write::Put(reference, RefRow {}.encode()));
        let own = keys::past_name_parts(&spot.name).map(|(key, id)| past_key(key, &id.to_string()));
        self.rely(change, volume, file, &own.unwrap_or_default(), keeping.now_ms);
        if let Some(past) = file.past.as_ref().filter(|past| past.is_null) {
            let id = PastId { number: past.number, version };
            let row = Write::Put(keys::null_version(volume, &keeping.key), id.to_string().into_bytes());
            change.writes.push(row);
        }
    }

    /// Rows that say what a file which has this name from now on needs of a lake (R11), and that its object has to follow.
    fn rely(&self, change: &mut Commit, volume: VolumeId, file: &FileRow, own: &[u8], now_ms: u64) {
        let version = file.version();
        if let Some(source) = &file.source {
            let dependent = keys::dependent(VolumeId(source.volume), &source.key, version, file.inode);
            change.writes.push(Write::Put(dependent, Vec::new()));
        }
        if let Some(lake) = file.lake.as_ref().filter(|_| file.drain == Drain::Clean) {
            let dependent = keys::dependent(volume, &lake.key, version, file.inode);
            if lake.key == own {
                // It had not moved yet, and is at home again.
                change.writes.push(Write::Delete(dependent));
                return;
            }
            change.writes.push(Write::Put(dependent, Vec::new()));
            let row = RekeyRow { since_ms: now_ms, name_record: None };
            change.writes.push(Write::Put(keys::rekey_file(volume, version), row.encode()));
        }
    }

    /// A marker: from now on the key is deleted. It becomes the latest version of it.
    pub(super) async fn put_marker(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        keeping: &Keeping,
        number: u64,
        marker: VersionId,
    ) -> Result<Kept> {
        let past = PastRow { number, is_null: keeping.is_suspended, is_marker: true, ..PastRow::default() };
        let file = FileRow {
            inode: self.inodes.next().await?,
            version: marker.0,
            size: 0,
            etag: String::new(),
            modified_ms: keeping.now_ms,
            crc64: None,
            layout: Layout::Simple { chunk_len: 0 },
            holders: Vec::new(),
            // It has no bytes. What says that the key is deleted on drives and in the lake is what deletes leave.
            drain: Drain::Never,
            lake: None,
            source: None,
            dirty_since_ms: 0,
            publishes: 0,
            name_record: None,
            properties: Vec::new(),
            home: [0; 16],
            links: None,
            past: Some(past),
        };
        let id = PastId { number, version: marker };
        let spot = Spot { volume, parent: HISTORY, name: keys::past_name(&keeping.key, id) };
        change.checks.push(Check::Absent(spot.row_key()));
        self.put_past(change, &spot, &file, keeping);
        self.charge(change, volume, None, Some(&file));
        Ok(Kept { spot, file })
    }

    /// The former version without an id goes: another one without takes its place.
    pub(super) async fn drop_null(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        key: &[u8],
    ) -> std::result::Result<Option<(FileRow, Forgotten)>, Refusal> {
        let row_key = keys::null_version(volume, key);
        let row = self.catalog.get(&[&row_key]).await?.pop().flatten();
        change.checks.push(match &row {
            Some(row) => Check::Seq(row_key.clone(), row.seq),
            None => Check::Absent(row_key.clone()),
        });
        let Some(old) = self.past(volume, key, Which::Null).await? else { return Ok(None) };
        change.writes.push(Write::Delete(row_key));
        let fate = self.take_out(change, &old).await?;
        Ok(Some((old.file, fate)))
    }

    /// A former version of a key; none if there is none, or it is the present one.
    pub async fn past(&self, volume: VolumeId, key: &[u8], which: Which) -> Result<Option<Located>> {
        let id = match which {
            Which::Id(id) => id,
            Which::Null => {
                let row = self.catalog.get(&[&keys::null_version(volume, key)]).await?.pop().flatten();
                let Some(row) = row else { return Ok(None) };
                let text = std::str::from_utf8(&row.value).ok().and_then(|text| text.parse().ok());
                text.ok_or_else(|| CatalogError::corrupt("the version without an id is no id"))?
            }
        };
        self.file_at(Spot { volume, parent: HISTORY, name: keys::past_name(key, id) }).await
    }

    /// A version of a key, and whether it is the present one.
    pub async fn version_of(
        &self,
        volume: VolumeId,
        key: &[u8],
        which: Which,
    ) -> Result<Option<(Located, bool)>> {
        // It may become a former one between two looks, but not the present one again and again.
        for _ in 0..TRIES_MAX {
            if let Some(past) = self.past(volume, key, which).await? {
                return Ok(Some((past, false)));
            }
            let Some(present) = self.lookup(volume, key).await? else {
                match self.past(volume, key, which).await? {
                    Some(past) => return Ok(Some((past, false))),
                    None => return Ok(None),
                }
            };
            let is_it = match which {
                Which::Null => is_null(&present.file),
                Which::Id(id) => id_of(&present.file) == Some(id),
            };
            if is_it {
                return Ok(Some((present, true)));
            }
            if self.past(volume, key, which).await?.is_none() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Says that a key is deleted which has nothing. Gives the marker.
    pub async fn mark_deleted(
        &self,
        volume: VolumeId,
        keeping: &Keeping,
        marker: VersionId,
        guards: &[Check],
    ) -> std::result::Result<Option<(u64, Kept)>, Refusal> {
        let key = &keeping.key;
        for _ in 0..TRIES_MAX {
            let mut change = Commit::new();
            if let Some(spot) = self.resolve(volume, key).await? {
                if self.file_at(spot.clone()).await?.is_some() {
                    // Written meanwhile: this delete is one of a file.
                    return Ok(None);
                }
                change.checks.push(Check::Absent(spot.row_key()));
            }
            let step = self.step(&mut change, volume, key, None).await?;
            if keeping.is_suspended {
                self.drop_null(&mut change, volume, key).await?;
            }
            let kept = self.put_marker(&mut change, volume, keeping, step.number, marker).await?;
            let counted = Counted::at(volume, key);
            if let Some(Done { seq, .. }) = self.attempt_counted(guards, change, counted).await? {
                return Ok(Some((seq, kept)));
            }
        }
        Err(Refusal::Contended)
    }

    /// Removes one version of a key for good; none if there is none. Where it was the present one, or the marker that hid it, the one before it is
    /// the present one again. `plan` sees what is about to happen and adds what else changes, or refuses.
    pub async fn remove_version(
        &self,
        volume: VolumeId,
        key: &[u8],
        which: Which,
        bypass: bool,
        guards: &[Check],
        mut plan: impl FnMut(&Removing<'_>) -> std::result::Result<(Vec<Write>, u64), Refusal>,
    ) -> std::result::Result<Option<RemovedVersion>, Refusal> {
        for _ in 0..TRIES_MAX {
            let Some((version, is_present)) = self.version_of(volume, key, which).await? else {
                return Ok(None);
            };
            let pasts = self.latest_pasts(volume, key).await?;
            let present = self.lookup(volume, key).await?;
            let next = match is_present {
                true => pasts.first(),
                false
                    if present.is_none() && pasts.first().is_some_and(|first| first.spot == version.spot) =>
                {
                    pasts.get(1)
                }
                false => None,
            };
            let promoted = next.filter(|next| !is_marker(&next.file));
            self.check_unlocked(&version.file, bypass)?;
            let (writes, now_ms) = plan(&Removing { version: &version, is_present, promoted })?;
            let mut change = Commit::new();
            if is_present || present.is_none() {
                self.hold_latest(&mut change, volume, key, pasts.first());
            }
            let fate = self.take_out_as(&mut change, &version, bypass).await?;
            if !is_present && is_null(&version.file) {
                change.writes.push(Write::Delete(keys::null_version(volume, key)));
            }
            let promoted = match promoted {
                Some(promoted) => Some(self.promote(&mut change, key, promoted, is_present, now_ms).await?),
                None => {
                    if is_present {
                        self.prune(&mut change, &version.spot).await?;
                    } else if present.is_none()
                        && let Some(spot) = self.resolve(volume, key).await?
                    {
                        change.checks.push(Check::Absent(spot.row_key()));
                    }
                    None
                }
            };
            change.writes.extend(writes);
            let counted = Counted::at(volume, key);
            if let Some(Done { seq, .. }) = self.attempt_counted(guards, change, counted).await? {
                let was_present = is_present;
                return Ok(Some(RemovedVersion { seq, file: version.file, fate, was_present, promoted }));
            }
        }
        Err(Refusal::Contended)
    }

    /// A former version is the present one again. `replaces`: the entry of the name is taken out by the same change.
    async fn promote(
        &self,
        change: &mut Commit,
        key: &[u8],
        from: &Located,
        replaces: bool,
        now_ms: u64,
    ) -> std::result::Result<Kept, Refusal> {
        let (volume, version) = (from.spot.volume, from.file.version());
        let way = self.way(volume, key).await?;
        let parent = self.make_way(change, volume, &way).await?;
        let spot = Spot { volume, parent, name: way.name.into_owned() };
        if !replaces {
            change.checks.push(Check::Absent(spot.row_key()));
        }
        let row_key = from.spot.row_key();
        change.checks.push(Check::Seq(row_key.clone(), from.seq));
        change.writes.push(Write::Delete(row_key));
        change.writes.push(Write::Delete(keys::reference(version, volume, HISTORY, &from.spot.name)));
        change.writes.push(Write::Delete(keys::conflict(volume, HISTORY, &from.spot.name)));
        if is_null(&from.file) {
            change.writes.push(Write::Delete(keys::null_version(volume, key)));
        }
        let mut file = from.file.clone();
        if file.drain == Drain::Conflict {
            file.drain = Drain::Dirty;
        }
        change.writes.push(Write::Put(spot.row_key(), EntryRow::File(Box::new(file.clone())).encode()));
        let reference = keys::reference(version, volume, parent, &spot.name);
        change.writes.push(Write::Put(reference, RefRow {}.encode()));
        self.rely(change, volume, &file, key, now_ms);
        Ok(Kept { spot, file })
    }

    /// Former versions in the order of keys and then the latest first, from the first entry that is not below `start`, at most so many; and
    /// whether there are more.
    pub async fn pasts(
        &self,
        volume: VolumeId,
        prefix: &[u8],
        start: &[u8],
        limit: usize,
    ) -> Result<(Vec<Located>, bool)> {
        let start = keys::entry(volume, HISTORY, start.max(prefix));
        let end = prefix_end(&keys::entry(volume, HISTORY, prefix));
        let page = self.catalog.range(Range { start, end, limit, reverse: false }).await?;
        let rows = page.rows.iter().map(|row| past_row(volume, row.seq, &row.key, &row.value));
        Ok((rows.collect::<Result<_>>()?, page.more))
    }

    /// Whether a volume has former versions, or markers.
    pub async fn has_pasts(&self, volume: VolumeId) -> Result<bool> {
        let range = Range::prefix(&keys::entries(volume, HISTORY), 1);
        Ok(!self.catalog.range(range).await?.rows.is_empty())
    }

    /// Checks that a volume has no files with several names.
    pub fn no_links(volume: VolumeId) -> Check {
        range_check(&keys::links_of(volume), 0)
    }
}

fn past_row(volume: VolumeId, seq: u64, key: &[u8], value: &[u8]) -> Result<Located> {
    let spot = Spot { volume, parent: HISTORY, name: keys::entry_name(key).to_vec() };
    match EntryRow::decode(value)? {
        EntryRow::File(file) => Ok(Located { spot, seq, file: *file }),
        EntryRow::Directory(_) => Err(CatalogError::corrupt("a directory is among former versions")),
    }
}
