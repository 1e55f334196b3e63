//! A fuzzer cannot guess a CRC-64. Every target also runs on the input with its CRC put right, so that the checks
//! behind the CRC are fuzzed too.

use stoker_format::{BLOCK, crc64};

/// The input as one block with a true magic and a true CRC.
pub fn block(data: &[u8], magic: &[u8; 8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let len = data.len().min(BLOCK - 8);
    block[..len].copy_from_slice(&data[..len]);
    block[..8].copy_from_slice(magic);
    let crc = crc64(&block[..BLOCK - 8]);
    block[BLOCK - 8..].copy_from_slice(&crc.to_le_bytes());
    block
}
