//! The answer to a write.

use serde::{Deserialize, Serialize};
use stoker_format::{DriveId, NodeId, VersionId};

use crate::file::{Checksum, DrainState};
use crate::volume::Class;

/// A drive that holds chunks of a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Node, as 32 hex digits.
    pub node: String,
    /// Drive, as 32 hex digits.
    pub drive: String,
    /// Life of the drive that acknowledged.
    pub incarnation: u64,
}

impl Holder {
    /// Names a holder.
    pub fn new(node: NodeId, drive: DriveId, incarnation: u64) -> Holder {
        Holder { node: node.to_string(), drive: drive.to_string(), incarnation }
    }
}

/// What a write reached. Says what is true at the moment it is made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// Volume.
    pub volume: String,
    /// Key, lossily as text.
    pub key: String,
    /// Identity of the content; ask for the receipt again with it.
    #[serde(with = "crate::id_text")]
    pub version: VersionId,
    /// Length.
    pub size: u64,
    /// S3 ETag without quotes.
    pub etag: String,
    /// Checksums of the whole.
    pub checksums: Vec<Checksum>,
    /// Class that the volume asks for.
    pub class: Class,
    /// Durable copies of each byte, on different nodes; of a large file more nodes may hold something.
    pub copies: u32,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Catalog sequence of the publish.
    pub seq: u64,
    /// On its way to the lake.
    pub drain: DrainState,
    /// Where it is or will be in the lake.
    pub lake: Option<String>,
    /// Etag that the lake gave, once it is there.
    pub lake_etag: Option<String>,
    /// The id of the version, if its volume keeps versions. Not in the encoding.
    #[serde(skip)]
    pub version_id: Option<String>,
}

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Awaited {
    /// Durable on as many drives as the class says.
    Committed,
    /// Confirmed in the lake.
    Drained,
}
