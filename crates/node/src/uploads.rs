//! Multipart uploads. A part is durable and has its row before it is acknowledged; completing one moves references, not
//! bytes.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Outcome, Range, Write, prefix_end};
use stoker_catalog::names::{garbage_writes, share_writes};
use stoker_catalog::rows::{CompletedRow, FileRow, Layout, PartRow, RowValue, RunRow, UploadRow, keys};
use stoker_format::{ChunkRun, NameRecord, NodeId, VersionId};
use stoker_store::{
    BoxFuture, Checksum, ChecksumKind, Condition, ErrorKind, Finish, Key, PartChoice, PartInfo, PartsPage,
    Receipt, Result, StoreError, Subject, UploadId, UploadInfo, UploadsPage,
};

use crate::cell::is_holders_lost;
use crate::core::{Core, add, copies, etag, state};
use crate::part_copy::Borrowed;
use crate::properties::Properties;
use crate::publish::{Job, Keeps, combine, outdated, owners};
use crate::volumes::Volume;
use crate::writer::{Purpose, RunList, Written, is_unknown};
use crate::{clock, error, name_record};

/// Highest part number.
pub(crate) const PART_NUMBER_MAX: u32 = 10_000;

/// Smallest part that may be followed by another, as in S3.
const PART_BYTES_MIN: u64 = 5 << 20;

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

fn parse(upload: &UploadId) -> Result<VersionId> {
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
            let mut row = PartRow {
                version: written.version.0,
                size: written.runs.size(),
                etag: finish.etag.unwrap_or_else(|| etag(written.version, written.crc64, 1)),
                crc64: Some(written.crc64),
                modified_ms: clock::now_ms(),
                runs: written.runs.runs().iter().map(RunRow::from).collect(),
                holders: written.holders,
                properties: properties.encode()?,
            };
            let mut sessions = written.sessions;
            let mut extra = Commit::new();
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
            core.put_part(&self, row, sessions, extra).await
        })
    }
}

impl Core {
    /// Begins an upload.
    pub async fn upload_begin(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        attributes: stoker_store::Attributes,
        checksum: Option<ChecksumKind>,
    ) -> Result<UploadInfo> {
        self.check_open()?;
        volume.check_writable()?;
        self.check_lake(volume, key.as_bytes(), &attributes).await?;
        let upload = clock::mint();
        let properties =
            Properties { attributes: attributes.clone(), checksums: Vec::new(), announced: checksum };
        let row = UploadRow { begun_ms: clock::now_ms(), properties: properties.encode()? };
        let mut commit = Commit::new().put(keys::upload(volume.id, key.as_bytes(), upload), row.encode());
        commit.checks = self.guards(volume);
        match self.catalog.commit(commit).await.map_err(error::catalog)? {
            Outcome::Done { seq } => self.saw(seq),
            Outcome::Failed { check } => {
                return Err(error::refusal(stoker_catalog::names::Refusal::Guard(check)));
            }
        }
        let upload = UploadId(upload.to_string());
        Ok(UploadInfo { key: key.clone(), upload, begun_ms: row.begun_ms, attributes, checksum })
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
        Ok(PartPurpose { volume: volume.clone(), key, upload, number, borrowed: None })
    }

    async fn put_part(
        self: &Arc<Core>,
        purpose: &PartPurpose,
        row: PartRow,
        sessions: Vec<(NodeId, [u8; 16])>,
        extra: Commit,
    ) -> Result<Receipt> {
        let PartPurpose { volume, key, upload, number, .. } = purpose;
        let (upload, number, checks, writes) = (*upload, *number, extra.checks, extra.writes);
        let row_key = keys::part(upload, number);
        for _ in 0..100 {
            let old = self.catalog.get(&[&row_key]).await.map_err(error::catalog)?.pop().flatten();
            let mut commit = Commit { checks: self.guards(volume), writes: Vec::new() };
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
                Outcome::Failed { check } if check < firm => {
                    return Err(error::refusal(stoker_catalog::names::Refusal::Guard(check)));
                }
                Outcome::Failed { check } if check < firm + checks.len() => {
                    return Err(outdated());
                }
                Outcome::Failed { .. } => continue,
            }
        }
        Err(error::refusal(stoker_catalog::names::Refusal::Contended))
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
            });
        }
        Ok(UploadsPage { uploads, more: page.more })
    }

    /// All parts of an upload.
    async fn all_parts(&self, upload: VersionId) -> Result<Vec<(u16, PartRow, u64)>> {
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

    /// Publishes the chosen parts as one file.
    pub async fn complete(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        upload: &UploadId,
        choice: Vec<PartChoice>,
        condition: Condition,
        finish: Finish,
    ) -> Result<Receipt> {
        self.check_open()?;
        volume.check_writable()?;
        let _work = self.work.begin();
        let id = parse(upload)?;
        let (row, row_seq) = match self.upload_row(volume, key.as_bytes(), id).await {
            Ok(found) => found,
            Err(fault) => return self.completed(volume, key, id).await?.ok_or(fault),
        };
        let parts = self.all_parts(id).await?;
        let chosen = choose(&parts, &choice)?;
        let mut properties = Properties::decode(&row.properties)?;
        let version = clock::mint();
        let crc64 = combine(chosen.iter().map(|part| (part.crc64, part.size)));
        if let Some(crc64) = crc64 {
            check_whole(&finish, crc64)?;
        }
        properties.checksums = finish.checksums.clone();
        properties.announced = None;
        let mut runs = RunList::default();
        for part in &chosen {
            part.runs.iter().for_each(|run| runs.push_run(&run.at(0)));
        }
        let mut holders = Vec::new();
        for holder in chosen.iter().flat_map(|part| &part.holders) {
            if !holders.contains(holder) {
                holders.push(holder.clone());
            }
        }
        let now_ms = clock::now_ms();
        let mut file = FileRow {
            inode: 0,
            version: version.0,
            size: runs.size(),
            etag: finish
                .etag
                .clone()
                .unwrap_or_else(|| etag(version, crc64.unwrap_or_default(), chosen.len())),
            modified_ms: now_ms,
            crc64,
            layout: Layout::Rows,
            holders,
            drain: Core::drain_of(volume),
            lake: None,
            source: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            name_record: None,
            properties: properties.encode()?,
            home: self.node.0,
        };
        // A client that knows S3 uploads such a part again.
        let gone = |fault: StoreError| StoreError::about(ErrorKind::Invalid, Subject::Part, fault.message);
        let (mut sessions, keeps) = (Vec::new(), Keeps::default());
        let _marks = self.marks.read().await;
        if let Err(fault) = self.holder_checks(&file.holders, &[]).await {
            if !is_holders_lost(&fault) {
                return Err(gone(fault));
            }
            // A node that had some of the parts is lost: what is left of them is copied to another one.
            let again = self.secure(volume, runs.runs(), &file.holders).await?.ok_or_else(|| gone(fault))?;
            (file.holders, sessions) = (again.holders(), again.sessions());
            keeps.lock().unwrap().push(again);
        }
        // The name first (R6), on a drive; then the transaction that makes it true.
        let seq = self.seq_seen.load(std::sync::atomic::Ordering::Relaxed);
        let record = name_record::put(volume.id, key.as_bytes(), &file, &properties, runs.runs(), seq);
        self.leave_record(volume, version, &record).await?;
        let mut change = Commit::new();
        for part in &chosen {
            for owner in owners_of(part) {
                self.names
                    .move_share(&mut change, owner, VersionId(part.version), version)
                    .await
                    .map_err(error::catalog)?;
            }
        }
        change.checks.push(Check::Seq(keys::upload(volume.id, key.as_bytes(), id), row_seq));
        change.checks.extend(parts.iter().map(|(number, _, seq)| Check::Seq(keys::part(id, *number), *seq)));
        change.writes.push(Write::Delete(keys::upload(volume.id, key.as_bytes(), id)));
        let all = keys::parts(id);
        let end = prefix_end(&all).expect("a table is not 0xff");
        // A part that came after the look would lose its row.
        change.checks.push(Check::AtMost { start: all.clone(), end: end.clone(), max: parts.len() });
        change.writes.push(Write::DeleteRange(all, end));
        for (_, part, _) in &parts {
            if !chosen.iter().any(|kept| kept.version == part.version) {
                change.writes.extend(part_garbage(part));
            }
        }
        let completed = CompletedRow {
            volume: volume.id.0,
            key: key.as_bytes().to_vec(),
            version: version.0,
            since_ms: now_ms,
        };
        change.writes.push(Write::Put(keys::completed(id), completed.encode()));
        let job = Job {
            row: file,
            runs,
            upload_parts: part_sizes(&chosen),
            condition,
            append: false,
            has_layout: false,
            checks: change.checks,
            writes: change.writes,
            sessions,
            keeps,
        };
        let published = self.publish(volume, key.as_bytes(), job).await;
        if published.as_ref().is_err_and(|fault| !is_unknown(fault)) {
            let id = stoker_format::ChunkId::new(version, crate::rings::NAME_INDEX);
            self.rings.delete(&[id]).await?;
        }
        self.garbage.notify_one();
        let receipt = published?;
        add(&self.stats.publishes, 1);
        add(&self.stats.publish_bytes, receipt.size);
        Ok(receipt)
    }

    /// The receipt of an upload that was completed already, if what it became is still there.
    async fn completed(&self, volume: &Arc<Volume>, key: &Key, upload: VersionId) -> Result<Option<Receipt>> {
        let row =
            self.catalog.get(&[&keys::completed(upload)]).await.map_err(error::catalog)?.pop().flatten();
        let row = row.as_ref().map(CompletedRow::of).transpose().map_err(error::catalog)?;
        let Some(row) = row.filter(|row| row.volume == volume.id.0 && row.key == key.as_bytes()) else {
            return Ok(None);
        };
        let located = self.names.lookup(volume.id, key.as_bytes()).await.map_err(error::catalog)?;
        let located = located.filter(|located| located.file.version == row.version);
        located.map(|at| Core::receipt(volume, key.as_bytes(), &at.file, at.seq)).transpose()
    }

    /// Forgets uploads that nobody went on with, and completions that nobody will ask for again.
    pub async fn tidy_uploads(self: &Arc<Core>) -> Result<()> {
        let now_ms = clock::now_ms();
        let mut stale = Vec::new();
        self.each(b"u".to_vec(), |row| {
            let upload = UploadRow::of(row).map_err(error::catalog)?;
            if let Some((key, id)) = keys::upload_parts(&row.key)
                && let Some(volume) = keys::volume_part(&row.key)
                && upload.begun_ms + UPLOAD_AGE_MS_MAX < now_ms
                && stale.len() < TIDIED_MAX
            {
                stale.push((volume, key.to_vec(), id));
            }
            Ok(())
        })
        .await?;
        for (volume, key, id) in stale {
            let Some(volume) = self.volumes.by_id(volume).await? else { continue };
            if self.last_part_ms(id).await? + UPLOAD_AGE_MS_MAX < now_ms {
                tracing::info!(upload = %id, "an upload that nobody went on with for a week is aborted");
                let (key, upload) = (Key::new(&key[..])?, UploadId(id.to_string()));
                self.abort(&volume, &key, &upload).await?;
            }
        }
        let mut old = Commit::new();
        self.each(b"m".to_vec(), |row| {
            let completed = CompletedRow::of(row).map_err(error::catalog)?;
            if completed.since_ms + COMPLETED_MS_MAX < now_ms && old.writes.len() < TIDIED_MAX {
                old.writes.push(Write::Delete(row.key.clone()));
            }
            Ok(())
        })
        .await?;
        if !old.writes.is_empty() {
            let _ = self.catalog.commit(old).await.map_err(error::catalog)?;
        }
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
        Err(error::refusal(stoker_catalog::names::Refusal::Contended))
    }
}

fn owners_of(part: &PartRow) -> Vec<VersionId> {
    let runs: Vec<ChunkRun> = part.runs.iter().map(|run| run.at(0)).collect();
    owners(&runs, VersionId(part.version))
}

/// The rows that hand the chunks of a part to the collector.
fn part_garbage(part: &PartRow) -> Vec<Write> {
    garbage_writes(VersionId(part.version), &part.runs)
}

fn part_info(number: u16, part: &PartRow) -> Result<PartInfo> {
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
        class: volume.policy.class.in_cluster(copies(&part.holders) as usize),
        copies: 1,
        holders: Vec::new(),
        seq,
        drain: state(Core::drain_of(volume)),
        lake: None,
        lake_etag: None,
    })
}

/// The parts that a client asked for, checked as S3 does.
fn choose<'p>(parts: &'p [(u16, PartRow, u64)], choice: &[PartChoice]) -> Result<Vec<&'p PartRow>> {
    if choice.is_empty() {
        return Err(StoreError::about(
            ErrorKind::Invalid,
            Subject::Part,
            "an upload needs at least one part",
        ));
    }
    if choice.windows(2).any(|pair| pair[0].number >= pair[1].number) {
        let message = "parts must be listed in ascending order, each once";
        return Err(StoreError::about(ErrorKind::Invalid, Subject::PartOrder, message));
    }
    let mut chosen = Vec::with_capacity(choice.len());
    for wish in choice {
        let missing = || {
            let message = format!("part {} is not there, or has another etag", wish.number);
            StoreError::about(ErrorKind::Invalid, Subject::Part, message)
        };
        let at = parts.binary_search_by_key(&wish.number, |(number, _, _)| u32::from(*number));
        let part = &parts[at.map_err(|_| missing())?].1;
        if part.etag != wish.etag {
            return Err(missing());
        }
        if let Some(wanted) = &wish.checksum {
            let known = part_info(wish.number as u16, part)?.checksums;
            if known.iter().any(|sum| sum.kind == wanted.kind && sum.value != wanted.value) {
                return Err(missing());
            }
        }
        chosen.push(part);
    }
    let small = chosen[..chosen.len() - 1].iter().position(|part| part.size < PART_BYTES_MIN);
    if let Some(at) = small {
        let message = format!(
            "part {} has {} bytes: all parts but the last have at least {PART_BYTES_MIN}",
            choice[at].number, chosen[at].size
        );
        return Err(StoreError::about(ErrorKind::Invalid, Subject::PartSize, message));
    }
    Ok(chosen)
}

/// A checksum of the whole that the client gave must be right where we can tell.
fn check_whole(finish: &Finish, crc64: u64) -> Result<()> {
    let given = finish.checksums.iter().find(|sum| sum.kind == ChecksumKind::Crc64Nvme && sum.parts == 0);
    match given {
        Some(sum) if sum.value != crc64.to_be_bytes() => {
            let message = "the checksum of the whole does not fit the parts";
            Err(StoreError::about(ErrorKind::Invalid, Subject::Checksum, message))
        }
        _ => Ok(()),
    }
}

/// Lengths of parts, equal neighbours together.
fn part_sizes(parts: &[&PartRow]) -> Vec<(u64, u32)> {
    let mut sizes: Vec<(u64, u32)> = Vec::new();
    for part in parts {
        match sizes.last_mut() {
            Some((size, count)) if *size == part.size => *count += 1,
            _ => sizes.push((part.size, 1)),
        }
    }
    sizes
}
