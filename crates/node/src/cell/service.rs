//! What other nodes ask of this one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stoker_cluster::PeerService;
use stoker_format::{ChunkId, NodeId, RecordKind, VersionId, VolumeId};
use stoker_qos::{Class, Tag};
use stoker_ring::{Put, Retention};
use stoker_schema::rows::HolderRow;
use stoker_store::{BoxFuture, Buf, ErrorKind, Result, StoreError, Subject};

use super::message::{self, Answer, AppendHead, Ask, LakeHead, Seals, from_wire};
use super::peers::chunks_of;
use super::protect::Part;
use super::{Body, Summed};
use crate::admission::{WireWork, working};
use crate::core::{Core, add};
use crate::node::Node;
use crate::reader::Slice;
use crate::rings::NAME_INDEX;

/// Longest range that is read at once.
const READ_LEN_MAX: u32 = 16 << 20;

impl Node {
    /// Answers a peer.
    pub async fn serve_peer(&self, from: NodeId, head: &[u8], body: Body) -> (Vec<u8>, Body) {
        let answered = match message::decode_for(head) {
            Ok((ask, work)) => {
                let work = work.map_or(Tag::of(Class::Client), WireWork::tag);
                working(work, self.core.answer(from, ask, body)).await
            }
            Err(fault) => Err(fault),
        };
        let (answer, body) =
            answered.unwrap_or_else(|fault| (Answer::fault(&fault, self.core.level.get()), Body::None));
        (message::encode(&answer), body)
    }
}

impl PeerService for Node {
    fn serve<'a>(&'a self, from: NodeId, head: &'a [u8], body: Body) -> BoxFuture<'a, (Vec<u8>, Body)> {
        Box::pin(self.serve_peer(from, head, body))
    }
}

fn answer_of(Part { bytes, sealed }: Part) -> (Answer, Body) {
    let claim = bytes.crc.filter(|_| bytes.is_claimed);
    let answer = match sealed {
        None => Answer::Bytes { claim },
        Some(part) => Answer::Sealed { claim, part },
    };
    (answer, Body::Shared(bytes))
}

fn plain(answer: Answer) -> Result<(Answer, Body)> {
    Ok((answer, Body::None))
}

impl Core {
    async fn answer(self: &Arc<Core>, from: NodeId, ask: Ask, body: Body) -> Result<(Answer, Body)> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(StoreError::new(ErrorKind::Unavailable, "this node is stopping"));
        }
        let versions = |ids: Vec<[u8; 12]>| ids.into_iter().map(VersionId);
        match ask {
            Ask::Append(head) => plain(self.keep_copy(from, head, None, body).await?),
            Ask::AppendSealed { head, seals } => plain(self.keep_copy(from, head, Some(seals), body).await?),
            Ask::Read { chunk, offset, len, verified, lake } => {
                let piece = (from_wire(&chunk), offset, len);
                let part = self.read_for_peer(from, piece, verified, lake).await?;
                add(&self.cell.stats.served_reads, 1);
                Ok(answer_of(part))
            }
            Ask::ReadStored { chunk, len, verified } => {
                let chunk = from_wire(&chunk);
                let gone = || StoreError::new(ErrorKind::NotFound, format!("chunk {chunk} is not here"));
                if len == 0 || len > READ_LEN_MAX {
                    return Err(StoreError::new(ErrorKind::Invalid, "a read of no chunk"));
                }
                let part = self.read_whole(chunk, len as usize, verified).await?.ok_or_else(gone)?;
                add(&self.cell.stats.served_reads, 1);
                Ok(answer_of(part))
            }
            Ask::Keep { chunks, session, hold } => {
                let wanted = chunks_of(&chunks).into_iter().map(|chunk| (chunk, 0)).collect();
                plain(self.keep_for_peer(from, wanted, session, hold).await?)
            }
            Ask::Done { versions: ids, hold } => {
                versions(ids).for_each(|version| self.cell.remote_holds.done(version, from, hold));
                plain(Answer::Done)
            }
            Ask::Reconsider { versions: ids } => {
                self.cell.note_reconsider(versions(ids));
                plain(Answer::Done)
            }
            Ask::Pinned { versions: ids } => {
                plain(Answer::Which(versions(ids).map(|version| self.pins.is_pinned(version)).collect()))
            }
            Ask::Forget { chunks } => {
                let held = |chunk: &ChunkId| self.cell.remote_holds.has(chunk.version);
                let ids: Vec<ChunkId> = chunks_of(&chunks).into_iter().filter(|chunk| !held(chunk)).collect();
                self.rings.delete(&ids).await?;
                plain(Answer::Done)
            }
            Ask::Busy { volume, key } => {
                plain(Answer::Which(vec![self.drainer.has_key(VolumeId(volume), &key)]))
            }
            Ask::KeepLong { chunks, session, hold } => {
                let wanted = chunks.iter().map(|(chunk, len)| (from_wire(chunk), *len)).collect();
                plain(self.keep_for_peer(from, wanted, session, hold).await?)
            }
            Ask::Have { chunks } => {
                let has = |(chunk, len): &(_, u32)| self.has_copy(&from_wire(chunk), *len);
                plain(Answer::Which(chunks.iter().map(has).collect()))
            }
            Ask::Time => plain(Answer::Time(crate::clock::now_ms())),
            Ask::Job(ask) => plain(Answer::Job(self.job_here(ask).await)),
            Ask::Order(order) => plain(Answer::Report(Box::new(self.carry_out_here(order).await?))),
        }
    }

    async fn keep_copy(
        self: &Arc<Core>,
        from: NodeId,
        head: AppendHead,
        seals: Option<Seals>,
        body: Body,
    ) -> Result<Answer> {
        let Body::Aligned(payload) = body else {
            return Err(StoreError::new(ErrorKind::Invalid, "a chunk without bytes"));
        };
        let (seal, name_seal) = match (seals, &head.name) {
            (None, _) => (None, None),
            (Some(seals), None) => (Some(seals.chunk.seal(payload.len())?), None),
            (Some(Seals { chunk, name: Some(name_seal) }), Some(name)) => {
                (Some(chunk.seal(payload.len())?), Some(name_seal.seal(name.len())?))
            }
            (Some(Seals { name: None, .. }), Some(_)) => {
                return Err(StoreError::new(ErrorKind::Invalid, "a sealed chunk with a plain name"));
            }
        };
        let chunk = from_wire(&head.chunk);
        let (version, volume) = (chunk.version, VolumeId(head.volume));
        if !self.cell.remote_holds.hold(version, from, head.session, head.hold) {
            return Err(over());
        }
        let (longer, turn) = self.longer_copy(chunk, payload.len()).await?;
        if let Some(at) = longer {
            return Ok(self.appended(at));
        }
        let retention = if head.never { Retention::Never } else { Retention::Dirty };
        let kind = if chunk.index == NAME_INDEX { RecordKind::Name } else { RecordKind::Chunk };
        let mut puts = vec![Put { chunk, volume, kind, retention, payload, seal }];
        if let Some(name) = head.name {
            let chunk = ChunkId::new(version, NAME_INDEX);
            let (kind, payload) = (RecordKind::Name, Buf::copy_of(&name));
            puts.push(Put { chunk, volume, kind, retention, payload, seal: name_seal });
        }
        let core = self.clone();
        // To its end even if the peer gives up: nobody else would know what became of it.
        let append = async move {
            let _turn = turn;
            core.rings.append_any(puts).await
        };
        let at = self.to_the_end(append).await?;
        add(&self.cell.stats.served_copies, 1);
        Ok(self.appended(at))
    }

    fn appended(&self, at: usize) -> Answer {
        let holder = self.rings.holders([at]).pop();
        let HolderRow { drive, incarnation, .. } = holder.expect("a number that was given");
        Answer::Appended { drive, incarnation, session: self.session_id }
    }

    /// The drive that keeps more of a chunk than that, and the turn to bring it if there is none. The front of it that some file uses
    /// must not come in its place.
    async fn longer_copy(
        &self,
        chunk: ChunkId,
        len: usize,
    ) -> Result<(Option<usize>, tokio::sync::OwnedMutexGuard<()>)> {
        let is_longer_here = || chunk.index != NAME_INDEX && self.rings.position(&chunk, len + 1).is_some();
        let turn = self.rings.turn(&chunk).await;
        if !is_longer_here() {
            return Ok((None, turn));
        }
        // Whoever has marks and waits for its turn must not be waited for.
        drop(turn);
        let _marks = self.marks.read().await;
        let turn = self.rings.turn(&chunk).await;
        if !is_longer_here() {
            return Ok((None, turn));
        }
        self.rings.mark_dirty_here(vec![chunk]).await?;
        Ok((self.rings.must_keep_at(&chunk, len as u32 + 1), turn))
    }

    async fn read_for_peer(
        self: &Arc<Core>,
        from: NodeId,
        (chunk, offset, len): (ChunkId, u32, u32),
        verified: bool,
        lake: Option<LakeHead>,
    ) -> Result<Part> {
        if len == 0 || len > READ_LEN_MAX {
            return Err(StoreError::new(ErrorKind::Invalid, format!("a read of {len} bytes of a chunk")));
        }
        let range = offset as usize..offset as usize + len as usize;
        if let Some(bytes) = self.read_here(chunk, range.clone(), verified).await? {
            return Ok(bytes);
        }
        let Some(lake) = lake else {
            return Err(StoreError::new(ErrorKind::NotFound, format!("chunk {chunk} is not here")));
        };
        let extent = self.extent_at(VolumeId(lake.volume), lake.key, lake.etag).await?;
        let chunk_len = lake.len as usize;
        if range.end > chunk_len {
            return Err(StoreError::new(ErrorKind::Invalid, "a read behind the end of a chunk"));
        }
        let slice =
            Slice { chunk, chunk_len, chunk_start: lake.start, offset: range.start, len: range.len() };
        // Whoever asks from another cell thinks that this node asks the lake for all; it is not sent on once more.
        let via = self.cell.far_turn(chunk).filter(|_| self.cell.is_near(from));
        let bytes = self.fetch(&slice, &extent, via).await?.slice(range);
        Ok(Part { bytes: Summed { bytes, crc: None, is_claimed: false }, sealed: None })
    }

    async fn keep_for_peer(
        &self,
        from: NodeId,
        wanted: Vec<(ChunkId, u32)>,
        session: [u8; 16],
        hold: u64,
    ) -> Result<Answer> {
        let hold_all = || {
            wanted.iter().all(|(chunk, _)| self.cell.remote_holds.hold(chunk.version, from, session, hold))
        };
        let was_held = hold_all();
        let _marks = self.marks.read().await;
        // That may have taken longer than the peer waits.
        if !was_held || !hold_all() {
            wanted.iter().for_each(|(chunk, _)| self.cell.remote_holds.done(chunk.version, from, hold));
            return Err(over());
        }
        let is_here = |(chunk, len): &&(ChunkId, u32)| self.rings.position(chunk, *len as usize).is_some();
        let here: Vec<ChunkId> = wanted.iter().filter(is_here).map(|(chunk, _)| *chunk).collect();
        self.rings.mark_dirty_here(here).await?;
        let (mut kept, mut drives) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (chunk, len) in &wanted {
            let at = self.rings.must_keep_at(chunk, *len);
            kept.push(at.is_some());
            for holder in self.rings.holders(at) {
                let drive = (holder.drive, holder.incarnation);
                if !drives.contains(&drive) {
                    drives.push(drive);
                }
            }
        }
        Ok(Answer::Kept { kept, drives, session: self.session_id })
    }
}

/// The error for what a peer asked for and has said to be over since.
fn over() -> StoreError {
    StoreError::new(ErrorKind::Conflict, "the write that this is for is over")
}

/// The error for a chunk that no node has.
pub(super) fn nowhere(chunk: &ChunkId) -> StoreError {
    let message = format!("chunk {chunk} is on no drive of this node, and no peer that answers has it");
    StoreError::about(ErrorKind::Unavailable, Subject::Chunk, message)
}

/// Whether it is that.
pub(super) fn is_nowhere(fault: &StoreError) -> bool {
    (fault.kind, fault.subject) == (ErrorKind::Unavailable, Subject::Chunk)
}
