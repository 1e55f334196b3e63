//! The transport over real sockets: what callers, services and operators see.

#[path = "transport/calls.rs"]
mod calls;
#[path = "transport/faults.rs"]
mod faults;
#[path = "transport/join.rs"]
mod join;
#[path = "transport/proxy.rs"]
mod proxy;
#[path = "transport/refusals.rs"]
mod refusals;
#[path = "transport/rig.rs"]
mod rig;
#[path = "transport/stranger.rs"]
mod stranger;
