//! Chunks that go to the lake before their file is published: a write that outgrows its share of the rings (D96).
//!
//! Nothing of a file can be drained before it is published, so what is larger than the rings would never fit into them. Once a write
//! has filled its share, the rest of its chunks goes to one object of the lake under a key of its own, named by the version: intent,
//! claim (R10), parts, confirmation, and then the publish, whose transaction removes the intent and writes down where the chunks
//! are. Until then nobody sees anything of it; a write that fails, or a node that dies, leaves an intent, and whoever finds that
//! removes the object or aborts the upload, as with a write that found too few nodes ([`alone`](super::alone)). Memory is bounded: a
//! writer waits until the lake took some of what it brought.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stoker_catalog::kv::{Check, Write};
use stoker_format::{ChunkRun, VersionId, VolumeId, crc64, crc64_combine, crc64_zeros};
use stoker_lake::{Attributes, Condition, Lake, LakeError, LakeErrorKind, ObjectInfo, PartTag, PutOptions};
use stoker_schema::rows::{IntentRow, LakeKeyRow, RowValue, SpillRow, keys};
use stoker_store::{ErrorKind, Result, StoreError, Subject};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::attributes;
use super::claim::{Claim, Claimed, lost};
use stoker_records::lake_keys::spill_key;

use crate::core::{Core, add};
use crate::error;
use crate::sums::{Summer, Sums};
use crate::volumes::Volume;

/// Length of the first parts; an object that turns out to be long gets longer ones.
const PART_BYTES: u64 = 16 << 20;

/// What is announced to be no longer goes in one request when it is there: the parts of an upload, as a rule.
const ONE_PUT_BYTES_MAX: u64 = 64 << 20;

/// Parts after which the next ones are twice as long.
const PARTS_PER_LENGTH: u32 = 1_000;

/// Longest part: it is in memory as a whole.
const PART_BYTES_MAX: u64 = 256 << 20;

/// Parts of one write under way at the same time.
const PARTS_IN_FLIGHT: usize = 6;

/// Tries of a request that the lake does not answer, and the first pause between them; each is twice as long as the one before.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(50);

/// Memory is counted in these.
const UNIT: u64 = 1 << 20;

/// How much memory all writes that spill have together, in units, if a node has so many bytes.
pub(super) fn memory_units(memory_bytes: u64) -> usize {
    ((memory_bytes / 16).clamp(64 << 20, 512 << 20) / UNIT) as usize
}

/// The length of a part.
fn part_bytes(number: u32, first: u64, longest: u64) -> u64 {
    let doubled = number.saturating_sub(1) / PARTS_PER_LENGTH;
    (first << doubled.min(16)).min(longest.max(first))
}

/// Most bytes that parts of such lengths hold together.
fn object_bytes_max(parts_max: u32, first: u64, longest: u64) -> u64 {
    (1..=parts_max).map(|number| part_bytes(number, first, longest)).fold(0, u64::saturating_add)
}

/// The error for a write that its lake could not hold in one object.
fn too_long(most: u64) -> StoreError {
    let message = format!(
        "what does not fit into the rings of one write can have {most} bytes: send the file as a multipart upload, or through a mount"
    );
    StoreError::about(ErrorKind::Invalid, Subject::Size, message)
}

/// A lake key that this write is busy with; free again when dropped.
struct Held {
    core: Arc<Core>,
    key: (u32, Vec<u8>),
}

impl Held {
    fn take(core: &Arc<Core>, volume: VolumeId, key: &[u8]) -> Option<Held> {
        let key = (volume.0, key.to_vec());
        let is_free = core.drainer.busy.lock().unwrap().insert(key.clone());
        is_free.then(|| Held { core: core.clone(), key })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.core.drainer.busy.lock().unwrap().remove(&self.key);
    }
}

/// An upload of parts under way.
struct Upload {
    id: String,
    sending: JoinSet<std::result::Result<PartTag, LakeError>>,
    tags: Vec<PartTag>,
    next: u32,
}

/// Chunks of one write on their way to the lake.
pub(crate) struct Spill {
    core: Arc<Core>,
    volume: Arc<Volume>,
    lake: Arc<dyn Lake>,
    version: VersionId,
    first: u32,
    stride: u32,
    at: Vec<u8>,
    held: Option<Held>,
    intent: IntentRow,
    claim: Option<Claim>,
    /// The chunk that is being filled.
    chunk: BytesMut,
    count: u32,
    /// Chunks that wait for their part to be full, and the memory for them.
    body: Vec<Bytes>,
    body_len: u64,
    memory: Option<OwnedSemaphorePermit>,
    upload: Option<Upload>,
    /// Lengths of the first parts and of the longest.
    lengths: (u64, u64),
    /// It was announced to be no longer than this, which fits into a first part, and goes as it is when it is finished.
    one_put: Option<u64>,
    summer: Summer,
    crc64: u64,
    size: u64,
    /// Its chunks are published, and nothing is to be undone.
    is_published: bool,
}

/// What the lake has confirmed, for the transaction that publishes it.
pub(crate) struct Spilled {
    row: SpillRow,
    version: VersionId,
    intent: IntentRow,
    claim_seq: u64,
    confirmed: LakeKeyRow,
    sums: Option<Sums>,
}

impl Spilled {
    /// What must hold when it is published, and what is written then.
    pub fn changes(&self) -> (Vec<Check>, Vec<Write>) {
        let (volume, at) = (VolumeId(self.row.volume), &self.row.key);
        let row_key = keys::lake_key(volume, at);
        let checks = vec![
            Check::Value(keys::intent(volume, at), self.intent.encode()),
            Check::Seq(row_key.clone(), self.claim_seq),
        ];
        let mut writes = Sums::writes(self.sums.as_ref(), volume, at, &self.row.etag);
        writes.extend([
            Write::Delete(keys::intent(volume, at)),
            Write::Put(row_key, self.confirmed.encode()),
            Write::Delete(keys::attempt(volume, at)),
            Write::Put(keys::spill(self.version), self.row.encode()),
            Write::Put(keys::spilled(volume, self.version), Vec::new()),
        ]);
        (checks, writes)
    }
}

impl Spill {
    /// Begins, with the chunk of that number; `announced` is how long the rest is, if that is known.
    pub async fn begin(
        core: &Arc<Core>,
        volume: &Arc<Volume>,
        (version, first): (VersionId, u32),
        announced: Option<u64>,
    ) -> Result<Spill> {
        let no_lake = || StoreError::new(ErrorKind::Unavailable, "the volume has no lake");
        let lake = volume.lake(core.volumes.lakes()).await?.ok_or_else(no_lake)?;
        let stride = core.chunk_bytes;
        let at = spill_key(version, first, stride);
        let can = lake.capabilities();
        let longest = (core.drainer.spill_units as u64 * UNIT).min(PART_BYTES_MAX).min(can.part_bytes_max);
        let evenly =
            announced.unwrap_or(0).div_ceil(u64::from(can.parts_max.max(2) - 1)).next_multiple_of(UNIT);
        let least = PART_BYTES.max(can.part_bytes_min).max(evenly.min(longest));
        let most_in_one = ONE_PUT_BYTES_MAX.min(longest).min(can.put_bytes_max);
        let one_put = announced.filter(|size| *size <= most_in_one);
        let lengths = (least.max(one_put.unwrap_or(0)), longest);
        let most = object_bytes_max(can.parts_max, lengths.0, lengths.1);
        if announced.is_some_and(|size| size > most) {
            return Err(too_long(most));
        }
        let busy = || StoreError::new(ErrorKind::Unavailable, "this version is on its way to the lake");
        let held = Held::take(core, volume.id, &at).ok_or_else(busy)?;
        let intent = match core.intend(volume, &at, version).await {
            Ok(intent) => intent,
            Err(fault) => {
                // It may be there although nobody said so.
                drop(held);
                core.undo_soon(volume.id, at);
                return Err(fault);
            }
        };
        let mut spill = Spill {
            core: core.clone(),
            volume: volume.clone(),
            lake,
            version,
            first,
            stride,
            at,
            held: Some(held),
            intent,
            claim: None,
            chunk: BytesMut::new(),
            count: 0,
            body: Vec::new(),
            body_len: 0,
            memory: None,
            upload: None,
            lengths,
            one_put,
            summer: Summer::new(stride),
            crc64: crc64(b""),
            size: 0,
            is_published: false,
        };
        match core.claim(spill.lake.as_ref(), volume.id, &spill.at, version, (None, 0)).await? {
            Claimed::Yes(claim) => spill.claim = Some(claim),
            Claimed::Unsettled(_) | Claimed::Lost => return Err(lost()),
        }
        tracing::debug!(%version, volume = volume.name, "a write outgrew its share of the rings and goes to the lake");
        Ok(spill)
    }

    /// Bytes of the chunk that is being filled.
    pub fn pending(&self) -> u64 {
        self.chunk.len() as u64
    }

    /// Adds bytes, up to the end of a chunk; says how many.
    pub async fn fill(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.memory.is_none() {
            // For the whole part: writers that each had a piece of one would wait for each other. And for no more than will come:
            // parts of an upload are often shorter than ours, and so many more of them are on their way at once.
            let len = self.one_put.filter(|_| self.upload.is_none()).unwrap_or(u64::MAX).min(self.part_len());
            let units = len.div_ceil(UNIT).clamp(1, self.core.drainer.spill_units as u64) as u32;
            let closed = |_| StoreError::new(ErrorKind::Closed, "this node is stopping");
            let memory = self.core.drainer.spill_memory.clone().acquire_many_owned(units).await;
            self.memory = Some(memory.map_err(closed)?);
        }
        if self.chunk.is_empty() {
            self.pad();
            self.chunk.reserve(self.stride as usize);
        }
        let len = bytes.len().min(self.stride as usize - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    /// Whether the chunk is full.
    pub fn is_full(&self) -> bool {
        self.chunk.len() == self.stride as usize
    }

    /// Every chunk begins where its number says, though the one before was cut short.
    fn pad(&mut self) {
        let short = (u64::from(self.count) * u64::from(self.stride)).saturating_sub(self.size);
        if short > 0 {
            self.push(Bytes::from(vec![0; short as usize]));
            self.crc64 = crc64_combine(self.crc64, crc64_zeros(short), short);
        }
    }

    fn push(&mut self, bytes: Bytes) {
        self.summer.add(self.size, &bytes);
        self.size += bytes.len() as u64;
        self.body_len += bytes.len() as u64;
        self.body.push(bytes);
    }

    /// Ends the chunk as it is; gives its index and length, if there is one.
    pub fn cut(&mut self) -> Option<(u32, u32)> {
        if self.chunk.is_empty() {
            return None;
        }
        let bytes = self.chunk.split().freeze();
        let len = bytes.len() as u32;
        self.crc64 = crc64_combine(self.crc64, crc64(&bytes), u64::from(len));
        self.push(bytes);
        let index = (self.first + self.count) | ChunkRun::SPILLED;
        self.count += 1;
        Some((index, len))
    }

    fn part_len(&self) -> u64 {
        let number = self.upload.as_ref().map_or(1, |upload| upload.next);
        part_bytes(number, self.lengths.0, self.lengths.1)
    }

    /// Sends what is due, and waits if much is under way.
    pub async fn go_on(&mut self) -> Result<()> {
        let is_short = self.one_put.is_some() && self.upload.is_none() && self.body_len == self.part_len();
        if self.body_len < self.part_len() || is_short {
            return Ok(());
        }
        self.send_part().await?;
        if let Some(upload) = &mut self.upload {
            while upload.sending.len() >= PARTS_IN_FLIGHT {
                upload.land_one().await?;
            }
        }
        Ok(())
    }

    fn options(&self) -> PutOptions {
        let name = (self.version, self.core.seq_known());
        let mut attributes: Attributes =
            attributes::describe(self.version, self.version.to_string(), name, &Default::default());
        // How long it will be is not known when it begins.
        self.core.signer.sign(&self.at, 0, &mut attributes);
        PutOptions { attributes, condition: Condition::Absent, crc64: Some(self.crc64) }
    }

    async fn send_part(&mut self) -> Result<()> {
        if self.upload.is_none() {
            let attributes = self.options().attributes;
            let begin = || self.lake.upload_begin(&self.at, attributes.clone());
            let id = patiently(begin).await.map_err(error::lake)?;
            let recorded = id.clone();
            let claim = self.claim.as_mut().ok_or_else(lost)?;
            let noted = self.core.update_claim(claim, |row| row.upload = Some(recorded)).await;
            if let Err(fault) = noted {
                // Nobody would know of it: it must not be left behind.
                self.lake.upload_abort(&self.at, &id).await.map_err(error::lake)?;
                return Err(fault);
            }
            self.upload = Some(Upload { id, sending: JoinSet::new(), tags: Vec::new(), next: 1 });
        }
        let (parts_max, lengths) = (self.lake.capabilities().parts_max, self.lengths);
        let Some(upload) = &mut self.upload else { return Ok(()) };
        if upload.next > parts_max {
            return Err(too_long(object_bytes_max(parts_max, lengths.0, lengths.1)));
        }
        let number = upload.next;
        upload.next += 1;
        let (lake, at, id) = (self.lake.clone(), self.at.clone(), upload.id.clone());
        let (body, memory) = (std::mem::take(&mut self.body), self.memory.take());
        add(&self.core.stats.spilled_bytes, self.body_len);
        self.body_len = 0;
        let send = async move {
            let sent = patiently(|| lake.upload_part(&at, &id, number, body.clone())).await;
            drop((body, memory));
            sent
        };
        self.core.tasks.spawn_into(&mut upload.sending, send);
        Ok(())
    }

    /// Has the lake confirm all of it.
    pub async fn finish(&mut self) -> Result<Option<Spilled>> {
        if self.count == 0 {
            return Ok(None);
        }
        let etag = match self.upload.is_some() {
            true => self.complete().await,
            false => {
                let (body, options) = (std::mem::take(&mut self.body), self.options());
                add(&self.core.stats.spilled_bytes, self.body_len);
                patiently(|| self.lake.put(&self.at, body.clone(), options.clone())).await
            }
        };
        self.memory = None;
        let etag = match etag {
            Ok(etag) => Some(etag),
            // An earlier try of ours may have got through without an answer.
            Err(fault) if matches!(fault.kind, LakeErrorKind::Changed | LakeErrorKind::NotFound) => None,
            Err(fault) => {
                self.leave_open(&fault).await?;
                return Err(error::lake(fault));
            }
        };
        let object = patiently(|| Box::pin(self.core.head(self.lake.as_ref(), &self.at)));
        let object = object.await.map_err(error::lake)?;
        let version = self.version.to_string();
        let ours = |object: &ObjectInfo| {
            let named = object.attributes.as_ref().and_then(attributes::version) == Some(version.as_str());
            let known = etag.as_ref().is_some_and(|etag| *etag == object.etag);
            let sound = object.crc64.is_none_or(|sum| sum == self.crc64);
            (named || known) && object.size == self.size && sound
        };
        let Some(object) = object.filter(ours) else {
            let message = "the lake does not have what was sent to it; try again";
            return Err(StoreError::about(ErrorKind::Unavailable, Subject::Lake, message));
        };
        let claim = self.claim.as_ref().ok_or_else(lost)?;
        let confirmed = self.core.confirmed(self.lake.as_ref(), claim, Some(object.etag.clone())).await?;
        let summer = std::mem::replace(&mut self.summer, Summer::new(self.stride));
        Ok(Some(Spilled {
            row: SpillRow {
                volume: self.volume.id.0,
                key: self.at.clone(),
                etag: object.etag,
                first: self.first,
                count: self.count,
                stride: self.stride,
                gone: Vec::new(),
            },
            version: self.version,
            intent: self.intent.clone(),
            claim_seq: claim.seq,
            confirmed,
            sums: summer.finish(self.size),
        }))
    }

    async fn complete(&mut self) -> std::result::Result<String, LakeError> {
        if !self.body.is_empty() {
            let wrap = |fault: StoreError| LakeError::new(LakeErrorKind::Unavailable, fault.message);
            self.send_part().await.map_err(wrap)?;
        }
        let options = self.options();
        let Some(upload) = &mut self.upload else { return Ok(String::new()) };
        while !upload.sending.is_empty() {
            upload.land_one_raw().await?;
        }
        upload.tags.sort_by_key(|tag| tag.number);
        let (id, tags) = (upload.id.clone(), upload.tags.clone());
        patiently(|| self.lake.upload_complete(&self.at, &id, tags.clone(), options.clone())).await
    }

    /// A request failed in a way that leaves its effect open: nobody writes the key for a while.
    async fn leave_open(&mut self, fault: &LakeError) -> Result<()> {
        if fault.kind == LakeErrorKind::Unavailable
            && let Some(claim) = &mut self.claim
        {
            self.core.leave_unsettled(self.lake.as_ref(), claim).await?;
        }
        Ok(())
    }

    /// Its chunks are published.
    pub fn keep(&mut self) {
        self.is_published = true;
    }
}

impl Upload {
    async fn land_one_raw(&mut self) -> std::result::Result<(), LakeError> {
        if let Some(landed) = self.sending.join_next().await {
            let stopped = |_| LakeError::new(LakeErrorKind::Unavailable, "this node is stopping");
            self.tags.push(landed.map_err(stopped)??);
        }
        Ok(())
    }

    async fn land_one(&mut self) -> Result<()> {
        self.land_one_raw().await.map_err(error::lake)
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        let (core, held, upload) = (self.core.clone(), self.held.take(), self.upload.take());
        let (volume, at) = (self.volume.id, std::mem::take(&mut self.at));
        self.core.tasks.spawn(async move {
            // What is on its way would land behind the abort.
            if let Some(mut upload) = upload {
                while upload.sending.join_next().await.is_some() {}
            }
            drop(held);
            core.undo_soon(volume, at);
        });
    }
}

/// Asks the lake, and again if it does not answer, wants less, or got other bytes than those that were sent.
async fn patiently<T, F: Future<Output = std::result::Result<T, LakeError>>>(
    mut ask: impl FnMut() -> F,
) -> std::result::Result<T, LakeError> {
    use LakeErrorKind::{Busy, Corrupt, Unavailable};
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match ask().await {
            Err(fault) if matches!(fault.kind, Unavailable | Busy | Corrupt) => {
                tracing::debug!("asked again: {fault}");
            }
            answered => return answered,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    ask().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_so_that_they_are_enough() {
        let at = |number| part_bytes(number, PART_BYTES, PART_BYTES_MAX);
        assert_eq!((at(1), at(1_000), at(1_001), at(2_001)), (16 << 20, 16 << 20, 32 << 20, 64 << 20));
        assert_eq!((at(4_001), at(10_000)), (256 << 20, 256 << 20));
        assert_eq!(part_bytes(5_000, 64 << 20, 16 << 20), 64 << 20);
        assert!(object_bytes_max(10_000, PART_BYTES, PART_BYTES_MAX) > 1 << 40);
    }
}
