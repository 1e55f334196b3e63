//! NFSv3 and MOUNT on one TCP port, without a portmapper: requests of clients, each a few calls of the file system. (D58)
//!
//! Nothing durable is here. A handle says by itself what it is of (see `handle`), so it survives restarts and works on
//! every node. What was written and not committed waits in the file system's bounded buffers; the write verifier
//! changes when some of it is lost, and clients send it again: also when another node published the file meanwhile. Then what
//! waited here is older than that, and is dropped.
//!
//! Every byte that comes in is hostile: records, connections, requests under way and the memory of all of them have
//! limits, each source has a share of them (see `admission`), and at a limit the connection is not read from.
//!
//! It must not hold durable state or a table of handles, and must not import the engine.

#![forbid(unsafe_code)]

mod access;
mod admission;
mod connection;
mod counters;
mod export;
mod handle;
mod lru;
mod mount;
mod nfs;
mod options;
mod record;
mod replies;
mod rpc;
mod server;
mod volumes;
mod xdr;

pub use export::{Export, Network};
pub use handle::HandleKey;
pub use options::NfsOptions;
pub use server::NfsGateway;
