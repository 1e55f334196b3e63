//! Loops of a node in a cell: what it holds for others is looked up in the catalog, and what a lost node held is protected
//! again and drained first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome, Write};
use stoker_catalog::names::{Located, dirty_writes};
use stoker_catalog::rows::{DirtyRow, Drain, EntryRow, HolderRow, NodeRow, NodeState, RowValue, keys};
use stoker_format::{ChunkId, NodeId, VersionId};
use stoker_store::{ErrorKind, Result, Spread, StoreError};

use crate::core::{Core, add, copies};
use crate::node::Node;
use crate::{error, rings};

/// Pause between looks when nothing happens.
const PAUSE: Duration = Duration::from_secs(2);

/// Every so many looks everything that is held for others is compared with the catalog.
const INVENTORY_EVERY: u64 = 150;

/// Runs until the node closes.
pub(crate) async fn run(core: Arc<Core>) {
    let mut looks = 0u64;
    while !core.closing.load(Ordering::Relaxed) {
        let mut woken = std::pin::pin!(core.cell.wake.notified());
        woken.as_mut().enable();
        if let Err(fault) = core.look_after_cell(looks).await {
            tracing::warn!("looking after the cell: {fault}");
        }
        looks += 1;
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

impl Node {
    /// Declares that a node is gone, by a transaction (R12): its session is over, and what it alone held is protected
    /// again. True if this call did it. Refused as long as it was not silent for `silent`: it may have started again, and pings
    /// tell so later than the catalog does.
    pub async fn declare_down(&self, node: NodeId, silent: Duration) -> Result<bool> {
        self.core.declare(node, NodeState::Down, silent).await
    }

    /// Announces that this node stops, or that it is back.
    pub async fn announce(&self, leaving: bool) -> Result<bool> {
        let state = if leaving { NodeState::Leaving } else { NodeState::Up };
        self.core.declare(self.core.node, state, Duration::ZERO).await
    }
}

impl Core {
    async fn declare(&self, node: NodeId, state: NodeState, silent: Duration) -> Result<bool> {
        let key = keys::node(node);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let unknown = || StoreError::new(ErrorKind::NotFound, format!("there is no node {node}"));
        let row = row.ok_or_else(unknown)?;
        let mut value = NodeRow::of(&row).map_err(error::catalog)?;
        if value.state == state {
            return Ok(false);
        }
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        if now_ms < value.since_ms.saturating_add(silent.as_millis() as u64) {
            return Err(StoreError::new(ErrorKind::Unavailable, format!("node {node} came a moment ago")));
        }
        (value.state, value.since_ms) = (state, now_ms);
        let mut change = Commit::new().seq(key.clone(), row.seq).put(key, value.encode());
        // Whoever was away for long thinks that all others were. If they went on without it, its word counts no more.
        change.checks.push(Check::Value(self.session.0.clone(), self.session.1.clone()));
        if state == NodeState::Down {
            change = change.delete(keys::session(node));
        }
        let done = matches!(self.catalog.commit(change).await.map_err(error::catalog)?, Outcome::Done { .. });
        self.load_view().await?;
        Ok(done)
    }

    async fn look_after_cell(self: &Arc<Core>, looks: u64) -> Result<()> {
        let view = self.cell.view();
        for version in self.cell.take_reconsider() {
            self.settle_here(version).await?;
        }
        let ended = self.cell.guests.end_sessions(|home, session| {
            // A home that is not known yet is not over.
            view.member(home).is_some() && view.session(home) != Some(session)
        });
        if ended || looks % INVENTORY_EVERY == INVENTORY_EVERY - 1 {
            self.take_inventory().await?;
        }
        for lost in view.down() {
            if lost != self.node {
                self.repair_after(lost).await?;
            }
        }
        self.raise_copies().await
    }

    /// Files that were written while there were too few nodes for their class get their copies as soon as there are enough.
    async fn raise_copies(self: &Arc<Core>) -> Result<()> {
        let takers: Vec<NodeId> =
            self.cell.takers(ChunkId::new(VersionId::ZERO, 0), Spread::Node, &[self.node], &[]);
        if takers.is_empty() || *self.cell.raised_for.lock().unwrap() == takers {
            return Ok(());
        }
        let mut versions = std::collections::BTreeSet::new();
        self.each(keys::dirty_of(self.node), |row| {
            let dirty = DirtyRow::of(row).map_err(error::catalog)?;
            let version = keys::dirty_version(&row.key).filter(|_| dirty.home == self.node.0);
            versions.extend(version.map(|version| (version, dirty.set)));
            Ok(())
        })
        .await?;
        for (version, set) in versions {
            let names = self.names_of(version).await?;
            let Some(first) = names.first() else { continue };
            let Some(volume) = self.volumes.by_id(first.spot.volume).await? else { continue };
            let wanted = self.class(&volume).copies() as u32;
            if first.file.source.is_none() && copies(&first.file.holders) < wanted {
                self.repair(NodeId::ZERO, version, set, &[]).await?;
                add(&self.cell.stats.repaired, 1);
            }
        }
        *self.cell.raised_for.lock().unwrap() = takers;
        Ok(())
    }

    /// What is dirty here, but neither in use nor needed by any row, may go (R7, R8).
    async fn take_inventory(self: &Arc<Core>) -> Result<()> {
        let in_use = |version: VersionId| self.cell.guests.has(version) || self.pins.is_pinned(version);
        let mut found: HashSet<ChunkId> = HashSet::new();
        for drive in self.rings.drives() {
            found.extend(drive.ring.dirty().iter().map(|record| record.chunk));
        }
        found.retain(|chunk| !in_use(chunk.version));
        if found.is_empty() {
            return Ok(());
        }
        let precious = self.precious().await?;
        let _marks = self.marks.write().await;
        found.retain(|chunk| !precious.contains(&chunk.version) && !in_use(chunk.version));
        self.rings.mark_clean(found.into_iter().collect()).await
    }

    /// Versions that a lost node held and that are not safe yet.
    async fn repair_after(self: &Arc<Core>, lost: NodeId) -> Result<()> {
        let mut versions: BTreeMap<VersionId, (Option<u64>, Vec<Vec<u8>>)> = BTreeMap::new();
        self.each(keys::dirty_of(lost), |row| {
            if let Some(version) = keys::dirty_version(&row.key) {
                let (set, rows) = versions.entry(version).or_default();
                *set = DirtyRow::of(row).map_err(error::catalog)?.set;
                rows.push(row.key.to_vec());
            }
            Ok(())
        })
        .await?;
        let mut trouble = None;
        for (version, (set, rows)) in versions {
            if !self.cell.is_heir(lost, version) || self.closing.load(Ordering::Relaxed) {
                continue;
            }
            match self.repair(lost, version, set, &rows).await {
                Ok(()) => add(&self.cell.stats.repaired, 1),
                Err(fault) => trouble = Some(fault),
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Protects one version again, and takes its drain over if the lost node owed it.
    /// `set` is the checkpoint set that it was written for.
    async fn repair(
        self: &Arc<Core>,
        lost: NodeId,
        version: VersionId,
        set: Option<u64>,
        rows: &[Vec<u8>],
    ) -> Result<()> {
        let names = self.names_of(version).await?;
        let Some(first) = names.first() else {
            return self.forget_rows(version, rows).await;
        };
        let file = &first.file;
        let Some(volume) = self.volumes.by_id(first.spot.volume).await? else { return Ok(()) };
        let runs = self.names.runs(file).await.map_err(error::catalog)?;
        let chunks: Vec<(ChunkId, u32)> = rings::chunks(&runs).collect();
        let sources: Vec<NodeId> = file.holders.iter().map(|holder| NodeId(holder.node)).collect();
        let _marks = self.marks.read().await;
        // Bytes that the lake has need no protection.
        let protected = match file.source.is_some() || chunks.is_empty() {
            true => None,
            false => Some(self.protect(&volume, &chunks, &sources).await?),
        };
        let (fresh, sessions) = match &protected {
            Some(protected) => (protected.holders(), protected.sessions()),
            None => (self.rings.holders([0]), Vec::new()),
        };
        let checks = self.holder_checks(&fresh, &sessions).await?;
        self.note_repair(lost, rows, names, set, &fresh, checks).await
    }

    async fn note_repair(
        self: &Arc<Core>,
        lost: NodeId,
        rows: &[Vec<u8>],
        names: Vec<Located>,
        set: Option<u64>,
        fresh: &[HolderRow],
        checks: Vec<Check>,
    ) -> Result<()> {
        let mut change = Commit { checks, writes: Vec::new() };
        change.checks.push(Check::Value(self.session.0.clone(), self.session.1.clone()));
        change.writes.extend(rows.iter().cloned().map(Write::Delete));
        let mut changed = Vec::new();
        for located in names {
            let mut file = located.file.clone();
            file.holders.retain(|holder| holder.node != lost.0);
            for holder in fresh {
                if !file.holders.contains(holder) {
                    file.holders.push(holder.clone());
                }
            }
            if file.home == lost.0 {
                file.home = self.node.0;
            }
            let key = located.spot.row_key();
            change.checks.push(Check::Seq(key.clone(), located.seq));
            change.writes.push(Write::Put(key, EntryRow::File(Box::new(file.clone())).encode()));
            if file.drain != Drain::Clean {
                dirty_writes(&mut change, located.spot.volume, &file, set);
            }
            changed.push(file);
        }
        if let Outcome::Failed { .. } = self.catalog.commit(change).await.map_err(error::catalog)? {
            // Somebody changed a name meanwhile; the next look sees what is left to do.
            return Ok(());
        }
        for file in changed.iter().filter(|file| file.drain == Drain::Dirty && file.home == self.node.0) {
            self.drainer.take_over(file);
        }
        Ok(())
    }

    /// Rows of a version that nothing refers to.
    async fn forget_rows(&self, version: VersionId, rows: &[Vec<u8>]) -> Result<()> {
        let all = keys::references(version);
        let end = stoker_catalog::kv::prefix_end(&all).expect("a table is not 0xff");
        let mut change = Commit::new().at_most(all, end, 0);
        change.writes.extend(rows.iter().cloned().map(Write::Delete));
        let _ = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(())
    }
}
