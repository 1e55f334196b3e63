//! Objectives and break-fix: what is good enough, what is done about what is not, and who is told.
//!
//! [`Reflex::step`] takes [`Observation`]s and the time and returns [`Command`]s; a driver measures and carries out. The state machine
//! is one table ([`table::TABLE`]); `docs/slo.md` draws it. [`Outbox`] keeps what is to be told until it is taken.
//!
//! This crate does no I/O, reads no clock and knows no node: a seed replays every decision.
//!
//! It must not do I/O, read a clock, or know a node.

#![forbid(unsafe_code)]

mod anomaly;
mod breach;
mod budget;
mod command;
pub mod config;
pub mod events;
pub mod fault;
mod latency;
pub mod objective;
mod observation;
pub mod order;
mod outbox;
pub mod part;
mod quarantine;
mod reflex;
pub mod table;
mod time;
mod window;

pub use budget::{BudgetStatus, Burn};
pub use command::Command;
pub use config::Slo;
pub use latency::Latencies;
pub use objective::Indicator;
pub use observation::{Duty, Fact, Observation, Presence};
pub use outbox::{Answer, NOTICES_MAX, Notice, Outbox};
pub use part::{Inventory, Location, NodePlace, PartId, PartKind, Piece};
pub use reflex::{INCIDENTS_MAX, Memory, PartStatus, Reflex};
pub use time::Time;
