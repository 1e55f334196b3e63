//! Datasets: many small files become few tar shards, and a seal says where each sample lies in them.
//!
//! [`pack`] writes shards and a seal, [`seal_shards`] makes a seal for shards that are there already; both speak to the door
//! and know neither a node nor a socket. [`fetch`] reads samples ahead, in the [`order`] of an epoch. [`tar`] and [`seal`] are about bytes alone: they do no I/O, and no bytes make them
//! panic. The seal's bytes are drawn in `docs/seal.md`.
//!
//! It must not know a node or a socket, and must not panic on foreign bytes.

#![forbid(unsafe_code)]

mod fault;
mod feed;
pub mod fetch;
mod inputs;
mod meter;
pub mod order;
mod pack;
mod plan;
mod readback;
pub mod seal;
mod sealing;
mod shard;
pub mod tar;
mod tree;

pub use fault::Fault;
pub use inputs::Source;
pub use meter::{Meter, Progress};
pub use pack::{JOBS_DEFAULT, PackOptions, PackReport, SHARD_BYTES_DEFAULT, SHARD_BYTES_MIN, pack};
pub use sealing::{SealOptions, SealReport, seal_shards};
