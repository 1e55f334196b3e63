//! HTTP beside the doors: health, metrics, status.
//!
//! [`Admin`] answers machines that watch a node. It holds nothing of its own: every answer is asked from the door, or
//! read from the kernel, at the moment of the request. It changes nothing.

#![forbid(unsafe_code)]

mod admin;
mod answer;
mod metrics;
mod process;
#[cfg(test)]
mod tests;

pub use admin::{Admin, AdminOptions, Source};
pub use metrics::exposition;
