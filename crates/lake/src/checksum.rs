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
