//! A node through its door, alone and in a cell.

mod alone;
mod cell;
mod cells;
mod corners;
mod drain;
mod drives;
mod edits;
mod files;
mod fleet;
mod harness;
mod judged;
mod lake_limits;
mod lake_trouble;
mod leases;
mod links;
mod minutes;
mod power;
mod quota;
mod reads;
mod records;
mod salvage;
mod secrets;
mod sets;
