//! What a ring promised, as a plain map; every crash image is compared with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use stoker_format::ChunkId;

/// Bytes of a record.
pub type Content = Arc<[u8]>;

/// What must be true of a chunk after a crash at this moment.
#[derive(Clone, Debug)]
pub enum Known {
    /// Acknowledged and must-keep: it is there, byte for byte.
    Present(Content),
    /// Under way, or free to be dropped: there byte for byte, or not there.
    Either(Content),
    /// Its delete was acknowledged: it never comes back.
    Absent,
}

/// Everything that was asked of a ring, and what it answered.
#[derive(Clone, Default)]
pub struct Model {
    chunks: BTreeMap<ChunkId, Known>,
}

impl Model {
    /// What is known of a chunk.
    pub fn get(&self, chunk: &ChunkId) -> Option<&Known> {
        self.chunks.get(chunk)
    }

    /// Notes new knowledge.
    pub fn set(&mut self, chunk: ChunkId, known: Known) {
        self.chunks.insert(chunk, known);
    }

    /// All chunks ever named.
    pub fn iter(&self) -> impl Iterator<Item = (&ChunkId, &Known)> {
        self.chunks.iter()
    }

    /// Chunks whose bytes are known and that may be there.
    pub fn named(&self) -> Vec<ChunkId> {
        self.chunks.iter().filter(|(_, k)| !matches!(k, Known::Absent)).map(|(c, _)| *c).collect()
    }

    /// Bytes of a chunk that may be there.
    pub fn content(&self, chunk: &ChunkId) -> Option<Content> {
        match self.chunks.get(chunk)? {
            Known::Present(content) | Known::Either(content) => Some(content.clone()),
            Known::Absent => None,
        }
    }
}
