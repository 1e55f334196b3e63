//! Bytes of Stoker on disk: encode, decode, nothing else.
//!
//! This crate owns every byte that a drive holds besides payloads. It does no I/O, reads no clock and draws no
//! random numbers: whoever calls it brings the bytes, the time and the nonces. Decoders take bytes of any
//! length from anywhere and answer with a typed error; encoders panic on values that only a bug can produce.
//! `docs/data-file.md` draws every structure.
//!
//! It must not do I/O, read a clock, or panic on foreign bytes.

#![forbid(unsafe_code)]

mod checksum;
mod dead;
mod error;
mod footer;
mod ids;
mod layout;
mod le;
mod name;
mod past;
mod record;
mod segment;
mod superblock;

pub use checksum::{
    block_count, block_table, crc32c, crc32c_combine, crc64, crc64_combine, crc64_seeded, crc64_zeros,
    table_crc,
};
pub use dead::{DEATH_LEN, Death, decode_deaths, encode_deaths};
pub use error::FormatError;
pub use footer::{FOOTER_ENTRY_LEN, Footer, FooterEntry, encode_footer, footer_span};
pub use ids::{
    ChunkId, ClusterId, DriveId, Generation, KeyId, NodeId, ParseIdError, RingId, SegmentId, Seq, VersionId,
    VolumeId,
};
pub use layout::{
    BLOCK, FLAT_DATA_OFFSET, FORMAT_VERSION, GRAIN, RECORD_HEADER_LEN, RECORD_LEN_MAX, SEGMENT_COUNT_MAX,
    SEGMENT_COUNT_MIN, SEGMENT_SIZE_DEFAULT, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN,
};
pub use name::{
    ChunkRun, NAME_FIELDS_MAX, NAME_KEY_LEN_MAX, NAME_LEN_MAX, NAME_VERSION, NameField, NameOp, NameRecord,
};
pub use past::{NULL_VERSION, PAST, PastId, past_key, past_parts};
pub use record::{
    CIPHER_AES_256_GCM, Record, RecordFault, RecordFlags, RecordHeader, RecordKind, RecordPlace,
    SEAL_TAG_LEN, Seal, header_len, header_span, seal_aux,
};
pub use segment::{SegmentHeader, SegmentKind, SegmentState};
pub use superblock::{Access, LABEL_LEN_MAX, Layout, Superblock, negotiate};
