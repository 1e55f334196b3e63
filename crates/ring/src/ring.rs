//! The ring as callers see it: async, from any thread, without copies.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stoker_format::{BLOCK, ChunkId, ClusterId, Record, Seq, VolumeId, table_crc};

use crate::buffer::{Buf, Pool};
use crate::drive::Drive;
use crate::driver::{Answer, Call, Inbox, Request, unix_now_ms};
use crate::engine::{Append, Damage, Engine, EngineParts};
use crate::error::{ErrorKind, Result, RingError};
use crate::gate::Gate;
use crate::index::{Entry, Index, Marks, Pin as SegmentPin};
use crate::io::{Background, EventWake};
use crate::launch::{StartParts, executor, start_thread};
use crate::read::{self, Life, ReadPlan};
use crate::recovery::{self, Media, Report, Shape};
use crate::settings::Settings;
use crate::stats::Stats;
use crate::sys;
use crate::tables::{Blocks, Tables};
use crate::twin::{Place, TwinDrive, TwinExecutor};
use crate::view::{Lease, Put, ReadView, RecordInfo, ScrubCursor, SealedBlocks, Status};

/// How a ring is opened.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Numbers.
    pub settings: Settings,
    /// Refuse a drive of another cluster.
    pub cluster: Option<ClusterId>,
    /// Buffers shared with other rings; the ring makes its own otherwise.
    pub pool: Option<Arc<Pool>>,
}

/// Records that one boot may write before the next boot's numbers start.
const BOOT_SEQ_BITS: u32 = 44;

struct Inner {
    inbox: Arc<Inbox>,
    index: Arc<Index>,
    tables: Arc<Tables>,
    stats: Arc<Stats>,
    pool: Arc<Pool>,
    place: Place,
    settings: Settings,
    gate: Arc<Gate>,
    deaths_max: usize,
    record_len_max: usize,
    report: Report,
    segments_missing: Vec<u32>,
    io_fallback: Option<String>,
    damages: Arc<Mutex<Vec<Damage>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a close this is like a crash that nobody notices: what was acknowledged is durable.
        let _ = self.inbox.push(Request::Stop(Call::new(1)));
    }
}

/// The driver of a ring that was opened with [`Ring::open_local`]; ends when the ring is closed.
pub type LocalDriver = Pin<Box<dyn Future<Output = std::io::Result<()>> + Send>>;

/// A ring on one drive.
#[derive(Clone)]
pub struct Ring {
    inner: Arc<Inner>,
}

/// Who compares bytes with their sums.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    Here,
    Elsewhere,
}

impl Ring {
    /// Opens a ring: takes the lock, recovers, starts the driver thread. Blocks for as long as recovery reads.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Ring> {
        let (mut ring, parts, drive) = Ring::recover(path, options)?;
        let io_fallback = start_thread(parts, drive, &ring.settings)?;
        ring.io_fallback = io_fallback;
        Ok(Ring { inner: Arc::new(ring) })
    }

    /// Opens a ring whose driver is a task: the future has to be polled, on this thread and inside a tokio runtime with
    /// I/O, for as long as the ring is used. Requests from this thread then cost no thread hop.
    pub fn open_local(path: &Path, options: OpenOptions) -> Result<(Ring, LocalDriver)> {
        let (mut ring, parts, drive) = Ring::recover(path, options)?;
        // A polled ring needs somebody who polls it; a task waits for an event.
        ring.settings.iopoll = false;
        let (executor, io_fallback) = executor(drive, parts.pool.clone(), &parts.wake, &ring.settings)?;
        ring.io_fallback = io_fallback;
        let driver = parts.driver(executor, &ring.settings);
        Ok((Ring { inner: Arc::new(ring) }, Box::pin(driver.run_local())))
    }

    /// Opens a ring on a simulated drive. Everything runs in the task that polls the future: no thread, no file.
    pub fn open_twin(drive: Arc<dyn TwinDrive>, options: OpenOptions) -> Result<(Ring, LocalDriver)> {
        let superblock = drive.superblock();
        if let Some(cluster) = options.cluster.filter(|cluster| *cluster != superblock.cluster) {
            let message = format!("the drive belongs to cluster {}, not to {cluster}", superblock.cluster);
            return Err(RingError::new(ErrorKind::Foreign, message));
        }
        let entropy = {
            let drive = drive.clone();
            Box::new(move || drive.random_u64())
        };
        let (ring, mut parts) =
            Ring::assemble(Place::Twin(Box::new(superblock)), drive.as_ref(), entropy, options)?;
        let executor = Box::new(TwinExecutor::new(drive.clone(), ring.index.clone(), parts.wake.clone()));
        parts.now_unix_ms = Box::new(move || drive.now_unix_ms());
        let driver = parts.driver(executor, &ring.settings);
        Ok((Ring { inner: Arc::new(ring) }, Box::pin(driver.run_local())))
    }

    fn recover(path: &Path, options: OpenOptions) -> Result<(Inner, StartParts, Arc<Drive>)> {
        let drive = Arc::new(Drive::open(path, options.cluster)?);
        let place = Place::Drive(drive.clone());
        let (inner, mut parts) = Ring::assemble(place, drive.as_ref(), Box::new(sys::random_u64), options)?;
        let background = Background::new(drive.clone(), inner.index.clone(), parts.wake.clone());
        parts.background = background.map_err(|e| RingError::io(path.display(), &e))?;
        Ok((inner, parts, drive))
    }

    /// Recovers, and puts the parts together that do not depend on who does the I/O.
    fn assemble(
        place: Place,
        media: &dyn Media,
        entropy: Box<dyn Fn() -> u64 + Send>,
        options: OpenOptions,
    ) -> Result<(Inner, StartParts)> {
        let settings = options.settings;
        let shape = Shape::of(place.superblock());
        settings.check(u64::from(shape.segment_size)).map_err(|e| RingError::new(ErrorKind::Invalid, e))?;
        let io_error = |e: std::io::Error| RingError::io("making a ring", &e);
        let pool = match options.pool {
            Some(pool) => pool,
            None => Pool::new(settings.pool_bytes).map_err(io_error)?,
        };
        let wake = EventWake::new().map_err(io_error)?;
        let index = Index::new(settings.index_entries_max(), shape.segment_count, entropy(), wake.clone());
        let recovered = recovery::recover(media, shape, &index)?;
        let (tables, stats) = (Arc::new(Tables::new(settings.tables_bytes_max)), Arc::new(Stats::default()));
        let engine = Engine::new(EngineParts {
            settings: settings.clone(),
            ring: shape.ring,
            segment_size: shape.segment_size,
            index: index.clone(),
            tables: tables.clone(),
            stats: stats.clone(),
            pool: pool.clone(),
            segments: recovered.segments,
            // Above everything that an earlier boot can have written, also where it cannot be read today.
            next_seq: recovered.next_seq.max(Seq(place.superblock().boot << BOOT_SEQ_BITS)),
            entropy,
        });
        let inbox = Arc::new(Inbox::new(wake.clone()));
        let damages: Arc<Mutex<Vec<Damage>>> = Arc::default();
        let inner = Inner {
            gate: Arc::new(Gate::new(settings.queue_bytes_max)),
            deaths_max: engine.deaths_max(),
            record_len_max: engine.record_len_max(),
            report: recovered.report,
            segments_missing: recovered.missing,
            io_fallback: None,
            inbox: inbox.clone(),
            index,
            tables,
            stats: stats.clone(),
            pool: pool.clone(),
            place,
            settings,
            damages: damages.clone(),
        };
        let (background, now_unix_ms) = (Background::none(), Box::new(unix_now_ms));
        Ok((inner, StartParts { engine, background, inbox, wake, stats, damages, pool, now_unix_ms }))
    }

    /// Appends records; when this returns they survive power loss. The buffers come back.
    pub async fn append(&self, puts: Vec<Put>) -> Result<Vec<Buf>> {
        if puts.is_empty() {
            return Ok(Vec::new());
        }
        let bytes: usize = puts.iter().map(|put| put.payload.len()).sum();
        let pass = self.inner.gate.enter(bytes).await;
        let appends: Vec<Append> = puts.into_iter().map(Put::into_append).collect();
        let call = Call::with_pass(appends.len(), Some(pass));
        self.inner.inbox.push(Request::Append(appends, call.clone()))?;
        call.wait().await?;
        let (first, mut all) = call.take_payloads();
        all.extend(first);
        Ok(all)
    }

    /// Appends one record; its buffer comes back.
    pub async fn append_one(&self, put: Put) -> Result<Buf> {
        let pass = self.inner.gate.enter(put.payload.len()).await;
        let call = Call::with_pass(1, Some(pass));
        self.inner.inbox.push(Request::AppendOne(put.into_append(), call.clone()))?;
        call.wait().await?;
        call.take_payloads().0.ok_or_else(|| RingError::new(ErrorKind::Closed, "the ring is closed"))
    }

    /// Reads and verifies `len` bytes at `offset` of a record, into a buffer of the pool.
    pub async fn read(&self, chunk: ChunkId, offset: usize, len: usize) -> Result<ReadView> {
        self.read_checked(chunk, offset, len, Check::Here).await
    }

    /// Reads for somebody who checks: if the view has a CRC, the bytes were not compared with it. Whole blocks are spared a
    /// pass; others are verified here.
    pub async fn read_unchecked(&self, chunk: ChunkId, offset: usize, len: usize) -> Result<ReadView> {
        self.read_checked(chunk, offset, len, Check::Elsewhere).await
    }

    async fn read_checked(
        &self,
        chunk: ChunkId,
        offset: usize,
        len: usize,
        check: Check,
    ) -> Result<ReadView> {
        loop {
            // The buffer first: a reader that held its segment while it waits for memory would hold up the reclaimer,
            // which those wait for who hold the memory.
            let missing = || RingError::new(ErrorKind::NotFound, format!("no record {chunk} in this ring"));
            let entry = self.inner.index.get(&chunk).ok_or_else(missing)?;
            let buf = self.inner.pool.get(read::plan(&chunk, &entry, offset, len)?.len).await;
            let (entry, pin) = self.pin(&chunk)?;
            let plan = read::plan(&chunk, &entry, offset, len)?;
            // It may have moved to a place that needs one block more.
            if buf.capacity() >= plan.len {
                return self.read_planned(chunk, entry, pin, plan, buf, check).await;
            }
        }
    }

    /// Reads and verifies into the caller's memory, without a copy. Ranges that start or end inside a block need room
    /// for the whole blocks around them.
    pub async fn read_into(&self, chunk: ChunkId, offset: usize, len: usize, buf: Buf) -> Result<ReadView> {
        let (entry, pin) = self.pin(&chunk)?;
        let plan = read::plan(&chunk, &entry, offset, len)?;
        if buf.capacity() < plan.len {
            let message = format!(
                "the buffer holds {} bytes, the blocks around this range are {}",
                buf.capacity(),
                plan.len
            );
            return Err(RingError::new(ErrorKind::Invalid, message));
        }
        self.read_planned(chunk, entry, pin, plan, buf, Check::Here).await
    }

    fn pin(&self, chunk: &ChunkId) -> Result<(Entry, SegmentPin)> {
        let pinned = self.inner.index.pin(chunk);
        pinned.ok_or_else(|| RingError::new(ErrorKind::NotFound, format!("no record {chunk} in this ring")))
    }

    #[expect(clippy::disallowed_methods, reason = "the edge: latencies are measured here")]
    async fn read_planned(
        &self,
        chunk: ChunkId,
        entry: Entry,
        pin: SegmentPin,
        plan: ReadPlan,
        mut buf: Buf,
        check: Check,
    ) -> Result<ReadView> {
        let started = Instant::now();
        let inner = &self.inner;
        buf.set_len(plan.len);
        let cached = self.cached_blocks(&chunk, &entry);
        // Without a cached table its header is read at the same time as the payload.
        let header = match &cached {
            Some(_) => None,
            None => Some(self.start_header_read(&entry)?),
        };
        let answer = Answer::new();
        let (segment, offset) = (plan.segment, plan.offset);
        inner.inbox.push(Request::Read { segment, offset, buf, answer: answer.clone() })?;
        let buf = answer.wait().await?;
        let Blocks { table, seal, .. } = match (cached, header) {
            (Some(blocks), _) => blocks,
            (None, Some(header)) => {
                self.blocks_from_header(&chunk, &entry, header.wait().await?.as_slice())?
            }
            (None, None) => unreachable!("a header read was started"),
        };
        drop(pin);
        let crc = plan.crc(&entry, &table);
        let is_checked = check == Check::Here || crc.is_none();
        if is_checked && let Some(block) = plan.bad_block(&entry, &table, buf.as_slice()) {
            inner.stats.corrupt_blocks.add(1);
            let message =
                format!("block {block} of record {chunk} fails its CRC (segment {})", entry.segment);
            return Err(RingError::new(ErrorKind::Corrupt, message));
        }
        inner.stats.reads.add(1);
        inner.stats.read_bytes.add(plan.view.len() as u64);
        inner.stats.read_latency.record_us(started.elapsed().as_micros() as u64);
        let sealed = seal.map(|seal| SealedBlocks {
            seal,
            volume: entry.volume,
            len: entry.len,
            first: plan.blocks.start,
            range: plan.blocks_range(&entry),
        });
        Ok(ReadView { buf, range: plan.view, crc, sealed })
    }

    fn cached_blocks(&self, chunk: &ChunkId, entry: &Entry) -> Option<Blocks> {
        if entry.len as usize <= BLOCK && entry.aux() == 0 {
            return Some(Blocks { table: Arc::new([entry.crc]), seal: None, crc: entry.crc });
        }
        self.inner.tables.get(chunk, entry.crc)
    }

    fn start_header_read(&self, entry: &Entry) -> Result<Arc<Answer<Result<Buf>>>> {
        self.inner.stats.table_misses.add(1);
        let (offset, len) = read::header_place(entry);
        let mut buf = self.inner.pool.take(len).unwrap_or_else(|| Buf::heap(len));
        buf.set_len(len);
        let answer = Answer::new();
        let request = Request::Read { segment: entry.segment, offset, buf, answer: answer.clone() };
        self.inner.inbox.push(request)?;
        Ok(answer)
    }

    fn record_in(&self, chunk: &ChunkId, entry: &Entry, bytes: &[u8]) -> Option<Record> {
        let shape = Shape::of(self.inner.place.superblock());
        let (generation, nonce) = self.inner.index.segment(entry.segment).life();
        let life = Life { ring: shape.ring, generation, nonce, segment_size: shape.segment_size };
        read::record_of(chunk, entry, &life, bytes)
    }

    fn blocks_from_header(&self, chunk: &ChunkId, entry: &Entry, bytes: &[u8]) -> Result<Blocks> {
        let record = self.record_in(chunk, entry, bytes);
        // What is sealed in a way that nobody here knows must not be taken for plain bytes.
        let sealed = |record: Record| {
            let seal = record.seal().map(Arc::new);
            (seal.is_some() == (entry.aux() > 0)).then_some((record.table, seal))
        };
        let Some((table, seal)) = record.and_then(sealed) else {
            self.inner.stats.corrupt_blocks.add(1);
            let message = format!("the header of record {chunk} cannot be read (segment {})", entry.segment);
            return Err(RingError::new(ErrorKind::Corrupt, message));
        };
        let blocks = Blocks { table: table.into(), seal, crc: entry.crc };
        self.inner.tables.put(*chunk, blocks.clone());
        Ok(blocks)
    }

    /// Forgets records; when this returns no crash brings them back.
    pub async fn delete(&self, chunks: Vec<ChunkId>) -> Result<()> {
        let mut calls = Vec::new();
        for part in chunks.chunks(self.inner.deaths_max) {
            let call = Call::new(1);
            self.inner.inbox.push(Request::Delete(part.to_vec(), call.clone()))?;
            calls.push(call);
        }
        for call in calls {
            call.wait().await?;
        }
        Ok(())
    }

    async fn remark(&self, chunks: Vec<ChunkId>, change: fn(Marks) -> Marks) -> Result<usize> {
        let answer = Answer::new();
        self.inner.inbox.push(Request::Remark(chunks, change, answer.clone()))?;
        Ok(answer.wait().await)
    }

    /// Lets the ring drop records: the lake has them. A hint that does not survive a restart (R8).
    pub async fn mark_clean(&self, chunks: Vec<ChunkId>) -> Result<usize> {
        self.remark(chunks, |marks| marks.with(Marks::CLEAN)).await
    }

    /// Makes records must-keep again.
    pub async fn mark_dirty(&self, chunks: Vec<ChunkId>) -> Result<usize> {
        self.remark(chunks, |marks| marks.without(Marks::CLEAN)).await
    }

    /// Keeps records although the lake has them, until [`Ring::unpin_records`]. A restart may forget it, or remember it: whoever pins says
    /// it again, and lets go of what is left over.
    pub async fn pin_records(&self, chunks: Vec<ChunkId>) -> Result<usize> {
        self.remark(chunks, |marks| marks.with(Marks::PINNED)).await
    }

    /// Lets the ring drop records again that the lake has.
    pub async fn unpin_records(&self, chunks: Vec<ChunkId>) -> Result<usize> {
        self.remark(chunks, |marks| marks.without(Marks::PINNED)).await
    }

    /// What is known of a record, from memory.
    pub fn stat(&self, chunk: &ChunkId) -> Option<RecordInfo> {
        self.inner.index.get(chunk).map(|entry| RecordInfo::of(*chunk, &entry))
    }

    /// Every live record, page by page; records that come or go meanwhile may be missed or seen.
    pub fn pages(&self) -> impl Iterator<Item = Vec<RecordInfo>> {
        let index = self.inner.index.clone();
        (0..)
            .map_while(move |shard| index.page(shard))
            .map(|page| page.iter().map(|(chunk, entry)| RecordInfo::of(*chunk, entry)).collect())
    }

    /// Records that only this ring may have.
    pub fn dirty(&self) -> Vec<RecordInfo> {
        self.pages().flatten().filter(|info| !info.clean).collect()
    }

    /// Largest payload of a record here.
    pub fn record_len_max(&self) -> usize {
        self.inner.record_len_max
    }

    /// Closes every open segment, so that a restart reads footers only.
    pub async fn close_segments(&self) -> Result<()> {
        let call = Call::new(1);
        self.inner.inbox.push(Request::CloseSegments(call.clone()))?;
        call.wait().await
    }

    /// Gives a volume segments of its own, so that leases on its records can be had; false if too many have.
    pub async fn set_leasable(&self, volume: VolumeId, leasable: bool) -> Result<bool> {
        if !self.inner.place.gives_leases() {
            return Ok(!leasable);
        }
        let answer = Answer::new();
        self.inner.inbox.push(Request::Leasable(volume, leasable, answer.clone()))?;
        Ok(answer.wait().await)
    }

    /// Gives a local reader the file and the place of a record.
    pub async fn lease(&self, chunk: ChunkId) -> Result<Lease> {
        loop {
            let before = self.stat(&chunk).map(|info| info.segment);
            let call = Call::new(1);
            self.inner.inbox.push(Request::Lease(chunk, call.clone()))?;
            call.wait().await?;
            let (entry, pin) = self.pin(&chunk)?;
            if Some(entry.segment) != before {
                // The reclaimer moved it; the mark is on its old segment.
                continue;
            }
            let blocks = match self.cached_blocks(&chunk, &entry) {
                Some(blocks) => blocks,
                None => {
                    let header = self.start_header_read(&entry)?.wait().await?;
                    self.blocks_from_header(&chunk, &entry, header.as_slice())?
                }
            };
            if blocks.seal.is_some() {
                let message = format!("record {chunk} is encrypted: its bytes are not lent");
                return Err(RingError::new(ErrorKind::Invalid, message));
            }
            let file = self.inner.place.lease_file(entry.segment);
            let file = file.map_err(|e| RingError::io("lease", &e))?;
            drop(pin);
            return Ok(Lease {
                file,
                offset: u64::from(entry.payload_offset),
                len: entry.len,
                table: blocks.table,
            });
        }
    }

    /// Notes that a chunk was wanted and not here; says whether to write it to flash.
    pub async fn admits(&self, chunk: ChunkId, staged: bool) -> Result<bool> {
        let answer = Answer::new();
        self.inner.inbox.push(Request::Admits(chunk, staged, answer.clone()))?;
        Ok(answer.wait().await)
    }

    /// Reads up to `count` more records from end to end and returns those that are not sound. A lap is over when the
    /// cursor is back at its start.
    pub async fn scrub(&self, cursor: &mut ScrubCursor, count: usize) -> Result<Vec<ChunkId>> {
        let (mut bad, mut done) = (Vec::new(), 0);
        while done < count {
            let Some(page) = self.inner.index.page(cursor.shard) else {
                *cursor = ScrubCursor::default();
                break;
            };
            cursor.shard += 1;
            for (chunk, entry) in page {
                done += 1;
                cursor.checked += 1;
                match self.read(chunk, 0, entry.len as usize).await {
                    Ok(_) => self.inner.stats.scrubbed_records.add(1),
                    Err(e) if e.kind == ErrorKind::Corrupt || e.kind == ErrorKind::Io => bad.push(chunk),
                    Err(e) if e.kind == ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(bad)
    }

    /// Whether the header of a record is on the drive as it was written. False also for a record that is not here.
    pub async fn has_sound_header(&self, chunk: ChunkId) -> bool {
        let Ok((entry, pin)) = self.pin(&chunk) else { return false };
        let Ok(header) = self.start_header_read(&entry) else { return false };
        let header = header.wait().await;
        drop(pin);
        let record = header.ok().and_then(|header| self.record_in(&chunk, &entry, header.as_slice()));
        record.is_some_and(|record| table_crc(&record.table, entry.len as usize) == entry.crc)
    }

    /// Segment files that are not at their path any more: they can be read as long as this ring is open, and not after.
    pub fn files_gone(&self) -> Vec<PathBuf> {
        match &self.inner.place {
            Place::Drive(drive) => drive.files_gone(),
            Place::Twin(_) => Vec::new(),
        }
    }

    /// Records found unreadable while they were moved, since the last call.
    pub fn take_damages(&self) -> Vec<Damage> {
        std::mem::take(&mut self.inner.damages.lock().unwrap())
    }

    /// The state of the ring.
    pub async fn status(&self) -> Result<Status> {
        let answer = Answer::new();
        self.inner.inbox.push(Request::Snapshot(answer.clone()))?;
        let snapshot = answer.wait().await;
        Ok(Status {
            superblock: self.inner.place.superblock().clone(),
            segments: snapshot.counts,
            records: self.inner.index.len(),
            keep_bytes: snapshot.keep_bytes,
            clean_bytes: snapshot.clean_bytes,
            queued_bytes: snapshot.queued_bytes,
            poisoned: snapshot.poisoned,
            io_engine: snapshot.engine,
            io_fallback: self.inner.io_fallback.clone(),
            direct: self.inner.place.is_direct(),
            sync: self.inner.settings.sync,
            recovery: self.inner.report,
            segments_missing: self.inner.segments_missing.clone(),
            memory_bytes_max: self.inner.settings.memory_bytes_max(),
            detail: snapshot.describe,
        })
    }

    /// Waits until every segment is zero-written and writes run at full speed everywhere.
    pub async fn wait_prepared(&self) -> Result<()> {
        let call = Call::new(1);
        self.inner.inbox.push(Request::WaitPrepared(call.clone()))?;
        call.wait().await
    }

    /// Buffers that travel to the drive without a copy.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.inner.stats
    }

    /// Finishes what is under way, closes the segments and stops the driver.
    pub async fn close(self) -> Result<()> {
        let call = Call::new(1);
        self.inner.inbox.push(Request::Stop(call.clone()))?;
        call.wait().await
    }
}

/// Milliseconds since the epoch, for whoever makes a ring.
pub fn now_unix_ms() -> u64 {
    unix_now_ms()
}
