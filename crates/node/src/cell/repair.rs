//! Loops of a node in a cell: what it holds for others is looked up in the catalog, and what lost a copy is protected again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_format::{ChunkId, NodeId, VersionId};
use stoker_qos::{Class, Tag};
use stoker_schema::rows::{DirtyRow, Drain, RowValue, keys};
use stoker_store::{Result, Spread};

use crate::admission::working;
use crate::core::{Core, add, nodes};
use crate::error;

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
        if let Err(fault) = working(Tag::of(Class::Repair), core.look_after_cell(looks)).await {
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

impl Core {
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
