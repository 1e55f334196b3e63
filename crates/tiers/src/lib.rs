//! Decisions about tiers, pure: what becomes of a copy in a second lake, and which files rules move.
//!
//! Nothing here asks a lake, a catalog or a clock.

#![forbid(unsafe_code)]

pub mod copies;
pub mod cost;
pub mod policy;
