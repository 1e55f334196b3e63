//! What is placed, as one number.

use stoker_format::{ChunkId, VersionId};

use super::score::mix;

/// The thing to place, well mixed. A version is placed like its first chunk, so a small file and its name record
/// share their nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub(super) u64);

impl From<ChunkId> for Key {
    fn from(chunk: ChunkId) -> Key {
        Key(fold(chunk.to_bytes()))
    }
}

impl From<VersionId> for Key {
    fn from(version: VersionId) -> Key {
        ChunkId::new(version, 0).into()
    }
}

/// Sixteen bytes to a number in which every bit depends on every byte.
pub(super) fn fold(bytes: [u8; 16]) -> u64 {
    let whole = u128::from_le_bytes(bytes);
    mix(whole as u64 ^ mix((whole >> 64) as u64))
}
