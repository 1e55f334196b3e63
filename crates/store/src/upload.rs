//! Multipart uploads.

use serde::{Deserialize, Serialize};

use crate::file::{Attributes, Checksum, ChecksumKind};
use crate::key::Key;

/// Names an upload; opaque text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct UploadId(pub String);

/// An upload that is under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UploadInfo {
    /// Name of the file to be.
    pub key: Key,
    /// Id.
    pub upload: UploadId,
    /// When it began, milliseconds since 1970.
    pub begun_ms: u64,
    /// Properties of the file to be.
    pub attributes: Attributes,
    /// Checksum that the client announced for its parts.
    pub checksum: Option<ChecksumKind>,
    /// The checksum of the whole will be one of all bytes, not of those of the parts. Not in the encoding, which older clients know.
    #[serde(skip)]
    pub is_full: bool,
}

/// Uploads in order of key and id.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UploadsPage {
    /// Uploads.
    pub uploads: Vec<UploadInfo>,
    /// More follow.
    pub more: bool,
}

/// A part that was acknowledged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartInfo {
    /// 1 to 10,000.
    pub number: u32,
    /// Length.
    pub size: u64,
    /// ETag without quotes.
    pub etag: String,
    /// When, milliseconds since 1970.
    pub modified_ms: u64,
    /// Checksums of the part.
    pub checksums: Vec<Checksum>,
}

/// Parts in order of number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartsPage {
    /// The upload.
    pub upload: UploadInfo,
    /// Parts.
    pub parts: Vec<PartInfo>,
    /// More follow.
    pub more: bool,
}

/// A part that a completion asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartChoice {
    /// Number.
    pub number: u32,
    /// ETag that the client saw, without quotes.
    pub etag: String,
    /// Checksum that the client saw, if it sent one.
    pub checksum: Option<Checksum>,
}
