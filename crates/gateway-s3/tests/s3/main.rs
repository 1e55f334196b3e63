//! The gateway over real sockets, in front of a real node, with a small client of its own.

mod access;
mod attacker;
mod buckets;
mod client;
mod copies;
mod crowds;
mod forms;
mod hostile;
mod lifecycle;
mod limits;
mod listings;
mod matrix;
mod presigned;
#[path = "../../../oidc/tests/provider/mod.rs"]
mod provider;
mod reads;
mod rig;
mod sets;
mod settings;
mod sts;
mod tls;
mod uploads;
mod versions;
mod writes;
