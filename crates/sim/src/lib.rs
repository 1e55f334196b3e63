//! Seeded simulation of Stoker: the real decision code over simulated drives, crashed at every I/O boundary.
//!
//! Same seed, same history. A failure prints the one command that replays it.

#![forbid(unsafe_code)]

pub mod drive;
pub mod ring;
pub mod rng;
