//! The door implemented on rings, catalog and lake; the loops that drain, stage, collect and scrub.
//!
//! [`Node::open`] wires the parts. A write goes: chunks into rings, name record beside the last one, one catalog
//! transaction, acknowledgement. What happens later (drain, deletes in the lake, garbage) is in loops that start where
//! an earlier boot ended, because everything they have to do is in rows.
//!
//! It must not know a protocol.

#![forbid(unsafe_code)]

mod accounts;
mod admission;
mod cache;
mod cell;
mod census;
mod collector;
mod completion;
mod copy;
mod core;
mod door;
mod drain;
mod drives;
mod edit;
mod entries;
mod exchange;
mod expiry;
mod files;
mod fleet;
mod history;
mod inventory;
mod jobs;
mod kept;
mod known;
mod leases;
mod lifecycle;
mod listing;
mod locks;
mod lookup;
mod measures;
mod member;
mod missing;
mod node;
mod numbers;
mod open_drive;
mod operate;
mod options;
mod part_copy;
mod people;
mod pins;
mod preconditions;
mod publish;
mod read_repair;
mod reader;
mod removal;
mod rings;
mod risk;
mod rotate;
mod scrubber;
mod sealing;
mod sets;
mod sources;
mod spilled;
mod stage;
mod status;
mod sum_notes;
mod sums;
mod tiers;
mod tracker;
mod trial;
mod undrained;
mod uploads;
mod versions;
mod views;
mod volumes;
mod writer;

pub use cell::RebuildOptions;
pub use drives::{drives_kept, drives_removed};
pub use measures::PeerSeen;
pub use member::{ClusterOptions, Member, Promote, is_node};
pub use node::Node;
pub use numbers::{DriveLedger, LakePrices};
pub use options::{
    CatalogChoice, ClusterSecrets, DriveOpener, DriveOptions, KeyFiles, MemoryPlan, NodeOptions,
    SPARSE_BYTES_MAX,
};
pub use stoker_cluster::{
    AuthorityChange, Body, CellOptions, Health, JoinAs, JoinedAs, Labels, Lost, Summed, Wire,
    authority_certificate, authority_rotate, check_same_cluster, join, secrets_kept,
};
pub use stoker_host::world::{GivenWorld, InWorld, World};
use stoker_host::{clock, identity, world};
pub use stoker_lake::LakeOpener;
use stoker_records::{error, name_record, properties};
pub use stoker_schema::notes::{BODY_LEN_MAX as NOTE_BODY_LEN_MAX, HEAD_LEN_MAX as NOTE_HEAD_LEN_MAX, Note};
pub use trial::ChunkTrial;

/// The target of spans for a collector of traces; nothing else listens to it.
pub(crate) const TRACE: &str = "stoker::trace";
