//! The ring: a crash-proof append log on one drive.
//!
//! Start with [`Ring`]: append, read, delete, iterate. Inside, [`engine`] decides (pure), a driver does the I/O,
//! [`recovery`] reads a drive back after any crash. `docs/data-file.md` draws the bytes.

pub mod admission;
pub mod buffer;
pub mod engine;
pub mod error;
pub mod index;
pub mod read;
pub mod recovery;
pub mod settings;
pub mod stats;
mod sys;
pub mod tables;
