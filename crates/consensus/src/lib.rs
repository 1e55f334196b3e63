//! A replicated log: what one of its replicas decides, and the file that keeps its entries. (D127)
//!
//! [`Replica`] is Raft, from a library that does no I/O: messages, time and what is proposed go in; messages, entries to keep and entries
//! that are committed come out. [`Driver`] does the rest, in this order: what a leader sends may leave at once, then entries and vote
//! are made durable in the [`Log`], then what a follower says leaves, then what is committed is done. It is the same over a file and over a
//! simulated drive.
//!
//! What is added to the library, because promises hang on it:
//! - [`Lease`]: a leader answers reads by itself for as long as nobody else can have been elected, measured in time and not in ticks, so that
//!   one that was paused finds its lease over.
//! - A replica that was just started votes for nobody until a lease that it may have confirmed before is over.
//! - Numbers of replicas are used once. One that lost its drive comes back under another number and cannot vote with amnesia.
//! - A group that lost its majority is begun anew, by a person, as a group with a [number](Group::id) of its own, which every message says;
//!   what is left of the old one is not listened to, nor is a group that somebody else began anew elsewhere. (D138)
//!
//! It must not know tables, transports, clocks or threads, hold `unsafe`, or panic on foreign bytes.

#![forbid(unsafe_code)]

mod driver;
mod group;
mod lease;
mod log;
mod message;
mod replica;
mod window;

pub use driver::{Done, Driver, Keep};
pub use group::{Change, FORMER_MAX, Group, Member, REPLICAS_MAX};
pub use lease::Lease;
pub use log::{Log, LogError, LogId, Replayed, SLACK_BYTES, log_paths};
pub use message::{Envelope, MessageError};
pub use replica::{
    Committed, Entry, Hard, Outgoing, Place, Point, Replica, Settings, Standing, Start, What, Work,
};
