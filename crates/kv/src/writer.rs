//! The writer makes bundles of queued blocks, one at a time: what comes while one is written shares the next. Nothing else
//! writes to the directory or deletes from it, except for [`Cache::clear`](crate::Cache::clear).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use stoker_store::{Condition, Filler, Finish, Result, WriteRequest};
use tokio::sync::Notify;

use crate::bundle::{self, Record, block_span, tail_len};
use crate::cache::Inner;
use crate::digest::DigestMap;
use crate::index::{Content, Listed, Room};
use crate::options::BUNDLES_MAX;
use crate::state::{Item, Queued, is_same};
use crate::stats::count;
use crate::ticket::Ticket;

/// Blocks of one bundle, so that its index is never long.
const BLOCKS_MAX: usize = 16 << 10;
/// A bundle from further in the future than this does not move the time of the next one.
const AHEAD_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// Writes until nobody has the cache any more.
pub(crate) async fn run(cache: Weak<Inner>, bell: Arc<Notify>) {
    loop {
        let linger = {
            let Some(cache) = cache.upgrade() else { return };
            cache.linger()
        };
        match linger {
            Linger::UntilRung => bell.notified().await,
            Linger::For(span) => {
                // Rung by every block: goes round until the time is over, somebody waits, or a bundle is full.
                let rounds = async {
                    loop {
                        bell.notified().await;
                        let Some(cache) = cache.upgrade() else { return };
                        if matches!(cache.linger(), Linger::No) {
                            return;
                        }
                    }
                };
                let _ = tokio::time::timeout(span, rounds).await;
                if let Some(cache) = cache.upgrade() {
                    cache.lock().is_urgent = true;
                }
            }
            Linger::No => {
                let Some(cache) = cache.upgrade() else { return };
                cache.write_next().await;
            }
        }
    }
}

enum Linger {
    /// There is nothing to write.
    UntilRung,
    /// Others may come to share the bundle.
    For(Duration),
    No,
}

/// Blocks that become a bundle, and who waits for them.
#[derive(Default)]
struct Batch {
    blocks: Vec<Queued>,
    /// Blocks of the same name that others of the batch replace.
    replaced: Vec<Queued>,
    /// Blocks that are there already.
    there: Vec<Queued>,
    marks: Vec<Arc<Ticket>>,
}

impl Inner {
    fn linger(&self) -> Linger {
        let state = self.lock();
        if state.queue.is_empty() {
            Linger::UntilRung
        } else if state.is_urgent || state.queued_bytes >= self.options.bundle_bytes {
            Linger::No
        } else {
            Linger::For(Duration::from_millis(self.options.linger_ms))
        }
    }

    async fn write_next(&self) {
        let mut batch = self.take_batch();
        let result = match batch.blocks.is_empty() {
            true => Ok(()),
            false => self.write_bundle(&batch.blocks).await,
        };
        self.look_again(&mut batch);
        self.settle(batch, result);
    }

    /// Takes blocks off the queue, as many as a bundle holds.
    fn take_batch(&self) -> Batch {
        let now = self.clock.now_ms();
        let mut batch = Batch::default();
        let mut at: DigestMap<usize> = DigestMap::default();
        let mut bytes = 0;
        let mut state = self.lock();
        while let Some(item) = state.queue.pop_front() {
            let queued = match item {
                Item::Block(queued) => queued,
                Item::Mark(ticket) => {
                    batch.marks.push(ticket);
                    continue;
                }
            };
            let span = block_span(queued.block.bytes.len() as u64);
            let is_full = bytes + span > self.options.bundle_bytes || batch.blocks.len() >= BLOCKS_MAX;
            if is_full && !batch.blocks.is_empty() {
                state.queue.push_front(Item::Block(queued));
                break;
            }
            let is_there = state
                .index
                .peek(&queued.digest, now)
                .is_some_and(|known| is_same(known, &queued.block, queued.expires_ms, now));
            match at.get(&queued.digest) {
                // Whatever is there is older than what waits in front of this one.
                Some(earlier) => batch.replaced.push(std::mem::replace(&mut batch.blocks[*earlier], queued)),
                None if is_there => batch.there.push(queued),
                None => {
                    at.insert(queued.digest, batch.blocks.len());
                    batch.blocks.push(queued);
                    bytes += span;
                }
            }
        }
        if state.queue.is_empty() {
            state.is_urgent = false;
        }
        batch
    }

    /// Room for the bundle may have been made of the one that had a block already: then it waits again.
    fn look_again(&self, batch: &mut Batch) {
        let now = self.clock.now_ms();
        let mut state = self.lock();
        let is_there = |queued: &mut Queued| {
            let known = state.index.peek(&queued.digest, now);
            known.is_some_and(|known| is_same(known, &queued.block, queued.expires_ms, now))
        };
        let gone: Vec<Queued> = batch.there.extract_if(.., |queued| !is_there(queued)).collect();
        for queued in gone.into_iter().rev() {
            state.queue.push_front(Item::Block(queued));
            state.is_urgent = true;
        }
    }

    /// Tells those who wait, and makes room in the queue.
    fn settle(&self, batch: Batch, result: Result<()>) {
        let fault = {
            let mut state = self.lock();
            for queued in batch.there.iter().chain(&batch.blocks).chain(&batch.replaced) {
                state.arrived(queued);
                if result.is_err()
                    && let Some(held) = state.memory.get(&queued.digest)
                {
                    held.is_admitted = false;
                }
            }
            if let Err(fault) = &result
                && batch.blocks.iter().any(|queued| queued.ticket.is_none())
            {
                state.fault.get_or_insert_with(|| fault.clone());
            }
            if batch.marks.is_empty() { None } else { state.fault.take() }
        };
        match &result {
            Ok(()) => {
                let bytes = batch.blocks.iter().map(|queued| queued.block.bytes.len() as u64).sum();
                count(&self.counters.admitted, batch.blocks.len() as u64);
                count(&self.counters.admitted_bytes, bytes);
            }
            Err(fault) => {
                tracing::warn!("{} blocks cannot be written: {fault}", batch.blocks.len());
                count(&self.counters.write_errors, batch.blocks.len() as u64);
            }
        }
        self.room.notify_waiters();
        for queued in batch.blocks.iter().chain(&batch.replaced) {
            queued.ticket.iter().for_each(|ticket| ticket.settle(&result));
        }
        for queued in &batch.there {
            queued.ticket.iter().for_each(|ticket| ticket.settle(&Ok(())));
        }
        let since = fault.map_or(Ok(()), Err);
        batch.marks.iter().for_each(|ticket| ticket.settle(&since));
    }

    async fn write_bundle(&self, blocks: &[Queued]) -> Result<()> {
        let mut records = Vec::with_capacity(blocks.len());
        let mut offset = 0;
        for queued in blocks {
            let len = queued.block.bytes.len() as u64;
            records.push(Record {
                digest: queued.digest,
                offset,
                len: len as u32,
                sum: queued.block.sum,
                written_ms: queued.written_ms,
                expires_ms: queued.expires_ms,
            });
            offset += block_span(len);
        }
        let size = offset + tail_len(records.len()) as u64;
        self.make_room(size, records.len()).await?;
        // Later bundles of this writer must look later, whatever the clock does, for the newer of two blocks counts.
        let written_ms = self.written_ms();
        let tail = bundle::encode_tail(&records, offset, written_ms);
        let key = self.shelf.key(&format!("{written_ms:012x}-{:016x}", self.nonce))?;
        let request =
            WriteRequest { size: Some(size), condition: Condition::absent(), ..WriteRequest::default() };
        let mut filler = Filler::new(self.shelf.store.create(&self.shelf.volume, &key, request).await?);
        for queued in blocks {
            let bytes = &queued.block.bytes;
            filler.put(bytes).await?;
            let padding = block_span(bytes.len() as u64) as usize - bytes.len();
            filler.put(&[0; bundle::ALIGN as usize][..padding]).await?;
        }
        filler.put(&tail).await?;
        let receipt = filler.finish(Finish::default()).await?;
        count(&self.counters.bundles_written, 1);
        let listed = Listed { key, version: receipt.version, size, modified_ms: written_ms };
        self.lock().index.add(listed, Content::Blocks { records, written_ms });
        Ok(())
    }

    fn written_ms(&self) -> u64 {
        // Also later than those of others and of runs before, if their clocks went ahead; but not if one makes no sense.
        let now = self.clock.now_ms();
        let newest = self.lock().index.newest_ms(now.saturating_add(AHEAD_MS_MAX));
        let now = now.max(newest.saturating_add(1));
        let last = self.last_written_ms.fetch_max(now, Ordering::Relaxed);
        if last < now {
            return now;
        }
        self.last_written_ms.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Deletes bundles until there is room, after a look at what others wrote.
    async fn make_room(&self, bytes: u64, blocks: usize) -> Result<()> {
        self.refresh().await?;
        let room = Room { bytes, blocks, bytes_max: self.options.capacity_bytes, bundles_max: BUNDLES_MAX };
        let victims = self.lock().index.victims(&room, self.clock.now_ms());
        if victims.is_empty() { Ok(()) } else { self.evict(victims).await }
    }
}
