//! Name records: what a publish leaves beside its bytes, so that names survive the loss of the catalog (R6).

use stoker_catalog::rows::FileRow;
use stoker_format::{ChunkRun, NameField, NameOp, NameRecord, VersionId, VolumeId};

use crate::properties::Properties;

/// Runs that fit one record with room for the rest; a longer list is left to the catalog's rows and the lake.
const RUNS_MAX: usize = 24_000;

/// The record of a published file.
pub(crate) fn put(
    volume: VolumeId,
    key: &[u8],
    file: &FileRow,
    properties: &Properties,
    runs: &[ChunkRun],
    catalog_seq: u64,
) -> NameRecord {
    let attributes = &properties.attributes;
    let mut fields = vec![
        NameField::Key(key.to_vec()),
        NameField::Size(file.size),
        NameField::MtimeNs(attributes.mtime_ns.unwrap_or(file.modified_ms as i64 * 1_000_000)),
        NameField::ETag(file.etag.clone().into_bytes()),
    ];
    if let Some(mode) = attributes.mode {
        fields.push(NameField::Mode(mode));
    }
    if let Some((uid, gid)) = attributes.owner {
        fields.extend([NameField::Uid(uid), NameField::Gid(gid)]);
    }
    if let Some(content_type) = &attributes.content_type {
        fields.push(NameField::ContentType(content_type.clone().into_bytes()));
    }
    let pair = |(name, value): &(String, String)| (name.clone().into_bytes(), value.clone().into_bytes());
    for (name, value) in attributes.meta.iter().map(pair) {
        fields.push(NameField::Meta { name, value });
    }
    for (name, value) in attributes.tags.iter().map(pair) {
        fields.push(NameField::Tag { name, value });
    }
    for (name, value) in &attributes.xattrs {
        fields.push(NameField::Xattr { name: name.clone(), value: value.clone() });
    }
    if let Some(crc64) = file.crc64 {
        fields.push(NameField::Checksum { algorithm: 3, value: crc64.to_be_bytes().to_vec() });
    }
    for checksum in &properties.checksums {
        fields.push(NameField::Checksum { algorithm: checksum.kind as u8, value: checksum.value.clone() });
    }
    if runs.len() <= RUNS_MAX {
        fields.push(NameField::Runs(runs.to_vec()));
    }
    NameRecord { op: NameOp::Put, volume, version: file.version(), catalog_seq, fields }
}

/// The same of a shard: it counts only if its set was published.
pub(crate) fn of_set(mut record: NameRecord, set: u64) -> NameRecord {
    record.fields.push(NameField::Set(set_field(set)));
    record
}

/// The record of a checkpoint set that becomes visible as a directory.
pub(crate) fn publish_set(
    volume: VolumeId,
    target: &[u8],
    version: VersionId,
    set: u64,
    catalog_seq: u64,
) -> NameRecord {
    let fields = vec![NameField::Key(target.to_vec()), NameField::Set(set_field(set))];
    NameRecord { op: NameOp::PublishSet, volume, version, catalog_seq, fields }
}

fn set_field(set: u64) -> [u8; 16] {
    u128::from(set).to_be_bytes()
}

/// The record of a delete.
pub(crate) fn delete(volume: VolumeId, key: &[u8], version: VersionId, catalog_seq: u64) -> NameRecord {
    let fields = vec![NameField::Key(key.to_vec())];
    NameRecord { op: NameOp::Delete, volume, version, catalog_seq, fields }
}

/// The record of a rename.
pub(crate) fn rename(
    volume: VolumeId,
    from: &[u8],
    to: &[u8],
    version: VersionId,
    catalog_seq: u64,
) -> NameRecord {
    let fields = vec![NameField::Key(to.to_vec()), NameField::OldKey(from.to_vec())];
    NameRecord { op: NameOp::Rename, volume, version, catalog_seq, fields }
}
