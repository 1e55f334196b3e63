//! The program as people call it.

mod bundle;
mod catalog;
mod cells;
mod cli;
mod datasets;
mod doctor;
mod encrypted;
mod files;
mod fleet;
mod gate;
mod leaving;
mod logs;
#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../faults/net.rs"]
mod net;
mod outages;
mod refusals;
mod registry;
mod rig;
mod service;
mod sets;
mod settings;
#[path = "../storm/mod.rs"]
mod storm;
mod tenants;
mod tiers;
mod tls;
mod up;
mod versions;
mod waiting;
mod witness;
