//! The logs of a job, of all its nodes and streams, by time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use stoker_store::{ErrorKind, ListEntry, ListRequest, Result, Store, StoreError};

use crate::chunk::writer_of;
use crate::layout::{LogPlace, Stream};
use crate::lines::Line;
use crate::source::{Chunk, Source};

/// Most writers that are read at once.
const SOURCES_MAX: usize = 8_192;
/// Most chunks.
const CHUNKS_MAX: usize = 200_000;

/// Which lines are wanted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Select {
    /// Of this stream; none for both.
    pub stream: Option<Stream>,
    /// Of this node; none for all.
    pub node: Option<String>,
    /// Not before this time, milliseconds since 1970.
    pub since_ms: u64,
}

/// Reads logs and follows them.
pub struct Reader {
    store: Arc<dyn Store>,
    place: LogPlace,
    select: Select,
    sources: Vec<Source>,
    /// Their places, by stream, node and writer.
    known: BTreeMap<(Stream, String, String), usize>,
    /// Those of which the next line is known, by its time.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// Those that are to be asked for their next line.
    asked: Vec<usize>,
}

impl Reader {
    /// Reads what is there by now.
    pub async fn open(store: Arc<dyn Store>, place: LogPlace, select: Select) -> Result<Reader> {
        let mut reader = Reader {
            store,
            place,
            select,
            sources: Vec::new(),
            known: BTreeMap::new(),
            heads: BinaryHeap::new(),
            asked: Vec::new(),
        };
        reader.refresh().await?;
        let since_ms = reader.select.since_ms;
        reader.sources.iter_mut().for_each(|source| source.skip_before(since_ms));
        Ok(reader)
    }

    /// Looks for what came since; true if something did.
    pub async fn refresh(&mut self) -> Result<bool> {
        let mut is_news = false;
        for stream in Stream::ALL {
            if self.select.stream.is_none_or(|wanted| wanted == stream) {
                is_news |= self.refresh_stream(stream).await?;
            }
        }
        self.ask_all();
        Ok(is_news)
    }

    /// Those that had no line are asked again.
    fn ask_all(&mut self) {
        let mut is_known = vec![false; self.sources.len()];
        self.heads.iter().for_each(|Reverse((_, at))| is_known[*at] = true);
        self.asked = (0..self.sources.len()).filter(|at| !is_known[*at]).collect();
    }

    async fn refresh_stream(&mut self, stream: Stream) -> Result<bool> {
        let prefix = match &self.select.node {
            Some(node) => self.place.node_prefix(stream, node),
            None => self.place.stream_prefix(stream),
        };
        let (mut after, mut is_news) = (None, false);
        let mut seen = 0;
        loop {
            let request = ListRequest {
                prefix: prefix.clone().into_bytes(),
                after,
                limit: 1000,
                ..ListRequest::default()
            };
            let page = self.store.list(&self.place.volume, request).await?;
            for entry in &page.entries {
                is_news |= self.found(stream, entry);
            }
            seen += page.entries.len();
            if self.sources.len() > SOURCES_MAX || seen > CHUNKS_MAX {
                let message = format!(
                    "{} has more than {SOURCES_MAX} writers or {CHUNKS_MAX} chunks; ask for one node or stream",
                    self.place
                );
                return Err(StoreError::new(ErrorKind::Full, message));
            }
            match page.entries.last().filter(|_| page.more) {
                Some(entry) => after = Some(entry.name().to_vec()),
                None => break,
            }
        }
        Ok(is_news)
    }

    fn found(&mut self, stream: Stream, entry: &ListEntry) -> bool {
        let ListEntry::File(info) = entry else { return false };
        let Some((node, number)) = self.place.parse(stream, info.key.as_bytes()) else { return false };
        // One that says nothing of its writer was copied there; they are in one order.
        let writer = writer_of(info).unwrap_or_default().to_owned();
        let chunk = Chunk { number, key: info.key.clone(), len: info.size, modified_ms: info.modified_ms };
        let sources = &mut self.sources;
        let is_counted = !writer.is_empty();
        let at = *self.known.entry((stream, node.clone(), writer)).or_insert_with(|| {
            sources.push(Source::new(stream, node, is_counted));
            sources.len() - 1
        });
        sources[at].found(chunk)
    }

    /// Begins where at least so many lines are left. Nothing was read before.
    pub async fn skip_to_last(&mut self, lines: usize) -> Result<()> {
        for source in &mut self.sources {
            source.skip_to_last(&*self.store, &self.place.volume, lines).await?;
        }
        Ok(())
    }

    /// The next line by time with its stream and node; none if there is no more now.
    pub async fn next(&mut self) -> Result<Option<(Stream, String, Line)>> {
        loop {
            while let Some(at) = self.asked.pop() {
                let line = self.sources[at].peek(&*self.store, &self.place.volume).await;
                match line {
                    Ok(Some(line)) => self.heads.push(Reverse((line.at_ms, at))),
                    Ok(None) => {}
                    Err(fault) => {
                        self.asked.push(at);
                        return Err(fault);
                    }
                }
            }
            let Some(Reverse((_, at))) = self.heads.pop() else { return Ok(None) };
            self.asked.push(at);
            let source = &mut self.sources[at];
            let Some(line) = source.pop() else { continue };
            if line.at_ms >= self.select.since_ms {
                return Ok(Some((source.stream, source.node.clone(), line)));
            }
        }
    }

    /// What is left of last lines is told: nobody adds to them.
    pub fn end(&mut self) {
        self.sources.iter_mut().for_each(Source::end);
        self.ask_all();
    }

    /// Whether there were writers and all of them said that nothing follows.
    pub fn is_ended(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(|source| source.is_ended)
    }

    /// Whether nothing was ever written.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Nodes that something came from.
    pub fn nodes(&self) -> usize {
        let mut nodes: Vec<&str> = self.sources.iter().map(|source| source.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }
}
