//! Keys of encrypted volumes, as operators see them: never the keys.

use serde::{Deserialize, Serialize};

/// The data keys of an encrypted volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataKeysInfo {
    /// The volume.
    pub volume: String,
    /// The algorithm.
    pub cipher: String,
    /// Ascending; the last one encrypts what is new. None once they were destroyed.
    pub epochs: Vec<DataKeyInfo>,
    /// When they were destroyed, milliseconds since 1970, if they were.
    pub destroyed_ms: Option<u64>,
    /// Why the node that was asked cannot open them, if so.
    pub locked: Option<String>,
}

/// A data key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DataKeyInfo {
    /// Its number.
    pub epoch: u32,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// The name of the key-encryption key that wraps it.
    pub kek: String,
}
