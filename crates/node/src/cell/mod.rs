//! The other nodes of the cluster: copies of chunks with them, reads from them, and what they ask of us. (D34)
//!
//! A node that is alone has no way to others ([`stoker_cluster::Wire`]), and everything here costs it nothing. What the cluster decided is in the catalog
//! (rows of nodes, sessions and drives, read into a [`View`]); who answers is told from outside. Messages
//! between nodes are hints wherever they can be: what may be dropped is decided from the catalog by whoever drops it.

mod copies;
mod fabric;
mod follow;
mod message;
mod order;
mod parts;
mod peers;
mod pending_releases;
mod progress;
mod protect;
mod rebuild;
mod records;
mod remote_holds;
mod repair;
mod service;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, RwLock};

use stoker_cluster::Members;
pub(crate) use stoker_cluster::{Body, CellOptions, Greeting, Summed, View};
use stoker_format::{ChunkId, NodeId, VersionId};
use stoker_store::{ErrorKind, StoreError};

pub(crate) use copies::{Copied, Copies, is_holders_lost};
pub(crate) use message::{JobAsk, JobHolds, StageFile, from_wire, to_wire};
pub(crate) use peers::greeting;
use pending_releases::PendingReleases;
pub(crate) use protect::{Protected, Stored};
pub use rebuild::RebuildOptions;
pub(crate) use rebuild::Rebuilder;
pub(crate) use records::Keepers;
pub(crate) use remote_holds::RemoteHolds;
pub(crate) use repair::run as look_after;

/// What a node has to do with the others. Who they are is in [`Members`], which it is used like.
pub(crate) struct Cell {
    pub members: Arc<Members>,
    pub remote_holds: RemoteHolds,
    pending_releases: PendingReleases,
    /// Versions to be looked at: their chunks here may be clean by now.
    reconsider: Mutex<Vec<VersionId>>,
    /// Nodes that took writes when all files here last had the copies of their class.
    raised_for: Mutex<Vec<NodeId>>,
    pub rebuilder: Rebuilder,
    /// Who may use the way to another node now.
    pub links: crate::admission::Links,
    pub stats: CellStats,
}

/// Counters of a node in a cell.
#[derive(Default)]
pub(crate) struct CellStats {
    pub copies: std::sync::atomic::AtomicU64,
    pub copy_bytes: std::sync::atomic::AtomicU64,
    pub copy_retries: std::sync::atomic::AtomicU64,
    pub reads: std::sync::atomic::AtomicU64,
    pub read_bytes: std::sync::atomic::AtomicU64,
    pub served_reads: std::sync::atomic::AtomicU64,
    pub served_copies: std::sync::atomic::AtomicU64,
    pub repaired: std::sync::atomic::AtomicU64,
    /// How other nodes take copies.
    pub takes: RwLock<HashMap<NodeId, Arc<Takes>>>,
}

/// How another node takes copies.
#[derive(Default)]
pub(crate) struct Takes {
    pub times: stoker_store::Histogram,
    pub bytes: std::sync::atomic::AtomicU64,
    pub bad: std::sync::atomic::AtomicU64,
}

impl CellStats {
    fn takes_of(&self, node: NodeId) -> Arc<Takes> {
        if let Some(takes) = self.takes.read().unwrap().get(&node) {
            return takes.clone();
        }
        self.takes.write().unwrap().entry(node).or_default().clone()
    }
}

impl Deref for Cell {
    type Target = Members;

    fn deref(&self) -> &Members {
        &self.members
    }
}

impl Cell {
    pub fn new(members: Arc<Members>, rebuild: RebuildOptions) -> Cell {
        let (reconsider, raised_for) = Default::default();
        Cell {
            members,
            remote_holds: RemoteHolds::default(),
            pending_releases: PendingReleases::default(),
            reconsider,
            raised_for,
            rebuilder: Rebuilder::new(rebuild),
            links: Default::default(),
            stats: CellStats::default(),
        }
    }

    /// The node of this cell whose turn it is to have a chunk of a lake; none if that is this one.
    pub fn turn(&self, chunk: ChunkId) -> Option<NodeId> {
        self.first_with(chunk, |view, node| view.is_near(self.node, node))
    }

    /// The node of some cell whose turn it is to have a chunk of a lake, this one or another.
    pub fn turn_in(&self, cell: &str, chunk: ChunkId) -> NodeId {
        let view = self.view();
        if !self.is_joined() {
            return self.node;
        }
        let lives = |node: &NodeId| *node == self.node || !(view.is_down(*node) || view.is_unreached(*node));
        let mut ranked = view.rank(copies::place_of(chunk)).into_iter();
        ranked.find(|node| lives(node) && view.cell_of(*node) == cell).unwrap_or(self.node)
    }

    /// The node of another cell that asks the lake for all cells; none if that is one of this cell.
    pub fn far_turn(&self, chunk: ChunkId) -> Option<NodeId> {
        self.first_with(chunk, |_, _| true).filter(|node| !self.is_near(*node))
    }

    fn first_with(&self, chunk: ChunkId, counts: impl Fn(&View, NodeId) -> bool) -> Option<NodeId> {
        let view = self.view();
        let lives = |node: &NodeId| *node == self.node || !(view.is_down(*node) || view.is_unreached(*node));
        let mut ranked = view.rank(copies::place_of(chunk)).into_iter();
        let first = ranked.find(|node| lives(node) && counts(&view, *node));
        first.filter(|first| *first != self.node)
    }

    /// What is true about the safety of files that are not in the lake yet.
    pub fn words(&self, files: u64) -> Vec<String> {
        let view = self.view();
        let mut words = Vec::new();
        let is_silent =
            |node: &NodeId| self.is_suspect(*node) && !view.is_down(*node) && !view.is_unreached(*node);
        let silent = view.nodes().filter(is_silent).count();
        if silent > 0 {
            let verb = if silent == 1 { "does" } else { "do" };
            words.push(format!(
                "{silent} of {} nodes {verb} not answer; nothing moves before the grace period ends",
                view.size()
            ));
        }
        let down = view.down().len();
        if down > 0 {
            words.push(match down {
                1 => {
                    format!("1 of {} nodes is down; the others make new copies of what it held", view.size())
                }
                _ => format!(
                    "{down} of {} nodes are down; the others make new copies of what they held",
                    view.size()
                ),
            });
        }
        words.extend(view.unreachable().iter().map(|one| one.to_string()));
        if files > 0 && self.raised_for.lock().unwrap().is_empty() {
            words.push(
                "files that were written while this node was alone have one copy and are being copied"
                    .to_owned(),
            );
        }
        words
    }

    /// Versions to be looked at again.
    pub fn note_reconsider(&self, versions: impl IntoIterator<Item = VersionId>) {
        let mut waiting = self.reconsider.lock().unwrap();
        // A hint that is dropped is made good by the next look at everything.
        let room = RECONSIDER_MAX.saturating_sub(waiting.len());
        waiting.extend(versions.into_iter().take(room));
        drop(waiting);
        self.wake.notify_waiters();
    }

    pub fn take_reconsider(&self) -> Vec<VersionId> {
        std::mem::take(&mut *self.reconsider.lock().unwrap())
    }
}

/// Hints kept at most.
const RECONSIDER_MAX: usize = 100_000;

/// The error of a node that is in no cluster or cannot be reached.
pub(crate) fn unreachable(node: NodeId, why: &str) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("node {node} cannot be reached: {why}"))
}
