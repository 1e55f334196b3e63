//! Output of jobs in a volume: written while a job runs, read and followed by anybody who may read the volume.
//!
//! A writer reads what a program says into a [`Queue`] of bounded size. [`pipe`] takes it from there about once a second and adds it as a
//! [frame](mod@frame) to a chunk, a file of the layout that [`LogPlace`] knows. A chunk belongs to the writer that made it, so that
//! several of them in one directory need no agreement. The program never waits for the network: if the node is away the queue fills up,
//! and then what is oldest is dropped and counted, unless the writer is strict.
//!
//! A [`Reader`] merges the chunks of all nodes and streams by the time at which each piece was said. It takes nothing in a chunk on trust: a
//! damaged one costs what is in it, and is told.
//!
//! This crate speaks to the door and knows neither a node nor a socket. Time is an argument.
//!
//! It must not know a node or a socket, read a clock, print, or panic on foreign bytes.

#![forbid(unsafe_code)]

mod chunk;
pub mod frame;
mod layout;
mod lines;
mod pipe;
mod queue;
mod reader;
mod source;

pub use layout::{LogPlace, NODE_LEN_MAX, Stream, check_node_name};
pub use lines::{LINE_LEN_MAX, Line};
pub use pipe::{PipeOptions, PipeReport, pipe};
pub use queue::{Batch, Queue, QueueOptions};
pub use reader::{Reader, Select};

/// Time, as an argument.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

#[cfg(test)]
mod tests;
