//! Who is there: SWIM between the nodes of a cluster, on sockets and a thread of its own.
//!
//! [`Core`] decides: datagrams and time in, datagrams and events out. [`Membership`] drives it. What SWIM calls down is
//! only suspect here; [`Event::Gone`] after the grace period is a proposal, because a node is down by a catalog
//! transaction and by nothing else.

mod codec;
mod core;
mod driver;
mod event;
mod identity;
mod message;
mod paths;
mod peers;
mod seal;
mod settings;
mod tasks;

pub use self::core::{Core, Effects};
pub use driver::{Introducer, Membership, Options};
pub use event::{Event, Peer};
pub use identity::{ADDRESSES_MAX, Identity, META_BYTES_MAX, Profile, ProfileError};
pub use peers::PEERS_MAX;
pub use seal::{Counts, DATAGRAM_BYTES_MAX, Dropped, Seal};
pub use settings::Settings;
