//! Records whose bytes follow from the seed of the run and their number, so that whoever finds one can check it.
//! The kill test includes this file.

use stoker_format::{ChunkId, VersionId};

use crate::rng::Rng;

/// Shortest payload.
pub const LEN_MIN: usize = 512;
/// Longest payload, unless the ring takes less.
pub const LEN_MAX: usize = 4 << 20;

/// One record of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specimen {
    /// Its id; holds the seed of the run and its number.
    pub chunk: ChunkId,
    /// Seed of its bytes.
    pub seed: u64,
    /// Payload bytes.
    pub len: usize,
}

impl Specimen {
    /// Record `number` of the run with this seed, on a ring that takes payloads up to `len_max`.
    pub fn new(run: u64, number: u32, len_max: usize) -> Specimen {
        let mut version = *b"........kill";
        version[..8].copy_from_slice(&run.to_le_bytes());
        Specimen::of(ChunkId::new(VersionId(version), number), len_max)
    }

    /// The record that a chunk id of any run stands for.
    pub fn of(chunk: ChunkId, len_max: usize) -> Specimen {
        let mut run = [0; 8];
        run.copy_from_slice(&chunk.version.0[..8]);
        let mut rng = Rng::new(u64::from_le_bytes(run) ^ u64::from(chunk.index).rotate_left(32));
        let seed = rng.next_u64();
        // Every doubling between shortest and longest is as likely as any other, and odd lengths are the rule.
        let longest = LEN_MAX.min(len_max);
        let power = rng.below(u64::from((longest / LEN_MIN).ilog2()) + 1) as u32;
        let from = LEN_MIN << power;
        let len = (from + rng.below(from as u64) as usize).min(longest);
        Specimen { chunk, seed, len }
    }

    /// Writes its bytes.
    pub fn fill(&self, bytes: &mut [u8]) {
        Rng::new(self.seed).fill(bytes);
    }

    /// Tells whether these are its bytes.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let mut expected = vec![0; self.len];
        self.fill(&mut expected);
        bytes == expected
    }
}
