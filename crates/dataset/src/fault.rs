//! How packing and sealing fail: always with the path that it is about.

use std::{fmt, io};

use stoker_store::{ErrorKind, Key, StoreError};

/// Why something could not be packed or sealed.
#[derive(Debug)]
pub enum Fault {
    /// Something in Stoker, or what was asked for.
    Store {
        /// Which file, volume or source.
        path: String,
        /// What happened, and what to do.
        error: StoreError,
    },
    /// Something on this machine.
    Io {
        /// Which file.
        path: String,
        /// What the operating system says.
        error: io::Error,
    },
}

/// What came of it.
pub type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// An error of a kind, about a path.
    pub fn new(path: impl Into<String>, kind: ErrorKind, message: impl Into<String>) -> Fault {
        Fault::Store { path: path.into(), error: StoreError::new(kind, message) }
    }

    /// An answer of the door, about a key.
    pub(crate) fn of(volume: &str, key: &Key) -> impl FnOnce(StoreError) -> Fault {
        let path = path_of(volume, key.as_bytes());
        move |error| Fault::Store { path, error }
    }

    /// What the operating system says of a path.
    pub(crate) fn io(path: impl Into<String>) -> impl FnOnce(io::Error) -> Fault {
        let path = path.into();
        move |error| Fault::Io { path, error }
    }

    /// What it is about.
    pub fn path(&self) -> &str {
        match self {
            Fault::Store { path, .. } | Fault::Io { path, .. } => path,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Store { path, error } => write!(f, "{path}: {error}"),
            Fault::Io { path, error } => write!(f, "{path}: {error}"),
        }
    }
}

impl std::error::Error for Fault {}

/// What people call a file.
pub(crate) fn path_of(volume: &str, key: &[u8]) -> String {
    format!("stoker://{volume}/{}", String::from_utf8_lossy(key))
}
