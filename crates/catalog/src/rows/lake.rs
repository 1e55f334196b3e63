//! Rows about the lake.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// Who writes a lake key (R10). Written before the first byte; whoever takes over raises the fence.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LakeKeyRow {
    /// Raised with every claim.
    pub fence: u64,
    /// Session of the claim; all zero if nobody writes.
    pub session: [u8; 16],
    /// Version that is being written; all zero if nobody writes.
    pub version: [u8; 12],
    /// Upload under way in the lake.
    pub upload: Option<String>,
    /// Length of its parts.
    pub part_bytes: u64,
    /// Etag of what we know to be there; none: nothing, or never looked.
    pub etag: Option<String>,
    /// Versions that were sent since the last confirmed state (all zero: a delete). What the lake holds may be any of
    /// them, if an answer was lost.
    pub attempts: Vec<[u8; 12]>,
    /// A request whose end nobody saw may still take effect until then, milliseconds since 1970.
    pub unsettled_until_ms: u64,
    /// That request is a delete.
    pub unsettled_delete: bool,
}

impl RowValue for LakeKeyRow {
    const TABLE: &'static str = "lake keys";
}

/// A lake key where something was sent that nobody confirmed: it is looked at until what is there is known. Most of these rows
/// have no value at all; one with a value is what is left of a key that was deleted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GraveRow {
    /// The key is looked at once more then, by the catalog's clock, milliseconds since 1970.
    pub look_ms: u64,
}

impl RowValue for GraveRow {
    const TABLE: &'static str = "attempts";
}

/// A write that found too few nodes: its bytes go to this lake key before it is published. While the row is there nothing was
/// published. The publish removes it in its own transaction; if the session is over, so does whoever finds it, and leaves a
/// tombstone for what may be there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IntentRow {
    /// Version that is written.
    pub version: [u8; 12],
    /// Session of the node that writes it.
    pub session: [u8; 16],
    /// When it began, milliseconds since 1970.
    pub since_ms: u64,
}

impl RowValue for IntentRow {
    const TABLE: &'static str = "intents";
}

/// A key that is deleted here and not yet in the lake. Hides what the lake still shows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TombstoneRow {
    /// When it was deleted, milliseconds since 1970.
    pub since_ms: u64,
    /// Etag of the object that is to go; none: whatever is there.
    pub etag: Option<String>,
    /// Name record of the delete, to be dropped with this row.
    pub name_record: Option<[u8; 12]>,
}

impl RowValue for TombstoneRow {
    const TABLE: &'static str = "tombstones";
}

/// Pieces of an object that one row of sums tells of.
pub const SUMS_PER_ROW: usize = 4096;

/// Sums of the bytes of a lake object, so that what its lake lost a bit of is known. Drained objects have all of them, written with
/// the transaction that made them clean; others get those of what was read once.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SumsRow {
    /// Of the object that this is about. Of one with another etag the row says nothing.
    pub etag: String,
    /// Bytes of a piece; the same in all rows of an object.
    pub piece_len: u32,
    /// Of each piece of this row how many bytes from its beginning are summed, and their CRC32C; none: 0 bytes.
    pub sums: Vec<(u32, u32)>,
}

impl RowValue for SumsRow {
    const TABLE: &'static str = "lake sums";
}

/// A version that was not drained because the lake holds something else, or refuses it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictRow {
    /// Our version.
    pub version: [u8; 12],
    /// What we expected.
    pub etag_expected: Option<String>,
    /// What is there.
    pub etag_found: Option<String>,
    /// When it was found, milliseconds since 1970.
    pub since_ms: u64,
    /// Why the lake refuses it; none if it holds something else.
    pub refused: Option<String>,
}

impl RowValue for ConflictRow {
    const TABLE: &'static str = "conflicts";
}

/// A renamed thing whose lake keys have to follow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RekeyRow {
    /// When it was renamed, milliseconds since 1970.
    pub since_ms: u64,
    /// Name record of the rename, to be dropped with this row.
    pub name_record: Option<[u8; 12]>,
}

impl RowValue for RekeyRow {
    const TABLE: &'static str = "rekeys";
}

/// The one listing of an owned lake.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ImportRow {
    /// Everything up to this key is in the catalog.
    pub after: Option<Vec<u8>>,
    /// The listing is complete: the catalog is the truth.
    pub done: bool,
}

impl RowValue for ImportRow {
    const TABLE: &'static str = "imports";
}
