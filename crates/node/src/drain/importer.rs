//! The one listing of an owned lake: what was there before us becomes part of the catalog.

use std::sync::Arc;

use futures_util::StreamExt;
use stoker_catalog::kv::{Check, Commit, Outcome};
use stoker_format::past_parts;
use stoker_lake::Lake;
use stoker_schema::names::{Plan, Refusal};
use stoker_schema::rows::{ImportRow, RowValue, VERSIONS_SINCE, keys};
use stoker_store::{BoxFuture, LakeMode, Result};

use crate::core::Core;
use crate::error;
use crate::lookup::lake_row;
use crate::volumes::Volume;

/// Objects taken over in one round.
const ROUND: usize = 1_000;

/// Objects asked about at the same time.
const AT_ONCE: usize = 16;

impl Core {
    /// Takes a bounded number of objects into the catalog; true if there are more.
    pub(super) async fn import_round<'a>(self: &'a Arc<Core>, volume: &'a Arc<Volume>) -> Result<bool> {
        if volume.policy.lake_mode != LakeMode::Owned || !volume.asks_lake() {
            return Ok(false);
        }
        let row_key = keys::import(volume.id);
        let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
        let import = row.as_ref().map(ImportRow::of).transpose().map_err(error::catalog)?.unwrap_or_default();
        if import.done {
            volume.set_imported();
            return Ok(false);
        }
        let Some(lake) = volume.lake(self.volumes.lakes()).await? else { return Ok(false) };
        let page = lake.list(b"", import.after.as_deref(), None, ROUND).await.map_err(error::lake)?;
        let keys: Vec<Vec<u8>> = page.objects.iter().map(|object| object.key.clone()).collect();
        let take = |key: Vec<u8>| -> BoxFuture<'_, Result<()>> {
            Box::pin(self.import_object(volume, lake.clone(), key))
        };
        let mut taken = futures_util::stream::iter(keys).map(take).buffer_unordered(AT_ONCE);
        while let Some(done) = taken.next().await {
            done?;
        }
        drop(taken);
        let after = page.next.clone().or_else(|| page.objects.last().map(|object| object.key.clone()));
        let next = ImportRow { after, done: page.next.is_none() };
        let commit = Commit::new().unchanged(row_key.clone(), row.as_ref()).put(row_key, next.encode());
        if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
            self.saw(seq);
            if next.done {
                volume.set_imported();
                tracing::info!(volume = volume.name, "the lake is listed: the catalog is the truth now");
            }
        }
        Ok(!next.done)
    }

    async fn import_object(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        lake: Arc<dyn Lake>,
        key: Vec<u8>,
    ) -> Result<()> {
        let key = key.as_slice();
        if past_parts(key).is_some() && self.level.get() < VERSIONS_SINCE {
            // Releases that know no versions would take it for a file.
            return Ok(());
        }
        if self.tombstone(volume, key).await?.is_some() {
            return Ok(());
        }
        // Listings carry no metadata: content type and owner are asked for each object.
        let Some(object) = self.head(lake.as_ref(), key).await.map_err(error::lake)? else { return Ok(()) };
        let file = lake_row(volume.id, self.chunk_bytes, &object)?;
        let guards = self.guards(volume);
        let taken = self.names.publish(volume.id, key, &guards, |present| {
            let (file, present) = (file.clone(), present.is_some());
            let gone = Check::Absent(keys::tombstone(volume.id, key));
            Box::pin(async move {
                match present {
                    true => Err(Refusal::Exists),
                    false => Ok(Plan { checks: vec![gone], ..Plan::simple(file) }),
                }
            })
        });
        match taken.await {
            Ok(taken) => self.saw(taken.seq),
            Err(Refusal::Exists) => {}
            // Deleted meanwhile.
            Err(Refusal::Guard(at)) if at >= guards.len() => {}
            Err(other) => return Err(error::refusal(other)),
        }
        Ok(())
    }
}
