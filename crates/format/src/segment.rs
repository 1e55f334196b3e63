//! The first block of every segment: whose it is, which generation, and the nonce that its records are bound to.
//!
//! Losing it would lose every record of an open segment, because without the nonce none can be verified. So
//! while a segment is free or open a second copy lies in its last block, where the footer goes on closing.

use crate::error::FormatError;
use crate::ids::{Generation, KeyId, RingId, SegmentId, Seq, VolumeId};
use crate::layout::{BLOCK, FORMAT_VERSION, segment_size_is_valid};
use crate::le;

const MAGIC: &[u8; 8] = b"STOKERSG";
const FLAG_LEASABLE: u32 = 1;

/// What recovery may expect in a segment without a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentState {
    /// Nothing of this generation was written; recovery need not scan.
    Free = 1,
    /// May hold records. A footer in the last block means that it was closed since.
    Open = 2,
}

/// Who writes into a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// Nobody yet: the segment is free.
    None = 0,
    /// User writes, staging, names.
    User = 1,
    /// Reclaim, out of its reserve.
    Relocation = 2,
}

impl SegmentKind {
    pub(crate) fn from_u8(kind: u8) -> Result<Self, FormatError> {
        match kind {
            0 => Ok(Self::None),
            1 => Ok(Self::User),
            2 => Ok(Self::Relocation),
            _ => Err(FormatError::Corrupt("a segment kind that does not exist")),
        }
    }
}

/// Identity of one generation of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Free or open; closed is what a footer says.
    pub state: SegmentState,
    /// Who writes into it.
    pub kind: SegmentKind,
    /// Its descriptor may be given to local readers, so it holds one volume only (R4).
    pub leasable: bool,
    /// Ring that the segment belongs to.
    pub ring: RingId,
    /// Its place in the ring; a segment file under a wrong name is found by it.
    pub segment: SegmentId,
    /// The one volume that it holds, 0 for many.
    pub volume: VolumeId,
    /// Changes with each reuse.
    pub generation: Generation,
    /// No record of this generation has a lower sequence number.
    pub first_seq: Seq,
    /// Random for each generation; seeds the CRC of every record and of the footer's entries.
    pub nonce: u64,
    /// When it was opened, for people.
    pub opened_unix_ms: u64,
    /// Must agree with the superblock.
    pub segment_size: u64,
    /// Key of its records' payloads, 0 for plain bytes or for several (R5).
    pub key: KeyId,
}

impl SegmentHeader {
    /// Encodes the block; both copies have the same bytes. Panics on an impossible segment size.
    pub fn encode(&self) -> [u8; BLOCK] {
        assert!(segment_size_is_valid(self.segment_size), "impossible segment size {}", self.segment_size);
        let mut block = le::new_block(MAGIC, FORMAT_VERSION);
        block[10] = self.state as u8;
        block[11] = self.kind as u8;
        le::put(&mut block, 12, &if self.leasable { FLAG_LEASABLE } else { 0 }.to_le_bytes());
        le::put(&mut block, 16, &self.ring.0);
        le::put(&mut block, 32, &self.segment.0.to_le_bytes());
        le::put(&mut block, 36, &self.volume.0.to_le_bytes());
        le::put(&mut block, 40, &self.generation.0.to_le_bytes());
        le::put(&mut block, 48, &self.first_seq.0.to_le_bytes());
        le::put(&mut block, 56, &self.nonce.to_le_bytes());
        le::put(&mut block, 64, &self.opened_unix_ms.to_le_bytes());
        le::put(&mut block, 72, &self.segment_size.to_le_bytes());
        le::put(&mut block, 80, &self.key.0.to_le_bytes());
        le::seal_block(&mut block);
        block
    }

    /// Decodes the block at the start of `bytes`. Whether ring and segment are the expected ones is for the
    /// caller to compare.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let block = le::open_block(bytes, MAGIC, "the checksum of a segment header does not hold")?;
        le::check_version(le::u16(block, 8))?;
        let header = Self {
            state: match block[10] {
                1 => SegmentState::Free,
                2 => SegmentState::Open,
                _ => return Err(FormatError::Corrupt("a segment state that does not exist")),
            },
            kind: SegmentKind::from_u8(block[11])?,
            leasable: le::u32(block, 12) & FLAG_LEASABLE != 0,
            ring: RingId(le::array(block, 16)),
            segment: SegmentId(le::u32(block, 32)),
            volume: VolumeId(le::u32(block, 36)),
            generation: Generation(le::u64(block, 40)),
            first_seq: Seq(le::u64(block, 48)),
            nonce: le::u64(block, 56),
            opened_unix_ms: le::u64(block, 64),
            segment_size: le::u64(block, 72),
            key: KeyId(le::u32(block, 80)),
        };
        if !segment_size_is_valid(header.segment_size) {
            return Err(FormatError::Corrupt("a segment header has an impossible segment size"));
        }
        Ok(header)
    }
}
