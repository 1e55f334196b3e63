//! The header of a shard: which shard of which stripe some bytes are.
//!
//! A checksum says that bytes are whole, not that they are the right ones. A node that was away may hold a shard of an earlier encoding,
//! and a mistake anywhere may bring a shard of another stripe, all with good checksums. So whoever reads a shard says what it expects, and
//! a shard that is anything else is refused before it is decoded with others.
//!
//! 64 bytes, little-endian: magic, version, `k`, `m`, shard, 3 zeros, chunk id (16), encoding, length of the chunk, CRC32C of the chunk,
//! CRC32C of the shard, 8 zeros, CRC-64/NVME of all before.

use std::fmt;

use stoker_format::{ChunkId, FormatError, crc32c, crc64};

use crate::layout::{CHUNK_LEN_MAX, Layout};
use crate::scheme::Scheme;

/// Length of a header.
pub const SHARD_HEADER_LEN: usize = 64;

const MAGIC: &[u8; 8] = b"STKSHARD";
const VERSION: u16 = 1;
const CRC_AT: usize = SHARD_HEADER_LEN - 8;

/// A stripe: a chunk and one encoding of it. What a layout row knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The chunk.
    pub chunk: ChunkId,
    /// Which encoding of the chunk. Raised whenever it is encoded again; shards of two encodings never fit.
    pub encoding: u32,
    /// The scheme.
    pub scheme: Scheme,
    /// Length of the chunk.
    pub chunk_len: u32,
    /// CRC32C of the chunk, which a decoded chunk must have.
    pub chunk_crc: u32,
}

/// What a shard says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardHeader {
    /// Its stripe.
    pub stripe: Identity,
    /// Its number.
    pub shard: u8,
    /// CRC32C of its bytes, padding included.
    pub crc: u32,
}

/// Why a shard is not the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// It belongs to another chunk.
    Chunk {
        /// The chunk that it belongs to.
        found: ChunkId,
    },
    /// It belongs to an older or a newer encoding of the chunk.
    Encoding {
        /// The one that it belongs to.
        found: u32,
        /// The one that is read.
        expected: u32,
    },
    /// It belongs to a stripe of another scheme.
    Scheme {
        /// The scheme that it belongs to.
        found: Scheme,
    },
    /// It is another shard of the stripe.
    Shard {
        /// Its number.
        found: u8,
    },
    /// Its chunk has the same name, and another length or checksum.
    Content,
    /// Its bytes are more or fewer than a shard of the stripe has.
    Length {
        /// As many as a shard has.
        need: usize,
        /// As many as there are.
        have: usize,
    },
    /// Its bytes do not have its checksum.
    Checksum,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk { found } => write!(f, "a shard of another chunk: {found}"),
            Self::Encoding { found, expected } => {
                write!(f, "a shard of encoding {found} instead of {expected}")
            }
            Self::Scheme { found } => write!(f, "a shard of scheme {found}"),
            Self::Shard { found } => write!(f, "shard {found} of the stripe instead of the expected one"),
            Self::Content => f.write_str("a shard of a chunk of this name with other content"),
            Self::Length { need, have } => write!(f, "a shard of {have} bytes instead of {need}"),
            Self::Checksum => f.write_str("the bytes do not match the shard's checksum"),
        }
    }
}

impl std::error::Error for Misplaced {}

impl ShardHeader {
    /// The header of a shard with these bytes. Panics if the scheme does not have the shard.
    pub fn new(stripe: Identity, shard: usize, bytes: &[u8]) -> Self {
        assert!(shard < stripe.scheme.width(), "shard {shard} of {}", stripe.scheme);
        Self { stripe, shard: shard as u8, crc: crc32c(bytes) }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; SHARD_HEADER_LEN] {
        let mut bytes = [0; SHARD_HEADER_LEN];
        let stripe = &self.stripe;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = stripe.scheme.data() as u8;
        bytes[11] = stripe.scheme.parity() as u8;
        bytes[12] = self.shard;
        bytes[16..32].copy_from_slice(&stripe.chunk.to_bytes());
        for (at, value) in
            [(32, stripe.encoding), (36, stripe.chunk_len), (40, stripe.chunk_crc), (44, self.crc)]
        {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let crc = crc64(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header at the front of bytes from anywhere.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let short = FormatError::Short { need: SHARD_HEADER_LEN, have: bytes.len() };
        let bytes: &[u8; SHARD_HEADER_LEN] = bytes.first_chunk().ok_or(short)?;
        if &bytes[..8] != MAGIC {
            return Err(FormatError::BadMagic);
        }
        if crc64(&bytes[..CRC_AT]).to_le_bytes() != bytes[CRC_AT..] {
            return Err(FormatError::Corrupt("shard header"));
        }
        match u16::from_le_bytes([bytes[8], bytes[9]]) {
            0 => return Err(FormatError::Corrupt("version 0 does not exist")),
            VERSION => {}
            found => return Err(FormatError::TooNew { found, supported: VERSION }),
        }
        if bytes[13..16].iter().chain(&bytes[48..CRC_AT]).any(|&byte| byte != 0) {
            return Err(FormatError::Corrupt("shard header: reserved bytes"));
        }
        let scheme = Scheme::new(usize::from(bytes[10]), usize::from(bytes[11]));
        let scheme = scheme.map_err(|_| FormatError::Corrupt("shard header: scheme"))?;
        let shard = bytes[12];
        if usize::from(shard) >= scheme.width() {
            return Err(FormatError::Corrupt("shard header: number of the shard"));
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let chunk_len = number(36);
        if chunk_len as usize > CHUNK_LEN_MAX {
            return Err(FormatError::Corrupt("shard header: length of the chunk"));
        }
        let mut chunk = [0; 16];
        chunk.copy_from_slice(&bytes[16..32]);
        let chunk = ChunkId::from_bytes(chunk);
        let stripe = Identity { chunk, encoding: number(32), scheme, chunk_len, chunk_crc: number(40) };
        Ok(Self { stripe, shard, crc: number(44) })
    }

    /// Checks that it is this shard of this stripe.
    pub fn check(&self, stripe: &Identity, shard: usize) -> Result<(), Misplaced> {
        let own = &self.stripe;
        if own.chunk != stripe.chunk {
            return Err(Misplaced::Chunk { found: own.chunk });
        }
        if own.encoding != stripe.encoding {
            return Err(Misplaced::Encoding { found: own.encoding, expected: stripe.encoding });
        }
        if own.scheme != stripe.scheme {
            return Err(Misplaced::Scheme { found: own.scheme });
        }
        if usize::from(self.shard) != shard {
            return Err(Misplaced::Shard { found: self.shard });
        }
        if own != stripe { Err(Misplaced::Content) } else { Ok(()) }
    }

    /// Checks the bytes that came with it.
    pub fn check_bytes(&self, bytes: &[u8]) -> Result<(), Misplaced> {
        let need = Layout::new(self.stripe.scheme, self.stripe.chunk_len as usize)
            .map_or(0, |layout| layout.shard_len());
        if bytes.len() != need {
            return Err(Misplaced::Length { need, have: bytes.len() });
        }
        if crc32c(bytes) == self.crc { Ok(()) } else { Err(Misplaced::Checksum) }
    }
}
