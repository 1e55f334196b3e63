//! Renaming files and directories, each in one transaction.

use stoker_format::VolumeId;

use super::accounts::{Counted, Done, Quota};
use super::change::Forgotten;
use super::path::{Spot, last_directory};
use super::{Located, Names, Refusal, TRIES_MAX};
use crate::rows::{DirRow, Drain, EntryRow, FileRow, ROOT, RefRow, RekeyRow, RowValue, keys};
use stoker_catalog::kv::{Check, Commit, Write};

/// What a rename did.
#[derive(Clone, Debug)]
pub struct Renamed {
    /// Commit.
    pub seq: u64,
    /// Where the thing is now.
    pub spot: Spot,
    /// The file, unless it was a directory, or both names are of one file and nothing was done.
    pub file: Option<FileRow>,
    /// The file that was in the way, and what became of it.
    pub replaced: Option<(FileRow, Forgotten)>,
}

impl Names {
    /// Moves a file to another key. `plan` sees source and target and adds writes, or refuses.
    pub async fn rename_file(
        &self,
        volume: VolumeId,
        from: &[u8],
        to: &[u8],
        guards: &[Check],
        mut plan: impl FnMut(&Located, Option<&Located>) -> std::result::Result<Vec<Write>, Refusal>,
    ) -> std::result::Result<Renamed, Refusal> {
        for _ in 0..TRIES_MAX {
            let source = self.lookup(volume, from).await?.ok_or(Refusal::NotFound)?;
            let way = self.way(volume, to).await?;
            let target = match way.missing.is_empty() {
                true => {
                    let name = way.name.to_vec();
                    self.file_at(Spot { volume, parent: way.reached, name }).await?
                }
                false => None,
            };
            let writes = plan(&source, target.as_ref())?;
            if target.as_ref().is_some_and(|target| target.spot == source.spot) {
                return Ok(Renamed {
                    seq: source.seq,
                    spot: source.spot,
                    file: Some(source.file),
                    replaced: None,
                });
            }
            if target.as_ref().is_some_and(|target| target.file.number() == source.file.number()) {
                // Both are names of one file, and stay.
                return Ok(Renamed { seq: source.seq, spot: source.spot, file: None, replaced: None });
            }
            let mut change = Commit::new();
            let parent = self.make_way(&mut change, volume, &way).await?;
            let spot = Spot { volume, parent, name: way.name.to_vec() };
            self.follow(&mut change, &source.spot, &spot, &source.file).await?;
            let mut replaced = None;
            match target {
                Some(target) => {
                    let fate = self.take_out(&mut change, &target).await?;
                    replaced = Some((target.file, fate));
                }
                None => change.checks.push(Check::Absent(spot.row_key())),
            }
            let old_key = source.spot.row_key();
            let version = source.file.version();
            change.checks.push(Check::Seq(old_key.clone(), source.seq));
            change.writes.push(Write::Delete(old_key));
            change.writes.push(Write::Delete(keys::reference(
                version,
                volume,
                source.spot.parent,
                &source.spot.name,
            )));
            change.writes.push(Write::Delete(keys::conflict(volume, source.spot.parent, &source.spot.name)));
            let mut file = source.file.clone();
            if file.drain == Drain::Conflict {
                // What is in the lake under the old name is not in the way of the new one.
                file.drain = Drain::Dirty;
            }
            change.writes.push(Write::Put(spot.row_key(), EntryRow::File(Box::new(file.clone())).encode()));
            change.writes.push(Write::Put(
                keys::reference(version, volume, spot.parent, &spot.name),
                RefRow {}.encode(),
            ));
            // The old directory may be empty now. By their keys both may be in one directory and not be: it moved between the two looks.
            if spot.parent != source.spot.parent {
                self.prune(&mut change, &source.spot).await?;
            }
            change.writes.extend(writes);
            // It is one more where it comes to, and one fewer where it was.
            let mut counted = Counted::at(volume, to).limited(Some(Quota::default()));
            counted.elsewhere(from.to_vec(), -1, -(file.size as i64));
            if let Some(Done { seq, .. }) = self.attempt_counted(guards, change, counted).await? {
                return Ok(Renamed { seq, spot, file: Some(file), replaced });
            }
        }
        Err(Refusal::Contended)
    }

    /// Moves a directory (both keys end with `/`) with all that is in it.
    pub async fn rename_directory(
        &self,
        volume: VolumeId,
        from: &[u8],
        to: &[u8],
        guards: &[Check],
        rekey: RekeyRow,
    ) -> std::result::Result<Renamed, Refusal> {
        if to.starts_with(from) && to != from {
            return Err(Refusal::Invalid("a directory cannot be moved into itself"));
        }
        let (from_name, to_name) = (last_directory(from), last_directory(to));
        for _ in 0..TRIES_MAX {
            let source = self.resolve(volume, &from[..from.len() - from_name.len()]).await?;
            let source = source.ok_or(Refusal::NotFound)?;
            let source = Spot { name: from_name.to_vec(), ..source };
            let inode =
                self.directory_at(volume, source.parent, from_name).await?.ok_or(Refusal::NotFound)?;
            if from == to {
                return Ok(Renamed { seq: 0, spot: source, file: None, replaced: None });
            }
            let way = self.way(volume, &to[..to.len() - to_name.len()]).await?;
            let mut change = Commit::new();
            let parent = self.make_way(&mut change, volume, &way).await?;
            let spot = Spot { volume, parent, name: to_name.to_vec() };
            self.check_apart(&mut change, volume, from, to).await?;
            let present = self.directory_at(volume, parent, to_name).await?;
            if present.is_some() {
                return Err(Refusal::Exists);
            }
            // Two renames at once must not hang a directory below itself: the way to the target stays as it is.
            self.hold_way(&mut change, volume, way.reached, inode).await?;
            let value = EntryRow::Directory(inode).encode();
            change.checks.push(Check::Value(source.row_key(), value.clone()));
            change.checks.push(Check::Absent(spot.row_key()));
            change.writes.push(Write::Delete(source.row_key()));
            change.writes.push(Write::Put(spot.row_key(), value));
            let row = DirRow { parent, name: to_name.to_vec() };
            change.writes.push(Write::Put(keys::directory(volume, inode), row.encode()));
            change.writes.push(Write::Put(keys::rekey_directory(volume, inode), rekey.encode()));
            if spot.parent != source.parent {
                self.prune(&mut change, &source).await?;
            }
            if let Some(seq) = self.attempt(guards, change).await? {
                return Ok(Renamed { seq, spot, file: None, replaced: None });
            }
        }
        Err(Refusal::Contended)
    }

    /// The way to a directory stays as it is, and something that moves is not on it.
    pub(super) async fn hold_way(
        &self,
        change: &mut Commit,
        volume: VolumeId,
        mut at: u64,
        moved: u64,
    ) -> std::result::Result<(), Refusal> {
        while at != ROOT {
            if at == moved {
                return Err(Refusal::Invalid("a directory cannot be moved into itself"));
            }
            let row_key = keys::directory(volume, at);
            let row = self.catalog.get(&[&row_key]).await?.pop().flatten().ok_or(Refusal::NotFound)?;
            change.checks.push(Check::Seq(row_key, row.seq));
            at = DirRow::of(&row)?.parent;
        }
        Ok(())
    }
}
