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
    pub pending: DigestMap<(Block, u64)>,
    pub queue: VecDeque<Item>,
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
            (_, Some((block, expires_ms))) => (*expires_ms > now).then(|| block.bytes.len()),
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

    pub fn admit(&mut self, queued: Queued) {
        if let Some(held) = self.memory.get(&queued.digest).filter(|held| held.sum == queued.block.sum) {
            held.is_admitted = true;
        }
        self.ghosts.take(&queued.digest);
        self.queued_bytes += queued.block.bytes.len() as u64;
        self.pending.insert(queued.digest, (queued.block.clone(), queued.expires_ms));
        self.queue.push_back(Item::Block(queued));
    }
}

/// Whether a block in the volume makes writing this one needless: the same bytes, with at least half of the time that is wanted.
pub(crate) fn is_same(known: &Record, block: &Block, expires_ms: u64, now: u64) -> bool {
    let wanted = if expires_ms == NEVER { NEVER } else { now + expires_ms.saturating_sub(now) / 2 };
    known.sum == block.sum && known.len as usize == block.bytes.len() && known.expires_ms >= wanted
}
