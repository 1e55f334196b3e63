//! The file system on a real node.

mod flights;
mod gate;
mod model;
mod newer;
mod others;
mod posix;
mod rig;
mod semantics;
