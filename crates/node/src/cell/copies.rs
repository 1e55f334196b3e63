//! Commit: a chunk goes to a drive here and to peers at the same time, and counts when all of them have it.
//!
//! ```text
//!            +-> ring of this node, durable --+
//! chunk  ----+                                +--> Copied: who has it, in which session
//!            +-> peer: ring, durable ---------+
//! ```
//!
//! - Peers are chosen by rendezvous hashing over the members that take writes; neighbouring chunks (a stripe) have the same, so that a
//!   file has few holders. One that refuses or does not answer in time is replaced by the next in the order.
//! - A copy counts only in the session in which it was acknowledged. The publish checks the sessions of all holders, so a peer that
//!   restarted in between, or was declared down, makes the write choose again instead of being believed.
//! - Too few peers: the class and `when_alone` of the volume decide whether the write waits, fails or goes on with fewer copies, and the
//!   receipt says which ([`Copies::is_alone`]).
//! - Holders keep the bytes until the home says that the write is over, or is fenced ([`super::remote_holds`],
//!   [`super::pending_releases`]; R7): from then on the catalog says what must be kept.
//!
//! Cost: no copy of the bytes in memory for each peer, one flush on each drive that others share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use stoker_catalog::kv::Check;
use stoker_format::{ChunkId, NodeId, Seal, VersionId};
use stoker_ring::{Put, Retention};
use stoker_schema::rows::HolderRow;
use stoker_store::{Class, ErrorKind, Result, StoreError, Subject, WhenAlone};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::Summed;
use super::message::{AppendHead, Seals, to_wire};
use super::peers::PeerCopy;
use crate::TRACE;
use crate::core::{Core, add};
use crate::publish::outdated;
use crate::rings::{NAME_INDEX, Rings};
use crate::volumes::Volume;

/// Neighbouring chunks that have their copies with the same peers, so that a file has few holders. (D33)
const STRIPE: u32 = 16;

/// How long a write waits for nodes that are away and not given up yet.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it looks.
const PATIENCE_STEP: Duration = Duration::from_millis(50);

/// Longest name record that travels with its chunk; a longer one goes on its own.
const NAME_LEN_MAX: usize = 32 << 10;

/// Where a chunk landed.
#[derive(Debug)]
pub(crate) struct Copied {
    pub drive: usize,
    pub peers: Vec<PeerCopy>,
    /// Too few nodes could take it.
    pub is_alone: bool,
}

impl Copied {
    /// On a drive here, and that is all it needs.
    pub fn here(drive: usize) -> Copied {
        Copied { drive, peers: Vec::new(), is_alone: false }
    }
}

/// Where the chunks of a write landed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Copies {
    drives: BTreeSet<usize>,
    peers: Vec<PeerCopy>,
    is_alone: bool,
}

impl Copies {
    pub fn add(&mut self, copied: Copied) {
        self.drives.insert(copied.drive);
        self.is_alone |= copied.is_alone;
        self.add_peers(copied.peers);
    }

    pub fn add_peers(&mut self, peers: Vec<PeerCopy>) {
        for copy in peers {
            if !self.peers.contains(&copy) {
                self.peers.push(copy);
            }
        }
    }

    /// Whether some of it is on fewer nodes than its class says.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Every drive that has some of it.
    pub fn holders(&self, rings: &Rings) -> Vec<HolderRow> {
        let mut holders = rings.holders(self.drives.iter().copied());
        for copy in &self.peers {
            if !holders.contains(&copy.holder) {
                holders.push(copy.holder.clone());
            }
        }
        holders
    }

    /// Peers, each with the session that acknowledged.
    pub fn sessions(&self) -> Vec<(NodeId, [u8; 16])> {
        let mut sessions: Vec<_> =
            self.peers.iter().map(|copy| (NodeId(copy.holder.node), copy.session)).collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions
    }

    /// Peers that have some of it.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.peers.iter().map(|copy| NodeId(copy.holder.node)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Bytes on their way to peers.
#[derive(Clone)]
pub(super) struct Parcel {
    pub chunk: ChunkId,
    /// They never drain.
    pub never: bool,
    pub bytes: Summed,
    /// What opens them, if they are sealed.
    pub seal: Option<Arc<Seal>>,
    /// The name record that goes with them.
    pub name: Option<(Bytes, Option<Arc<Seal>>)>,
    /// The use that the peers keep them for.
    pub hold: u64,
}

/// The id by which peers of a chunk are chosen.
pub(super) fn place_of(chunk: ChunkId) -> ChunkId {
    ChunkId::new(chunk.version, chunk.index / STRIPE)
}

/// The error for a copy that does not count any more.
fn holders_lost() -> StoreError {
    let message = "a node that took a copy is gone: the bytes have to be copied again";
    StoreError::about(ErrorKind::Unavailable, Subject::Holders, message)
}

/// Whether it failed because of that.
pub(crate) fn is_holders_lost(fault: &StoreError) -> bool {
    (fault.kind, fault.subject) == (ErrorKind::Unavailable, Subject::Holders)
}

impl Core {
    /// How a volume commits at present.
    pub fn class(&self, volume: &Volume) -> Class {
        let nodes = if self.cell.is_joined() { self.cell.view().counting(self.node) } else { 1 };
        volume.policy.class.in_cluster(nodes)
    }

    /// Commits records of one version: the first is a chunk (or a name record alone), a second one its name record.
    /// Without enough nodes this fails, or says so, as `when_alone` wants it.
    pub async fn commit_records(
        self: &Arc<Core>,
        volume: &Volume,
        mut puts: Vec<Put>,
        when_alone: WhenAlone,
    ) -> Result<Copied> {
        self.check_no_witness()?;
        // Once, before the bytes go anywhere: all copies are the same ciphertext.
        self.vault.seal(&mut puts)?;
        let chunk = puts[0].chunk;
        let need = self.class(volume).copies() - 1;
        let append = tracing::debug_span!(target: TRACE, "local append");
        if need == 0 {
            return self.rings.append_any(puts).instrument(append).await.map(Copied::here);
        }
        let copies = tracing::debug_span!(target: TRACE, "peer copies", copies = need);
        // Once for the drive here and for the way to the peer.
        puts[0].payload.sum();
        let crc = puts[0].payload.crc32c();
        let bytes = Summed { bytes: Bytes::from_owner(puts[0].payload.lend()), crc, is_claimed: false };
        let never = puts[0].retention == Retention::Never;
        let seal = puts[0].seal.clone();
        let mut name = puts.get_mut(1).map(|put| (Bytes::from_owner(put.payload.lend()), put.seal.clone()));
        // The tags of its chunk need room beside it.
        let name_max = if seal.is_some() { NAME_LEN_MAX / 4 } else { NAME_LEN_MAX };
        let long = name.take_if(|(name, _)| name.len() > name_max);
        let record = ChunkId::new(chunk.version, NAME_INDEX);
        let (local, peers, records) = tokio::join!(
            self.rings.append_any(puts).instrument(append),
            self.copy_patiently(
                volume,
                Parcel { chunk, never, bytes, seal, name, hold: 0 },
                need,
                when_alone
            )
            .instrument(copies),
            async {
                let Some((bytes, seal)) = long else { return Ok(Vec::new()) };
                let bytes = Summed { bytes, crc: None, is_claimed: false };
                let parcel = Parcel { chunk: record, never, bytes, seal, name: None, hold: 0 };
                self.copy_patiently(volume, parcel, need, when_alone).await
            },
        );
        let at = match local {
            Ok(at) => at,
            Err(fault) => {
                let held = [peers, records].into_iter().flatten().flatten();
                held.for_each(|copy| self.cell.owe(&copy, chunk.version, 0));
                return Err(fault);
            }
        };
        let copied = peers.and_then(|mut peers| {
            match records {
                Ok(records) => peers.extend(records),
                Err(fault) => {
                    peers.iter().for_each(|copy| self.cell.owe(copy, chunk.version, 0));
                    return Err(fault);
                }
            }
            Ok(Copied { peers, ..Copied::here(at) })
        });
        match copied {
            Err(fault) if when_alone == WhenAlone::Lake => {
                tracing::debug!(%chunk, "too few nodes, so the lake has to have it: {fault}");
                Ok(Copied { is_alone: true, ..Copied::here(at) })
            }
            copied => copied,
        }
    }

    /// Copies bytes to as many peers. Where too few take them now, but others may be back in a moment, those are waited for:
    /// clients try again a few times within less than a second, and give up.
    async fn copy_patiently(
        self: &Arc<Core>,
        volume: &Volume,
        parcel: Parcel,
        need: usize,
        when_alone: WhenAlone,
    ) -> Result<Vec<PeerCopy>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let copied = self.copy_to_peers(volume, parcel.clone(), need, &[]).await;
            let may_wait = when_alone == WhenAlone::Refuse
                && Instant::now() < end
                && matches!(&copied, Err(fault) if fault.kind == ErrorKind::Unavailable)
                && self.cell.may_take(place_of(parcel.chunk), volume.policy.spread, &[self.node]) >= need;
            if !may_wait {
                return copied;
            }
            tokio::time::sleep(PATIENCE_STEP).await;
        }
    }

    /// Copies bytes to as many peers beside those that have them; one that fails is replaced by the next.
    pub(super) async fn copy_to_peers(
        self: &Arc<Core>,
        volume: &Volume,
        parcel: Parcel,
        need: usize,
        has: &[NodeId],
    ) -> Result<Vec<PeerCopy>> {
        let Parcel { chunk, never, bytes, seal, name, hold } = parcel;
        let seals = Seals::of(seal.as_deref(), name.as_ref().and_then(|(_, seal)| seal.as_deref()));
        let head = AppendHead {
            chunk: to_wire(&chunk),
            volume: volume.id.0,
            never,
            session: self.session_id,
            hold,
            name: name.map(|(name, _)| name.to_vec()),
        };
        let mut taken = [&[self.node], has].concat();
        let mut failed: Vec<NodeId> = Vec::new();
        let mut why: Option<StoreError> = None;
        let (mut copies, mut running) = (Vec::new(), FuturesUnordered::new());
        loop {
            while copies.len() + running.len() < need {
                let next = self.cell.takers(place_of(chunk), volume.policy.spread, &taken, &failed);
                let Some(node) = next.first().copied() else { break };
                taken.push(node);
                let (head, seals, bytes) = (head.clone(), seals.clone(), bytes.clone());
                let begun = Instant::now();
                running
                    .push(async move { (node, begun, self.cell.append_on(node, head, seals, bytes).await) });
            }
            match running.next().await {
                Some((node, begun, Ok(copy))) => {
                    let takes = self.cell.stats.takes_of(node);
                    takes.times.note(begun.elapsed());
                    add(&takes.bytes, bytes.bytes.len() as u64);
                    add(&self.cell.stats.copies, 1);
                    add(&self.cell.stats.copy_bytes, bytes.bytes.len() as u64);
                    copies.push(copy);
                    if copies.len() == need {
                        return Ok(copies);
                    }
                }
                Some((node, _, Err(fault))) => {
                    tracing::debug!(%chunk, %node, "no copy there: {fault}");
                    add(&self.cell.stats.takes_of(node).bad, 1);
                    add(&self.cell.stats.copy_retries, 1);
                    taken.retain(|other| *other != node);
                    failed.push(node);
                    why = Some(fault);
                }
                None => {
                    // Those who have it do not count, and have to hear that.
                    copies.iter().for_each(|copy| self.cell.owe(copy, chunk.version, hold));
                    return Err(self.too_few(volume, taken.len(), need + has.len() + 1, why));
                }
            }
        }
    }

    /// The error of a write that finds too few nodes.
    fn too_few(&self, volume: &Volume, found: usize, need: usize, why: Option<StoreError>) -> StoreError {
        if let Some(full) = why.as_ref().filter(|fault| fault.kind == ErrorKind::Full) {
            return full.clone();
        }
        let reason = why.map_or(String::new(), |fault| format!(" ({fault})"));
        let message = format!(
            "volume `{}` commits to {need} nodes (class {}), and only {found} can take this now{reason}; try again, or see \
             `stoker status`",
            volume.name,
            self.class(volume).as_str(),
        );
        StoreError::about(ErrorKind::Unavailable, Subject::Volume, message)
    }

    /// Checks for a publish: every holder's drive is live at the incarnation that acknowledged, and peers that hold bytes
    /// which no row refers to yet did not restart since (R6, R7).
    pub async fn holder_checks(
        &self,
        holders: &[HolderRow],
        fresh: &[(NodeId, [u8; 16])],
    ) -> Result<Vec<Check>> {
        let (here, there): (Vec<HolderRow>, Vec<HolderRow>) =
            holders.iter().cloned().partition(|holder| holder.node == self.node.0);
        let mut checks = self.rings.guards(&here).ok_or_else(holders_lost)?;
        if there.is_empty() && fresh.is_empty() {
            return Ok(checks);
        }
        let judge = |view: &super::View| -> Option<Vec<Check>> {
            let drives = there.iter().map(|holder| view.drive_check(holder));
            let sessions = fresh.iter().map(|(node, session)| view.session_check(*node, *session));
            drives.chain(sessions).collect()
        };
        let more = match judge(&self.cell.view()) {
            Some(more) => Some(more),
            None => judge(self.cell.load_view().await?.as_ref()),
        };
        checks.extend(more.ok_or_else(holders_lost)?);
        Ok(checks)
    }

    /// Why a transaction failed although its checks looked true here: a holder is gone, which this node had not heard of, or
    /// what it was made of changed.
    pub async fn why_refused(
        &self,
        holders: &[HolderRow],
        fresh: &[(NodeId, [u8; 16])],
        has_sources: bool,
    ) -> StoreError {
        if let Err(fault) = self.cell.load_view().await {
            return fault;
        }
        match self.holder_checks(holders, fresh).await {
            Err(fault) => fault,
            Ok(_) if has_sources => outdated(),
            // Nothing else was checked, so it was a holder, and it is back.
            Ok(_) => holders_lost(),
        }
    }

    /// Tells peers in the background that a write is over.
    pub fn end_holds(self: &Arc<Core>, nodes: Vec<NodeId>, versions: Vec<VersionId>, hold: u64) {
        if versions.is_empty() || !self.cell.is_joined() {
            return;
        }
        let core = self.clone();
        self.tasks.spawn(async move { core.cell.tell_done(&nodes, &versions, hold).await });
    }
}
