//! Chunks of one writer, as they are read.

use std::collections::VecDeque;

use stoker_store::{ErrorKind, Key, Result, Store, Subject};

use crate::frame::{FRAME_LEN_MAX, Frame};
use crate::layout::Stream;
use crate::lines::{Line, Splitter};

/// Bytes of a chunk that are asked for at once.
const READ_LEN: usize = 256 << 10;
/// How much the clock of a node may be behind that of the machine of a program.
const SKEW_MS: u64 = 300_000;

/// A chunk as it was listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub number: u64,
    pub key: Key,
    pub len: u64,
    /// When it grew last; later than all that is in it.
    pub modified_ms: u64,
}

/// What one writer wrote.
pub(crate) struct Source {
    pub stream: Stream,
    pub node: String,
    /// In their order.
    chunks: Vec<Chunk>,
    /// The chunk that is read, and how far.
    at: (usize, u64),
    /// Bytes of it that are no whole frame yet.
    rest: Vec<u8>,
    splitter: Splitter,
    lines: VecDeque<Line>,
    /// It has a writer, who counts its frames.
    is_counted: bool,
    /// The number of the last frame.
    seq: Option<u64>,
    /// Its writer said that nothing follows.
    pub is_ended: bool,
    last_ms: u64,
}

impl Source {
    pub fn new(stream: Stream, node: String, is_counted: bool) -> Source {
        Source {
            stream,
            node,
            chunks: Vec::new(),
            at: (0, 0),
            rest: Vec::new(),
            splitter: Splitter::default(),
            lines: VecDeque::new(),
            is_counted,
            seq: None,
            is_ended: false,
            last_ms: 0,
        }
    }

    /// A chunk as it is now; true if there is more of it than there was.
    pub fn found(&mut self, chunk: Chunk) -> bool {
        match self.chunks.binary_search_by_key(&chunk.number, |known| known.number) {
            Ok(at) if self.chunks[at].len >= chunk.len => false,
            Ok(at) => {
                self.chunks[at] = chunk;
                true
            }
            // Before what was read: it was listed late, and comes late.
            Err(at) => {
                self.chunks.insert(at, chunk);
                if at < self.at.0 {
                    self.at.0 += 1;
                }
                true
            }
        }
    }

    /// Leaves out chunks that grew last before this.
    pub fn skip_before(&mut self, since_ms: u64) {
        let since_ms = since_ms.saturating_sub(SKEW_MS);
        let is_old = |chunk: &Chunk| chunk.modified_ms < since_ms;
        while self.at.1 == 0 && self.chunks.get(self.at.0).is_some_and(is_old) {
            self.at.0 += 1;
        }
    }

    /// Begins where there are at least so many lines left. Nothing was read before.
    pub async fn skip_to_last(&mut self, store: &dyn Store, volume: &str, lines: usize) -> Result<()> {
        let first = self.at.0;
        let (mut at, mut seen) = (self.chunks.len(), 0);
        while at > first && seen < lines {
            at -= 1;
            self.at = (at, 0);
            let end = at + 1;
            while self.at.0 < end && self.fill_within(store, volume, end).await? {
                seen += self.lines.len();
                self.lines.clear();
            }
            self.rest.clear();
            self.splitter = Splitter::default();
            self.seq = None;
            self.is_ended = false;
        }
        self.at = (at, 0);
        Ok(())
    }

    /// The next line, if there is one that is whole; reads on for it.
    pub async fn peek(&mut self, store: &dyn Store, volume: &str) -> Result<Option<&Line>> {
        while self.lines.is_empty() && self.fill_within(store, volume, self.chunks.len()).await? {}
        Ok(self.lines.front())
    }

    pub fn pop(&mut self) -> Option<Line> {
        self.lines.pop_front()
    }

    /// What is left of the last line is told.
    pub fn end(&mut self) {
        let mut lines = Vec::new();
        self.splitter.end(&mut lines);
        let torn = self.rest.len();
        self.rest.clear();
        if torn > 0 {
            lines.push(Line::note(
                self.last_ms,
                format!("the last {torn} bytes of the chunk are no whole frame"),
            ));
        }
        self.lines.extend(lines);
    }

    /// Makes a line, or reads a frame or a part of one, of chunks before this one; false if there is nothing more now.
    async fn fill_within(&mut self, store: &dyn Store, volume: &str, end: usize) -> Result<bool> {
        if let Some(line) = self.splitter.cut() {
            self.lines.push_back(line);
            return Ok(true);
        }
        if self.take_frame() {
            return Ok(true);
        }
        let (at, offset) = self.at;
        let Some(chunk) = self.chunks[..end].get(at) else { return Ok(false) };
        if offset >= chunk.len {
            // What follows may still grow the last one.
            if at + 1 >= end {
                return Ok(false);
            }
            self.leave(None);
            return Ok(true);
        }
        let read = async {
            let file = store.open(volume, &chunk.key).await?;
            file.read(offset, READ_LEN).await
        };
        match read.await {
            Ok(bytes) if bytes.is_empty() => self.leave(Some("it became shorter".to_owned())),
            Ok(bytes) => {
                self.at.1 += bytes.len() as u64;
                self.rest.extend_from_slice(&bytes);
                if self.rest.len() > FRAME_LEN_MAX + READ_LEN {
                    self.leave(Some("a frame in it is too long".to_owned()));
                }
            }
            Err(fault) if fault.kind == ErrorKind::NotFound && fault.subject == Subject::Key => {
                self.leave(Some("it is gone".to_owned()));
            }
            Err(fault) if fault.kind == ErrorKind::Corrupt => self.leave(Some(fault.message)),
            Err(fault) => return Err(fault),
        }
        Ok(true)
    }

    /// Takes the first frame of what was read; false if it is not whole.
    fn take_frame(&mut self) -> bool {
        if self.rest.is_empty() {
            return false;
        }
        match Frame::decode(&self.rest) {
            Ok(None) => false,
            Ok(Some((frame, len))) => {
                self.rest.drain(..len);
                self.last_ms = frame.marks.last().map_or(self.last_ms, |(_, at_ms)| *at_ms);
                self.is_ended = frame.is_end;
                // One whose answer was lost may be there again, in the next chunk.
                if self.is_counted && self.seq.is_some_and(|last| frame.seq <= last) {
                    return true;
                }
                self.seq = Some(frame.seq);
                let mut lines = Vec::new();
                self.splitter.add(frame, &mut lines);
                self.lines.extend(lines);
                true
            }
            Err(fault) => {
                self.leave(Some(fault.to_string()));
                true
            }
        }
    }

    /// Goes on with the next chunk; what cannot be read of this one is told.
    fn leave(&mut self, why: Option<String>) {
        let torn = (!self.rest.is_empty()).then(|| "it ends in the middle of a frame".to_owned());
        self.rest.clear();
        if let Some(why) = why.or(torn) {
            let number = self.chunks.get(self.at.0).map_or(0, |chunk| chunk.number);
            let mut lines = Vec::new();
            self.splitter.end(&mut lines);
            lines.push(Line::note(
                self.last_ms,
                format!(
                    "the rest of chunk {number:03} of {} on {} cannot be read: {why}",
                    self.stream.word(),
                    self.node
                ),
            ));
            self.lines.extend(lines);
        }
        self.at = (self.at.0 + 1, 0);
    }
}
