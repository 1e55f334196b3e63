//! Changing a file in the middle, and what a file system asks of names.

use serde::{Deserialize, Serialize};
use stoker_format::VersionId;

use crate::file::{Attributes, FileInfo};
use crate::write::Condition;

/// Most pieces of one edit.
pub const EDIT_PIECES_MAX: usize = 10_000;

/// Most bytes of an edit in one call.
pub const EDIT_NOW_LEN_MAX: usize = 256 << 10;

/// Most inodes that are handed out at once.
pub const INODES_MAX: u32 = 1 << 16;

/// Most names of a file.
pub const LINKS_MAX: u32 = 1_000;

/// What [`File::seek`](crate::File::seek) looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Seek {
    /// Bytes that are stored.
    Data,
    /// Zeros that are not; the end of a file counts as such.
    Hole,
}

/// A stretch of a file as an edit leaves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Piece {
    /// These bytes of the base stay.
    Keep {
        /// First byte in the base.
        start: u64,
        /// Behind the last one.
        end: u64,
    },
    /// So many bytes of those that are written.
    Take(u64),
    /// So many zeros. They take no space, unless they are few: such a stretch is a hole.
    Zero(u64),
    /// All bytes that are written from here on. Only at the end.
    Rest,
}

/// A new version of a file, made of the present one and of bytes that follow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EditRequest {
    /// Properties of the new version.
    pub attributes: Attributes,
    /// Checked at the start and again at publish.
    pub condition: Condition,
    /// The version whose bytes are kept. It must be the present one, now and at publish: `Conflict` about `Condition`
    /// otherwise. None if nothing is kept, or if all of a version is that is being published right now: the pieces are one
    /// `Keep` from the front and the `Rest`, and the end of the edit names the version
    /// ([`Writer::finish_on`](crate::Writer::finish_on)).
    #[serde(with = "base_id")]
    pub base: Option<VersionId>,
    /// What the file is made of, from front to back.
    pub pieces: Vec<Piece>,
    /// The number of the file if it is new; one that [`Store::inodes`](crate::Store::inodes) gave.
    pub inode: Option<u64>,
}

impl EditRequest {
    /// How much is kept of a version that only the end of the edit names.
    pub fn late_len(&self) -> Option<u64> {
        match (self.base, self.pieces.as_slice()) {
            (None, [Piece::Keep { start: 0, end }, Piece::Rest]) if *end > 0 => Some(*end),
            _ => None,
        }
    }

    /// How many bytes the writer is given, if that is known.
    pub fn take_len(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0u64, |sum, piece| match piece {
            Piece::Keep { .. } | Piece::Zero(_) => Some(sum),
            Piece::Take(len) => sum.checked_add(*len),
            Piece::Rest => None,
        })
    }
}

/// A directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryInfo {
    /// Its number, which it keeps when it is renamed; [`Store::directory`](crate::Store::directory) finds it by that. 0 if
    /// the catalog does not know it, because only a lake that others write to has it.
    pub inode: u64,
    /// The file with the directory's own key, which ends with `/`: its properties are those of the directory. None if
    /// nobody made the directory and only its contents imply it.
    pub marker: Option<Box<FileInfo>>,
}

/// What a name is. It can be both, as in S3.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Entry {
    /// The file of this key.
    pub file: Option<Box<FileInfo>>,
    /// The directory of this key with a `/` at its end.
    pub directory: Option<DirectoryInfo>,
}

/// Versions inside messages, which are not text.
mod base_id {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use stoker_format::VersionId;

    pub fn serialize<S: Serializer>(version: &Option<VersionId>, serializer: S) -> Result<S::Ok, S::Error> {
        version.map(|version| version.0).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<VersionId>, D::Error> {
        Ok(<Option<[u8; 12]>>::deserialize(deserializer)?.map(VersionId))
    }
}
