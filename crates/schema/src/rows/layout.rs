//! How a file's bytes are cut into chunks.

use serde::{Deserialize, Serialize};
use stoker_format::{ChunkRun, VersionId};

use super::codec::RowValue;

/// Runs in one row: such a row stays below 64 KiB.
pub const RUNS_PER_ROW: usize = 1_500;

/// Where the list of chunks is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Layout {
    /// Chunks 0, 1, 2 … of the version itself, all this long but the last. No row of its own. (D17)
    Simple {
        /// Length of a chunk.
        chunk_len: u32,
    },
    /// In rows of the version.
    Rows,
    /// In rows of the version, with holes between the chunks.
    Sparse {
        /// Bytes of the file that are not in holes.
        allocated: u64,
    },
}

impl Layout {
    /// Whether the chunks are in rows of the version.
    pub fn has_rows(&self) -> bool {
        !matches!(self, Layout::Simple { .. })
    }
}

/// A run of equal chunks, or a hole; where it lies in the file follows from the runs before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunRow {
    /// Version that the chunks were written for; all zero for a hole.
    pub version: [u8; 12],
    /// Index of the first chunk.
    pub first_index: u32,
    /// Chunks.
    pub count: u32,
    /// Length of each chunk but the last.
    pub chunk_len: u32,
    /// Bytes of the last chunk that belong to the file.
    pub last_len: u32,
}

impl RunRow {
    /// A run of no chunks: a mark in a row of garbage.
    pub fn nothing(version: VersionId) -> RunRow {
        RunRow { version: version.0, first_index: 0, count: 0, chunk_len: 0, last_len: 0 }
    }

    /// Whether these are zeros that are stored nowhere. (D83)
    pub fn is_hole(&self) -> bool {
        VersionId(self.version).is_zero()
    }

    /// The run at a place in the file.
    pub fn at(&self, file_offset: u64) -> ChunkRun {
        ChunkRun {
            file_offset,
            version: VersionId(self.version),
            first_index: self.first_index,
            count: self.count,
            chunk_len: self.chunk_len,
            last_len: self.last_len,
        }
    }
}

impl From<&ChunkRun> for RunRow {
    fn from(run: &ChunkRun) -> RunRow {
        RunRow {
            version: run.version.0,
            first_index: run.first_index,
            count: run.count,
            chunk_len: run.chunk_len,
            last_len: run.last_len,
        }
    }
}

/// A part of a version's layout. Part 0 says how many there are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VersionRow {
    /// Rows of this layout.
    pub rows: u16,
    /// Runs of equally long parts that it was uploaded in: length and how many. Only in part 0.
    pub upload_parts: Vec<(u64, u32)>,
    /// Runs of this row.
    pub runs: Vec<RunRow>,
}

impl RowValue for VersionRow {
    const TABLE: &'static str = "versions";
}

impl VersionRow {
    /// Cuts a layout into rows.
    pub fn split(runs: &[ChunkRun], upload_parts: Vec<(u64, u32)>) -> Vec<VersionRow> {
        let groups: Vec<&[ChunkRun]> = runs.chunks(RUNS_PER_ROW).collect();
        let rows = groups.len().max(1) as u16;
        let mut out: Vec<VersionRow> = groups
            .iter()
            .map(|group| VersionRow {
                rows,
                upload_parts: Vec::new(),
                runs: group.iter().map(RunRow::from).collect(),
            })
            .collect();
        if out.is_empty() {
            out.push(VersionRow { rows, upload_parts: Vec::new(), runs: Vec::new() });
        }
        out[0].upload_parts = upload_parts;
        out
    }

    /// Puts runs one behind the other.
    pub fn join<'r>(rows: impl Iterator<Item = &'r VersionRow>) -> Vec<ChunkRun> {
        let mut offset = 0;
        rows.flat_map(|row| &row.runs)
            .map(|run| {
                let run = run.at(offset);
                offset += run.byte_len();
                run
            })
            .collect()
    }
}
