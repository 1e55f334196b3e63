//! Decisions about tiers, pure: what becomes of a copy in a second lake, which files rules move, and which objects expire.
//!
//! It must not do I/O, read a clock, or know a lake or a catalog.

#![forbid(unsafe_code)]

pub mod copies;
pub mod cost;
pub mod lifecycle;
pub mod policy;
