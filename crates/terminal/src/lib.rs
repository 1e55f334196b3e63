//! What every command shares: output and colours, progress, sizes and spans of time, failures with a hint, the clock, and the
//! system calls that the standard library does not offer.
//!
//! It must not know what a command does: no node, no configuration, no network.
//!
//! Data goes to stdout, messages to stderr, and only [`out`] prints. Clocks are read in [`clock`], system calls are made in [`sys`].

pub mod clock;
pub mod failure;
pub mod journal;
pub mod out;
pub mod paint;
pub mod progress;
pub mod rng;
pub mod shell;
pub mod size;
pub mod small_file;
pub mod span;
pub mod sys;
