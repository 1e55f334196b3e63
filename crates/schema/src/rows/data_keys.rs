//! Keys of encrypted volumes, as the catalog has them: wrapped.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// The level since which there are encrypted volumes: what an older release reads of one it would take for plain bytes.
pub const ENCRYPTED_SINCE: crate::level::Level = crate::level::Level(4);

/// The data keys of an encrypted volume. A volume has this row from its first moment on, or never.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataKeysRow {
    /// Ascending; the last one seals what is new.
    pub epochs: Vec<DataKeyRow>,
}

/// A data key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataKeyRow {
    /// Its number; never 0.
    pub epoch: u32,
    /// By a key-encryption key.
    pub wrapped: Vec<u8>,
    /// The name of that one.
    pub kek: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
}

impl RowValue for DataKeysRow {
    const TABLE: &'static str = "data keys";
}

/// The data keys of a volume were destroyed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DestroyedKeysRow {
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// How many there were.
    pub epochs: u32,
}

impl RowValue for DestroyedKeysRow {
    const TABLE: &'static str = "destroyed data keys";
}
