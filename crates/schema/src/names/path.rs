//! From keys to places in directories, and back.

use stoker_format::{PastId, VolumeId, past_key, past_parts};

use std::borrow::Cow;

use super::Names;
use crate::rows::{DirRow, EntryRow, HISTORY, ROOT, RowValue, keys};
use stoker_catalog::{CatalogError, Result};

/// Deepest path: a key of 4,096 slashes.
const DEPTH_MAX: usize = 4097;

/// Where an entry is or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Volume.
    pub volume: VolumeId,
    /// Directory.
    pub parent: u64,
    /// Name in it; a directory's ends with `/`.
    pub name: Vec<u8>,
}

impl Spot {
    /// Key of the entry's row.
    pub fn row_key(&self) -> Vec<u8> {
        keys::entry(self.volume, self.parent, &self.name)
    }
}

/// Cuts a key into directories (each with its `/`) and the last name, which may be empty.
pub(super) fn split(key: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let mut directories = Vec::new();
    let mut rest = key;
    while let Some(slash) = rest.iter().position(|&byte| byte == b'/') {
        directories.push(&rest[..=slash]);
        rest = &rest[slash + 1..];
    }
    (directories, rest)
}

/// The last directory of a key that ends with `/`, with its `/`.
pub(super) fn last_directory(key: &[u8]) -> &[u8] {
    let body = &key[..key.len().saturating_sub(1)];
    let start = body.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    &key[start..]
}

/// A way through directories, some of which may not exist.
pub(super) struct Way<'k> {
    /// Last directory that exists.
    pub reached: u64,
    /// Names below it that do not.
    pub missing: Vec<&'k [u8]>,
    /// Last name.
    pub name: Cow<'k, [u8]>,
}

/// The name of a former version in [`HISTORY`], by its key; none if that is of something else.
fn name_in_history(key: &[u8]) -> Option<Vec<u8>> {
    let (of, id) = past_parts(key)?;
    Some(keys::past_name(of, id.parse().ok()?))
}

impl Names {
    /// The place of a key, if its directory exists.
    pub async fn resolve(&self, volume: VolumeId, key: &[u8]) -> Result<Option<Spot>> {
        let way = self.way(volume, key).await?;
        let spot = Spot { volume, parent: way.reached, name: way.name.to_vec() };
        Ok(way.missing.is_empty().then_some(spot))
    }

    pub(super) async fn way<'k>(&self, volume: VolumeId, key: &'k [u8]) -> Result<Way<'k>> {
        if let Some(name) = name_in_history(key) {
            return Ok(Way { reached: HISTORY, missing: Vec::new(), name: name.into() });
        }
        self.way_from(volume, ROOT, key).await
    }

    /// The way of a key that is relative to a directory.
    pub(super) async fn way_from<'k>(
        &self,
        volume: VolumeId,
        directory: u64,
        key: &'k [u8],
    ) -> Result<Way<'k>> {
        let (directories, name) = split(key);
        let name = Cow::Borrowed(name);
        let mut reached = directory;
        for (depth, directory) in directories.iter().enumerate() {
            match self.directory_at(volume, reached, directory).await? {
                Some(inode) => reached = inode,
                None => return Ok(Way { reached, missing: directories[depth..].to_vec(), name }),
            }
        }
        Ok(Way { reached, missing: Vec::new(), name })
    }

    /// The inode of a directory's entry.
    pub(super) async fn directory_at(
        &self,
        volume: VolumeId,
        parent: u64,
        name: &[u8],
    ) -> Result<Option<u64>> {
        let row = self.catalog.get(&[&keys::entry(volume, parent, name)]).await?.pop().flatten();
        match row.as_ref().map(EntryRow::of).transpose()? {
            Some(EntryRow::Directory(inode)) => Ok(Some(inode)),
            Some(EntryRow::File(_)) => Err(CatalogError::corrupt("a file has the name of a directory")),
            None => Ok(None),
        }
    }

    /// The key of a directory, with its `/`; empty for the root, none if it is gone or hangs nowhere.
    pub async fn directory_path(&self, volume: VolumeId, inode: u64) -> Result<Option<Vec<u8>>> {
        let mut names = Vec::new();
        let mut at = inode;
        while at != ROOT {
            if names.len() > DEPTH_MAX {
                return Err(CatalogError::corrupt("directories hang in a circle"));
            }
            let row = self.catalog.get(&[&keys::directory(volume, at)]).await?.pop().flatten();
            let Some(row) = row else { return Ok(None) };
            let directory = DirRow::of(&row)?;
            names.push(directory.name);
            at = directory.parent;
        }
        names.reverse();
        Ok(Some(names.concat()))
    }

    /// The key of an entry; none if its directory is gone or hangs nowhere.
    pub async fn path_of(&self, spot: &Spot) -> Result<Option<Vec<u8>>> {
        if spot.parent == HISTORY {
            let parts = keys::past_name_parts(&spot.name);
            return Ok(parts.map(|(key, id): (&[u8], PastId)| past_key(key, &id.to_string())));
        }
        let directory = self.directory_path(spot.volume, spot.parent).await?;
        Ok(directory.map(|mut path| {
            path.extend_from_slice(&spot.name);
            path
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn keys_fall_into_directories_and_a_name() {
        let check = |key: &str, directories: &[&str], name: &str| {
            let (found, last) = split(key.as_bytes());
            let found: Vec<&str> = found.iter().map(|d| std::str::from_utf8(d).unwrap()).collect();
            assert_eq!((found.as_slice(), last), (directories, name.as_bytes()), "{key}");
        };
        check("a", &[], "a");
        check("a/b", &["a/"], "b");
        check("a/", &["a/"], "");
        check("/a", &["/"], "a");
        check("a//b/", &["a/", "/", "b/"], "");
    }
}
