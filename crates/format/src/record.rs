//! The header in front of every payload on a drive, and the only judge of whether bytes are a live record.
//!
//! A header names its own place (ring, generation, offset) and its CRC is seeded with the nonce of the segment
//! generation. So a record of the last lap, a copy of a record inside user data, and a record that a drive wrote
//! to the wrong place are all refused (R1). The CRC also covers the table of block CRCs, so a partial read that
//! agrees with the table is verified (R2).

use crate::checksum::{block_count, crc64_seeded};
use crate::ids::{ChunkId, Generation, KeyId, RingId, Seq, VolumeId};
use crate::layout::{BLOCK, FORMAT_VERSION, GRAIN, RECORD_HEADER_LEN, RECORD_LEN_MAX};
use crate::le;
use std::fmt;

const MAGIC: &[u8; 8] = b"STOKERRC";
const CRC_AT: usize = 120;

/// The number of AES-256-GCM in a header.
pub const CIPHER_AES_256_GCM: u8 = 1;

/// Bytes of an authentication tag: the aux bytes that each block of a sealed record has.
pub const SEAL_TAG_LEN: usize = 16;

/// Aux bytes per block of a record that is sealed, or not.
pub const fn seal_aux(is_sealed: bool) -> u8 {
    if is_sealed { SEAL_TAG_LEN as u8 } else { 0 }
}

/// What opens a sealed payload, beside the key: it travels with the ciphertext to every copy (R15).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Epoch of the volume's data key; never 0.
    pub key: KeyId,
    /// Drawn for each sealing.
    pub salt: [u8; 16],
    /// A tag for each block, laid end to end.
    pub tags: Vec<u8>,
}

impl Seal {
    /// Whether it has a tag for each block of a payload of so many bytes, and names a key.
    pub fn fits(&self, len: usize) -> bool {
        self.key.0 != 0 && self.tags.len() == block_count(len) * SEAL_TAG_LEN
    }
}

/// What the payload of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Bytes of a file.
    Chunk = 1,
    /// A name change, see [`crate::NameRecord`].
    Name = 2,
    /// A list of deaths, see [`crate::Death`].
    Dead = 3,
}

impl RecordKind {
    pub(crate) fn from_u8(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Chunk),
            2 => Some(Self::Name),
            3 => Some(Self::Dead),
            _ => None,
        }
    }
}

/// Properties of a record. Bits that this release does not know are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RecordFlags(pub u32);

impl RecordFlags {
    /// The lake had the bytes when this was written. Only a hint: the catalog decides what is clean.
    pub const CLEAN_HINT: Self = Self(1);
    /// Of a volume that never drains, so reclaim must carry it along.
    pub const NEVER_DRAIN: Self = Self(2);
    /// Someone asked to keep it on flash.
    pub const PINNED: Self = Self(4);
    /// Written by reclaim, not by a user.
    pub const RELOCATED: Self = Self(8);
    /// Bytes were copied although a block failed its CRC. The table keeps the CRCs of the true bytes, so a
    /// reader still sees which block is damaged.
    pub const DAMAGED: Self = Self(16);
    /// The payload is ciphertext of the header's key.
    pub const ENCRYPTED: Self = Self(32);

    /// Tells whether every bit of `flags` is set here.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags and `flags`.
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// These flags, none of `flags`.
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

/// The fixed part of a record. Offsets count from the start of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What the payload is.
    pub kind: RecordKind,
    /// Properties at the time of writing.
    pub flags: RecordFlags,
    /// Ring that the record was written into; part of its identity.
    pub ring: RingId,
    /// Generation of the segment; part of its identity.
    pub generation: Generation,
    /// Where this header lies; part of its identity.
    pub header_offset: u32,
    /// Where the payload lies: behind the header, often several headers later.
    pub payload_offset: u32,
    /// Length of the payload, at most [`RECORD_LEN_MAX`].
    pub len: u32,
    /// Order of appends; the highest of a chunk counts.
    pub seq: Seq,
    /// The chunk; for a name record its version, for a dead list not meaningful.
    pub chunk: ChunkId,
    /// Volume that pays for the space.
    pub volume: VolumeId,
    /// Key of the ciphertext, 0 for plain bytes.
    pub key: KeyId,
    /// Aux bytes that each block has, for authentication tags (R5).
    pub aux_per_block: u8,
    /// CRC32C of the whole payload as stored.
    pub payload_crc: u32,
    /// Algorithm of the ciphertext, 0 for plain bytes.
    pub cipher: u8,
    /// Drawn for each sealing; zero for plain bytes.
    pub salt: [u8; 16],
}

/// Bytes of a header with its table and aux bytes, not rounded.
pub const fn header_len(payload_len: usize, aux_per_block: u8) -> usize {
    RECORD_HEADER_LEN + block_count(payload_len) * (4 + aux_per_block as usize)
}

/// Bytes until the next header may start.
pub const fn header_span(payload_len: usize, aux_per_block: u8) -> usize {
    header_len(payload_len, aux_per_block).next_multiple_of(GRAIN)
}

/// A record that was found intact, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The fixed part.
    pub header: RecordHeader,
    /// CRC32C of each block of the payload.
    pub table: Vec<u32>,
    /// `aux_per_block` bytes for each block, laid end to end.
    pub aux: Vec<u8>,
}

/// Where the reader believes it is; the identity of a record (R1) is checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Ring of the drive.
    pub ring: RingId,
    /// Generation in the segment's header or footer.
    pub generation: Generation,
    /// Nonce of that generation.
    pub nonce: u64,
    /// Where in the segment the bytes were read.
    pub offset: u32,
    /// Bounds the place of the payload.
    pub segment_size: u32,
}

/// Why bytes are not a live record. All but [`Self::Corrupt`] are found before the CRC is checked, so they say
/// what the bytes look like, not what is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// No magic: free space, payload, or padding.
    NotARecord,
    /// Of another ring: the drive was formatted since, or the bytes came with a copied file.
    Foreign,
    /// Of another generation: left from an earlier lap.
    Stale,
    /// It says it lies elsewhere: a misdirected write, or user data that holds a record.
    Misplaced,
    /// Of a format version that this release does not read.
    TooNew(u16),
    /// The table reaches past the given bytes.
    Short {
        /// Bytes from the start of the header that are needed.
        need: usize,
    },
    /// The CRC does not hold, or a field is impossible.
    Corrupt,
}

impl fmt::Display for RecordFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecord => f.write_str("no record here"),
            Self::Foreign => f.write_str("a record of another ring"),
            Self::Stale => f.write_str("a record of another generation of this segment"),
            Self::Misplaced => f.write_str("a record that belongs to another offset"),
            Self::TooNew(version) => write!(f, "a record of format version {version}, from a newer release"),
            Self::Short { need } => write!(f, "a record that is cut off: {need} bytes are needed"),
            Self::Corrupt => f.write_str("a damaged record"),
        }
    }
}

impl std::error::Error for RecordFault {}

impl Record {
    /// The seal of a sealed record; none if its bytes are plain, or sealed in a way that this release does not know.
    pub fn seal(&self) -> Option<Seal> {
        let header = &self.header;
        let is_known = header.flags.contains(RecordFlags::ENCRYPTED)
            && header.cipher == CIPHER_AES_256_GCM
            && usize::from(header.aux_per_block) == SEAL_TAG_LEN;
        let seal = Seal { key: header.key, salt: header.salt, tags: self.aux.clone() };
        is_known.then_some(seal).filter(|seal| seal.fits(header.len as usize))
    }
}

impl RecordHeader {
    /// Writes header, table and aux bytes to the start of `out`, then zeros up to [`header_span`]. Panics if
    /// `out` is shorter, or if table or aux do not fit the payload length.
    pub fn encode(&self, nonce: u64, table: &[u32], aux: &[u8], out: &mut [u8]) {
        let blocks = block_count(self.len as usize);
        assert!(self.len as usize <= RECORD_LEN_MAX, "a payload of {} bytes is too long", self.len);
        assert_eq!(table.len(), blocks, "the table needs one CRC per block");
        assert_eq!(aux.len(), blocks * self.aux_per_block as usize, "aux bytes do not fit the blocks");

        let out = &mut out[..header_span(self.len as usize, self.aux_per_block)];
        let len = header_len(self.len as usize, self.aux_per_block);
        out.fill(0);
        self.put_fixed(out);
        let aux_at = RECORD_HEADER_LEN + 4 * blocks;
        for (slot, crc) in out[RECORD_HEADER_LEN..aux_at].chunks_exact_mut(4).zip(table) {
            slot.copy_from_slice(&crc.to_le_bytes());
        }
        le::put(out, aux_at, aux);
        let crc = record_crc(nonce, &out[..len]);
        le::put(out, CRC_AT, &crc.to_le_bytes());
    }

    /// Decodes the record that lies at the start of `bytes`, which may be longer. Accepts it only if it belongs
    /// exactly to `at`.
    pub fn decode(bytes: &[u8], at: &RecordPlace) -> Result<Record, RecordFault> {
        let fixed = bytes.get(..RECORD_HEADER_LEN).ok_or(RecordFault::Short { need: RECORD_HEADER_LEN })?;
        check_identity(fixed, at)?;
        let header = Self::from_fixed(fixed).ok_or(RecordFault::Corrupt)?;
        if !header.fits(at.segment_size) {
            return Err(RecordFault::Corrupt);
        }
        let need = header_len(header.len as usize, header.aux_per_block);
        let bytes = bytes.get(..need).ok_or(RecordFault::Short { need })?;
        if record_crc(at.nonce, bytes) != le::u64(bytes, CRC_AT) {
            return Err(RecordFault::Corrupt);
        }
        let aux_at = RECORD_HEADER_LEN + 4 * block_count(header.len as usize);
        let table = bytes[RECORD_HEADER_LEN..aux_at].chunks_exact(4).map(|crc| le::u32(crc, 0)).collect();
        Ok(Record { header, table, aux: bytes[aux_at..].to_vec() })
    }

    fn put_fixed(&self, out: &mut [u8]) {
        le::put(out, 0, MAGIC);
        le::put(out, 8, &FORMAT_VERSION.to_le_bytes());
        out[10] = self.kind as u8;
        out[11] = self.aux_per_block;
        le::put(out, 12, &self.flags.0.to_le_bytes());
        le::put(out, 16, &self.ring.0);
        le::put(out, 32, &self.generation.0.to_le_bytes());
        le::put(out, 40, &self.header_offset.to_le_bytes());
        le::put(out, 44, &self.payload_offset.to_le_bytes());
        le::put(out, 48, &self.len.to_le_bytes());
        le::put(out, 56, &self.seq.0.to_le_bytes());
        le::put(out, 64, &self.chunk.to_bytes());
        le::put(out, 80, &self.volume.0.to_le_bytes());
        le::put(out, 84, &self.key.0.to_le_bytes());
        le::put(out, 88, &self.payload_crc.to_le_bytes());
        out[92] = self.cipher;
        le::put(out, 96, &self.salt);
    }

    fn from_fixed(fixed: &[u8]) -> Option<Self> {
        Some(Self {
            kind: RecordKind::from_u8(fixed[10])?,
            aux_per_block: fixed[11],
            flags: RecordFlags(le::u32(fixed, 12)),
            ring: RingId(le::array(fixed, 16)),
            generation: Generation(le::u64(fixed, 32)),
            header_offset: le::u32(fixed, 40),
            payload_offset: le::u32(fixed, 44),
            len: le::u32(fixed, 48),
            seq: Seq(le::u64(fixed, 56)),
            chunk: ChunkId::from_bytes(le::array(fixed, 64)),
            volume: VolumeId(le::u32(fixed, 80)),
            key: KeyId(le::u32(fixed, 84)),
            payload_crc: le::u32(fixed, 88),
            cipher: fixed[92],
            salt: le::array(fixed, 96),
        })
    }

    /// Tells whether the payload lies between the header and the last block of the segment.
    fn fits(&self, segment_size: u32) -> bool {
        let (start, len) = (u64::from(self.payload_offset), u64::from(self.len));
        let header_end =
            u64::from(self.header_offset) + header_len(self.len as usize, self.aux_per_block) as u64;
        self.len as usize <= RECORD_LEN_MAX
            && start >= BLOCK as u64
            && start >= header_end
            && start + len + BLOCK as u64 <= u64::from(segment_size)
    }
}

fn check_identity(fixed: &[u8], at: &RecordPlace) -> Result<(), RecordFault> {
    if &fixed[..8] != MAGIC {
        return Err(RecordFault::NotARecord);
    }
    match le::u16(fixed, 8) {
        0 => return Err(RecordFault::Corrupt),
        1..=FORMAT_VERSION => {}
        newer => return Err(RecordFault::TooNew(newer)),
    }
    if le::array(fixed, 16) != at.ring.0 {
        return Err(RecordFault::Foreign);
    }
    if le::u64(fixed, 32) != at.generation.0 {
        return Err(RecordFault::Stale);
    }
    if le::u32(fixed, 40) != at.offset {
        return Err(RecordFault::Misplaced);
    }
    Ok(())
}

/// CRC over everything but the CRC itself. `bytes` is header, table and aux, without padding. (D3)
fn record_crc(nonce: u64, bytes: &[u8]) -> u64 {
    crc64_seeded(nonce, &[&bytes[..CRC_AT], &bytes[RECORD_HEADER_LEN..]])
}
