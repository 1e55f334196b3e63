//! What can be wrong with shards that a caller brings.

use std::fmt;
use std::ops::Range;

use crate::kernel::Kernel;
use crate::scheme::{DATA_MAX, PARITY_MAX, Scheme, ShardSet};

/// Why nothing was computed. The same call fails again; [`Self::TooFew`] and [`Self::Lost`] until more shards are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No stripe can be as wide.
    Scheme {
        /// Data shards that were asked for.
        data: usize,
        /// Parity shards that were asked for.
        parity: usize,
    },
    /// Text that is no scheme.
    SchemeText,
    /// The processor lacks the instructions.
    Kernel(Kernel),
    /// No chunk can be as long.
    ChunkLength(usize),
    /// A range that does not lie in the chunk.
    Range {
        /// What was asked for.
        range: Range<usize>,
        /// Length of the chunk.
        chunk_len: usize,
    },
    /// Another number of shards than the call takes.
    ShardCount {
        /// As many as it takes.
        need: usize,
        /// As many as were given.
        have: usize,
    },
    /// A shard of another length than it must have.
    ShardLength {
        /// Place of the shard in what was given.
        place: usize,
        /// Its length, if it were right.
        need: usize,
        /// Its length.
        have: usize,
    },
    /// A number that no shard of the scheme has.
    ShardIndex {
        /// The number.
        shard: usize,
        /// Shards of the scheme.
        width: usize,
    },
    /// A shard that was named twice.
    ShardTwice {
        /// Its number.
        shard: usize,
    },
    /// A shard is wanted that is there.
    ShardPresent {
        /// Its number.
        shard: usize,
    },
    /// Fewer shards than data shards: what is missing cannot be computed.
    TooFew {
        /// The scheme.
        scheme: Scheme,
        /// What is not there.
        missing: ShardSet,
    },
    /// As [`Self::TooFew`], for a range of the chunk: the bytes that cannot be had. The others can be read.
    Lost {
        /// The scheme.
        scheme: Scheme,
        /// Shards that are not there.
        missing: ShardSet,
        /// Places in the chunk, in order.
        ranges: Vec<Range<usize>>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme { data, parity } => write!(
                f,
                "{data}+{parity} is not supported: 1 to {DATA_MAX} data shards and 1 to {PARITY_MAX} parity shards are"
            ),
            Self::SchemeText => f.write_str("not a scheme: expected data and parity shards, such as 8+2"),
            Self::Kernel(kernel) => write!(f, "this processor does not have {kernel}"),
            Self::ChunkLength(len) => write!(f, "a chunk of {len} bytes is too long for a stripe"),
            Self::Range { range, chunk_len } => {
                write!(f, "bytes {} to {} are not in a chunk of {chunk_len} bytes", range.start, range.end)
            }
            Self::ShardCount { need, have } => write!(f, "{need} shards are needed, {have} were given"),
            Self::ShardLength { place, need, have } => {
                write!(f, "shard at place {place} has {have} bytes instead of {need}")
            }
            Self::ShardIndex { shard, width } => write!(f, "no shard {shard} in a stripe of {width}"),
            Self::ShardTwice { shard } => write!(f, "shard {shard} was named twice"),
            Self::ShardPresent { shard } => write!(f, "shard {shard} is both present and wanted"),
            Self::TooFew { scheme, missing } => {
                write!(f, "{}; missing shards: {missing}", few(*scheme, *missing))
            }
            Self::Lost { scheme, missing, ranges } => {
                write!(f, "{}; missing shards: {missing}; lost bytes:", few(*scheme, *missing))?;
                ranges.iter().enumerate().try_for_each(|(at, range)| {
                    let comma = if at == 0 { "" } else { "," };
                    write!(f, "{comma} {} to {}", range.start, range.end)
                })
            }
        }
    }
}

/// How many shards are left, in words.
fn few(scheme: Scheme, missing: ShardSet) -> String {
    let left = scheme.width() - missing.len();
    format!("{left} of {} shards left, {} needed", scheme.width(), scheme.data())
}

impl std::error::Error for Error {}
