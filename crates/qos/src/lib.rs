//! Admission: who may use a drive, a network link or a lake now. (R16, D197)
//!
//! A [`Scheduler`] stands in front of one resource. Work says whose it is ([`Tag`]) and what it costs ([`Cost`]); it is granted at
//! once, or waits until [`Scheduler::next`] grants it, and gives its place back when it is done. What a flow of work is promised and
//! allowed is a [`Spec`]; which flow it is, is decided by the rule ([`Match`]) that says most about it.
//!
//! A request passes four questions, in this order:
//!
//! 1. Is there room? Operations and bytes in flight have limits, and a resource whose capacity is known is not given more than that.
//! 2. May its flow go on? A flow at its ceiling is set aside until a stated time; it costs nobody anything meanwhile.
//! 3. Is a promise due? Flows behind their floor go first, the one that has been owed longest before others.
//! 4. Whose turn is it? What is left is shared: among [`Group`]s by weight, so that repair and scrub have their part however many
//!    clients there are, and in a group among its flows. Interactive work goes first, but only within its share.
//!
//! Nothing waits while there is room and its ceiling lets it go. A late comer starts where the others are, with neither credit nor debt.
//!
//! Promises are checked when they are made ([`Scheduler::reserve`]); a promise over many nodes is split by [`split`].
//!
//! It must not do I/O, read a clock, or know what a drive, a network or a lake is.

#![forbid(unsafe_code)]

mod bucket;
mod cell;
mod counters;
mod flow;
mod group;
mod meter;
mod requests;
mod reservation;
mod rules;
mod scheduler;
mod settings;
mod split;
mod table;
mod tag;
#[cfg(test)]
mod tests;

pub use cell::{can_promise, left};
pub use counters::Counters;
pub use group::{GROUPS, Group};
pub use requests::Ticket;
pub use reservation::{Refusal, ReservationId};
pub use rules::Match;
pub use scheduler::{FlowReport, Granted, Next, Overload, Scheduler, Submitted};
pub use settings::{COST_BYTES_MAX, Capacity, Cost, Latency, Rate, Settings, Spec, WEIGHT_MAX};
pub use split::{Demand, Unsplit, is_worth, split};
pub use tag::{CLASSES, Class, JobId, Tag, TenantId, VolumeId};
