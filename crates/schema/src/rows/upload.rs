//! Multipart uploads.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;
use super::entry::HolderRow;
use super::layout::RunRow;

/// An upload under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UploadRow {
    /// When it began, milliseconds since 1970.
    pub begun_ms: u64,
    /// Properties of the file to be, which the catalog does not look into.
    pub properties: Vec<u8>,
}

impl RowValue for UploadRow {
    const TABLE: &'static str = "uploads";
}

/// An upload that was completed: a client whose answer was lost may ask again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CompletedRow {
    /// Volume.
    pub volume: u32,
    /// Key.
    pub key: Vec<u8>,
    /// What it became.
    pub version: [u8; 12],
    /// When, milliseconds since 1970.
    pub since_ms: u64,
}

impl RowValue for CompletedRow {
    const TABLE: &'static str = "completed uploads";
}

/// What was answered when an upload was completed, for a client that asks again after the file was replaced or deleted. A row of its
/// own and not fields of [`CompletedRow`], so that releases which do not know it read the rest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnswerRow {
    /// ETag.
    pub etag: String,
    /// Length.
    pub size: u64,
    /// CRC-64/NVME, if it is known.
    pub crc64: Option<u64>,
    /// Checksums, which the catalog does not look into.
    pub properties: Vec<u8>,
    /// When, milliseconds since 1970.
    pub since_ms: u64,
}

impl RowValue for AnswerRow {
    const TABLE: &'static str = "answers of completed uploads";
}

/// A part that was acknowledged: a reference to its chunks (R7).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartRow {
    /// Version that its own chunks were written for.
    pub version: [u8; 12],
    /// Length.
    pub size: u64,
    /// ETag.
    pub etag: String,
    /// CRC-64/NVME, if it is known.
    pub crc64: Option<u64>,
    /// When, milliseconds since 1970.
    pub modified_ms: u64,
    /// Chunks.
    pub runs: Vec<RunRow>,
    /// Who holds them.
    pub holders: Vec<HolderRow>,
    /// Checksums, which the catalog does not look into.
    pub properties: Vec<u8>,
}

impl RowValue for PartRow {
    const TABLE: &'static str = "parts";
}
