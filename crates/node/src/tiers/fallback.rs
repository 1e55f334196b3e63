//! Bytes from the other lake of a volume: while the one that a row names is away, or for what only the other one has.
//!
//! An object is known in the other lake by the row of its copy, which was confirmed there, or, after a promotion, by the row of a file that the
//! promoted lake lacks. Reads carry the etag that such a row names, and are held against the same sums as those from the first lake.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use stoker_lake::{Lake, LakeErrorKind};
use stoker_schema::rows::{LackingRow, RowValue, tier_keys};
use stoker_store::Result;

use crate::core::{Core, add};
use crate::error;
use crate::stage::Extent;

/// A lake that did not answer for so long is not waited for if the other one has the bytes.
const PATIENCE: Duration = Duration::from_secs(3);

impl Core {
    /// Bytes of an object, from whichever lake of its volume gives them.
    pub(crate) async fn get_from_either(
        &self,
        extent: &Extent,
        range: Range<u64>,
    ) -> stoker_lake::Result<Bytes> {
        let has_other = match self.volumes.by_id(extent.volume).await {
            Ok(volume) => volume.is_some_and(|volume| volume.replica.is_some()),
            Err(_) => false,
        };
        let first = extent.lake.get(&extent.key, range.clone(), Some(&extent.etag));
        if !has_other {
            return first.await;
        }
        let patience = if extent.lake.silence().is_some() { Duration::ZERO } else { PATIENCE };
        let first = match select(first, Box::pin(tokio::time::sleep(patience))).await {
            Either::Left((got, _)) => match got {
                Err(fault) if is_elsewhere(fault.kind) => {
                    return self.get_from_other(extent, range).await.ok_or(fault);
                }
                got => return got,
            },
            Either::Right(((), first)) => first,
        };
        let other = Box::pin(self.get_from_other(extent, range));
        match select(first, other).await {
            Either::Left((Err(fault), other)) if is_elsewhere(fault.kind) => other.await.ok_or(fault),
            Either::Left((got, _)) => got,
            Either::Right((Some(bytes), _)) => Ok(bytes),
            Either::Right((None, first)) => first.await,
        }
    }

    /// The same from the other lake alone; none if it does not have them either.
    async fn get_from_other(&self, extent: &Extent, range: Range<u64>) -> Option<Bytes> {
        let (lake, etag) = match self.elsewhere(extent).await {
            Ok(found) => found?,
            Err(fault) => {
                tracing::debug!(key = %extent.key.escape_ascii(), "not in the other lake: {fault}");
                return None;
            }
        };
        match lake.get(&extent.key, range, Some(&etag)).await {
            Ok(bytes) => {
                add(&self.replicas.fallback_reads, 1);
                Some(bytes)
            }
            Err(fault) => {
                tracing::debug!(key = %extent.key.escape_ascii(), "the other lake: {}", fault.message);
                None
            }
        }
    }

    /// Where else an object is, and under which etag.
    async fn elsewhere(&self, extent: &Extent) -> Result<Option<(Arc<dyn Lake>, String)>> {
        let Some(volume) = self.volumes.by_id(extent.volume).await? else { return Ok(None) };
        let Some(replica) = &volume.replica else { return Ok(None) };
        let lakes = self.volumes.lakes();
        if let Some((copy, _)) = self.copy_row(extent.volume, &extent.key).await?
            && let Some(etag) = copy.etag
            && (copy.source.as_ref() == Some(&extent.etag) || etag == extent.etag)
        {
            return Ok(Some((replica.second(lakes).await?, etag)));
        }
        let key = tier_keys::lacking(extent.volume, &extent.key);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let lacking = row.as_ref().map(LackingRow::of).transpose().map_err(error::catalog)?;
        match lacking.filter(|lacking| lacking.etag == extent.etag) {
            Some(lacking) => Ok(Some((replica.other_lake(lakes).await?, lacking.etag))),
            // In the middle of a promotion nobody has written down yet what the promoted lake lacks.
            None if replica.is_promoting() => {
                Ok(Some((replica.first(lakes).await?, extent.etag.clone())))
            }
            None => Ok(None),
        }
    }
}

/// Whether the other lake may have what this one did not give.
fn is_elsewhere(kind: LakeErrorKind) -> bool {
    matches!(
        kind,
        LakeErrorKind::Unavailable
            | LakeErrorKind::Busy
            | LakeErrorKind::Denied
            | LakeErrorKind::NotFound
            | LakeErrorKind::Changed
    )
}
