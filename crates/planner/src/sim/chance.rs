//! Chance from a seed: the same seed gives the same days on every machine.

/// A generator of numbers (SplitMix64).
pub struct Chance(u64);

impl Chance {
    /// From a seed and the number of a run, so that runs differ and each can be repeated alone.
    pub fn new(seed: u64, run: u64) -> Chance {
        let mut chance = Chance(seed ^ run.wrapping_mul(0xD1B5_4A32_D192_ED03));
        chance.next();
        chance
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Above 0, at most 1.
    pub fn share(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Seconds until something that happens so often per second; infinite if it never does.
    pub fn wait(&mut self, per_second: f64) -> f64 {
        if per_second > 0.0 { -self.share().ln() / per_second } else { f64::INFINITY }
    }
}
