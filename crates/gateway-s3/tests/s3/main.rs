//! The gateway over real sockets, in front of a real node, with a small client of its own.

mod access;
mod attacker;
mod buckets;
mod client;
mod copies;
mod crowds;
mod forms;
mod hostile;
mod limits;
mod listings;
mod matrix;
mod presigned;
mod reads;
mod rig;
mod sets;
mod settings;
mod tls;
mod uploads;
mod versions;
mod writes;
