//! Entries of directories.

use serde::{Deserialize, Serialize};
use stoker_format::{DriveId, NodeId, VersionId};

use super::codec::RowValue;
use super::layout::Layout;

/// A drive that acknowledged chunks of a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HolderRow {
    /// Node.
    pub node: [u8; 16],
    /// Drive.
    pub drive: [u8; 16],
    /// Life of the drive that acknowledged.
    pub incarnation: u64,
}

impl HolderRow {
    /// Names a holder.
    pub fn new(node: NodeId, drive: DriveId, incarnation: u64) -> HolderRow {
        HolderRow { node: node.0, drive: drive.0, incarnation }
    }
}

/// Where a file is in the lake, confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LakeRef {
    /// Key, relative to the volume's root in the lake; after a rename not the path of the file.
    pub key: Vec<u8>,
    /// Etag of the object.
    pub etag: String,
}

/// A lake object of another file that an undrained copy still needs (R11).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceRef {
    /// Volume of the object.
    pub volume: u32,
    /// Key, relative to that volume's root in the lake.
    pub key: Vec<u8>,
    /// Etag of the object.
    pub etag: String,
}

/// How far a reference is on its way to the lake (R11: it belongs to the reference, not to the chunks).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Drain {
    /// To be drained.
    Dirty,
    /// Confirmed in the lake.
    Clean,
    /// Not to be drained.
    Never,
    /// The lake holds something else than expected.
    Conflict,
}

/// A file: its present version and where that is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileRow {
    /// Number of the file.
    pub inode: u64,
    /// Content.
    pub version: [u8; 12],
    /// Length.
    pub size: u64,
    /// S3 ETag.
    pub etag: String,
    /// When it was published, milliseconds since 1970.
    pub modified_ms: u64,
    /// CRC-64/NVME of the content, if it is known.
    pub crc64: Option<u64>,
    /// How the content is cut into chunks.
    pub layout: Layout,
    /// Who holds chunks that are not drained.
    pub holders: Vec<HolderRow>,
    /// On its way to the lake.
    pub drain: Drain,
    /// Where it is in the lake: this version if clean, otherwise what is to be replaced there.
    pub lake: Option<LakeRef>,
    /// Where its bytes are in the lake if not under its own key yet: it is a copy of a drained file.
    pub source: Option<SourceRef>,
    /// Oldest change that is not in the lake, milliseconds since 1970; 0 if clean.
    pub dirty_since_ms: u64,
    /// Publishes of this name so far.
    pub publishes: u32,
    /// The record of this name on a drive, if it is not that of the version: a second name of the same content.
    pub name_record: Option<[u8; 12]>,
    /// Properties that the catalog does not look into.
    pub properties: Vec<u8>,
    /// Node that owes the drain: the last one that changed the file. All zero if nobody does.
    pub home: [u8; 16],
}

impl FileRow {
    /// Content.
    pub fn version(&self) -> VersionId {
        VersionId(self.version)
    }
}

/// What an entry is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EntryRow {
    /// A file.
    File(Box<FileRow>),
    /// A directory, by its inode.
    Directory(u64),
}

impl RowValue for EntryRow {
    const VERSION: u8 = 2;
    const TABLE: &'static str = "entries";
}

/// Where a directory hangs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirRow {
    /// Directory that holds it.
    pub parent: u64,
    /// Its name there, with the `/` at its end.
    pub name: Vec<u8>,
}

impl RowValue for DirRow {
    const TABLE: &'static str = "directories";
}
