//! What `bench commit` and `bench read` share: two nodes of one cell, and clients that keep one of them busy.

mod clients;
mod pair;

pub use clients::{Client, Until, round};
pub use pair::{Pair, Place, Seat, Security};
