//! Finding a file: the catalog first, then the lake where others write to it too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stoker_schema::names::Located;
use stoker_schema::rows::{Drain, FileRow, RowValue, TombstoneRow, keys};
use stoker_store::{ErrorKind, Key, LakeMode, Result, StoreError, Subject};

pub(crate) use stoker_records::lake_file::lake_row;

use crate::core::Core;
use crate::drain::may_be_in_lake;
use crate::pins::Pin;
use crate::reader::NodeFile;
use crate::volumes::Volume;
use crate::{clock, error};

/// How long a look at a shared lake is believed.
const SEEN_MS: u64 = 60_000;

/// Times that a version is looked for that has just become another one of its key.
const MOVES_MAX: usize = 20;

/// Looks remembered.
const SEEN_MAX: usize = 20_000;

/// A file, in the catalog or only in the lake.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub located: Option<Located>,
    pub file: FileRow,
}

/// A look at a lake, and until when it is believed.
type Look = (u64, FileRow);

/// Counters of changes; keys share them.
const COUNTERS: usize = 1024;

/// Recent looks at lakes, by volume and key.
pub(crate) struct Looks {
    seen: Mutex<HashMap<(u32, Vec<u8>), Look>>,
    /// Changes of keys here. A look that began before one is out of date when it ends.
    changes: Vec<AtomicU64>,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { seen: Mutex::default(), changes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Looks {
    fn counter(&self, volume: &Volume, key: &[u8]) -> &AtomicU64 {
        &self.changes[(stoker_format::crc32c(key) as usize ^ volume.id.0 as usize) % COUNTERS]
    }

    /// A look begins.
    fn begin(&self, volume: &Volume, key: &[u8]) -> u64 {
        self.counter(volume, key).load(Ordering::SeqCst)
    }

    fn get(&self, volume: &Volume, key: &[u8], now_ms: u64) -> Option<FileRow> {
        let seen = self.seen.lock().unwrap();
        let (until, file) = seen.get(&(volume.id.0, key.to_vec()))?;
        (*until > now_ms).then(|| file.clone())
    }

    fn put(&self, volume: &Volume, key: &[u8], file: &FileRow, now_ms: u64, begun: u64) {
        let mut seen = self.seen.lock().unwrap();
        if self.counter(volume, key).load(Ordering::SeqCst) != begun {
            return;
        }
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert((volume.id.0, key.to_vec()), (now_ms + SEEN_MS, file.clone()));
    }

    pub fn forget(&self, volume: &Volume, key: &[u8]) {
        let mut seen = self.seen.lock().unwrap();
        self.counter(volume, key).fetch_add(1, Ordering::SeqCst);
        seen.remove(&(volume.id.0, key.to_vec()));
    }
}

pub(crate) fn no_such_key(key: &[u8]) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("there is no key `{}`", String::from_utf8_lossy(key)))
}

impl Core {
    /// A file, wherever it is known.
    pub async fn seen(&self, volume: &Arc<Volume>, key: &[u8]) -> Result<Option<Seen>> {
        let located = self.names.lookup(volume.id, key).await.map_err(error::catalog)?;
        if let Some(located) = located {
            let file = self.as_seen(volume, key, &located.file).await;
            return Ok(file.map(|file| Seen { located: Some(located), file }));
        }
        if !volume.asks_lake() {
            return Ok(None);
        }
        Ok(self.lake_file(volume, key).await?.map(|file| Seen { located: None, file }))
    }

    /// What a file of the catalog looks like where others write to the lake too: what we drained may have been replaced
    /// or removed since.
    pub async fn as_seen(&self, volume: &Arc<Volume>, key: &[u8], file: &FileRow) -> Option<FileRow> {
        // One that was renamed and not yet moved in the lake is ours alone to look at.
        let at_home = file.lake.as_ref().is_some_and(|lake| lake.key == key);
        if volume.policy.lake_mode == LakeMode::Owned || file.drain != Drain::Clean || !at_home {
            return Some(file.clone());
        }
        match self.lake_file(volume, key).await {
            Ok(Some(theirs))
                if file.lake.as_ref().map(|l| &l.etag) == theirs.lake.as_ref().map(|l| &l.etag) =>
            {
                Some(file.clone())
            }
            Ok(theirs) => theirs,
            Err(_) => Some(file.clone()),
        }
    }

    /// A file that only the lake knows; none if it was deleted here.
    pub async fn lake_file(&self, volume: &Arc<Volume>, key: &[u8]) -> Result<Option<FileRow>> {
        if !may_be_in_lake(key) {
            return Ok(None);
        }
        let now_ms = clock::now_ms();
        if let Some(file) = self.looks.get(volume, key, now_ms) {
            return Ok(Some(file));
        }
        let begun = self.looks.begin(volume, key);
        let tombstone = keys::tombstone(volume.id, key);
        if self.catalog.get(&[&tombstone]).await.map_err(error::catalog)?.pop().flatten().is_some() {
            return Ok(None);
        }
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(None) };
        let object = match self.head(lake.as_ref(), key).await {
            Ok(object) => object,
            // A name that the lake cannot hold is not in it.
            Err(fault) if fault.kind == stoker_lake::LakeErrorKind::Invalid => None,
            Err(fault) => return Err(error::lake(fault)),
        };
        let Some(object) = object else { return Ok(None) };
        let file = lake_row(volume.id, self.chunk_bytes, &object)?;
        self.looks.put(volume, key, &file, now_ms, begun);
        Ok(Some(file))
    }

    /// The etag that a tombstone waits to remove from the lake.
    pub async fn tombstone(&self, volume: &Volume, key: &[u8]) -> Result<Option<TombstoneRow>> {
        if !may_be_in_lake(key) {
            return Ok(None);
        }
        let row = self
            .catalog
            .get(&[&keys::tombstone(volume.id, key)])
            .await
            .map_err(error::catalog)?
            .pop()
            .flatten();
        row.as_ref().map(TombstoneRow::of).transpose().map_err(error::catalog)
    }

    async fn is_current(&self, located: &Located) -> Result<bool> {
        let now = self.names.file_at(located.spot.clone()).await.map_err(error::catalog)?;
        Ok(now.is_some_and(|now| now.file.version == located.file.version))
    }

    /// Opens the version that a key says, pinned.
    pub async fn open_version(self: &Arc<Core>, volume: &Arc<Volume>, key: &Key) -> Result<NodeFile> {
        if key.version_parts().is_none() {
            return self.open_file(volume, key.as_bytes()).await;
        }
        for _ in 0..MOVES_MAX {
            let path = self.version_path(volume, key).await?;
            let opened = match self.open_located(volume, &path).await {
                // It became a former one, or the present one, between the two looks.
                Err(fault) if fault.kind == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let now = self.version_path(volume, key).await?;
            if now != path {
                continue;
            }
            if opened.1.is_some_and(|located| located.file.past.is_some_and(|past| past.is_marker)) {
                let message = format!("`{key}` is a delete marker");
                return Err(StoreError::about(ErrorKind::NotFound, Subject::Version, message));
            }
            return Ok(opened.0);
        }
        Err(no_such_key(key.as_bytes()))
    }

    /// Opens the present version, pinned.
    pub async fn open_file(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8]) -> Result<NodeFile> {
        Ok(self.open_located(volume, key).await?.0)
    }

    /// Opens the present version, pinned, and says where it is in the catalog, unless only the lake has it.
    pub async fn open_located(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &[u8],
    ) -> Result<(NodeFile, Option<Located>)> {
        loop {
            let seen = self.seen(volume, key).await?.ok_or_else(|| no_such_key(key))?;
            let pin: Pin = self.pins.pin(seen.file.version());
            let ours = seen.located.filter(|located| located.file.version == seen.file.version);
            let Some(located) = ours else {
                return Ok((self.file(volume, key, &seen.file, pin).await?, None));
            };
            if !self.is_current(&located).await? {
                continue;
            }
            let file = self.file(volume, key, &seen.file, pin).await;
            // Now that all is pinned it is looked at again, if there was more to pin: the collector may have been on its
            // way.
            if located.file.layout.has_rows() && !self.is_current(&located).await? {
                continue;
            }
            return Ok((file?, Some(located)));
        }
    }
}
