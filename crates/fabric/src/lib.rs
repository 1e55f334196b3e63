//! Nodes together: who is there ([`membership`]), which nodes hold a chunk ([`placement`]), and how they talk
//! ([`transport`]).
//!
//! It must not know catalogs, drives, lakes or HTTP.

#![forbid(unsafe_code)]

pub mod membership;
pub mod placement;
pub mod transport;
