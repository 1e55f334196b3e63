//! Listing in the byte order of whole keys, page by page, without loading what is not shown.
//!
//! Entries sort right by themselves: a directory's name ends with `/`, so `a-b`, `a/…` and `a0` come in S3's order, and
//! `a` beside `a/` is a file beside a directory.

use std::collections::VecDeque;

use stoker_format::VolumeId;

use super::path::split;
use super::{Names, Spot};
use crate::rows::{EntryRow, FileRow, ROOT, RowValue, keys};
use stoker_catalog::Result;
use stoker_catalog::kv::{Range, Row, prefix_end};

/// Rows fetched at once from one directory.
const ROWS_AT_ONCE: usize = 1_001;

/// One line of a listing.
#[derive(Clone, Debug)]
pub enum Found {
    /// A file.
    File {
        /// Its whole key.
        key: Vec<u8>,
        /// Where it is.
        spot: Spot,
        /// The file.
        file: Box<FileRow>,
    },
    /// Keys that are shown as one.
    Prefix(Vec<u8>),
}

impl Found {
    /// What it sorts by.
    pub fn name(&self) -> &[u8] {
        match self {
            Found::File { key, .. } => key,
            Found::Prefix(prefix) => prefix,
        }
    }
}

struct Frame {
    inode: u64,
    path: Vec<u8>,
    rows: VecDeque<Row>,
    /// Where to go on, or none at the end.
    next: Option<Vec<u8>>,
}

/// A listing under way.
pub struct Walk<'n> {
    names: &'n Names,
    volume: VolumeId,
    prefix: Vec<u8>,
    delimiter: Option<Vec<u8>>,
    stack: Vec<Frame>,
}

impl Names {
    /// Starts a listing of keys with a prefix, strictly after `after`. A delimiter groups keys as in S3.
    pub async fn walk(
        &self,
        volume: VolumeId,
        prefix: &[u8],
        delimiter: Option<&[u8]>,
        after: Option<&[u8]>,
    ) -> Result<Walk<'_>> {
        let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty()).map(<[u8]>::to_vec);
        let mut walk = Walk { names: self, volume, prefix: prefix.to_vec(), delimiter, stack: Vec::new() };
        let bound = match after {
            Some(after) if walk.is_group(after) => prefix_end(after).unwrap_or_default(),
            Some(after) => [after, b"\0"].concat(),
            None => Vec::new(),
        };
        let start = if bound.as_slice() > prefix { bound } else { prefix.to_vec() };
        walk.seek(&start).await?;
        Ok(walk)
    }
}

impl Walk<'_> {
    /// Whether a name is one that this listing shows as a group.
    fn is_group(&self, name: &[u8]) -> bool {
        name.starts_with(&self.prefix) && self.group_of(name).is_some_and(|group| group == name)
    }

    /// The group that a key behind the prefix belongs to.
    fn group_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        let delimiter = self.delimiter.as_ref()?;
        let at = find(&key[self.prefix.len()..], delimiter)?;
        Some(key[..self.prefix.len() + at + delimiter.len()].to_vec())
    }

    /// Goes on behind every key of a group.
    async fn leave(&mut self, group: &[u8]) -> Result<()> {
        match prefix_end(group) {
            Some(bound) => self.seek(&bound).await,
            None => {
                self.stack.clear();
                Ok(())
            }
        }
    }

    /// Stands before the first key that is not below `bound`.
    async fn seek(&mut self, bound: &[u8]) -> Result<()> {
        self.stack.clear();
        let (directories, name) = split(bound);
        let (mut inode, mut path) = (ROOT, Vec::new());
        for directory in directories {
            let below = self.names.directory_at(self.volume, inode, directory).await?;
            let start = match below {
                // What is in this directory comes from the next frame.
                Some(_) => [directory, b"\0"].concat(),
                None => directory.to_vec(),
            };
            self.push(inode, path.clone(), &start);
            let Some(below) = below else { return Ok(()) };
            path.extend_from_slice(directory);
            inode = below;
        }
        self.push(inode, path, name);
        Ok(())
    }

    fn push(&mut self, inode: u64, path: Vec<u8>, start: &[u8]) {
        let next = Some(keys::entry(self.volume, inode, start));
        self.stack.push(Frame { inode, path, rows: VecDeque::new(), next });
    }

    async fn next_row(&mut self) -> Result<Option<(u64, Vec<u8>, Row)>> {
        while let Some(frame) = self.stack.last_mut() {
            if let Some(row) = frame.rows.pop_front() {
                return Ok(Some((frame.inode, frame.path.clone(), row)));
            }
            let Some(start) = frame.next.take() else {
                self.stack.pop();
                continue;
            };
            let end = prefix_end(&keys::entries(self.volume, frame.inode));
            let range = Range { start, end, limit: ROWS_AT_ONCE, reverse: false };
            let page = self.names.catalog.range(range).await?;
            if let (true, Some(last)) = (page.more, page.rows.last()) {
                frame.next = Some([last.key.as_slice(), b"\0"].concat());
            }
            frame.rows = page.rows.into();
        }
        Ok(None)
    }

    /// The next line; none at the end.
    pub async fn next(&mut self) -> Result<Option<Found>> {
        while let Some((parent, path, row)) = self.next_row().await? {
            let name = keys::entry_name(&row.key).to_vec();
            let full = [path.as_slice(), &name].concat();
            match EntryRow::of(&row)? {
                EntryRow::Directory(inode) => {
                    let inside = full.starts_with(&self.prefix);
                    if !inside && !self.prefix.starts_with(&full) {
                        return Ok(None);
                    }
                    // A directory is never empty, so it stands for its keys without a look inside. A listing that
                    // began inside a group shows the group all the same.
                    if inside && let Some(group) = self.group_of(&full) {
                        if group.len() < full.len() {
                            self.leave(&group).await?;
                        }
                        return Ok(Some(Found::Prefix(group)));
                    }
                    self.push(inode, full, b"");
                }
                EntryRow::File(file) => {
                    if !full.starts_with(&self.prefix) {
                        return Ok(None);
                    }
                    if let Some(group) = self.group_of(&full) {
                        self.leave(&group).await?;
                        return Ok(Some(Found::Prefix(group)));
                    }
                    let spot = Spot { volume: self.volume, parent, name };
                    return Ok(Some(Found::File { key: full, spot, file }));
                }
            }
        }
        Ok(None)
    }
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}
