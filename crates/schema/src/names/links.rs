//! Several names of one file. (D61)
//!
//! Each name has a complete row of its own, with a number of its own by which the lake's rows know it: nothing that looks
//! after one name has to know of the others. `links` makes them one file: the number that all of them show. Under that
//! number there is a row for each name, and one that counts them. Whatever changes who the names are writes the row that
//! counts, so that whoever changes all of them can tell that they are all.

use stoker_format::VolumeId;

use super::path::Spot;
use super::{Located, Names, Refusal};
use crate::rows::{Drain, EntryRow, FileRow, LinksRow, RefRow, RowValue, keys};
use stoker_catalog::Result;
use stoker_catalog::kv::{Check, Commit, Range, Row, Write};

/// Most names of a file.
pub const LINKS_MAX: u32 = 1_000;

/// Most bytes of the rows of all names: one commit has to hold them, and what goes with them.
const BYTES_MAX: usize = 2 << 20;

/// The other names of a file.
#[derive(Clone, Debug)]
pub struct Links {
    /// Commit that wrote last who they are.
    pub seq: u64,
    /// They, each with the id of the record of its name if the file gets another version.
    pub others: Vec<(Located, [u8; 12])>,
}

impl Names {
    /// The other names of a file; none if it never had any. `record` gives ids for the records of names.
    pub async fn links(&self, located: &Located, record: impl Fn() -> [u8; 12]) -> Result<Option<Links>> {
        let Some(number) = located.file.links else { return Ok(None) };
        let volume = located.spot.volume;
        let all = keys::links(volume, number);
        let rows = self.catalog.range(Range::prefix(&all, LINKS_MAX as usize + 2)).await?.rows;
        let seq = rows.first().filter(|row| row.key == all).map_or(0, |row| row.seq);
        let spots: Vec<Spot> = rows
            .iter()
            .filter_map(|row| keys::link_parts(&row.key))
            .map(|(parent, name)| Spot { volume, parent, name: name.to_vec() })
            .filter(|spot| *spot != located.spot)
            .collect();
        let entries: Vec<Vec<u8>> = spots.iter().map(Spot::row_key).collect();
        let entries: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let mut others = Vec::with_capacity(spots.len());
        for (spot, row) in spots.into_iter().zip(self.catalog.get(&entries).await?) {
            // One that is gone, or is another file, was so a moment ago: then the number of the commit is another, too.
            let Some(row) = row else { continue };
            if let EntryRow::File(file) = EntryRow::of(&row)?
                && file.links == Some(number)
            {
                others.push((Located { spot, seq: row.seq, file: *file }, record()));
            }
        }
        Ok(Some(Links { seq, others }))
    }

    /// How many names the files of these numbers have, all of which have or had several.
    pub async fn link_counts(&self, volume: VolumeId, numbers: &[u64]) -> Result<Vec<u32>> {
        let rows: Vec<Vec<u8>> = numbers.iter().map(|number| keys::links(volume, *number)).collect();
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        // Without a row its last name went in this moment.
        let count =
            |row: Option<Row>| Ok(row.as_ref().map(LinksRow::of).transpose()?.map_or(1, |row| row.count));
        self.catalog.get(&rows).await?.into_iter().map(count).collect()
    }

    /// A file gets one name more. The caller puts its row, which this makes one of the file.
    pub(super) async fn join(
        &self,
        change: &mut Commit,
        source: &Located,
        spot: &Spot,
        file: &mut FileRow,
    ) -> std::result::Result<(), Refusal> {
        let (volume, number) = (spot.volume, source.file.number());
        let (row_key, source_key) = (keys::links(volume, number), source.spot.row_key());
        let row = self.catalog.get(&[&row_key]).await?.pop().flatten();
        change.checks.push(Check::Seq(source_key.clone(), source.seq));
        let count = match (&row, source.file.links) {
            (Some(row), Some(_)) => {
                change.checks.push(Check::Seq(row_key.clone(), row.seq));
                LinksRow::of(row)?.count
            }
            (_, None) => {
                change.checks.push(Check::Absent(row_key.clone()));
                let linked = FileRow { links: Some(number), ..source.file.clone() };
                change.writes.push(Write::Put(source_key, EntryRow::File(Box::new(linked)).encode()));
                change.writes.push(link_put(number, &source.spot));
                1
            }
            // The file was changed in between, which the first check tells.
            (None, Some(_)) => 1,
        };
        file.links = Some(number);
        let row_len = EntryRow::File(Box::new(file.clone())).encode().len();
        if count >= LINKS_MAX || row_len * (count as usize + 1) > BYTES_MAX {
            return Err(Refusal::TooMany);
        }
        change.writes.push(Write::Put(row_key, LinksRow { count: count + 1 }.encode()));
        change.writes.push(link_put(number, spot));
        Ok(())
    }

    /// A name is not one of its file's any more. With the last one the file is gone.
    pub(super) async fn part(&self, change: &mut Commit, spot: &Spot, file: &FileRow) -> Result<()> {
        let Some((number, row_key, count)) = self.count(change, spot, file).await? else { return Ok(()) };
        change.writes.push(Write::Delete(keys::link(spot.volume, number, spot.parent, &spot.name)));
        change.writes.push(match count.checked_sub(1) {
            None | Some(0) => Write::Delete(row_key),
            Some(count) => Write::Put(row_key, LinksRow { count }.encode()),
        });
        Ok(())
    }

    /// A name of a file is another one from now on.
    pub(super) async fn follow(
        &self,
        change: &mut Commit,
        from: &Spot,
        to: &Spot,
        file: &FileRow,
    ) -> Result<()> {
        let Some((number, row_key, count)) = self.count(change, from, file).await? else { return Ok(()) };
        change.writes.push(Write::Delete(keys::link(from.volume, number, from.parent, &from.name)));
        change.writes.push(link_put(number, to));
        change.writes.push(Write::Put(row_key, LinksRow { count }.encode()));
        Ok(())
    }

    /// The number, the row that counts, and how many names there are, which must stay so; none for a file without links.
    async fn count(
        &self,
        change: &mut Commit,
        spot: &Spot,
        file: &FileRow,
    ) -> Result<Option<(u64, Vec<u8>, u32)>> {
        let Some(number) = file.links else { return Ok(None) };
        let row_key = keys::links(spot.volume, number);
        let row = self.catalog.get(&[&row_key]).await?.pop().flatten();
        let count = match &row {
            Some(row) => {
                change.checks.push(Check::Seq(row_key.clone(), row.seq));
                LinksRow::of(row)?.count
            }
            // Changed in between; this makes the commit fail.
            None => {
                change.checks.push(Check::Present(row_key.clone()));
                0
            }
        };
        Ok(Some((number, row_key, count)))
    }
}

fn link_put(number: u64, spot: &Spot) -> Write {
    Write::Put(keys::link(spot.volume, number, spot.parent, &spot.name), Vec::new())
}

/// The rows of the other names when a file has this version.
pub(super) fn linked_rows(links: &Links, file: &FileRow) -> Vec<(Spot, FileRow)> {
    let row = |(other, record): &(Located, [u8; 12])| {
        let old = &other.file;
        let mut row = FileRow {
            inode: old.inode,
            links: old.links,
            publishes: old.publishes.wrapping_add(1),
            name_record: Some(*record),
            // What the lake still shows under this name, to be replaced there.
            lake: old.lake.clone(),
            ..file.clone()
        };
        if old.drain == Drain::Dirty && old.dirty_since_ms > 0 {
            row.dirty_since_ms = row.dirty_since_ms.min(old.dirty_since_ms);
        }
        (other.spot.clone(), row)
    };
    links.others.iter().map(row).collect()
}

impl Names {
    /// The other names of a file get its new version. The caller forgets the old one for all.
    pub(super) fn put_links(&self, change: &mut Commit, volume: VolumeId, file: &FileRow, links: &Links) {
        change.checks.push(Check::Seq(keys::links(volume, file.number()), links.seq));
        for ((spot, row), (other, _)) in linked_rows(links, file).iter().zip(&links.others) {
            let (row_key, version) = (spot.row_key(), row.version());
            change.checks.push(Check::Seq(row_key.clone(), other.seq));
            change.writes.push(Write::Put(row_key, EntryRow::File(Box::new(row.clone())).encode()));
            let reference = keys::reference(version, spot.volume, spot.parent, &spot.name);
            change.writes.push(Write::Put(reference, RefRow {}.encode()));
            if let Some(source) = &row.source {
                let dependent = keys::dependent(VolumeId(source.volume), &source.key, version, row.inode);
                change.writes.push(Write::Put(dependent, Vec::new()));
            }
            self.charge(change, spot.volume, Some(&other.file), Some(row));
        }
    }
}
