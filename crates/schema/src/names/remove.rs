//! Deleting a file.

use stoker_format::{VersionId, VolumeId};

use super::accounts::{Counted, Done};
use super::change::{Forgotten, range_check};
use super::past::{Keeping, Kept, is_null};
use super::path::Spot;
use super::{Located, Names, Refusal, TRIES_MAX};
use crate::rows::{FileRow, keys};
use stoker_catalog::Result;
use stoker_catalog::kv::{Check, Commit, Range, Write};

/// What a delete does besides removing the name.
#[derive(Clone, Debug, Default)]
pub struct Removal {
    /// What else changes, a tombstone say.
    pub writes: Vec<Write>,
    /// The file is that of a directory, in which nothing else may be: the directory goes with it.
    pub ends_directory: bool,
    /// The version stays, with a marker of this content after it; none if it goes.
    pub keeping: Option<(Keeping, VersionId)>,
}

/// A file that is gone.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Commit.
    pub seq: u64,
    /// Where it was.
    pub spot: Spot,
    /// What it was.
    pub file: FileRow,
    /// What became of its version.
    pub fate: Forgotten,
    /// Where its version stays; none if it went.
    pub kept: Option<Kept>,
    /// The marker that says that the key is deleted, if versions are kept.
    pub marker: Option<Kept>,
}

impl Names {
    /// Removes a file; none if there is no such key. `plan` sees the file and adds what else is to change, or refuses.
    pub async fn remove(
        &self,
        volume: VolumeId,
        key: &[u8],
        guards: &[Check],
        mut plan: impl FnMut(&Located) -> std::result::Result<Removal, Refusal>,
    ) -> std::result::Result<Option<Removed>, Refusal> {
        for _ in 0..TRIES_MAX {
            let Some(old) = self.lookup(volume, key).await? else {
                return Ok(None);
            };
            let removal = plan(&old)?;
            if removal.ends_directory && self.has_others(&old.spot).await? {
                return Err(Refusal::Exists);
            }
            let mut change = Commit::new();
            let (mut kept, mut marker) = (None, None);
            let fate = match &removal.keeping {
                None => self.take_out(&mut change, &old).await?,
                Some((keeping, content)) => {
                    let step = self.step(&mut change, volume, &keeping.key, Some(&old.file)).await?;
                    let fate = match keeping.is_suspended && is_null(&old.file) {
                        true => self.take_out(&mut change, &old).await?,
                        false => {
                            let row_key = old.spot.row_key();
                            change.checks.push(Check::Seq(row_key.clone(), old.seq));
                            change.writes.push(Write::Delete(row_key));
                            kept = Some(self.keep(&mut change, &old, keeping, step.former).await?);
                            Forgotten::Shared(old.file.version())
                        }
                    };
                    if keeping.is_suspended {
                        self.drop_null(&mut change, volume, &keeping.key).await?;
                    }
                    marker =
                        Some(self.put_marker(&mut change, volume, keeping, step.number, *content).await?);
                    fate
                }
            };
            self.prune(&mut change, &old.spot).await?;
            if removal.ends_directory {
                // What came since it was asked is seen by the pruning, which then leaves the directory as it is.
                change.checks.push(range_check(&keys::entries(volume, old.spot.parent), 1));
            }
            change.writes.extend(removal.writes);
            if let Some(Done { seq, .. }) =
                self.attempt_counted(guards, change, Counted::at(volume, key)).await?
            {
                return Ok(Some(Removed { seq, spot: old.spot, file: old.file, fate, kept, marker }));
            }
        }
        Err(Refusal::Contended)
    }

    /// Whether something else is in the directory of an entry.
    async fn has_others(&self, spot: &Spot) -> Result<bool> {
        let entries = keys::entries(spot.volume, spot.parent);
        let own = spot.row_key();
        let rows = self.catalog.range(Range::prefix(&entries, 2)).await?.rows;
        Ok(rows.iter().any(|row| row.key != own))
    }

    /// Removes an entry and its reference, without pruning.
    pub(super) async fn take_out(
        &self,
        change: &mut Commit,
        old: &Located,
    ) -> std::result::Result<Forgotten, Refusal> {
        self.take_out_as(change, old, false).await
    }

    /// The same for somebody who may `bypass` that it has to stay, unless nobody may.
    pub(super) async fn take_out_as(
        &self,
        change: &mut Commit,
        old: &Located,
        bypass: bool,
    ) -> std::result::Result<Forgotten, Refusal> {
        self.check_unlocked(&old.file, bypass)?;
        let row_key = old.spot.row_key();
        change.checks.push(Check::Seq(row_key.clone(), old.seq));
        change.writes.push(Write::Delete(row_key));
        let fate = self.forget(change, &old.spot, &old.file).await?;
        self.part(change, &old.spot, &old.file).await?;
        self.charge(change, old.spot.volume, Some(&old.file), None);
        Ok(fate)
    }
}
