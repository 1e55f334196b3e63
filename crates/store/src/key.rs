//! Names of files inside a volume.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError};

/// Longest key in bytes that S3 and lakes know.
pub const KEY_LEN_MAX: usize = 1024;

/// Longest name of a file in bytes: a path as POSIX has it, with the `/` of a directory. What is longer than [`KEY_LEN_MAX`] is made by
/// file systems alone, and does not drain.
pub const PATH_LEN_MAX: usize = 4096;

/// The full name of a file in its volume: bytes, with `/` between directories. `a/b` and `a//b`, `a` and `a/` are
/// different keys, as in S3.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Key(Vec<u8>);

impl Key {
    /// Takes a key; refuses empty ones, ones over [`PATH_LEN_MAX`] bytes and ones with a NUL byte.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Key> {
        let bytes = bytes.into();
        let fault = if bytes.is_empty() {
            "a key cannot be empty".to_owned()
        } else if bytes.len() > PATH_LEN_MAX {
            format!("a key has at most {PATH_LEN_MAX} bytes, this one has {}", bytes.len())
        } else if bytes.contains(&0) {
            "a key cannot contain a NUL byte".to_owned()
        } else {
            return Ok(Key(bytes));
        };
        Err(StoreError::new(ErrorKind::Invalid, fault))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The key as text if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}
