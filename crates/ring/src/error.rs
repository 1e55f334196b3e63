//! What can go wrong with a ring, by what the caller should do about it.

use std::fmt;

/// The kind of an error; each says what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorKind {
    /// No such record: look elsewhere (another holder, the lake).
    NotFound,
    /// The request itself is wrong: fix the caller.
    Invalid,
    /// The ring is full of bytes that must stay: wait for drains or deletes, or use another drive.
    Full,
    /// A block failed its CRC: repair from another copy.
    Corrupt,
    /// A write or flush failed and the drive takes no more: re-protect its dirty chunks elsewhere.
    Poisoned,
    /// Another process holds the drive: stop it or choose another drive.
    Locked,
    /// The drive belongs to another ring, cluster or a newer format: do not touch it.
    Foreign,
    /// The operating system refused: see the text (space, permission, device).
    Io,
    /// The ring was closed: open it again.
    Closed,
}

/// An error of a ring, with words for a person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingError {
    /// What to do about it.
    pub kind: ErrorKind,
    /// What happened, and where.
    pub message: String,
}

/// Result of a ring call.
pub type Result<T> = std::result::Result<T, RingError>;

impl RingError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> RingError {
        RingError { kind, message: message.into() }
    }

    pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> RingError {
        let hint = match error.raw_os_error() {
            Some(libc::ENOSPC) => " (no space left: choose a smaller --size or free some)",
            Some(libc::EACCES | libc::EPERM) => " (permission denied: check the owner and mode)",
            _ => "",
        };
        RingError::new(ErrorKind::Io, format!("{what}: {error}{hint}"))
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RingError {}
