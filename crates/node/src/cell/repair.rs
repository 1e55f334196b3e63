//! Loops of a node in a cell: what it holds for others is looked up in the catalog, and what lost a copy is protected again.
//!
//! Also where a node is declared down (`Core::declare`, R12): by a transaction that checks that the declaring node itself is not fenced, that the
//! other one did not start again meanwhile, and that ends its session. Pings only suspect; nothing that loses bytes is done on a suspicion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_catalog::kv::{Check, Commit, Outcome, Range};
use stoker_format::{ChunkId, NodeId, VersionId};
use stoker_schema::rows::{DirtyRow, Drain, NodeRow, NodeState, RowValue, keys};
use stoker_store::{ErrorKind, Result, Spread, StoreError, Subject};

use crate::core::{Core, add, nodes};
use crate::error;
use crate::node::Node;

/// Pause between looks when nothing happens.
const PAUSE: Duration = Duration::from_secs(2);

/// Pause before a transaction about a lost node is tried again.
const DECLARE_PAUSE: Duration = Duration::from_secs(2);

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
            biased;
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

    /// Declares a node down that was silent for the grace period, unless it is back or somebody else did; and again for as long
    /// as it is silent, should it start anew where it reaches the catalog and nobody reaches it. (D56)
    pub async fn give_up(&self, lost: NodeId, grace: Duration) {
        let mut is_sure = false;
        while self.is_suspect(lost) && self.core.check_open().is_ok() {
            let view = self.core.cell.view();
            if view.member(lost).is_none() {
                return;
            }
            if view.is_down(lost) {
                is_sure = false;
                tokio::time::sleep(DECLARE_PAUSE).await;
                continue;
            }
            // Nobody ever reached it, and it holds nothing: there is nothing to make up for, and it would only start again.
            if view.is_unreached(lost) && matches!(self.core.holds_nothing(lost).await, Ok(true)) {
                tokio::time::sleep(DECLARE_PAUSE).await;
                continue;
            }
            // Who hears nobody of several is more likely to be cut off than to have survived them all. Those who hear each
            // other declare it down meanwhile, which ends its session, and with it what it could declare.
            if !std::mem::replace(&mut is_sure, true) && self.core.cell.hears_nobody() {
                tokio::time::sleep(grace.max(DECLARE_PAUSE)).await;
                continue;
            }
            // Datagrams may be lost on a way that carries everything else. Only who answers nothing at all is given up; and it may
            // have been heard while that question went unanswered.
            if !self.is_answered_by(lost).await && self.is_suspect(lost) {
                match self.declare_down(lost, grace).await {
                    Ok(true) => tracing::warn!("node {lost} was silent for too long: declared down"),
                    Ok(false) => {}
                    Err(fault) => {
                        tracing::warn!("node {lost} is silent, and cannot be declared down yet: {fault}");
                    }
                }
            }
            tokio::time::sleep(DECLARE_PAUSE).await;
        }
    }

    /// Announces that this node stops, or that it is back.
    pub async fn announce(&self, leaving: bool) -> Result<bool> {
        let state = if leaving { NodeState::Leaving } else { NodeState::Up };
        self.core.declare(self.core.node, state, Duration::ZERO).await
    }
}

impl Core {
    /// Says in the catalog what became of a node, if it is so long ago that it said something itself. (D40)
    async fn declare(&self, node: NodeId, state: NodeState, silent: Duration) -> Result<bool> {
        let key = keys::node(node);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let unknown =
            || StoreError::about(ErrorKind::NotFound, Subject::Node, format!("there is no node {node}"));
        let row = row.ok_or_else(unknown)?;
        let mut value = NodeRow::of(&row).map_err(error::catalog)?;
        if value.state == state {
            return Ok(false);
        }
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        if now_ms < value.since_ms.saturating_add(silent.as_millis() as u64) {
            return Err(StoreError::new(ErrorKind::Unavailable, format!("node {node} restarted recently")));
        }
        (value.state, value.since_ms) = (state, now_ms);
        let mut change = Commit::new().seq(key.clone(), row.seq).put(key, value.encode_at(self.level.get()));
        // Whoever was away for long thinks that all others were. If they went on without it, its word counts no more.
        change.checks.push(Check::Value(self.session.0.clone(), self.session.1.clone()));
        if state == NodeState::Down {
            change = change.delete(keys::session(node));
        }
        let done = matches!(self.catalog.commit(change).await.map_err(error::catalog)?, Outcome::Done { .. });
        self.load_view().await?;
        Ok(done)
    }

    /// Whether no row says that something which is not in the lake is on a node.
    async fn holds_nothing(&self, node: NodeId) -> Result<bool> {
        let page =
            self.catalog.range(Range::prefix(&keys::dirty_of(node), 1)).await.map_err(error::catalog)?;
        Ok(page.rows.is_empty())
    }

    async fn look_after_cell(self: &Arc<Core>, looks: u64) -> Result<()> {
        let view = self.cell.view();
        for version in self.cell.take_reconsider() {
            self.settle_here(version).await?;
        }
        let ended = self.cell.remote_holds.end_sessions(|home, session| {
            // A home that is not known yet is not over.
            (view.member(home).is_some() || view.is_removed(home)) && view.session(home) != Some(session)
        });
        self.cell.tell_pending_releases().await;
        if ended || looks % INVENTORY_EVERY == INVENTORY_EVERY - 1 {
            self.take_inventory().await?;
        }
        self.rebuild().await?;
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
            let wanted = self.class(&volume).copies();
            if first.file.source.is_none() && nodes(&first.file.holders) < wanted {
                self.raise(version, set).await?;
                add(&self.cell.stats.repaired, 1);
            }
        }
        *self.cell.raised_for.lock().unwrap() = takers;
        Ok(())
    }

    /// Rows of this node that say undrained although all names are clean, or none is left. Whoever drains the last name of a
    /// version knows the holders of that name; others may have held it for a name that was copied from or replaced.
    async fn tidy_rows(self: &Arc<Core>) -> Result<()> {
        let mut versions: BTreeMap<VersionId, Vec<Vec<u8>>> = BTreeMap::new();
        self.each(keys::dirty_of(self.node), |row| {
            if let Some(version) = keys::dirty_version(&row.key) {
                versions.entry(version).or_default().push(row.key.to_vec());
            }
            Ok(())
        })
        .await?;
        for (version, rows) in versions {
            let names = self.names_of(version).await?;
            if names.is_empty() {
                self.forget_rows(version, &rows).await?;
            } else if names.iter().all(|located| located.file.drain == Drain::Clean) {
                self.settle_version(version).await?;
            }
        }
        Ok(())
    }

    /// What is dirty here, but neither in use nor needed by any row, may go (R7, R8).
    async fn take_inventory(self: &Arc<Core>) -> Result<()> {
        self.tidy_rows().await?;
        let in_use = |version: VersionId| self.cell.remote_holds.has(version) || self.pins.is_pinned(version);
        // In order: what a drive is told first decides what its log looks like, and a simulation tells two orders apart.
        let mut found: BTreeSet<ChunkId> = BTreeSet::new();
        for drive in self.rings.drives() {
            found.extend(drive.ring.dirty().iter().map(|record| record.chunk));
        }
        found.retain(|chunk| !in_use(chunk.version));
        if found.is_empty() {
            return Ok(());
        }
        let must_keep = self.must_keep_versions().await?;
        let _marks = self.marks.write().await;
        found.retain(|chunk| !must_keep.contains(&chunk.version) && !in_use(chunk.version));
        self.rings.mark_clean(found.into_iter().collect()).await
    }
}
