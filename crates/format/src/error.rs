//! What can be wrong with bytes that claim to be ours.

use std::fmt;

/// Why bytes were not accepted. None of these is a reason to try the same bytes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// Fewer bytes than the structure needs: read more, or the file was cut off.
    Short {
        /// Bytes that are needed at least.
        need: usize,
        /// Bytes that were given.
        have: usize,
    },
    /// The structure is not there at all: an empty, foreign or overwritten place.
    BadMagic,
    /// A newer release wrote this. The bytes are fine; run that release or a later one.
    TooNew {
        /// Version, operation or field number that was found.
        found: u16,
        /// Highest one that this release understands.
        supported: u16,
    },
    /// The checksum does not hold, or it holds and a field has an impossible value. Names the part.
    Corrupt(&'static str),
    /// Intact, and not something this release can work with. Says what.
    Unsupported(String),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { need, have } => write!(f, "cut off: {need} bytes are needed, {have} are there"),
            Self::BadMagic => f.write_str("not a Stoker structure: the magic bytes are missing"),
            Self::TooNew { found, supported } => {
                write!(f, "written by a newer release: found {found}, this one understands up to {supported}")
            }
            Self::Corrupt(what) => write!(f, "damaged: {what}"),
            Self::Unsupported(what) => write!(f, "not supported: {what}"),
        }
    }
}

impl std::error::Error for FormatError {}
