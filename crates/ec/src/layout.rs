//! Where the bytes of a chunk lie in the data shards of its stripe.
//!
//! A chunk is cut into `k` pieces one behind the other, so that a small range of it lies in one shard. All shards have one length, a
//! multiple of [`SHARD_UNIT`]; what the chunk does not fill is zeros.

use std::ops::Range;

use crate::error::Error;
use crate::scheme::Scheme;

/// Lengths of shards are multiples of it, so that kernels work on whole vectors.
pub const SHARD_UNIT: usize = 64;
/// The longest chunk.
pub const CHUNK_LEN_MAX: usize = 1 << 30;

/// A chunk of some length in a stripe of some scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    scheme: Scheme,
    chunk_len: usize,
}

/// A part of a chunk that lies in one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The data shard.
    pub shard: usize,
    /// Place in the shard.
    pub range: Range<usize>,
    /// Where it begins in the chunk.
    pub chunk_at: usize,
}

impl Piece {
    /// Place in the chunk.
    pub fn chunk_range(&self) -> Range<usize> {
        self.chunk_at..self.chunk_at + self.range.len()
    }
}

impl Layout {
    /// The layout of a chunk of at most [`CHUNK_LEN_MAX`] bytes.
    pub fn new(scheme: Scheme, chunk_len: usize) -> Result<Self, Error> {
        if chunk_len > CHUNK_LEN_MAX {
            Err(Error::ChunkLength(chunk_len))
        } else {
            Ok(Self { scheme, chunk_len })
        }
    }

    /// Its scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Length of the chunk.
    pub fn chunk_len(&self) -> usize {
        self.chunk_len
    }

    /// Length of each shard.
    pub fn shard_len(&self) -> usize {
        self.chunk_len.div_ceil(self.scheme.data()).next_multiple_of(SHARD_UNIT)
    }

    /// Bytes of a shard that are bytes of the chunk; zeros follow. Parity is never shorter than its shard.
    pub fn filled(&self, shard: usize) -> usize {
        if shard >= self.scheme.data() {
            return self.shard_len();
        }
        self.chunk_len.saturating_sub(shard * self.shard_len()).min(self.shard_len())
    }

    /// Zeros behind the chunk, in its last data shards.
    pub fn padding(&self) -> usize {
        self.shard_len() * self.scheme.data() - self.chunk_len
    }

    /// The shards of a range of the chunk, in order.
    pub fn pieces(&self, range: Range<usize>) -> Result<impl Iterator<Item = Piece> + use<>, Error> {
        if range.start > range.end || range.end > self.chunk_len {
            return Err(Error::Range { range, chunk_len: self.chunk_len });
        }
        // An empty chunk has shards of no length.
        let shard_len = self.shard_len().max(1);
        let shards = range.start / shard_len..range.end.div_ceil(shard_len);
        let piece = move |shard| {
            let begins = shard * shard_len;
            let (from, to) = (range.start.max(begins), range.end.min(begins + shard_len));
            Piece { shard, range: from - begins..to - begins, chunk_at: from }
        };
        Ok(shards.map(piece).filter(|piece| !piece.range.is_empty()))
    }

    /// Cuts a chunk into its data shards: those bytes of each that are in the chunk. Panics if the chunk has another length.
    pub fn split<'c>(&self, chunk: &'c [u8]) -> Vec<&'c [u8]> {
        assert_eq!(chunk.len(), self.chunk_len, "a chunk of another length");
        let shard_len = self.shard_len();
        let begin = |shard: usize| (shard * shard_len).min(chunk.len());
        (0..self.scheme.data()).map(|shard| &chunk[begin(shard)..begin(shard + 1)]).collect()
    }

    /// Where a byte of a shard lies in the chunk; `None` for padding and parity.
    pub fn chunk_at(&self, shard: usize, at: usize) -> Option<usize> {
        let inside = shard < self.scheme.data() && at < self.filled(shard);
        inside.then(|| shard * self.shard_len() + at)
    }
}
