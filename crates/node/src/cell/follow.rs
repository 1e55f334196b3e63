//! Keeps what this node knows of the cluster fresh: its members, its volumes, and the level.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoker_schema::rows::{keys, tier_keys};

use crate::core::Core;

/// Pause after a catalog could not be read.
const FAILURE_PAUSE: Duration = Duration::from_millis(200);

impl Core {
    /// Keeps the view fresh until the node closes.
    pub async fn follow_cluster(self: Arc<Core>) {
        let lakes = tier_keys::LAKES;
        let mut watches = [&b"M"[..], b"S", b"D", b"V", keys::UNREACHED, keys::REMOVED, keys::LEVEL, lakes]
            .map(|table| self.catalog.watch(table.to_vec()));
        while !self.closing.load(Ordering::Relaxed) {
            let mut is_well = true;
            if let Err(fault) = self.cell.load_view().await {
                tracing::warn!("reading the nodes of the cluster: {fault}");
                is_well = false;
            }
            if let Err(fault) = self.volumes.refresh().await {
                tracing::warn!("reading the volumes: {fault}");
                is_well = false;
            }
            if let Err(fault) = self.cell.raise_level().await {
                tracing::warn!("the level of the cluster: {fault}");
                is_well = false;
            }
            if !is_well {
                // A catalog that fails wakes its watchers all the time.
                tokio::time::sleep(FAILURE_PAUSE).await;
            }
            let [nodes, sessions, drives, volumes, unreached, removed, level, lakes] = &mut watches;
            tokio::select! {
                biased;
                changed = nodes.changed() => if changed.is_err() { return },
                changed = sessions.changed() => if changed.is_err() { return },
                changed = drives.changed() => if changed.is_err() { return },
                changed = volumes.changed() => if changed.is_err() { return },
                changed = unreached.changed() => if changed.is_err() { return },
                changed = removed.changed() => if changed.is_err() { return },
                changed = level.changed() => if changed.is_err() { return },
                changed = lakes.changed() => if changed.is_err() { return },
                // A watch that was lost somewhere costs a moment, not the truth.
                () = tokio::time::sleep(Duration::from_secs(5)) => {}
            }
        }
    }
}
