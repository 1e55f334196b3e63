//! How types of the door look as JSON. Names are those of the door, as `stoker --json` shows them. Bytes that are not UTF-8
//! are shown lossily, with the exact bytes beside them in hex.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Map, Value, json};
use stoker_store::{
    Checksum, ChecksumKind, Conflict, Explanation, FileInfo, LostFile, Receipt, SetInfo, SetStatus,
};

/// Any type of the door that holds no bytes, as it is.
pub fn plain<T: Serialize + ?Sized>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Puts bytes into an object: as text, and in hex if that is not exact.
fn put_name(value: &mut Value, field: &str, bytes: &[u8]) {
    value[field] = String::from_utf8_lossy(bytes).into();
    if std::str::from_utf8(bytes).is_err() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        value[format!("{field}_hex")] = hex.into();
    }
}

fn checksums(list: &[Checksum]) -> Value {
    let name = |kind: ChecksumKind| match kind {
        ChecksumKind::Crc32 => "crc32",
        ChecksumKind::Crc32c => "crc32c",
        ChecksumKind::Crc64Nvme => "crc64nvme",
        ChecksumKind::Sha1 => "sha1",
        ChecksumKind::Sha256 => "sha256",
    };
    let text = |checksum: &Checksum| {
        let text = BASE64_STANDARD.encode(&checksum.value);
        if checksum.parts == 0 { text } else { format!("{text}-{}", checksum.parts) }
    };
    Value::Object(list.iter().map(|sum| (name(sum.kind).to_owned(), text(sum).into())).collect())
}

fn pairs(list: &[(String, String)]) -> Value {
    let pairs: Map<String, Value> =
        list.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    Value::Object(pairs)
}

pub fn file(info: &FileInfo) -> Value {
    let attributes = &info.attributes;
    let mut value = json!({
        "size": info.size,
        "etag": info.etag,
        "modified_ms": info.modified_ms,
        "version": info.version.to_string(),
        "inode": info.inode,
        "drain": info.drain,
        "checksums": checksums(&info.checksums),
        "parts": info.part_sizes.len(),
        "content_type": attributes.content_type,
        "headers": pairs(&attributes.headers),
        "meta": pairs(&attributes.meta),
        "tags": pairs(&attributes.tags),
        "mode": attributes.mode,
        "owner": attributes.owner,
    });
    put_name(&mut value, "key", info.key.as_bytes());
    value
}

pub fn receipt(receipt: &Receipt) -> Value {
    let mut value = plain(receipt);
    value["checksums"] = checksums(&receipt.checksums);
    value
}

pub fn explanation(explanation: &Explanation) -> Value {
    json!({
        "file": file(&explanation.file),
        "receipt": receipt(&explanation.receipt),
        "chunks": explanation.chunks,
        "chunks_local": explanation.chunks_local,
        "chunks_cached": explanation.chunks_cached,
        "holders": plain(&explanation.holders),
        "words": explanation.words,
    })
}

pub fn prefix(bytes: &[u8]) -> Value {
    let mut value = json!({});
    put_name(&mut value, "prefix", bytes);
    value
}

pub fn set(info: &SetInfo) -> Value {
    let mut value = json!({
        "volume": info.volume,
        "set": info.set.0,
        "state": info.state,
        "owner": info.owner,
        "shards": info.shards,
        "begun_ms": info.begun_ms,
        "deadline_ms": info.deadline_ms,
        "closed_ms": info.closed_ms,
        "seq": info.seq,
    });
    put_name(&mut value, "path", info.path.as_bytes());
    value
}

pub fn set_status(status: &SetStatus) -> Value {
    json!({
        "info": set(&status.info),
        "present": status.present,
        "bytes": status.bytes,
        "laggards": status.laggards,
        "drain": status.drain,
    })
}

pub fn lost(lost: &LostFile) -> Value {
    let mut value = plain(lost);
    put_name(&mut value, "key", &lost.key);
    value
}

pub fn conflict(conflict: &Conflict) -> Value {
    json!({
        "volume": conflict.volume,
        "file": file(&conflict.file),
        "lake_etag_expected": conflict.lake_etag_expected,
        "lake_etag_found": conflict.lake_etag_found,
        "since_ms": conflict.since_ms,
        "refused": conflict.refused,
    })
}
