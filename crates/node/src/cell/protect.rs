//! Brings chunks to as many nodes as a class asks for: after a node was lost, and when bytes that were only a cache become
//! the only ones again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use stoker_format::{ChunkId, ChunkRun, NameRecord, NodeId, RecordKind, Seal, VersionId};
use stoker_qos::Cost;
use stoker_ring::{ErrorKind as RingKind, Put, Retention};
use stoker_schema::rows::HolderRow;
use stoker_store::{Buf, ErrorKind, Result};

use super::Summed;
use super::copies::{Copied, Copies, Parcel, place_of};
use super::message::LakeHead;
use super::peers::PeerCopy;
use super::service::{is_nowhere, nowhere};
use crate::cache::bytes_of;
use crate::core::{Core, add};
use crate::reader::Slice;
use crate::rings::NAME_INDEX;
use crate::sealing::SealedPart;
use crate::stage::Extent;
use crate::volumes::Volume;
use crate::{clock, error, rings};

/// Chunks that are brought here or sent away at the same time.
const AT_ONCE: usize = 4;

/// Bytes of a chunk as a drive has them; of a sealed one whole blocks, and what opens those.
pub(crate) struct Part {
    pub bytes: Summed,
    pub sealed: Option<SealedPart>,
}

/// A chunk, or the front of a plain one, as a drive has it: what repair and copies move.
pub(crate) struct Stored {
    pub bytes: Summed,
    pub seal: Option<Arc<Seal>>,
}

/// Chunks that are must-keep on enough nodes, and stay so with peers until this is dropped: by then the catalog knows of
/// it, or it is not wanted.
pub(crate) struct Protected {
    core: Arc<Core>,
    copies: Copies,
    hold: u64,
    versions: Vec<VersionId>,
    asked: Vec<NodeId>,
}

impl Protected {
    /// Every drive that has some of the chunks.
    pub fn holders(&self) -> Vec<HolderRow> {
        self.copies.holders(&self.core.rings)
    }

    /// A name record that these peers have.
    pub(super) fn name(core: &Arc<Core>, id: VersionId, hold: u64, asked: Vec<NodeId>) -> Protected {
        Protected { core: core.clone(), copies: Copies::default(), hold, versions: vec![id], asked }
    }

    /// Ends it as a drop does, and waits until peers were told.
    pub async fn end(mut self) {
        let (asked, versions) = (std::mem::take(&mut self.asked), std::mem::take(&mut self.versions));
        if self.core.cell.is_joined() {
            self.core.cell.tell_done(&asked, &versions, self.hold).await;
        }
    }

    /// Peers, each with the session that acknowledged.
    pub fn sessions(&self) -> Vec<(NodeId, [u8; 16])> {
        self.copies.sessions()
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let (asked, versions) = (std::mem::take(&mut self.asked), std::mem::take(&mut self.versions));
        self.core.end_holds(asked, versions, self.hold);
    }
}

impl Core {
    /// Makes chunks must-keep here and with as many peers as the class of their volume asks for; bytes that are missing come
    /// from `sources` first. The caller holds `marks` for reading.
    pub async fn protect(
        self: &Arc<Core>,
        volume: &Volume,
        chunks: &[(ChunkId, u32)],
        sources: &[NodeId],
    ) -> Result<Protected> {
        let mut protected = self.protect_here(volume, chunks, sources).await?;
        let need = self.class(volume).copies() - 1;
        if need > 0 {
            let retention = Core::retention(volume);
            self.protect_elsewhere(volume, chunks, retention, need, &mut protected).await?;
        }
        Ok(protected)
    }

    /// The same on this node alone.
    pub(super) async fn protect_here(
        self: &Arc<Core>,
        volume: &Volume,
        chunks: &[(ChunkId, u32)],
        sources: &[NodeId],
    ) -> Result<Protected> {
        let mut copies = Copies::default();
        if chunks.is_empty() {
            // Somebody has to owe the drain of a file without bytes, too.
            copies.add(Copied::here(self.rings.stand_in()));
        }
        let retention = Core::retention(volume);
        for (chunk, len) in chunks {
            if !self.rings.stays(chunk, *len) {
                self.bring(volume, *chunk, *len, retention, sources).await?;
            }
        }
        if !self.rings.mark_dirty(chunks).await? {
            // One was dropped between the look and the mark.
            return Err(nowhere(&chunks[0].0));
        }
        for (chunk, len) in chunks {
            let drive = self.rings.must_keep_at(chunk, *len).ok_or_else(|| nowhere(chunk))?;
            copies.add(Copied::here(drive));
        }
        let versions: BTreeSet<VersionId> = chunks.iter().map(|(chunk, _)| chunk.version).collect();
        Ok(Protected {
            core: self.clone(),
            copies,
            hold: u64::from_le_bytes(clock::random()) | 1,
            versions: versions.into_iter().collect(),
            asked: Vec::new(),
        })
    }

    /// The same for bytes that the lake has as well: none if they are not all in rings that can be reached. Chunks that were
    /// spilled are in none.
    pub async fn secure(
        self: &Arc<Core>,
        volume: &Volume,
        runs: &[ChunkRun],
        sources: &[HolderRow],
    ) -> Result<Option<Protected>> {
        if runs.iter().any(ChunkRun::is_spilled) {
            return Ok(None);
        }
        let chunks: Vec<(ChunkId, u32)> = rings::chunks(runs).collect();
        let here = |(chunk, len): &(ChunkId, u32)| self.rings.position(chunk, *len as usize).is_some();
        if !self.cell.is_joined() && !chunks.iter().all(here) {
            return Ok(None);
        }
        let sources: Vec<NodeId> = sources.iter().map(|holder| NodeId(holder.node)).collect();
        match self.protect(volume, &chunks, &sources).await {
            Ok(protected) => Ok(Some(protected)),
            Err(fault) if is_nowhere(&fault) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Leaves a name record here and with as many peers as the class of its volume asks for: the holders of a file without bytes.
    pub async fn protect_name(
        self: &Arc<Core>,
        volume: &Volume,
        id: VersionId,
        record: &NameRecord,
    ) -> Result<Protected> {
        let (chunk, bytes) = (ChunkId::new(id, NAME_INDEX), record.encode());
        let retention = Core::retention(volume);
        let (kind, payload) = (RecordKind::Name, Buf::copy_of(&bytes));
        let mut puts = vec![Put { chunk, volume: volume.id, kind, retention, payload, seal: None }];
        self.vault.seal(&mut puts)?;
        let (bytes, seal) = (Bytes::from_owner(puts[0].payload.lend()), puts[0].seal.clone());
        let at = self.rings.append_any(puts).await?;
        let hold = u64::from_le_bytes(clock::random()) | 1;
        let mut protected = Protected::name(self, id, hold, Vec::new());
        protected.copies.add(Copied::here(at));
        let need = self.class(volume).copies() - 1;
        if need > 0 {
            let never = retention == Retention::Never;
            let bytes = Summed { bytes, crc: None, is_claimed: false };
            let parcel = Parcel { chunk, never, bytes, seal, name: None, hold: protected.hold };
            let peers = self.copy_to_peers(volume, parcel, need, &[]).await?;
            protected.asked = peers.iter().map(|copy| NodeId(copy.holder.node)).collect();
            protected.copies.add_peers(peers);
        }
        Ok(protected)
    }

    async fn protect_elsewhere(
        self: &Arc<Core>,
        volume: &Volume,
        chunks: &[(ChunkId, u32)],
        retention: Retention,
        need: usize,
        protected: &mut Protected,
    ) -> Result<()> {
        // Who has them already is asked first: all chunks of a peer in one question.
        let mut wishes: BTreeMap<NodeId, Vec<(ChunkId, u32)>> = BTreeMap::new();
        for (chunk, len) in chunks {
            let takers = self.cell.takers(place_of(*chunk), volume.policy.spread, &[self.node], &[]);
            for node in takers {
                wishes.entry(node).or_default().push((*chunk, *len));
            }
        }
        let mut have: BTreeMap<ChunkId, Vec<NodeId>> = BTreeMap::new();
        for (node, wanted) in wishes {
            protected.asked.push(node);
            let kept = self.cell.keep(node, &wanted, self.session_id, protected.hold).await;
            let Ok((kept, copies)) = kept else { continue };
            protected.copies.add_peers(copies);
            for ((chunk, _), _) in wanted.iter().zip(kept).filter(|(_, kept)| *kept) {
                have.entry(*chunk).or_default().push(node);
            }
        }
        let (never, hold) = (retention == Retention::Never, protected.hold);
        let lacking = chunks.iter().filter_map(|(chunk, len)| {
            let found = have.get(chunk).map_or(0, Vec::len);
            (found < need).then(|| (*chunk, *len, need - found))
        });
        let sent = lacking.map(|(chunk, len, lack)| {
            let has = have.get(&chunk).cloned().unwrap_or_default();
            async move {
                let stored = match self.read_stored(chunk, len as usize, true).await? {
                    Some(stored) => stored,
                    None => return Err(nowhere(&chunk)),
                };
                let Stored { bytes, seal } = stored;
                let parcel = Parcel { chunk, never, bytes, seal, name: None, hold };
                self.copy_to_peers(volume, parcel, lack, &has).await
            }
        });
        let sent: Vec<_> = sent.collect();
        let all: Vec<Vec<PeerCopy>> =
            futures_util::stream::iter(sent).buffer_unordered(AT_ONCE).try_collect().await?;
        let all: Vec<PeerCopy> = all.into_iter().flatten().collect();
        let fresh: Vec<NodeId> = all.iter().map(|copy| NodeId(copy.holder.node)).collect();
        protected.asked.extend(fresh);
        protected.asked.sort_unstable();
        protected.asked.dedup();
        protected.copies.add_peers(all);
        Ok(())
    }

    async fn bring(
        self: &Arc<Core>,
        volume: &Volume,
        chunk: ChunkId,
        len: u32,
        retention: Retention,
        sources: &[NodeId],
    ) -> Result<()> {
        // A drive that is to go may have it.
        let here = self.read_stored(chunk, len as usize, true).await.ok().flatten();
        let stored = match here {
            Some(stored) => Some(stored),
            None => self.read_peers(chunk, len as usize, sources).await?,
        };
        let Some(Stored { bytes: Summed { bytes, .. }, seal }) = stored else { return Err(nowhere(&chunk)) };
        let len = bytes.len() as u32;
        let mut payload = self.rings.write_buffer(bytes.len()).await;
        payload.set_len(0);
        payload.fill(&bytes);
        let _turn = self.rings.turn(&chunk).await;
        if self.rings.position(&chunk, len as usize + 1).is_some() {
            // A peer sent all of it meanwhile.
            self.rings.mark_dirty_here(vec![chunk]).await?;
            if self.rings.must_keep_at(&chunk, len + 1).is_some() {
                return Ok(());
            }
        }
        let put = Put { chunk, volume: volume.id, kind: RecordKind::Chunk, retention, payload, seal };
        self.rings.append_any(vec![put]).await.map(drop)
    }

    /// Bytes of a chunk from drives of this node; none if it is not here. Whoever does not have them verified here has to
    /// compare them with their sum.
    pub async fn read_here(
        self: &Arc<Core>,
        chunk: ChunkId,
        range: std::ops::Range<usize>,
        verified: bool,
    ) -> Result<Option<Part>> {
        for _ in 0..crate::reader::LOOKS_MAX {
            let Some(drive) = self.rings.position(&chunk, range.end) else { return Ok(None) };
            let Some(place) = self.rings.drive(drive) else { continue };
            let permit = place.admit(Cost::bytes(range.len() as u64)).await?;
            let read = match verified {
                true => place.ring.read(chunk, range.start, range.len()).await,
                false => place.ring.read_unchecked(chunk, range.start, range.len()).await,
            };
            drop(permit);
            match read {
                Ok(view) => {
                    let sealed = view.sealed().map(SealedPart::of);
                    // Of a sealed record whole blocks, which were verified here unless they are what was wanted.
                    let crc = view.crc32c();
                    let at = view.sealed().map_or(view.range(), |sealed| sealed.range.clone());
                    let bytes = bytes_of(view.into_buf(), at);
                    let is_claimed = !verified && crc.is_some();
                    return Ok(Some(Part { bytes: Summed { bytes, crc, is_claimed }, sealed }));
                }
                Err(fault) if fault.kind == RingKind::NotFound => continue,
                Err(fault) => {
                    if matches!(fault.kind, RingKind::Corrupt | RingKind::Io) {
                        tracing::error!(%chunk, "a drive gave bad bytes: {}", fault.message);
                        self.repair_copy(drive, chunk, &[], None);
                    }
                    return Err(error::ring(fault));
                }
            }
        }
        Ok(None)
    }

    /// Bytes of a chunk from one peer; with an extent, it gets them out of the lake if it does not have them.
    pub async fn read_from(
        &self,
        node: NodeId,
        slice: &Slice,
        range: std::ops::Range<usize>,
        extent: Option<&Arc<Extent>>,
    ) -> Result<Bytes> {
        let lake = extent.map(|extent| LakeHead {
            volume: extent.volume.0,
            key: extent.key.clone(),
            etag: extent.etag.clone(),
            start: slice.chunk_start,
            len: slice.chunk_len as u32,
        });
        let (buf, sealed) = self.cell.read_on(node, slice.chunk, range.clone(), lake).await?;
        self.count_received(&buf);
        match sealed {
            Some(sealed) => self.open_received(slice.chunk, buf, &sealed, range).await,
            None => {
                let len = buf.len();
                Ok(bytes_of(buf, 0..len))
            }
        }
    }

    fn count_received(&self, buf: &Buf) {
        add(&self.cell.stats.reads, 1);
        add(&self.cell.stats.read_bytes, buf.len() as u64);
    }

    /// A chunk as a drive here stores it, and at least so much of it: of a sealed one all.
    pub(super) async fn read_whole(
        self: &Arc<Core>,
        chunk: ChunkId,
        len: usize,
        verified: bool,
    ) -> Result<Option<Part>> {
        let sealed_len = || {
            let at = self.rings.find(&chunk, len)?;
            at.ring.stat(&chunk).filter(|info| info.sealed).map(|info| info.len as usize)
        };
        let range = 0..sealed_len().unwrap_or(len);
        let part = self.read_here(chunk, range, verified).await?;
        // It may have been replaced between the look and the read.
        let is_whole =
            |part: &Part| part.sealed.as_ref().is_none_or(|sealed| sealed.is_whole(part.bytes.bytes.len()));
        Ok(part.filter(is_whole))
    }

    async fn read_stored(
        self: &Arc<Core>,
        chunk: ChunkId,
        len: usize,
        verified: bool,
    ) -> Result<Option<Stored>> {
        let part = self.read_whole(chunk, len, verified).await?;
        Ok(part.map(|Part { bytes, sealed }| Stored { bytes, seal: sealed.map(SealedPart::into_seal) }))
    }

    /// A chunk as peers store it, and at least so much of it, those named first; none if nobody who answers has it.
    pub async fn read_peers(&self, chunk: ChunkId, len: usize, sources: &[NodeId]) -> Result<Option<Stored>> {
        let named = self.cell.by_latency(sources.to_vec());
        let mut rest = self.cell.by_latency(self.cell.others());
        rest.retain(|node| !named.contains(node));
        for node in named.into_iter().chain(rest) {
            let has_sealed = self.vault.has_sealed();
            match self.cell.read_stored_on(node, chunk, len, has_sealed).await {
                Ok((buf, seal)) => {
                    self.count_received(&buf);
                    let len = buf.len();
                    let bytes = Summed { bytes: bytes_of(buf, 0..len), crc: None, is_claimed: false };
                    return Ok(Some(Stored { bytes, seal }));
                }
                Err(fault) if fault.kind == ErrorKind::NotFound => {}
                Err(fault) => tracing::debug!(%chunk, %node, "not from there: {fault}"),
            }
        }
        Ok(None)
    }
}
