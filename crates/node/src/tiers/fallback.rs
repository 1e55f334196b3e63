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

use super::replica::is_copied;
use crate::core::{Core, add};
use crate::error;
use crate::stage::Extent;

/// A lake that did not answer for so long is not waited for if the other one has the bytes.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where rows say that an object is.
struct Elsewhere {
    lake: Arc<dyn Lake>,
    etag: String,
    /// It is nowhere else, whatever has the same etag there.
    is_only: bool,
}

impl Core {
    /// Bytes of an object, from whichever lake of its volume gives them.
    pub(crate) async fn get_from_either(
        &self,
        extent: &Extent,
        range: Range<u64>,
    ) -> stoker_lake::Result<Bytes> {
        let volume = self.volumes.by_id(extent.volume).await.ok().flatten();
        match volume.as_ref().and_then(|volume| volume.replica.as_ref()) {
            None => extent.lake.get(&extent.key, range, Some(&extent.etag)).await,
            Some(replica) if replica.is_copying() => self.get_or_copy(extent, range).await,
            Some(_) => self.get_promoted(extent, range).await,
        }
    }

    /// From the first lake, or else from the second one.
    async fn get_or_copy(&self, extent: &Extent, range: Range<u64>) -> stoker_lake::Result<Bytes> {
        let first = extent.lake.get(&extent.key, range.clone(), Some(&extent.etag));
        let patience = if extent.lake.silence().is_some() { Duration::ZERO } else { PATIENCE };
        let first = match select(first, Box::pin(tokio::time::sleep(patience))).await {
            Either::Left((Err(fault), _)) if is_elsewhere(fault.kind) => {
                return self.get_from_other(extent, range).await.ok_or(fault);
            }
            Either::Left((got, _)) => return got,
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

    async fn get_from_other(&self, extent: &Extent, range: Range<u64>) -> Option<Bytes> {
        let found = self.elsewhere(extent).await.ok().flatten()?;
        self.get_there(extent, &found, range).await.ok()
    }

    /// After a promotion rows may still name etags of the former lake, and two lakes may give the same etag to different objects: what rows say
    /// of an etag comes first.
    async fn get_promoted(&self, extent: &Extent, range: Range<u64>) -> stoker_lake::Result<Bytes> {
        if let Some(found) = self.elsewhere(extent).await.ok().flatten() {
            match self.get_there(extent, &found, range.clone()).await {
                Err(fault) if is_elsewhere(fault.kind) && !found.is_only => {}
                got => return got,
            }
        }
        extent.lake.get(&extent.key, range, Some(&extent.etag)).await
    }

    async fn get_there(
        &self,
        extent: &Extent,
        found: &Elsewhere,
        range: Range<u64>,
    ) -> stoker_lake::Result<Bytes> {
        let bytes = found.lake.get(&extent.key, range, Some(&found.etag)).await?;
        add(&self.replicas.fallback_reads, 1);
        Ok(bytes)
    }

    /// Where an object is by the row of its copy, or by that of a file that a promoted lake lacks.
    async fn elsewhere(&self, extent: &Extent) -> Result<Option<Elsewhere>> {
        let Some(volume) = self.volumes.by_id(extent.volume).await? else { return Ok(None) };
        let Some(replica) = &volume.replica else { return Ok(None) };
        let lakes = self.volumes.lakes();
        let key = tier_keys::lacking(extent.volume, &extent.key);
        let row = self.catalog.get(&[&key]).await.map_err(error::catalog)?.pop().flatten();
        let lacking = row.as_ref().map(LackingRow::of).transpose().map_err(error::catalog)?;
        if let Some(lacking) = lacking.filter(|lacking| lacking.etag == extent.etag) {
            let lake = replica.other_lake(lakes).await?;
            return Ok(Some(Elsewhere { lake, etag: lacking.etag, is_only: true }));
        }
        if let Some((copy, _)) = self.copy_row(extent.volume, &extent.key).await?
            && copy.source.as_ref() == Some(&extent.etag)
            && let Some(etag) = copy.etag
        {
            return Ok(Some(Elsewhere { lake: replica.second(lakes).await?, etag, is_only: false }));
        }
        // In the middle of a promotion nobody has written down yet what the promoted lake lacks; and what is not copied may be where it was
        // before, such as the chunks of a file that is larger than the rings.
        match replica.is_promoting() || (!replica.is_copying() && !is_copied(&extent.key)) {
            true => {
                let lake = replica.first(lakes).await?;
                Ok(Some(Elsewhere { lake, etag: extent.etag.clone(), is_only: false }))
            }
            false => Ok(None),
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
