//! Repair of lost shards: a matrix that is computed once for what is lost and applied to any number of stripes.

use crate::codec::{check_count, check_lengths};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::matrix::{self, Rows};
use crate::program::Program;
use crate::scheme::{Scheme, ShardSet};

/// Makes the wanted shards from `k` others. All wanted ones come from one read of the sources.
#[derive(Clone, Debug)]
pub struct Repair {
    kernel: Kernel,
    sources: Vec<usize>,
    wanted: Vec<usize>,
    rows: Rows,
    program: Program,
}

impl Repair {
    pub(crate) fn new(
        scheme: Scheme,
        kernel: Kernel,
        present: &[usize],
        wanted: &[usize],
    ) -> Result<Self, Error> {
        let (there, asked) = (scheme.set(present)?, scheme.set(wanted)?);
        if let Some(shard) = asked.iter().find(|&shard| there.contains(shard)) {
            return Err(Error::ShardPresent { shard });
        }
        if there.len() < scheme.data() {
            return Err(Error::TooFew { scheme, missing: ShardSet::all(scheme).without(there) });
        }
        let sources = present[..scheme.data()].to_vec();
        let inverse = matrix::inverted(scheme, &sources);
        let row = |&shard: &usize| matrix::combined(&matrix::row(scheme, shard), &inverse);
        let rows: Rows = wanted.iter().map(row).collect();
        let program = Program::new(kernel, &rows);
        Ok(Self { kernel, sources, wanted: wanted.to_vec(), rows, program })
    }

    /// The shards to read, in the order in which [`Self::run`] takes them.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// The shards that are made, in the order in which [`Self::run`] fills them.
    pub fn wanted(&self) -> &[usize] {
        &self.wanted
    }

    /// Makes the wanted shards, or the same range of each from that range of the sources.
    pub fn run(&self, sources: &[&[u8]], wanted: &mut [&mut [u8]]) -> Result<(), Error> {
        check_count(self.sources.len(), sources.len())?;
        check_count(self.wanted.len(), wanted.len())?;
        check_lengths(sources[0].len(), sources)?;
        check_lengths(sources[0].len(), wanted)?;
        self.program.run(sources, wanted);
        Ok(())
    }

    /// The same for some of the wanted shards, in the order given. Panics if one of them is not wanted.
    pub(crate) fn narrowed(&self, wanted: &[usize]) -> Program {
        let place =
            |shard: &usize| self.wanted.iter().position(|wanted| wanted == shard).expect("a wanted shard");
        let rows: Rows = wanted.iter().map(|shard| self.rows[place(shard)].clone()).collect();
        Program::new(self.kernel, &rows)
    }
}
