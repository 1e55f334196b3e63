//! One object to the second lake of its volume.
//!
//! ```text
//! claim the copy        put / parts           confirm                    note goes
//! fence + 1        ->   bytes to the lake ->  etag seen by HEAD   ->     if the key was not claimed since
//! ```
//!
//! The same care as for the first lake (R10): the right to write is a row, every step is a transaction on that row as it was last seen, and a request without an
//! answer leaves the copy unsettled until the lake must have carried it out. What to do is decided by `stoker_tiers::copies`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stoker_catalog::kv::{Check, Commit, Outcome, Row};
use stoker_lake::{Condition, Lake, LakeError, LakeErrorKind, ObjectInfo, PutOptions};
use stoker_schema::rows::{CopyRow, Drain, FileRow, LakeKeyRow, RowValue, keys, tier_keys};
use stoker_store::{File as _, Result, StoreError};
use stoker_tiers::copies::{Expect, Known, Object, Source, Step, next, without_a_look};

use super::replica::Replica;
use crate::cache::PIECE;
use crate::core::Core;
use crate::drain::attributes;
use crate::error;
use crate::properties::Properties;
use crate::volumes::Volume;

/// Objects up to this long are one request; longer ones go in parts of at least that.
const PART_BYTES: u64 = 8 << 20;

/// Objects longer than this are copied one at a time, since their parts are long.
const LONG_BYTES: u64 = 4 << 30;

/// Sent versions that are remembered for a copy.
const ATTEMPTS_MAX: usize = 32;

/// What marks a copy that this node is busy with, so that the key itself stays free for its drain.
const BUSY: &[u8] = b"\0copy/";

/// What was sent when a copy was deleted.
const DELETED: &str = "";

/// What the first lake has, and what must still be so when that is acted upon.
struct Held {
    source: Source,
    checks: Vec<Check>,
    /// The file whose object it is, if one has it under this name.
    file: Option<FileRow>,
}

/// How a try ended.
enum End {
    Done,
    /// Something is under way, or was changed meanwhile.
    Later,
    /// Somebody else's object is there.
    Foreign,
}

/// A claimed copy.
struct Claim {
    row: CopyRow,
    seq: u64,
}

/// Everything that a try is about.
struct Job<'a> {
    volume: &'a Arc<Volume>,
    replica: &'a Replica,
    second: Arc<dyn Lake>,
    key: &'a [u8],
    note: &'a Row,
}

impl Core {
    /// Brings one copy up to date; true if that is done.
    pub(super) async fn copy_one(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        replica: &Replica,
        note: Row,
    ) -> Result<bool> {
        let key = tier_keys::copy_work_part(&note.key).to_vec();
        if self.replicas.is_later(volume.id, &key) || self.closing.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let known = self.volumes.by_id(volume.id).await?.and_then(|known| known.replica.clone());
        if known.is_none_or(|known| known.seq != replica.seq) {
            // A promotion waits for this round to end.
            return Ok(false);
        }
        let busy = [BUSY, &key].concat();
        let Some(_busy) = self.drainer.take_key(volume.id, &busy) else { return Ok(false) };
        let second = replica.second(self.volumes.lakes()).await?;
        let job = Job { volume, replica, second, key: &key, note: &note };
        match self.copy_key(&job).await {
            Ok(End::Done) => {
                self.replicas.went_well(volume.id, &key);
                Ok(true)
            }
            // What somebody writes now is looked at with the next round.
            Ok(End::Later) => Ok(false),
            Ok(End::Foreign) => {
                self.replicas.postpone(volume.id, &key);
                Ok(false)
            }
            Err(fault) => {
                self.replicas.postpone(volume.id, &key);
                Err(fault)
            }
        }
    }

    async fn copy_key(self: &Arc<Core>, job: &Job<'_>) -> Result<End> {
        let mut held = self.held(job.volume, job.key).await?;
        let row = self.copy_row(job.volume.id, job.key).await?;
        let (row, seq) = row.map_or((CopyRow::default(), None), |(row, seq)| (row, Some(seq)));
        if row.session != [0; 16] {
            return self.take_over(job, row, seq).await;
        }
        let now_ms = self.catalog.now_ms().await.map_err(error::catalog)?;
        let known = Known {
            source: row.source.clone(),
            etag: row.etag.clone(),
            attempts: row.attempts.clone(),
            is_unsettled: row.unsettled_until_ms > now_ms,
        };
        if let Some(step) = without_a_look(&held.source, &known) {
            return match step {
                Step::Done => self.note_goes(job, &held, None, seq).await,
                _ => Ok(End::Later),
            };
        }
        if !self.fill(job, &mut held).await? {
            return Ok(End::Later);
        }
        let there = self.there(job).await?;
        match next(&held.source, &known, there.as_ref()) {
            Step::Wait => Ok(End::Later),
            Step::Done => self.note_goes(job, &held, None, seq).await,
            Step::Forget => self.note_goes(job, &held, Some(None), seq).await,
            Step::Adopt(etag) => {
                let row = confirmed(&row, &held.source, etag);
                self.note_goes(job, &held, Some(Some(row)), seq).await
            }
            Step::Foreign(etag) => {
                let row = CopyRow { foreign: Some(etag), ..row };
                self.put_copy(job, &row, seq).await?;
                Ok(End::Foreign)
            }
            Step::Delete(etag) => {
                let Some(claim) = self.claim_copy(job, &held, row, seq, DELETED.to_owned()).await? else {
                    return Ok(End::Later);
                };
                match job.second.delete(job.key, Some(&etag)).await {
                    Ok(()) if job.second.is_doubted(job.key) => {
                        // A try that was sent again may still come, and must find nothing new.
                        let unsettled_until_ms = self.settled_ms().await?;
                        let row =
                            CopyRow { fence: claim.row.fence, unsettled_until_ms, ..CopyRow::default() };
                        let ended = self.note_goes(job, &held, Some(Some(row)), Some(claim.seq)).await;
                        job.second.end_doubt(job.key);
                        ended
                    }
                    Ok(()) => self.note_goes(job, &held, Some(None), Some(claim.seq)).await,
                    Err(fault) => self.failed(job, claim, fault).await,
                }
            }
            Step::Copy(expect) => self.copy_object(job, &held, (row, seq), expect).await,
        }
    }

    /// What the first lake has under a key, as the catalog says.
    async fn held(&self, volume: &Volume, key: &[u8]) -> Result<Held> {
        let row_key = keys::lake_key(volume.id, key);
        let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
        let mut checks = vec![match &row {
            Some(row) => Check::Seq(row_key, row.seq),
            None => Check::Absent(row_key),
        }];
        let value = row.as_ref().map(LakeKeyRow::of).transpose().map_err(error::catalog)?;
        if value.as_ref().is_some_and(|value| value.session != [0; 16]) {
            return Ok(Held { source: Source::Busy, checks, file: None });
        }
        let mut etag = value.and_then(|value| value.etag);
        let mut file = None;
        if let Some(spot) = self.names.resolve(volume.id, key).await.map_err(error::catalog)?
            && let Some(located) = self.names.file_at(spot).await.map_err(error::catalog)?
            && located.file.drain == Drain::Clean
            && let Some(lake) = located.file.lake.as_ref().filter(|lake| lake.key == key)
            && etag.as_ref().is_none_or(|etag| *etag == lake.etag)
        {
            etag = Some(lake.etag.clone());
            checks.push(Check::Seq(located.spot.row_key(), located.seq));
            file = Some(located.file);
        }
        let source = match (etag, &file) {
            (None, _) => Source::Nothing,
            (Some(etag), Some(file)) => Source::Object(Object {
                etag,
                size: file.size,
                crc64: file.crc64,
                version: Some(file.version().to_string()),
            }),
            // Without a file only the lake knows more.
            (Some(etag), None) => Source::Object(Object { etag, ..Object::default() }),
        };
        Ok(Held { source, checks, file })
    }

    /// Asks the first lake what the catalog does not know of its object; false if it has another one.
    async fn fill(&self, job: &Job<'_>, held: &mut Held) -> Result<bool> {
        let (None, Source::Object(object)) = (&held.file, &mut held.source) else { return Ok(true) };
        let first = job.replica.first(self.volumes.lakes()).await?;
        let Some(found) = self.head(first.as_ref(), job.key).await.map_err(error::lake)? else {
            return Ok(false);
        };
        if found.etag != object.etag {
            return Ok(false);
        }
        *object = seen(&found);
        Ok(true)
    }

    async fn there(&self, job: &Job<'_>) -> Result<Option<Object>> {
        let found = self.head(job.second.as_ref(), job.key).await.map_err(error::lake)?;
        Ok(found.as_ref().map(seen))
    }

    /// Somebody claimed the copy and did not end that. While they may be at it, nothing is done; then what they sent gets its time.
    async fn take_over(&self, job: &Job<'_>, row: CopyRow, seq: Option<u64>) -> Result<End> {
        if row.session != self.session_id
            && let Some(other) = self.cell.view().node_of(row.session)
        {
            let busy = [BUSY, job.key].concat();
            if self.cell.is_busy(other, job.volume.id, &busy).await.unwrap_or(true) {
                return Ok(End::Later);
            }
        }
        if let Some(upload) = &row.upload {
            job.second.upload_abort(job.key, upload).await.map_err(error::lake)?;
        }
        let unsettled_until_ms = self.settled_ms().await?;
        let row = CopyRow { fence: row.fence + 1, session: [0; 16], upload: None, unsettled_until_ms, ..row };
        self.put_copy(job, &row, seq).await?;
        Ok(End::Later)
    }

    /// Writes the row of a copy, if it and the second lake are still those that were seen.
    async fn put_copy(&self, job: &Job<'_>, row: &CopyRow, seq: Option<u64>) -> Result<Option<u64>> {
        let commit = self.on_copy(job, seq).put(tier_keys::copy(job.volume.id, job.key), row.encode());
        let commit = commit.value(self.session.0.clone(), self.session.1.clone());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => Ok(Some(seq)),
            Outcome::Failed { .. } => Ok(None),
        }
    }

    fn on_copy(&self, job: &Job<'_>, seq: Option<u64>) -> Commit {
        let key = tier_keys::copy(job.volume.id, job.key);
        let commit = Commit::new().seq(tier_keys::replica(job.volume.id), job.replica.seq);
        match seq {
            Some(seq) => commit.seq(key, seq),
            None => commit.absent(key),
        }
    }

    /// Claims a copy, if everything is still as it was seen.
    async fn claim_copy(
        &self,
        job: &Job<'_>,
        held: &Held,
        mut row: CopyRow,
        seq: Option<u64>,
        version: String,
    ) -> Result<Option<Claim>> {
        row.fence += 1;
        row.session = self.session_id;
        (row.unsettled_until_ms, row.foreign) = (0, None);
        if !row.attempts.contains(&version) {
            row.attempts.push(version);
            let excess = row.attempts.len().saturating_sub(ATTEMPTS_MAX);
            row.attempts.drain(..excess);
        }
        let mut commit = self.on_copy(job, seq).seq(job.note.key.clone(), job.note.seq);
        commit.checks.extend(held.checks.iter().cloned());
        let commit = commit
            .put(tier_keys::copy(job.volume.id, job.key), row.encode())
            .value(self.session.0.clone(), self.session.1.clone());
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => Ok(Some(Claim { row, seq })),
            Outcome::Failed { .. } => Ok(None),
        }
    }

    /// Ends a try: the row of the copy becomes that (`Some(None)`: it goes), and the note goes unless the key was claimed since.
    async fn note_goes(
        &self,
        job: &Job<'_>,
        held: &Held,
        row: Option<Option<CopyRow>>,
        seq: Option<u64>,
    ) -> Result<End> {
        let change = || {
            let (commit, key) = (self.on_copy(job, seq), tier_keys::copy(job.volume.id, job.key));
            match &row {
                None => commit,
                Some(None) => commit.delete(key),
                Some(Some(row)) => commit.put(key, row.encode()),
            }
        };
        let mut whole = change().seq(job.note.key.clone(), job.note.seq).delete(job.note.key.clone());
        whole.checks.extend(held.checks.iter().cloned());
        if let Outcome::Done { seq } = self.catalog.commit(whole).await.map_err(error::catalog)? {
            self.saw(seq);
            return Ok(End::Done);
        }
        // The key was claimed again meanwhile: what was copied is known all the same.
        if row.is_some() {
            let _ = self.catalog.commit(change()).await.map_err(error::catalog)?;
        }
        Ok(End::Later)
    }

    /// A request failed: if its effect is open, nobody writes the copy for a while.
    async fn failed(&self, job: &Job<'_>, claim: Claim, fault: LakeError) -> Result<End> {
        let is_open = fault.kind == LakeErrorKind::Unavailable || job.second.is_doubted(job.key);
        if let Some(upload) = &claim.row.upload {
            // Best effort here; whoever takes the row over aborts it again.
            if job.second.upload_abort(job.key, upload).await.is_err() {
                return Err(error::lake(fault));
            }
        }
        let unsettled_until_ms = if is_open { self.settled_ms().await? } else { 0 };
        let row = CopyRow { session: [0; 16], upload: None, unsettled_until_ms, ..claim.row };
        if self.put_copy(job, &row, Some(claim.seq)).await?.is_some() {
            job.second.end_doubt(job.key);
        }
        match fault.kind {
            // Somebody was there first: look again.
            LakeErrorKind::Changed => Ok(End::Later),
            _ => Err(error::lake(fault)),
        }
    }

    async fn copy_object(
        self: &Arc<Core>,
        job: &Job<'_>,
        held: &Held,
        (row, seq): (CopyRow, Option<u64>),
        expect: Expect,
    ) -> Result<End> {
        let Source::Object(object) = &held.source else { return Ok(End::Later) };
        let _alone = match object.size > LONG_BYTES {
            true => Some(self.replicas.long.lock().await),
            false => None,
        };
        let version = object.version.clone().unwrap_or_else(|| format!("etag {}", object.etag));
        let Some(mut claim) = self.claim_copy(job, held, row, seq, version).await? else {
            return Ok(End::Later);
        };
        let sent = self.send_copy(job, held, object, &mut claim, expect).await;
        let etag = match sent {
            Ok(etag) => etag,
            Err(Fault::Before(fault)) => {
                // Nothing was sent that could take effect.
                let row = CopyRow { session: [0; 16], ..claim.row };
                self.put_copy(job, &row, Some(claim.seq)).await?;
                return Err(fault);
            }
            Err(Fault::Lake(fault)) => return self.failed(job, claim, fault).await,
        };
        let there = match self.head(job.second.as_ref(), job.key).await {
            Ok(there) => there.as_ref().map(seen),
            Err(fault) => return self.failed(job, claim, fault).await,
        };
        let is_sound = |there: &Object| {
            there.etag == etag
                && there.size == object.size
                && (there.crc64.is_none() || object.crc64.is_none() || there.crc64 == object.crc64)
        };
        let Some(there) = there.filter(is_sound) else {
            let message = "the second lake does not have what was sent to it";
            return self.failed(job, claim, LakeError::new(LakeErrorKind::Changed, message)).await;
        };
        crate::core::add(&self.replicas.copied_files, 1);
        crate::core::add(&self.replicas.copied_bytes, object.size);
        let mut row = confirmed(&claim.row, &held.source, there.etag);
        if job.second.is_doubted(job.key) {
            // A try that was sent again may still come.
            row.attempts = claim.row.attempts.clone();
            row.unsettled_until_ms = self.settled_ms().await?;
            job.second.end_doubt(job.key);
        }
        self.note_goes(job, held, Some(Some(row)), Some(claim.seq)).await
    }

    async fn send_copy(
        self: &Arc<Core>,
        job: &Job<'_>,
        held: &Held,
        object: &Object,
        claim: &mut Claim,
        expect: Expect,
    ) -> std::result::Result<String, Fault> {
        let from = self.open_source(job, held, object).await.map_err(Fault::Before)?;
        let options = PutOptions {
            attributes: from.attributes.clone(),
            condition: match expect {
                Expect::Absent => Condition::Absent,
                Expect::Etag(etag) => Condition::Matches(etag),
            },
            crc64: object.crc64,
        };
        let (key, can) = (job.key, job.second.capabilities());
        if object.size <= PART_BYTES.min(can.put_bytes_max) {
            let body = self.read_source(&from, 0..object.size).await.map_err(Fault::Before)?;
            return job.second.put(key, body, options).await.map_err(Fault::Lake);
        }
        let part_bytes =
            PART_BYTES.max(object.size.div_ceil(u64::from(can.parts_max.max(1)))).max(can.part_bytes_min);
        let begun = job.second.upload_begin(key, options.attributes.clone()).await;
        let upload = begun.map_err(Fault::Lake)?;
        claim.row.upload = Some(upload.clone());
        match self.put_copy(job, &claim.row, Some(claim.seq)).await {
            Ok(Some(seq)) => claim.seq = seq,
            lost => {
                // Nobody would know of it: it must not be left behind.
                job.second.upload_abort(key, &upload).await.map_err(Fault::Lake)?;
                claim.row.upload = None;
                return Err(Fault::Before(lost.err().unwrap_or_else(crate::drain::lost)));
            }
        }
        let mut parts = Vec::new();
        for (number, start) in (1u32..).zip((0..object.size).step_by(part_bytes as usize)) {
            let range = start..(start + part_bytes).min(object.size);
            let body = match self.read_source(&from, range).await {
                Ok(body) => body,
                Err(fault) => {
                    job.second.upload_abort(key, &upload).await.map_err(Fault::Lake)?;
                    claim.row.upload = None;
                    return Err(Fault::Before(fault));
                }
            };
            parts.push(job.second.upload_part(key, &upload, number, body).await.map_err(Fault::Lake)?);
        }
        // Parts may have taken hours: whoever took the copy over, or promoted the lake, has the last word.
        match self.put_copy(job, &claim.row, Some(claim.seq)).await {
            Ok(Some(seq)) => claim.seq = seq,
            lost => {
                job.second.upload_abort(key, &upload).await.map_err(Fault::Lake)?;
                claim.row.upload = None;
                return Err(Fault::Before(lost.err().unwrap_or_else(crate::drain::lost)));
            }
        }
        let etag = job.second.upload_complete(key, &upload, parts, options).await.map_err(Fault::Lake)?;
        claim.row.upload = None;
        Ok(etag)
    }

    /// Where the bytes come from: the file, whose chunks may still be in rings, or the object as it is.
    async fn open_source(self: &Arc<Core>, job: &Job<'_>, held: &Held, object: &Object) -> Result<Opened> {
        if let Some(file) = &held.file {
            let pin = self.pins.pin(file.version());
            let open = self.file(job.volume, job.key, file, pin).await?;
            let properties = Properties::decode(&file.properties)?;
            let attributes = attributes::to_lake(&self.signer, job.key, file, &properties, self.seq_known());
            return Ok(Opened { bytes: Origin::File(Box::new(open)), attributes });
        }
        let first = job.replica.first(self.volumes.lakes()).await?;
        // As it is, with what was signed of it.
        let found = first.head(job.key).await.map_err(error::lake)?;
        let found = found.filter(|found| found.etag == object.etag);
        let found = found.ok_or_else(crate::drain::lost)?;
        let attributes = found.attributes.unwrap_or_default();
        let bytes = Origin::Object { lake: first, key: job.key.to_vec(), etag: object.etag.clone() };
        Ok(Opened { bytes, attributes })
    }

    async fn read_source(&self, from: &Opened, range: std::ops::Range<u64>) -> Result<Vec<Bytes>> {
        self.drainer.pace.turn(range.end - range.start).await;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        match &from.bytes {
            Origin::Object { lake, key, etag } => {
                Ok(vec![lake.get(key, range, Some(etag)).await.map_err(error::lake)?])
            }
            Origin::File(open) => {
                let (mut body, mut offset) = (Vec::new(), range.start);
                while offset < range.end {
                    let wish = ((range.end - offset) as usize).min(PIECE);
                    let bytes = open.read(offset, wish).await?;
                    offset += bytes.len() as u64;
                    // Copied: it must not hold the buffers of the drives while the lake takes its time.
                    body.push(Bytes::copy_from_slice(&bytes));
                }
                Ok(body)
            }
        }
    }
}

/// Where a copy comes from.
struct Opened {
    bytes: Origin,
    attributes: stoker_lake::Attributes,
}

enum Origin {
    File(Box<crate::reader::NodeFile>),
    Object { lake: Arc<dyn Lake>, key: Vec<u8>, etag: String },
}

/// Why bytes did not get there.
enum Fault {
    /// Nothing was sent that could take effect.
    Before(StoreError),
    Lake(LakeError),
}

/// An object as a lake says; of what it says of itself only what this cluster signed is left.
fn seen(found: &ObjectInfo) -> Object {
    Object {
        etag: found.etag.clone(),
        size: found.size,
        crc64: found.crc64,
        version: found.attributes.as_ref().and_then(attributes::version).map(str::to_owned),
    }
}

fn confirmed(row: &CopyRow, source: &Source, etag: String) -> CopyRow {
    let Source::Object(object) = source else { return CopyRow::default() };
    CopyRow {
        fence: row.fence,
        source: Some(object.etag.clone()),
        etag: Some(etag),
        size: object.size,
        ..CopyRow::default()
    }
}
