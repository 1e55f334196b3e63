//! What a node knows of the members of its cluster, itself among them.
//!
//! [`Members`] holds what every decision about nodes needs: the [`View`] that was read last, who answers pings, the way to the others, and the
//! session of this boot, which each of its changes checks. It owns no chunk and no name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use stoker_catalog::Row;
use stoker_catalog::kv::{Catalog, Check, Commit, Outcome, Range};
use stoker_format::{ChunkId, NodeId, VersionId};
use stoker_schema::level::KnownLevel;
use stoker_schema::rows::{Duty, NodeRow, NodeState};
use stoker_store::{Counter, ErrorKind, PeerStatus, Result, Spread, StoreError, Subject};
use tokio::sync::{Notify, watch};

use crate::view::View;
use crate::wire::{Body, Wire};
use crate::{clock, error};

/// Longest wait for an answer to a greeting.
const GREET_MAX: Duration = Duration::from_secs(3);

/// Why a boot of a node is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lost {
    /// The others went on without it; opened again, it is a part of them.
    Replaced(String),
    /// Another process runs as the same node. One of the two must not.
    Duplicate,
    /// It was removed from the cluster for good, and must not be opened again.
    Removed,
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
    pub fn is_witness(&self) -> bool {
        self.weight == 0
    }

    /// The row of a node that is there.
    pub fn row(&self, now_ms: u64, duty: Duty) -> NodeRow {
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

/// A question that every node answers at once, in the language that nodes speak to each other.
#[derive(Clone, Debug)]
pub struct Greeting {
    /// The message.
    pub ask: Vec<u8>,
    /// Whether an answer says that the node is there.
    pub check: fn(&[u8]) -> Result<()>,
}

/// What [`Members`] are made of. What others change or read as well is shared.
pub struct MembersOptions {
    /// This node.
    pub node: NodeId,
    /// The catalog of the cluster.
    pub catalog: Arc<dyn Catalog>,
    /// Row of this boot's session, checked by every change.
    pub session: (Vec<u8>, Vec<u8>),
    /// The same without its row.
    pub session_id: [u8; 16],
    /// In which forms rows and messages may be written (R14).
    pub level: Arc<KnownLevel>,
    /// Highest commit seen (R9).
    pub seq_seen: Arc<AtomicU64>,
    /// The node stops.
    pub closing: Arc<AtomicBool>,
    /// How others are reached; none for a node that belongs to no cluster.
    pub wire: Option<Arc<dyn Wire>>,
    /// What asks a node whether it is there.
    pub greeting: Greeting,
}

/// What a node knows of the members of its cluster.
pub struct Members {
    /// This node.
    pub node: NodeId,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) session: (Vec<u8>, Vec<u8>),
    pub(crate) session_id: [u8; 16],
    pub(crate) level: Arc<KnownLevel>,
    pub(crate) seq_seen: Arc<AtomicU64>,
    closing: Arc<AtomicBool>,
    /// Why this boot is over, once it is.
    pub(crate) lost: watch::Sender<Option<Lost>>,
    wire: Option<Arc<dyn Wire>>,
    greeting: Greeting,
    view: RwLock<Arc<View>>,
    /// What pings say of each node, and since when, milliseconds since 1970.
    health: RwLock<HashMap<NodeId, (Health, u64)>>,
    /// Nodes of which less is asked for now: how much of the new chunks, in percent.
    weights: RwLock<HashMap<NodeId, u8>>,
    /// Told whenever the view or the health of a node may have changed.
    pub wake: Notify,
    /// Fingerprint of the authority of the cluster, if other nodes can join through this one.
    pub join_fingerprint: OnceLock<[u8; 32]>,
}

impl Members {
    /// Nothing is known of the others yet.
    pub fn new(options: MembersOptions) -> Members {
        let MembersOptions { node, catalog, session, session_id, level, seq_seen, closing, wire, greeting } =
            options;
        let (view, health, weights, wake, join_fingerprint) = Default::default();
        let lost = watch::Sender::new(None);
        Members {
            node,
            catalog,
            session,
            session_id,
            level,
            seq_seen,
            closing,
            lost,
            wire,
            greeting,
            view,
            health,
            weights,
            wake,
            join_fingerprint,
        }
    }

    /// How others are reached; none for a node that belongs to no cluster.
    pub fn wire(&self) -> Option<&Arc<dyn Wire>> {
        self.wire.as_ref()
    }

    /// The node stops: nothing new is begun.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Tells once why this boot is over.
    pub fn lost(&self) -> watch::Receiver<Option<Lost>> {
        self.lost.subscribe()
    }

    /// Says that this boot is over, if nobody did.
    pub fn set_lost(&self, lost: Lost) {
        self.lost.send_if_modified(|known| {
            let is_news = known.is_none();
            known.get_or_insert(lost);
            is_news
        });
    }

    /// Whether a node answers over the wire, whatever pings say of it, and why not.
    pub async fn greet(&self, node: NodeId) -> Result<()> {
        let unreachable = |why: &str| {
            StoreError::new(ErrorKind::Unavailable, format!("node {node} cannot be reached: {why}"))
        };
        let Some(wire) = &self.wire else { return Err(unreachable("this node is in no cluster")) };
        let (head, _) = wire.call(node, self.greeting.ask.clone(), Body::None, 0, GREET_MAX).await?;
        (self.greeting.check)(&head)
    }

    /// Whether the cluster has a node of this id.
    pub fn knows(&self, node: NodeId) -> bool {
        self.view().member(node).is_some()
    }

    /// Other nodes that should answer, and where their pings go.
    pub fn expected(&self) -> Vec<(NodeId, Vec<String>)> {
        let mut expected = self.view().expected();
        expected.retain(|(node, _)| *node != self.node);
        expected
    }

    /// Others that stopped when somebody asked them to, and did not come back since.
    pub fn leaving(&self) -> Vec<NodeId> {
        self.view().leaving().filter(|node| *node != self.node).collect()
    }

    /// A node by its id, or by a name that only it has.
    pub fn named(&self, text: &str) -> Result<NodeId> {
        let view = self.view();
        if let Some(node) = text.parse().ok().filter(|node| view.member(*node).is_some()) {
            return Ok(node);
        }
        let named = |node: &NodeId| view.member(*node).is_some_and(|member| member.row.name == text);
        let found: Vec<NodeId> = view.nodes().filter(named).collect();
        match found.as_slice() {
            [node] => Ok(*node),
            [] => {
                let message = format!("the cluster has no node `{text}`; `stoker node ls` lists them");
                Err(StoreError::about(ErrorKind::NotFound, Subject::Node, message))
            }
            _ => {
                let message = format!("{} nodes are called `{text}`; name one by its id", found.len());
                Err(StoreError::new(ErrorKind::Conflict, message))
            }
        }
    }

    /// True if the node belongs to a cluster of several.
    pub fn is_joined(&self) -> bool {
        self.wire.is_some()
    }

    /// The cluster as this node knows it.
    pub fn view(&self) -> Arc<View> {
        self.view.read().unwrap().clone()
    }

    pub(crate) fn set_view(&self, view: View) {
        if let Some(wire) = &self.wire {
            wire.set_peers(&view.addresses());
            view.removed().for_each(|node| wire.remove_peer(node));
        }
        self.health.write().unwrap().retain(|node, _| !view.is_removed(*node));
        *self.view.write().unwrap() = Arc::new(view);
        self.wake.notify_waiters();
    }

    /// Tells whether a node answers.
    pub fn set_health(&self, node: NodeId, health: Health) {
        let mut all = self.health.write().unwrap();
        if all.get(&node).is_none_or(|(known, _)| *known != health) {
            all.insert(node, (health, clock::now_ms()));
        }
        drop(all);
        self.wake.notify_waiters();
    }

    /// Whether a node does not answer, as far as this one can tell.
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
    pub fn is_successor(&self, lost: NodeId, id: VersionId) -> bool {
        let view = self.view();
        let is_of_cell = |node: NodeId| node != lost && view.is_near(lost, node) && !view.is_witness(node);
        let has_successor = view.nodes().any(|node| is_of_cell(node) && self.is_live(&view, node));
        self.is_first(id, |node| node != lost && (!has_successor || is_of_cell(node)))
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

    /// A check that this boot was not fenced.
    pub(crate) fn own_session(&self) -> Check {
        Check::Value(self.session.0.clone(), self.session.1.clone())
    }

    /// Remembers a commit (R9).
    pub(crate) fn saw(&self, seq: u64) {
        self.seq_seen.fetch_max(seq, Ordering::Relaxed);
    }

    pub(crate) async fn row(&self, key: &[u8]) -> Result<Option<Row>> {
        Ok(self.catalog.get(&[key]).await.map_err(error::catalog)?.pop().flatten())
    }

    /// True if the change was made, false if somebody was quicker.
    pub(crate) async fn change(&self, change: Commit) -> Result<bool> {
        match self.catalog.commit(change).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                Ok(true)
            }
            Outcome::Failed { .. } => Ok(false),
        }
    }

    pub(crate) async fn now_ms(&self) -> Result<u64> {
        self.catalog.now_ms().await.map_err(error::catalog)
    }

    /// Every row with a prefix.
    pub(crate) async fn each(&self, prefix: &[u8], mut see: impl FnMut(&Row) -> Result<()>) -> Result<()> {
        let mut range = Range::prefix(prefix, 1_000);
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            page.rows.iter().try_for_each(&mut see)?;
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(()),
            }
        }
    }
}
