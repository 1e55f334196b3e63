//! Runs of equal chunks, the compact form of a file's chunk list.

use crate::error::FormatError;
use crate::ids::VersionId;
use crate::layout::RECORD_LEN_MAX;
use crate::le;

pub(super) const RUN_LEN: usize = 36;

/// Chunks `first_index .. first_index + count` of a version, laid end to end in the file. All are `chunk_len`
/// long but the last.
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
