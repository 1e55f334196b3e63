//! What the primary's writer and its links to standbys share: what is to be sent, and who has how much.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stoker_format::NodeId;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::Members;
use crate::engine::embedded::lineage::Position;
use crate::engine::embedded::tail::Entries;
use crate::epoch::Epoch;

/// Commits that are made durable here and on the standbys at the same time.
#[derive(Debug)]
pub(in super::super) struct Batch {
    /// What they follow.
    pub after: Position,
    /// The epoch that writes them.
    pub epoch: Epoch,
    pub entries: Entries,
}

impl Batch {
    fn last(&self) -> u64 {
        self.entries.last().map_or(self.after.seq, |(seq, _)| *seq)
    }
}

/// What a link does next.
#[derive(Debug)]
pub(in super::super) enum Work {
    Nothing,
    /// Find out how far the standby is.
    Ask,
    /// Send what is behind this number from memory.
    Batch(Arc<Batch>, u64),
    /// Send what is behind this number from the file.
    Tail(u64),
    Snapshot {
        diverged: bool,
    },
}

/// How it stands with one standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyStatus {
    /// The standby.
    pub node: NodeId,
    /// Whether it has every acknowledged commit and is waited for.
    pub in_sync: bool,
    /// The last commit that it is known to have.
    pub seq: Option<u64>,
    /// Whether it gets a snapshot because the tail does not reach back to it.
    pub snapshot: bool,
    /// What went wrong last, if it has not gone well since.
    pub trouble: Option<String>,
}

#[derive(Debug)]
struct Peer {
    has: Option<u64>,
    snapshot: Option<bool>,
    trouble: Option<String>,
    link: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    batch: Option<Arc<Batch>>,
    /// The last commit that is durable in this node's file.
    durable: u64,
    peers: BTreeMap<NodeId, Peer>,
    members: Members,
    fenced: Option<Epoch>,
    closed: bool,
    snapshots: u64,
}

/// The standbys of a primary, while it runs.
#[derive(Debug)]
pub(in super::super) struct Peers {
    state: Mutex<State>,
    /// Wakes the writer.
    moved: Condvar,
    /// Wakes the links.
    news: watch::Sender<()>,
}

impl Peers {
    pub(in super::super) fn new(durable: u64, members: Members) -> Peers {
        let state = State {
            batch: None,
            durable,
            peers: BTreeMap::new(),
            members,
            fenced: None,
            closed: false,
            snapshots: 0,
        };
        Peers { state: Mutex::new(state), moved: Condvar::new(), news: watch::Sender::new(()) }
    }

    /// Takes note of who is in sync now.
    pub(in super::super) fn members_set(&self, members: Members) {
        self.lock().members = members;
    }

    /// Hands commits to the links, before they are durable here.
    pub(in super::super) fn publish(&self, batch: Batch) {
        self.lock().batch = Some(Arc::new(batch));
        self.news.send_replace(());
    }

    /// Everything up to here is durable in this node's file.
    pub(in super::super) fn durable(&self, seq: u64) {
        self.lock().durable = seq;
        self.news.send_replace(());
    }

    /// Whether a standby has everything up to here.
    pub(in super::super) fn has(&self, node: NodeId, seq: u64) -> bool {
        self.lock().has(node, seq)
    }

    /// Waits while the condition holds, and no longer than this; tells whether it still holds.
    pub(in super::super) fn wait_while(
        &self,
        timeout: Duration,
        mut waits: impl FnMut(&View<'_>) -> bool,
    ) -> bool {
        let waits = |state: &mut State| !state.closed && state.fenced.is_none() && waits(&View(state));
        let waited = self.moved.wait_timeout_while(self.lock(), timeout, waits);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Standbys that are not in sync and could be: they have all but what is on its way to them.
    pub(in super::super) fn joinable(&self) -> Vec<NodeId> {
        let state = self.lock();
        let least = state.batch.as_ref().map_or(state.durable, |batch| batch.after.seq);
        let close = |node: &NodeId, peer: &Peer| {
            !state.members.is_in_sync(*node)
                && peer.trouble.is_none()
                && peer.has.is_some_and(|has| has >= least)
        };
        state.peers.iter().filter(|(node, peer)| close(node, peer)).map(|(node, _)| *node).collect()
    }

    pub(in super::super) fn fenced(&self) -> Option<Epoch> {
        self.lock().fenced
    }

    pub(in super::super) fn closed(&self) -> bool {
        self.lock().closed
    }

    pub(in super::super) fn statuses(&self, members: &Members) -> Vec<StandbyStatus> {
        let state = self.lock();
        let mut nodes: Vec<NodeId> = members.known().chain(state.peers.keys().copied()).collect();
        nodes.sort();
        nodes.dedup();
        let status = |node: NodeId| {
            let peer = state.peers.get(&node);
            StandbyStatus {
                node,
                in_sync: members.is_in_sync(node),
                seq: peer.and_then(|peer| peer.has),
                snapshot: peer.is_some_and(|peer| peer.snapshot.is_some()),
                trouble: match peer {
                    Some(peer) => peer.trouble.clone(),
                    None => Some("no way to this node is known".into()),
                },
            }
        };
        nodes.into_iter().map(status).collect()
    }

    /// Adds a standby with the task that serves it, which starts when it is told to; one of the same node is
    /// replaced.
    pub(in super::super) fn attach(
        &self,
        node: NodeId,
        spawn: impl FnOnce(oneshot::Receiver<()>) -> JoinHandle<()>,
    ) {
        let (start, started) = oneshot::channel();
        let link = spawn(started);
        let peer = Peer { has: None, snapshot: None, trouble: None, link: Some(link) };
        let mut state = self.lock();
        if state.closed {
            peer.abort();
        } else if let Some(old) = state.peers.insert(node, peer) {
            old.abort();
        }
        // One that was told to stop does not listen.
        let _ = start.send(());
    }

    /// Every standby that may not be left behind quietly.
    pub(in super::super) fn known(&self) -> Vec<NodeId> {
        self.lock().members.known().collect()
    }

    /// Whether anybody is attached.
    pub(in super::super) fn is_followed(&self) -> bool {
        !self.lock().peers.is_empty()
    }

    pub(in super::super) fn detach(&self, node: NodeId) {
        let removed = self.lock().peers.remove(&node);
        removed.iter().for_each(Peer::abort);
        self.moved.notify_all();
    }

    /// Stops the writer's waiting and the links, which it gives back.
    pub(in super::super) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.lock();
        state.closed = true;
        let links = state.peers.values_mut().filter_map(|peer| peer.link.take()).collect::<Vec<_>>();
        drop(state);
        links.iter().for_each(JoinHandle::abort);
        self.moved.notify_all();
        links
    }

    /// A receiver that sees whatever is handed over from now on.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// What is to be done for a standby.
    pub(super) fn work(&self, node: NodeId) -> Work {
        let state = self.lock();
        let Some(peer) = state.peers.get(&node).filter(|_| !state.closed && state.fenced.is_none()) else {
            return Work::Nothing;
        };
        if let Some(diverged) = peer.snapshot {
            return Work::Snapshot { diverged };
        }
        let Some(has) = peer.has else { return Work::Ask };
        match &state.batch {
            Some(batch) if (batch.after.seq..batch.last()).contains(&has) => {
                Work::Batch(Arc::clone(batch), has)
            }
            _ if has < state.durable => Work::Tail(has),
            _ => Work::Nothing,
        }
    }

    /// Whether this is the position of a commit that is not durable here yet.
    pub(super) fn on_the_way(&self, position: &Position) -> bool {
        let state = self.lock();
        let Some(batch) = &state.batch else { return false };
        position.epoch == batch.epoch && (batch.after.seq + 1..=batch.last()).contains(&position.seq)
    }

    /// A standby has everything up to here; tells whether it could be in sync and is not.
    pub(super) fn moved_to(&self, node: NodeId, seq: u64) -> bool {
        let mut state = self.lock();
        let last = state.batch.as_ref().map_or(state.durable, |batch| batch.last().max(state.durable));
        if let Some(peer) = state.peers.get_mut(&node) {
            (peer.has, peer.snapshot, peer.trouble) = (Some(seq), None, None);
        }
        let joinable = seq >= last && !state.members.is_in_sync(node);
        drop(state);
        self.moved.notify_all();
        joinable
    }

    /// What a standby has cannot be continued.
    pub(super) fn snapshot_needed(&self, node: NodeId, diverged: bool) {
        if let Some(peer) = self.lock().peers.get_mut(&node) {
            (peer.has, peer.snapshot) = (None, Some(diverged));
        }
    }

    /// A number that no snapshot of this epoch had: pieces of two never mix.
    pub(super) fn snapshot_id(&self) -> u64 {
        let mut state = self.lock();
        state.snapshots += 1;
        state.snapshots
    }

    /// How far it is must be asked again.
    pub(super) fn failed(&self, node: NodeId, trouble: String) {
        if let Some(peer) = self.lock().peers.get_mut(&node) {
            if peer.trouble.is_none() {
                tracing::warn!(standby = %node, trouble, "a standby of the catalog does not follow");
            }
            (peer.has, peer.snapshot, peer.trouble) = (None, None, Some(trouble));
        }
    }

    /// Another epoch rules; nothing is acknowledged any more.
    pub(in super::super) fn fence(&self, by: Epoch) {
        let mut state = self.lock();
        state.fenced = state.fenced.max(Some(by));
        drop(state);
        self.moved.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who has how much, as the writer sees it while it waits.
pub(in super::super) struct View<'s>(&'s State);

impl View<'_> {
    pub(in super::super) fn has(&self, node: NodeId, seq: u64) -> bool {
        self.0.has(node, seq)
    }
}

impl State {
    fn has(&self, node: NodeId, seq: u64) -> bool {
        self.peers.get(&node).and_then(|peer| peer.has).is_some_and(|has| has >= seq)
    }
}

impl Peer {
    fn abort(&self) {
        self.link.iter().for_each(JoinHandle::abort);
    }
}
