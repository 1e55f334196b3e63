//! The file system on a real node.

mod model;
mod rig;
mod semantics;
