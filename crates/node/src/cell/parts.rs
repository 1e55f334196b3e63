//! Protects parts of unfinished uploads again: a part that was acknowledged survives as the class of its volume says, like a file.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use stoker_catalog::kv::{Check, Outcome};
use stoker_format::{ChunkId, ChunkRun, DriveId, NodeId, VersionId, VolumeId};
use stoker_schema::rows::{HolderRow, PartRow, RowValue, keys};
use stoker_store::Result;

use super::rebuild::{Loss, Task};
use crate::core::Core;
use crate::{clock, error, rings};

/// Where the row of a part is, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct PartPlace {
    key: Vec<u8>,
    volume: VolumeId,
}

impl Core {
    /// Parts that lost a copy and that this node is to protect.
    pub(super) async fn part_tasks(&self, losses: &[Loss]) -> Result<Vec<Task>> {
        if losses.is_empty() {
            return Ok(Vec::new());
        }
        let mut volumes: HashMap<VersionId, VolumeId> = HashMap::new();
        self.each(keys::UPLOADS.to_vec(), |row| {
            if let (Some((_, upload)), Some(volume)) =
                (keys::upload_parts(&row.key), keys::volume_part(&row.key))
            {
                volumes.insert(upload, volume);
            }
            Ok(())
        })
        .await?;
        let (mut tasks, now_ms, view) = (Vec::new(), clock::now_ms(), self.cell.view());
        self.each(keys::PARTS.to_vec(), |row| {
            let Some(volume) = keys::part_upload(&row.key).and_then(|upload| volumes.get(&upload)) else {
                return Ok(());
            };
            let part = PartRow::of(row).map_err(error::catalog)?;
            let version = VersionId(part.version);
            let place = |holder: &HolderRow| (NodeId(holder.node), DriveId(holder.drive));
            let is_hit = |loss: &&Loss| {
                part.holders.iter().map(place).any(|(node, drive)| loss.has(node, drive))
                    && self.is_heir_of(**loss, version)
            };
            // One loss at a time: the next look sees what the first repair left.
            let Some(loss) = losses.iter().find(is_hit) else { return Ok(()) };
            if !self.cell.rebuilder.is_due(version, now_ms) {
                return Ok(());
            }
            let readable =
                part.holders.iter().map(place).filter(|(node, drive)| self.is_readable(&view, *node, *drive));
            tasks.push(Task {
                loss: *loss,
                version,
                set: None,
                bytes: part.size,
                since_ms: part.modified_ms,
                rows: Vec::new(),
                copies: readable.map(|(node, _)| node).collect::<BTreeSet<_>>().len(),
                part: Some(PartPlace { key: row.key.to_vec(), volume: *volume }),
            });
            Ok(())
        })
        .await?;
        Ok(tasks)
    }

    /// Protects one part again. False if it is to be looked at again.
    pub(super) async fn repair_part(self: &Arc<Core>, task: &Task, place: &PartPlace) -> Result<bool> {
        let row = self.catalog.get(&[&place.key]).await.map_err(error::catalog)?.pop().flatten();
        let Some(row) = row else { return Ok(false) };
        let mut part = PartRow::of(&row).map_err(error::catalog)?;
        let Some(volume) = self.volumes.by_id(place.volume).await? else { return Ok(false) };
        if VersionId(part.version) != task.version {
            return Ok(false);
        }
        let runs: Vec<ChunkRun> = part.runs.iter().map(|run| run.at(0)).collect();
        let chunks: Vec<(ChunkId, u32)> = rings::chunks(&runs).collect();
        let sources: Vec<NodeId> = part.holders.iter().map(|holder| NodeId(holder.node)).collect();
        let _marks = self.marks.read().await;
        let protected = self.protect_after(task.loss, &volume, &chunks, &sources).await?;
        let fresh = protected.holders();
        part.holders.retain(|holder| !task.loss.has(NodeId(holder.node), DriveId(holder.drive)));
        for holder in &fresh {
            if !part.holders.contains(holder) {
                part.holders.push(holder.clone());
            }
        }
        let mut change = stoker_catalog::kv::Commit::new()
            .seq(place.key.clone(), row.seq)
            .put(place.key.clone(), part.encode())
            .delete(keys::repair(task.version));
        change.checks.extend(self.holder_checks(&fresh, &protected.sessions()).await?);
        change.checks.push(Check::Value(self.session.0.clone(), self.session.1.clone()));
        let done = self.catalog.commit(change).await.map_err(error::catalog)?;
        Ok(matches!(done, Outcome::Done { .. }))
    }
}
