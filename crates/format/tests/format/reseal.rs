//! Makes the checksum of altered bytes hold again, to reach the checks behind it.

use stoker_format::{BLOCK, RECORD_HEADER_LEN, crc64, crc64_seeded};

pub fn block(bytes: &mut [u8]) {
    let crc = crc64(&bytes[..BLOCK - 8]);
    bytes[BLOCK - 8..BLOCK].copy_from_slice(&crc.to_le_bytes());
}

/// `bytes` is header, table and aux without padding.
pub fn record(nonce: u64, bytes: &mut [u8]) {
    let crc = crc64_seeded(nonce, &[&bytes[..RECORD_HEADER_LEN - 8], &bytes[RECORD_HEADER_LEN..]]);
    bytes[RECORD_HEADER_LEN - 8..RECORD_HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}
