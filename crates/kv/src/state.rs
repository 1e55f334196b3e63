//! What a cache knows: blocks in memory, on their way, and in bundles. Pure: nothing here waits.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use stoker_store::StoreError;

use crate::bundle::{NEVER, Record};
use crate::digest::{Digest, DigestMap};
use crate::ghost::Ghosts;
use crate::index::Index;
use crate::memory::{Held, Memory};
use crate::options::{GHOSTS_MAX, Options};
use crate::sum;
use crate::ticket::Ticket;

/// Bytes with their sum.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub bytes: Bytes,
    pub sum: u64,
}

impl Block {
    /// A copy of bytes, summed on the way.
    pub fn copy_of(digest: &Digest, parts: &[&[u8]]) -> Block {
        let (copy, sum) = sum::copied(digest, parts);
        Block { bytes: Bytes::from(copy), sum }
    }
}

/// A block on its way to the volume.
pub(crate) struct Queued {
    pub digest: Digest,
    pub block: Block,
    pub written_ms: u64,
    pub expires_ms: u64,
    pub ticket: Option<Arc<Ticket>>,
    /// Tells it from others of the same name; given when it is queued.
    pub turn: u64,
}

/// The last block of a name that is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub block: Block,
    pub expires_ms: u64,
    turn: u64,
}

/// What waits for the writer.
pub(crate) enum Item {
    Block(Queued),
    /// Somebody waits for all that was queued before.
    Mark(Arc<Ticket>),
}

/// What is known of blocks, guarded by one lock.
pub(crate) struct State {
    pub memory: Memory,
    pub ghosts: Ghosts,
    pub index: Index,
    pub pending: DigestMap<Pending>,
    pub queue: VecDeque<Item>,
    turn: u64,
    pub queued_bytes: u64,
    /// Somebody waits: the writer does not linger.
    pub is_urgent: bool,
    /// What went wrong with blocks that nobody waited for, since somebody asked.
    pub fault: Option<StoreError>,
    pub refreshed_ms: u64,
}

impl State {
    pub fn new(options: &Options) -> State {
        State {
            memory: Memory::new(options.memory_bytes),
            ghosts: Ghosts::new(GHOSTS_MAX),
            index: Index::new(options.blocks_max),
            pending: DigestMap::default(),
            queue: VecDeque::new(),
            turn: 0,
            queued_bytes: 0,
            is_urgent: false,
            fault: None,
            refreshed_ms: 0,
        }
    }

    pub fn contains(&self, digest: &Digest, now: u64) -> bool {
        self.len_of(digest, now).is_some()
    }

    pub fn len_of(&self, digest: &Digest, now: u64) -> Option<usize> {
        match (self.memory.peek(digest), self.pending.get(digest)) {
            (Some(held), _) => (held.expires_ms > now).then(|| held.bytes.len()),
            (_, Some(pending)) => (pending.expires_ms > now).then(|| pending.block.bytes.len()),
            _ => self.index.peek(digest, now).map(|record| record.len as usize),
        }
    }

    /// Keeps a block in memory; names of those that leave it unwritten are remembered.
    pub fn hold(&mut self, digest: Digest, held: Held) {
        for (digest, gone) in self.memory.insert(digest, held) {
            if !gone.is_admitted {
                self.ghosts.add(digest);
            }
        }
    }

    /// Queues a block. One of its name that waits and that nobody waits for is replaced, so that a name waits once.
    pub fn admit(&mut self, mut queued: Queued) {
        if let Some(held) = self.memory.get(&queued.digest).filter(|held| held.sum == queued.block.sum) {
            held.is_admitted = true;
        }
        self.ghosts.take(&queued.digest);
        self.turn += 1;
        queued.turn = self.turn;
        self.queued_bytes += queued.block.bytes.len() as u64;
        let pending =
            Pending { block: queued.block.clone(), expires_ms: queued.expires_ms, turn: queued.turn };
        let is_pending = self.pending.insert(queued.digest, pending).is_some();
        if is_pending && queued.ticket.is_none() {
            let same = |item: &&mut Item| matches!(item, Item::Block(other) if other.digest == queued.digest);
            if let Some(Item::Block(last)) = self.queue.iter_mut().rev().find(same)
                && last.ticket.is_none()
            {
                self.queued_bytes = self.queued_bytes.saturating_sub(last.block.bytes.len() as u64);
                *last = queued;
                return;
            }
        }
        self.queue.push_back(Item::Block(queued));
    }

    /// A block that was queued is on its way no more.
    pub fn arrived(&mut self, queued: &Queued) {
        self.queued_bytes = self.queued_bytes.saturating_sub(queued.block.bytes.len() as u64);
        if self.pending.get(&queued.digest).is_some_and(|pending| pending.turn == queued.turn) {
            self.pending.remove(&queued.digest);
        }
    }
}

/// Whether a block in the volume makes writing this one needless: the same bytes, with at least half of the time that is wanted.
pub(crate) fn is_same(known: &Record, block: &Block, expires_ms: u64, now: u64) -> bool {
    let wanted = if expires_ms == NEVER { NEVER } else { now + expires_ms.saturating_sub(now) / 2 };
    known.sum == block.sum && known.len as usize == block.bytes.len() && known.expires_ms >= wanted
}
