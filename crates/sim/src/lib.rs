//! Seeded simulation of Stoker: one ring over a simulated drive, crashed at every I/O boundary; a replicated log over machines that crash,
//! pause and do not hear each other; and whole clusters of real nodes over simulated machines, network, catalog and lake.
//!
//! Same seed, same history. A failure prints the one command that replays it.
//!
//! It must not be linked into the product.

#![forbid(unsafe_code)]

#[cfg(feature = "cell")]
pub mod cell;
pub mod drive;
pub mod replication;
pub mod ring;
pub mod rng;
