//! The rings of this node as one place for chunks.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use stoker_catalog::kv::Check;
use stoker_format::{ChunkId, DriveId, NodeId, VersionId};
use stoker_qos::Cost;
use stoker_qos_driver::Resource;
use stoker_ring::{ErrorKind as RingKind, Pool, Put, RecordInfo, Ring, RingError};
use stoker_schema::rows::{DriveRow, HolderRow, RowValue, keys};
use stoker_store::{Buf, ErrorKind, Result, StoreError, Subject};

use crate::{admission, clock, error};
pub(crate) use stoker_records::layout::{NAME_INDEX, chunks, drive_row, placed_chunks};

/// One ring and what the catalog knows of its drive.
pub(crate) struct Drive {
    pub ring: Ring,
    pub path: PathBuf,
    pub id: DriveId,
    pub row: DriveRow,
    /// Bytes that the ring holds at most.
    pub bytes: u64,
    /// What lay at its path when it was opened.
    pub mark: (u64, u64),
    /// A person wants it out.
    pub goes: AtomicBool,
    /// Not chosen for new chunks until then.
    pub refused_until_ms: AtomicU64,
    /// How much of what would be put there is, in percent; the rest goes elsewhere.
    pub weight_percent: AtomicU8,
    pub appends: Appends,
    /// Who may use it now.
    pub gate: Resource,
    standing: RwLock<Standing>,
}

/// What a drive is good for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It takes chunks.
    Serving,
    /// It is to show that it is sound: it takes no chunks and is read from, and what it has counts until others have it.
    Cordoned,
    /// It is to go: it is read from, and what it has counts until others have it.
    Leaving,
    /// It failed, for this reason: it is read from as long as it can be, and nothing on it counts.
    Failed(String),
}

impl Drive {
    pub fn new(ring: Ring, path: PathBuf, id: DriveId, row: DriveRow, bytes: u64) -> Drive {
        let mark = crate::drives::mark_of(&path).unwrap_or_default();
        let (goes, refused_until_ms) = Default::default();
        let (weight_percent, appends) = (AtomicU8::new(100), Appends::default());
        let (gate, standing) = (admission::gate(), RwLock::new(Standing::Serving));
        Drive {
            gate,
            ring,
            path,
            id,
            row,
            bytes,
            mark,
            goes,
            refused_until_ms,
            weight_percent,
            appends,
            standing,
        }
    }

    pub fn standing(&self) -> Standing {
        self.standing.read().unwrap().clone()
    }

    pub fn is_serving(&self) -> bool {
        *self.standing.read().unwrap() == Standing::Serving
    }

    /// Whether it has at least so many bytes of a chunk.
    pub fn has(&self, chunk: &ChunkId, len: usize) -> bool {
        self.ring.stat(chunk).is_some_and(|record| record.len as usize >= len)
    }

    /// True if that is news. One that failed stays so.
    pub fn set_standing(&self, standing: Standing) -> bool {
        let mut now = self.standing.write().unwrap();
        let is_news = *now != standing && !matches!(*now, Standing::Failed(_));
        if is_news {
            *now = standing;
        }
        is_news
    }

    /// The same, if it is still what somebody took it for when they decided; false if it is not.
    pub fn change_standing(&self, from: &Standing, to: Standing) -> bool {
        let mut now = self.standing.write().unwrap();
        let is_it = *now == *from;
        if is_it {
            *now = to;
        }
        is_it
    }

    /// Why it failed, if it did.
    pub fn why_failed(&self) -> Option<String> {
        match &*self.standing.read().unwrap() {
            Standing::Failed(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Takes no more writes, and nothing that it acknowledged counts any more.
    pub fn is_failed(&self) -> bool {
        matches!(*self.standing.read().unwrap(), Standing::Failed(_))
    }
}

/// Appends that are under way on a drive.
#[derive(Default)]
pub(crate) struct Appends {
    count: AtomicU64,
    /// Since when none of them has ended.
    since_ms: AtomicU64,
    /// One took long: until then the next one would, too.
    late_until_ms: AtomicU64,
}

/// A drive that ends no append for so long is left out, if there are others that do. (D70)
const LATE_MS: u64 = 100;

/// How long it is left out after that, in times of what the append took, and at most.
const LATE_TIMES: u64 = 8;
const LATE_FOR_MS_MAX: u64 = 10_000;

impl Appends {
    fn begin(&self, now_ms: u64) -> Append<'_> {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
        Append { appends: self, begun_ms: now_ms }
    }

    /// Whether a drive takes long to end what it was given.
    fn is_late(&self, now_ms: u64) -> bool {
        // A clock that was set back must not keep it out for longer.
        let late_for_ms = self.late_until_ms.load(Ordering::Relaxed).saturating_sub(now_ms);
        let ends_nothing = self.count.load(Ordering::Relaxed) > 0
            && now_ms.saturating_sub(self.since_ms.load(Ordering::Relaxed)) > LATE_MS;
        ends_nothing || (1..=LATE_FOR_MS_MAX).contains(&late_for_ms)
    }
}

/// One append, until it ends or nobody waits for it any more.
struct Append<'a> {
    appends: &'a Appends,
    begun_ms: u64,
}

impl Append<'_> {
    /// The drive did it, or said that it cannot.
    fn end(self, now_ms: u64) {
        self.appends.since_ms.store(now_ms, Ordering::Relaxed);
        let took_ms = now_ms.saturating_sub(self.begun_ms);
        if took_ms > LATE_MS {
            let for_ms = took_ms.saturating_mul(LATE_TIMES).min(LATE_FOR_MS_MAX);
            self.appends.late_until_ms.store(now_ms.saturating_add(for_ms), Ordering::Relaxed);
        }
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        self.appends.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a full drive is left out, if there are others.
const REFUSED_MS: u64 = 1_000;

/// One part in so many of the buffers is for reads alone.
const READ_SHARE: usize = 8;

/// The rings of this node. Drives come and go; each has a number that is never given twice, so that a number which somebody
/// remembers means that drive or none. (D45)
pub(crate) struct Rings {
    node: NodeId,
    slots: RwLock<Vec<Slot>>,
    pool: Arc<Pool>,
    /// Share of each ring that volumes which never drain may fill.
    never_share: f64,
    crowd: Crowd,
    /// Says which volumes are encrypted.
    keyring: Arc<stoker_keys::Keyring>,
    /// A drive failed.
    pub failed: tokio::sync::Notify,
    /// By chunk; see [`Rings::turn`].
    chunk_locks: Vec<Arc<tokio::sync::Mutex<()>>>,
}

/// How full the rings were when they were asked last.
#[derive(Default)]
struct Crowd {
    kept: AtomicU64,
    room: AtomicU64,
    at_ms: AtomicU64,
    /// Bytes that were written since.
    since: AtomicU64,
}

/// They are asked again when so much of their room was written since, or so much time has passed.
const CROWD_SHARE: u64 = 64;
const CROWD_MS: u64 = 100;

/// Segments of a ring that are reserved, or begun by others.
const KEPT_BACK: u64 = 4;

/// Locks that there are. Two chunks that share one wait for each other now and then.
const CHUNK_LOCKS: usize = 512;

struct Slot {
    holder: HolderRow,
    drive: Option<Arc<Drive>>,
}

impl Rings {
    pub fn new(
        node: NodeId,
        drives: Vec<Drive>,
        pool: Arc<Pool>,
        never_share: f64,
        keyring: Arc<stoker_keys::Keyring>,
    ) -> Rings {
        let chunk_locks = (0..CHUNK_LOCKS).map(|_| Arc::default()).collect();
        let (slots, failed) = (RwLock::default(), tokio::sync::Notify::new());
        let rings =
            Rings { node, slots, pool, never_share, crowd: Crowd::default(), keyring, failed, chunk_locks };
        for drive in drives {
            rings.add(drive);
        }
        rings
    }

    /// Puts a drive into service.
    pub fn add(&self, drive: Drive) -> Arc<Drive> {
        let holder = HolderRow::new(self.node, drive.id, drive.row.incarnation);
        let drive = Arc::new(drive);
        self.slots.write().unwrap().push(Slot { holder, drive: Some(drive.clone()) });
        drive
    }

    /// Takes a drive out; nobody finds it any more.
    pub fn retire(&self, id: DriveId) -> Option<Arc<Drive>> {
        let mut slots = self.slots.write().unwrap();
        let slot = slots.iter_mut().find(|slot| slot.drive.as_ref().is_some_and(|drive| drive.id == id))?;
        slot.drive.take()
    }

    /// Every drive with its number.
    pub fn numbered(&self) -> Vec<(usize, Arc<Drive>)> {
        let slots = self.slots.read().unwrap();
        let there = |(at, slot): (usize, &Slot)| Some((at, slot.drive.clone()?));
        slots.iter().enumerate().filter_map(there).collect()
    }

    /// Whether a drive is there and works.
    pub fn has_drive(&self, id: DriveId) -> bool {
        let is_it =
            |slot: &Slot| slot.drive.as_ref().is_some_and(|drive| drive.id == id && !drive.is_failed());
        self.slots.read().unwrap().iter().any(is_it)
    }

    /// Every drive.
    pub fn drives(&self) -> Vec<Arc<Drive>> {
        self.slots.read().unwrap().iter().filter_map(|slot| slot.drive.clone()).collect()
    }

    /// The drive with a number, if it was not taken out.
    pub fn drive(&self, at: usize) -> Option<Arc<Drive>> {
        self.slots.read().unwrap().get(at)?.drive.clone()
    }

    /// Whether some drive takes chunks.
    pub fn is_serving(&self) -> bool {
        let serves = |slot: &Slot| slot.drive.as_ref().is_some_and(|drive| drive.is_serving());
        self.slots.read().unwrap().iter().any(serves)
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Memory for bytes on their way to a drive. Some is left for reads, so that writers that wait for a drive or for their
    /// clients do not stop them.
    pub async fn write_buffer(&self, len: usize) -> Buf {
        self.pool.get_leaving(len, self.pool.size() / READ_SHARE).await
    }

    /// The same bytes in little memory, if they are few in much: they may have to wait for what follows.
    pub fn fitting(&self, buf: Buf) -> Buf {
        if buf.len() > buf.capacity() / 8 {
            return buf;
        }
        let mut small = self.pool.take(buf.len()).unwrap_or_else(|| Buf::heap(buf.len()));
        small.set_len(0);
        small.fill(buf.as_slice());
        small
    }

    /// The drive that a new chunk goes to: chunks of a file are striped over all drives that take writes. A name record
    /// goes where the first chunk would.
    pub fn pick(&self, version: VersionId, index: u32) -> usize {
        self.pick_beside(version, index, &[], &Standing::Serving).unwrap_or(0)
    }

    /// The same, or, if there are none of those, one that is cordoned: better one that may be slow than none.
    fn pick_any(&self, version: VersionId, index: u32, not: &[usize]) -> Option<usize> {
        let standing = if self.is_serving() { Standing::Serving } else { Standing::Cordoned };
        self.pick_beside(version, index, not, &standing)
    }

    /// The drive of such a standing, but none of these.
    fn pick_beside(
        &self,
        version: VersionId,
        index: u32,
        not: &[usize],
        standing: &Standing,
    ) -> Option<usize> {
        let index = if index == NAME_INDEX { 0 } else { index };
        let spread = u32::from_be_bytes(version.0[8..12].try_into().expect("four bytes"));
        let slots = self.slots.read().unwrap();
        let is_one = |at: &usize| {
            let drive = slots[*at].drive.as_ref().filter(|_| !not.contains(at));
            drive.is_some_and(|drive| *drive.standing.read().unwrap() == *standing)
        };
        let all: Vec<usize> = (0..slots.len()).filter(is_one).collect();
        let first = (spread.wrapping_add(index) as usize).checked_rem(all.len())?;
        let now_ms = clock::now_ms();
        // The same chunk is of the same share whoever asks, so that a retry does not wander.
        let lot = (spread.wrapping_mul(31).wrapping_add(index) % 100) as u8;
        let of = |at: &usize| slots[*at].drive.as_ref();
        let is_wanted = |at: &usize| {
            of(at).is_some_and(|drive| {
                drive.refused_until_ms.load(Ordering::Relaxed) <= now_ms
                    && lot < drive.weight_percent.load(Ordering::Relaxed)
            })
        };
        let is_quick = |at: &usize| of(at).is_some_and(|drive| !drive.appends.is_late(now_ms));
        let order = || all[first..].iter().chain(&all[..first]).copied();
        // When all are late it is the load, and none of them is worse for it.
        let quick = order().find(|at| is_wanted(at) && is_quick(at));
        quick.or_else(|| order().find(is_wanted)).or_else(|| order().next())
    }

    /// Appends records to the drive that is their turn, or to another one if that does not take them; says which.
    pub async fn append_any(&self, mut puts: Vec<Put>) -> Result<usize> {
        let chunk = puts[0].chunk;
        let mut tried = Vec::new();
        let Some(mut at) = self.pick_any(chunk.version, chunk.index, &tried) else {
            return Err(no_drive());
        };
        loop {
            tried.push(at);
            let next = self.pick_any(chunk.version, chunk.index, &tried);
            // The bytes of a record that a drive refused do not come back.
            let kept = next.map(|_| puts.iter_mut().map(keep_of).collect::<Vec<_>>());
            match (self.append(at, puts).await, next, kept) {
                (Err(fault), Some(next), Some(kept)) if is_of_drive(&fault) => {
                    tracing::warn!(%chunk, "a drive does not take it, another one is asked: {fault}");
                    puts = kept.into_iter().map(|keep| keep()).collect();
                    at = next;
                }
                (done, _, _) => return done.map(|()| at),
            }
        }
    }

    /// The right to bring a copy of a chunk. Files may use different lengths of one chunk, and of two records the later one counts: a
    /// front that lands behind the whole would take its place. So whoever brings a copy looks, in its turn, whether a longer one is here.
    pub async fn turn(&self, chunk: &ChunkId) -> tokio::sync::OwnedMutexGuard<()> {
        let at = stoker_format::crc64(&chunk.to_bytes()) as usize % self.chunk_locks.len();
        self.chunk_locks[at].clone().lock_owned().await
    }

    /// Appends records to a drive. One that refuses is left out by [`Self::pick`] for a while, one that failed for ever.
    pub async fn append(&self, at: usize, puts: Vec<Put>) -> Result<()> {
        self.refuse_plain(&puts)?;
        let drive = self.drive(at).ok_or_else(no_drive)?;
        // A drive is late by what it does, not by who goes first.
        let _permit = drive.admit(cost_of(&puts)).await?;
        let append = drive.appends.begin(clock::now_ms());
        let done = drive.ring.append(puts).await;
        append.end(clock::now_ms());
        match done {
            Ok(_) if drive.is_failed() => Err(no_drive()),
            Ok(_) => Ok(()),
            Err(fault) => {
                match fault.kind {
                    RingKind::Full => {
                        drive.refused_until_ms.store(clock::now_ms() + REFUSED_MS, Ordering::Relaxed);
                    }
                    RingKind::Poisoned | RingKind::Io => self.fail(&drive, fault.message.clone()),
                    // Not the drive's fault.
                    _ => {}
                }
                Err(error::ring(fault))
            }
        }
    }

    /// Plain bytes of an encrypted volume reach no drive, whichever way led here (R15).
    fn refuse_plain(&self, puts: &[Put]) -> Result<()> {
        let is_plain = |put: &Put| put.seal.is_none() && self.keyring.of(put.volume).is_some();
        match puts.iter().find(|put| is_plain(put)) {
            None => Ok(()),
            Some(put) => {
                let message = format!("chunk {} of an encrypted volume is not sealed", put.chunk);
                Err(StoreError::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// A drive failed: nothing more goes there.
    pub fn fail(&self, drive: &Drive, why: String) {
        if drive.set_standing(Standing::Failed(why.clone())) {
            tracing::error!(drive = %drive.path.display(), "the drive failed and is taken out: {why}");
            self.failed.notify_one();
        }
    }

    /// The drive that has at least so many bytes of a chunk. A file may use only the front of one, and then bring only that from
    /// elsewhere: a copy counts for whoever needs no more than it has. (D59)
    pub fn find(&self, chunk: &ChunkId, len: usize) -> Option<Arc<Drive>> {
        self.drive(self.position(chunk, len)?)
    }

    /// The same by its number; one that will stay, if there is one.
    pub fn position(&self, chunk: &ChunkId, len: usize) -> Option<usize> {
        let slots = self.slots.read().unwrap();
        let mut found = None;
        for (at, slot) in slots.iter().enumerate() {
            let Some(drive) = slot.drive.as_ref().filter(|drive| drive.has(chunk, len)) else {
                continue;
            };
            if drive.is_serving() {
                return Some(at);
            }
            found = found.or(Some(at));
        }
        found
    }

    /// Whether a drive that will stay has so much of a chunk.
    pub fn stays(&self, chunk: &ChunkId, len: u32) -> bool {
        self.drives().iter().any(|drive| drive.is_serving() && drive.has(chunk, len as usize))
    }

    /// The drive that will stay, has so much of a chunk and will not drop it.
    pub fn must_keep_at(&self, chunk: &ChunkId, len: u32) -> Option<usize> {
        let keeps = |drive: &Arc<Drive>| {
            let is_kept = |record: RecordInfo| !record.clean && record.len >= len;
            drive.is_serving() && drive.ring.stat(chunk).is_some_and(is_kept)
        };
        self.numbered().into_iter().find(|(_, drive)| keeps(drive)).map(|(at, _)| at)
    }

    /// Bytes that all rings together hold at most.
    pub fn capacity(&self) -> u64 {
        self.drives().iter().filter(|drive| drive.is_serving()).map(|drive| drive.bytes).sum()
    }

    /// Bytes that must stay in the rings when so many more are there, and how many can. The rings are not asked for every chunk.
    pub async fn crowding(&self, more: u64) -> (u64, u64) {
        let now_ms = clock::now_ms();
        let (crowd, order) = (&self.crowd, Ordering::Relaxed);
        let since = crowd.since.fetch_add(more, order) + more;
        let (kept, room) = (crowd.kept.load(order), crowd.room.load(order));
        if since < room / CROWD_SHARE && crowd.at_ms.load(order).abs_diff(now_ms) < CROWD_MS {
            return (kept + since, room);
        }
        let (mut kept, mut room) = (0, 0);
        for drive in self.drives().iter().filter(|drive| drive.is_serving()) {
            let Ok(status) = drive.ring.status().await else { continue };
            kept += status.keep_bytes + status.queued_bytes as u64;
            // Some segments are kept back, and some are open for others.
            room +=
                drive.bytes.saturating_sub(KEPT_BACK * status.superblock.segment_size).max(drive.bytes / 4);
        }
        for (at, value) in
            [(&crowd.kept, kept), (&crowd.room, room), (&crowd.at_ms, now_ms), (&crowd.since, more)]
        {
            at.store(value, order);
        }
        (kept + more, room)
    }

    /// Bytes of volumes that never drain that the rings hold at most.
    pub fn never_room(&self) -> u64 {
        (self.capacity() as f64 * self.never_share) as u64
    }

    /// Tells the rings that the lake has these chunks.
    pub async fn mark_clean(&self, ids: Vec<ChunkId>) -> Result<()> {
        for drive in self.drives() {
            drive.ring.mark_clean(ids.clone()).await.or_else(|fault| drive.excuse(fault))?;
        }
        Ok(())
    }

    /// Makes chunks must-keep; true if so much of every one of them is on a drive that stays. If not, nothing is changed.
    pub async fn mark_dirty(&self, chunks: &[(ChunkId, u32)]) -> Result<bool> {
        if !chunks.iter().all(|(id, len)| self.stays(id, *len)) {
            return Ok(false);
        }
        self.mark_dirty_here(chunks.iter().map(|(id, _)| *id).collect()).await?;
        // One may have been dropped between the look and the mark.
        Ok(chunks.iter().all(|(id, len)| self.must_keep_at(id, *len).is_some()))
    }

    /// Makes those must-keep that are here.
    pub async fn mark_dirty_here(&self, ids: Vec<ChunkId>) -> Result<()> {
        for drive in self.drives() {
            drive.ring.mark_dirty(ids.clone()).await.or_else(|fault| drive.excuse(fault))?;
        }
        Ok(())
    }

    /// Deletes chunks wherever they are; durable when this returns. What a failed drive has does not count, and is looked up
    /// in the catalog should it ever come back.
    pub async fn delete(&self, ids: &[ChunkId]) -> Result<()> {
        for drive in self.drives() {
            let here: Vec<ChunkId> = ids.iter().filter(|id| drive.ring.stat(id).is_some()).copied().collect();
            if !here.is_empty() && !drive.is_failed() {
                drive.ring.delete(here).await.or_else(|fault| drive.excuse(fault).map(drop))?;
            }
        }
        Ok(())
    }

    /// Who holds chunks on these drives.
    pub fn holders(&self, drives: impl IntoIterator<Item = usize>) -> Vec<HolderRow> {
        let slots = self.slots.read().unwrap();
        drives.into_iter().filter_map(|at| Some(slots.get(at)?.holder.clone())).collect()
    }

    /// Whoever stands for what has no bytes: the first drive that serves.
    pub fn stand_in(&self) -> usize {
        self.numbered().into_iter().find(|(_, drive)| drive.is_serving()).map_or(0, |(at, _)| at)
    }

    /// Checks that these drives still count at the life that acknowledged (R6); none if one does not.
    pub fn guards(&self, holders: &[HolderRow]) -> Option<Vec<Check>> {
        let drives = self.drives();
        let guard = |holder: &HolderRow| {
            let drive = drives.iter().find(|drive| drive.id.0 == holder.drive && !drive.is_failed());
            let drive = drive.filter(|drive| drive.row.incarnation == holder.incarnation)?;
            Some(Check::Value(keys::drive(drive.id), drive.row.encode()))
        };
        holders.iter().map(guard).collect()
    }

    /// Closes all rings.
    pub async fn close(&self) {
        for drive in self.drives() {
            if let Err(fault) = drive.ring.clone().close().await {
                tracing::warn!(drive = %drive.path.display(), "closing the ring: {fault:?}");
            }
        }
    }
}

impl Drive {
    /// Nothing is expected of a drive that failed.
    fn excuse(&self, fault: RingError) -> Result<usize> {
        match self.is_failed() || matches!(fault.kind, RingKind::Poisoned | RingKind::Closed) {
            true => Ok(0),
            false => Err(error::ring(fault)),
        }
    }
}

/// What an append of records takes of a drive.
fn cost_of(puts: &[Put]) -> Cost {
    let bytes = puts.iter().map(|put| put.payload.len() as u64).sum::<u64>();
    Cost::write(bytes.min(stoker_qos::COST_BYTES_MAX))
}

/// The bytes of a record, to make it once more.
fn keep_of(put: &mut Put) -> impl FnOnce() -> Put + use<> {
    let (chunk, volume, kind, retention) = (put.chunk, put.volume, put.kind, put.retention);
    let seal = put.seal.clone();
    let bytes = bytes::Bytes::from_owner(put.payload.lend());
    move || Put { chunk, volume, kind, retention, payload: Buf::copy_of(&bytes), seal }
}

/// Whether another drive may do better.
fn is_of_drive(fault: &StoreError) -> bool {
    matches!(fault.kind, ErrorKind::Full | ErrorKind::Unavailable | ErrorKind::Corrupt)
}

const NO_DRIVE: &str =
    "no drive of this node takes it: the drive failed or was taken out; see `stoker drive ls`";

fn no_drive() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, NO_DRIVE)
}

/// The error for a chunk that should be here and is not.
pub(crate) fn missing(chunk: &ChunkId) -> StoreError {
    let message = format!("chunk {chunk} is on no drive of this node and in no lake");
    StoreError::about(ErrorKind::Corrupt, Subject::Chunk, message)
}

/// Whether it is that.
pub(crate) fn is_missing(fault: &StoreError) -> bool {
    (fault.kind, fault.subject) == (ErrorKind::Corrupt, Subject::Chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_late_while_it_ends_nothing() {
        let appends = Appends::default();
        assert!(!appends.is_late(u64::MAX), "it has nothing to end");
        let now_ms = clock::now_ms();
        let one = appends.begin(now_ms);
        let two = appends.begin(now_ms + LATE_MS);
        assert!(!appends.is_late(now_ms + LATE_MS) && appends.is_late(now_ms + LATE_MS + 1));
        // That nobody waits any more says nothing of the drive.
        let three = appends.begin(now_ms + LATE_MS);
        drop(three);
        assert!(appends.is_late(now_ms + LATE_MS + 1));
        // It ended one just now.
        one.end(now_ms + LATE_MS);
        assert!(!appends.is_late(now_ms + LATE_MS + 1));
        // The other one took long: the drive is left out for a while, and then tried again.
        two.end(now_ms + LATE_MS + 500);
        assert!(appends.is_late(now_ms + LATE_MS + 501) && appends.is_late(now_ms + 8 * 500));
        assert!(!appends.is_late(now_ms + LATE_MS + 500 + LATE_FOR_MS_MAX));
    }
}
