//! Raw I/O and workloads: what a drive, a wire or a ring does under a stated load, and how that is measured.
//!
//! It must not know a cluster or compare anything: that is for the benches and the gate.

pub mod machine;
pub mod measure;
pub mod new_ring;
pub mod process;
pub mod raw;
pub mod scratch;
pub mod subject;
pub mod workload;

use stoker_terminal::{clock, failure, out, progress, rng, size, sys};
