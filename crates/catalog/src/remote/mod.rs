//! A catalog on another node: [`CatalogServer`] answers for one, [`RemoteCatalog`] is one.
//!
//! Both speak over a [`Wire`](crate::Wire), whose calls may fail while the request is carried out.
//!
//! **Reads** are asked again until the budget is spent, so that callers do not see a short change of the
//! serving node.
//!
//! **Commits** have names, a client and a number, and are sent again under the same name. Why that does them
//! at most once:
//! - A commit is addressed to one [`Epoch`](crate::Epoch), and a new epoch begins with every start of a
//!   catalog. What was sent to another epoch is refused. So once the new server said that it does not know a
//!   name, nothing that is still on its way can do it.
//! - Within an epoch a name is run once, and whoever sends it again gets the same answer, until the client says
//!   that it waits for it no longer; then the name is refused.
//! - An embedded catalog remembers in the transaction of the commit which name it had, and its standbys with
//!   it. So whoever serves next knows what was done. Another engine behind the server does not, and there a
//!   commit whose answer is lost with the server is `Unknown`.
//!
//! **Watches** are one long poll for all prefixes of a client. A prefix wakes when the server begins to watch
//! it, which makes up for what happened before, and every prefix wakes when a poll was lost.
//!
//! **Epochs.** Every answer carries that of its server; a client believes none that is lower than one it saw. A
//! server that hears of a higher one was replaced and stops. Nodes believe each other in this: the transport
//! lets nobody else in.

mod client;
mod message;
mod naming;
mod polls;
mod server;
mod sessions;
mod watching;

pub use client::{RemoteCatalog, RemoteOptions};
pub use server::CatalogServer;
