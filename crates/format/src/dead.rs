//! The payload of a dead record: which chunks no longer live in this ring.
//!
//! A death is durable before the space is reused (R8). It names a sequence number and not a record, because
//! reclaim may have moved the record, and because a chunk that dies may be written again later.

use crate::error::FormatError;
use crate::ids::{ChunkId, Seq};
use crate::le;

/// Bytes of one death in a dead list.
pub const DEATH_LEN: usize = 24;

/// Every record of `chunk` with a sequence number lower than `below` is dead. (D4)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Death {
    /// The chunk that died.
    pub chunk: ChunkId,
    /// Records from this one on are alive.
    pub below: Seq,
}

/// Encodes a dead list, in the given order.
pub fn encode_deaths(deaths: &[Death]) -> Vec<u8> {
    let mut out = Vec::with_capacity(deaths.len() * DEATH_LEN);
    for death in deaths {
        out.extend_from_slice(&death.chunk.to_bytes());
        out.extend_from_slice(&death.below.0.to_le_bytes());
    }
    out
}

/// Decodes a dead list. The bytes must be a verified payload: the list has no checksum of its own.
pub fn decode_deaths(bytes: &[u8]) -> Result<Vec<Death>, FormatError> {
    if !bytes.len().is_multiple_of(DEATH_LEN) {
        return Err(FormatError::Corrupt("a dead list ends in the middle of an entry"));
    }
    Ok(bytes.chunks_exact(DEATH_LEN).map(decode_death).collect())
}

fn decode_death(entry: &[u8]) -> Death {
    Death { chunk: ChunkId::from_bytes(le::array(entry, 0)), below: Seq(le::u64(entry, 16)) }
}
