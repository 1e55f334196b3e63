//! Names to versions to chunks and holders, on an ordered transactional key-value store.
//!
//! [`kv`] is the interface: four calls that a file on this machine, a PostgreSQL server, another node and a
//! simulation can all serve. [`engine`] holds the stores behind it. Nothing here knows drives, peers or HTTP.

pub mod engine;
mod error;
pub mod kv;
pub mod names;
pub mod rows;

pub use error::{CatalogError, ErrorKind, Result};
pub use kv::{BoxFuture, Catalog, Check, Commit, Outcome, Page, Range, Row, Watch, Write};
