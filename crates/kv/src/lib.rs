//! KV-cache blocks of inference: memory in front, bundles in a volume behind.
//!
//! A [`Cache`] is a directory of a volume. Blocks are found by a digest of what made them (a [`Fingerprint`]) and the key that the
//! caller gives, so that a block of another model or layout is never found. They lie in bundles, files that are written once
//! and say at their end what they hold; [`bundle`] is about these bytes alone, which are drawn in `docs/kv.md`. What is
//! returned was compared with the sum that it was stored with: a wrong block is a miss.
//!
//! This crate speaks to the door and knows neither a node nor a socket. Time and random numbers are arguments.
//!
//! It must not know a node or a socket, hold durable state of its own, or panic on foreign bytes.

#![forbid(unsafe_code)]

pub mod bundle;
mod cache;
mod digest;
mod files;
mod ghost;
mod index;
mod memory;
mod options;
mod reading;
mod shelf;
mod state;
mod stats;
mod sum;
mod ticket;
mod writer;

pub use cache::{Cache, Hit, Stored};
pub use digest::{Digest, Fingerprint, Namer};
pub use options::{Admit, Clock, Options};
pub use stats::Stats;
