//! Rows about the lake.

use serde::{Deserialize, Serialize};

use super::codec::RowValue;

/// Who writes a lake key (R10). Written before the first byte; whoever takes over raises the fence. (D20)
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

/// Chunks of a version that went to the lake before it was published, because the rings have no room for all of it: one object,
/// in which every chunk begins at a multiple of the same length. Written by the publish; goes when no file needs the chunks any
/// more, and leaves a tombstone for the object then.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpillRow {
    /// Volume whose lake has the object.
    pub volume: u32,
    /// Lake key of the object.
    pub key: Vec<u8>,
    /// Its etag.
    pub etag: String,
    /// Number of the first chunk in it, without the bit that says that it is spilled.
    pub first: u32,
    /// Chunks in it.
    pub count: u32,
    /// From the beginning of a chunk to that of the next one.
    pub stride: u32,
    /// Chunks that nothing refers to any more, as the first and the one behind the last, in order.
    pub gone: Vec<(u32, u32)>,
}

impl RowValue for SpillRow {
    const TABLE: &'static str = "spills";
}

impl SpillRow {
    /// Where a chunk of the version begins in the object; none if it is not there.
    pub fn offset(&self, index: u32) -> Option<u64> {
        let at = (index & !stoker_format::ChunkRun::SPILLED).checked_sub(self.first)?;
        (at < self.count).then(|| u64::from(at) * u64::from(self.stride))
    }

    /// Takes note of chunks that nothing refers to any more; true if none is left.
    pub fn forget(&mut self, first: u32, count: u32) -> bool {
        let first = first & !stoker_format::ChunkRun::SPILLED;
        self.gone.push((first, first.saturating_add(count)));
        self.gone.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (start, end) in self.gone.drain(..) {
            match joined.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        self.gone = joined;
        let all = (self.first, self.first.saturating_add(self.count));
        self.gone.iter().any(|(start, end)| *start <= all.0 && *end >= all.1)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_format::ChunkRun;

    #[test]
    fn an_object_of_spilled_chunks_goes_with_the_last_of_them() {
        let mut row = SpillRow {
            volume: 1,
            key: b"k".to_vec(),
            etag: "e".into(),
            first: 3,
            count: 10,
            stride: 100,
            gone: Vec::new(),
        };
        let at = |index| row.offset(index | ChunkRun::SPILLED);
        assert_eq!((at(2), at(3), at(12), at(13)), (None, Some(0), Some(900), None));
        for (first, count, is_over) in
            [(5, 2, false), (5, 2, false), (9, 4, false), (3, 1, false), (7, 2, false), (4, 1, true)]
        {
            assert_eq!(
                row.forget(first | ChunkRun::SPILLED, count),
                is_over,
                "{first} {count} {:?}",
                row.gone
            );
        }
        assert_eq!(row.gone, [(3, 13)]);
        assert_eq!(SpillRow::decode(&row.encode()).unwrap(), row);
    }
}
