//! FUSE to the file system: an adapter that turns requests of the kernel into calls of [`Files`] and back. What it
//! keeps are open directories, and who has which file open.
//!
//! It must not hold durable state, and must not import the engine.

#![forbid(unsafe_code)]

mod adapter;
mod convert;
mod crew;
mod kernel;
mod locks;
mod mount;
mod passes;

pub use mount::{Mount, MountOptions};
pub use stoker_files::Files;
