//! Keys of rows. One function per table; nothing else builds keys.

use stoker_format::{DriveId, NodeId, PastId, VersionId, VolumeId};

/// `V` name: a volume.
pub fn volume(name: &str) -> Vec<u8> {
    [b"V", name.as_bytes()].concat()
}

/// `W` id: the name of a volume; its presence is checked by whatever writes into the volume.
pub fn volume_id(volume: VolumeId) -> Vec<u8> {
    [b"W", &volume.0.to_be_bytes()[..]].concat()
}

/// `!keys/` volume: its data keys, wrapped; an encrypted volume has this row from its beginning.
pub fn data_keys(volume: VolumeId) -> Vec<u8> {
    [DATA_KEYS, &volume.0.to_be_bytes()[..]].concat()
}

/// Every row of data keys.
pub const DATA_KEYS: &[u8] = b"!keys/";

/// `!keyless/` volume: its data keys were destroyed.
pub fn destroyed_keys(volume: VolumeId) -> Vec<u8> {
    [&b"!keyless/"[..], &volume.0.to_be_bytes()].concat()
}

/// `z` volume name: what users say of it, by the name of what it is about.
pub fn setting(volume: VolumeId, name: &str) -> Vec<u8> {
    [&settings(volume)[..], name.as_bytes()].concat()
}

/// Everything that users say of a volume.
pub fn settings(volume: VolumeId) -> Vec<u8> {
    [b"z", &volume.0.to_be_bytes()[..]].concat()
}

/// `E` volume parent name: a file, or a directory if the name ends with `/`.
pub fn entry(volume: VolumeId, parent: u64, name: &[u8]) -> Vec<u8> {
    [b"E", &volume.0.to_be_bytes()[..], &parent.to_be_bytes(), name].concat()
}

/// Every entry of a directory.
pub fn entries(volume: VolumeId, parent: u64) -> Vec<u8> {
    entry(volume, parent, b"")
}

/// The name inside an entry key.
pub fn entry_name(key: &[u8]) -> &[u8] {
    key.get(13..).unwrap_or_default()
}

/// The name of a version that is not the present one of its key, in [`super::HISTORY`]: the key, NUL, and the id with its number turned round, so
/// that versions come in the order of keys, and of one key the latest first.
pub fn past_name(key: &[u8], id: PastId) -> Vec<u8> {
    [&past_names(key)[..], &(!id.number).to_be_bytes(), &id.version.0].concat()
}

/// What the names of all former versions of a key begin with.
pub fn past_names(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

/// Key and id inside such a name.
pub fn past_name_parts(name: &[u8]) -> Option<(&[u8], PastId)> {
    let split = name.len().checked_sub(20)?;
    let number = !u64::from_be_bytes(name[split..split + 8].try_into().ok()?);
    let version = VersionId(name[split + 8..].try_into().ok()?);
    Some((name[..split].strip_suffix(b"\0")?, PastId { number, version }))
}

/// `!null/` volume key: the id of the former version of a key that has none to be called by.
pub fn null_version(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [&b"!null/"[..], &volume.0.to_be_bytes(), key].concat()
}

/// `N` volume inode: where a directory hangs.
pub fn directory(volume: VolumeId, inode: u64) -> Vec<u8> {
    [b"N", &volume.0.to_be_bytes()[..], &inode.to_be_bytes()].concat()
}

/// `v` version part: the layout of a version that one run cannot describe.
pub fn version(version: VersionId, part: u16) -> Vec<u8> {
    [b"v", &version.0[..], &part.to_be_bytes()].concat()
}

/// Every row of a version's layout.
pub fn version_all(version: VersionId) -> Vec<u8> {
    [b"v", &version.0[..]].concat()
}

/// `r` version volume parent name: an entry that refers to a version. (D18)
pub fn reference(version: VersionId, volume: VolumeId, parent: u64, name: &[u8]) -> Vec<u8> {
    [b"r", &version.0[..], &volume.0.to_be_bytes(), &parent.to_be_bytes(), name].concat()
}

/// Every entry that refers to a version.
pub fn references(version: VersionId) -> Vec<u8> {
    [b"r", &version.0[..]].concat()
}

/// Volume, parent and name inside a reference key.
pub fn reference_parts(key: &[u8]) -> Option<(VolumeId, u64, &[u8])> {
    let volume = u32::from_be_bytes(key.get(13..17)?.try_into().ok()?);
    let parent = u64::from_be_bytes(key.get(17..25)?.try_into().ok()?);
    Some((VolumeId(volume), parent, &key[25..]))
}

/// The version inside a reference key.
pub fn reference_version(key: &[u8]) -> Option<VersionId> {
    Some(VersionId(key.get(1..13)?.try_into().ok()?))
}

/// `d` node drive version: undrained bytes on a drive.
pub fn dirty(node: NodeId, drive: DriveId, version: VersionId) -> Vec<u8> {
    [b"d", &node.0[..], &drive.0, &version.0].concat()
}

/// Everything undrained on the drives of a node.
pub fn dirty_of(node: NodeId) -> Vec<u8> {
    [b"d", &node.0[..]].concat()
}

/// Everything undrained on one drive.
pub fn dirty_on(node: NodeId, drive: DriveId) -> Vec<u8> {
    [b"d", &node.0[..], &drive.0].concat()
}

/// Every row of undrained bytes.
pub const DIRTY: &[u8] = b"d";

/// The node inside a dirty key.
pub fn dirty_node(key: &[u8]) -> Option<NodeId> {
    session_node(key)
}

/// The drive inside a dirty key.
pub fn dirty_drive(key: &[u8]) -> Option<DriveId> {
    Some(DriveId(key.get(17..33)?.try_into().ok()?))
}

/// The version inside a dirty key.
pub fn dirty_version(key: &[u8]) -> Option<VersionId> {
    Some(VersionId(key.get(33..45)?.try_into().ok()?))
}

/// What a node lacks of a version that it should have.
pub fn missing(version: VersionId, node: NodeId) -> Vec<u8> {
    [b"l", &version.0[..], &node.0].concat()
}

/// Everything that is missing of a version.
pub fn missing_all(version: VersionId) -> Vec<u8> {
    [b"l", &version.0[..]].concat()
}

/// Everything that is missing.
pub const MISSING: &[u8] = b"l";

/// The version and the node of such a key.
pub fn missing_parts(key: &[u8]) -> Option<(VersionId, NodeId)> {
    let version = VersionId(key.get(1..13)?.try_into().ok()?);
    Some((version, NodeId(key.get(13..29)?.try_into().ok()?)))
}

/// `k` volume lake-key: who writes that lake key (R10).
pub fn lake_key(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"k", &volume.0.to_be_bytes()[..], key].concat()
}

/// `a` volume lake-key: something was sent there and is not confirmed.
pub fn attempt(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"a", &volume.0.to_be_bytes()[..], key].concat()
}

/// `i` volume lake-key: a write that goes to the lake before it is published.
pub fn intent(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"i", &volume.0.to_be_bytes()[..], key].concat()
}

/// `w` version: where chunks of a version are that went to the lake before it was published.
pub fn spill(version: VersionId) -> Vec<u8> {
    [b"w", &version.0[..]].concat()
}

/// `T` volume version: such a version has an object in the lake of this volume.
pub fn spilled(volume: VolumeId, version: VersionId) -> Vec<u8> {
    [b"T", &volume.0.to_be_bytes()[..], &version.0].concat()
}

/// The start of the keys of all of them in a volume.
pub fn spilled_all(volume: VolumeId) -> Vec<u8> {
    [b"T", &volume.0.to_be_bytes()[..]].concat()
}

/// `t` volume lake-key: deleted here, not yet in the lake.
pub fn tombstone(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"t", &volume.0.to_be_bytes()[..], key].concat()
}

/// The lake key inside a lake-key, intent or tombstone key.
pub fn lake_key_part(key: &[u8]) -> &[u8] {
    key.get(5..).unwrap_or_default()
}

/// The volume inside a key whose prefix is followed by one.
pub fn volume_part(key: &[u8]) -> Option<VolumeId> {
    Some(VolumeId(u32::from_be_bytes(key.get(1..5)?.try_into().ok()?)))
}

/// `L` volume lake-key NUL version inode: a file that needs this lake object although it is not under its own name
/// there: an undrained copy, or one that was renamed (R11).
pub fn dependent(volume: VolumeId, key: &[u8], version: VersionId, inode: u64) -> Vec<u8> {
    [b"L", &volume.0.to_be_bytes()[..], key, b"\0", &version.0, &inode.to_be_bytes()].concat()
}

/// Everything that needs a lake object.
pub fn dependents(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"L", &volume.0.to_be_bytes()[..], key, b"\0"].concat()
}

/// Version and inode inside a dependent key.
pub fn dependent_parts(key: &[u8]) -> Option<(VersionId, u64)> {
    let start = key.len().checked_sub(20)?;
    let version = VersionId(key.get(start..start + 12)?.try_into().ok()?);
    Some((version, u64::from_be_bytes(key.get(start + 12..)?.try_into().ok()?)))
}

/// `b` volume lake-key NUL number: sums of the bytes of that lake object, in rows of so many pieces.
pub fn sums(volume: VolumeId, key: &[u8], number: u32) -> Vec<u8> {
    [&sums_all(volume, key)[..], &number.to_be_bytes()].concat()
}

/// All sums of a lake object.
pub fn sums_all(volume: VolumeId, key: &[u8]) -> Vec<u8> {
    [b"b", &volume.0.to_be_bytes()[..], key, b"\0"].concat()
}

/// All sums of the lake objects of a volume.
pub fn sums_of(volume: VolumeId) -> Vec<u8> {
    [b"b", &volume.0.to_be_bytes()[..]].concat()
}

/// The number of a row of sums.
pub fn sums_number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(key.len().checked_sub(4)?..)?.try_into().ok()?))
}

/// `u` volume key NUL upload: an upload under way. Keys hold no NUL, so the order is that of keys.
pub fn upload(volume: VolumeId, key: &[u8], upload: VersionId) -> Vec<u8> {
    [b"u", &volume.0.to_be_bytes()[..], key, b"\0", &upload.0].concat()
}

/// Every upload of a volume whose key starts with these bytes.
pub fn uploads(volume: VolumeId, prefix: &[u8]) -> Vec<u8> {
    [b"u", &volume.0.to_be_bytes()[..], prefix].concat()
}

/// Key and upload inside an upload key.
pub fn upload_parts(key: &[u8]) -> Option<(&[u8], VersionId)> {
    let body = key.get(5..)?;
    let split = body.len().checked_sub(13)?;
    Some((&body[..split], VersionId(body[split + 1..].try_into().ok()?)))
}

/// `m` upload: an upload that was completed not long ago.
pub fn completed(upload: VersionId) -> Vec<u8> {
    [b"m", &upload.0[..]].concat()
}

/// `y` upload: what was answered when it was completed.
pub fn answered(upload: VersionId) -> Vec<u8> {
    [ANSWERS, &upload.0].concat()
}

/// All of these answers.
pub const ANSWERS: &[u8] = b"y";

/// All uploads that were completed not long ago.
pub const COMPLETED: &[u8] = b"m";

/// `p` upload number: an acknowledged part.
pub fn part(upload: VersionId, number: u16) -> Vec<u8> {
    [b"p", &upload.0[..], &number.to_be_bytes()].concat()
}

/// Every part of an upload.
pub fn parts(upload: VersionId) -> Vec<u8> {
    [b"p", &upload.0[..]].concat()
}

/// All parts of all uploads.
pub const PARTS: &[u8] = b"p";

/// All uploads.
pub const UPLOADS: &[u8] = b"u";

/// The upload inside a part key.
pub fn part_upload(key: &[u8]) -> Option<VersionId> {
    Some(VersionId(key.get(1..13)?.try_into().ok()?))
}

/// The number inside a part key.
pub fn part_number(key: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(key.get(13..15)?.try_into().ok()?))
}

/// `g` version part: chunks that nothing refers to, to be deleted from the drives.
pub fn garbage(version: VersionId, part: u16) -> Vec<u8> {
    [b"g", &version.0[..], &part.to_be_bytes()].concat()
}

/// All of them.
pub const GARBAGE: &[u8] = b"g";

/// The version inside such a key.
pub fn garbage_version(key: &[u8]) -> Option<VersionId> {
    Some(VersionId(key.get(1..13)?.try_into().ok()?))
}

/// Every row of a dead version.
pub fn garbage_all(version: VersionId) -> Vec<u8> {
    [b"g", &version.0[..]].concat()
}

/// `s` owner user: a version whose layout uses chunks that were written for another one. Chunks without such a row have
/// one user. With such rows, every user has one, except the owner itself, which is one while something refers to it. (D28)
pub fn share(owner: VersionId, sharer: VersionId) -> Vec<u8> {
    [b"s", &owner.0[..], &sharer.0].concat()
}

/// Everyone but itself who uses the chunks of an owner, if there is more than one user.
pub fn shares(owner: VersionId) -> Vec<u8> {
    [b"s", &owner.0[..]].concat()
}

/// The sharer inside a share key.
pub fn sharer(key: &[u8]) -> Option<VersionId> {
    Some(VersionId(key.get(13..25)?.try_into().ok()?))
}

/// `H` volume number: how many names a file has that has, or had, several.
pub fn links(volume: VolumeId, number: u64) -> Vec<u8> {
    [b"H", &volume.0.to_be_bytes()[..], &number.to_be_bytes()].concat()
}

/// All of these rows of a volume.
pub fn links_of(volume: VolumeId) -> Vec<u8> {
    [b"H", &volume.0.to_be_bytes()[..]].concat()
}

/// `H` volume number parent name: one of these names.
pub fn link(volume: VolumeId, number: u64, parent: u64, name: &[u8]) -> Vec<u8> {
    [b"H", &volume.0.to_be_bytes()[..], &number.to_be_bytes(), &parent.to_be_bytes(), name].concat()
}

/// Parent and name inside a link key; none if it is the row that counts.
pub fn link_parts(key: &[u8]) -> Option<(u64, &[u8])> {
    Some((u64::from_be_bytes(key.get(13..21)?.try_into().ok()?), &key[21..]))
}

/// `c` volume set: a checkpoint set.
pub fn set(volume: VolumeId, set: u64) -> Vec<u8> {
    [b"c", &volume.0.to_be_bytes()[..], &set.to_be_bytes()].concat()
}

/// Every checkpoint set of a volume.
pub fn sets(volume: VolumeId) -> Vec<u8> {
    [b"c", &volume.0.to_be_bytes()[..]].concat()
}

/// `o` volume target: the set that gathers for a target.
pub fn open_set(volume: VolumeId, target: &[u8]) -> Vec<u8> {
    [b"o", &volume.0.to_be_bytes()[..], target].concat()
}

/// `q` volume set: what is to be done for a set.
pub fn set_work(volume: VolumeId, set: u64) -> Vec<u8> {
    [b"q", &volume.0.to_be_bytes()[..], &set.to_be_bytes()].concat()
}

/// Everything that is to be done for sets.
pub const SET_WORK: &[u8] = b"q";

/// The set inside a set or set-work key.
pub fn set_part(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(5..13)?.try_into().ok()?))
}

/// `h` set number: a shard.
pub fn shard(set: u64, number: u32) -> Vec<u8> {
    [b"h", &set.to_be_bytes()[..], &number.to_be_bytes()].concat()
}

/// Every shard of a set.
pub fn shards(set: u64) -> Vec<u8> {
    [b"h", &set.to_be_bytes()[..]].concat()
}

/// The number inside a shard key.
pub fn shard_number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(9..13)?.try_into().ok()?))
}

/// `x` volume parent name: a version that waits for a person.
pub fn conflict(volume: VolumeId, parent: u64, name: &[u8]) -> Vec<u8> {
    [b"x", &volume.0.to_be_bytes()[..], &parent.to_be_bytes(), name].concat()
}

/// Parent and name inside a conflict key.
pub fn conflict_parts(key: &[u8]) -> Option<(VolumeId, u64, &[u8])> {
    let volume = u32::from_be_bytes(key.get(1..5)?.try_into().ok()?);
    let parent = u64::from_be_bytes(key.get(5..13)?.try_into().ok()?);
    Some((VolumeId(volume), parent, &key[13..]))
}

/// Everything renamed in a volume whose lake keys have to follow.
pub fn rekeys(volume: VolumeId) -> Vec<u8> {
    [b"R", &volume.0.to_be_bytes()[..]].concat()
}

/// `R` volume inode: a renamed directory whose lake keys have to follow.
pub fn rekey_directory(volume: VolumeId, inode: u64) -> Vec<u8> {
    [b"R", &volume.0.to_be_bytes()[..], b"d", &inode.to_be_bytes()].concat()
}

/// `R` volume version: a renamed file whose lake key has to follow.
pub fn rekey_file(volume: VolumeId, version: VersionId) -> Vec<u8> {
    [b"R", &volume.0.to_be_bytes()[..], b"f", &version.0].concat()
}

/// `I` volume: how far the listing of an owned lake is.
pub fn import(volume: VolumeId) -> Vec<u8> {
    [b"I", &volume.0.to_be_bytes()[..]].concat()
}

/// The sessions of all nodes.
pub const SESSIONS: &[u8] = b"S";

/// `S` node: the session of its present boot.
pub fn session(node: NodeId) -> Vec<u8> {
    [b"S", &node.0[..]].concat()
}

/// The node inside a session key.
pub fn session_node(key: &[u8]) -> Option<NodeId> {
    Some(NodeId(key.get(1..17)?.try_into().ok()?))
}

/// Every node of the cluster.
pub const NODES: &[u8] = b"M";

/// `M` node: a node of the cluster.
pub fn node(node: NodeId) -> Vec<u8> {
    [b"M", &node.0[..]].concat()
}

/// The node inside the key of a node.
pub fn node_id(key: &[u8]) -> Option<NodeId> {
    session_node(key)
}

/// `f` version: somebody repairs it.
pub fn repair(version: VersionId) -> Vec<u8> {
    [b"f", &version.0[..]].concat()
}

/// Every repair under way.
pub const REPAIRS: &[u8] = b"f";

/// `D` drive: a drive and its life.
pub fn drive(drive: DriveId) -> Vec<u8> {
    [b"D", &drive.0[..]].concat()
}

/// `A` access-key.
pub fn access_key(key: &str) -> Vec<u8> {
    [b"A", key.as_bytes()].concat()
}

/// `#` counter of files in a volume; its rows are its parts.
pub fn files(volume: VolumeId) -> Vec<u8> {
    [b"#f", &volume.0.to_be_bytes()[..]].concat()
}

/// `#` counter of bytes in a volume; its rows are its parts.
pub fn bytes(volume: VolumeId) -> Vec<u8> {
    [b"#b", &volume.0.to_be_bytes()[..]].concat()
}

/// Every counter of a tenant, project or user.
pub const ACCOUNTS: &[u8] = b"#q";

/// `#` counter of files of a tenant, project or user; its rows are its parts.
pub fn account_files(account: &[u8]) -> Vec<u8> {
    [b"#qf/", account, b"\0"].concat()
}

/// `#` counter of their bytes; its rows are its parts.
pub fn account_bytes(account: &[u8]) -> Vec<u8> {
    [b"#qb/", account, b"\0"].concat()
}

/// Whether such a row counts bytes, and for whom.
pub fn account_behind(key: &[u8]) -> Option<(bool, &[u8])> {
    let (is_bytes, rest) = match (key.strip_prefix(b"#qb/"), key.strip_prefix(b"#qf/")) {
        (Some(rest), _) => (true, rest),
        (None, rest) => (false, rest?),
    };
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some((is_bytes, &rest[..end]))
}

/// Every quota of a tenant, project or user.
pub const QUOTAS: &[u8] = b"!quota/";

/// `!quota/` account: how much a tenant, project or user may have.
pub fn quota(account: &[u8]) -> Vec<u8> {
    [QUOTAS, account].concat()
}

/// A row of a counter.
pub fn counter_part(counter: &[u8], part: u8) -> Vec<u8> {
    [counter, &[part]].concat()
}

/// Numbers that were handed out: inodes.
pub const NEXT_INODE: &[u8] = b"!inode";
/// Numbers that were handed out: volumes.
pub const NEXT_VOLUME: &[u8] = b"!volume";
/// What a restored catalog does not know, until that is settled.
pub const RESTORED: &[u8] = b"!restored";
/// The secret of the one token that let nodes join in earlier releases. It is not used any more, and removed.
pub const JOIN_SECRET: &[u8] = b"!join";
/// Every token that lets nodes join.
pub const JOIN_TOKENS: &[u8] = b"!join/";

/// `!join/` id: a token that lets nodes join.
pub fn join_token(id: [u8; 8]) -> Vec<u8> {
    [JOIN_TOKENS, &id].concat()
}

/// Every policy of admission.
pub const QOS: &[u8] = b"!qos/";
/// Written with every change of a policy.
pub const QOS_ROUND: &[u8] = b"!qos-round";

/// `!qos/` id: a policy of admission.
pub fn qos(id: &str) -> Vec<u8> {
    [QOS, id.as_bytes()].concat()
}

/// The id of a policy.
pub fn qos_id(key: &[u8]) -> Option<String> {
    String::from_utf8(key.strip_prefix(QOS)?.to_vec()).ok()
}

/// Every node that no other one has reached yet.
pub const UNREACHED: &[u8] = b"!unreached/";
/// Every node that is to be removed for good.
pub const REMOVING: &[u8] = b"!removing/";
/// Every node that was removed for good.
pub const REMOVED: &[u8] = b"!removed/";
/// The level of the cluster (R14).
pub const LEVEL: &[u8] = b"!level";
/// What nodes can read (R14).
pub const READS: &[u8] = b"!reads/";

/// Every locked file.
pub const LOCKS: &[u8] = b"!lock/";

/// `!lock/` volume inode: who has locked a file.
pub fn locks(volume: VolumeId, inode: u64) -> Vec<u8> {
    [LOCKS, &volume.0.to_be_bytes(), &inode.to_be_bytes()].concat()
}

/// Volume and inode inside the key of a locked file.
pub fn locks_parts(key: &[u8]) -> Option<(VolumeId, u64)> {
    let rest = key.strip_prefix(LOCKS)?;
    let volume = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?);
    Some((VolumeId(volume), u64::from_be_bytes(rest.get(4..)?.try_into().ok()?)))
}

/// Every tenant.
pub const TENANTS: &[u8] = b"!tenant/";
/// Every project.
pub const PROJECTS: &[u8] = b"!project/";
/// Every user.
pub const USERS: &[u8] = b"!user/";

/// `!tenant/` name: a tenant.
pub fn tenant(name: &str) -> Vec<u8> {
    [TENANTS, name.as_bytes()].concat()
}

/// `!project/` tenant `/` name: a project.
pub fn project(tenant: &str, name: &str) -> Vec<u8> {
    [&projects(tenant)[..], name.as_bytes()].concat()
}

/// Every project of a tenant.
pub fn projects(tenant: &str) -> Vec<u8> {
    [PROJECTS, tenant.as_bytes(), b"/"].concat()
}

/// `!user/` tenant `/` name: a user.
pub fn user(tenant: &str, name: &str) -> Vec<u8> {
    [&users(tenant)[..], name.as_bytes()].concat()
}

/// Every user of a tenant.
pub fn users(tenant: &str) -> Vec<u8> {
    [USERS, tenant.as_bytes(), b"/"].concat()
}

/// Every volume of a tenant that is not the default one.
pub fn volumes_of(tenant: &str) -> Vec<u8> {
    [b"V", tenant.as_bytes(), b"_"].concat()
}

/// The name, or tenant and name, behind such a prefix.
pub fn who_behind<'k>(prefix: &[u8], key: &'k [u8]) -> Option<&'k str> {
    std::str::from_utf8(key.strip_prefix(prefix)?).ok()
}

/// `!unreached/` node: no other node has reached it yet.
pub fn unreached(node: NodeId) -> Vec<u8> {
    [UNREACHED, &node.0].concat()
}

/// `!removing/` node: it is to be removed for good.
pub fn removing(node: NodeId) -> Vec<u8> {
    [REMOVING, &node.0].concat()
}

/// `!removed/` node: it was removed for good.
pub fn removed(node: NodeId) -> Vec<u8> {
    [REMOVED, &node.0].concat()
}

/// The node inside such a key.
pub fn node_behind(prefix: &[u8], key: &[u8]) -> Option<NodeId> {
    Some(NodeId(key.strip_prefix(prefix)?.try_into().ok()?))
}

/// `!reads/` node: what a node can read.
pub fn reads(node: NodeId) -> Vec<u8> {
    [READS, &node.0[..]].concat()
}

/// `!lead/` name: who leads a loop.
pub fn lead(name: &str) -> Vec<u8> {
    [b"!lead/", name.as_bytes(), b"/"].concat()
}

/// `!lead/` name `/beat`: that it lives.
pub fn lead_beat(name: &str) -> Vec<u8> {
    [&lead(name)[..], b"beat"].concat()
}

/// Every job that is not over.
pub const JOBS_ACTIVE: &[u8] = b"!jobs/a/";
/// Every job that is over, as long as it is remembered.
pub const JOBS_OVER: &[u8] = b"!jobs/o/";

/// The windows that jobs have for their checkpoints.
pub const JOBS_WINDOWS: &[u8] = b"!jobwindows";

/// `!jobs/a/` tenant `/` id: a job that is not over.
pub fn job_active(tenant: &str, id: &str) -> Vec<u8> {
    [JOBS_ACTIVE, tenant.as_bytes(), b"/", id.as_bytes()].concat()
}

/// `!jobs/o/` tenant `/` id: a job that is over.
pub fn job_over(tenant: &str, id: &str) -> Vec<u8> {
    [JOBS_OVER, tenant.as_bytes(), b"/", id.as_bytes()].concat()
}

/// `!note/` name: what somebody wrote down for the whole cluster; its pieces stand behind it.
pub fn note(name: &str) -> Vec<u8> {
    [b"!note/", name.as_bytes(), b"/"].concat()
}

/// `!note/` name number: a piece of a note.
pub fn note_piece(name: &str, number: u8) -> Vec<u8> {
    [&note(name)[..], &[number]].concat()
}
