//! What a node is given by its machine: the clock, random numbers, the runtime that its tasks run in, and the directory that says who it is.
//! A simulation gives its own clock, chance and tasks ([`world`]); nothing above knows the difference.
//!
//! It must not know drives, peers or lakes, nor more of a catalog than its errors, which it puts into the words of the door ([`error`]).

#![forbid(unsafe_code)]

pub mod clock;
pub mod error;
pub mod identity;
pub mod world;
