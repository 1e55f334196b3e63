//! CRC-64/NVME, the checksum of whole objects in S3 and here.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};

/// CRC-64/NVME of a body in pieces.
pub(crate) fn crc64_pieces(body: &[Bytes]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for piece in body {
        digest.update(piece);
    }
    digest.finalize()
}

/// CRC-64/NVME of two pieces laid end to end, from the checksum of each and the length of the second.
pub(crate) fn crc64_joined(first: u64, second: u64, second_len: u64) -> u64 {
    crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, first, second, second_len)
}
