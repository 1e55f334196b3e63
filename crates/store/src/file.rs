//! What is known of a file.

use serde::{Deserialize, Serialize};
use stoker_format::VersionId;

use crate::error::{ErrorKind, Result, StoreError};
use crate::key::Key;
use crate::past::{Lock, VersionInfo};

/// Names of user metadata that begin with this are our own: in the lake they carry what a bucket has no place for, and nodes
/// act upon them.
pub const META_PREFIX: &str = "stoker-";

/// Those of them that clients write. They say which shard of which set a file is, or what a tool made it from; nothing that a
/// node acts upon without asking who says it.
const META_OF_CLIENTS: [&str; 4] = ["stoker-set", "stoker-shard", "stoker-seal", "stoker-pack"];

/// Whether a name of user metadata is one that only we write.
pub fn is_meta_reserved(name: &str) -> bool {
    let has_prefix =
        name.get(..META_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(META_PREFIX));
    has_prefix && !META_OF_CLIENTS.contains(&name)
}

/// Properties that a user gives a file; they travel to the lake with it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// MIME type.
    pub content_type: Option<String>,
    /// Other standard headers (`cache-control`, `content-disposition`, `content-encoding`, `content-language`,
    /// `expires`), names in lower case.
    pub headers: Vec<(String, String)>,
    /// S3 user metadata without the `x-amz-meta-` prefix, names in lower case.
    pub meta: Vec<(String, String)>,
    /// S3 object tags.
    pub tags: Vec<(String, String)>,
    /// POSIX mode with file type, if somebody set one.
    pub mode: Option<u32>,
    /// Owner and group, if somebody set them.
    pub owner: Option<(u32, u32)>,
    /// Modification time in nanoseconds since 1970 if a user set one.
    pub mtime_ns: Option<i64>,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What is to hold the version that is written with them. It is no property, and in no encoding.
    #[serde(skip)]
    pub lock: Option<Lock>,
}

impl Attributes {
    /// Refuses what no user may give a file: in the lake it would pass for what we say of it.
    pub fn check(&self) -> Result<()> {
        let Some((name, _)) = self.meta.iter().find(|(name, _)| is_meta_reserved(name)) else {
            return Ok(());
        };
        let shown: String = name.chars().take(64).collect();
        let message = format!(
            "metadata `{shown}`: names that begin with `{META_PREFIX}` are reserved; use another one"
        );
        Err(StoreError::new(ErrorKind::Invalid, message))
    }
}

/// A checksum algorithm of S3.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum ChecksumKind {
    /// CRC-32 (ISO-HDLC).
    Crc32 = 1,
    /// CRC-32C (Castagnoli).
    Crc32c = 2,
    /// CRC-64/NVME; every file has this one.
    Crc64Nvme = 3,
    /// SHA-1.
    Sha1 = 4,
    /// SHA-256.
    Sha256 = 5,
}

/// A checksum of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Checksum {
    /// Algorithm.
    pub kind: ChecksumKind,
    /// Big-endian bytes, as S3 puts them in base64.
    pub value: Vec<u8>,
    /// Parts it is composed of; 0 for a checksum of the whole file.
    pub parts: u32,
}

/// How far a file is on its way to the lake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Not there yet; will be.
    Dirty,
    /// There, confirmed.
    Clean,
    /// The volume keeps it to itself.
    Never,
    /// Somebody else changed the lake; waits for `stoker conflict resolve`.
    Conflict,
}

/// A version of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileInfo {
    /// Name.
    pub key: Key,
    /// Length in bytes.
    pub size: u64,
    /// S3 ETag without quotes, fixed at publish.
    pub etag: String,
    /// Time of publish in milliseconds since 1970.
    pub modified_ms: u64,
    /// Identity of the content.
    #[serde(with = "crate::id_text")]
    pub version: VersionId,
    /// Number of the file; stays when content or name change.
    pub inode: u64,
    /// User properties.
    pub attributes: Attributes,
    /// Checksums of the whole; the first is CRC-64/NVME where it is known.
    pub checksums: Vec<Checksum>,
    /// Length of each part if it was uploaded in parts, else empty.
    pub part_sizes: Vec<u64>,
    /// On its way to the lake.
    pub drain: DrainState,
    /// Names of the file; 0 if it has or had several and nobody counted them. Not in the encoding, which older clients know:
    /// a message that can tell has it beside.
    #[serde(skip, default = "one")]
    pub links: u32,
    /// Bytes that are stored, if the file has holes; none if all are. Not in the encoding either, for the same reason.
    #[serde(skip)]
    pub allocated: Option<u64>,
    /// Which version it is, if its volume keeps versions. Not in the encoding.
    #[serde(skip)]
    pub past: Option<VersionInfo>,
    /// When it expires by the rules of its volume, as far as whoever tells of it knows them. Not in the encoding.
    #[serde(skip)]
    pub expires: Option<Expires>,
}

/// When a file expires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expires {
    /// From this moment on, milliseconds since 1970.
    pub at_ms: u64,
    /// Name of the rule.
    pub rule: String,
}

impl FileInfo {
    /// Bytes that are stored: all but those in holes.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.map_or(self.size, |allocated| allocated.min(self.size))
    }
}

fn one() -> u32 {
    1
}
