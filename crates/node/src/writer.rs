//! Writing: chunks into rings as they come, then one publish.
//!
//! The last chunk waits for `finish`, so that a small file is one batch on the drive: chunk and name record together.

use std::sync::Arc;

use stoker_format::{
    ChunkId, ChunkRun, NameRecord, NodeId, RecordKind, VersionId, crc64, crc64_combine, crc64_zeros,
};
use stoker_qos::Tag;
use stoker_ring::{Put, Retention};
use stoker_schema::rows::HolderRow;
use stoker_store::{BoxFuture, Buf, ErrorKind, Finish, Receipt, Result, StoreError, WhenAlone, Writer};
use tokio::task::{JoinHandle, JoinSet};
use tracing::Instrument as _;

use crate::admission::working;
use crate::cell::{Copied, Copies};
use crate::core::{Core, add};
use crate::drain::spill::{Spill, Spilled};
use crate::pins::Pin;
use crate::rings::NAME_INDEX;
use crate::tracker::Work;
use crate::volumes::Volume;
use crate::{TRACE, clock};
pub(crate) use stoker_records::layout::RunList;

/// Chunks of one file on their way to drives at the same time.
const IN_FLIGHT_MAX: usize = 4;

/// Most bytes of one file: what the chunk index can count is more, but S3 ends here.
const FILE_BYTES_MAX: u64 = 50 << 40;

/// Runs that one part or file may have from early ends of chunks before short buffers are refused.
const SHORT_CHUNKS_MAX: usize = 1_000;

/// Bytes that are durable, not yet visible.
pub(crate) struct Written {
    pub version: VersionId,
    pub runs: RunList,
    pub crc64: u64,
    pub holders: Vec<HolderRow>,
    /// Peers that took copies, each with the session that acknowledged.
    pub sessions: Vec<(NodeId, [u8; 16])>,
    /// Too few nodes have it: the lake has to, before it is published.
    pub is_alone: bool,
    /// Chunks of it that the lake has and no drive.
    pub spilled: Option<Spilled>,
}

/// What happens when all bytes are there.
pub(crate) trait Purpose: Send + 'static {
    /// What a write does that finds too few nodes.
    fn when_alone(&self) -> WhenAlone {
        WhenAlone::Refuse
    }

    /// What kind of work it is.
    fn work(&self, work: Tag) -> Tag {
        work
    }

    /// The name record that goes to the drive with the last chunk, if there is one.
    fn name_record(&self, core: &Core, written: &Written, finish: &Finish) -> Result<Option<NameRecord>>;

    /// Makes it visible.
    fn publish(
        self: Box<Self>,
        core: Arc<Core>,
        written: Written,
        finish: Finish,
    ) -> BoxFuture<'static, Result<Receipt>>;
}

/// A file or part being written.
pub(crate) struct ChunkWriter {
    core: Arc<Core>,
    volume: Arc<Volume>,
    /// Of whom and for whom it is written.
    work: Tag,
    version: VersionId,
    next_index: u32,
    runs: RunList,
    /// Runs since the last chunks of another version.
    short_chunks: usize,
    crc64: u64,
    /// Whether the CRC-64 of the bytes is kept with them.
    pub has_crc64: bool,
    pending: Option<(u32, Buf)>,
    appends: JoinSet<Result<Copied>>,
    copies: Copies,
    size: Option<u64>,
    purpose: Option<Box<dyn Purpose>>,
    when_alone: WhenAlone,
    /// Chunks or a name record may be on drives that nothing refers to.
    has_litter: bool,
    /// Bytes of it that went to drives.
    in_rings: u64,
    /// Bytes of the version that it goes on with.
    pub goes_on_with: u64,
    /// Where it goes when it has outgrown its share of the rings.
    spill: Option<Box<Spill>>,
    /// It goes there although the lake is in trouble, because the rings are full.
    is_last_resort: bool,
    /// Looks up the last commit while the bytes come: the name record comes after it (R6).
    look: Option<JoinHandle<u64>>,
    _work: Work,
    /// No inventory takes what is not published for litter.
    _pin: Pin,
}

impl ChunkWriter {
    pub fn new(
        core: Arc<Core>,
        volume: Arc<Volume>,
        size: Option<u64>,
        purpose: Box<dyn Purpose>,
    ) -> ChunkWriter {
        let version = clock::mint();
        let mut writer = ChunkWriter {
            _pin: core.pins.pin(version),
            version,
            next_index: 0,
            runs: RunList::default(),
            short_chunks: 0,
            crc64: crc64(b""),
            has_crc64: true,
            pending: None,
            appends: JoinSet::new(),
            copies: Copies::default(),
            size,
            when_alone: purpose.when_alone(),
            work: purpose.work(core.work_on(&volume)),
            purpose: Some(purpose),
            has_litter: false,
            in_rings: 0,
            goes_on_with: 0,
            spill: None,
            is_last_resort: false,
            look: None,
            _work: core.work.begin(),
            core,
            volume,
        };
        writer.look_up();
        writer
    }

    fn look_up(&mut self) {
        self.look = self.core.cell.has_others().then(|| {
            let looker = self.core.clone();
            self.core.tasks.spawn(async move { looker.seq_now().await })
        });
    }

    fn put(&self, index: u32, payload: Buf) -> Put {
        Put {
            chunk: ChunkId::new(self.version, index),
            volume: self.volume.id,
            kind: RecordKind::Chunk,
            retention: Core::retention(&self.volume),
            payload,
            seal: None,
        }
    }

    fn send(&mut self, index: u32, buf: Buf) {
        self.has_litter = true;
        let put = self.put(index, buf);
        let (core, volume) = (self.core.clone(), self.volume.clone());
        let when_alone = self.when_alone;
        // Made here: the task itself would not know whose it is.
        let span = tracing::debug_span!(target: TRACE, "chunk", index, bytes = put.payload.len());
        let append =
            async move { core.commit_records(&volume, vec![put], when_alone).await }.instrument(span);
        self.core.tasks.spawn_into(&mut self.appends, working(self.work, append));
    }

    async fn land_one(&mut self) -> Result<()> {
        if let Some(joined) = self.appends.join_next().await {
            let copied = joined.map_err(|fault| StoreError::new(ErrorKind::Closed, fault.to_string()))??;
            self.copies.add(copied);
        }
        Ok(())
    }

    /// Adds a chunk.
    pub async fn take(&mut self, buf: Buf) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let limit = self.size.unwrap_or(FILE_BYTES_MAX).min(FILE_BYTES_MAX);
        if self.len() + buf.len() as u64 > limit {
            let message = format!("more bytes came than the {limit} that were announced or allowed");
            return Err(StoreError::about(ErrorKind::Invalid, stoker_store::Subject::Size, message));
        }
        if self.short_chunks > SHORT_CHUNKS_MAX {
            let message = "the bytes come in too many small pieces; send them without long pauses";
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        if self.has_crc64 {
            let sum = buf.crc64().unwrap_or_else(|| crc64(buf.as_slice()));
            self.crc64 = crc64_combine(self.crc64, sum, buf.len() as u64);
        }
        self.core.drainer.pace.wrote(buf.len() as u64);
        if self.spill.is_none() && self.is_outgrown(buf.len() as u64).await? {
            self.begin_spill().await?;
        }
        if self.spill.is_some() {
            return self.spill_bytes(buf.as_slice()).await;
        }
        self.in_rings += buf.len() as u64;
        let runs = self.runs.runs().len();
        self.runs.push(self.version, self.next_index, buf.len() as u32);
        self.short_chunks += self.runs.runs().len() - runs;
        let buf = if self.size.is_none() { self.core.rings.fitting(buf) } else { buf };
        if let Some((index, waiting)) = self.pending.replace((self.next_index, buf)) {
            self.send(index, waiting);
        }
        self.next_index += 1;
        // A client that pauses must not keep a buffer meanwhile; only what may be the end waits for the name record.
        if self.size.is_some_and(|size| self.runs.size() < size)
            && let Some((index, waiting)) = self.pending.take()
        {
            self.send(index, waiting);
        }
        while self.appends.len() >= IN_FLIGHT_MAX {
            self.land_one().await?;
        }
        Ok(())
    }

    /// Bytes that came.
    fn len(&self) -> u64 {
        self.runs.size() + self.spill.as_ref().map_or(0, |spill| spill.pending())
    }

    /// Whether so many more bytes are for the lake, because the rings have no room for all of it. Small writes have what is left.
    async fn is_outgrown(&mut self, more: u64) -> Result<bool> {
        let own = self.in_rings + more;
        let all = own + self.goes_on_with;
        if own < u64::from(self.core.chunk_bytes) {
            return Ok(false);
        }
        let stays = Core::retention(&self.volume) == Retention::Never;
        if stays {
            let most = self.core.rings.never_room();
            let wanted = self.size.unwrap_or(0).max(self.len() + more) + self.goes_on_with;
            return if wanted > most { Err(too_large(&self.volume, most)) } else { Ok(false) };
        }
        let (kept, room) = self.core.rings.crowding(more).await;
        // While the lake is in trouble the rings are used as far as they go.
        let has_trouble = self.core.drainer.trouble(clock::now_ms()).is_some();
        let is_crowded = kept > if has_trouble { room / 16 * 15 } else { room / 4 * 3 };
        self.is_last_resort = has_trouble;
        let is_large = !has_trouble && kept > room / 2 && all > room / 8;
        // Without enough nodes all of it goes to the lake when it ends.
        Ok((is_crowded || is_large) && !self.copies.is_alone())
    }

    async fn begin_spill(&mut self) -> Result<()> {
        if let Some((index, waiting)) = self.pending.take() {
            self.send(index, waiting);
        }
        let rest = self.size.map(|size| size.saturating_sub(self.runs.size()));
        let begun = Spill::begin(&self.core, &self.volume, (self.version, self.next_index), rest).await?;
        self.spill = Some(Box::new(begun));
        // What the lake has of it has no name until it is published, so it cannot be copied there as a whole.
        self.when_alone = WhenAlone::Refuse;
        Ok(())
    }

    async fn spill_bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(spill) = self.spill.as_mut().filter(|_| !bytes.is_empty()) {
            let len = spill.fill(bytes).await?;
            bytes = &bytes[len..];
            if spill.is_full() {
                self.cut_spill();
            }
        }
        match &mut self.spill {
            Some(spill) => working(self.work, spill.go_on()).await,
            None => Ok(()),
        }
        .map_err(|fault| self.spill_fault(fault))
    }

    /// The lake did not take what the rings have no room for.
    fn spill_fault(&self, fault: StoreError) -> StoreError {
        self.core.drainer.note_fault(&fault);
        // What came was sound; what is wrong lies between here and the lake, and the whole may be sent again.
        let is_damaged = fault.kind == ErrorKind::Corrupt;
        let kind = if is_damaged { ErrorKind::Unavailable } else { fault.kind };
        let fault = StoreError { kind, ..fault };
        if !self.is_last_resort || fault.kind != ErrorKind::Unavailable {
            return fault;
        }
        let message =
            format!("the rings are full of what is not drained, and the lake takes nothing: {fault}");
        StoreError::new(ErrorKind::Full, message)
    }

    /// Ends the chunk that is on its way to the lake.
    fn cut_spill(&mut self) {
        if let Some((index, len)) = self.spill.as_mut().and_then(|spill| spill.cut()) {
            self.runs.push(self.version, index, len);
        }
    }

    /// Waits for the drives; the last chunk goes together with the name record.
    async fn settle(&mut self, finish: &Finish) -> Result<Written> {
        if let Some(look) = self.look.take() {
            let _ = look.await;
        }
        self.cut_spill();
        let spilled = match &mut self.spill {
            Some(spill) => match working(self.work, spill.finish()).await {
                Ok(spilled) => spilled,
                Err(fault) => return Err(self.spill_fault(fault)),
            },
            None => None,
        };
        let purpose = self.purpose.as_ref().expect("a writer is finished once");
        let mut written = Written {
            version: self.version,
            runs: self.runs.clone(),
            crc64: self.crc64,
            holders: Vec::new(),
            sessions: Vec::new(),
            is_alone: false,
            spilled,
        };
        let record = purpose.name_record(&self.core, &written, finish)?;
        let mut puts = Vec::new();
        if let Some((index, buf)) = self.pending.take() {
            puts.push(self.put(index, buf));
        }
        if let Some(record) = record {
            let fault =
                |fault: stoker_format::FormatError| StoreError::new(ErrorKind::Invalid, fault.to_string());
            record.check().map_err(fault)?;
            let payload = Buf::copy_of(&record.encode());
            let put = self.put(NAME_INDEX, payload);
            puts.push(Put { kind: RecordKind::Name, ..put });
        }
        if !puts.is_empty() {
            self.has_litter = true;
            let commit = self.core.commit_records(&self.volume, puts, self.when_alone);
            self.copies.add(working(self.work, commit).await?);
        }
        while !self.appends.is_empty() {
            self.land_one().await?;
        }
        written.holders = self.copies.holders(&self.core.rings);
        written.sessions = self.copies.sessions();
        written.is_alone = self.copies.is_alone();
        if written.is_alone && written.spilled.is_some() {
            let message = "too few nodes took the front of a file that is too large for the rings; try again";
            return Err(StoreError::new(ErrorKind::Unavailable, message));
        }
        Ok(written)
    }

    /// Memory for so many bytes.
    pub async fn room(&mut self, len: usize) -> Result<Buf> {
        self.core.check_open()?;
        // Whoever waits for memory must not sit on some.
        if let Some((index, waiting)) = self.pending.take() {
            self.send(index, waiting);
        }
        // Nor whoever waits for their ceiling: what they will write is paid for before they have memory for it.
        self.core.pass(self.work, len as u64).await?;
        let mut buf = self.core.rings.write_buffer(len).await;
        buf.set_len(0);
        Ok(buf)
    }

    /// Goes on with chunks of another version, which the caller keeps where they are.
    pub fn refer(&mut self, run: &ChunkRun) {
        self.cut_spill();
        if !run.is_hole() && !run.is_spilled() {
            self.goes_on_with += run.byte_len();
        }
        self.runs.push_run(run);
        self.short_chunks = 0;
    }

    /// Goes on with zeros that are stored nowhere.
    pub fn skip(&mut self, len: u64) {
        if self.has_crc64 {
            self.crc64 = crc64_combine(self.crc64, crc64_zeros(len), len);
        }
        self.refer(&ChunkRun::hole(0, len));
    }

    /// All that was written comes behind these chunks of another version, which the caller keeps where they are.
    pub fn go_on_from(&mut self, runs: &[ChunkRun], purpose: Box<dyn Purpose>) -> Result<()> {
        self.cut_spill();
        let mut all = RunList::default();
        runs.iter().chain(self.runs.runs()).for_each(|run| all.push_run(run));
        if all.size() > FILE_BYTES_MAX {
            let message =
                format!("the file would be longer than the {FILE_BYTES_MAX} bytes that are allowed");
            return Err(StoreError::about(ErrorKind::Invalid, stoker_store::Subject::Size, message));
        }
        (self.runs, self.purpose) = (all, Some(purpose));
        // The version before was published since this began.
        self.look_up();
        Ok(())
    }

    /// Publishes.
    pub async fn complete(mut self, finish: Finish) -> Result<Receipt> {
        let begun = tokio::time::Instant::now();
        self.core.check_open()?;
        if let Some(size) = self.size.filter(|size| *size != self.len()) {
            let message = format!("{} bytes came, {size} were announced", self.len());
            return Err(StoreError::about(ErrorKind::Invalid, stoker_store::Subject::Size, message));
        }
        let written = self.settle(&finish).await?;
        let bytes = written.runs.size();
        let purpose = self.purpose.take().expect("a writer is finished once");
        let core = self.core.clone();
        let span = tracing::debug_span!(target: TRACE, "publish");
        let published = purpose.publish(core.clone(), written, finish).instrument(span).await;
        self.has_litter = match &published {
            Ok(_) => false,
            // The outcome may be unknown: chunks stay until a restart has asked the catalog.
            Err(fault) => !fault.is_unknown(),
        };
        if !self.has_litter {
            core.end_holds(self.copies.nodes(), vec![self.version], 0);
        }
        if let (Ok(_), Some(spill)) = (&published, &mut self.spill) {
            spill.keep();
        }
        if let Ok(receipt) = &published {
            core.note_publish(self.volume.id, receipt, bytes);
            core.stats.commit_times.note(begun.elapsed());
        }
        published
    }
}

/// The error for a file that can only be in the rings, and is too large for them.
fn too_large(volume: &Volume, most: u64) -> StoreError {
    let why = match &volume.lake_url {
        None => "has no lake",
        Some(_) => "never drains",
    };
    let message = format!(
        "volume `{}` {why}, so that a file has to fit into the ring: it can have {most} bytes; add a drive or a larger ring",
        volume.name
    );
    StoreError::about(ErrorKind::Full, stoker_store::Subject::Size, message)
}

impl Writer for ChunkWriter {
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let chunk = u64::from(self.core.chunk_bytes);
            let left = self.size.map_or(chunk, |size| size.saturating_sub(self.len()));
            self.room(left.clamp(1, chunk) as usize).await
        })
    }

    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let chunk = self.core.chunk_bytes as usize;
            if buf.len() <= chunk {
                return self.take(buf).await;
            }
            // Not one of ours: the drives here hold smaller records.
            for piece in buf.as_slice().chunks(chunk) {
                let mut part = self.core.rings.write_buffer(piece.len()).await;
                part.set_len(0);
                part.fill(piece);
                self.take(part).await?;
            }
            Ok(())
        })
    }

    fn crc64(&self) -> u64 {
        self.crc64
    }

    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        let core = self.core.clone();
        let span = tracing::debug_span!(
            target: TRACE,
            "commit",
            volume = self.volume.name.as_str(),
            bytes = self.len(),
        );
        Box::pin(async move { core.to_the_end(self.complete(finish).instrument(span)).await })
    }
}

impl Drop for ChunkWriter {
    fn drop(&mut self) {
        if !self.has_litter {
            return;
        }
        let chunks = self.next_index;
        add(&self.core.stats.aborted_writes, 1);
        let (core, version) = (self.core.clone(), self.version);
        let mut appends = std::mem::take(&mut self.appends);
        let mut copies = std::mem::take(&mut self.copies);
        let work = core.work.begin();
        self.core.tasks.spawn(async move {
            let _work = work;
            // Not aborted: an append that is under way would land after the delete.
            while let Some(landed) = appends.join_next().await {
                if let Ok(Ok(copied)) = landed {
                    copies.add(copied);
                }
            }
            let ids: Vec<ChunkId> =
                (0..chunks).chain([NAME_INDEX]).map(|index| ChunkId::new(version, index)).collect();
            if let Err(fault) = core.rings.delete(&ids).await {
                tracing::warn!(%version, "chunks of an aborted write stay until the next start: {fault}");
            }
            let nodes = copies.nodes();
            core.cell.tell_done(&nodes, &[version], 0).await;
            core.cell.tell_forget(&nodes, &ids).await;
        });
    }
}
