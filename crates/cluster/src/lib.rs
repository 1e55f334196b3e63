//! Which nodes a cluster has, what became of each, and who keeps its catalog.
//!
//! Truth is in the catalog: rows of nodes, sessions and drives, read into a [`View`] that [`Members`] keeps fresh. Pings say who answers, which is
//! a suspicion and nothing more; that a node is *down* is a transaction ([`Members::declare_down`], R12), and so is everything that loses or
//! moves bytes. A node becomes a member by a join token ([`join`]), counts once another one has dialled it back ([`dial`]), and says in its first
//! transaction which rows it can read ([`level`], R14). The catalog itself is kept by some of the nodes, which [`CatalogHost`] chooses, follows
//! and serves; whether it answers, and how fast, [`CatalogTimes`] knows.
//!
//! It must not touch chunks: what is held, copied, moved and repaired because of what this crate says is decided by those who use it.

#![forbid(unsafe_code)]

mod book;
mod catalog_host;
mod catalog_times;
pub mod dial;
mod join;
mod join_tokens;
mod keys;
pub mod level;
mod members;
mod pings;
mod pulse;
mod renewal;
mod service;
mod snapshots;
mod verdicts;
mod view;
mod ways;
mod wire;

use stoker_host::{clock, error, identity};
use stoker_store::{ErrorKind, StoreError};

pub use book::Book;
pub use catalog_host::{CatalogHost, CatalogHostOptions};
pub use catalog_times::CatalogTimes;
pub use join::{JoinAs, JoinedAs, check_same_cluster, join};
pub use keys::{CatalogPlace, ClusterKeys, secrets, secrets_kept};
pub use members::{CellOptions, Greeting, Health, Labels, Lost, Members, MembersOptions};
pub use pings::{Pings, Sockets};
pub use pulse::{Pulse, Silence};
pub use renewal::{AuthorityChange, authority_certificate, authority_rotate};
pub use service::{Desk, Doorway, PeerService, Renewals};
pub use snapshots::Snapshots;
pub use view::{Member, View};
pub use ways::PeerWire;
pub use wire::{Body, Summed, Wire};

fn broken(what: &str, fault: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format!("{what}: {fault}"))
}
