//! Listing a volume.

use serde::{Deserialize, Serialize};

use crate::file::FileInfo;
use crate::key::Key;

/// What to list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ListRequest {
    /// Only keys that start with these bytes.
    pub prefix: Vec<u8>,
    /// Keys that share the bytes up to this delimiter behind the prefix are shown once, as a prefix. Any bytes.
    pub delimiter: Option<Vec<u8>>,
    /// Only keys (and prefixes) strictly after this, in byte order.
    pub after: Option<Vec<u8>>,
    /// At most this many entries; capped at 1,000.
    pub limit: usize,
}

/// One line of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ListEntry {
    /// A file.
    File(Box<FileInfo>),
    /// Keys that start with these bytes; they end with the delimiter.
    Prefix(Vec<u8>),
}

impl ListEntry {
    /// What the entry sorts by.
    pub fn name(&self) -> &[u8] {
        match self {
            ListEntry::File(info) => info.key.as_bytes(),
            ListEntry::Prefix(prefix) => prefix,
        }
    }

    /// The key of a file.
    pub fn key(&self) -> Option<&Key> {
        match self {
            ListEntry::File(info) => Some(&info.key),
            ListEntry::Prefix(_) => None,
        }
    }
}

/// Entries in byte order.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ListPage {
    /// Files and prefixes.
    pub entries: Vec<ListEntry>,
    /// More follows: go on with `after` = the last entry's name.
    pub more: bool,
}
