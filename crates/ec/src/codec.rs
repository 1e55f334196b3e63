//! The codec of a scheme: makes parity from data.

use crate::error::Error;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::matrix;
use crate::program::Program;
use crate::repair::Repair;
use crate::scheme::Scheme;

/// A scheme with the tables that its parity needs. Make one and keep it: it is the same for every stripe.
#[derive(Clone, Debug)]
pub struct Codec {
    scheme: Scheme,
    kernel: Kernel,
    parity: Program,
}

impl Codec {
    /// The codec of a scheme, with the best kernel of this machine.
    pub fn new(scheme: Scheme) -> Self {
        Self::prepared(scheme, Kernel::best())
    }

    /// The same with a kernel of choice.
    pub fn with_kernel(scheme: Scheme, kernel: Kernel) -> Result<Self, Error> {
        if kernel.is_available() { Ok(Self::prepared(scheme, kernel)) } else { Err(Error::Kernel(kernel)) }
    }

    fn prepared(scheme: Scheme, kernel: Kernel) -> Self {
        let rows: Vec<_> = (scheme.data()..scheme.width()).map(|shard| matrix::row(scheme, shard)).collect();
        Self { scheme, kernel, parity: Program::new(kernel, &rows) }
    }

    /// Its scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Its kernel.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Makes all parity shards from all data shards, each of one length.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        check_count(self.scheme.data(), data.len())?;
        self.check_parity(data[0].len(), parity)?;
        check_lengths(data[0].len(), data)?;
        self.parity.run(data, parity);
        Ok(())
    }

    /// Makes all parity shards from a chunk as it lies in memory: nothing is copied, and padding is not written out.
    pub fn encode_chunk(&self, chunk: &[u8], parity: &mut [&mut [u8]]) -> Result<(), Error> {
        let shard_len = Layout::new(self.scheme, chunk.len())?.shard_len();
        self.check_parity(shard_len, parity)?;
        if shard_len == 0 {
            return Ok(());
        }
        let shards: Vec<&[u8]> = chunk.chunks(shard_len).collect();
        // All shards reach as far as the last one does; behind that it counts as zeros.
        let short = chunk.len() % shard_len;
        for (from, to, count) in [(0, short, shards.len()), (short, shard_len, chunk.len() / shard_len)] {
            let sources: Vec<&[u8]> = shards[..count].iter().map(|shard| &shard[from..to]).collect();
            let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|parity| &mut parity[from..to]).collect();
            self.parity.run(&sources, &mut outputs);
        }
        Ok(())
    }

    /// What makes the wanted shards from `k` of those that are present. These are in the order of preference: the first `k` are read.
    pub fn repair(&self, present: &[usize], wanted: &[usize]) -> Result<Repair, Error> {
        Repair::new(self.scheme, self.kernel, present, wanted)
    }

    fn check_parity(&self, len: usize, parity: &[&mut [u8]]) -> Result<(), Error> {
        check_count(self.scheme.parity(), parity.len())?;
        check_lengths(len, parity)
    }
}

pub(crate) fn check_count(need: usize, have: usize) -> Result<(), Error> {
    if have == need { Ok(()) } else { Err(Error::ShardCount { need, have }) }
}

/// That all shards have one length.
pub(crate) fn check_lengths<S: AsRef<[u8]>>(need: usize, shards: &[S]) -> Result<(), Error> {
    match shards.iter().map(|shard| shard.as_ref().len()).enumerate().find(|(_, have)| *have != need) {
        None => Ok(()),
        Some((place, have)) => Err(Error::ShardLength { place, need, have }),
    }
}
