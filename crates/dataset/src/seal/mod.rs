//! The seal: one file that says where every sample of a dataset lies. Its bytes are drawn in `docs/seal.md`.
//!
//! Written once, read from memory as it is: who has opened a seal asks nobody any more where a sample is.

mod names;
mod reader;
mod writer;

pub use reader::{Sample, Seal};
pub use writer::{Pieces, SealWriter, Sealed};

use serde::{Deserialize, Serialize};
use stoker_store::{ErrorKind, StoreError};

const MAGIC: &[u8; 8] = b"STKRSEAL";
const VERSION: u32 = 1;
const FLAG_NAMES: u32 = 1;
const FLAG_TAR: u32 = 2;
const HEADER_LEN: usize = 128;
const HEADER_CRC_AT: usize = 120;
const CRC_LEN: usize = 8;
/// Where the places of the five sections begin: offset and length each.
const SECTIONS_AT: usize = 40;
const SECTIONS: usize = 5;
const ALIGN: u64 = 64;
/// Samples start at multiples of this.
const GRAIN: u64 = 512;

/// Most samples.
pub const SAMPLES_MAX: u64 = u32::MAX as u64;
/// Most shards.
pub const SHARDS_MAX: u64 = 1_000_000;
/// Longest list of shards in bytes.
pub const SHARDS_LEN_MAX: u64 = 256 << 20;
/// Longest sample.
pub const SAMPLE_LEN_MAX: u64 = u32::MAX as u64;
/// Longest shard.
pub const SHARD_LEN_MAX: u64 = (u32::MAX as u64 + 1) * GRAIN;
/// Longest name of a sample.
pub const NAME_LEN_MAX: usize = 4096;

/// A file that holds samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardRow {
    /// Its key in the volume.
    pub key: String,
    /// Its length.
    pub size: u64,
    /// The version that was sealed, as receipts print it.
    pub version: String,
    /// Its etag.
    pub etag: String,
}

/// The section of shards.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Shards {
    volume: String,
    shards: Vec<ShardRow>,
    /// Who made it, and what they wanted to say.
    #[serde(default)]
    made: serde_json::Value,
}

fn damaged(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("no sound seal: {what}"))
}

fn beyond(what: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, what)
}

/// The identity of a dataset as people see it.
pub fn identity_text(identity: u64) -> String {
    format!("{identity:016x}")
}

#[cfg(test)]
mod tests;
