//! Requests that change names.

use serde::{Deserialize, Serialize};

use crate::file::{Attributes, Checksum};
use crate::key::Key;

/// Etags that no file has. Beside `*` they say what else must hold: releases that do not know them take them for nothing.
const WITHIN: &str = "stoker:within";
const EMPTY: &str = "stoker:empty";

/// What must hold for a request to go ahead. All parts must hold; the default always does.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Condition {
    /// The file exists and has one of these etags (`*` for any).
    pub if_match: Option<Vec<String>>,
    /// The file does not exist, or has none of these etags (`*`: does not exist).
    pub if_none_match: Option<Vec<String>>,
}

impl Condition {
    /// The file must not exist.
    pub fn absent() -> Condition {
        Condition { if_none_match: Some(vec!["*".to_owned()]), ..Condition::default() }
    }

    /// The same of a file in a directory that must be there: none is made on the way to it.
    pub fn absent_within() -> Condition {
        Condition { if_none_match: Some(vec!["*".to_owned(), WITHIN.to_owned()]), ..Condition::default() }
    }

    /// The file is that of a directory, its key ends with `/`, and nothing else is in the directory.
    pub fn empty_directory() -> Condition {
        Condition { if_match: Some(vec!["*".to_owned(), EMPTY.to_owned()]), ..Condition::default() }
    }

    /// Whether the directory of the file must be there.
    pub fn is_within(&self) -> bool {
        self.if_none_match.as_ref().is_some_and(|list| list.iter().any(|want| want == WITHIN))
    }

    /// Whether nothing else may be in the directory.
    pub fn is_empty_directory(&self) -> bool {
        self.if_match.as_ref().is_some_and(|list| list.iter().any(|want| want == EMPTY))
    }

    /// True if there is nothing to check.
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// Whether a file with this etag (none: no file) satisfies the condition.
    pub fn holds(&self, etag: Option<&str>) -> bool {
        let named =
            |list: &[String]| etag.is_some_and(|etag| list.iter().any(|want| want == "*" || want == etag));
        self.if_match.as_deref().is_none_or(named) && !self.if_none_match.as_deref().is_some_and(named)
    }
}

/// A file to be written.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WriteRequest {
    /// Properties.
    pub attributes: Attributes,
    /// Checked at the start, to spare useless work, and again at publish.
    pub condition: Condition,
    /// Length if it is known; shapes buffers, and quota is checked early.
    pub size: Option<u64>,
    /// Bytes are added behind those of the present version instead of replacing them.
    pub append: bool,
}

/// What is known only when all bytes are written.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Finish {
    /// Checksums that the caller computed or checked itself, to be kept with the file.
    pub checksums: Vec<Checksum>,
    /// ETag to use instead of one of our own: the MD5, where the caller had to compute it.
    pub etag: Option<String>,
}

/// A copy by reference.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyRequest {
    /// Volume of the source.
    pub from_volume: String,
    /// Source.
    pub from: Key,
    /// Must hold for the source.
    pub from_condition: Condition,
    /// Volume of the copy.
    pub to_volume: String,
    /// The copy.
    pub to: Key,
    /// Must hold for what the copy replaces.
    pub condition: Condition,
    /// Properties of the copy; none: those of the source.
    pub attributes: Option<Attributes>,
}

/// What a rename does when the target exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replaces a file (never a directory with entries).
    #[default]
    Replace,
    /// Fails.
    NoReplace,
    /// Both names swap what they are. Keys of directories end with `/`; if only one does, the directory gets the name of the
    /// file with a `/`, and the file that of the directory without.
    Exchange {
        /// What is under the first key must have this number: an exchange that is asked for again, because the answer was
        /// lost, is not undone. None for any.
        inode: Option<u64>,
    },
}

/// A change of properties; what is `None` stays.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AttributesChange {
    /// All S3 tags.
    pub tags: Option<Vec<(String, String)>>,
    /// Mode.
    pub mode: Option<u32>,
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Modification time.
    pub mtime_ns: Option<i64>,
    /// Extended attributes to set (`Some`) or remove (`None`).
    pub xattrs: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_directories_must_be_is_nothing_to_older_releases() {
        let within = Condition::absent_within();
        assert!(within.is_within() && !within.is_empty_directory());
        assert!(within.holds(None) && !within.holds(Some("etag")));
        let empty = Condition::empty_directory();
        assert!(empty.is_empty_directory() && !empty.is_within());
        assert!(empty.holds(Some("etag")) && !empty.holds(None));
        assert!(!Condition::absent().is_within() && !Condition::default().is_empty_directory());
    }
}
