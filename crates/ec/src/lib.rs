//! Erasure coding: a chunk becomes `k` data shards and `m` parity shards, and any `k` of them give it back.
//!
//! The code is Reed-Solomon over GF(2^8), systematic, with the Cauchy matrix of ISA-L, so that both make the same bytes. A [`Scheme`]
//! says how wide a stripe is, a [`Layout`] where the bytes of a chunk lie in its shards. A [`Codec`] makes parity and verifies it. A
//! [`Repair`] is computed once for the shards that are lost and applied to any number of stripes; it reads `k` shards for all of them. A
//! [`ReadPlan`] does the same for a range of bytes and reads no more than that range needs. A [`ShardHeader`] says which shard of which
//! stripe some bytes are, so that good bytes in the wrong place are refused. A [`Kernel`] is the way in which a processor multiplies.
//!
//! Whoever calls it brings the bytes and takes them away. Shards that cannot be had are named; no byte is made up.
//!
//! It must not do I/O, read a clock, know nodes or drives, or panic on foreign bytes.

#![deny(unsafe_code)]

mod codec;
mod error;
mod field;
mod header;
mod kernel;
mod layout;
mod matrix;
mod program;
mod read;
mod repair;
mod scheme;
mod verify;

pub use codec::Codec;
pub use error::Error;
pub use header::{Identity, Misplaced, SHARD_HEADER_LEN, ShardHeader};
pub use kernel::Kernel;
pub use layout::{CHUNK_LEN_MAX, Layout, Piece, SHARD_UNIT};
pub use read::{ReadPlan, ShardRange};
pub use repair::Repair;
pub use scheme::{DATA_MAX, PARITY_MAX, Scheme, ShardSet};
pub use verify::{Verdict, WrongShard};
