//! CRC32C for payloads, CRC-64/NVME for our own structures.
//!
//! Payload CRCs are plain, so that they are equal on every copy of a chunk and can be combined: the CRC of a
//! chunk follows from the CRCs of its blocks without touching the bytes again.

use crate::layout::BLOCK;
use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C (Castagnoli), the checksum of payload bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-64/NVME, the checksum of structures that carry their own nonce.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// CRC-64/NVME of two pieces laid end to end, from the CRC of each and the length of the second.
pub fn crc64_combine(first: u64, second: u64, second_len: u64) -> u64 {
    nvme::multiply(nvme::power_of_x(second_len), first) ^ second
}

/// CRC-64/NVME of so many zeros, without summing them.
pub fn crc64_zeros(len: u64) -> u64 {
    let (mut sum, mut at) = (crc64(b""), 0);
    let (mut block, mut block_len) = (crc64(&[0]), 1);
    // From the least bit up: blocks of one, two, four zeros and so on.
    while at < len {
        if len & block_len != 0 {
            sum = crc64_combine(sum, block, block_len);
            at += block_len;
        }
        if at < len {
            block = crc64_combine(block, block, block_len);
            block_len <<= 1;
        }
    }
    sum
}

/// CRC-64/NVME over a nonce and then the parts, so that bytes of another segment generation never check out.
pub fn crc64_seeded(nonce: u64, parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&nonce.to_le_bytes());
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

/// CRC32C of two pieces laid end to end, from the CRC32C of each and the length of the second.
pub fn crc32c_combine(first: u32, second: u32, second_len: u64) -> u32 {
    multiply(power_of_x(second_len), first) ^ second
}

/// Number of blocks that a payload occupies in a CRC table; the last may be short.
pub const fn block_count(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

/// CRC32C of each block of a payload. An empty payload has an empty table.
pub fn block_table(payload: &[u8]) -> Vec<u32> {
    payload.chunks(BLOCK).map(crc32c).collect()
}

/// CRC32C of a whole payload of `len` bytes, from its block table alone. Panics if the table has another
/// number of blocks.
pub fn table_crc(table: &[u32], len: usize) -> u32 {
    assert_eq!(table.len(), block_count(len), "the block table does not fit a payload of {len} bytes");
    let Some((&last, full)) = table.split_last() else { return 0 };
    let crc = full.iter().fold(0, |crc, block| shift_block(crc) ^ block);
    match len % BLOCK {
        0 => shift_block(crc) ^ last,
        last_len => crc32c_combine(crc, last, last_len as u64),
    }
}

/// Polynomials mod the one of CRC-64/NVME, bit-reflected: bit 63 is x^0. A library's way to combine takes as long as
/// summing a hundred kilobytes; this is done for every chunk.
mod nvme {
    const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

    /// x^(2^n). Enough for 8 * u64::MAX bits.
    const POWERS: [u64; 67] = {
        let mut powers = [0; 67];
        powers[0] = 1 << 62;
        let mut n = 1;
        while n < 67 {
            powers[n] = multiply(powers[n - 1], powers[n - 1]);
            n += 1;
        }
        powers
    };

    pub(super) const fn multiply(a: u64, mut b: u64) -> u64 {
        let mut product = 0;
        let mut bit = 1 << 63;
        while bit != 0 {
            if a & bit != 0 {
                product ^= b;
            }
            b = if b & 1 != 0 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
            bit >>= 1;
        }
        product
    }

    /// x^(8 * bytes).
    pub(super) const fn power_of_x(bytes: u64) -> u64 {
        let mut product = 1 << 63;
        let mut rest = bytes;
        let mut n = 3;
        while rest != 0 {
            if rest & 1 != 0 {
                product = multiply(POWERS[n], product);
            }
            rest >>= 1;
            n += 1;
        }
        product
    }
}

/// The Castagnoli polynomial, bit-reflected: bit 31 is x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// x^(2^n) mod P. Enough for 8 * u64::MAX bits.
const POWERS: [u32; 67] = {
    let mut powers = [0; 67];
    powers[0] = 1 << 30;
    let mut n = 1;
    while n < 67 {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// What one block of zeros does to a CRC, by byte of the CRC: four look-ups instead of a polynomial product.
static BLOCK_SHIFT: [[u32; 256]; 4] = {
    let shift = power_of_x(BLOCK as u64);
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            tables[byte][value] = multiply(shift, (value as u32) << (8 * byte));
            value += 1;
        }
        byte += 1;
    }
    tables
};

fn shift_block(crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes();
    BLOCK_SHIFT[0][a as usize]
        ^ BLOCK_SHIFT[1][b as usize]
        ^ BLOCK_SHIFT[2][c as usize]
        ^ BLOCK_SHIFT[3][d as usize]
}

/// Product of two polynomials mod P.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { (b >> 1) ^ POLYNOMIAL } else { b >> 1 };
        bit >>= 1;
    }
    product
}

/// x^(8 * bytes) mod P.
const fn power_of_x(bytes: u64) -> u32 {
    let mut product = 1 << 31;
    let mut rest = bytes;
    let mut n = 3;
    while rest != 0 {
        if rest & 1 != 0 {
            product = multiply(POWERS[n], product);
        }
        rest >>= 1;
        n += 1;
    }
    product
}
