//! Rows about where bytes are, and who may say so.

use serde::{Deserialize, Serialize};

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
    /// Node that owes the drain.
    pub home: [u8; 16],
}

impl RowValue for DirtyRow {
    const VERSION: u8 = 3;
    const TABLE: &'static str = "dirty";
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
