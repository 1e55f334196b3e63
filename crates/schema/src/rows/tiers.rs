//! Rows of lakes that have a name, and of copies in a second lake.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;
use crate::level::Level;

/// The level since which lakes have names and volumes have replicas: an older release opens no lake by its name, and would drain to a
/// lake without a note for the replica.
pub const TIERS_SINCE: Level = Level(7);

/// A lake with a name, which the catalog does not look into. Its secret is wrapped (D82).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LakeRow {
    /// Where it is, and the rest.
    pub body: Vec<u8>,
}

impl RowValue for LakeRow {
    const TABLE: &'static str = "lakes";
}

/// How a volume and its second lake stand to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReplicaState {
    /// What is drained to the first lake is copied to the second one.
    Copying,
    /// The second lake is that of the volume now, and rows are being changed to say so: first those of lake keys, then those of files.
    Promoting,
    /// The second lake is that of the volume. The first one is asked for what the second one lacks.
    Promoted,
}

/// The second lake of a volume. Every change of this row changes the row of the volume, too, so that whoever knows an older one of either
/// claims no lake key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaRow {
    /// The lake that copies come from, as the volume had it.
    pub first: String,
    /// The lake that copies go to.
    pub second: String,
    /// How far it is.
    pub state: ReplicaState,
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
}

impl RowValue for ReplicaRow {
    const TABLE: &'static str = "replicas";
}

/// How far the walk over all rows of a volume is that its second lake needs: what was drained before is copied, or what a promotion changes is
/// changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopyWalkRow {
    /// Which table it is in, counted from 0. Behind the last one it is over.
    pub table: u8,
    /// The last row that the walk is through with.
    pub after: Option<Vec<u8>>,
    /// Files that only the first lake has, found by a promotion so far.
    pub lacking_files: u64,
    /// Their bytes.
    pub lacking_bytes: u64,
    /// Files of which the rings had what the second lake lacked, so that they are drained again.
    pub rescued_files: u64,
}

impl RowValue for CopyWalkRow {
    const TABLE: &'static str = "walks for replicas";
}

/// A copy of a lake object in the second lake, and who writes it: the same fence as for the first one (R10).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopyRow {
    /// Raised with every claim.
    pub fence: u64,
    /// Session of the claim; all zero if nobody writes.
    pub session: [u8; 16],
    /// Etag in the first lake of what was copied and confirmed; none: nothing was.
    pub source: Option<String>,
    /// Etag of the copy.
    pub etag: Option<String>,
    /// Its length.
    pub size: u64,
    /// Upload under way.
    pub upload: Option<String>,
    /// Versions that were sent since the last confirmed state: what is there may be any of them.
    pub attempts: Vec<String>,
    /// A request whose end nobody saw may still take effect until then, by the catalog's clock.
    pub unsettled_until_ms: u64,
    /// Something that this cluster did not write is there, with this etag: it stays.
    pub foreign: Option<String>,
}

impl RowValue for CopyRow {
    const TABLE: &'static str = "copies";
}

/// A lake key whose copy may be behind. Written with the claim on the key, before the first lake is changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CopyWorkRow {
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
    /// Bytes to copy, as far as whoever wrote this knew.
    pub bytes: u64,
}

impl RowValue for CopyWorkRow {
    const TABLE: &'static str = "copies to make";
}

/// A file that the promoted lake lacks: only the former one has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LackingRow {
    /// Its version.
    pub version: [u8; 12],
    /// Etag in the former lake.
    pub etag: String,
    /// Length.
    pub size: u64,
    /// When it was written, milliseconds since 1970.
    pub modified_ms: u64,
}

impl RowValue for LackingRow {
    const TABLE: &'static str = "lacking files";
}

/// A set of rules that move files, and how far its run is. The catalog does not look into it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicyRow {
    /// The rules and the rest.
    pub body: Vec<u8>,
}

impl RowValue for PolicyRow {
    const TABLE: &'static str = "policies";
}

/// When a file was opened last, coarsely.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SeenRow {
    /// Hours since 1970.
    pub hour: u32,
}

impl RowValue for SeenRow {
    const TABLE: &'static str = "files that were opened";
}
