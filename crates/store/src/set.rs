//! Checkpoint sets: shards that become visible together or not at all.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, Result, StoreError, Subject};
use crate::file::{Attributes, DrainState};
use crate::key::Key;
use crate::upload::{PartChoice, UploadId};
use crate::write::Finish;

/// Name of the file that says in the lake that a set is whole; no shard can have it. (D36)
pub const SET_MARKER: &str = "_STOKER_SET.json";

/// How long a set may take if nobody said.
pub const SET_DEADLINE_S_DEFAULT: u32 = 3_600;

/// Longest time that a set may take.
pub const SET_DEADLINE_S_MAX: u32 = 30 * 24 * 3_600;

/// Longest name of an owner or writer, in bytes.
pub const SET_OWNER_LEN_MAX: usize = 256;

/// Laggards that are named; how many there are is always told.
pub const SET_LAGGARDS_MAX: usize = 1_000;

/// Names a set inside its volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SetId(pub u64);

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for SetId {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<SetId> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        number.map(SetId).ok_or_else(|| {
            let message = "the id of a checkpoint set is a number, as `begin` gave it";
            StoreError::about(ErrorKind::Invalid, Subject::Set, message)
        })
    }
}

/// A set that is to be gathered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetRequest {
    /// Directory that it will be, with its `/`. Nothing may have that name.
    pub target: Key,
    /// Who gathers it. Beginning it again as the same owner gives the set that is open for this directory; as another
    /// one it is refused.
    pub owner: String,
    /// How many shards it has; they are numbered from 0.
    pub shards: u32,
    /// It is given up if it is not published after so many seconds; none for an hour.
    pub deadline_s: Option<u32>,
}

/// A shard that is to be written.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ShardRequest {
    /// Which of the shards it is, from 0. An earlier one of that number is replaced.
    pub number: u32,
    /// Who writes it, for people: a rank and its host, say.
    pub writer: String,
    /// Properties.
    pub attributes: Attributes,
    /// Length if it is known.
    pub size: Option<u64>,
}

/// A shard that was uploaded in parts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardUpload {
    /// Which of the shards it is, from 0.
    pub number: u32,
    /// Who wrote it, for people.
    pub writer: String,
    /// The upload.
    pub upload: UploadId,
    /// Its parts, in this order.
    pub parts: Vec<PartChoice>,
    /// A checksum of the whole to be checked or kept.
    pub finish: Finish,
}

/// How far a set is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SetState {
    /// Takes shards, shows nothing.
    Open,
    /// All its shards are visible.
    Published,
    /// Somebody gave it up.
    Aborted,
    /// Its deadline passed before it was published.
    Expired,
}

/// A checkpoint set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetInfo {
    /// Volume.
    pub volume: String,
    /// Id.
    pub set: SetId,
    /// How far it is.
    pub state: SetState,
    /// Directory: where it is now if it is published, where it will be otherwise. With its `/`.
    pub path: Key,
    /// Who gathers it.
    pub owner: String,
    /// How many shards it has when it is whole.
    pub shards: u32,
    /// When it was begun, milliseconds since 1970.
    pub begun_ms: u64,
    /// When it is given up, milliseconds since 1970 by the catalog's clock.
    pub deadline_ms: u64,
    /// When it was published or given up, milliseconds since 1970; 0 while it is open.
    pub closed_ms: u64,
    /// Catalog sequence of the publish; 0 if it is not published. The higher one is the later one.
    pub seq: u64,
}

/// A set and what is there of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetStatus {
    /// The set.
    pub info: SetInfo,
    /// Shards that were acknowledged.
    pub present: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Numbers of shards that lack, the first [`SET_LAGGARDS_MAX`] of them.
    pub laggards: Vec<u32>,
    /// Whether the whole of it, marker and all, is in the lake.
    pub drain: DrainState,
}

/// Sets in the order in which they were begun.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetsPage {
    /// Sets.
    pub sets: Vec<SetInfo>,
    /// More follow: go on behind the last one.
    pub more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_numbers() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(text.parse::<SetId>().ok(), expect.map(SetId), "{text:?}");
        };
        check("0", Some(0));
        check("18446744073709551615", Some(u64::MAX));
        check("18446744073709551616", None);
        check("", None);
        check("+1", None);
        check("-1", None);
        check(" 1", None);
        check("0x1", None);
    }
}
