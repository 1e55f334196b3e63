//! Membership: a seeded simulation of many cores, and a few real nodes on sockets.

mod cell;
mod groups;
mod network;
mod placement;
mod rules;
mod sockets;
