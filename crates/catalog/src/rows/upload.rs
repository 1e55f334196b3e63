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

/// A part that was acknowledged: a reference to its chunks (R7).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartRow {
    /// Version that its own chunks were written for.
    pub version: [u8; 12],
    /// Length.
    pub size: u64,
    /// ETag.
    pub etag: String,
    /// CRC-64/NVME.
    pub crc64: u64,
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
