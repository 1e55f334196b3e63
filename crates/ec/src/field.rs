//! GF(2^8) with the polynomial 0x11d: bytes that can be added, multiplied and divided.

/// x^8 + x^4 + x^3 + x^2 + 1 without its highest bit.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator 2, twice over, so that a sum of two logarithms needs no modulo.
const EXP: [u8; 510] = powers();
const LOG: [u8; 256] = logarithms();

/// All products: `PRODUCTS[a][b]`.
pub static PRODUCTS: [[u8; 256]; 256] = products();

const fn double(value: u8) -> u8 {
    if value & 0x80 == 0 { value << 1 } else { value << 1 ^ POLYNOMIAL }
}

const fn powers() -> [u8; 510] {
    let (mut table, mut value, mut at) = ([0; 510], 1, 0);
    while at < 255 {
        (table[at], table[at + 255]) = (value, value);
        value = double(value);
        at += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let (mut table, mut at) = ([0; 256], 0);
    while at < 255 {
        table[EXP[at] as usize] = at as u8;
        at += 1;
    }
    table
}

const fn products() -> [[u8; 256]; 256] {
    let (mut table, mut a) = ([[0; 256]; 256], 1);
    while a < 256 {
        let mut b = 1;
        while b < 256 {
            table[a][b] = EXP[LOG[a] as usize + LOG[b] as usize];
            b += 1;
        }
        a += 1;
    }
    table
}

/// The product.
pub fn multiply(a: u8, b: u8) -> u8 {
    PRODUCTS[a as usize][b as usize]
}

/// What gives 1 when multiplied with it. Panics at 0, which has none.
pub fn inverse(value: u8) -> u8 {
    assert!(value != 0, "0 has no inverse");
    EXP[255 - LOG[value as usize] as usize]
}

/// Products with the 16 low nibbles, then with the 16 high ones: what a byte shuffle looks up.
pub fn nibbles(factor: u8) -> [u8; 32] {
    std::array::from_fn(|at| {
        if at < 16 { multiply(factor, at as u8) } else { multiply(factor, (at as u8 - 16) << 4) }
    })
}

/// The factor as a matrix of bits, as GF2P8AFFINEQB takes it: the row of bit `i` of the result is byte `7 - i`.
pub fn affine(factor: u8) -> u64 {
    let mut matrix = 0;
    for bit in 0..8 {
        let column = multiply(factor, 1 << bit);
        for row in 0..8 {
            matrix |= u64::from(column >> row & 1) << (8 * (7 - row) + bit);
        }
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: shift and add, reduce.
    fn slow(a: u8, b: u8) -> u8 {
        let (mut sum, mut shifted) = (0, a);
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                sum ^= shifted;
            }
            shifted = double(shifted);
        }
        sum
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), slow(a, b), "{a} * {b}");
            }
            if a != 0 {
                assert_eq!(multiply(a, inverse(a)), 1, "{a}");
            }
        }
    }

    #[test]
    fn nibbles_add_up_to_products() {
        for factor in 0..=255 {
            let table = nibbles(factor);
            for value in 0..=255u8 {
                let sum = table[usize::from(value & 15)] ^ table[16 + usize::from(value >> 4)];
                assert_eq!(sum, multiply(factor, value));
            }
        }
    }

    /// The instruction in words of its manual: bit `i` of the result is the parity of byte `7 - i` of the matrix and the value.
    #[test]
    fn affine_matrices_are_products() {
        for factor in 0..=255 {
            let matrix = affine(factor).to_le_bytes();
            for value in 0..=255u8 {
                let result = (0..8)
                    .fold(0, |sum, bit| sum | ((matrix[7 - bit] & value).count_ones() as u8 & 1) << bit);
                assert_eq!(result, multiply(factor, value), "{factor} * {value}");
            }
        }
    }
}
