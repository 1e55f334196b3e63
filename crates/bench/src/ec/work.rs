//! What is measured: stripes in memory, and a job on each.

use stoker_ec::{Codec, Kernel, Layout, Repair, Scheme};

use super::isal;
use crate::failure::Failure;
use crate::rng::Rng;
use crate::sys;

/// What is made of what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// All parity from all data.
    Encode,
    /// So many lost data shards from the others.
    Decode(usize),
}

impl Job {
    /// Encoding, and decoding of one and of as many shards as may be lost.
    pub fn all(scheme: Scheme) -> Vec<Job> {
        let mut jobs = vec![Job::Encode, Job::Decode(1)];
        if scheme.parity().min(scheme.data()) > 1 {
            jobs.push(Job::Decode(scheme.parity().min(scheme.data())));
        }
        jobs
    }

    /// Its name in reports.
    pub fn name(self) -> String {
        match self {
            Job::Encode => "encode".into(),
            Job::Decode(lost) => format!("decode {lost} lost"),
        }
    }

    /// Shards that are made.
    fn wanted(self, scheme: Scheme) -> Vec<usize> {
        match self {
            Job::Encode => (scheme.data()..scheme.width()).collect(),
            Job::Decode(lost) => (0..lost).collect(),
        }
    }
}

/// Who does it.
pub enum Side {
    /// A codec, encoding.
    Encode(Codec),
    /// A codec, repairing.
    Repair(Repair),
    /// The peer.
    Isal(isal::Program),
}

impl Side {
    /// Stoker with a kernel.
    pub fn ours(scheme: Scheme, job: Job, kernel: Kernel) -> Result<Side, Failure> {
        let failed = |error: stoker_ec::Error| Failure::new(error.to_string());
        let codec = Codec::with_kernel(scheme, kernel).map_err(failed)?;
        if job == Job::Encode {
            return Ok(Side::Encode(codec));
        }
        let wanted = job.wanted(scheme);
        let present: Vec<usize> = (wanted.len()..scheme.width()).collect();
        codec.repair(&present, &wanted).map(Side::Repair).map_err(failed)
    }

    /// The peer.
    pub fn isal(scheme: Scheme, job: Job, library: isal::Library) -> Result<Side, Failure> {
        let program = match job {
            Job::Encode => Some(library.encode(scheme)),
            Job::Decode(lost) => library.decode(scheme, lost),
        };
        program.map(Side::Isal).ok_or_else(|| Failure::new("ISA-L cannot invert the matrix"))
    }

    fn run(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Failure> {
        let done = match self {
            Side::Encode(codec) => codec.encode(sources, outputs),
            Side::Repair(repair) => repair.run(sources, outputs),
            Side::Isal(program) => {
                program.run(sources, outputs);
                Ok(())
            }
        };
        done.map_err(|error| Failure::new(error.to_string()))
    }
}

/// Chunks and their parity in memory, as a writer has them: the shards of a chunk one behind the other.
pub struct Stripes {
    scheme: Scheme,
    shard_len: usize,
    memory: Vec<Vec<u8>>,
}

impl Stripes {
    /// So many chunks of random bytes.
    pub fn new(scheme: Scheme, chunk_len: usize, count: usize) -> Result<Stripes, Failure> {
        let layout = Layout::new(scheme, chunk_len).map_err(|error| Failure::new(error.to_string()))?;
        let shard_len = layout.shard_len();
        let mut rng = Rng::new(11);
        let stripe = |_| {
            let mut bytes = vec![0; shard_len * scheme.width()];
            rng.fill(&mut bytes);
            bytes
        };
        let memory = (0..count).map(stripe).collect();
        let mut stripes = Stripes { scheme, shard_len, memory };
        // Sound stripes, so that what is decoded can be compared with what was there.
        stripes.pass(&Side::ours(scheme, Job::Encode, Kernel::best())?, Job::Encode)?;
        Ok(stripes)
    }

    /// Whether a side makes what is there already.
    pub fn check(&mut self, side: &Side, job: Job) -> Result<bool, Failure> {
        let before = self.memory[0].clone();
        for &shard in &job.wanted(self.scheme) {
            self.memory[0][shard * self.shard_len..(shard + 1) * self.shard_len].fill(0);
        }
        self.pass(side, job)?;
        Ok(self.memory[0] == before)
    }

    /// One side over all stripes for at least so long: bytes of data for each second that a core computes.
    pub fn rate(&mut self, side: &Side, job: Job, seconds: f64) -> Result<f64, Failure> {
        let begun = sys::cpu_seconds();
        let (mut passes, mut took) = (0, 0.0);
        while took < seconds {
            self.pass(side, job)?;
            passes += 1;
            took = sys::cpu_seconds() - begun;
        }
        let bytes = self.memory.len() * self.shard_len * self.scheme.data() * passes;
        Ok(bytes as f64 / took)
    }

    fn pass(&mut self, side: &Side, job: Job) -> Result<(), Failure> {
        let wanted = job.wanted(self.scheme);
        for stripe in &mut self.memory {
            let shards = stripe.chunks_exact_mut(self.shard_len).enumerate();
            let (mut sources, mut outputs) = (Vec::<&[u8]>::new(), Vec::new());
            for (shard, bytes) in shards {
                if wanted.contains(&shard) {
                    outputs.push(bytes);
                } else if sources.len() < self.scheme.data() {
                    sources.push(bytes);
                }
            }
            side.run(&sources, &mut outputs)?;
        }
        Ok(())
    }
}
