//! Reads of one piece of a chunk: asks the sources as the race says.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use stoker_format::NodeId;
use stoker_qos::Cost;
use stoker_ring::ErrorKind as RingKind;
use stoker_store::{ErrorKind, Result, StoreError};
use tracing::Instrument as _;
use tracing::field::Empty;

use super::race::{Entrant, Race};
use super::slow::Trail;
use super::{Size, Source};
use crate::core::{Core, add};
use crate::reader::{DriveFault, LOOKS_MAX, Slice};
use crate::stage::Extent;
use crate::{TRACE, error, rings};

/// What a node of another cell costs in comparison: links between cells are shared by many.
const FAR_US: u64 = 5_000;

/// What a silent node costs in comparison.
const SUSPECT_US: u64 = 60_000_000;

/// Bytes of a chunk that somebody wants.
pub(crate) struct Wish<'r> {
    pub slice: &'r Slice,
    pub range: Range<usize>,
    /// The piece of the cache that these bytes are, or the first of several, if they are whole ones.
    pub piece: Option<u32>,
    pub extent: Option<&'r Arc<Extent>>,
    /// Nodes that hold some of the file.
    pub holders: &'r [NodeId],
    /// This node wrote the file, and a row says that it has all of it.
    pub is_home: bool,
}

type Answered = (Source, Result<Bytes>);
type Asked<'r> = BoxFuture<'r, Answered>;

impl Core {
    /// Bytes of a chunk from wherever they come soonest. Every byte was verified on its way.
    pub async fn read_best(self: &Arc<Core>, wish: &Wish<'_>) -> Result<Bytes> {
        let (begun_us, mut trail) = (self.sources.now_us(), Trail::default());
        let span = tracing::debug_span!(
            target: TRACE,
            "read",
            bytes = wish.range.len(),
            first = Empty,
            source = Empty,
            hedges = Empty,
            failures = Empty,
        );
        let read = self.read_along(wish, &mut trail).instrument(span.clone()).await;
        if !span.is_disabled() {
            trail.first.map(|first| span.record("first", first.kind()));
            trail.answered.map(|source| span.record("source", source.kind()));
            span.record("hedges", trail.hedges);
            span.record("failures", trail.failures);
        }
        self.sources.note_way(wish.slice.chunk.version, wish.range.len(), begun_us, trail);
        read
    }

    async fn read_along(self: &Arc<Core>, wish: &Wish<'_>, trail: &mut Trail) -> Result<Bytes> {
        let sources = &self.sources;
        sources.budget.pay_in();
        let size = Size::of(wish.range.len());
        let local = self.rings.position(&wish.slice.chunk, wish.slice.chunk_len);
        let has_choice = wish.extent.is_some() || self.cell.has_others();
        let Some(drive) = local.filter(|drive| !has_choice || sources.is_quick(*drive, size)) else {
            let bytes = self.race(wish, size, local, None, trail).await?;
            if local.is_none() && wish.is_home {
                self.mend_missing(wish.slice, wish.holders);
            }
            return Ok(bytes);
        };
        // What nearly all reads are: a drive here that answers in time. Others are not even looked up.
        let begun_us = sources.now_us();
        trail.first = Some(Source::Drive(drive));
        let mut asked = self.ask(Source::Drive(drive), wish, size).boxed();
        if !has_choice {
            let (source, got) = asked.await;
            trail.answered = got.is_ok().then_some(source);
            return got;
        }
        let late_at = sources.at(begun_us + sources.late_us(Source::Drive(drive), size));
        match tokio::time::timeout_at(late_at, &mut asked).await {
            Ok((source, Ok(bytes))) => {
                trail.answered = Some(source);
                Ok(bytes)
            }
            Ok(failed) => {
                let asked = async move { failed }.boxed();
                self.race(wish, size, local, Some((begun_us, asked)), trail).await
            }
            Err(_) => self.race(wish, size, local, Some((begun_us, asked)), trail).await,
        }
    }

    /// `first` is the local drive, if it was asked already.
    async fn race<'r>(
        self: &'r Arc<Core>,
        wish: &'r Wish<'r>,
        size: Size,
        local: Option<usize>,
        first: Option<(u64, Asked<'r>)>,
        trail: &mut Trail,
    ) -> Result<Bytes> {
        let sources = &self.sources;
        // As it is now, when it is decided whom to ask: one that comes back meanwhile was not asked.
        let is_with_the_lost = self.is_with_the_lost(wish.holders);
        let mut entrants = self.entrants(wish, size, local);
        let mut running: FuturesUnordered<Asked<'r>> = FuturesUnordered::new();
        let now_us = sources.now_us();
        let begun_us = match first {
            Some((begun_us, asked)) => {
                entrants.sort_by_key(|entrant| !matches!(entrant.source, Source::Drive(_)));
                running.push(asked);
                begun_us
            }
            None => now_us,
        };
        let is_begun = !running.is_empty();
        let mut race = Race::new(entrants);
        let begun = race.start(begun_us);
        trail.first = begun;
        running.extend(begun.filter(|_| !is_begun).map(|source| self.ask(source, wish, size).boxed()));
        let mut why: Option<(u8, StoreError)> = None;
        loop {
            let look = race.look_at_us();
            let late = async {
                match look {
                    Some(us) => tokio::time::sleep_until(sources.at(us)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answered = running.next() => match answered {
                    Some((source, Ok(bytes))) => {
                        let now_us = sources.now_us();
                        for (other, since_us) in race.running().filter(|(other, _)| *other != source) {
                            sources.note_late(other, size, now_us.saturating_sub(since_us));
                        }
                        if race.hedges() > 0 && begun != Some(source) {
                            add(&sources.hedges_won, 1);
                        }
                        trail.answered = Some(source);
                        return Ok(bytes);
                    }
                    Some((source, Err(fault))) => {
                        trail.failures += 1;
                        tracing::debug!(chunk = %wish.slice.chunk, ?source, "not from there: {fault}");
                        let weight = weight(source, &fault);
                        if why.as_ref().is_none_or(|(known, _)| weight > *known) {
                            why = Some((weight, fault));
                        }
                        let next = race.failed(source, sources.now_us());
                        running.extend(next.map(|source| self.ask(source, wish, size).boxed()));
                    }
                    None => return Err(no_source(wish, why.map(|(_, fault)| fault), is_with_the_lost)),
                },
                () = late => {
                    if let Some(source) = race.late(sources.now_us(), &sources.budget) {
                        add(&sources.hedges, 1);
                        trail.hedges += 1;
                        running.push(self.ask(source, wish, size).boxed());
                    }
                }
            }
        }
    }

    /// Everybody who may have the bytes, the best in front.
    fn entrants(&self, wish: &Wish<'_>, size: Size, local: Option<usize>) -> Vec<Entrant<Source>> {
        let sources = &self.sources;
        let others = self.cell.others();
        let cost_us = |source: &Source| match source {
            Source::Peer(node) | Source::Turn(node) => {
                let silent_us = if self.cell.is_suspect(*node) { SUSPECT_US } else { 0 };
                let far_us = if self.cell.is_near(*node) { 0 } else { FAR_US };
                silent_us + far_us + sources.cost_us(*source, size, self.cell.latency_us(*node))
            }
            _ => sources.cost_us(*source, size, 0),
        };
        let mut order: Vec<Source> = local.map(Source::Drive).into_iter().collect();
        let holders = wish.holders.iter().filter(|node| others.contains(node));
        order.extend(holders.map(|node| Source::Peer(*node)));
        let lake = wish.extent.map(|extent| Source::Lake(extent.volume));
        let turn = lake.and_then(|_| self.cell.turn(wish.slice.chunk)).map(Source::Turn);
        // Before the lake is asked from here, the node whose turn it is has had the time that it usually takes.
        order.extend(turn.or(lake));
        order.sort_by_cached_key(cost_us);
        order.extend(lake.filter(|_| turn.is_some()));
        let mut entrants: Vec<_> = order.iter().map(|source| sources.entrant(*source, size)).collect();
        for at in 1..entrants.len() {
            // A drive that is slow by its own measure may still be sooner than a lake that is asked now.
            let next_us = sources.expected_us(entrants[at].source, size, 0);
            entrants[at - 1].late_us = entrants[at - 1].late_us.max(next_us);
        }
        if wish.extent.is_none() {
            let rest = others.iter().filter(|node| !wish.holders.contains(node));
            let mut rest: Vec<Source> = rest.map(|node| Source::Peer(*node)).collect();
            rest.sort_by_cached_key(cost_us);
            entrants.extend(
                rest.iter().map(|source| Entrant { is_likely: false, ..sources.entrant(*source, size) }),
            );
        }
        entrants
    }

    async fn ask(self: &Arc<Core>, source: Source, wish: &Wish<'_>, size: Size) -> Answered {
        let begun_us = self.sources.now_us();
        let chunk = wish.slice.chunk;
        let span = tracing::debug_span!(target: TRACE, "ask", source = source.kind());
        let asked = async {
            match source {
                Source::Drive(drive) => self.read_local(drive, wish).await,
                Source::Peer(node) => self.read_from(node, wish.slice, wish.range.clone(), None).await,
                Source::Turn(node) => self.read_from(node, wish.slice, wish.range.clone(), wish.extent).await,
                Source::Lake(_) => match wish.extent {
                    Some(extent) => {
                        let via = self.cell.far_turn(chunk);
                        self.fetch(wish.slice, extent, via).await.map(|bytes| bytes.slice(wish.range.clone()))
                    }
                    None => Err(rings::missing(&chunk)),
                },
            }
        };
        let got = asked.instrument(span).await;
        match &got {
            Ok(bytes) => {
                let took_us = self.sources.now_us().saturating_sub(begun_us);
                self.sources.note(source, size, took_us);
                let comes_from_peer = matches!(source, Source::Peer(_) | Source::Turn(_));
                if let Some(first) = wish.piece.filter(|_| comes_from_peer) {
                    self.keep_pieces(chunk, first, bytes);
                }
            }
            // It does not have it, or has it damaged: that says nothing about the next read.
            Err(fault) if matches!(fault.kind, ErrorKind::NotFound | ErrorKind::Corrupt) => {}
            Err(_) => self.sources.note_failed(source, size),
        }
        (source, got)
    }

    /// A whole chunk from the node of another cell that asks the lake for all; none if it does not come in time.
    pub async fn fetch_via(
        self: &Arc<Core>,
        node: NodeId,
        slice: &Slice,
        extent: &Arc<Extent>,
    ) -> Option<Bytes> {
        let source = Source::Turn(node);
        let begun_us = self.sources.now_us();
        let late_at = self.sources.at(begun_us + self.sources.late_us(source, Size::Large));
        let asked = self.read_from(node, slice, 0..slice.chunk_len, Some(extent));
        match tokio::time::timeout_at(late_at, asked).await {
            Ok(Ok(bytes)) => {
                self.sources.note(source, Size::Large, self.sources.now_us().saturating_sub(begun_us));
                Some(bytes)
            }
            Ok(Err(fault)) => {
                tracing::debug!(chunk = %slice.chunk, %node, "not from there: {fault}");
                self.sources.note_failed(source, Size::Large);
                None
            }
            Err(_) => {
                self.sources.note_late(source, Size::Large, self.sources.now_us().saturating_sub(begun_us));
                None
            }
        }
    }

    /// From a drive of this node. Bad bytes are never returned; they are replaced in the background.
    async fn read_local(self: &Arc<Core>, mut drive: usize, wish: &Wish<'_>) -> Result<Bytes> {
        let chunk = wish.slice.chunk;
        for _ in 0..LOOKS_MAX {
            let Some(place) = self.rings.drive(drive) else { return Err(rings::missing(&chunk)) };
            let permit = place.admit(Cost::bytes(wish.range.len() as u64)).await?;
            let read = self.read_drive(&place.ring, chunk, wish.piece, wish.range.clone()).await;
            drop(permit);
            match read {
                Ok(bytes) => return Ok(bytes),
                // Moved or dropped between the look and the read.
                Err(DriveFault::Ring(fault)) if fault.kind == RingKind::NotFound => {
                    match self.rings.position(&chunk, wish.slice.chunk_len) {
                        Some(at) => drive = at,
                        None => return Err(error::ring(fault)),
                    }
                }
                Err(DriveFault::Sealed(fault)) => {
                    if fault.kind == ErrorKind::Corrupt {
                        tracing::error!(%chunk, "a drive gave bytes that were not sealed so: {fault}");
                        self.repair_copy(drive, chunk, wish.holders, None);
                    }
                    return Err(fault);
                }
                Err(DriveFault::Ring(fault)) => {
                    if matches!(fault.kind, RingKind::Corrupt | RingKind::Io) {
                        tracing::error!(%chunk, "a drive gave bad bytes: {}", fault.message);
                        let lake = wish.extent.map(|extent| (*wish.slice, extent.clone()));
                        self.repair_copy(drive, chunk, wish.holders, lake);
                    }
                    return Err(error::ring(fault));
                }
            }
        }
        Err(StoreError::new(ErrorKind::NotFound, format!("chunk {chunk} moves all the time")))
    }

    /// Whether a holder was not asked because it is declared down: what it has is not lost.
    fn is_with_the_lost(&self, holders: &[NodeId]) -> bool {
        let others = self.cell.others();
        holders.iter().any(|node| *node != self.node && !others.contains(node))
    }
}

/// The error for bytes that nobody gave.
fn no_source(wish: &Wish<'_>, why: Option<StoreError>, is_with_the_lost: bool) -> StoreError {
    let chunk = wish.slice.chunk;
    match why {
        Some(fault) if fault.kind != ErrorKind::NotFound => fault,
        _ if is_with_the_lost => {
            let message =
                format!("chunk {chunk} is with nodes that are down: it is there when they are back");
            StoreError::new(ErrorKind::Unavailable, message)
        }
        _ => rings::missing(&chunk),
    }
}

/// Of several reasons the one that says most is told.
fn weight(source: Source, fault: &StoreError) -> u8 {
    match (source, fault.kind) {
        (_, ErrorKind::NotFound) => 0,
        (Source::Peer(_) | Source::Turn(_), _) => 1,
        (Source::Drive(_), _) => 2,
        (Source::Lake(_), _) => 3,
    }
}
