//! Changing a file in the middle: a new version that goes on with chunks of the one before. (D51)

mod steps;

use std::collections::VecDeque;
use std::sync::Arc;

use stoker_format::{ChunkRun, NodeId, VersionId, crc64, crc64_combine};
use stoker_schema::names::{Located, Plan};
use stoker_schema::rows::{Drain, RunRow};
use stoker_store::{
    BoxFuture, Buf, Condition, EditRequest, ErrorKind, File, Finish, Key, Receipt, Result, StoreError,
    Subject, WhenAlone, WriteRequest, Writer,
};

use crate::core::Core;
use crate::error;
use crate::publish::{FilePurpose, Keeps, condition_failed, owners};
use crate::reader::NodeFile;
use crate::volumes::Volume;
use crate::writer::{ChunkWriter, RunList};
use steps::Step;

/// Chunks of what is copied or changed in small pieces: the next change beside it copies no more than this.
const GRAIN: usize = 128 << 10;

/// Bytes that come in pieces of at least this length become chunks of the usual length.
const LARGE: u64 = 1 << 20;

/// A file being changed.
pub(crate) struct EditWriter {
    core: Arc<Core>,
    inner: ChunkWriter,
    steps: VecDeque<Step>,
    /// The chunk that is being filled, and how much goes into it.
    out: Option<(Buf, usize)>,
    /// CRC-64/NVME of what the caller gave.
    crc64: u64,
    /// What is copied from; open, so that its chunks stay until the new version uses them.
    base: Option<NodeFile>,
    /// What it goes on with is named at its end.
    late: Option<Late>,
}

/// An edit of a version that was not there yet when it began.
struct Late {
    volume: Arc<Volume>,
    key: Key,
    request: WriteRequest,
    inode: u64,
    /// How long that version must be.
    len: u64,
}

impl Core {
    /// Begins a new version that keeps ranges of the present one.
    pub async fn begin_edit(
        self: &Arc<Core>,
        volume: Arc<Volume>,
        key: &Key,
        request: EditRequest,
    ) -> Result<EditWriter> {
        let late_len = request.late_len();
        let EditRequest { attributes, condition, base, pieces, inode } = request;
        if let Some(inode) = inode
            && !self.names.inodes().is_given(inode).await.map_err(error::catalog)?
        {
            let message = format!("{inode} is not the number of a file that was handed out");
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        self.check_edit(&volume, key, &attributes, &condition).await?;
        let open = match base {
            Some(base) => Some(self.open_base(&volume, key, base).await?),
            None => None,
        };
        let (runs, size) = open.as_ref().map_or((&[][..], 0), |file| (file.runs(), file.info().size));
        let steps: VecDeque<Step> = match late_len {
            Some(_) => VecDeque::from([Step::Rest]),
            None => steps::steps(runs, size, &pieces)?.into(),
        };
        let request = WriteRequest { attributes, condition, ..WriteRequest::default() };
        let inode = inode.unwrap_or(0);
        let mut purpose = goes_on(&volume, key, request.clone(), inode, base);
        if late_len.is_some() {
            // What it goes on with may be in no lake.
            purpose.when_alone = WhenAlone::Refuse;
        }
        let late = late_len.map(|len| Late { volume: volume.clone(), key: key.clone(), request, inode, len });
        let mut inner = ChunkWriter::new(self.clone(), volume, None, Box::new(purpose));
        inner.goes_on_with = late_len.unwrap_or(0);
        // Of what it goes on with, nobody knows the sum.
        inner.has_crc64 = base.is_none() && late.is_none();
        let crc64 = crc64(b"");
        let mut writer = EditWriter { core: self.clone(), inner, steps, out: None, crc64, base: open, late };
        writer.advance().await?;
        Ok(writer)
    }

    /// Opens the version that an edit goes on with, which must be the present one.
    async fn open_base(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        base: VersionId,
    ) -> Result<NodeFile> {
        self.adopt(volume, key.as_bytes()).await?;
        let (file, located) = self.open_located(volume, key.as_bytes()).await?;
        let Some(located) = located.filter(|_| file.info().version == base) else {
            return Err(condition_failed(true, &Condition::default()));
        };
        if located.file.drain == Drain::Clean || located.file.source.is_some() {
            // From now on it is only in the rings, as far as the new version is concerned.
            let extent = self.extent(volume, &located.file).await?;
            self.stage_file(&file, extent.as_ref()).await?;
        }
        Ok(file)
    }

    /// The new version goes on with some chunks of the present one, which must be the one that it was made from. Gives the sessions
    /// of peers that promised to keep them.
    pub async fn keep_chunks(
        self: &Arc<Core>,
        volume: &Volume,
        old: &Located,
        plan: &mut Plan,
        runs: &RunList,
        keeps: &Keeps,
    ) -> Result<Vec<(NodeId, [u8; 16])>> {
        let version = plan.file.version();
        let is_kept = |run: &&ChunkRun| !run.is_hole() && run.version != version;
        let kept: Vec<ChunkRun> = runs.runs().iter().filter(is_kept).copied().collect();
        let mut sessions = Vec::new();
        if kept.is_empty() {
            return Ok(sessions);
        }
        let mut holders = old.file.holders.clone();
        if old.file.drain == Drain::Clean || old.file.source.is_some() {
            let Some(secured) = self.secure(volume, &kept, &old.file.holders).await? else {
                return Err(condition_failed(true, &Default::default()));
            };
            (holders, sessions) = (secured.holders(), secured.sessions());
            keeps.lock().unwrap().push(secured);
        }
        for holder in holders {
            if !plan.file.holders.contains(&holder) {
                plan.file.holders.push(holder);
            }
        }
        let before = self.names.runs(&old.file).await.map_err(error::catalog)?;
        plan.inherited = owners(&kept, version);
        plan.dropped = steps::dropped(&before, runs.runs()).iter().map(RunRow::from).collect();
        Ok(sessions)
    }
}

/// The purpose of an edit.
fn goes_on(
    volume: &Arc<Volume>,
    key: &Key,
    request: WriteRequest,
    inode: u64,
    base: Option<VersionId>,
) -> FilePurpose {
    let purpose = FilePurpose::new(volume.clone(), key.as_bytes().to_vec(), request);
    FilePurpose { base, inode, keeps_links: true, ..purpose }
}

impl EditWriter {
    /// Does what needs no more bytes.
    async fn advance(&mut self) -> Result<()> {
        while let Some(step) = self.steps.front().copied() {
            match step {
                Step::Take(_) | Step::Rest => return Ok(()),
                Step::Zero(len) => self.zeros(len).await?,
                Step::Hole(len) => {
                    self.end_chunk().await?;
                    self.inner.skip(len);
                }
                Step::Copy { start, len } => self.copy(start, len).await?,
                Step::Refer { run, .. } => {
                    self.end_chunk().await?;
                    self.inner.refer(&run);
                }
            }
            self.steps.pop_front();
        }
        Ok(())
    }

    async fn copy(&mut self, mut start: u64, mut len: u64) -> Result<()> {
        while len > 0 {
            let file = self
                .base
                .as_ref()
                .ok_or_else(|| StoreError::new(ErrorKind::Invalid, "nothing to copy from"))?;
            let bytes = file.read(start, len.min(LARGE) as usize).await?;
            if bytes.is_empty() {
                return Err(StoreError::new(
                    ErrorKind::Corrupt,
                    "the file that is changed is shorter than it says",
                ));
            }
            self.put(&bytes, GRAIN).await?;
            start += bytes.len() as u64;
            len -= bytes.len() as u64;
        }
        Ok(())
    }

    async fn zeros(&mut self, mut len: u64) -> Result<()> {
        let zeros = vec![0; len.min(LARGE) as usize];
        let room = if len >= LARGE { self.core.chunk_bytes as usize } else { GRAIN };
        while len > 0 {
            let part = len.min(zeros.len() as u64) as usize;
            self.put(&zeros[..part], room).await?;
            len -= part as u64;
        }
        Ok(())
    }

    /// Adds bytes to the chunk that is being filled; a new one has room for so many.
    async fn put(&mut self, mut bytes: &[u8], room: usize) -> Result<()> {
        while !bytes.is_empty() {
            if self.out.is_none() {
                let room = room.min(self.core.chunk_bytes as usize);
                let mut buf = self.core.rings.write_buffer(room).await;
                buf.set_len(0);
                self.out = Some((buf, room));
            }
            let Some((buf, room)) = &mut self.out else { continue };
            let part = bytes.len().min(*room - buf.len());
            buf.fill(&bytes[..part]);
            bytes = &bytes[part..];
            if buf.len() == *room {
                self.end_chunk().await?;
            }
        }
        Ok(())
    }

    async fn end_chunk(&mut self) -> Result<()> {
        match self.out.take() {
            Some((buf, _)) => self.inner.take(buf).await,
            None => Ok(()),
        }
    }

    /// Takes bytes of the caller, which may belong to several pieces.
    async fn accept(&mut self, buf: Buf) -> Result<()> {
        if self.late.is_none() {
            let sum = buf.crc64().unwrap_or_else(|| crc64(buf.as_slice()));
            self.crc64 = crc64_combine(self.crc64, sum, buf.len() as u64);
        }
        if self.out.is_none() && buf.len() <= self.core.chunk_bytes as usize {
            // The chunk is as the caller made it, and nothing has to be copied.
            let is_whole = match self.steps.front_mut() {
                Some(Step::Rest) => true,
                Some(Step::Take(left)) if *left >= buf.len() as u64 && *left >= LARGE => {
                    *left -= buf.len() as u64;
                    true
                }
                _ => false,
            };
            if is_whole {
                self.inner.take(buf).await?;
                return self.next_step().await;
            }
        }
        let mut at = 0;
        while at < buf.len() {
            let rest = buf.len() - at;
            let (part, is_large) = match self.steps.front() {
                Some(Step::Rest) => (rest, true),
                Some(Step::Take(left)) => (rest.min(*left as usize), *left >= LARGE),
                _ => {
                    let message = "more bytes came than the pieces of the edit take";
                    return Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message));
                }
            };
            let room = if is_large { self.core.chunk_bytes as usize } else { GRAIN };
            self.put(&buf.as_slice()[at..at + part], room).await?;
            at += part;
            if let Some(Step::Take(left)) = self.steps.front_mut() {
                *left -= part as u64;
            }
            self.next_step().await?;
        }
        Ok(())
    }

    async fn next_step(&mut self) -> Result<()> {
        if self.steps.front() == Some(&Step::Take(0)) {
            self.steps.pop_front();
            self.advance().await?;
        }
        Ok(())
    }

    async fn complete(mut self, finish: Finish) -> Result<Receipt> {
        if let Some(Step::Take(left)) = self.steps.front() {
            let message = format!("{left} bytes of a piece of the edit did not come");
            return Err(StoreError::about(ErrorKind::Invalid, Subject::Size, message));
        }
        if self.late.is_some() {
            let message = "what the edit goes on with was not named";
            return Err(StoreError::new(ErrorKind::Invalid, message));
        }
        self.end_chunk().await?;
        self.inner.complete(finish).await
    }

    async fn complete_on(mut self, base: VersionId, finish: Finish) -> Result<Receipt> {
        let Some(Late { volume, key, request, inode, len }) = self.late.take() else {
            let message = "the edit goes on with what it was begun with";
            return Err(StoreError::new(ErrorKind::Invalid, message));
        };
        self.end_chunk().await?;
        let file = self.core.open_base(&volume, &key, base).await?;
        if file.info().size != len {
            return Err(condition_failed(true, &request.condition));
        }
        self.inner.go_on_from(file.runs(), Box::new(goes_on(&volume, &key, request, inode, Some(base))))?;
        self.base = Some(file);
        self.inner.complete(finish).await
    }
}

impl Writer for EditWriter {
    fn buffer(&mut self) -> BoxFuture<'_, Result<Buf>> {
        let chunk = u64::from(self.core.chunk_bytes);
        let left = self.steps.iter().map(|step| match step {
            Step::Take(len) => *len,
            Step::Rest => chunk,
            Step::Zero(_) | Step::Hole(_) | Step::Copy { .. } | Step::Refer { .. } => 0,
        });
        let left = left.fold(0, u64::saturating_add).clamp(1, chunk);
        Box::pin(self.inner.room(left as usize))
    }

    fn write(&mut self, buf: Buf) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.accept(buf))
    }

    fn crc64(&self) -> u64 {
        if self.late.is_none() { self.crc64 } else { 0 }
    }

    fn finish(self: Box<Self>, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        let core = self.core.clone();
        Box::pin(async move { core.to_the_end(self.complete(finish)).await })
    }

    fn finish_on(self: Box<Self>, base: VersionId, finish: Finish) -> BoxFuture<'static, Result<Receipt>> {
        let core = self.core.clone();
        Box::pin(async move { core.to_the_end(self.complete_on(base, finish)).await })
    }
}
