//! What can go wrong in a catalog, sorted by what the caller does about it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of a catalog call.
pub type Result<T> = std::result::Result<T, CatalogError>;

/// Why a call failed: what to do, and what happened in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogError {
    /// What the caller does about it.
    pub kind: ErrorKind,
    /// What happened, and what a person could do about it.
    pub message: String,
}

/// What the caller does about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ErrorKind {
    /// The catalog cannot be reached or is too busy; nothing was changed. Retry later.
    Unavailable,
    /// A commit was sent and its answer was lost: it may have happened, now or not at all.
    /// Resolve by reading the rows that it would have written; never repeat it blindly.
    Unknown,
    /// The call breaks a limit or makes no sense; nothing was changed. Fix the caller.
    Invalid,
    /// Stored bytes are damaged. Do not retry; restore a backup or rebuild from the rings.
    Corrupt,
    /// The store belongs to another cluster or to a newer version. Do not touch it; fix the configuration
    /// or update the program.
    Foreign,
    /// This catalog was closed. Open it again or stop.
    Closed,
}

/// What a catalog says that lacks the standbys it needs.
const STALLED: &str = "too few standbys of the catalog answer; bring one back, or detach it";

impl CatalogError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> CatalogError {
        CatalogError { kind, message: message.into() }
    }

    /// Nothing was changed; retry later.
    pub fn unavailable(message: impl Into<String>) -> CatalogError {
        CatalogError::new(ErrorKind::Unavailable, message)
    }

    /// Nothing was changed, since nothing can be acknowledged.
    pub fn stalled() -> CatalogError {
        CatalogError::unavailable(STALLED)
    }

    /// Whether a catalog said that it can acknowledge nothing. Told by its words, which every release says like this.
    pub fn is_stalled(&self) -> bool {
        self.kind == ErrorKind::Unavailable
            && self.message.starts_with("too few standbys of the catalog answer")
    }

    /// A commit whose outcome nobody knows.
    pub fn unknown(message: impl Into<String>) -> CatalogError {
        CatalogError::new(ErrorKind::Unknown, message)
    }

    /// The call breaks a limit or makes no sense.
    pub fn invalid(message: impl Into<String>) -> CatalogError {
        CatalogError::new(ErrorKind::Invalid, message)
    }

    /// Stored bytes are damaged.
    pub fn corrupt(message: impl Into<String>) -> CatalogError {
        CatalogError::new(ErrorKind::Corrupt, message)
    }

    /// The store belongs to another cluster or to a newer version.
    pub fn foreign(message: impl Into<String>) -> CatalogError {
        CatalogError::new(ErrorKind::Foreign, message)
    }

    /// This catalog was closed.
    pub fn closed() -> CatalogError {
        CatalogError::new(ErrorKind::Closed, "the catalog is closed; open it again")
    }
}

impl ErrorKind {
    /// The kind as one lower-case word, for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Unknown => "unknown",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Foreign => "foreign",
            ErrorKind::Closed => "closed",
        }
    }
}

impl fmt::Display for CatalogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "catalog {}: {}", self.kind.name(), self.message)
    }
}

impl std::error::Error for CatalogError {}
