//! `stoker config`: what a node is set to, and where each setting comes from.

mod export;
mod verb;

pub use stoker_agent::config::*;
pub use verb::{Verb, run};
