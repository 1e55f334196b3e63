//! Checkpoint sets: shards that become visible together or not at all.

use serde::{Deserialize, Serialize};
use stoker_format::VersionId;

use super::codec::RowValue;

/// Why a set was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Abort {
    /// Somebody said so.
    Asked,
    /// Its deadline passed while it was open.
    Deadline,
}

/// How far a set is. From open it goes to one of the others, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetState {
    /// Takes shards, shows nothing.
    Open,
    /// All shards are visible. The row is never written again, so the commit that wrote it is the publish.
    Published,
    /// Takes no shards, will never be seen.
    Aborted(Abort),
}

/// A checkpoint set. Its id is the inode of the directory that its shards are in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetRow {
    /// How far it is.
    pub state: SetState,
    /// Who began it, in the words of the door.
    pub owner: String,
    /// Directory that it is published as, with its `/`. A later rename is not told here.
    pub target: Vec<u8>,
    /// Shards without which it is not published; they are numbered from 0.
    pub expected: u32,
    /// When it is given up if still open, milliseconds since 1970 by the catalog's clock.
    pub deadline_ms: u64,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: u64,
    /// When it stopped being open, milliseconds since 1970; 0 while it is.
    pub closed_ms: u64,
    /// Whether it goes to the lake once published.
    pub drains: bool,
}

impl RowValue for SetRow {
    const TABLE: &'static str = "checkpoint sets";
}

/// The set that gathers for a target. At most one does, so that all ranks find the same one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenSetRow {
    /// The set.
    pub set: u64,
}

impl RowValue for OpenSetRow {
    const TABLE: &'static str = "open sets";
}

/// What is still to be done for a set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetWork {
    /// Give it up after its deadline.
    Expire {
        /// Deadline, milliseconds since 1970.
        deadline_ms: u64,
    },
    /// It was aborted: its shards have to become garbage.
    Clear,
    /// Its shards are gone; late ones still have to hear that it was aborted.
    Remember {
        /// Until then, milliseconds since 1970.
        until_ms: u64,
    },
    /// It was published: its shards go to the lake, and when the last one is there, its marker.
    Drain,
}

impl RowValue for SetWork {
    const TABLE: &'static str = "set work";
}

/// A shard that was acknowledged. The chunks are those of its file row, which no key leads to before the publish.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardRow {
    /// Directory of its file row.
    pub parent: u64,
    /// Name in it.
    pub name: Vec<u8>,
    /// Content.
    pub version: [u8; 12],
    /// Length.
    pub size: u64,
    /// CRC-64/NVME of the content, if it is known.
    pub crc64: Option<u64>,
    /// Node that accepted it.
    pub node: [u8; 16],
    /// Boot of that node.
    pub session: [u8; 16],
    /// Who wrote it, in the words of the door: a rank and its host, say.
    pub writer: String,
    /// When, milliseconds since 1970.
    pub added_ms: u64,
}

impl ShardRow {
    /// Content.
    pub fn version(&self) -> VersionId {
        VersionId(self.version)
    }
}

impl RowValue for ShardRow {
    const TABLE: &'static str = "shards";
}
