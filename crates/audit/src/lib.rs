//! The audit log of a node: who did what, in a form in which nothing can be taken away or changed unseen (docs/audit.md).
//!
//! A [`Log`] takes [`Event`]s. Each becomes a line of JSON with the hash of the line before it, in a segment: a file of bounded size. At
//! intervals, and when a segment is closed, a [`Head`] says how far the log goes, signed with a key of the cluster. [`verify`] checks chain and
//! heads, and [`Query`] finds lines; both work on files alone, without a node.
//!
//! What can go wrong: a crash cuts off the last line ([`Log::open`] takes the rest of it away); the file system is full or fails (lines are
//! refused with [`Unwritable`], and whoever wrote them decides whether to go on); somebody with the files changes them ([`verify`] says where).
//! Somebody who has the cluster's keys as well can write another log: copies of closed segments in a volume and its lake are against that.
//!
//! It must not know a store, a protocol or a node: what lines are about are texts.

mod flood;
mod head;
mod line;
mod log;
mod query;
pub mod segment;
mod state;
pub mod time;
mod verify;

pub use head::{Head, PublicKey, SigningKey};
pub use line::{DENIED, Entry, Event, OK};
pub use log::{Counts, Flush, Log, LogOptions, SERVICE, Ticket, Unwritable};
pub use query::{PAGE_LEN_MAX, Page, Query};
pub use verify::{Findings, verify};
