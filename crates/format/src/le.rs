//! Little-endian fields at fixed places, and the 4 KiB block that carries its own CRC.
//!
//! The accessors panic past the end: a decoder checks the length once, then reads.

use crate::checksum::crc64;
use crate::error::FormatError;
use crate::layout::{BLOCK, FORMAT_VERSION};

/// Where the CRC of a self-checking block lies. Same place in every version, so that any release can tell a
/// block of a newer one from a damaged one.
pub(crate) const BLOCK_CRC_AT: usize = BLOCK - 8;

pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(crate) fn u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Starts a block: magic and version, everything else zero.
pub(crate) fn new_block(magic: &[u8; 8], version: u16) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    put(&mut block, 0, magic);
    put(&mut block, 8, &version.to_le_bytes());
    block
}

pub(crate) fn seal_block(block: &mut [u8; BLOCK]) {
    let crc = crc64(&block[..BLOCK_CRC_AT]);
    put(block, BLOCK_CRC_AT, &crc.to_le_bytes());
}

/// Checks length, magic and CRC of a block. The version is left to the caller.
pub(crate) fn open_block<'a>(
    bytes: &'a [u8],
    magic: &[u8; 8],
    what: &'static str,
) -> Result<&'a [u8], FormatError> {
    let block = bytes.get(..BLOCK).ok_or(FormatError::Short { need: BLOCK, have: bytes.len() })?;
    if &block[..8] != magic {
        return Err(FormatError::BadMagic);
    }
    if crc64(&block[..BLOCK_CRC_AT]) != u64(block, BLOCK_CRC_AT) {
        return Err(FormatError::Corrupt(what));
    }
    Ok(block)
}

/// Refuses a version that this release does not know, once the bytes are known to be intact.
pub(crate) fn check_version(found: u16) -> Result<(), FormatError> {
    match found {
        0 => Err(FormatError::Corrupt("version 0 does not exist")),
        1..=FORMAT_VERSION => Ok(()),
        _ => Err(FormatError::TooNew { found, supported: FORMAT_VERSION }),
    }
}
