//! Tests of the bytes: golden files, round trips, damage, and the tables of rules.
//!
//! One binary, so that plain `cargo test` links once.

mod checksum;
mod damage;
mod golden;
mod hexdump;
mod identity;
mod ids;
mod larger_entries;
mod name;
mod negotiation;
mod reseal;
mod round_trip;
mod sample;
mod strategy;
