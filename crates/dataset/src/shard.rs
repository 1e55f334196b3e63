//! One shard: written, read back, and noted beside it so that a later run need not do it again.
//!
//! A shard carries a digest of its files in its metadata. So one whose note was not written yet is still known, and a file
//! that somebody else put there is never replaced unless that was asked for.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use stoker_format::VersionId;
use stoker_store::{
    Attributes, ChecksumKind, Condition, ErrorKind, FileInfo, Filler, Finish, Key, Receipt, Store,
    StoreError, Subject, WriteRequest,
};

use crate::fault::{Fault, Result};
use crate::inputs::Inputs;
use crate::meter::{self, Meter};
use crate::plan::PlannedShard;
use crate::seal::ShardRow;
use crate::{feed, readback, tar};

/// Name of the metadata of a shard that holds the digest of its files.
const DIGEST: &str = "stoker-pack";
/// Batches that are read ahead.
const AHEAD: usize = 2;
/// Longest note that is read.
const NOTE_LEN_MAX: u64 = 64 << 10;

/// What is noted of a shard that was verified.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Note {
    digest: String,
    size: u64,
    crc64: String,
    version: String,
}

/// A shard of a dataset, and where it goes.
pub struct Shard {
    pub volume: String,
    pub key: Key,
    /// Where the note goes.
    pub note: Key,
    pub planned: PlannedShard,
    /// Of its files.
    pub digest: String,
}

/// What is under the name of a shard.
pub enum Present {
    /// Nothing.
    Nothing,
    /// The shard itself, verified.
    Done(ShardRow),
    /// The shard itself; nobody has read it back yet.
    Unverified(Box<FileInfo>),
    /// The shard of other files, or somebody's file.
    Other,
}

fn row(key: &Key, size: u64, version: VersionId, etag: String) -> ShardRow {
    ShardRow { key: key.to_string(), size, version: version.to_string(), etag }
}

fn crc_of(info: &FileInfo) -> Option<u64> {
    let sum = info.checksums.iter().find(|sum| sum.kind == ChecksumKind::Crc64Nvme && sum.parts == 0)?;
    Some(u64::from_be_bytes(sum.value.as_slice().try_into().ok()?))
}

impl Shard {
    fn fault(&self) -> impl FnOnce(StoreError) -> Fault {
        Fault::of(&self.volume, &self.key)
    }

    /// Looks at what is there. `is_sealed` says whether a seal tells of this version: those were verified.
    pub async fn look(&self, store: &dyn Store, is_sealed: impl Fn(&FileInfo) -> bool) -> Result<Present> {
        let info = match store.stat(&self.volume, &self.key).await {
            Err(error) if error.kind == ErrorKind::NotFound && error.subject != Subject::Volume => {
                return Ok(Present::Nothing);
            }
            other => other.map_err(self.fault())?,
        };
        let own = info.attributes.meta.iter().any(|(name, value)| name == DIGEST && *value == self.digest);
        if !own || info.size != self.planned.size {
            return Ok(Present::Other);
        }
        if is_sealed(&info) || self.is_noted(store, &info).await? {
            return Ok(Present::Done(row(&self.key, info.size, info.version, info.etag)));
        }
        Ok(Present::Unverified(Box::new(info)))
    }

    async fn is_noted(&self, store: &dyn Store, info: &FileInfo) -> Result<bool> {
        let file = match store.open(&self.volume, &self.note).await {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(false),
            other => other.map_err(Fault::of(&self.volume, &self.note))?,
        };
        let len = file.info().size;
        if len > NOTE_LEN_MAX {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let read = file.read(bytes.len() as u64, len as usize - bytes.len()).await;
            let read = read.map_err(Fault::of(&self.volume, &self.note))?;
            if read.is_empty() {
                return Ok(false);
            }
            bytes.extend_from_slice(&read);
        }
        // A note that makes no sense is as good as none: the shard is read back again.
        let note: Option<Note> = serde_json::from_slice(&bytes).ok();
        Ok(note.is_some_and(|note| {
            note.digest == self.digest && note.size == info.size && note.version == info.version.to_string()
        }))
    }

    /// Reads back a shard of an earlier run and notes it; none if it has to be written again.
    pub async fn adopt(&self, store: &dyn Store, info: &FileInfo, meter: &Meter) -> Result<Option<ShardRow>> {
        let Some(sum) = crc_of(info) else { return Ok(None) };
        readback::verify(store, &self.volume, &self.key, info.version, sum, &meter.bytes_verified)
            .await
            .map_err(self.fault())?;
        self.leave_note(store, info.size, sum, info.version).await?;
        Ok(Some(row(&self.key, info.size, info.version, info.etag.clone())))
    }

    /// Writes it, reads it back, notes it.
    pub async fn make(
        &self,
        store: &Arc<dyn Store>,
        inputs: &Arc<Inputs>,
        replace: bool,
        meter: &Meter,
    ) -> Result<ShardRow> {
        let (receipt, sum) = self.write(store, inputs, replace, meter).await?;
        readback::verify(&**store, &self.volume, &self.key, receipt.version, sum, &meter.bytes_verified)
            .await
            .map_err(self.fault())?;
        self.leave_note(&**store, receipt.size, sum, receipt.version).await?;
        Ok(row(&self.key, receipt.size, receipt.version, receipt.etag))
    }

    async fn write(
        &self,
        store: &Arc<dyn Store>,
        inputs: &Arc<Inputs>,
        replace: bool,
        meter: &Meter,
    ) -> Result<(Receipt, u64)> {
        let attributes = Attributes {
            content_type: Some("application/x-tar".to_owned()),
            meta: vec![(DIGEST.to_owned(), self.digest.clone())],
            ..Attributes::default()
        };
        let condition = if replace { Condition::default() } else { Condition::absent() };
        let size = Some(self.planned.size);
        let request = WriteRequest { attributes, condition, size, append: false };
        let writer = store.create(&self.volume, &self.key, request).await.map_err(self.fault())?;
        let mut sink = Filler::new(writer);
        let batches = feed::batches(inputs, self.planned.inputs.clone());
        let mut tar = stream::iter(batches)
            .map(|batch| feed::read(store.clone(), inputs.clone(), batch))
            .buffered(AHEAD);
        while let Some(bytes) = tar.next().await {
            let bytes = bytes?;
            sink.put(&bytes).await.map_err(self.fault())?;
            meter::add(&meter.bytes_written, bytes.len() as u64);
        }
        sink.put(&[0; tar::END_LEN as usize]).await.map_err(self.fault())?;
        meter::add(&meter.bytes_written, tar::END_LEN);
        assert_eq!(sink.len(), self.planned.size, "a shard is as long as it was planned");
        publish(sink).await.map_err(self.fault())
    }

    async fn leave_note(&self, store: &dyn Store, size: u64, sum: u64, version: VersionId) -> Result<()> {
        let note = Note {
            digest: self.digest.clone(),
            size,
            crc64: format!("{sum:016x}"),
            version: version.to_string(),
        };
        let text = serde_json::to_vec(&note).unwrap_or_default();
        let request = WriteRequest { size: Some(text.len() as u64), ..WriteRequest::default() };
        let written = async {
            let writer = store.create(&self.volume, &self.note, request).await?;
            let mut sink = Filler::new(writer);
            sink.put(&text).await?;
            sink.finish(Finish::default()).await
        };
        written.await.map(drop).map_err(Fault::of(&self.volume, &self.note))
    }
}

/// The receipt and the CRC-64 of what was put.
pub async fn publish(sink: Filler) -> stoker_store::Result<(Receipt, u64)> {
    let writer = sink.end().await?;
    let sum = writer.crc64();
    Ok((writer.finish(Finish::default()).await?, sum))
}
