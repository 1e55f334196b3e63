//! Lists of chunks, and what follows from them.

use stoker_format::{ChunkId, ChunkRun, NodeId, VersionId};
use stoker_schema::rows::{DriveRow, DriveState, Layout};

/// Index of the record that carries a version's name; no file has that many chunks.
pub const NAME_INDEX: u32 = u32::MAX;

/// The ids of a layout's chunks with their lengths, as far as drives are to have them: not those of holes, nor spilled ones.
pub fn chunks(runs: &[ChunkRun]) -> impl Iterator<Item = (ChunkId, u32)> + '_ {
    placed_chunks(runs).map(|(_, chunk, len)| (chunk, len))
}

/// The same, with the place of each chunk in the file.
pub fn placed_chunks(runs: &[ChunkRun]) -> impl Iterator<Item = (u64, ChunkId, u32)> + '_ {
    runs.iter().filter(|run| !run.is_hole() && !run.is_spilled()).flat_map(|run| {
        (0..run.count).map(|at| {
            let len = if at + 1 == run.count { run.last_len } else { run.chunk_len };
            let start = run.file_offset + u64::from(at) * u64::from(run.chunk_len);
            (start, ChunkId::new(run.version, run.first_index + at), len)
        })
    })
}

/// Versions other than its own whose chunks a layout uses.
pub fn owners(runs: &[ChunkRun], own: VersionId) -> Vec<VersionId> {
    let others = runs.iter().filter(|run| !run.is_hole() && run.version != own);
    let mut owners: Vec<_> = others.map(|run| run.version).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Lengths of the chunks written so far, as runs.
#[derive(Clone, Default, Debug)]
pub struct RunList {
    runs: Vec<ChunkRun>,
    size: u64,
}

impl RunList {
    /// Adds chunk `index` of `version`.
    pub fn push(&mut self, version: VersionId, index: u32, len: u32) {
        if let Some(run) = self.runs.last_mut()
            && run.version == version
            && run.first_index + run.count == index
            && run.last_len == run.chunk_len
            && len <= run.chunk_len
        {
            run.count += 1;
            run.last_len = len;
        } else {
            self.runs.push(ChunkRun {
                file_offset: self.size,
                version,
                first_index: index,
                count: 1,
                chunk_len: len,
                last_len: len,
            });
        }
        self.size += u64::from(len);
    }

    /// Adds a whole run behind what is there. Holes grow together.
    pub fn push_run(&mut self, run: &ChunkRun) {
        let both = |last: &ChunkRun| last.byte_len() + run.byte_len();
        let fits = |last: &&mut ChunkRun| (1..=ChunkRun::HOLE_LEN_MAX).contains(&both(last));
        match self.runs.last_mut().filter(|last| last.is_hole() && run.is_hole()).filter(fits) {
            Some(last) => *last = ChunkRun::hole(last.file_offset, both(last)),
            None => self.runs.push(ChunkRun { file_offset: self.size, ..*run }),
        }
        self.size += run.byte_len();
    }

    /// Bytes that are not in holes.
    pub fn allocated(&self) -> u64 {
        self.runs.iter().filter(|run| !run.is_hole()).map(ChunkRun::byte_len).sum()
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The runs, in their order.
    pub fn runs(&self) -> &[ChunkRun] {
        &self.runs
    }

    /// The layout: simple if one run of the version itself says it all.
    pub fn layout(&self, version: VersionId) -> Layout {
        match self.runs.as_slice() {
            [] => Layout::Simple { chunk_len: 1 },
            [run] if run.version == version && run.first_index == 0 => {
                Layout::Simple { chunk_len: run.chunk_len }
            }
            _ => self.rows_layout(),
        }
    }

    /// The layout of a list that has rows of its own in any case.
    pub fn rows_layout(&self) -> Layout {
        match self.runs.iter().any(ChunkRun::is_hole) {
            true => Layout::Sparse { allocated: self.allocated() },
            false => Layout::Rows,
        }
    }
}

/// The row of a live drive.
pub fn drive_row(node: NodeId, ring: [u8; 16], incarnation: u64) -> DriveRow {
    DriveRow { node: node.0, ring, incarnation, state: DriveState::Live }
}
