//! The file system on a real node.

mod model;
mod others;
mod rig;
mod semantics;
