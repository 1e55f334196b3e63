//! HTTP beside the doors: health, metrics, the API and the console.
//!
//! [`Admin`] answers machines and people who watch or operate a node. Every answer is asked from the door, or read from the
//! kernel, at the moment of the request. What it keeps is small, bounded and gone with the process: sessions of the console,
//! the recent past for plots, the last changing calls. Whatever changes something goes through the door.
//!
//! It must not hold durable state, and must not know more than the door.

#![forbid(unsafe_code)]

mod access;
mod admin;
mod answer;
mod api;
mod audit;
mod capacity;
mod clock;
mod console;
mod health;
mod login;
mod metrics;
mod process;
mod rate;
mod recent;
mod series;
mod session;
mod sources;
#[cfg(test)]
mod tests;

pub use admin::{Admin, AdminOptions};
pub use api::can_be_repaired;
pub use metrics::exposition;
pub use rate::Rate;
pub use sources::{Event, Events, Health, HealthSource, PointSink, Source};
