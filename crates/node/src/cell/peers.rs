//! Calls to other nodes, one function for each question.

use std::time::Duration;

use std::sync::Arc;

use stoker_format::{BLOCK, ChunkId, NodeId, Seal, VersionId, VolumeId, crc32c};
use stoker_qos::{COST_BYTES_MAX, Cost};
use stoker_schema::rows::HolderRow;
use stoker_store::{Buf, ErrorKind, Order, Report, Result, StoreError};

use super::message::{
    self, Answer, AppendHead, Ask, IDS_MAX, JobAsk, JobHolds, LakeHead, Seals, from_wire, to_wire,
};
use super::{Body, Cell, Greeting, Summed, unreachable};
use crate::admission::{WireWork, admit, tag};
use crate::sealing::SealedPart;

/// Longest wait for a node that is one of many in a view.
const VIEW_MAX: Duration = Duration::from_millis(1_200);

/// Longest wait for small questions.
const ASK_MAX: Duration = Duration::from_secs(3);

/// Longest wait for a chunk to be durable elsewhere: a drive under load, not one that hangs.
const APPEND_MAX: Duration = Duration::from_secs(10);

/// Most bytes of an answer.
const READ_LEN_MAX: usize = 16 << 20;

/// Longest wait for bytes of a chunk.
const READ_MAX: Duration = Duration::from_secs(10);

/// Longest wait for an order: a ring may have to be made or recovered.
const ORDER_MAX: Duration = Duration::from_secs(120);

/// What asks a peer whether it is there; nodes of every release answer it.
pub(crate) fn greeting() -> Greeting {
    let ask = message::encode(&Ask::Done { versions: Vec::new(), hold: 0 });
    Greeting { ask, check: |head| message::decode::<Answer>(head)?.ok().map(drop) }
}

/// A copy of a chunk with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCopy {
    pub holder: HolderRow,
    /// The session that acknowledged it.
    pub session: [u8; 16],
}

fn misfit(node: NodeId) -> StoreError {
    StoreError::new(ErrorKind::Invalid, format!("node {node} gives other bytes than it was asked for"))
}

fn confused(answer: &Answer) -> StoreError {
    StoreError::new(ErrorKind::Invalid, format!("unexpected response type from a peer: {answer:?}"))
}

impl Cell {
    async fn ask(&self, node: NodeId, ask: &Ask, body: Body, deadline: Duration) -> Result<(Answer, Body)> {
        let answer_len = match ask {
            // Of a sealed chunk whole blocks come.
            Ask::Read { len, .. } => (*len as usize + 2 * BLOCK).min(READ_LEN_MAX),
            Ask::ReadStored { .. } => READ_LEN_MAX,
            _ => 0,
        };
        let Some(wire) = self.wire() else { return Err(unreachable(node, "this node is in no cluster")) };
        let (head, body) = wire
            .call(node, message::encode_for(ask, WireWork::of(tag())), body, answer_len, deadline)
            .await?;
        Ok((message::decode::<Answer>(&head)?.ok()?, body))
    }

    /// Sends bytes that the other side drops; returns when it has them all. Nodes of every release take them.
    pub(super) async fn send_in_vain(&self, node: NodeId, bytes: Option<Summed>) -> Result<()> {
        let nothing = Ask::Done { versions: Vec::new(), hold: 0 };
        self.ask(node, &nothing, bytes.map_or(Body::None, Body::Shared), ASK_MAX).await.map(drop)
    }

    /// Keeps a chunk with a peer; durable there when this returns.
    pub(super) async fn append_on(
        &self,
        node: NodeId,
        head: AppendHead,
        seals: Option<Seals>,
        bytes: Summed,
    ) -> Result<PeerCopy> {
        let (version, hold) = (VersionId(head.chunk.0), head.hold);
        let ask = match seals {
            None => Ask::Append(head),
            Some(seals) => Ask::AppendSealed { head, seals },
        };
        let cost = Cost::write((bytes.bytes.len() as u64).min(COST_BYTES_MAX));
        let _permit = admit(&self.links.of(node), tag(), cost).await?;
        // A peer that is suspected in the middle of it is not waited for: there are others.
        let given_up = async {
            loop {
                let mut woken = std::pin::pin!(self.wake.notified());
                woken.as_mut().enable();
                if self.is_suspect(node) {
                    return;
                }
                woken.await;
            }
        };
        let answer = tokio::select! {
            biased;
            answer = self.ask(node, &ask, Body::Shared(bytes), APPEND_MAX) => answer,
            () = given_up => Err(unreachable(node, "it does not answer pings")),
        };
        let answer = answer.inspect_err(|_| self.pending_releases.asked(node, version, hold));
        match answer?.0 {
            Answer::Appended { drive, incarnation, session } => {
                Ok(PeerCopy { holder: HolderRow { node: node.0, drive, incarnation }, session })
            }
            other => Err(confused(&other)),
        }
    }

    /// Bytes of a chunk from a peer.
    pub(super) async fn read_on(
        &self,
        node: NodeId,
        chunk: ChunkId,
        range: std::ops::Range<usize>,
        lake: Option<LakeHead>,
    ) -> Result<(Buf, Option<SealedPart>)> {
        let (offset, len) = (range.start as u32, range.len() as u32);
        let chunk = to_wire(&chunk);
        let ask = |verified| Ask::Read { chunk, offset, len, verified, lake: lake.clone() };
        let permit = admit(&self.links.of(node), tag(), Cost::bytes(range.len() as u64)).await?;
        // A lake that hangs must not stop the way to the node that asks it.
        let _permit = Some(permit).filter(|_| lake.is_none());
        let (buf, sealed) = self.read_by(node, ask).await?;
        let fits = match &sealed {
            None => buf.len() == range.len(),
            Some(sealed) => sealed.covers(&range, buf.len()),
        };
        if fits { Ok((buf, sealed)) } else { Err(misfit(node)) }
    }

    /// A chunk as a peer stores it, and at least so much of it.
    pub(super) async fn read_stored_on(
        &self,
        node: NodeId,
        chunk: ChunkId,
        len: usize,
        may_be_sealed: bool,
    ) -> Result<(Buf, Option<Arc<Seal>>)> {
        // Releases that know no sealed chunks have none, and do not know this question.
        if !may_be_sealed {
            return self.read_on(node, chunk, 0..len, None).await.map(|(buf, _)| (buf, None));
        }
        let (chunk, wanted) = (to_wire(&chunk), len as u32);
        let _permit = admit(&self.links.of(node), tag(), Cost::bytes(u64::from(wanted))).await?;
        let ask = |verified| Ask::ReadStored { chunk, len: wanted, verified };
        match self.read_by(node, ask).await? {
            (buf, None) if buf.len() == len => Ok((buf, None)),
            (buf, Some(sealed)) if buf.len() >= len && sealed.is_whole(buf.len()) => {
                Ok((buf, Some(sealed.into_seal())))
            }
            _ => Err(misfit(node)),
        }
    }

    /// Asks for bytes, and compares them with the sum that they should have.
    async fn read_by(&self, node: NodeId, ask: impl Fn(bool) -> Ask) -> Result<(Buf, Option<SealedPart>)> {
        for verified in [false, true] {
            let (claim, buf, sealed) = match self.ask(node, &ask(verified), Body::None, READ_MAX).await? {
                (Answer::Bytes { claim }, Body::Aligned(buf)) => (claim, buf, None),
                (Answer::Sealed { claim, part }, Body::Aligned(buf)) => (claim, buf, Some(part)),
                (other, _) => return Err(confused(&other)),
            };
            {
                {
                    let sum = || buf.crc32c().unwrap_or_else(|| crc32c(buf.as_slice()));
                    if claim.is_none_or(|claim| claim == sum()) {
                        return Ok((buf, sealed));
                    }
                    // Damaged on its drive or on the way. The peer looks itself this time, and repairs what it finds.
                    tracing::warn!(%node, "bytes of a chunk do not have the sum that they were written with");
                }
            }
        }
        Err(StoreError::new(ErrorKind::Corrupt, format!("node {node} gives bytes that do not fit their sum")))
    }

    /// Makes chunks must-keep with a peer; says which are there.
    pub(super) async fn keep(
        &self,
        node: NodeId,
        chunks: &[(ChunkId, u32)],
        session: [u8; 16],
        hold: u64,
    ) -> Result<(Vec<bool>, Vec<PeerCopy>)> {
        let (mut all, mut copies) = (Vec::with_capacity(chunks.len()), Vec::new());
        for part in chunks.chunks(IDS_MAX) {
            let wanted = part.iter().map(|(chunk, len)| (to_wire(chunk), *len)).collect();
            let ask = Ask::KeepLong { chunks: wanted, session, hold };
            let answer = self.ask(node, &ask, Body::None, ASK_MAX).await;
            let answer = answer.inspect_err(|_| {
                part.iter().for_each(|(chunk, _)| self.pending_releases.asked(node, chunk.version, hold));
            });
            match answer?.0 {
                Answer::Kept { kept, drives, session } if kept.len() == part.len() => {
                    all.extend(kept);
                    for (drive, incarnation) in drives {
                        let copy =
                            PeerCopy { holder: HolderRow { node: node.0, drive, incarnation }, session };
                        if !copies.contains(&copy) {
                            copies.push(copy);
                        }
                    }
                }
                other => return Err(confused(&other)),
            }
        }
        Ok((all, copies))
    }

    /// Which of these versions somebody reads with a peer.
    pub async fn pinned(&self, node: NodeId, versions: &[VersionId]) -> Result<Vec<bool>> {
        let mut all = Vec::with_capacity(versions.len());
        for part in versions.chunks(IDS_MAX) {
            let ask = Ask::Pinned { versions: part.iter().map(|version| version.0).collect() };
            all.extend(self.which(node, &ask, part.len()).await?);
        }
        Ok(all)
    }

    async fn which(&self, node: NodeId, ask: &Ask, len: usize) -> Result<Vec<bool>> {
        match self.ask(node, ask, Body::None, ASK_MAX).await?.0 {
            Answer::Which(which) if which.len() == len => Ok(which),
            other => Err(confused(&other)),
        }
    }

    /// Which of these chunks a peer has.
    pub async fn have(&self, node: NodeId, chunks: &[(ChunkId, u32)]) -> Result<Vec<bool>> {
        let mut all = Vec::with_capacity(chunks.len());
        for part in chunks.chunks(IDS_MAX) {
            let asked = part.iter().map(|(chunk, len)| (to_wire(chunk), *len)).collect();
            all.extend(self.which(node, &Ask::Have { chunks: asked }, part.len()).await?);
        }
        Ok(all)
    }

    /// What the clock of a peer says, milliseconds since 1970. One that has no word for that says nothing.
    pub async fn time_of(&self, node: NodeId) -> Result<u64> {
        match self.ask(node, &Ask::Time, Body::None, ASK_MAX).await?.0 {
            Answer::Time(now_ms) => Ok(now_ms),
            other => Err(confused(&other)),
        }
    }

    /// What a peer holds for jobs, or brings for them.
    pub async fn job_on(&self, node: NodeId, ask: JobAsk) -> Result<JobHolds> {
        let deadline = if matches!(ask, JobAsk::Stage { .. }) { ORDER_MAX } else { ASK_MAX };
        match self.ask(node, &Ask::Job(ask), Body::None, deadline).await?.0 {
            Answer::Job(holds) => Ok(holds),
            other => Err(confused(&other)),
        }
    }

    /// Whether a peer has a request to a lake key under way.
    pub async fn is_busy(&self, node: NodeId, volume: VolumeId, key: &[u8]) -> Result<bool> {
        let ask = Ask::Busy { volume: volume.0, key: key.to_vec() };
        Ok(self.which(node, &ask, 1).await?[0])
    }

    /// Has a node carry out what concerns it alone.
    pub(crate) async fn order_on(&self, node: NodeId, order: Order) -> Result<Report> {
        let deadline = if order.only_reads() { ASK_MAX } else { ORDER_MAX };
        self.order_within(node, order, deadline).await
    }

    /// The same for a view of all nodes, which does not wait for one of them.
    pub(crate) async fn order_soon(&self, node: NodeId, order: Order) -> Result<Report> {
        self.order_within(node, order, VIEW_MAX).await
    }

    async fn order_within(&self, node: NodeId, order: Order, deadline: Duration) -> Result<Report> {
        match self.ask(node, &Ask::Order(order), Body::None, deadline).await?.0 {
            Answer::Report(report) => Ok(*report),
            other => Err(confused(&other)),
        }
    }

    /// Tells peers something that they may miss: it is looked up in the catalog in the end.
    async fn hint(&self, nodes: &[NodeId], ask: &Ask) {
        let told = nodes.iter().map(|node| async move {
            if let Err(fault) = self.ask(*node, ask, Body::None, ASK_MAX).await {
                tracing::debug!(%node, "a hint did not arrive: {fault}");
            }
        });
        futures_util::future::join_all(told).await;
    }

    /// A peer has a copy that the write does without.
    pub(super) fn owe(&self, copy: &PeerCopy, version: VersionId, hold: u64) {
        self.pending_releases.asked(NodeId(copy.holder.node), version, hold);
    }

    /// A write is over, whatever came of it. Who does not hear it is told later.
    pub async fn tell_done(&self, nodes: &[NodeId], versions: &[VersionId], hold: u64) {
        versions.iter().for_each(|version| self.pending_releases.over(*version, hold));
        let told = nodes.iter().map(|node| async move {
            for part in versions.chunks(IDS_MAX) {
                self.tell_done_to(*node, part, hold).await;
            }
        });
        futures_util::future::join_all(told).await;
    }

    async fn tell_done_to(&self, node: NodeId, versions: &[VersionId], hold: u64) -> bool {
        let ids = versions.iter().map(|version| version.0).collect();
        let told = self.ask(node, &Ask::Done { versions: ids, hold }, Body::None, ASK_MAX).await;
        if let Err(fault) = &told {
            tracing::debug!(%node, "the end of a write was not heard: {fault}");
            self.pending_releases.missed(node, versions, hold);
        }
        told.is_ok()
    }

    /// Tells those who missed it that a write is over, as far as they answer. A node that has another session since, or none,
    /// holds nothing of that write.
    pub(super) async fn tell_pending_releases(&self) {
        // As it is at each look: a node may come back while another one is waited for.
        let is_over = |node: NodeId| self.view().session(node).is_none();
        // Who does not answer now is asked again at the next look; others need not wait for that.
        let mut silent: Vec<NodeId> = Vec::new();
        loop {
            let answers = |node| !silent.contains(&node) && !self.is_suspect(node);
            let next = self.pending_releases.take(IDS_MAX, is_over, answers);
            let Some((node, hold, versions)) = next else { return };
            if !self.tell_done_to(node, &versions, hold).await {
                silent.push(node);
            }
        }
    }

    /// Versions may be clean by now.
    pub async fn tell_reconsider(&self, nodes: &[NodeId], versions: &[VersionId]) {
        for part in versions.chunks(IDS_MAX) {
            let versions = part.iter().map(|version| version.0).collect();
            self.hint(nodes, &Ask::Reconsider { versions }).await;
        }
    }

    /// Nothing refers to these chunks.
    pub async fn tell_forget(&self, nodes: &[NodeId], chunks: &[ChunkId]) {
        for part in chunks.chunks(IDS_MAX) {
            self.hint(nodes, &Ask::Forget { chunks: part.iter().map(to_wire).collect() }).await;
        }
    }
}

pub(super) fn chunks_of(chunks: &[message::WireChunk]) -> Vec<ChunkId> {
    chunks.iter().map(from_wire).collect()
}
