//! The one listing of an owned lake: what was there before us becomes part of the catalog.

use std::sync::Arc;

use stoker_catalog::kv::{Commit, Outcome};
use stoker_catalog::names::{Plan, Refusal};
use stoker_catalog::rows::{ImportRow, RowValue, keys};
use stoker_store::{LakeMode, Result};

use crate::core::Core;
use crate::error;
use crate::lookup::lake_row;

/// Objects taken over in one round.
const ROUND: usize = 1_000;

impl Core {
    /// Takes a bounded number of objects into the catalog.
    pub(super) async fn import_round(self: &Arc<Core>) -> Result<()> {
        for volume in self.volumes.all().await? {
            if volume.policy.lake_mode != LakeMode::Owned || !volume.asks_lake() {
                continue;
            }
            let row_key = keys::import(volume.id);
            let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let import =
                row.as_ref().map(ImportRow::of).transpose().map_err(error::catalog)?.unwrap_or_default();
            if import.done {
                volume.set_imported();
                continue;
            }
            let Some(lake) = volume.lake(self.volumes.lakes()).await? else { continue };
            let page = lake.list(b"", import.after.as_deref(), None, ROUND).await.map_err(error::lake)?;
            let guards = self.guards(&volume, &[]);
            for object in &page.objects {
                if self.tombstone(&volume, &object.key).await?.is_some() {
                    continue;
                }
                // Listings carry no metadata: content type and owner are asked for each object.
                let Some(object) = lake.head(&object.key).await.map_err(error::lake)? else { continue };
                let file = lake_row(&volume, self.chunk_bytes, &object)?;
                let taken = self.names.publish(volume.id, &object.key, &guards, |present| {
                    let (file, present) = (file.clone(), present.is_some());
                    Box::pin(
                        async move { if present { Err(Refusal::Exists) } else { Ok(Plan::simple(file)) } },
                    )
                });
                match taken.await {
                    Ok(taken) => self.saw(taken.seq),
                    Err(Refusal::Exists) => {}
                    Err(other) => return Err(error::refusal(other)),
                }
            }
            let after = page.next.clone().or_else(|| page.objects.last().map(|object| object.key.clone()));
            let next = ImportRow { after, done: page.next.is_none() };
            let commit = Commit::new().unchanged(row_key.clone(), row.as_ref()).put(row_key, next.encode());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                if next.done {
                    volume.set_imported();
                    tracing::info!(volume = volume.name, "the lake is listed: the catalog is the truth now");
                } else {
                    self.drainer.wake();
                }
            }
        }
        Ok(())
    }
}
