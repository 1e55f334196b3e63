//! The sizes and limits that every structure on a drive shares.

/// Unit of O_DIRECT and of payload CRCs; the smallest piece of a payload that can be verified alone.
pub const BLOCK: usize = 4096;

/// Record headers start on this grid, so a scan knows the only places where one can be.
pub const GRAIN: usize = 64;

/// Length of the fixed part of a record header; the CRC table and the aux bytes follow it.
pub const RECORD_HEADER_LEN: usize = 128;

/// Longest payload of one record. Bounds what a decoder allocates for a table it has not verified yet.
pub const RECORD_LEN_MAX: usize = 16 << 20;

/// Segment size of a drive that was formatted without a wish.
pub const SEGMENT_SIZE_DEFAULT: u64 = 256 << 20;

/// Smallest segment; tests and tiny drives only.
pub const SEGMENT_SIZE_MIN: u64 = 64 << 10;

/// Largest segment. Keeps every offset inside a segment in 32 bits.
pub const SEGMENT_SIZE_MAX: u64 = 1 << 30;

/// Fewest segments of a ring: two are reserved for relocation, one is open, one is being reclaimed.
pub const SEGMENT_COUNT_MIN: u32 = 4;

/// Most segments of a ring; bounds the memory that a start needs before it has read a segment.
pub const SEGMENT_COUNT_MAX: u32 = 1 << 24;

/// Where the first segment of a flat drive begins; the space before it is for superblocks.
pub const FLAT_DATA_OFFSET: u64 = 1 << 20;

/// Version that this release writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Tells whether a drive may have segments of this size.
pub(crate) fn segment_size_is_valid(segment_size: u64) -> bool {
    (SEGMENT_SIZE_MIN..=SEGMENT_SIZE_MAX).contains(&segment_size) && segment_size.is_multiple_of(BLOCK as u64)
}
