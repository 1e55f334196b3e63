//! An ordered transactional key-value store, for the names of a cluster.
//!
//! [`kv`] is the interface: four calls that a file on this machine, a PostgreSQL server, another node and a
//! simulation can all serve. [`engine`] holds the stores behind it, [`remote`] the way to one on another node.
//!
//! It must not know rows, drives, transports or HTTP.

pub mod backup;
mod counted;
pub mod engine;
mod epoch;
mod error;
pub mod kv;
pub mod remote;
mod wire;

pub use counted::{Calls, Counted};
pub use epoch::Epoch;
pub use error::{CatalogError, ErrorKind, Result};
pub use kv::{BoxFuture, Catalog, Check, Commit, Health, Outcome, Page, Range, Row, Snapshot, Watch, Write};
pub use wire::{WIRE_BYTES_MAX, Wire};
