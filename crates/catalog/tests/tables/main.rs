//! Checkpoint sets, seals, receipts and usage: what they promise, on the engines that need no server.

mod audit;
mod between;
mod fixture;
mod links;
mod names;
mod receipts;
mod seal_model;
mod seals;
mod set_model;
mod set_races;
mod sets;
mod usage;
