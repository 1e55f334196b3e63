//! Chunks of one writer.
//!
//! A chunk is made under a name that nobody has, and belongs to whoever made it: writers in one directory need no other agreement. Frames are
//! added by appends that name the version which they go on with. Whether an append whose answer was lost was made says the length of the
//! chunk; so a frame is there once. (D251)

use std::sync::Arc;

use stoker_store::{
    Attributes, Condition, ErrorKind, FileInfo, Filler, Finish, Key, ListRequest, Receipt, Result, Store,
    StoreError, Subject, WriteRequest,
};

use crate::layout::{LogPlace, Stream};

/// Name of the property of a chunk that says whose it is.
pub(crate) const WRITER_META: &str = "log-writer";

/// A chunk that is as long gets no more frames.
const CHUNK_LEN_MAX: u64 = 8 << 20;
/// Nor does one that has so many: each is a piece of a file for the catalog.
const FRAMES_MAX: u32 = 256;
/// Names that others took before we look again which there are.
const TAKEN_MAX: u32 = 64;

/// Where frames of one writer go.
pub(crate) struct ChunkWriter {
    store: Arc<dyn Store>,
    place: LogPlace,
    stream: Stream,
    node: String,
    /// Tells it apart from all others.
    id: String,
    /// The number of the next chunk; none if nobody looked yet.
    next: Option<u64>,
    open: Option<Open>,
}

/// The chunk that frames are added to.
struct Open {
    key: Key,
    len: u64,
    frames: u32,
    etag: String,
    /// An append may have been made.
    is_in_doubt: bool,
}

impl ChunkWriter {
    pub fn new(
        store: Arc<dyn Store>,
        place: LogPlace,
        stream: Stream,
        node: String,
        id: String,
    ) -> ChunkWriter {
        ChunkWriter { store, place, stream, node, id, next: None, open: None }
    }

    /// Adds a frame. After an error the same frame is to be added again.
    pub async fn add(&mut self, frame: &[u8]) -> Result<()> {
        if self.settle(frame.len() as u64).await? {
            return Ok(());
        }
        let is_full = |open: &Open| open.len >= CHUNK_LEN_MAX || open.frames >= FRAMES_MAX;
        if self.open.as_ref().is_some_and(is_full) {
            self.open = None;
        }
        if self.open.is_some() && self.append(frame).await? {
            return Ok(());
        }
        self.begin(frame).await
    }

    /// Finds out whether what is in doubt was made; true if it was.
    async fn settle(&mut self, frame_len: u64) -> Result<bool> {
        let Some(open) = self.open.as_mut().filter(|open| open.is_in_doubt) else { return Ok(false) };
        let found = match self.store.stat(&self.place.volume, &open.key).await {
            Ok(info) => Some(info),
            Err(fault) if fault.kind == ErrorKind::NotFound && fault.subject == Subject::Key => None,
            Err(fault) => return Err(fault),
        };
        open.is_in_doubt = false;
        match found.filter(|info| writer_of(info) == Some(self.id.as_str())) {
            Some(info) if info.size == open.len + frame_len => {
                (open.len, open.etag) = (info.size, info.etag);
                open.frames += 1;
                return Ok(true);
            }
            Some(info) if info.size == open.len && info.size > 0 => open.etag = info.etag,
            // Not made, or not ours: another chunk.
            _ => self.open = None,
        }
        Ok(false)
    }

    /// Adds it to the chunk that is open; false if another chunk is to be begun.
    async fn append(&mut self, frame: &[u8]) -> Result<bool> {
        let Some(open) = &self.open else { return Ok(false) };
        let condition = Condition { if_match: Some(vec![open.etag.clone()]), ..Condition::default() };
        let done = self.write(&open.key, condition, frame, true).await;
        let Some(open) = self.open.as_mut() else { return Ok(false) };
        match done {
            Ok(receipt) if receipt.size == open.len + frame.len() as u64 => {
                (open.len, open.etag) = (receipt.size, receipt.etag);
                open.frames += 1;
                Ok(true)
            }
            // It is behind bytes that we did not write.
            Ok(_) => {
                self.open = None;
                Ok(true)
            }
            Err(fault) if fault.is_unknown() => {
                open.is_in_doubt = true;
                Err(fault)
            }
            // Gone, changed, evicted to the lake, or in too many pieces: none of that is the program's trouble.
            Err(fault)
                if matches!(fault.kind, ErrorKind::Conflict | ErrorKind::Invalid)
                    || (fault.kind == ErrorKind::NotFound && fault.subject == Subject::Key) =>
            {
                self.open = None;
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Makes the next chunk of this frame.
    async fn begin(&mut self, frame: &[u8]) -> Result<()> {
        for _ in 0..TAKEN_MAX {
            let number = match self.next {
                Some(number) => number,
                None => self.behind_last().await?,
            };
            self.next = Some(number + 1);
            let key = self.place.chunk(self.stream, &self.node, number)?;
            match self.write(&key, Condition::absent(), frame, false).await {
                Ok(receipt) => {
                    let (len, etag) = (receipt.size, receipt.etag);
                    self.open = Some(Open { key, len, frames: 1, etag, is_in_doubt: false });
                    return Ok(());
                }
                Err(fault) if fault.kind == ErrorKind::Conflict && fault.subject == Subject::Condition => {}
                Err(fault) if fault.is_unknown() => {
                    self.next = Some(number);
                    self.open = Some(Open { key, len: 0, frames: 0, etag: String::new(), is_in_doubt: true });
                    return Err(fault);
                }
                Err(fault) => {
                    self.next = None;
                    return Err(fault);
                }
            }
        }
        self.next = None;
        Err(StoreError::new(ErrorKind::Unavailable, "names of chunks are contended; retry"))
    }

    /// The number behind the last chunk that is there.
    async fn behind_last(&self) -> Result<u64> {
        let prefix = self.place.node_prefix(self.stream, &self.node).into_bytes();
        let (mut last, mut after) = (None, None);
        loop {
            let request =
                ListRequest { prefix: prefix.clone(), after, limit: 1000, ..ListRequest::default() };
            let page = self.store.list(&self.place.volume, request).await?;
            let numbers = page.entries.iter().filter_map(|entry| self.place.parse(self.stream, entry.name()));
            last = numbers.map(|(_, number)| number).chain(last).max();
            match page.entries.last().filter(|_| page.more) {
                Some(entry) => after = Some(entry.name().to_vec()),
                None => return Ok(last.map_or(0, |last: u64| last.saturating_add(1))),
            }
        }
    }

    async fn write(&self, key: &Key, condition: Condition, bytes: &[u8], append: bool) -> Result<Receipt> {
        let attributes = Attributes {
            content_type: Some("application/zstd".to_owned()),
            meta: vec![(WRITER_META.to_owned(), self.id.clone())],
            ..Attributes::default()
        };
        let request = WriteRequest { attributes, condition, size: Some(bytes.len() as u64), append };
        put(&*self.store, &self.place.volume, key, request, bytes).await
    }

    /// Says beside the streams what they are of, unless somebody did.
    pub async fn describe(&self, metadata: &[u8]) -> Result<()> {
        let attributes =
            Attributes { content_type: Some("application/json".to_owned()), ..Attributes::default() };
        let size = Some(metadata.len() as u64);
        let request = WriteRequest { attributes, condition: Condition::absent(), size, append: false };
        let key = self.place.metadata()?;
        match put(&*self.store, &self.place.volume, &key, request, metadata).await {
            Err(fault) if fault.kind != ErrorKind::Conflict => Err(fault),
            _ => Ok(()),
        }
    }
}

/// Whose chunk it is, if it says so.
pub(crate) fn writer_of(info: &FileInfo) -> Option<&str> {
    info.attributes.meta.iter().find(|(name, _)| name == WRITER_META).map(|(_, id)| id.as_str())
}

async fn put(
    store: &dyn Store,
    volume: &str,
    key: &Key,
    request: WriteRequest,
    bytes: &[u8],
) -> Result<Receipt> {
    let mut filler = Filler::new(store.create(volume, key, request).await?);
    filler.put(bytes).await?;
    filler.finish(Finish::default()).await
}

#[cfg(test)]
impl ChunkWriter {
    /// As if the answer to what was just written were lost: what was known before holds, and is in doubt.
    pub fn forget_answer(&mut self, before: Option<Option<(u64, String)>>) -> Option<(u64, String)> {
        let known = self.open.as_ref().map(|open| (open.len, open.etag.clone()));
        if let (Some(before), Some(open)) = (before, self.open.as_mut()) {
            (open.len, open.etag) = before.unwrap_or_default();
            open.is_in_doubt = true;
        }
        known
    }

    pub fn doubt(&mut self) {
        self.open.iter_mut().for_each(|open| open.is_in_doubt = true);
    }
}
