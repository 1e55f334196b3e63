//! What became of versions that their names no longer tell.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// What became of a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// Its name has another version now.
    Replaced {
        /// It had reached the lake by then.
        drained: bool,
    },
    /// Its name was deleted.
    Removed {
        /// It had reached the lake by then.
        drained: bool,
    },
    /// It reached the lake.
    Drained,
    /// Its bytes are lost.
    Lost,
}

/// The end of a version's story. The sequence at which it ended is that of the row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReceiptRow {
    /// What became of it.
    pub fate: Fate,
    /// When, milliseconds since 1970.
    pub at_ms: u64,
}

impl RowValue for ReceiptRow {
    const TABLE: &'static str = "receipts";
}
