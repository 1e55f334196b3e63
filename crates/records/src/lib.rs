//! What is written outside the catalog, and from which a catalog can be rebuilt: name records on drives, metadata and keys of lake objects,
//! the mirror of volumes and access keys beside it. And what everybody who reads these needs: lists of chunks, errors of the parts as those of
//! the door.
//!
//! It must not know peers, placement or who asks.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod error;
pub mod lake_file;
pub mod lake_keys;
pub mod layout;
pub mod mirror;
pub mod name_record;
pub mod named_lake;
pub mod properties;
pub mod signature;
pub mod wrapping;

#[cfg(test)]
mod testing;
