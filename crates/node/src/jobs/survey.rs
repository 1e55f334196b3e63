//! What a source has, and what of it is where it will be read: files, their chunks, the node whose turn each is, and what the rings there
//! say. Brings what lacks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::StreamExt;
use stoker_format::{ChunkId, ChunkRun, NodeId};
use stoker_jobs::Place;
use stoker_store::{BoxFuture, ErrorKind, ListEntry, ListRequest, Result};

use super::held::SourceId;
use crate::cell::{JobAsk, JobHolds, StageFile, to_wire};
use crate::core::Core;
use crate::error;
use crate::reader::Slice;
use crate::spilled::{Known as KnownSpills, is_spilled};
use crate::stage::Object;
use crate::volumes::Volume;

/// Files of a page.
const PAGE: usize = 1_000;
/// Files and bytes of a piece: what is brought at once.
const PIECE_FILES: usize = 256;
const PIECE_BYTES: u64 = 256 << 20;
/// Files that are looked up at the same time.
const LOOKUPS: usize = 16;
/// Chunks of one question.
const CHUNKS_ASKED: usize = 1_000;
/// Chunks and bytes that a node is told to bring at once, and how many such questions are under way.
const CHUNKS_BROUGHT: usize = 16;
const BYTES_BROUGHT: u64 = 64 << 20;
const BRINGS: usize = 8;
/// Chunks that are remembered, so that one that several files share is counted once.
const KNOWN_MAX: usize = 4_000_000;
/// Holders of a chunk that are asked for it.
const HOLDERS_MAX: usize = 4;

/// Files next to each other, which are brought together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The first key is behind this one; none: the first piece.
    pub after: Option<Vec<u8>>,
    /// The last key.
    pub last: Vec<u8>,
    /// Bytes that are not where they will be read.
    pub missing: u64,
    /// All of it is held.
    pub is_held: bool,
}

/// A source as it was found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub files: u64,
    pub bytes: u64,
    pub resident: u64,
    pub pieces: Vec<Piece>,
    pub trouble: Option<String>,
}

/// What became of a piece.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub bytes: u64,
    pub missing: u64,
    pub lake_bytes: u64,
    pub trouble: Option<String>,
}

/// A source, and where it is wanted.
#[derive(Clone)]
pub(super) struct Target {
    pub id: SourceId,
    pub volume: Arc<Volume>,
    pub place: Place,
    pub cell: String,
    pub lease_ms: u64,
}

/// A chunk of a file.
struct Placed {
    chunk: ChunkId,
    len: u32,
    /// Nodes that have it, or that will: the first that has it counts.
    nodes: Vec<NodeId>,
    /// Where the lake has it.
    object: Option<(Arc<Object>, u64)>,
}

impl Core {
    /// Whether there is anything at a place.
    pub(super) async fn has_place(self: &Arc<Core>, volume: &Arc<Volume>, place: &Place) -> Result<bool> {
        if place.path.is_empty() {
            return Ok(true);
        }
        if self.seen(volume, place.path.as_bytes()).await?.is_some() {
            return Ok(true);
        }
        let request =
            ListRequest { prefix: place.directory().into_bytes(), limit: 1, ..ListRequest::default() };
        Ok(!self.list_page(volume, request).await?.entries.is_empty())
    }

    /// Counts a source; with a round it also holds what is there.
    pub(super) async fn walk_source(self: &Arc<Core>, target: &Target, round: Option<u64>) -> Result<Walked> {
        let mut walked = Walked::default();
        let mut known: HashSet<ChunkId> = HashSet::new();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (keys, more) = self.source_page(target, after.as_deref(), None).await?;
            let Some(last) = keys.last().cloned() else { return Ok(walked) };
            let mut gathered: Vec<Placed> = Vec::new();
            let (mut files, mut begin) = (0, after.clone());
            for part in keys.chunks(LOOKUPS) {
                for (key, placed) in self.placed(target, part).await? {
                    let bytes = |all: &[Placed]| all.iter().map(|one| u64::from(one.len)).sum::<u64>();
                    let is_full = files > 0
                        && (files >= PIECE_FILES || bytes(&gathered) + bytes(&placed) > PIECE_BYTES);
                    if is_full {
                        let piece = std::mem::take(&mut gathered);
                        self.count_piece(
                            target,
                            round,
                            (begin, part_before(&keys, &key)),
                            piece,
                            &mut walked,
                        )
                        .await;
                        begin = Some(part_before(&keys, &key));
                        files = 0;
                    }
                    files += 1;
                    walked.files += 1;
                    gathered.extend(
                        placed.into_iter().filter(|one| known.len() >= KNOWN_MAX || known.insert(one.chunk)),
                    );
                }
            }
            self.count_piece(target, round, (begin, last.clone()), gathered, &mut walked).await;
            if !more {
                return Ok(walked);
            }
            after = Some(last);
        }
    }

    async fn count_piece(
        self: &Arc<Core>,
        target: &Target,
        round: Option<u64>,
        (after, last): (Option<Vec<u8>>, Vec<u8>),
        placed: Vec<Placed>,
        walked: &mut Walked,
    ) {
        let bytes: u64 = placed.iter().map(|one| u64::from(one.len)).sum();
        let (here, trouble) = self.which_here(target, round, &placed).await;
        let resident: u64 =
            placed.iter().zip(&here).filter(|(_, here)| **here).map(|(one, _)| u64::from(one.len)).sum();
        walked.bytes += bytes;
        walked.resident += resident;
        walked.trouble = walked.trouble.take().or(trouble);
        let missing = bytes - resident;
        walked.pieces.push(Piece { after, last, missing, is_held: round.is_some() && missing == 0 });
    }

    /// Brings what lacks of a piece, and holds all of it.
    pub(super) async fn bring_piece(
        self: &Arc<Core>,
        target: &Target,
        round: u64,
        piece: &Piece,
    ) -> Result<Brought> {
        let mut brought = Brought::default();
        let (mut after, mut known) = (piece.after.clone(), HashSet::new());
        loop {
            let (keys, more) = self.source_page(target, after.as_deref(), Some(&piece.last)).await?;
            for part in keys.chunks(LOOKUPS) {
                for (_, mut placed) in self.placed(target, part).await? {
                    placed.retain(|one| known.insert(one.chunk));
                    self.bring_chunks(target, round, placed, &mut brought).await;
                }
            }
            match keys.last() {
                Some(last) if more => after = Some(last.clone()),
                _ => return Ok(brought),
            }
        }
    }

    async fn bring_chunks(
        self: &Arc<Core>,
        target: &Target,
        round: u64,
        placed: Vec<Placed>,
        brought: &mut Brought,
    ) {
        let (here, trouble) = self.which_here(target, Some(round), &placed).await;
        brought.bytes += placed.iter().map(|one| u64::from(one.len)).sum::<u64>();
        let mut lacking: HashMap<NodeId, Vec<&Placed>> = HashMap::new();
        for (one, _) in placed.iter().zip(&here).filter(|(_, here)| !**here) {
            match (&one.object, one.nodes.first()) {
                (Some(_), Some(node)) => lacking.entry(*node).or_default().push(one),
                _ => {
                    brought.missing += u64::from(one.len);
                    let why =
                        trouble.clone().unwrap_or_else(|| "no node that answers has some of it".to_owned());
                    brought.trouble = Some(why);
                }
            }
        }
        let mut questions: Vec<(NodeId, Vec<&Placed>)> = Vec::new();
        for (node, chunks) in lacking {
            let (mut part, mut bytes): (Vec<&Placed>, u64) = (Vec::new(), 0);
            for one in chunks {
                if !part.is_empty()
                    && (part.len() >= CHUNKS_BROUGHT || bytes + u64::from(one.len) > BYTES_BROUGHT)
                {
                    questions.push((node, std::mem::take(&mut part)));
                    bytes = 0;
                }
                bytes += u64::from(one.len);
                part.push(one);
            }
            questions.push((node, part));
        }
        let mut asked: Vec<BoxFuture<'static, (Vec<u64>, Result<JobHolds>)>> = Vec::new();
        for (node, chunks) in questions {
            let bytes: Vec<u64> = chunks.iter().map(|one| u64::from(one.len)).collect();
            let files = stage_files(&chunks);
            let ask = JobAsk::Stage { source: target.id, round, lease_ms: target.lease_ms, files };
            let core = self.clone();
            asked.push(Box::pin(async move { (bytes, core.job_at(node, ask).await) }));
        }
        let mut asked = futures_util::stream::iter(asked).buffer_unordered(BRINGS);
        while let Some((bytes, answered)) = asked.next().await {
            match answered {
                Ok(holds) if holds.held.len() == bytes.len() => {
                    let lacks = bytes.iter().zip(&holds.held).filter(|(_, held)| !**held);
                    brought.missing += lacks.map(|(bytes, _)| *bytes).sum::<u64>();
                    brought.lake_bytes += holds.lake_bytes;
                    brought.trouble = holds.trouble.or(brought.trouble.take());
                }
                Ok(_) => {
                    brought.missing += bytes.iter().sum::<u64>();
                    brought.trouble = Some("a node answered something else".to_owned());
                }
                Err(fault) => {
                    brought.missing += bytes.iter().sum::<u64>();
                    brought.trouble = Some(fault.message);
                }
            }
        }
    }

    /// Which chunks are where they will be read; with a round they are held there.
    async fn which_here(
        self: &Arc<Core>,
        target: &Target,
        round: Option<u64>,
        placed: &[Placed],
    ) -> (Vec<bool>, Option<String>) {
        let (mut here, mut trouble) = (vec![false; placed.len()], None);
        for turn in 0..HOLDERS_MAX {
            let mut by_node: HashMap<NodeId, Vec<usize>> = HashMap::new();
            for (at, one) in placed.iter().enumerate().filter(|(at, _)| !here[*at]) {
                if let Some(node) = one.nodes.get(turn) {
                    by_node.entry(*node).or_default().push(at);
                }
            }
            for (node, all) in by_node {
                for part in all.chunks(CHUNKS_ASKED) {
                    let chunks: Vec<(ChunkId, u32)> =
                        part.iter().map(|at| (placed[*at].chunk, placed[*at].len)).collect();
                    match self.which_at(node, target, round, &chunks).await {
                        Ok((held, why)) => {
                            part.iter().zip(held).for_each(|(at, held)| here[*at] = held);
                            trouble = why.or(trouble);
                        }
                        Err(fault) => trouble = Some(fault.message),
                    }
                }
            }
        }
        (here, trouble)
    }

    async fn which_at(
        self: &Arc<Core>,
        node: NodeId,
        target: &Target,
        round: Option<u64>,
        chunks: &[(ChunkId, u32)],
    ) -> Result<(Vec<bool>, Option<String>)> {
        if let Some(round) = round {
            let chunks = chunks.iter().map(|(chunk, len)| (to_wire(chunk), *len)).collect();
            let ask = JobAsk::Hold { source: target.id, round, lease_ms: target.lease_ms, chunks };
            let holds = self.job_at(node, ask).await?;
            return Ok((holds.held, holds.trouble));
        }
        if node == self.node {
            let has = |(chunk, len): &(ChunkId, u32)| self.has_copy(chunk, *len);
            return Ok((chunks.iter().map(has).collect(), None));
        }
        Ok((self.cell.have(node, chunks).await?, None))
    }

    /// Asks a node, or this one, about what it holds for jobs.
    pub(super) async fn job_at(self: &Arc<Core>, node: NodeId, ask: JobAsk) -> Result<JobHolds> {
        match node == self.node {
            true => Ok(self.job_here(ask).await),
            false => self.cell.job_on(node, ask).await,
        }
    }

    /// Keys of a source behind one of them, up to one of them.
    async fn source_page(
        self: &Arc<Core>,
        target: &Target,
        after: Option<&[u8]>,
        last: Option<&[u8]>,
    ) -> Result<(Vec<Vec<u8>>, bool)> {
        let mut keys = Vec::new();
        let path = target.place.path.as_bytes();
        if after.is_none() && !path.is_empty() && self.seen(&target.volume, path).await?.is_some() {
            keys.push(path.to_vec());
        }
        let prefix = target.place.directory().into_bytes();
        // The file of the same name stands in front of the directory.
        let after = after.filter(|after| *after != path).map(<[u8]>::to_vec);
        let request = ListRequest { prefix, delimiter: None, after, limit: PAGE };
        let page = self.list_page(&target.volume, request).await?;
        let mut more = page.more;
        for entry in page.entries {
            if let ListEntry::File(info) = entry {
                let key = info.key.as_bytes().to_vec();
                if last.is_some_and(|last| key.as_slice() > last) {
                    more = false;
                    break;
                }
                keys.push(key);
            }
        }
        if last == Some(path) && !path.is_empty() {
            keys.truncate(1);
            more = false;
        }
        Ok((keys, more))
    }

    /// The chunks of files, and where they will be read. A file that is gone meanwhile has none.
    async fn placed(
        self: &Arc<Core>,
        target: &Target,
        keys: &[Vec<u8>],
    ) -> Result<Vec<(Vec<u8>, Vec<Placed>)>> {
        type OfKey = (Vec<u8>, Result<Vec<Placed>>);
        let mut each: Vec<BoxFuture<'static, OfKey>> = Vec::with_capacity(keys.len());
        for key in keys {
            let (core, target, key) = (self.clone(), target.clone(), key.clone());
            each.push(Box::pin(async move {
                let placed = core.placed_of(&target, &key).await;
                (key, placed)
            }));
        }
        let mut each = futures_util::stream::iter(each).buffered(LOOKUPS);
        let mut all = Vec::with_capacity(keys.len());
        while let Some((key, placed)) = each.next().await {
            match placed {
                Ok(placed) => all.push((key, placed)),
                Err(fault) if fault.kind == ErrorKind::NotFound => all.push((key, Vec::new())),
                Err(fault) => return Err(fault),
            }
        }
        Ok(all)
    }

    async fn placed_of(self: &Arc<Core>, target: &Target, key: &[u8]) -> Result<Vec<Placed>> {
        let Some(seen) = self.seen(&target.volume, key).await? else { return Ok(Vec::new()) };
        let file = seen.file;
        let runs = self.names.runs(&file).await.map_err(error::catalog)?;
        let extent = self.extent(&target.volume, &file).await?;
        let object = extent.as_ref().map(|extent| Arc::new(extent.object()));
        let holders: Vec<NodeId> = file.holders.iter().map(|holder| NodeId(holder.node)).collect();
        let own = holders.contains(&self.node).then_some(self.node);
        let holders: Vec<NodeId> = own.into_iter().chain(self.cell.by_latency(holders)).collect();
        let spills = KnownSpills::default();
        let mut placed = Vec::new();
        for run in runs.iter().filter(|run| !run.is_hole()) {
            for (start, chunk, len) in chunks_of(run) {
                let mut at = object.clone().map(|object| (object, start));
                if at.is_none() && is_spilled(&chunk) {
                    let slice = Slice {
                        chunk,
                        chunk_len: len as usize,
                        chunk_start: start,
                        offset: 0,
                        len: len as usize,
                    };
                    let (slice, extent) = self.spilled_at(&spills, &slice).await?;
                    at = Some((Arc::new(extent.object()), slice.chunk_start));
                }
                let nodes = match at {
                    Some(_) => vec![self.cell.turn_in(&target.cell, chunk)],
                    None => holders.iter().take(HOLDERS_MAX).copied().collect(),
                };
                placed.push(Placed { chunk, len, nodes, object: at });
            }
        }
        Ok(placed)
    }
}

/// The chunks of a run with their places in the file.
fn chunks_of(run: &ChunkRun) -> impl Iterator<Item = (u64, ChunkId, u32)> + '_ {
    (0..run.count).map(|at| {
        let len = if at + 1 == run.count { run.last_len } else { run.chunk_len };
        let start = run.file_offset + u64::from(at) * u64::from(run.chunk_len);
        (start, ChunkId::new(run.version, run.first_index + at), len)
    })
}

/// The key in front of one of them.
fn part_before(keys: &[Vec<u8>], key: &[u8]) -> Vec<u8> {
    let at = keys.iter().position(|one| one == key).unwrap_or(0);
    keys[at.saturating_sub(1)].clone()
}

fn stage_files(chunks: &[&Placed]) -> Vec<StageFile> {
    let mut files: Vec<StageFile> = Vec::new();
    for one in chunks {
        let Some((object, start)) = &one.object else { continue };
        let entry = (to_wire(&one.chunk), one.len, *start);
        match files.last_mut().filter(|file| file.object == **object) {
            Some(file) => file.chunks.push(entry),
            None => files.push(StageFile { object: (**object).clone(), chunks: vec![entry] }),
        }
    }
    files
}
