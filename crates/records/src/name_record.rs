//! Name records: what a publish leaves beside its bytes, so that names survive the loss of the catalog (R6).

use serde::{Deserialize, Serialize};
use stoker_format::{ChunkRun, NameField, NameOp, NameRecord, VersionId, VolumeId};
use stoker_schema::rows::FileRow;

use crate::properties::Properties;

/// Version of [`Rest`] that is written and read.
const REST_VERSION: u8 = 1;

/// What the fields of the format do not say exactly, so that a file comes back as it was.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rest {
    /// When it was published, milliseconds since 1970.
    pub modified_ms: u64,
    /// Properties, as its row has them.
    pub properties: Vec<u8>,
    /// Runs of equally long parts that it was uploaded in: length and how many.
    pub upload_parts: Vec<(u64, u32)>,
}

impl Rest {
    fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![REST_VERSION]).expect("plain data encodes")
    }

    /// Reads it back; none if this release cannot.
    pub fn decode(bytes: &[u8]) -> Option<Rest> {
        let (version, body) = bytes.split_first()?;
        (*version == REST_VERSION).then(|| postcard::from_bytes(body).ok())?
    }
}

/// How a file is cut, for its record.
#[derive(Clone, Copy)]
pub struct Cut<'c> {
    /// Its chunks; none if they are known only to the transaction that follows.
    pub runs: Option<&'c [ChunkRun]>,
    /// Runs of equally long parts that it was uploaded in.
    pub upload_parts: &'c [(u64, u32)],
}

impl<'c> Cut<'c> {
    /// A file that came in one piece.
    pub fn whole(runs: &'c [ChunkRun]) -> Cut<'c> {
        Cut { runs: Some(runs), upload_parts: &[] }
    }
}

/// Runs that fit one record with room for the rest; a longer list is left to the catalog's rows and the lake.
const RUNS_MAX: usize = 24_000;

/// The record of a published file.
pub fn put(
    volume: VolumeId,
    key: &[u8],
    file: &FileRow,
    properties: &Properties,
    cut: Cut<'_>,
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
    if let Some(runs) = cut.runs.filter(|runs| runs.len() <= RUNS_MAX) {
        fields.push(NameField::Runs(runs.to_vec()));
    }
    let rest = Rest {
        modified_ms: file.modified_ms,
        properties: file.properties.clone(),
        upload_parts: cut.upload_parts.to_vec(),
    };
    fields.push(NameField::Rest(rest.encode()));
    NameRecord { op: NameOp::Put, volume, version: file.version(), catalog_seq, fields }
}

/// The same of a shard: it counts only if its set was published.
pub fn of_set(mut record: NameRecord, set: u64, shard: u32) -> NameRecord {
    record.fields.push(NameField::Set(set_field(set, Some(shard))));
    record
}

/// The record of a checkpoint set that becomes visible as a directory.
pub fn publish_set(
    volume: VolumeId,
    target: &[u8],
    version: VersionId,
    set: u64,
    catalog_seq: u64,
) -> NameRecord {
    let fields = vec![NameField::Key(target.to_vec()), NameField::Set(set_field(set, None))];
    NameRecord { op: NameOp::PublishSet, volume, version, catalog_seq, fields }
}

fn set_field(set: u64, shard: Option<u32>) -> [u8; 16] {
    let shard = shard.map_or(0, |shard| u128::from(shard) + 1);
    (shard << 64 | u128::from(set)).to_be_bytes()
}

/// The set, and the number of the shard, inside such a field.
pub fn set_parts(field: &[u8; 16]) -> (u64, Option<u32>) {
    let number = u128::from_be_bytes(*field);
    let shard = (number >> 64).checked_sub(1).and_then(|shard| u32::try_from(shard).ok());
    (number as u64, shard)
}

/// The record of a delete.
pub fn delete(volume: VolumeId, key: &[u8], version: VersionId, catalog_seq: u64) -> NameRecord {
    let fields = vec![NameField::Key(key.to_vec())];
    NameRecord { op: NameOp::Delete, volume, version, catalog_seq, fields }
}

/// The record of one of two directories that swapped their names. Both have one, of the same commit, and either alone
/// tells of both.
pub fn exchange(
    volume: VolumeId,
    from: &[u8],
    to: &[u8],
    version: VersionId,
    catalog_seq: u64,
) -> NameRecord {
    NameRecord { op: NameOp::Exchange, ..rename(volume, from, to, version, catalog_seq) }
}

/// The record of a rename.
pub fn rename(volume: VolumeId, from: &[u8], to: &[u8], version: VersionId, catalog_seq: u64) -> NameRecord {
    let fields = vec![NameField::Key(to.to_vec()), NameField::OldKey(from.to_vec())];
    NameRecord { op: NameOp::Rename, volume, version, catalog_seq, fields }
}
