//! A read-only OCI registry that pulls through: `/v2/` over a volume of the cluster, in front of an upstream.
//!
//! A [`Registry`] listens. What a request means is decided in [`name`]; what is in the volume is the matter of the shelf, and what is not
//! is brought from the [`Upstream`] once, however many ask, checked against its digest before it is there. A tag is remembered for a while,
//! and for longer if the upstream does not answer. What was not asked for longest goes when there is more than the budget. (D252)
//!
//! It must not know a node, hold durable state of its own, write what it did not verify, or panic on foreign bytes.

#![forbid(unsafe_code)]

mod answer;
mod digest;
mod fault;
mod fetch;
pub mod name;
mod server;
mod shelf;
mod stats;
mod upstream;

pub use server::{Registry, RegistryOptions};
pub use upstream::Upstream;

/// Time, as an argument: milliseconds since 1970.
pub type NowMs = std::sync::Arc<dyn Fn() -> u64 + Send + Sync>;

#[cfg(test)]
mod tests;
