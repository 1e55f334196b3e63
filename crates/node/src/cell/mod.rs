//! The other nodes of the cluster: copies of chunks with them, reads from them, and what they ask of us. (D34)
//!
//! A node that is alone has no [`Wire`], and everything here costs it nothing. What the cluster decided is in the catalog
//! (rows of nodes, sessions and drives, read into a [`View`]); who answers is told from outside by [`Health`]. Messages
//! between nodes are hints wherever they can be: what may be dropped is decided from the catalog by whoever drops it.

mod copies;
pub(crate) mod dial;
mod fabric;
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
mod view;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use stoker_format::{ChunkId, NodeId, VersionId};
use stoker_schema::rows::{Duty, NodeRow, NodeState};
use stoker_store::{BoxFuture, Buf, Counter, ErrorKind, PeerStatus, Result, Spread, StoreError};

pub(crate) use copies::{Copied, Copies, is_holders_lost};
pub(crate) use dial::name_taken;
use pending_releases::PendingReleases;
pub(crate) use protect::{Protected, Stored};
pub use rebuild::RebuildOptions;
pub(crate) use rebuild::Rebuilder;
pub(crate) use records::Keepers;
pub(crate) use remote_holds::RemoteHolds;
pub(crate) use repair::run as look_after;
pub(crate) use view::View;

/// Bytes that go with a message.
pub enum Body {
    /// None.
    None,
    /// To be sent: somebody else may have them as well.
    Shared(Summed),
    /// Received: in memory that a drive can take.
    Aligned(Buf),
}

/// Bytes and what is known of them.
#[derive(Clone, Debug)]
pub struct Summed {
    /// The bytes.
    pub bytes: Bytes,
    /// Their CRC32C, if somebody has it already: large bodies are not summed twice.
    pub crc: Option<u32>,
    /// Nobody has compared them with it; whoever receives them does.
    pub is_claimed: bool,
}

/// How a node reaches the others.
pub trait Wire: Send + Sync + 'static {
    /// Asks a node, and gives its answer, whose body has at most `answer_len` bytes. Fails with `Unavailable` if it cannot be reached or does not answer in time; then
    /// it may have done what was asked.
    fn call(
        &self,
        to: NodeId,
        head: Vec<u8>,
        body: Body,
        answer_len: usize,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<(Vec<u8>, Body)>>;

    /// How long a node takes to answer, microseconds, by what was seen lately.
    fn latency_us(&self, node: NodeId) -> u64;

    /// The same, if it was seen at all.
    fn latency_seen_us(&self, node: NodeId) -> Option<u64> {
        Some(self.latency_us(node))
    }

    /// Where nodes can be reached.
    fn set_peers(&self, peers: &[(NodeId, Vec<String>)]);

    /// A node was removed for good: nothing leads there any more.
    fn remove_peer(&self, _node: NodeId) {}

    /// Numbers of the ways there, for `/metrics`, by what nodes are called; none where nobody counts.
    fn counters(&self, _names: &HashMap<NodeId, String>) -> Vec<Counter> {
        Vec::new()
    }
}

/// Whether a node answers, as far as this node can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// It does.
    Alive,
    /// It missed pings: not chosen for writes, others are read from first.
    Suspect,
}

/// Where a node stands; an empty label means nothing is known.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Labels {
    /// The cell that it belongs to: copies stay inside as long as they can.
    pub cell: String,
    /// Switch that it hangs on.
    pub tor: String,
    /// Power feed.
    pub power: String,
}

/// How a node is a part of a cluster.
#[derive(Clone)]
pub struct CellOptions {
    /// How others are reached.
    pub wire: Arc<dyn Wire>,
    /// For people.
    pub name: String,
    /// Where peers reach this node.
    pub addresses: Vec<String>,
    /// Where its pings go.
    pub gossip: Vec<String>,
    /// Where it stands.
    pub labels: Labels,
    /// Share of the chunks that it takes. One of 0 is a witness: it votes on names, and has no drives.
    pub weight: u32,
}

impl CellOptions {
    /// Whether the node only votes.
    pub(crate) fn is_witness(&self) -> bool {
        self.weight == 0
    }

    /// The row of a node that is there.
    pub(crate) fn row(&self, now_ms: u64, duty: Duty) -> NodeRow {
        NodeRow {
            name: self.name.clone(),
            addresses: self.addresses.clone(),
            gossip: self.gossip.clone(),
            cell: self.labels.cell.clone(),
            tor: self.labels.tor.clone(),
            power: self.labels.power.clone(),
            weight: self.weight,
            state: NodeState::Up,
            since_ms: now_ms,
            duty,
        }
    }
}

impl std::fmt::Debug for CellOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CellOptions({})", self.name)
    }
}

/// What a node knows of the others.
pub(crate) struct Cell {
    pub node: NodeId,
    wire: Option<Arc<dyn Wire>>,
    view: RwLock<Arc<View>>,
    /// What pings say of each node, and since when, milliseconds since 1970.
    health: RwLock<HashMap<NodeId, (Health, u64)>>,
    pub remote_holds: RemoteHolds,
    pending_releases: PendingReleases,
    /// Versions to be looked at: their chunks here may be clean by now.
    reconsider: Mutex<Vec<VersionId>>,
    /// Nodes that took writes when all files here last had the copies of their class.
    raised_for: Mutex<Vec<NodeId>>,
    /// Nodes of which less is asked for now: how much of the new chunks, in percent.
    weights: RwLock<HashMap<NodeId, u8>>,
    pub wake: tokio::sync::Notify,
    pub rebuilder: Rebuilder,
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

impl Cell {
    pub fn new(node: NodeId, options: Option<&CellOptions>, rebuild: RebuildOptions) -> Cell {
        let (view, health, reconsider, raised_for, weights) = Default::default();
        Cell {
            node,
            wire: options.map(|options| options.wire.clone()),
            view,
            health,
            remote_holds: RemoteHolds::default(),
            pending_releases: PendingReleases::default(),
            reconsider,
            raised_for,
            weights,
            wake: Default::default(),
            rebuilder: Rebuilder::new(rebuild),
            stats: CellStats::default(),
        }
    }

    /// True if the node belongs to a cluster of several.
    pub fn is_joined(&self) -> bool {
        self.wire.is_some()
    }

    pub fn view(&self) -> Arc<View> {
        self.view.read().unwrap().clone()
    }

    pub fn set_view(&self, view: View) {
        if let Some(wire) = &self.wire {
            wire.set_peers(&view.addresses());
            view.removed().for_each(|node| wire.remove_peer(node));
        }
        self.health.write().unwrap().retain(|node, _| !view.is_removed(*node));
        *self.view.write().unwrap() = Arc::new(view);
        self.wake.notify_waiters();
    }

    pub fn set_health(&self, node: NodeId, health: Health) {
        let mut all = self.health.write().unwrap();
        if all.get(&node).is_none_or(|(known, _)| *known != health) {
            all.insert(node, (health, crate::clock::now_ms()));
        }
        drop(all);
        self.wake.notify_waiters();
    }

    pub fn is_suspect(&self, node: NodeId) -> bool {
        self.silent_since(node).is_some()
    }

    /// Whether there should be several others, and none of them answers.
    pub fn hears_nobody(&self) -> bool {
        let view = self.view();
        let others: Vec<NodeId> =
            view.nodes().filter(|node| *node != self.node && view.is_up(*node)).collect();
        others.len() > 1 && others.iter().all(|node| self.is_suspect(*node))
    }

    /// Since when a node does not answer, milliseconds since 1970; none if it does.
    pub fn silent_since(&self, node: NodeId) -> Option<u64> {
        let health = self.health.read().unwrap().get(&node).copied();
        health.filter(|(health, _)| *health == Health::Suspect).map(|(_, since_ms)| since_ms)
    }

    /// Other nodes that take new chunks, the one to be asked first in front: those of this cell, then others. `not` are left
    /// out.
    pub fn takers(&self, chunk: ChunkId, spread: Spread, taken: &[NodeId], not: &[NodeId]) -> Vec<NodeId> {
        let view = self.view();
        let fits = |node: &NodeId| !not.contains(node) && !self.is_suspect(*node) && view.takes_writes(*node);
        let mut all: Vec<NodeId> = view.takers(chunk, taken, spread).into_iter().filter(fits).collect();
        let weights = self.weights.read().unwrap();
        if !weights.is_empty() {
            // Asked last, not never: a copy there is better than none.
            let lot = (stoker_format::crc64(&chunk.to_bytes()) % 100) as u8;
            all.sort_by_key(|node| weights.get(node).is_some_and(|percent| lot >= *percent));
        }
        all
    }

    /// Of these nodes less is asked from now on: how much of the new chunks they take, in percent.
    pub fn set_weights(&self, weights: HashMap<NodeId, u8>) {
        *self.weights.write().unwrap() = weights;
    }

    /// How many other nodes would take new chunks if they all answered.
    pub fn may_take(&self, chunk: ChunkId, spread: Spread, taken: &[NodeId]) -> usize {
        let view = self.view();
        view.takers(chunk, taken, spread).into_iter().filter(|node| view.takes_writes(*node)).count()
    }

    /// Whether this node is the one that does something that one node has to do: the first live one in the order of an id.
    pub fn is_mine(&self, id: VersionId) -> bool {
        self.is_first(id, |_| true)
    }

    /// The same for something that a lost node left: somebody of its cell, if there is anybody.
    pub fn is_heir(&self, lost: NodeId, id: VersionId) -> bool {
        let view = self.view();
        let is_of_cell = |node: NodeId| node != lost && view.is_near(lost, node) && !view.is_witness(node);
        let has_heir = view.nodes().any(|node| is_of_cell(node) && self.is_live(&view, node));
        self.is_first(id, |node| node != lost && (!has_heir || is_of_cell(node)))
    }

    fn is_first(&self, id: VersionId, counts: impl Fn(NodeId) -> bool) -> bool {
        if !self.is_joined() {
            return true;
        }
        let view = self.view();
        if view.is_witness(self.node) {
            return false;
        }
        let mut ranked = view.rank(ChunkId::new(id, 0)).into_iter();
        let first = ranked.find(|node| counts(*node) && self.is_live(&view, *node));
        first.map_or_else(|| counts(self.node), |first| first == self.node)
    }

    fn is_live(&self, view: &View, node: NodeId) -> bool {
        view.duty(node) == Duty::Full
            && !view.is_unreached(node)
            && (node == self.node || (view.is_up(node) && !self.is_suspect(node)))
    }

    /// Whether a node is of this node's cell.
    pub fn is_near(&self, node: NodeId) -> bool {
        self.view().is_near(self.node, node)
    }

    /// How long a node takes to answer, microseconds, by what was seen lately.
    pub fn latency_us(&self, node: NodeId) -> u64 {
        self.wire.as_ref().map_or(0, |wire| wire.latency_us(node))
    }

    /// The same for people: 0 if nothing was seen.
    pub fn latency_seen_us(&self, node: NodeId) -> u64 {
        self.wire.as_ref().and_then(|wire| wire.latency_seen_us(node)).unwrap_or(0)
    }

    /// The node of this cell whose turn it is to have a chunk of a lake; none if that is this one.
    pub fn turn(&self, chunk: ChunkId) -> Option<NodeId> {
        self.first_with(chunk, |view, node| view.is_near(self.node, node))
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

    /// Other nodes that can be asked: those of this cell first, the quickest in front, suspects behind.
    pub fn by_latency(&self, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
        nodes.retain(|node| *node != self.node);
        nodes.sort_unstable();
        nodes.dedup();
        let view = self.view();
        nodes.sort_by_key(|node| {
            (self.is_suspect(*node), !view.is_near(self.node, *node), self.latency_us(*node))
        });
        nodes
    }

    /// Every other node that is not declared down.
    pub fn others(&self) -> Vec<NodeId> {
        let view = self.view();
        view.nodes().filter(|node| *node != self.node && !view.is_down(*node)).collect()
    }

    /// Whether there is another node that could be asked.
    pub fn has_others(&self) -> bool {
        self.is_joined() && self.view().size() > 1
    }

    /// Numbers of the ways to the others.
    pub fn wire_numbers(&self, names: &HashMap<NodeId, String>) -> Vec<Counter> {
        self.wire.as_ref().map_or_else(Vec::new, |wire| wire.counters(names))
    }

    /// The nodes, for people.
    pub fn status(&self) -> Vec<PeerStatus> {
        let view = self.view();
        let one = |node: NodeId| {
            let row = &view.member(node)?.row;
            let state = view.state_word(node);
            // What was measured before it fell silent is not how long it takes to answer.
            let answers = view.became(node) == "up" && !self.is_suspect(node);
            let latency_us = if node != self.node && answers { self.latency_seen_us(node) } else { 0 };
            Some(PeerStatus {
                node: node.to_string(),
                name: row.name.clone(),
                state: state.to_owned(),
                suspect: self.is_suspect(node),
                addresses: row.addresses.clone(),
                cell: row.cell.clone(),
                tor: row.tor.clone(),
                power: row.power.clone(),
                latency_us,
            })
        };
        let mut nodes: Vec<PeerStatus> = view.nodes().filter_map(one).collect();
        nodes.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
        nodes
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
