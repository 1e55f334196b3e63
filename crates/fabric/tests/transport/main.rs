//! The transport over real sockets: what callers, services and operators see.

mod calls;
mod faults;
mod join;
mod proxy;
mod refusals;
mod rig;
mod speed;
mod stranger;
