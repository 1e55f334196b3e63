//! Keys of rows about lakes with names, copies in second lakes, and rules that move files.

use stoker_format::VolumeId;

/// Every lake with a name.
pub const LAKES: &[u8] = b"!lakes/";
/// The second lake of every volume that has one.
pub const REPLICAS: &[u8] = b"!replica/";
/// Every set of rules.
pub const POLICIES: &[u8] = b"!policy/";

/// `!lakes/` name: a lake.
pub fn lake(name: &str) -> Vec<u8> {
    [LAKES, name.as_bytes()].concat()
}

/// The name inside such a key.
pub fn lake_name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(LAKES)?).ok()
}

/// `!replica/` volume: its second lake.
pub fn replica(volume: VolumeId) -> Vec<u8> {
    [REPLICAS, &volume.0.to_be_bytes()[..]].concat()
}

/// The volume inside such a key.
pub fn replica_volume(key: &[u8]) -> Option<VolumeId> {
    Some(VolumeId(u32::from_be_bytes(key.strip_prefix(REPLICAS)?.try_into().ok()?)))
}

/// `!copywalk/` volume: how far the walk is that its second lake needs.
pub fn copy_walk(volume: VolumeId) -> Vec<u8> {
    [b"!copywalk/", &volume.0.to_be_bytes()[..]].concat()
}

/// `!copy/` volume lake-key: the copy of that object in the second lake.
pub fn copy(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"!copy/", &volume.0.to_be_bytes()[..], key].concat()
}

/// Every copy of a volume.
pub fn copies(volume: VolumeId) -> Vec<u8> {
    copy(volume, b"")
}

/// `!copywork/` volume lake-key: its copy may be behind.
pub fn copy_work(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"!copywork/", &volume.0.to_be_bytes()[..], key].concat()
}

/// The lake key inside such a key.
pub fn copy_work_part(key: &[u8]) -> &[u8] {
    key.get(b"!copywork/".len() + 4..).unwrap_or_default()
}

/// The lake key inside the key of a copy.
pub fn copy_part(key: &[u8]) -> &[u8] {
    key.get(b"!copy/".len() + 4..).unwrap_or_default()
}

/// `!lacking/` volume lake-key: a file of which only the former lake has the object.
pub fn lacking(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"!lacking/", &volume.0.to_be_bytes()[..], key].concat()
}

/// The lake key inside such a key.
pub fn lacking_part(key: &[u8]) -> &[u8] {
    key.get(b"!lacking/".len() + 4..).unwrap_or_default()
}

/// `!policy/` name: a set of rules.
pub fn policy(name: &str) -> Vec<u8> {
    [POLICIES, name.as_bytes()].concat()
}

/// `!moved/` policy time number: a move that was made, or failed.
pub fn moved(policy: &str, at_ms: u64, number: u32) -> Vec<u8> {
    [&moves(policy)[..], &at_ms.to_be_bytes(), &number.to_be_bytes()].concat()
}

/// Every move of a policy. Names of policies hold no slash.
pub fn moves(policy: &str) -> Vec<u8> {
    [b"!moved/", policy.as_bytes(), b"/"].concat()
}

/// `!seen/` volume key: when a file was opened last.
pub fn seen(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"!seen/", &volume.0.to_be_bytes()[..], key].concat()
}

/// The key of the file inside such a key.
pub fn seen_part(key: &[u8]) -> &[u8] {
    key.get(b"!seen/".len() + 4..).unwrap_or_default()
}
