//! Jobs: what a job says that it needs ([`read_spec`]), how far it is ([`Job`]), what is staged next and when it will be there ([`plan`]).
//!
//! Everything here is decided from arguments: rows, measurements and the time come in, states and an order of work go out. The node that
//! leads ([`stoker-node`]'s module `jobs`) measures, asks, and carries out.
//!
//! A spec is text of a user. It is read by [`yaml`], which says line and column of whatever it does not understand, filled up with
//! defaults, and its templates are replaced once it is known for whom it is ([`expand`]). What a source means in the names of a store says
//! [`Place`].
//!
//! When jobs write their checkpoints so that they do not get in each other's way says [`broker`].
//!
//! It must not do I/O, read a clock, move bytes, or know a node.

#![forbid(unsafe_code)]

mod amount;
pub mod broker;
mod job;
mod place;
mod plan;
mod script;
mod spec;
mod template;
pub mod yaml;

pub use amount::{human_bytes, parse_bytes, parse_span_ms};
pub use job::{Event, Job, REASON_LEN_MAX, STEPS_MAX};
pub use place::Place;
pub use plan::{Limits, Plan, SourceNeed, Verdict, Want, plan};
pub use script::{DIRECTIVE, spec_of_script};
pub use spec::{RESERVATION_MS_DEFAULT, SPEC_BYTES_MAX, Spec, TIME_LIMIT_MS_DEFAULT, check_spec, read_spec};
pub use template::{Values, expand};
pub use yaml::Fault;
