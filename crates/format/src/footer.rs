//! The end of a closed segment: an index of its records, so that recovery reads this and not the records.
//!
//! The trailer is the last block and checks itself. The entries lie in the blocks before it and are bound to the
//! generation by the nonce.

use crate::checksum::crc64_seeded;
use crate::error::FormatError;
use crate::ids::{ChunkId, Generation, KeyId, RingId, SegmentId, Seq, VolumeId};
use crate::layout::{BLOCK, FORMAT_VERSION};
use crate::le;
use crate::record::{RecordFlags, RecordHeader, RecordKind};
use crate::segment::SegmentKind;

const MAGIC: &[u8; 8] = b"STOKERFT";
const FLAG_LEASABLE: u32 = 1;

/// Bytes of one entry as this release writes it. A later release may append to entries.
pub const FOOTER_ENTRY_LEN: usize = 64;

/// Later releases keep entries within this, in steps of eight bytes.
const ENTRY_LEN_MAX: usize = 256;

/// One record, or one death of a dead list, as the index of a closed segment holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// The chunk that the record holds, or that died.
    pub chunk: ChunkId,
    /// The record's number; of a death its `below`.
    pub seq: Seq,
    /// Where the header lies in the segment.
    pub header_offset: u32,
    /// Where the payload lies in the segment.
    pub payload_offset: u32,
    /// Length of the payload.
    pub len: u32,
    /// Volume of the record.
    pub volume: VolumeId,
    /// Flags of the record.
    pub flags: RecordFlags,
    /// CRC32C of the whole payload.
    pub payload_crc: u32,
    /// What the record is.
    pub kind: RecordKind,
    /// Needed to find the length of the header without reading it.
    pub aux_per_block: u8,
    /// Key of the payload, 0 for plain bytes.
    pub key: KeyId,
}

/// The line that a footer has for a record.
impl From<&RecordHeader> for FooterEntry {
    fn from(header: &RecordHeader) -> Self {
        Self {
            chunk: header.chunk,
            seq: header.seq,
            header_offset: header.header_offset,
            payload_offset: header.payload_offset,
            len: header.len,
            volume: header.volume,
            flags: header.flags,
            payload_crc: header.payload_crc,
            kind: header.kind,
            aux_per_block: header.aux_per_block,
            key: header.key,
        }
    }
}

/// The trailer: the last block of a closed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Ring that the segment belongs to.
    pub ring: RingId,
    /// Its place in the ring.
    pub segment: SegmentId,
    /// The one volume that it holds, 0 for many.
    pub volume: VolumeId,
    /// Generation that was closed.
    pub generation: Generation,
    /// Lowest sequence number that the segment may hold.
    pub first_seq: Seq,
    /// Highest sequence number that it holds.
    pub last_seq: Seq,
    /// Nonce of the generation, so that records can be verified without the segment header.
    pub nonce: u64,
    /// When it was closed, for people.
    pub closed_unix_ms: u64,
    /// Who wrote into it.
    pub kind: SegmentKind,
    /// Its descriptor may be given to local readers.
    pub leasable: bool,
    /// End of the last batch; nothing of this generation lies between here and the entries.
    pub records_end: u32,
    /// Bytes of one entry, [`FOOTER_ENTRY_LEN`] or what a later release made of it; [`encode_footer`] fills it in.
    pub entry_size: u16,
    /// Number of entries; [`encode_footer`] fills it in.
    pub entry_count: u32,
    /// Where the entries begin: segment size less [`footer_span`].
    pub entries_offset: u32,
    /// CRC-64 of the entries seeded with the nonce; [`encode_footer`] fills it in.
    pub entries_crc: u64,
}

/// Bytes that a footer takes from the end of its segment: entries in whole blocks, and the trailer.
pub const fn footer_span(entries: usize) -> usize {
    (entries * FOOTER_ENTRY_LEN).next_multiple_of(BLOCK) + BLOCK
}

/// Encodes entries and trailer, to be written at `entries_offset`. Panics if there are more entries than an
/// `u32` counts.
pub fn encode_footer(footer: &Footer, entries: &[FooterEntry]) -> Vec<u8> {
    let mut out = vec![0; footer_span(entries.len())];
    let (index, trailer) = out.split_at_mut(footer_span(entries.len()) - BLOCK);
    let index = &mut index[..entries.len() * FOOTER_ENTRY_LEN];
    for (slot, entry) in index.chunks_exact_mut(FOOTER_ENTRY_LEN).zip(entries) {
        entry.put(slot);
    }
    let footer = Footer {
        entry_size: FOOTER_ENTRY_LEN as u16,
        entry_count: u32::try_from(entries.len()).expect("a segment holds fewer records than 2^32"),
        entries_crc: crc64_seeded(footer.nonce, &[index]),
        ..*footer
    };
    trailer.copy_from_slice(&footer.encode_trailer());
    out
}

impl Footer {
    /// Decodes the last block of a segment. [`FormatError::BadMagic`] is what an unclosed segment gives.
    pub fn decode(last_block: &[u8]) -> Result<Self, FormatError> {
        let block = le::open_block(last_block, MAGIC, "the checksum of a segment footer does not hold")?;
        le::check_version(le::u16(block, 8))?;
        let entry_size = le::u16(block, 10);
        if !(FOOTER_ENTRY_LEN..=ENTRY_LEN_MAX).contains(&(entry_size as usize))
            || !entry_size.is_multiple_of(8)
        {
            return Err(FormatError::Corrupt("a segment footer has an impossible entry size"));
        }
        Ok(Self {
            entry_size,
            entry_count: le::u32(block, 12),
            ring: RingId(le::array(block, 16)),
            segment: SegmentId(le::u32(block, 32)),
            volume: VolumeId(le::u32(block, 36)),
            generation: Generation(le::u64(block, 40)),
            first_seq: Seq(le::u64(block, 48)),
            last_seq: Seq(le::u64(block, 56)),
            nonce: le::u64(block, 64),
            closed_unix_ms: le::u64(block, 72),
            entries_offset: le::u32(block, 80),
            records_end: le::u32(block, 84),
            entries_crc: le::u64(block, 88),
            kind: SegmentKind::from_u8(block[96])?,
            leasable: le::u32(block, 100) & FLAG_LEASABLE != 0,
        })
    }

    /// Decodes the entries; `bytes` start at `entries_offset` and may reach further than the entries do.
    pub fn decode_entries(&self, bytes: &[u8]) -> Result<Vec<FooterEntry>, FormatError> {
        let entry_size = self.entry_size as usize;
        if entry_size < FOOTER_ENTRY_LEN {
            return Err(FormatError::Corrupt("a segment footer has an impossible entry size"));
        }
        let need = (self.entry_count as usize).saturating_mul(entry_size);
        let index = bytes.get(..need).ok_or(FormatError::Short { need, have: bytes.len() })?;
        if crc64_seeded(self.nonce, &[index]) != self.entries_crc {
            return Err(FormatError::Corrupt("the checksum of a footer's entries does not hold"));
        }
        index.chunks_exact(entry_size).map(FooterEntry::from_slot).collect()
    }

    fn encode_trailer(&self) -> [u8; BLOCK] {
        let mut block = le::new_block(MAGIC, FORMAT_VERSION);
        le::put(&mut block, 10, &self.entry_size.to_le_bytes());
        le::put(&mut block, 12, &self.entry_count.to_le_bytes());
        le::put(&mut block, 16, &self.ring.0);
        le::put(&mut block, 32, &self.segment.0.to_le_bytes());
        le::put(&mut block, 36, &self.volume.0.to_le_bytes());
        le::put(&mut block, 40, &self.generation.0.to_le_bytes());
        le::put(&mut block, 48, &self.first_seq.0.to_le_bytes());
        le::put(&mut block, 56, &self.last_seq.0.to_le_bytes());
        le::put(&mut block, 64, &self.nonce.to_le_bytes());
        le::put(&mut block, 72, &self.closed_unix_ms.to_le_bytes());
        le::put(&mut block, 80, &self.entries_offset.to_le_bytes());
        le::put(&mut block, 84, &self.records_end.to_le_bytes());
        le::put(&mut block, 88, &self.entries_crc.to_le_bytes());
        block[96] = self.kind as u8;
        le::put(&mut block, 100, &if self.leasable { FLAG_LEASABLE } else { 0 }.to_le_bytes());
        le::seal_block(&mut block);
        block
    }
}

impl FooterEntry {
    fn put(&self, slot: &mut [u8]) {
        le::put(slot, 0, &self.chunk.to_bytes());
        le::put(slot, 16, &self.seq.0.to_le_bytes());
        le::put(slot, 24, &self.header_offset.to_le_bytes());
        le::put(slot, 28, &self.payload_offset.to_le_bytes());
        le::put(slot, 32, &self.len.to_le_bytes());
        le::put(slot, 36, &self.volume.0.to_le_bytes());
        le::put(slot, 40, &self.flags.0.to_le_bytes());
        le::put(slot, 44, &self.payload_crc.to_le_bytes());
        slot[48] = self.kind as u8;
        slot[49] = self.aux_per_block;
        le::put(slot, 52, &self.key.0.to_le_bytes());
    }

    fn from_slot(slot: &[u8]) -> Result<Self, FormatError> {
        Ok(Self {
            chunk: ChunkId::from_bytes(le::array(slot, 0)),
            seq: Seq(le::u64(slot, 16)),
            header_offset: le::u32(slot, 24),
            payload_offset: le::u32(slot, 28),
            len: le::u32(slot, 32),
            volume: VolumeId(le::u32(slot, 36)),
            flags: RecordFlags(le::u32(slot, 40)),
            payload_crc: le::u32(slot, 44),
            kind: RecordKind::from_u8(slot[48])
                .ok_or(FormatError::Corrupt("a footer entry of a kind that does not exist"))?,
            aux_per_block: slot[49],
            key: KeyId(le::u32(slot, 52)),
        })
    }
}
