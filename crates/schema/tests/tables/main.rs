//! Names, checkpoint sets and usage: what they promise, on the engines that need no server.

mod audit;
mod between;
mod directories;
mod fixture;
mod lead;
mod links;
mod names;
mod past;
mod quota;
mod set_model;
mod set_races;
mod sets;
mod usage;
