//! Reads of a range of a chunk while shards are missing.
//!
//! Bytes on shards that are present are read as they are. For those on missing shards the same places of `k` other shards are read, first
//! of those that the range reads anyway. Each byte is read once, and only what was asked for is decoded.

use std::ops::Range;

use crate::codec::{Codec, check_count};
use crate::error::Error;
use crate::layout::{Layout, Piece};
use crate::program::Program;
use crate::scheme::ShardSet;

/// A part of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRange {
    /// Which shard.
    pub shard: usize,
    /// Which bytes of it.
    pub range: Range<usize>,
}

/// What to read for a range of a chunk, and how its bytes come of that.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    len: usize,
    reads: Vec<ShardRange>,
    copies: Vec<Copy>,
    decodes: Vec<Decode>,
}

/// Bytes that are read as they are.
#[derive(Clone, Debug)]
struct Copy {
    from: Place,
    to: Range<usize>,
}

/// Bytes of missing shards: the same places of several shards.
#[derive(Clone, Debug)]
struct Decode {
    program: Program,
    sources: Vec<Place>,
    /// In the order of the output, as the rows of the program are.
    to: Vec<Range<usize>>,
}

/// A part of what was read.
#[derive(Clone, Debug)]
struct Place {
    read: usize,
    range: Range<usize>,
}

impl ReadPlan {
    /// Plans the read of a range of a chunk. The shards that are present are in the order of preference: where a choice is left, the
    /// first are read. With too few of them the error names the bytes of the range that are lost.
    pub fn new(
        codec: &Codec,
        layout: &Layout,
        range: Range<usize>,
        present: &[usize],
    ) -> Result<Self, Error> {
        let scheme = codec.scheme();
        assert_eq!(layout.scheme(), scheme, "a layout of another scheme");
        let there = scheme.set(present)?;
        let begin = range.start;
        let len = range.len();
        let (direct, lost): (Vec<Piece>, Vec<Piece>) =
            layout.pieces(range)?.partition(|piece| there.contains(piece.shard));
        if !lost.is_empty() && there.len() < scheme.data() {
            let missing = ShardSet::all(scheme).without(there);
            return Err(Error::Lost { scheme, missing, ranges: merged(lost.iter().map(Piece::chunk_range)) });
        }
        let places = merged(lost.iter().map(|piece| piece.range.clone()));
        let sources = if lost.is_empty() { Vec::new() } else { sources(scheme.data(), &direct, present) };
        let reads = reads(&direct, &sources, &places);
        let to = |piece: &Piece| piece.chunk_at - begin..piece.chunk_at - begin + piece.range.len();
        let copy = |piece: &Piece| Copy { from: place(&reads, piece.shard, &piece.range), to: to(piece) };
        let copies = direct.iter().map(copy).collect();
        let mut decodes = Vec::new();
        if !lost.is_empty() {
            let wanted: Vec<usize> = lost.iter().map(|piece| piece.shard).collect();
            let repair = codec.repair(&sources, &wanted)?;
            for part in parts(&lost) {
                let here: Vec<&Piece> = lost
                    .iter()
                    .filter(|piece| piece.range.start <= part.start && part.end <= piece.range.end)
                    .collect();
                let shards: Vec<usize> = here.iter().map(|piece| piece.shard).collect();
                let from = |piece: &&Piece| to(piece).start + part.start - piece.range.start;
                decodes.push(Decode {
                    program: repair.narrowed(&shards),
                    sources: sources.iter().map(|&shard| place(&reads, shard, &part)).collect(),
                    to: here.iter().map(|piece| from(piece)..from(piece) + part.len()).collect(),
                });
            }
        }
        Ok(Self { len, reads, copies, decodes })
    }

    /// What to read, in the order in which [`Self::fill`] takes it. Ranges of one shard do not touch.
    pub fn reads(&self) -> &[ShardRange] {
        &self.reads
    }

    /// Length of the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether shards are missing that the range needs.
    pub fn is_degraded(&self) -> bool {
        !self.decodes.is_empty()
    }

    /// Bytes to read. As many as the range has while nothing is missing.
    pub fn read_bytes(&self) -> usize {
        self.reads.iter().map(|read| read.range.len()).sum()
    }

    /// Makes the bytes of the range from what was read.
    pub fn fill(&self, read: &[&[u8]], out: &mut [u8]) -> Result<(), Error> {
        check_count(self.reads.len(), read.len())?;
        for (place, (bytes, wanted)) in read.iter().zip(&self.reads).enumerate() {
            let (need, have) = (wanted.range.len(), bytes.len());
            if need != have {
                return Err(Error::ShardLength { place, need, have });
            }
        }
        if out.len() != self.len {
            return Err(Error::ShardLength { place: 0, need: self.len, have: out.len() });
        }
        for copy in &self.copies {
            out[copy.to.clone()].copy_from_slice(copy.from.of(read));
        }
        for decode in &self.decodes {
            let sources: Vec<&[u8]> = decode.sources.iter().map(|place| place.of(read)).collect();
            decode.program.run(&sources, &mut apart(out, &decode.to));
        }
        Ok(())
    }
}

impl Place {
    fn of<'b>(&self, read: &[&'b [u8]]) -> &'b [u8] {
        &read[self.read][self.range.clone()]
    }
}

/// Shards to decode from: those that are read anyway, then by preference.
fn sources(count: usize, direct: &[Piece], present: &[usize]) -> Vec<usize> {
    let is_read = |shard: &usize| direct.iter().any(|piece| piece.shard == *shard);
    let first = present.iter().copied().filter(is_read);
    let then = present.iter().copied().filter(|shard| !is_read(shard));
    first.chain(then).take(count).collect()
}

/// What to read of each shard: its own piece of the range, and the places that are decoded.
fn reads(direct: &[Piece], sources: &[usize], places: &[Range<usize>]) -> Vec<ShardRange> {
    let shards: ShardSet = direct.iter().map(|piece| piece.shard).chain(sources.iter().copied()).collect();
    let mut reads = Vec::new();
    for shard in shards.iter() {
        let own = direct.iter().filter(|piece| piece.shard == shard).map(|piece| piece.range.clone());
        let decoded = places.iter().filter(|_| sources.contains(&shard)).cloned();
        let ranges = merged(own.chain(decoded));
        reads.extend(ranges.into_iter().map(|range| ShardRange { shard, range }));
    }
    reads
}

/// Where a part of a shard is in what is read. Panics if it is not: reads are made of all parts.
fn place(reads: &[ShardRange], shard: usize, part: &Range<usize>) -> Place {
    let holds = |read: &ShardRange| {
        read.shard == shard && read.range.start <= part.start && part.end <= read.range.end
    };
    let read = reads.iter().position(holds).expect("a part that is read");
    let begin = reads[read].range.start;
    Place { read, range: part.start - begin..part.end - begin }
}

/// Cuts what is decoded where a lost piece begins or ends, so that in each part the same shards are wanted.
fn parts(lost: &[Piece]) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = lost.iter().flat_map(|piece| [piece.range.start, piece.range.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let wanted = |from: usize| lost.iter().any(|piece| piece.range.contains(&from));
    cuts.windows(2).filter(|cut| wanted(cut[0])).map(|cut| cut[0]..cut[1]).collect()
}

/// The ranges in order, those that touch as one.
fn merged(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Disjoint ranges, in order, of one piece of memory.
fn apart<'o>(mut rest: &'o mut [u8], ranges: &[Range<usize>]) -> Vec<&'o mut [u8]> {
    let mut begin = 0;
    let mut parts = Vec::with_capacity(ranges.len());
    for range in ranges {
        let (_, behind) = rest.split_at_mut(range.start - begin);
        let (part, behind) = behind.split_at_mut(range.len());
        parts.push(part);
        (rest, begin) = (behind, range.end);
    }
    parts
}
