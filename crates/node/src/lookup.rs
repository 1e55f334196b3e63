//! Finding a file: the catalog first, then the lake where others write to it too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use stoker_catalog::names::Located;
use stoker_catalog::rows::{Drain, FileRow, LakeRef, Layout, RowValue, TombstoneRow, keys};
use stoker_lake::ObjectInfo;
use stoker_store::{ErrorKind, LakeMode, Result, StoreError};

use crate::core::Core;
use crate::drain::attributes;
use crate::pins::Pin;
use crate::properties::Properties;
use crate::reader::NodeFile;
use crate::volumes::Volume;
use crate::{clock, error};

/// How long a look at a shared lake is believed.
const SEEN_MS: u64 = 60_000;

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

/// Recent looks at lakes, by volume and key.
#[derive(Default)]
pub(crate) struct Looks {
    seen: Mutex<HashMap<(u32, Vec<u8>), Look>>,
}

impl Looks {
    fn get(&self, volume: &Volume, key: &[u8], now_ms: u64) -> Option<FileRow> {
        let seen = self.seen.lock().unwrap();
        let (until, file) = seen.get(&(volume.id.0, key.to_vec()))?;
        (*until > now_ms).then(|| file.clone())
    }

    fn put(&self, volume: &Volume, key: &[u8], file: &FileRow, now_ms: u64) {
        let mut seen = self.seen.lock().unwrap();
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert((volume.id.0, key.to_vec()), (now_ms + SEEN_MS, file.clone()));
    }

    pub fn forget(&self, volume: &Volume, key: &[u8]) {
        self.seen.lock().unwrap().remove(&(volume.id.0, key.to_vec()));
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
            let file = located.file.clone();
            // One that was renamed and not yet moved in the lake is ours alone to look at.
            let at_home = file.lake.as_ref().is_some_and(|lake| lake.key == key);
            let stale = volume.policy.lake_mode != LakeMode::Owned && file.drain == Drain::Clean && at_home;
            if !stale {
                return Ok(Some(Seen { located: Some(located), file }));
            }
            // Others write there: what we drained may have been replaced since.
            return Ok(match self.lake_file(volume, key).await {
                Ok(Some(theirs))
                    if file.lake.as_ref().map(|l| &l.etag) == theirs.lake.as_ref().map(|l| &l.etag) =>
                {
                    Some(Seen { located: Some(located), file })
                }
                Ok(Some(theirs)) => Some(Seen { located: Some(located), file: theirs }),
                Ok(None) => None,
                Err(_) => Some(Seen { located: Some(located), file }),
            });
        }
        if !volume.asks_lake() {
            return Ok(None);
        }
        Ok(self.lake_file(volume, key).await?.map(|file| Seen { located: None, file }))
    }

    /// A file that only the lake knows; none if it was deleted here.
    pub async fn lake_file(&self, volume: &Arc<Volume>, key: &[u8]) -> Result<Option<FileRow>> {
        let now_ms = clock::now_ms();
        if let Some(file) = self.looks.get(volume, key, now_ms) {
            return Ok(Some(file));
        }
        let tombstone = keys::tombstone(volume.id, key);
        if self.catalog.get(&[&tombstone]).await.map_err(error::catalog)?.pop().flatten().is_some() {
            return Ok(None);
        }
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(None) };
        let object = match lake.head(key).await {
            Ok(object) => object,
            // A name that the lake cannot hold is not in it.
            Err(fault) if fault.kind == stoker_lake::LakeErrorKind::Invalid => None,
            Err(fault) => return Err(error::lake(fault)),
        };
        let Some(object) = object else { return Ok(None) };
        let file = lake_row(volume, self.chunk_bytes, &object)?;
        self.looks.put(volume, key, &file, now_ms);
        Ok(Some(file))
    }

    /// The etag that a tombstone waits to remove from the lake.
    pub async fn tombstone(&self, volume: &Volume, key: &[u8]) -> Result<Option<TombstoneRow>> {
        let row = self
            .catalog
            .get(&[&keys::tombstone(volume.id, key)])
            .await
            .map_err(error::catalog)?
            .pop()
            .flatten();
        row.as_ref().map(TombstoneRow::of).transpose().map_err(error::catalog)
    }

    /// Opens the present version, pinned.
    pub async fn open_file(self: &Arc<Core>, volume: &Arc<Volume>, key: &[u8]) -> Result<NodeFile> {
        loop {
            let seen = self.seen(volume, key).await?.ok_or_else(|| no_such_key(key))?;
            let pin: Pin = self.pins.pin(seen.file.version());
            if let Some(located) = &seen.located {
                // Once pinned it is looked at again: the collector may have been on its way.
                let again = self.names.file_at(located.spot.clone()).await.map_err(error::catalog)?;
                if again.is_none_or(|again| again.file.version != located.file.version) {
                    continue;
                }
            }
            return self.file(volume, key, &seen.file, pin).await;
        }
    }
}

/// A lake object as a file.
pub(crate) fn lake_row(volume: &Volume, chunk_len: u32, object: &ObjectInfo) -> Result<FileRow> {
    let version = clock::lake_version(volume.id.0, &object.key, &object.etag);
    let properties = match &object.attributes {
        Some(kept) => attributes::from_lake(kept),
        None => Properties::default(),
    };
    let etag = object.attributes.as_ref().and_then(attributes::etag).unwrap_or_else(|| object.etag.clone());
    Ok(FileRow {
        // Stable for the same object, and apart from the numbers that are counted up.
        inode: u64::from_be_bytes(version.0[..8].try_into().expect("eight bytes")) | 1 << 63,
        version: version.0,
        size: object.size,
        etag,
        modified_ms: object.modified_ms,
        crc64: object.crc64,
        layout: Layout::Simple { chunk_len },
        holders: Vec::new(),
        drain: Drain::Clean,
        lake: Some(LakeRef { key: object.key.clone(), etag: object.etag.clone() }),
        source: None,
        dirty_since_ms: 0,
        publishes: 0,
        properties: properties.encode()?,
    })
}
