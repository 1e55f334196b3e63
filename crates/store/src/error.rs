//! How the door says no.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the caller should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// It is not there. Do not retry.
    NotFound,
    /// Somebody else was first, or a condition does not hold. Read again, then decide.
    Conflict,
    /// A limit is reached: ring full of undrained bytes, quota. Wait, then retry.
    Full,
    /// Catalog, lake or drive does not answer now. Retry; if it lasts, look at the node.
    Unavailable,
    /// The caller may not do this. Fix the key or the policy.
    Denied,
    /// The request makes no sense. Fix it.
    Invalid,
    /// Stored bytes are damaged and no other copy could be read. Page someone.
    Corrupt,
    /// The node is stopping. Retry elsewhere.
    Closed,
}

/// What the error is about, for protocols that tell these apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// A key, or the request as a whole.
    Key,
    /// A volume.
    Volume,
    /// A volume that still holds keys.
    VolumeContents,
    /// A multipart upload.
    Upload,
    /// A part of an upload: missing or of another etag.
    Part,
    /// Parts that are not in ascending order.
    PartOrder,
    /// A part that is too small to be followed by another.
    PartSize,
    /// A condition of the caller (If-Match and the like).
    Condition,
    /// A checksum that the caller gave.
    Checksum,
    /// Size of the file against a limit.
    Size,
    /// The quota of a volume.
    Quota,
    /// The lake behind a volume.
    Lake,
    /// An access key.
    AccessKey,
    /// A checkpoint set.
    Set,
    /// The names of a file against their limit.
    Links,
    /// The catalog, where names are.
    Catalog,
    /// A node of the cluster.
    Node,
    /// The address where other nodes reach this one.
    PeerAddress,
    /// A standby of the catalog that is to be promoted.
    Promotion,
    /// A chunk that no drive has which was asked.
    Chunk,
    /// Nodes that took copies of what is written.
    Holders,
    /// What a copy is made of.
    Source,
    /// The id of a version.
    Version,
    /// What holds a version.
    Lock,
}

/// An error of the door.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoreError {
    /// What to do.
    pub kind: ErrorKind,
    /// What it is about.
    pub subject: Subject,
    /// For a person: what happened, and what to do about it.
    pub message: String,
}

impl StoreError {
    /// An error about a key or the request.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> StoreError {
        StoreError { kind, subject: Subject::Key, message: message.into() }
    }

    /// An error about something in particular.
    pub fn about(kind: ErrorKind, subject: Subject, message: impl Into<String>) -> StoreError {
        StoreError { kind, subject, message: message.into() }
    }

    /// Whether a change may have been made in spite of this error.
    pub fn is_unknown(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Closed)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

/// Result of a call through the door.
pub type Result<T> = std::result::Result<T, StoreError>;
