//! A lake object that the catalog has no row of, as a file.

use stoker_format::{PastId, VolumeId, past_parts};
use stoker_host::clock;
use stoker_lake::ObjectInfo;
use stoker_schema::rows::{Drain, FileRow, LakeRef, Layout, PastRow};
use stoker_store::Result;

use crate::attributes;
use crate::properties::Properties;

/// What the key of a former version says of it. What held it is not known any more.
pub fn past_of(key: &[u8]) -> Option<PastRow> {
    let id: PastId = past_parts(key)?.1.parse().ok()?;
    Some(PastRow { number: id.number, ..PastRow::default() })
}

/// A lake object as a file.
pub fn lake_row(volume: VolumeId, chunk_len: u32, object: &ObjectInfo) -> Result<FileRow> {
    let version = clock::lake_version(volume.0, &object.key, &object.etag);
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
        name_record: None,
        properties: properties.encode()?,
        home: [0; 16],
        links: None,
        past: past_of(&object.key),
    })
}
