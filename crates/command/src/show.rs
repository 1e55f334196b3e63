//! How files, receipts and volumes look, in words and as JSON.
//!
//! JSON names are those of the door's types. Bytes that are not UTF-8 are shown lossily, with the exact bytes beside
//! them in hex; checksums are in base64, as in S3.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Map, Value, json};
use stoker_store::{
    Checksum, ChecksumKind, DrainPolicy, DrainState, FileInfo, LakeMode, NodeStatus, PeerStatus, Receipt,
    VolumeInfo, class_words, name_ids, receipt_copies_words,
};

use crate::{clock, out, size, span};

pub use out::name;

/// Any type of the door, as it is; for the few that hold no bytes.
pub fn plain(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// What people call a node.
pub fn node_name<'n>(nodes: &'n [PeerStatus], id: &'n str) -> &'n str {
    let found = nodes.iter().find(|node| node.node == id && !node.name.is_empty());
    found.map_or(id, |node| node.name.as_str())
}

/// Where the names are, with the node that keeps them by its name.
pub fn catalog(status: &NodeStatus) -> String {
    name_ids(&status.catalog, |id| Some(node_name(&status.nodes, id).to_owned())).into_owned()
}

/// A number of things: `1 file`, `2 000 files`.
pub fn count(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", out::count(number), if number == 1 { "" } else { "s" })
}

/// Puts bytes into an object: as text, and in hex if that is not exact.
pub fn put_name(object: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    object.insert(field.to_owned(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        object.insert(format!("{field}_hex"), hex.into());
    }
}

fn checksum_name(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::Crc32 => "crc32",
        ChecksumKind::Crc32c => "crc32c",
        ChecksumKind::Crc64Nvme => "crc64nvme",
        ChecksumKind::Sha1 => "sha1",
        ChecksumKind::Sha256 => "sha256",
    }
}

/// `kind: base64`, with `-N` behind it where it is composed of N parts.
fn checksums(list: &[Checksum]) -> Value {
    let text = |checksum: &Checksum| {
        let text = BASE64_STANDARD.encode(&checksum.value);
        if checksum.parts == 0 { text } else { format!("{text}-{}", checksum.parts) }
    };
    Value::Object(list.iter().map(|sum| (checksum_name(sum.kind).to_owned(), text(sum).into())).collect())
}

fn pairs(list: &[(String, String)]) -> Value {
    Value::Object(list.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect())
}

/// A file as JSON.
pub fn file_json(volume: &str, info: &FileInfo) -> Value {
    let mut object = Map::new();
    object.insert("volume".to_owned(), volume.into());
    put_name(&mut object, "key", info.key.as_bytes());
    let attributes = &info.attributes;
    let rest = json!({
        "size": info.size,
        "etag": info.etag,
        "modified": clock::rfc3339(info.modified_ms),
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
        "mtime_ns": attributes.mtime_ns,
        "xattrs": attributes.xattrs.len(),
    });
    extend(object, rest)
}

/// A receipt as JSON.
pub fn receipt_json(receipt: &Receipt) -> Value {
    let mut value = plain(receipt);
    value["checksums"] = checksums(&receipt.checksums);
    value
}

/// An object with the fields of another behind its own.
pub fn extend(mut object: Map<String, Value>, more: Value) -> Value {
    if let Value::Object(more) = more {
        object.extend(more);
    }
    Value::Object(object)
}

/// How far a file is on its way to the lake.
pub fn drain(state: &DrainState) -> &'static str {
    match state {
        DrainState::Dirty => "dirty",
        DrainState::Clean => "clean",
        DrainState::Never => "never",
        DrainState::Conflict => "conflict",
    }
}

/// When files leave.
pub fn policy(policy: DrainPolicy) -> String {
    match policy {
        DrainPolicy::Always => "always".to_owned(),
        DrainPolicy::Never => "never".to_owned(),
        DrainPolicy::Every(count) => format!("every {count}"),
        DrainPolicy::OnDemand => "on-demand".to_owned(),
    }
}

/// Who else writes to the lake.
pub fn lake_mode(mode: LakeMode) -> &'static str {
    match mode {
        LakeMode::Owned => "owned",
        LakeMode::Shared => "shared",
        LakeMode::ReadOnly => "read-only",
    }
}

/// A receipt in words: what is true of the bytes now, and what happens next.
pub fn receipt(receipt: &Receipt) -> String {
    let copies = receipt_copies_words(receipt);
    // It ends with a key, which may be anything.
    let lake = name(receipt.lake.as_deref().unwrap_or("the lake").as_bytes());
    let next = match receipt.drain {
        DrainState::Clean => format!("drained to {lake}"),
        DrainState::Dirty if receipt.lake_etag.is_some() => format!("drains to its own key, now {lake}"),
        DrainState::Dirty => format!("drains to {lake}"),
        DrainState::Never => "stays in Stoker: this volume does not drain".to_owned(),
        DrainState::Conflict => {
            format!("not drained: somebody else changed {lake}; see `stoker conflict ls`")
        }
    };
    format!("committed: {copies} (class {}); {next}", receipt.class.as_str())
}

/// A file as rows of `name  value`.
pub fn file_rows(volume: &str, info: &FileInfo) -> Vec<(&'static str, String)> {
    let attributes = &info.attributes;
    let mut rows = vec![
        ("file", format!("{volume}/{}", name(info.key.as_bytes()))),
        ("size", format!("{} ({} bytes)", size::human(info.size), out::count(info.size))),
        ("modified", clock::rfc3339(info.modified_ms)),
        ("etag", info.etag.clone()),
        ("version", info.version.to_string()),
        ("drain", drain(&info.drain).to_owned()),
    ];
    for sum in &info.checksums {
        rows.push((checksum_name(sum.kind), BASE64_STANDARD.encode(&sum.value)));
    }
    if !info.part_sizes.is_empty() {
        rows.push(("parts", info.part_sizes.len().to_string()));
    }
    rows.extend(attributes.content_type.iter().map(|text| ("type", text.clone())));
    rows.extend(attributes.mode.map(|mode| ("mode", format!("{:o}", mode & 0o7777))));
    rows.extend(attributes.owner.map(|(user, group)| ("owner", format!("{user}:{group}"))));
    let listed = [("header", &attributes.headers), ("meta", &attributes.meta), ("tag", &attributes.tags)];
    for (kind, list) in listed {
        rows.extend(list.iter().map(|(name, value)| (kind, format!("{name}: {value}"))));
    }
    rows
}

/// A volume as rows of `name  value`, with how many copies a write makes now if that is known.
pub fn volume_rows(volume: &VolumeInfo, copies: Option<u32>) -> Vec<(&'static str, String)> {
    let policy = &volume.policy;
    let drain = match policy.drain {
        DrainPolicy::Always | DrainPolicy::Every(_) => format!(
            "{}, after {} without a change, at the latest after {}",
            self::policy(policy.drain),
            span::human(u64::from(policy.drain_quiet_s) * 1000),
            span::human(u64::from(policy.drain_lag_max_s) * 1000)
        ),
        other => self::policy(other),
    };
    let quota = if policy.quota_bytes == 0 { "none".to_owned() } else { size::human(policy.quota_bytes) };
    vec![
        ("volume", volume.name.clone()),
        ("made", clock::rfc3339(volume.created_ms)),
        ("holds", format!("{}, {}", count(volume.files, "file"), size::human(volume.bytes))),
        (
            "class",
            copies.map_or(policy.class.as_str().to_owned(), |copies| class_words(policy.class, copies)),
        ),
        ("lake", volume.lake.clone().unwrap_or_else(|| "none".to_owned())),
        ("lake mode", lake_mode(policy.lake_mode).to_owned()),
        ("drain", drain),
        ("quota", quota),
        ("leases", if policy.leases { "allowed" } else { "none" }.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_for_a_terminal() {
        assert_eq!(name("plain ä".as_bytes()), "plain ä");
        assert_eq!(name(b"a\x1b[31m\n"), "a\\u{1b}[31m\\n");
        let mut object = Map::new();
        put_name(&mut object, "key", b"a\xff");
        assert_eq!(Value::Object(object), json!({"key": "a\u{fffd}", "key_hex": "61ff"}));
    }

    #[test]
    fn checksums_are_in_base64() {
        let sums = [
            Checksum { kind: ChecksumKind::Crc64Nvme, value: vec![0, 1, 2, 3, 4, 5, 6, 7], parts: 0 },
            Checksum { kind: ChecksumKind::Sha1, value: vec![255], parts: 3 },
        ];
        assert_eq!(checksums(&sums), json!({"crc64nvme": "AAECAwQFBgc=", "sha1": "/w==-3"}));
    }
}
