//! The score of a node for a key: `-log2(u) / weight`, where `u` in (0, 1] is a hash of both. The lowest wins, and a
//! node wins in proportion to its weight. Fixed point throughout, because floating-point logarithms differ between
//! machines.

/// A score is in units of this power of two before it is divided by the weight; up to 64.0 fits.
const FRACTION_BITS: u32 = 57;
/// The table has a point for each 2^-10 of the mantissa. Linear between points: an error below 2^-22.
const TABLE_BITS: u32 = 10;
const POINTS: usize = (1 << TABLE_BITS) + 1;

static LOG2: [u64; POINTS] = log2_table();

/// What a node brings to every score, computed once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed {
    hash: u64,
    /// 2^64 / weight, so that dividing is one multiplication.
    inverse: u64,
}

impl Seed {
    /// Of a node with this hash. The weight is not zero.
    pub(super) fn new(hash: u64, weight: u32) -> Seed {
        assert!(weight > 0, "a node of weight 0 is no candidate");
        // The key is mixed too; without this constant a key and a node of equal bytes would cancel out.
        Seed { hash: mix(hash ^ 0x6c62_272e_07bb_0142), inverse: u64::MAX / u64::from(weight) }
    }

    /// The score for a key; the lowest wins.
    pub(super) fn score(self, key: u64) -> u64 {
        let cost = negative_log2(mix(key ^ self.hash));
        ((u128::from(cost) * u128::from(self.inverse)) >> 64) as u64
    }
}

/// Spreads every bit of the input over the whole output, one to one.
pub(super) fn mix(input: u64) -> u64 {
    let mut word = input;
    word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 32)
}

/// `-log2(hash / 2^64)`, falling as the hash rises.
fn negative_log2(hash: u64) -> u64 {
    let hash = hash.max(1);
    let zeros = hash.leading_zeros();
    let mantissa = hash << zeros << 1;
    let point = (mantissa >> (64 - TABLE_BITS)) as usize;
    let between = mantissa << TABLE_BITS;
    let step = LOG2[point + 1] - LOG2[point];
    let log2 = LOG2[point] + ((u128::from(step) * u128::from(between)) >> 64) as u64;
    (u64::from(zeros + 1) << FRACTION_BITS) - log2
}

/// `log2(1 + i / 2^10)` for every point, one binary digit at a time by squaring.
const fn log2_table() -> [u64; POINTS] {
    let mut table = [0; POINTS];
    let mut point = 0;
    while point < POINTS {
        // The value in [1, 2], with 62 bits behind the point.
        let mut value = (1_u128 << 62) + ((point as u128) << (62 - TABLE_BITS));
        let mut log2 = 0_u64;
        let mut digit = FRACTION_BITS;
        if value == 1 << 63 {
            log2 = 1 << FRACTION_BITS;
            digit = 0;
        }
        while digit > 0 {
            digit -= 1;
            value = (value * value) >> 62;
            if value >= 1 << 63 {
                value >>= 1;
                log2 |= 1 << digit;
            }
        }
        table[point] = log2;
        point += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places are computed by every node for itself: a change of this table would move every chunk.
    #[test]
    fn scores_are_these_on_every_machine() {
        let check = |hash, weight, key, expect| {
            assert_eq!(Seed::new(hash, weight).score(key), expect, "{hash} {weight} {key}");
        };
        check(0, 1, 0, 23_858_251_494_598_236);
        check(1, 1, 2, 258_002_925_609_460_487);
        check(1, 7, 2, 36_857_560_801_351_498);
        check(u64::MAX, 4096, u64::MAX, 54_862_147_464_967);
    }

    #[test]
    fn the_logarithm_is_one() {
        let unit = (1_u64 << FRACTION_BITS) as f64;
        for shift in 0..64 {
            for hash in [u64::MAX >> shift, (1 << 63) >> shift, 0xb504_f333_f9de_6484 >> shift] {
                let expect = 64.0 - (hash as f64).log2();
                let got = negative_log2(hash) as f64 / unit;
                assert!((got - expect).abs() < 1.0 / f64::from(1 << 20), "{hash}: {got}, not {expect}");
            }
        }
    }

    #[test]
    fn a_higher_hash_never_costs_more() {
        let mut hash = 1_u64;
        while hash < u64::MAX / 3 * 2 {
            let next = hash + (hash >> 12).max(1);
            assert!(negative_log2(next) <= negative_log2(hash), "{hash}");
            hash = next;
        }
    }
}
