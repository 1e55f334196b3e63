//! Which nodes hold a chunk: rendezvous hashing with weights over the nodes of a cluster, those of one cell first.
//!
//! Pure and in whole numbers: every node that has the same candidates computes the same places, on any machine. A node
//! that joins or leaves moves only the chunks that it gains or loses.

mod candidates;
mod domain;
mod group;
mod key;
mod score;

pub use candidates::{Candidate, Candidates, Rank};
pub use domain::{Domain, Spread};
pub use group::{Group, Move, Narrow};
pub use key::Key;
