//! The walk of every vector kernel over sources and outputs.

use crate::scheme::{DATA_MAX, PARITY_MAX};

/// The widest vector.
pub const TAIL: usize = 64;

/// Raw views of sources and outputs, which all have one length.
pub struct Shards<'a> {
    sources: [*const u8; DATA_MAX],
    source_count: usize,
    outputs: [*mut u8; PARITY_MAX],
    len: usize,
    /// The outputs are borrowed as long as their pointers are around.
    _borrowed: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Shards<'a> {
    /// Panics if they differ in length or are too many: the kernels trust this.
    pub fn new(sources: &[&'a [u8]], outputs: &'a mut [&mut [u8]]) -> Self {
        let len = outputs[0].len();
        assert!(sources.len() <= DATA_MAX && outputs.len() <= PARITY_MAX, "too many shards");
        assert!(sources.iter().all(|source| source.len() == len), "sources as long as the outputs");
        assert!(outputs.iter().all(|output| output.len() == len), "outputs of one length");
        let mut shards = Self {
            sources: [std::ptr::null(); DATA_MAX],
            source_count: sources.len(),
            outputs: [std::ptr::null_mut(); PARITY_MAX],
            len,
            _borrowed: std::marker::PhantomData,
        };
        for (place, source) in shards.sources.iter_mut().zip(sources) {
            *place = source.as_ptr();
        }
        for (place, output) in shards.outputs.iter_mut().zip(outputs) {
            *place = output.as_mut_ptr();
        }
        shards
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn sources(&self) -> &[*const u8] {
        &self.sources[..self.source_count]
    }

    /// The first outputs. Panics if there is none of them.
    pub fn outputs<const M: usize>(&self) -> [*mut u8; M] {
        std::array::from_fn(|at| self.outputs[at])
    }
}

/// The last bytes of all sources, filled up with zeros, so that a kernel needs whole vectors only.
pub fn with_tail(
    from: usize,
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    run: impl FnOnce(&[&[u8]], &mut [&mut [u8]]),
) {
    let mut inputs = [[0; TAIL]; DATA_MAX];
    let mut results = [[0; TAIL]; PARITY_MAX];
    for (input, source) in inputs.iter_mut().zip(sources) {
        input[..source.len() - from].copy_from_slice(&source[from..]);
    }
    let input: [&[u8]; DATA_MAX] = std::array::from_fn(|at| &inputs[at][..]);
    let mut result = results.each_mut().map(|result| &mut result[..]);
    run(&input[..sources.len()], &mut result[..outputs.len()]);
    for (output, result) in outputs.iter_mut().zip(&results) {
        let len = output.len() - from;
        output[from..].copy_from_slice(&result[..len]);
    }
}

/// `run` for the module that it stands in, which has a vector type, `WIDTH` and the functions `zero`, `load`, `store`, `halves`, `table`
/// and `add`, all with the same instructions. `$wide` and `$narrow` are vectors at once of each shard, for up to four outputs and more.
macro_rules! walk {
    ($features:literal, $entry:ty, $wide:literal, $narrow:literal) => {
        /// Makes `M` outputs, `U` vectors of each at a time, as far as whole steps go, and says how far that was.
        ///
        /// # Safety
        /// The machine has the instructions, and `M` is the number of outputs.
        #[target_feature(enable = $features)]
        unsafe fn steps<const M: usize, const U: usize>(
            tables: &[$entry],
            shards: &Shards<'_>,
            from: usize,
        ) -> usize {
            let (sources, outputs) = (shards.sources(), shards.outputs::<M>());
            assert!(tables.len() >= sources.len() * M, "a table for each factor");
            let mut at = from;
            while at + U * WIDTH <= shards.len() {
                let mut sums = [[zero(); U]; M];
                let mut entry = tables.as_ptr();
                for &source in sources {
                    // SAFETY: `at` and all vectors of this step are inside of the shards; `entry` stays inside of the tables, of which
                    // there are `M` for each source.
                    unsafe {
                        let halves: [_; U] =
                            std::array::from_fn(|u| halves(load(source.add(at + u * WIDTH))));
                        for sums in &mut sums {
                            let table = table(&*entry);
                            entry = entry.add(1);
                            for (sum, halves) in sums.iter_mut().zip(halves) {
                                *sum = add(*sum, halves, table);
                            }
                        }
                    }
                }
                for (output, sums) in outputs.iter().zip(sums) {
                    for (u, sum) in sums.into_iter().enumerate() {
                        // SAFETY: as above; outputs are borrowed for writing.
                        unsafe { store(output.add(at + u * WIDTH), sum) };
                    }
                }
                at += U * WIDTH;
            }
            at
        }

        #[target_feature(enable = $features)]
        unsafe fn all_steps<const M: usize, const U: usize>(tables: &[$entry], shards: &Shards<'_>) -> usize {
            // SAFETY: the caller's promise is the same.
            unsafe {
                let at = steps::<M, U>(tables, shards, 0);
                steps::<M, 1>(tables, shards, at)
            }
        }

        /// Computes the outputs.
        ///
        /// # Safety
        /// The machine has the instructions.
        pub unsafe fn run(tables: &[$entry], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
            let count = outputs.len();
            let shards = Shards::new(sources, outputs);
            // SAFETY: the caller promises the instructions; `M` is the number of outputs.
            let done = unsafe {
                match count {
                    1 => all_steps::<1, $wide>(tables, &shards),
                    2 => all_steps::<2, $wide>(tables, &shards),
                    3 => all_steps::<3, $wide>(tables, &shards),
                    4 => all_steps::<4, $wide>(tables, &shards),
                    5 => all_steps::<5, $narrow>(tables, &shards),
                    6 => all_steps::<6, $narrow>(tables, &shards),
                    7 => all_steps::<7, $narrow>(tables, &shards),
                    8 => all_steps::<8, $narrow>(tables, &shards),
                    _ => unreachable!("a pass has 1 to 8 outputs"),
                }
            };
            if done < outputs[0].len() {
                with_tail(done, sources, outputs, |sources, outputs| {
                    // SAFETY: the caller promises the instructions.
                    unsafe { run(tables, sources, outputs) }
                });
            }
        }
    };
}
