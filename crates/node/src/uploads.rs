//! Multipart uploads. A part is durable and has its row before it is acknowledged.

use std::sync::Arc;

use stoker_catalog::Row;
use stoker_catalog::kv::{Check, Commit, Outcome, Range, Write, prefix_end};
use stoker_format::{ChunkRun, NameRecord, NodeId, VersionId};
use stoker_schema::names::{garbage_writes, share_writes};
use stoker_schema::rows::{AnswerRow, CompletedRow, HolderRow, PartRow, RowValue, RunRow, UploadRow, keys};
use stoker_store::{
    BoxFuture, Checksum, ChecksumKind, DrainState, ErrorKind, File, FileInfo, Finish, Key, PartInfo,
    PartsPage, Receipt, Result, StoreError, Subject, UploadId, UploadInfo, UploadsPage,
};

use crate::core::{Core, add, copies, holder, nodes, state};
use crate::lookup::no_such_key;
use crate::part_copy::Borrowed;
use crate::properties::{More, Properties};
use crate::publish::{outdated, owners};
use crate::reader::{NodeFile, Whereabouts};
use crate::volumes::Volume;
use crate::writer::{Purpose, RunList, Written};
use crate::{clock, error};

/// Highest part number.
pub(crate) const PART_NUMBER_MAX: u32 = 10_000;

/// An upload that nobody touched for so long is aborted: its parts take room on the drives and are in no lake.
const UPLOAD_AGE_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// How long a completion can be asked for again.
const COMPLETED_MS_MAX: u64 = 3_600_000;

/// Rows that one round of tidying removes at most.
const TIDIED_MAX: usize = 10_000;

fn no_such_upload() -> StoreError {
    let message = "there is no such upload: it was completed or aborted, or its id is wrong";
    StoreError::about(ErrorKind::NotFound, Subject::Upload, message)
}

pub(crate) fn parse(upload: &UploadId) -> Result<VersionId> {
    upload.0.parse().map_err(|_| no_such_upload())
}

fn check_number(number: u32) -> Result<u16> {
    if (1..=PART_NUMBER_MAX).contains(&number) {
        return Ok(number as u16);
    }
    let message = format!("part numbers go from 1 to {PART_NUMBER_MAX}");
    Err(StoreError::about(ErrorKind::Invalid, Subject::Part, message))
}

/// A part that will belong to an upload.
pub(crate) struct PartPurpose {
    pub volume: Arc<Volume>,
    pub key: Vec<u8>,
    pub upload: VersionId,
    pub number: u16,
    /// Chunks behind the bytes that are written for it.
    pub borrowed: Option<Borrowed>,
    /// The ETag of a part that is copied: of what it is a copy, because its bytes may not be read at all.
    pub etag: Option<String>,
}

impl Purpose for PartPurpose {
    fn name_record(&self, _: &Core, _: &Written, _: &Finish) -> Result<Option<NameRecord>> {
        Ok(None)
    }

    fn publish(
        self: Box<Self>,
        core: Arc<Core>,
        written: Written,
        finish: Finish,
    ) -> BoxFuture<'static, Result<Receipt>> {
        Box::pin(async move {
            let properties = Properties { checksums: finish.checksums, ..Properties::default() };
            let (size, named) = (written.runs.size(), finish.etag.or(self.etag.clone()));
            let has_md5 = named.is_some();
            let mut row = PartRow {
                version: written.version.0,
                size,
                etag: named.unwrap_or_else(|| part_etag(written.crc64, size)),
                crc64: Some(written.crc64),
                modified_ms: core.expiry.stamp_ms(),
                runs: written.runs.runs().iter().map(RunRow::from).collect(),
                holders: written.holders,
                properties: properties.encode()?,
            };
            let mut sessions = written.sessions;
            let mut extra = Commit::new();
            if let Some(spilled) = &written.spilled {
                (extra.checks, extra.writes) = spilled.changes();
            }
            if let Some(borrowed) = &self.borrowed {
                row.size += borrowed.runs.iter().map(ChunkRun::byte_len).sum::<u64>();
                row.crc64 = borrowed.crc64;
                row.runs.extend(borrowed.runs.iter().map(RunRow::from));
                row.holders.extend(
                    borrowed
                        .kept
                        .holders()
                        .into_iter()
                        .filter(|holder| !row.holders.contains(holder))
                        .collect::<Vec<_>>(),
                );
                sessions.extend(borrowed.kept.sessions());
                extra.checks.push(borrowed.check.clone());
                share_writes(&mut extra, &borrowed.owners(), borrowed.source, written.version);
            }
            core.put_part(&self, row, has_md5, sessions, extra).await
        })
    }
}

impl Core {
    /// Begins an upload.
    pub async fn upload_begin(
        &self,
        volume: &str,
        key: &Key,
        attributes: stoker_store::Attributes,
        checksum: Option<ChecksumKind>,
        is_full: bool,
    ) -> Result<UploadInfo> {
        self.check_open()?;
        let volume = &self.volumes.get(volume).await?;
        self.check_writable(volume)?;
        self.check_lake(volume, key.as_bytes(), &attributes).await?;
        let upload = clock::mint();
        let properties = Properties {
            attributes: attributes.clone(),
            checksums: Vec::new(),
            announced: checksum,
            more: More { is_full, parts: None, user: crate::publish::user(), lock: attributes.lock },
        };
        if properties.more.lock.is_some() && !volume.versions.versioning.has_lock {
            return Err(crate::versions::no_lock(volume));
        }
        let row = UploadRow { begun_ms: self.expiry.stamp_ms(), properties: properties.encode()? };
        let mut commit = Commit::new().put(keys::upload(volume.id, key.as_bytes(), upload), row.encode());
        commit.checks = self.guards(volume);
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.saw(seq),
            Outcome::Failed { check } => {
                return Err(error::refusal(stoker_schema::names::Refusal::Guard(check)));
            }
        }
        let upload = UploadId(upload.to_string());
        Ok(UploadInfo { key: key.clone(), upload, begun_ms: row.begun_ms, attributes, checksum, is_full })
    }

    /// An upload, if it is still under way.
    pub async fn upload_row(
        &self,
        volume: &Volume,
        key: &[u8],
        upload: VersionId,
    ) -> Result<(UploadRow, u64)> {
        let row_key = keys::upload(volume.id, key, upload);
        let row = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
        let row = row.ok_or_else(no_such_upload)?;
        Ok((UploadRow::of(&row).map_err(error::catalog)?, row.seq))
    }

    /// What a part will be written for.
    pub async fn part_purpose(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        upload: &UploadId,
        number: u32,
    ) -> Result<PartPurpose> {
        let (number, upload) = (check_number(number)?, parse(upload)?);
        self.upload_row(volume, key.as_bytes(), upload).await?;
        let key = key.as_bytes().to_vec();
        Ok(PartPurpose { volume: volume.clone(), key, upload, number, borrowed: None, etag: None })
    }

    async fn put_part(
        self: &Arc<Core>,
        purpose: &PartPurpose,
        mut row: PartRow,
        is_named: bool,
        sessions: Vec<(NodeId, [u8; 16])>,
        extra: Commit,
    ) -> Result<Receipt> {
        let PartPurpose { volume, key, upload, number, .. } = purpose;
        let (upload, number, checks, writes) = (*upload, *number, extra.checks, extra.writes);
        let row_key = keys::part(upload, number);
        for _ in 0..100 {
            let old = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            if let Some(old_row) = &old
                && let old = PartRow::of(old_row).map_err(error::catalog)?
                && is_same(&old, &row)
            {
                // The same bytes once more, perhaps long after the client went on with the first answer.
                if !is_named {
                    row.etag.clone_from(&old.etag);
                }
                let is_plain = checks.is_empty() && writes.is_empty() && row.etag == old.etag;
                if is_plain && self.holder_checks(&old.holders, &[]).await.is_ok() {
                    // What is there stays, so that whoever completes the upload now is not disturbed.
                    match self.drop_part(purpose, old_row, &row).await? {
                        Some(seq) => return part_receipt(volume, key, &old, seq),
                        None => continue,
                    }
                }
            }
            let mut commit = Commit { checks: self.guards(volume), writes: Vec::new() };
            let guards = commit.checks.len();
            commit.checks.extend(self.holder_checks(&row.holders, &sessions).await?);
            commit.checks.push(Check::Present(keys::upload(volume.id, key, upload)));
            let firm = commit.checks.len();
            commit.checks.extend(checks.iter().cloned());
            commit = commit.unchanged(row_key.clone(), old.as_ref()).put(row_key.clone(), row.encode());
            commit.writes.extend(writes.iter().cloned());
            if let Some(old) = &old {
                commit.writes.extend(part_garbage(&PartRow::of(old).map_err(error::catalog)?));
            }
            match self.catalog.commit(commit).await.map_err(error::catalog)? {
                Outcome::Done { seq } => {
                    self.saw(seq);
                    if old.is_some() {
                        self.garbage.notify_one();
                    }
                    return part_receipt(volume, key, &row, seq);
                }
                Outcome::Failed { check } if check + 1 == firm => return Err(no_such_upload()),
                // A holder is gone, and this node had not heard of it; the next look says so.
                Outcome::Failed { check } if (guards..firm).contains(&check) => {
                    drop(self.cell.load_view().await?)
                }
                Outcome::Failed { check } if check < firm => {
                    return Err(error::refusal(stoker_schema::names::Refusal::Guard(check)));
                }
                Outcome::Failed { check } if check < firm + checks.len() => {
                    return Err(outdated());
                }
                Outcome::Failed { .. } => continue,
            }
        }
        Err(error::refusal(stoker_schema::names::Refusal::Contended))
    }

    /// Lets a part go that has no row, because the one that is there has the same bytes; none if that changed meanwhile.
    async fn drop_part(&self, purpose: &PartPurpose, there: &Row, part: &PartRow) -> Result<Option<u64>> {
        let PartPurpose { volume, key, upload, number, .. } = purpose;
        let mut commit = Commit { checks: self.guards(volume), writes: part_garbage(part) };
        let guards = commit.checks.len();
        commit.checks.push(Check::Present(keys::upload(volume.id, key, *upload)));
        commit = commit.seq(keys::part(*upload, *number), there.seq);
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => {
                self.saw(seq);
                self.garbage.notify_one();
                Ok(Some(there.seq))
            }
            Outcome::Failed { check } if check == guards => Err(no_such_upload()),
            Outcome::Failed { check } if check < guards => {
                Err(error::refusal(stoker_schema::names::Refusal::Guard(check)))
            }
            Outcome::Failed { .. } => Ok(None),
        }
    }

    /// Parts of an upload.
    pub async fn parts_page(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        upload: &UploadId,
        after: u32,
        limit: usize,
    ) -> Result<PartsPage> {
        let id = parse(upload)?;
        let (row, _) = self.upload_row(volume, key.as_bytes(), id).await?;
        let properties = Properties::decode(&row.properties)?;
        let info = UploadInfo {
            key: key.clone(),
            upload: upload.clone(),
            begun_ms: row.begun_ms,
            attributes: properties.attributes,
            checksum: properties.announced,
            is_full: properties.more.is_full,
        };
        let mut range = Range::prefix(&keys::parts(id), limit.clamp(1, 1_000));
        range.start = keys::part(id, after.min(u32::from(u16::MAX) - 1) as u16 + 1);
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        let mut parts = Vec::new();
        for row in &page.rows {
            let part = PartRow::of(row).map_err(error::catalog)?;
            let number = keys::part_number(&row.key).unwrap_or_default();
            parts.push(part_info(number, &part)?);
        }
        if limit == 0 {
            parts.clear();
        }
        Ok(PartsPage { upload: info, parts, more: page.more })
    }

    /// The checksums of the parts of a file.
    pub async fn part_checksums(&self, volume: &str, key: &Key) -> Result<(VersionId, Vec<Checksum>)> {
        let volume = self.volumes.get(volume).await?;
        let path = self.version_path(&volume, key).await?;
        let seen = self.seen(&volume, &path).await?;
        let file = seen.ok_or_else(|| no_such_key(key.as_bytes()))?.file;
        let sums = Properties::decode(&file.properties)?.more.parts;
        Ok((file.version(), sums.map(|sums| sums.checksums()).unwrap_or_default()))
    }

    /// Opens a part.
    pub async fn open_part(
        self: &Arc<Core>,
        volume: &str,
        key: &Key,
        upload: &UploadId,
        number: u32,
    ) -> Result<Box<dyn File>> {
        let (number, id) = (check_number(number)?, parse(upload)?);
        let volume = self.volumes.get(volume).await?;
        self.upload_row(&volume, key.as_bytes(), id).await?;
        let row_key = keys::part(id, number);
        let look = async || -> Result<Option<Row>> {
            Ok(self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten())
        };
        loop {
            let gone = || StoreError::about(ErrorKind::Invalid, Subject::Part, "the part is not there");
            let row = look().await?.ok_or_else(gone)?;
            let part = PartRow::of(&row).map_err(error::catalog)?;
            let runs: Vec<ChunkRun> = place_runs(&part);
            let pins = self.pins.pin_reader(self.pins.pin(VersionId(part.version)), &runs);
            // Pinned now; the collector may have been on its way before.
            if look().await?.is_none_or(|now| now.seq != row.seq) {
                continue;
            }
            let info = FileInfo {
                key: key.clone(),
                size: part.size,
                etag: part.etag.clone(),
                modified_ms: part.modified_ms,
                version: VersionId(part.version),
                inode: 0,
                attributes: Default::default(),
                checksums: part_info(number, &part)?.checksums,
                part_sizes: Vec::new(),
                drain: DrainState::Never,
                links: 1,
                allocated: None,
                past: None,
                expires: None,
            };
            let own = |holder: &HolderRow| NodeId(holder.node);
            let peers = part.holders.iter().map(own).filter(|node| *node != self.node).collect();
            let whereabouts = Whereabouts { peers, ..Whereabouts::default() };
            let part = NodeFile::new(self.clone(), &volume, info, runs, whereabouts, pins);
            return Ok(Box::new(part));
        }
    }

    /// Uploads under way.
    pub async fn uploads_page(
        &self,
        volume: &Arc<Volume>,
        prefix: &[u8],
        after: Option<(Vec<u8>, Option<UploadId>)>,
        limit: usize,
    ) -> Result<UploadsPage> {
        let mut range = Range::prefix(&keys::uploads(volume.id, prefix), limit.clamp(1, 1_000));
        if let Some((key, upload)) = after {
            let start = match upload.as_ref().and_then(|upload| parse(upload).ok()) {
                Some(upload) => [keys::upload(volume.id, &key, upload), vec![0]].concat(),
                // Behind every upload of that key.
                None => [keys::uploads(volume.id, &key), vec![1]].concat(),
            };
            range.start = range.start.max(start);
        }
        if range.end.as_ref().is_some_and(|end| *end <= range.start) {
            return Ok(UploadsPage::default());
        }
        let page = self.catalog.range(range).await.map_err(error::catalog)?;
        let mut uploads = Vec::new();
        for row in &page.rows {
            let Some((key, upload)) = keys::upload_parts(&row.key) else { continue };
            let value = UploadRow::of(row).map_err(error::catalog)?;
            let properties = Properties::decode(&value.properties)?;
            uploads.push(UploadInfo {
                key: Key::new(key)?,
                upload: UploadId(upload.to_string()),
                begun_ms: value.begun_ms,
                attributes: properties.attributes,
                checksum: properties.announced,
                is_full: properties.more.is_full,
            });
        }
        Ok(UploadsPage { uploads, more: page.more })
    }

    /// All parts of an upload.
    pub async fn all_parts(&self, upload: VersionId) -> Result<Vec<(u16, PartRow, u64)>> {
        let mut range = Range::prefix(&keys::parts(upload), 10_000);
        let mut parts = Vec::new();
        loop {
            let page = self.catalog.range(range.clone()).await.map_err(error::catalog)?;
            for row in &page.rows {
                let number = keys::part_number(&row.key).unwrap_or_default();
                parts.push((number, PartRow::of(row).map_err(error::catalog)?, row.seq));
            }
            match page.rows.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => return Ok(parts),
            }
        }
    }

    /// Forgets uploads that nobody went on with, and completions that nobody will ask for again.
    pub async fn tidy_uploads(self: &Arc<Core>) -> Result<()> {
        let now_ms = self.expiry.now_ms();
        let mut stale = Vec::new();
        self.each(b"u".to_vec(), |row| {
            let upload = UploadRow::of(row).map_err(error::catalog)?;
            if let Some((key, id)) = keys::upload_parts(&row.key)
                && let Some(volume) = keys::volume_part(&row.key)
                && upload.begun_ms.saturating_add(UPLOAD_AGE_MS_MAX) < now_ms
                && stale.len() < TIDIED_MAX
            {
                stale.push((volume, key.to_vec(), id));
            }
            Ok(())
        })
        .await?;
        for (volume, key, id) in stale {
            let Some(volume) = self.volumes.by_id(volume).await? else { continue };
            if self.last_part_ms(id).await?.saturating_add(UPLOAD_AGE_MS_MAX) < now_ms {
                tracing::info!(upload = %id, "an upload that nobody went on with for a week is aborted");
                let (key, upload) = (Key::new(&key[..])?, UploadId(id.to_string()));
                self.abort(&volume, &key, &upload).await?;
            }
        }
        let mut old = Commit::new();
        let mut see = |key: &[u8], since_ms: u64| {
            if since_ms.saturating_add(COMPLETED_MS_MAX) < now_ms && old.writes.len() < TIDIED_MAX {
                old.writes.push(Write::Delete(key.to_vec()));
            }
        };
        self.each(keys::COMPLETED.to_vec(), |row| {
            see(&row.key, CompletedRow::of(row).map_err(error::catalog)?.since_ms);
            Ok(())
        })
        .await?;
        self.each(keys::ANSWERS.to_vec(), |row| {
            see(&row.key, AnswerRow::of(row).map_err(error::catalog)?.since_ms);
            Ok(())
        })
        .await?;
        if !old.writes.is_empty() {
            let _ = self.catalog.commit(old).await.map_err(error::catalog)?;
        }
        add(&self.stats.expiry_rounds, 1);
        Ok(())
    }

    async fn last_part_ms(&self, upload: VersionId) -> Result<u64> {
        Ok(self.all_parts(upload).await?.iter().map(|(_, part, _)| part.modified_ms).max().unwrap_or(0))
    }

    /// Forgets an upload.
    pub async fn abort(self: &Arc<Core>, volume: &Arc<Volume>, key: &Key, upload: &UploadId) -> Result<()> {
        self.check_open()?;
        let id = parse(upload)?;
        for _ in 0..100 {
            let (_, seq) = self.upload_row(volume, key.as_bytes(), id).await?;
            let parts = self.all_parts(id).await?;
            let row_key = keys::upload(volume.id, key.as_bytes(), id);
            let mut commit = Commit::new().seq(row_key.clone(), seq).delete(row_key);
            for (number, part, seq) in &parts {
                commit = commit.seq(keys::part(id, *number), *seq).delete(keys::part(id, *number));
                commit.writes.extend(part_garbage(part));
            }
            let all = keys::parts(id);
            let end = prefix_end(&all).expect("a table is not 0xff");
            commit = commit.at_most(all, end, parts.len());
            if let Outcome::Done { seq } = self.catalog.commit(commit).await.map_err(error::catalog)? {
                self.saw(seq);
                self.garbage.notify_one();
                return Ok(());
            }
        }
        Err(error::refusal(stoker_schema::names::Refusal::Contended))
    }
}

pub(crate) fn owners_of(part: &PartRow) -> Vec<VersionId> {
    let runs: Vec<ChunkRun> = part.runs.iter().map(|run| run.at(0)).collect();
    owners(&runs, VersionId(part.version))
}

/// The runs of a part, one behind the other from its start.
fn place_runs(part: &PartRow) -> Vec<ChunkRun> {
    let mut all = RunList::default();
    part.runs.iter().for_each(|run| all.push_run(&run.at(0)));
    all.runs().to_vec()
}

/// The ETag of a part without an MD5: one of its bytes, so that a part that is sent again, by a client that did not hear the answer or by a
/// proxy that sent it late, is the part that the client knows. Unlike an MD5, as all ETags of ours. (D21)
fn part_etag(crc64: u64, size: u64) -> String {
    format!("{crc64:016x}{size:016x}-1")
}

/// Whether two parts have the same bytes, as far as that is known.
fn is_same(one: &PartRow, other: &PartRow) -> bool {
    one.size == other.size && (one.etag == other.etag || one.crc64.is_some() && one.crc64 == other.crc64)
}

/// Whether a part is the one that a client saw under this ETag. Where the same bytes came with an MD5 and without one, it has two.
pub(crate) fn is_known_as(part: &PartRow, etag: &str) -> bool {
    part.etag == etag || part.crc64.is_some_and(|crc64| part_etag(crc64, part.size) == etag)
}

/// The rows that hand the chunks of a part to the collector.
pub(crate) fn part_garbage(part: &PartRow) -> Vec<Write> {
    garbage_writes(VersionId(part.version), &part.runs)
}

pub(crate) fn part_info(number: u16, part: &PartRow) -> Result<PartInfo> {
    let mut checksums = Properties::decode(&part.properties)?.checksums;
    if let Some(crc64) = part.crc64
        && !checksums.iter().any(|sum| sum.kind == ChecksumKind::Crc64Nvme)
    {
        let value = crc64.to_be_bytes().to_vec();
        checksums.push(Checksum { kind: ChecksumKind::Crc64Nvme, value, parts: 0 });
    }
    Ok(PartInfo {
        number: u32::from(number),
        size: part.size,
        etag: part.etag.clone(),
        modified_ms: part.modified_ms,
        checksums,
    })
}

fn part_receipt(volume: &Volume, key: &[u8], part: &PartRow, seq: u64) -> Result<Receipt> {
    let info = part_info(0, part)?;
    Ok(Receipt {
        volume: volume.name.clone(),
        key: String::from_utf8_lossy(key).into_owned(),
        version: VersionId(part.version),
        size: part.size,
        etag: part.etag.clone(),
        checksums: info.checksums,
        class: volume.policy.class.in_cluster(nodes(&part.holders)),
        copies: copies(&part.holders, volume.policy.class),
        holders: part.holders.iter().map(holder).collect(),
        seq,
        drain: state(Core::drain_of(volume)),
        lake: None,
        lake_etag: None,
        version_id: None,
    })
}
