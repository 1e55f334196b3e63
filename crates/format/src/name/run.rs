//! Runs of equal chunks, the compact form of a file's chunk list.

use crate::error::FormatError;
use crate::ids::VersionId;
use crate::layout::RECORD_LEN_MAX;
use crate::le;

pub(super) const RUN_LEN: usize = 36;

/// Length of the pieces that a hole is counted in.
const HOLE_PIECE: u32 = 4 << 20;

/// Chunks `first_index .. first_index + count` of a version, laid end to end in the file. All are `chunk_len`
/// long but the last. A run of no version (all zero, which no version is) is a hole: as many zeros, stored nowhere.
/// Chunks whose index has [`ChunkRun::SPILLED`] are spilled: on no drive, but in an object of the lake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRun {
    /// Where in the file the first chunk begins.
    pub file_offset: u64,
    /// Version that the chunks were written for; a copy by reference names another one than its own.
    pub version: VersionId,
    /// Index of the first chunk.
    pub first_index: u32,
    /// Number of chunks, at least one.
    pub count: u32,
    /// Length of each chunk but the last.
    pub chunk_len: u32,
    /// Length of the last chunk, at most `chunk_len`.
    pub last_len: u32,
}

impl ChunkRun {
    /// Longest hole: more than the longest file.
    pub const HOLE_LEN_MAX: u64 = u32::MAX as u64 * HOLE_PIECE as u64;

    /// A hole of so many bytes.
    pub fn hole(file_offset: u64, len: u64) -> ChunkRun {
        assert!((1..=ChunkRun::HOLE_LEN_MAX).contains(&len), "a hole of {len} bytes");
        let count = len.div_ceil(u64::from(HOLE_PIECE));
        let last_len = len - (count - 1) * u64::from(HOLE_PIECE);
        ChunkRun {
            file_offset,
            version: VersionId::ZERO,
            first_index: 0,
            count: count as u32,
            chunk_len: HOLE_PIECE,
            last_len: last_len as u32,
        }
    }

    /// The bit of an index that says that the chunk went to the lake before it was published. No file has so many chunks.
    pub const SPILLED: u32 = 1 << 31;

    /// Whether these chunks went to the lake before they were published, and are on no drive.
    pub fn is_spilled(&self) -> bool {
        !self.is_hole() && self.first_index & ChunkRun::SPILLED != 0
    }

    /// The same chunks as those of a file that is all in the lake under its own name.
    pub fn unspilled(self) -> ChunkRun {
        match self.is_spilled() {
            true => ChunkRun { first_index: self.first_index & !ChunkRun::SPILLED, ..self },
            false => self,
        }
    }

    /// Whether these are zeros that are stored nowhere.
    pub fn is_hole(&self) -> bool {
        self.version.is_zero()
    }

    /// Where the run ends in the file.
    pub fn end(&self) -> u64 {
        self.file_offset + self.byte_len()
    }

    /// Bytes of the file that the run covers.
    pub fn byte_len(&self) -> u64 {
        u64::from(self.count).saturating_sub(1) * u64::from(self.chunk_len) + u64::from(self.last_len)
    }

    /// Refuses runs whose sums overflow, so that nobody downstream has to.
    pub(super) fn check(&self) -> Result<(), FormatError> {
        let possible = self.count >= 1
            && self.last_len <= self.chunk_len
            && self.chunk_len as usize <= RECORD_LEN_MAX
            && self.first_index.checked_add(self.count).is_some()
            && self.file_offset.checked_add(self.byte_len()).is_some();
        possible.then_some(()).ok_or(FormatError::Corrupt("a name record has an impossible run of chunks"))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.file_offset.to_le_bytes());
        out.extend_from_slice(&self.version.0);
        out.extend_from_slice(&self.first_index.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.chunk_len.to_le_bytes());
        out.extend_from_slice(&self.last_len.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            file_offset: le::u64(bytes, 0),
            version: VersionId(le::array(bytes, 8)),
            first_index: le::u32(bytes, 20),
            count: le::u32(bytes, 24),
            chunk_len: le::u32(bytes, 28),
            last_len: le::u32(bytes, 32),
        }
    }
}
