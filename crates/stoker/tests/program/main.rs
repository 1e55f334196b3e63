//! The program as people call it.

mod bundle;
mod catalog;
mod cells;
mod cli;
mod datasets;
mod doctor;
mod files;
mod fleet;
mod gate;
mod refusals;
mod rig;
mod sets;
mod settings;
#[path = "../storm/mod.rs"]
mod storm;
mod up;
mod waiting;
