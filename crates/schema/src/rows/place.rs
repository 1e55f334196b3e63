//! Rows about where bytes are, and who may say so.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use stoker_format::{ChunkId, VersionId, VolumeId};

use super::codec::RowValue;
use super::layout::RunRow;

/// An entry refers to a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefRow {}

impl RowValue for RefRow {
    const TABLE: &'static str = "references";
}

/// Undrained bytes on a drive. Re-protection, takeover and "what is at risk" read only these.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirtyRow {
    /// Volume.
    pub volume: u32,
    /// Length of the version.
    pub bytes: u64,
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
    /// Last change, milliseconds since 1970.
    pub changed_ms: u64,
    /// The checkpoint set that it was written for. A drainer leaves it alone while that set's row says open: it has no
    /// name yet, and in the lake a set begins after its publish. Without such a row it is a file like any other.
    pub set: Option<u64>,
    /// Node that owes the drain. (D35)
    pub home: [u8; 16],
}

impl RowValue for DirtyRow {
    const VERSION: u8 = 3;
    const TABLE: &'static str = "dirty";
}

/// A chunk that is not where it should be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MissingChunk {
    /// Version that it was written for.
    pub version: [u8; 12],
    /// Its index.
    pub index: u32,
    /// Bytes of it that are needed.
    pub len: u32,
}

impl MissingChunk {
    /// So many bytes of a chunk.
    pub fn new(chunk: ChunkId, len: u32) -> MissingChunk {
        MissingChunk { version: chunk.version.0, index: chunk.index, len }
    }

    /// Its id.
    pub fn chunk(&self) -> ChunkId {
        ChunkId::new(VersionId(self.version), self.index)
    }
}

/// A node lacks chunks of a version that other rows say it holds: it does not count as a holder until they are back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MissingRow {
    /// Volume.
    pub volume: u32,
    /// Since when that is known, milliseconds since 1970.
    pub since_ms: u64,
    /// What is missing.
    pub chunks: Vec<MissingChunk>,
    /// There is more than the row has room for.
    pub more: bool,
}

impl MissingRow {
    /// Chunks that a row has room for.
    pub const CHUNKS_MAX: usize = 1_000;

    /// A row about these chunks, as far as there is room.
    pub fn new(volume: VolumeId, since_ms: u64, chunks: &[MissingChunk]) -> MissingRow {
        let more = chunks.len() > MissingRow::CHUNKS_MAX;
        let chunks = chunks.iter().take(MissingRow::CHUNKS_MAX).copied().collect();
        MissingRow { volume: volume.0, since_ms, chunks, more }
    }

    /// Takes over what another row of the same version and node says, as far as there is room.
    pub fn add(&mut self, other: &MissingRow) {
        let known: BTreeSet<MissingChunk> = self.chunks.iter().copied().collect();
        self.chunks.extend(other.chunks.iter().filter(|chunk| !known.contains(chunk)));
        self.more |= other.more || self.chunks.len() > MissingRow::CHUNKS_MAX;
        self.chunks.truncate(MissingRow::CHUNKS_MAX);
        self.since_ms = self.since_ms.min(other.since_ms);
    }
}

impl RowValue for MissingRow {
    const TABLE: &'static str = "missing";
}

/// A version that nothing refers to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GarbageRow {
    /// The shares are settled: chunks of `runs` are nobody else's and may go.
    pub settled: bool,
    /// Chunks. The name record of the version goes with them in any case.
    pub runs: Vec<RunRow>,
}

impl GarbageRow {
    /// It stands for the record of a delete, which is marked by a run of no chunks. Releases that do not know the mark find no chunks
    /// in it, and let the record go at once.
    pub fn is_delete_record(&self) -> bool {
        self.runs.iter().any(|run| run.count == 0)
    }
}

impl RowValue for GarbageRow {
    const TABLE: &'static str = "garbage";
}

/// One boot of a node. Publishes check it; writing another one fences this boot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionRow {
    /// Random.
    pub session: [u8; 16],
    /// When it began, milliseconds since 1970.
    pub since_ms: u64,
}

impl RowValue for SessionRow {
    const TABLE: &'static str = "sessions";
}

/// Whether a drive counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DriveState {
    /// Its acknowledgements count.
    Live,
    /// They do not.
    Gone,
}

/// A drive and its life (R6).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DriveRow {
    /// Node that has it.
    pub node: [u8; 16],
    /// Ring on it; formatting anew gives another one.
    pub ring: [u8; 16],
    /// Raised whenever what it acknowledged before may be lost.
    pub incarnation: u64,
    /// Whether it counts.
    pub state: DriveState,
}

impl RowValue for DriveRow {
    const TABLE: &'static str = "drives";
}
