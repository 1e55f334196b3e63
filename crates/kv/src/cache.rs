//! The cache: memory in front, bundles behind.
//!
//! One lock guards what is known; nothing waits with it held. Blocks on their way to the volume are in the queue, from which
//! [`crate::writer`] makes bundles; until they are there, they are found in `pending`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use futures_util::future::try_join_all;
use stoker_store::{BoxFuture, ErrorKind, Result, Store, StoreError, alone_many};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::bundle::NEVER;
use crate::digest::Digest;
use crate::files::Files;
use crate::index::{BundleId, Found, Listed};
use crate::memory::Held;
use crate::options::{Admit, Clock, FILES_MAX, Options, READS_MAX};
use crate::shelf::{Seen, Shelf};
use crate::state::{Block, Item, Queued, State, is_same};
use crate::stats::{Counters, Stats, count};
use crate::sum::Piece;
use crate::ticket::Ticket;
use crate::{reading, sum, writer};

/// Blocks of the volume that are read at once: each may need a bundle of its own, and a node opens only so many.
const OPENS_MAX: usize = 128;
/// Threads of one call that read blocks.
const THREADS_MAX: usize = 8;
/// Blocks that were read from the volume this often are kept in memory.
const READS_TO_KEEP: u8 = 2;

/// Where a block is after it was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// In the volume, with its class.
    Committed,
    /// In memory and on its way to the volume.
    Queued,
    /// In memory only.
    Memory,
    /// Nowhere, for want of memory; its name is remembered.
    Seen,
}

/// A block that was found, to be fetched.
#[derive(Clone, Debug)]
pub struct Hit {
    digest: Digest,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Memory(Block),
    Ring(Box<Found>),
}

impl Hit {
    /// Its length.
    pub fn len(&self) -> usize {
        match &self.place {
            Place::Memory(block) => block.bytes.len(),
            Place::Ring(found) => found.record.len as usize,
        }
    }

    /// Whether it has to be read from the volume.
    pub fn is_read(&self) -> bool {
        matches!(self.place, Place::Ring(_))
    }

    /// Never: a block has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

pub(crate) struct Inner {
    pub shelf: Shelf,
    pub options: Options,
    pub clock: Arc<dyn Clock>,
    /// Part of the names of bundles, so that no two writers choose the same.
    pub nonce: u64,
    pub last_written_ms: AtomicU64,
    pub state: Mutex<State>,
    pub counters: Counters,
    files: Files,
    permits: Semaphore,
    /// Bundles that are open at once because somebody reads from them, whoever is in `files`.
    opens: Semaphore,
    runtime: Handle,
    /// Rings when there is something to write, or when nobody wants anything any more.
    pub bell: Arc<Notify>,
    /// Rings when the queue got shorter.
    pub room: Notify,
    refreshing: tokio::sync::Mutex<()>,
    is_refresh_asked: AtomicBool,
}

/// KV-cache blocks in a directory of a volume. Clones are the same cache.
#[derive(Clone)]
pub struct Cache(Arc<Inner>);

impl Cache {
    /// Opens a cache: looks at all bundles that are there. `nonce` is a random number. To be called inside a tokio runtime,
    /// which also runs the writer.
    pub async fn open(
        store: Arc<dyn Store>,
        options: Options,
        clock: Arc<dyn Clock>,
        nonce: u64,
    ) -> Result<Cache> {
        let options = options.checked()?;
        store.volume(&options.volume).await?;
        let prefix = format!("{}/", options.directory);
        let bell = Arc::new(Notify::new());
        let inner = Arc::new(Inner {
            shelf: Shelf { store, volume: options.volume.clone(), prefix },
            clock,
            nonce,
            last_written_ms: AtomicU64::new(0),
            state: Mutex::new(State::new(&options)),
            options,
            counters: Counters::default(),
            files: Files::new(FILES_MAX),
            permits: Semaphore::new(READS_MAX),
            opens: Semaphore::new(OPENS_MAX),
            runtime: Handle::current(),
            bell: bell.clone(),
            room: Notify::new(),
            refreshing: tokio::sync::Mutex::default(),
            is_refresh_asked: AtomicBool::new(false),
        });
        inner.refresh().await?;
        tokio::spawn(writer::run(Arc::downgrade(&inner), bell));
        Ok(Cache(inner))
    }

    /// How many of the keys in front are there, without a gap. Looks at memory alone.
    pub fn exists_many(&self, digests: impl IntoIterator<Item = Digest>) -> usize {
        self.0.contains(digests, |count, is_there| (count + usize::from(is_there), is_there))
    }

    /// Which keys are there. Looks at memory alone.
    pub fn contains_many(&self, digests: impl IntoIterator<Item = Digest>) -> Vec<bool> {
        let mut there = Vec::new();
        self.0.contains(digests, |count, is_there| {
            there.push(is_there);
            (count, true)
        });
        there
    }

    /// How long blocks are, of those that are there. Looks at memory alone, and is no use of them.
    pub fn len_many(&self, digests: impl IntoIterator<Item = Digest>) -> Vec<Option<usize>> {
        let now = self.0.clock.now_ms();
        let state = self.0.lock();
        digests.into_iter().map(|digest| state.len_of(&digest, now)).collect()
    }

    /// Finds blocks, which counts as a use of each. What is not found may be looked for in the volume, for the next time.
    pub fn look_many(&self, digests: impl IntoIterator<Item = Digest>) -> Vec<Option<Hit>> {
        let now = self.0.clock.now_ms();
        let mut misses = 0;
        let mut state = self.0.lock();
        let look = |digest: Digest| {
            let hit = self.0.look(&mut state, &digest, now);
            misses += u64::from(hit.is_none());
            hit
        };
        let hits = digests.into_iter().map(look).collect();
        drop(state);
        count(&self.0.counters.misses, misses);
        if misses > 0 {
            self.0.ask_refresh(now);
        }
        hits
    }

    /// Fills memory of just its length, which may lie in parts, with a block that was found; false if it is not what it should
    /// be, or gone: a miss. What is in the memory then means nothing.
    pub async fn fill(&self, hit: &Hit, mut into: Vec<&mut [u8]>) -> Result<bool> {
        let len: usize = into.iter().map(|part| part.len()).sum();
        if len != hit.len() {
            let message = format!("a block of {} bytes does not fit memory of {len}", hit.len());
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        let is_good = match &hit.place {
            Place::Memory(block) => self.0.fill_from_memory(&hit.digest, block, &mut into),
            Place::Ring(found) => self.0.fill_from_ring(found, &mut into).await?,
        };
        if !is_good {
            count(&self.0.counters.misses, 1);
        }
        Ok(is_good)
    }

    /// The same for many, at once.
    pub async fn fill_many(&self, wanted: Vec<(&Hit, Vec<&mut [u8]>)>) -> Result<Vec<bool>> {
        try_join_all(wanted.into_iter().map(|(hit, into)| self.fill(hit, into))).await
    }

    /// The same by threads, which read from the drive themselves, straight to where the bytes belong: for long blocks. Blocks the
    /// caller; `run` waits for a call, on one of the threads.
    pub fn fill_many_by_threads(
        &self,
        wanted: Vec<(&Hit, Vec<&mut [u8]>)>,
        run: impl Fn(BoxFuture<'_, Result<bool>>) -> Result<bool> + Sync,
    ) -> Result<Vec<bool>> {
        let mut good = vec![Ok(false); wanted.len()];
        let threads = wanted.len().min(THREADS_MAX);
        alone_many(threads, wanted.into_iter().zip(&mut good), |((hit, into), good)| {
            *good = run(Box::pin(self.fill(hit, into)));
        });
        good.into_iter().collect()
    }

    /// Puts copies of blocks, each of which may lie in parts. With `commit`, all of them are written, and this returns when
    /// they are in the volume with its class. No more is copied ahead than may be queued.
    pub async fn put_many(
        &self,
        blocks: &[(Digest, Vec<&[u8]>)],
        ttl_ms: Option<u64>,
        commit: bool,
    ) -> Result<Vec<Stored>> {
        let len_of = |parts: &[&[u8]]| parts.iter().map(|part| part.len()).sum::<usize>();
        for (_, parts) in blocks {
            self.0.options.check_len(len_of(parts))?;
        }
        count(&self.0.counters.puts, blocks.len() as u64);
        let must = commit || self.0.options.admit == Admit::Always;
        let mut stored = Vec::with_capacity(blocks.len());
        let (mut tickets, mut confirmed) = (Vec::new(), HashSet::new());
        for (digest, parts) in blocks {
            if must {
                self.0.wait_for_room(len_of(parts) as u64).await;
            }
            let block = Block::copy_of(digest, parts);
            let (mut place, mut ticket) = self.0.put(*digest, block.clone(), ttl_ms, must, commit);
            if commit && place == Stored::Committed && !self.0.confirm(digest, &mut confirmed).await? {
                (place, ticket) = self.0.put(*digest, block, ttl_ms, must, commit);
            }
            stored.push(place);
            tickets.extend(ticket);
        }
        if tickets.is_empty() {
            return Ok(stored);
        }
        self.0.hurry();
        for ticket in tickets {
            ticket.wait().await?;
        }
        Ok(vec![Stored::Committed; stored.len()])
    }

    /// Waits until everything that was queued is in the volume; the first error, if something could not be written.
    pub async fn flush(&self) -> Result<()> {
        let ticket = Ticket::new(1);
        self.0.lock().queue.push_back(Item::Mark(ticket.clone()));
        self.0.hurry();
        ticket.wait().await
    }

    /// Looks for bundles of others, and forgets those that are gone.
    pub async fn refresh(&self) -> Result<()> {
        self.0.refresh().await
    }

    /// Deletes all bundles of the directory and forgets everything, also what is queued now.
    pub async fn clear(&self) -> Result<()> {
        // What cannot be written need not be deleted.
        let _ = self.flush().await;
        let keys: Vec<_> = self.0.shelf.list().await?.into_iter().map(|listed| listed.key).collect();
        self.0.shelf.delete(&keys).await?;
        self.0.files.clear();
        {
            let mut state = self.0.lock();
            state.memory.clear();
            state.ghosts.clear();
            state.index.clear();
        }
        self.0.refresh().await
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let state = self.0.lock();
        Stats {
            memory_blocks: state.memory.len() as u64,
            memory_bytes: state.memory.bytes(),
            queued_bytes: state.queued_bytes,
            bundles: state.index.bundles() as u64,
            bundles_bad: state.index.bundles_bad() as u64,
            blocks: state.index.blocks() as u64,
            bytes: state.index.bytes(),
            ..self.0.counters.stats()
        }
    }
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn contains(
        self: &Arc<Inner>,
        digests: impl IntoIterator<Item = Digest>,
        mut next: impl FnMut(usize, bool) -> (usize, bool),
    ) -> usize {
        let now = self.clock.now_ms();
        let (mut counted, mut goes_on, mut is_complete) = (0, true, true);
        let state = self.lock();
        let mut digests = digests.into_iter();
        while let Some(digest) = digests.next().filter(|_| goes_on) {
            let is_there = state.contains(&digest, now);
            is_complete &= is_there;
            (counted, goes_on) = next(counted, is_there);
        }
        drop(state);
        if !is_complete {
            self.ask_refresh(now);
        }
        counted
    }

    fn look(&self, state: &mut State, digest: &Digest, now: u64) -> Option<Hit> {
        let place = if let Some(block) = self.look_in_memory(state, digest, now) {
            Place::Memory(block)
        } else {
            Place::Ring(Box::new(state.index.find(digest, now)?))
        };
        Some(Hit { digest: *digest, place })
    }

    fn look_in_memory(&self, state: &mut State, digest: &Digest, now: u64) -> Option<Block> {
        let Some(held) = state.memory.get(digest) else {
            let pending = state.pending.get(digest)?;
            return (pending.expires_ms > now).then(|| pending.block.clone());
        };
        if held.expires_ms <= now {
            state.memory.remove(digest);
            return None;
        }
        let block = Block { bytes: held.bytes.clone(), sum: held.sum };
        let (is_admitted, expires_ms) = (held.is_admitted, held.expires_ms);
        if is_admitted {
            state.index.touch(digest, now);
        } else {
            // Read a second time while it is in memory only.
            self.admit_if_room(
                state,
                Queued {
                    digest: *digest,
                    block: block.clone(),
                    written_ms: now,
                    expires_ms,
                    ticket: None,
                    turn: 0,
                },
            );
        }
        Some(block)
    }

    fn fill_from_memory(&self, digest: &Digest, block: &Block, into: &mut [&mut [u8]]) -> bool {
        let mut sums = Vec::with_capacity(into.len());
        let mut at = 0;
        for part in into.iter_mut().filter(|part| !part.is_empty()) {
            let mut piece = if at == 0 { Piece::first(digest, part) } else { Piece::further(part) };
            piece.fill(&block.bytes[at..]);
            at += piece.filled();
            sums.push(piece.end());
        }
        if sum::of_pieces(&sums) == block.sum {
            count(&self.counters.hits_memory, 1);
            return true;
        }
        // Memory does not keep what it is given: the block is dropped, and may be found in the volume.
        count(&self.counters.corrupt, 1);
        self.lock().memory.remove(digest);
        false
    }

    async fn fill_from_ring(&self, found: &Found, into: &mut [&mut [u8]]) -> Result<bool> {
        let record = &found.record;
        let _open = self.opens.acquire().await.expect("never closed");
        let Some(file) = self.files.get(&self.shelf, found.bundle, &found.listed).await? else {
            self.forget(found.bundle);
            return Ok(false);
        };
        match reading::fill(&file, &self.permits, record, into).await {
            Ok(true) => {
                count(&self.counters.hits_ring, 1);
                if found.reads >= READS_TO_KEEP {
                    self.keep(found, into);
                }
                Ok(true)
            }
            Ok(false) => {
                tracing::warn!("{}: the block at {} does not fit its sum", found.listed.key, record.offset);
                self.distrust(found);
                Ok(false)
            }
            Err(fault) if fault.kind == ErrorKind::Corrupt => {
                tracing::warn!("{}: the block at {}: {fault}", found.listed.key, record.offset);
                self.distrust(found);
                Ok(false)
            }
            Err(fault) if matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Conflict) => {
                self.forget(found.bundle);
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// A block of the volume that is read often.
    fn keep(&self, found: &Found, parts: &[&mut [u8]]) {
        let record = &found.record;
        if u64::from(record.len) > self.options.memory_bytes / 8 {
            return;
        }
        let bytes = Bytes::from(parts.concat());
        let held = Held { bytes, sum: record.sum, expires_ms: record.expires_ms, is_admitted: true };
        let mut state = self.lock();
        // Others may have put other bytes, or cleared the cache, while these were read.
        let is_current = state.index.is_at(&record.digest, found.bundle)
            && state.memory.peek(&record.digest).is_none()
            && !state.pending.contains_key(&record.digest);
        if is_current {
            state.hold(record.digest, held);
        }
    }

    fn distrust(&self, found: &Found) {
        count(&self.counters.corrupt, 1);
        self.lock().index.forget(&found.record.digest, Some(found.bundle));
    }

    /// Whether the bundle of a block is really there: another process may have deleted it. Asks once for each bundle.
    async fn confirm(&self, digest: &Digest, confirmed: &mut HashSet<BundleId>) -> Result<bool> {
        let Some((id, listed)) = self.lock().index.bundle_of(digest).map(|(id, listed)| (id, listed.clone()))
        else {
            return Ok(false);
        };
        if confirmed.contains(&id) {
            return Ok(true);
        }
        if !self.shelf.is_there(&listed).await? {
            self.forget(id);
            return Ok(false);
        }
        confirmed.insert(id);
        Ok(true)
    }

    fn forget(&self, bundle: BundleId) {
        self.lock().index.remove(bundle);
        self.files.close(bundle);
    }

    fn put(
        &self,
        digest: Digest,
        block: Block,
        ttl_ms: Option<u64>,
        must: bool,
        commit: bool,
    ) -> (Stored, Option<Arc<Ticket>>) {
        let now = self.clock.now_ms();
        let ttl = ttl_ms.or(self.options.ttl_ms);
        let expires_ms = ttl.map_or(NEVER, |ttl| now.saturating_add(ttl).min(NEVER - 1));
        let mut state = self.lock();
        let known = state.index.peek(&digest, now).copied();
        let pending = state.pending.get(&digest).map(|pending| (pending.block.sum, pending.expires_ms));
        // Other bytes that are on their way would be found after those that are there.
        let is_last = pending.is_none_or(|(sum, _)| sum == block.sum);
        if is_last && known.is_some_and(|known| is_same(&known, &block, expires_ms, now)) {
            state.index.touch(&digest, now);
            if state.memory.get(&digest).is_some_and(|held| held.sum != block.sum) {
                state.memory.remove(&digest);
            }
            return (Stored::Committed, None);
        }
        // Other bytes under this name: the old ones must not be found any more.
        if known.is_some_and(|known| known.sum != block.sum) {
            state.index.forget(&digest, None);
        }
        let is_second = known.is_some()
            || pending.is_some()
            || state.memory.peek(&digest).is_some()
            || state.ghosts.take(&digest);
        let is_pending = pending.is_some_and(|(sum, until)| sum == block.sum && until >= expires_ms);
        let held = Held { bytes: block.bytes.clone(), sum: block.sum, expires_ms, is_admitted: is_pending };
        let ticket = commit.then(|| Ticket::new(1));
        let queued = Queued { digest, block, written_ms: now, expires_ms, ticket: ticket.clone(), turn: 0 };
        state.hold(digest, held);
        let is_queued = match (must, is_second) {
            (false, _) if is_pending => true,
            (true, _) => {
                state.admit(queued);
                true
            }
            (false, true) => self.admit_if_room(&mut state, queued),
            (false, false) => false,
        };
        let is_held = state.memory.peek(&digest).is_some();
        drop(state);
        if is_queued {
            self.bell.notify_one();
        }
        let stored = match (is_queued, is_held) {
            (true, _) => Stored::Queued,
            (false, true) => Stored::Memory,
            (false, false) => Stored::Seen,
        };
        (stored, ticket)
    }

    fn queue_max(&self) -> u64 {
        2 * self.options.bundle_bytes
    }

    /// Queues a block, unless too many wait: then it is tried again at its next use.
    fn admit_if_room(&self, state: &mut State, queued: Queued) -> bool {
        let pending =
            state.pending.get(&queued.digest).map(|pending| (pending.block.sum, pending.expires_ms));
        if pending.is_some_and(|(sum, until)| sum == queued.block.sum && until >= queued.expires_ms) {
            return true;
        }
        // Other bytes of this name that are on their way must not be the last that are written.
        if pending.is_none() && state.queued_bytes >= self.queue_max() {
            count(&self.counters.skipped, 1);
            return false;
        }
        state.admit(queued);
        self.bell.notify_one();
        true
    }

    /// Waits until so much may be queued.
    async fn wait_for_room(&self, len: u64) {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            let queued = self.lock().queued_bytes;
            if queued == 0 || queued + len <= self.queue_max() {
                return;
            }
            self.hurry();
            room.await;
        }
    }

    fn hurry(&self) {
        self.lock().is_urgent = true;
        self.bell.notify_one();
    }

    /// Looks for bundles of others soon, if that was not done lately. Never waits.
    fn ask_refresh(self: &Arc<Inner>, now: u64) {
        let is_due = {
            let state = self.lock();
            now < state.refreshed_ms || now - state.refreshed_ms >= self.options.refresh_ms
        };
        if !is_due || self.is_refresh_asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let inner: Weak<Inner> = Arc::downgrade(self);
        self.runtime.spawn(async move {
            let Some(inner) = inner.upgrade() else { return };
            if let Err(fault) = inner.refresh().await {
                tracing::warn!("bundles of others cannot be looked for: {fault}");
            }
            inner.is_refresh_asked.store(false, Ordering::Relaxed);
        });
    }

    /// Lists the directory, looks at new bundles, forgets those that are gone.
    pub async fn refresh(&self) -> Result<()> {
        let _turn = self.refreshing.lock().await;
        count(&self.counters.refreshes, 1);
        let before = self.lock().index.ids();
        let listed = self.shelf.list().await;
        let now = self.clock.now_ms();
        self.lock().refreshed_ms = now;
        let listed = listed?;
        let (gone, new) = {
            let mut state = self.lock();
            let gone = state.index.keep(&before, &listed);
            let new: Vec<Listed> = listed.into_iter().filter(|one| !state.index.knows(one)).collect();
            (gone, new)
        };
        gone.into_iter().for_each(|id| self.files.close(id));
        for Seen { listed, content, file } in self.shelf.look(new, FILES_MAX / 2).await? {
            let id = self.lock().index.add(listed, content);
            id.zip(file).into_iter().for_each(|(id, file)| self.files.put(id, file));
        }
        Ok(())
    }

    /// Deletes bundles and forgets them.
    pub async fn evict(&self, victims: Vec<(BundleId, Listed)>) -> Result<()> {
        let keys: Vec<_> = victims.iter().map(|(_, listed)| listed.key.clone()).collect();
        // Forgotten first: nobody may be told that a block is committed which is being deleted. The next listing shows what
        // could not be.
        for (id, listed) in victims {
            count(&self.counters.evictions, 1);
            count(&self.counters.evicted_bytes, listed.size);
            self.forget(id);
        }
        self.shelf.delete(&keys).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The writer looks, finds nobody and ends.
        self.bell.notify_one();
    }
}

#[cfg(test)]
mod tests;
