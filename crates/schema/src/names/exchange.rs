//! Two names swap what they are, in one transaction.

use stoker_format::VolumeId;

use super::accounts::{Counted, Done, Quota};
use super::path::{Spot, last_directory};
use super::{Located, Names, Refusal, TRIES_MAX};
use crate::rows::{DirRow, Drain, EntryRow, FileRow, RefRow, RowValue, keys};
use stoker_catalog::kv::{Check, Commit, Write};

/// What a name is, for an exchange.
#[derive(Clone, Debug)]
pub enum Side {
    /// A file.
    File(Box<Located>),
    /// A directory: where it is and its inode.
    Directory(Spot, u64),
}

impl Side {
    /// Where it is.
    pub fn spot(&self) -> &Spot {
        match self {
            Side::File(located) => &located.spot,
            Side::Directory(spot, _) => spot,
        }
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        match self {
            Side::File(located) => located.file.number(),
            Side::Directory(_, inode) => *inode,
        }
    }

    /// Its name without the `/` of a directory.
    fn base(&self) -> &[u8] {
        match self {
            Side::File(located) => &located.spot.name,
            Side::Directory(spot, _) => spot.name.strip_suffix(b"/").unwrap_or(&spot.name),
        }
    }

    /// Where it is once it has the name of another.
    fn moved(&self, other: &Side) -> Spot {
        let mut name = other.base().to_vec();
        if let Side::Directory(..) = self {
            name.push(b'/');
        }
        Spot { name, ..other.spot().clone() }
    }
}

/// What an exchange did.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// Commit; none if both names are of one thing, so that nothing had to be done.
    pub seq: Option<u64>,
    /// The file that was under the first key, as it is under its new one; none if it was a directory.
    pub first: Option<FileRow>,
    /// The same of the second key.
    pub second: Option<FileRow>,
}

impl Names {
    /// Swaps two names. Keys of directories end with `/`; with a file on the other side it has the name without, and the
    /// file the one with. `plan` sees both and adds writes, or refuses.
    pub async fn exchange(
        &self,
        volume: VolumeId,
        first: &[u8],
        second: &[u8],
        guards: &[Check],
        mut plan: impl FnMut(&Side, &Side) -> std::result::Result<Vec<Write>, Refusal>,
    ) -> std::result::Result<Exchanged, Refusal> {
        for _ in 0..TRIES_MAX {
            let sides = [self.side(volume, first).await?, self.side(volume, second).await?];
            let writes = plan(&sides[0], &sides[1])?;
            if sides.iter().any(|side| side.base().is_empty()) {
                return Err(Refusal::Invalid("a directory without a name cannot be exchanged"));
            }
            if sides[0].spot() == sides[1].spot() || sides[0].number() == sides[1].number() {
                return Ok(Exchanged { seq: None, first: None, second: None });
            }
            let has_directory = sides.iter().any(|side| matches!(side, Side::Directory(..)));
            // What leaves the first key comes to the second.
            let size = |side: &Side| match side {
                Side::File(located) => located.file.size as i64,
                Side::Directory(..) => 0,
            };
            let mut counted = Counted::at(volume, second).limited(Some(Quota::default()));
            counted.elsewhere(first.to_vec(), 0, size(&sides[1]) - size(&sides[0]));
            let spots = [sides[0].moved(&sides[1]), sides[1].moved(&sides[0])];
            let mut change = Commit::new();
            if has_directory {
                self.check_apart(&mut change, volume, first, second).await?;
            }
            for (side, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
                self.vacate(&mut change, side, other).await?;
            }
            for (side, spot) in sides.iter().zip(&spots) {
                if let Side::File(located) = side {
                    self.follow(&mut change, &located.spot, spot, &located.file).await?;
                }
            }
            for spot in &spots {
                // A file beside a directory of its name, which only other doors make, would be in the way.
                if sides.iter().all(|side| side.spot() != spot) {
                    change.checks.push(Check::Absent(spot.row_key()));
                }
            }
            let [new_first, new_second] =
                [occupy(&mut change, &sides[0], &spots[0]), occupy(&mut change, &sides[1], &spots[1])];
            change.writes.extend(writes);
            match self.attempt_counted(guards, change, counted).await? {
                Some(Done { seq, .. }) => {
                    return Ok(Exchanged { seq: Some(seq), first: new_first, second: new_second });
                }
                None => self.check_free(&sides, &spots).await?,
            }
        }
        Err(Refusal::Contended)
    }

    /// What a key is; that of a directory ends with `/`.
    async fn side(&self, volume: VolumeId, key: &[u8]) -> std::result::Result<Side, Refusal> {
        if !key.ends_with(b"/") {
            let located = self.lookup(volume, key).await?.ok_or(Refusal::NotFound)?;
            return Ok(Side::File(Box::new(located)));
        }
        let name = last_directory(key);
        let above = self.resolve(volume, &key[..key.len() - name.len()]).await?.ok_or(Refusal::NotFound)?;
        let inode = self.directory_at(volume, above.parent, name).await?.ok_or(Refusal::NotFound)?;
        Ok(Side::Directory(Spot { name: name.to_vec(), ..above }, inode))
    }

    /// Takes a thing from its place, where it must still be.
    async fn vacate(
        &self,
        change: &mut Commit,
        side: &Side,
        other: &Side,
    ) -> std::result::Result<(), Refusal> {
        let row_key = side.spot().row_key();
        match side {
            Side::File(located) => {
                let Spot { volume, parent, name } = &located.spot;
                let reference = keys::reference(located.file.version(), *volume, *parent, name);
                change.checks.push(Check::Seq(row_key.clone(), located.seq));
                change.writes.push(Write::Delete(reference));
                change.writes.push(Write::Delete(keys::conflict(*volume, *parent, name)));
            }
            Side::Directory(spot, inode) => {
                // As with a rename: it must not be hung below itself, not by two changes at once either.
                self.hold_way(change, spot.volume, other.spot().parent, *inode).await?;
                change.checks.push(Check::Value(row_key.clone(), EntryRow::Directory(*inode).encode()));
            }
        }
        change.writes.push(Write::Delete(row_key));
        Ok(())
    }

    /// Says so if something else has one of the names that are to be taken.
    async fn check_free(&self, sides: &[Side; 2], spots: &[Spot; 2]) -> std::result::Result<(), Refusal> {
        for spot in spots.iter().filter(|spot| sides.iter().all(|side| side.spot() != *spot)) {
            if self.catalog.get(&[&spot.row_key()]).await?.pop().flatten().is_some() {
                return Err(Refusal::Exists);
            }
        }
        Ok(())
    }
}

/// Puts a thing into its new place. Written behind what takes both from their old ones.
fn occupy(change: &mut Commit, side: &Side, spot: &Spot) -> Option<FileRow> {
    match side {
        Side::File(located) => {
            let mut file = located.file.clone();
            if file.drain == Drain::Conflict {
                // What is in the lake under the old name is not in the way of the new one.
                file.drain = Drain::Dirty;
            }
            change.writes.push(Write::Put(spot.row_key(), EntryRow::File(Box::new(file.clone())).encode()));
            let reference = keys::reference(file.version(), spot.volume, spot.parent, &spot.name);
            change.writes.push(Write::Put(reference, RefRow {}.encode()));
            Some(file)
        }
        Side::Directory(_, inode) => {
            change.writes.push(Write::Put(spot.row_key(), EntryRow::Directory(*inode).encode()));
            let row = DirRow { parent: spot.parent, name: spot.name.clone() };
            change.writes.push(Write::Put(keys::directory(spot.volume, *inode), row.encode()));
            None
        }
    }
}
