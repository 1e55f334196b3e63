//! What leaves a replica: letters in their order, one message at a time to each node; copies of everything beside them.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redb::ReadTransaction;
use stoker_format::NodeId;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::incoming::Head;
use super::message::{FromReplica, LETTERS_MAX, ToReplica};
use super::worker::Event;
use crate::engine::embedded::guarded;
use crate::engine::embedded::pieces::Pieces;
use crate::error::{CatalogError, Result};
use crate::wire::{self, Blob, Wire};

/// Letters that wait for one node; what comes on top is not sent, and the library sends it again.
const WAITING_MAX: usize = 512;
/// A message takes no more letters once it has this many bytes.
const MESSAGE_BYTES: usize = 4 << 20;
/// How long a node may take to take letters.
const LETTERS_TIME: Duration = Duration::from_secs(2);
/// How long it may take for a piece of a copy; the end makes a whole file durable.
const PIECE_TIME: Duration = Duration::from_secs(60);
/// Rest after letters that did not arrive.
const PAUSE: Duration = Duration::from_millis(20);

/// The way to the replica of a node.
pub type ReplicaWays = Arc<dyn Fn(NodeId) -> Arc<dyn Wire> + Send + Sync>;

/// A letter, and the number of the replica that it is for.
struct Letter {
    to: u64,
    bytes: Vec<u8>,
}

/// Sends.
pub(super) struct Post {
    runtime: Handle,
    ways: ReplicaWays,
    events: Sender<Event>,
    nodes: Mutex<HashMap<NodeId, (mpsc::Sender<Letter>, AbortHandle)>>,
}

impl Post {
    pub(super) fn new(runtime: Handle, ways: ReplicaWays, events: Sender<Event>) -> Post {
        Post { runtime, ways, events, nodes: Mutex::default() }
    }

    /// Sends a letter; false if it does not leave.
    pub(super) fn send(&self, node: NodeId, to: u64, bytes: Vec<u8>) -> bool {
        self.queue(node).try_send(Letter { to, bytes }).is_ok()
    }

    fn queue(&self, node: NodeId) -> mpsc::Sender<Letter> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let (queue, _) = nodes.entry(node).or_insert_with(|| {
            let (queue, letters) = mpsc::channel(WAITING_MAX);
            let (way, events) = ((self.ways)(node), self.events.clone());
            let task = self.runtime.spawn(carry(way, letters, events));
            (queue, task.abort_handle())
        });
        queue.clone()
    }

    /// Sends a copy of everything, and then the letter that says so.
    pub(super) fn copy(&self, node: NodeId, to: u64, letter: Vec<u8>, head: Head, snapshot: ReadTransaction) {
        let (way, events, runtime) = ((self.ways)(node), self.events.clone(), self.runtime.clone());
        let queue = self.queue(node);
        let begun = std::thread::Builder::new().name("catalog-copy".into()).spawn(move || {
            let sent = guarded(|| runtime.block_on(carry_copy(&*way, head, &snapshot)));
            if let Err(error) = &sent {
                tracing::info!(%node, %error, "a copy of the catalog did not arrive; another one is sent");
            }
            let is_sent = sent.is_ok() && queue.try_send(Letter { to, bytes: letter }).is_ok();
            // A replica that ended has no use for it.
            let _ = events.send(Event::Copied(to, is_sent));
        });
        if begun.is_err() {
            let _ = self.events.send(Event::Copied(to, false));
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let nodes = self.nodes.get_mut().unwrap_or_else(PoisonError::into_inner);
        nodes.values().for_each(|(_, task)| task.abort());
    }
}

async fn carry(way: Arc<dyn Wire>, mut letters: mpsc::Receiver<Letter>, events: Sender<Event>) {
    while let Some(first) = letters.recv().await {
        let (mut receivers, mut bytes) = (BTreeSet::from([first.to]), first.bytes.len());
        let mut message = vec![Blob(first.bytes)];
        while bytes < MESSAGE_BYTES && message.len() < LETTERS_MAX {
            let Ok(next) = letters.try_recv() else { break };
            bytes += next.bytes.len();
            receivers.insert(next.to);
            message.push(Blob(next.bytes));
        }
        if let Err(error) = call(&*way, &ToReplica::Letters(message), LETTERS_TIME).await {
            tracing::debug!(%error, "letters of the catalog's group did not arrive");
            // What waits is older than what the library sends next.
            while letters.try_recv().is_ok() {}
            for to in receivers {
                let _ = events.send(Event::Unreached(to));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn carry_copy(way: &dyn Wire, head: Head, snapshot: &ReadTransaction) -> Result<()> {
    let copy = head.copy;
    call(way, &ToReplica::CopyBegin(head), PIECE_TIME).await?;
    let mut pieces = Pieces::new(snapshot);
    let mut index = 0;
    while let Some(piece) = pieces.next()? {
        call(way, &ToReplica::CopyPiece { copy, index, piece }, PIECE_TIME).await?;
        index += 1;
    }
    call(way, &ToReplica::CopyEnd { copy, pieces: index }, PIECE_TIME).await
}

async fn call(way: &dyn Wire, request: &ToReplica, time: Duration) -> Result<()> {
    let answer = tokio::time::timeout(time, way.call(wire::encode(request))).await;
    let answer = answer.map_err(|_| CatalogError::unavailable("the node does not answer"))??;
    match wire::decode(&answer)? {
        FromReplica::Done => Ok(()),
        FromReplica::CopyLost => Err(CatalogError::unavailable("the node lost a copy half way")),
        FromReplica::Failed(error) => Err(error),
    }
}
