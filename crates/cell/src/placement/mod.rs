//! Which nodes hold a chunk: rendezvous hashing with weights over the nodes of a cell.
//!
//! Pure and in whole numbers: every node that has the same [`Map`] computes the same places, on any machine. A node
//! that joins or leaves moves only the chunks that it gains or loses.

mod candidates;
mod key;
mod map;
mod score;

pub use candidates::{COPIES_MAX, Candidate, Candidates, Choice, Demand, Rank};
pub use key::Key;
pub use map::{Domain, Map, Member, Purpose, Spread, State};
