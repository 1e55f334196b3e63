//! The client library and the server of its protocol.

mod door;
mod hatch;
mod hostile;
mod lease_peers;
mod leases;
mod lines;
mod memory;
mod node;
mod open_reads;
mod tls;
mod users;
