//! Random numbers from a seed.

/// SplitMix64: small, and good enough for jitter and for choosing faults.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// True in `rate` of all cases, 0 to 1.
    pub fn chance(&mut self, rate: f64) -> bool {
        let share = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        share < rate
    }
}
