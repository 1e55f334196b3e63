//! What a name is, for doors that know directories.

use std::sync::Arc;

use stoker_schema::names::Located;
use stoker_store::{DirectoryInfo, Entry, ErrorKind, FileInfo, ListRequest, Result, StoreError, Subject};

use crate::core::Core;
use crate::error;
use crate::volumes::Volume;

impl Core {
    /// The file and the directory of a key that has no `/` at its end.
    pub async fn entry_of(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8]) -> Result<Entry> {
        let inside = [key, b"/"].concat();
        if volume.asks_lake() {
            return self.merged_entry(volume, key, inside).await;
        }
        let Some(spot) = self.names.resolve(volume.id, key).await.map_err(error::catalog)? else {
            return Ok(Entry::default());
        };
        let (file, directory) = self.names.entry_at(&spot).await.map_err(error::catalog)?;
        let info = |key: &[u8], found: Option<Located>| -> Result<Option<Box<FileInfo>>> {
            found.map(|located| Core::info(key, &located.file).map(Box::new)).transpose()
        };
        let file = info(key, file)?;
        let directory = match directory {
            Some((inode, marker)) => Some(DirectoryInfo { inode, marker: info(&inside, marker)? }),
            None => None,
        };
        let mut entry = Entry { file, directory };
        self.count_links(volume, entry.file.as_deref_mut()).await?;
        Ok(entry)
    }

    /// The key of a directory by its number.
    pub async fn directory_of(&self, volume: &Volume, inode: u64) -> Result<Vec<u8>> {
        let path = self.names.directory_path(volume.id, inode).await.map_err(error::catalog)?;
        path.ok_or_else(|| {
            StoreError::about(ErrorKind::NotFound, Subject::Key, format!("there is no directory {inode}"))
        })
    }

    /// The same where others write to the lake too.
    async fn merged_entry(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
        inside: Vec<u8>,
    ) -> Result<Entry> {
        let mut found = Vec::new();
        for key in [key, &inside] {
            let seen = self.seen(volume, key).await?;
            found.push(seen.map(|seen| Core::info(key, &seen.file).map(Box::new)).transpose()?);
        }
        let (marker, mut file) = (found.pop().flatten(), found.pop().flatten());
        self.count_links(volume, file.as_deref_mut()).await?;
        let is_there = marker.is_some() || {
            let request = ListRequest { prefix: inside, limit: 1, ..ListRequest::default() };
            !self.list_page(volume, request).await?.entries.is_empty()
        };
        if !is_there {
            return Ok(Entry { file, directory: None });
        }
        let spot = self.names.resolve(volume.id, key).await.map_err(error::catalog)?;
        let known = match spot {
            Some(spot) => self.names.entry_at(&spot).await.map_err(error::catalog)?.1,
            None => None,
        };
        let inode = known.map_or(0, |(inode, _)| inode);
        Ok(Entry { file, directory: Some(DirectoryInfo { inode, marker }) })
    }
}
