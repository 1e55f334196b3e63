//! Nodes together: who is there ([`membership`]), which nodes hold a chunk ([`placement`]), and how they talk
//! ([`transport`]). Knows no catalog, no drive, no lake and no HTTP.

#![forbid(unsafe_code)]

pub mod membership;
pub mod placement;
pub mod transport;
