//! The end of an upload: its parts become a file, or a shard of a checkpoint set. References move, bytes do not.

use std::sync::Arc;

use stoker_catalog::kv::{Check, Commit, Write, prefix_end};
use stoker_format::{ChunkRun, VersionId};
use stoker_schema::rows::{AnswerRow, CompletedRow, FileRow, PartRow, RowValue, keys};
use stoker_store::{
    ChecksumKind, Condition, DrainState, ErrorKind, Finish, Key, PartChoice, Receipt, Result, SetId,
    ShardUpload, StoreError, Subject, UploadId,
};

use crate::cell::Keepers;
use crate::cell::is_holders_lost;
use crate::core::{Core, checksums, etag};
use crate::name_record::Cut;
use crate::properties::{More, PartSums, Properties};
use crate::publish::{Job, Keeps, combine, is_outdated};
use crate::sets::ShardPlace;
use crate::uploads::{is_known_as, owners_of, parse, part_garbage, part_info};
use crate::volumes::Volume;
use crate::writer::RunList;
use crate::{clock, error, name_record};

/// Smallest part that may be followed by another, as in S3.
const PART_BYTES_MIN: u64 = 5 << 20;

/// Tries while parts come in for another time.
const TRIES_MAX: usize = 10;

/// An upload that is to be ended well.
#[derive(Clone)]
struct Completion {
    upload: VersionId,
    choice: Vec<PartChoice>,
    condition: Condition,
    finish: Finish,
    /// The shard that it becomes; a file of its own otherwise.
    place: Option<ShardPlace>,
}

impl Core {
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
        let wish = Completion { upload: parse(upload)?, choice, condition, finish, place: None };
        self.complete_as(volume, key, wish).await
    }

    /// Makes a shard of a checkpoint set of the chosen parts.
    pub async fn complete_shard(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        set: SetId,
        shard: ShardUpload,
    ) -> Result<Receipt> {
        let ShardUpload { number, writer, upload, parts, finish } = shard;
        let place = self.shard_place(volume, key, set, number, writer).await?;
        let condition = Condition::default();
        let upload = parse(&upload)?;
        let wish = Completion { upload, choice: parts, condition, finish, place: Some(place) };
        self.complete_as(volume, key, wish).await
    }

    async fn complete_as(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        wish: Completion,
    ) -> Result<Receipt> {
        self.check_open()?;
        self.check_writable(volume)?;
        let _work = self.work.begin();
        let (upload, place) = (wish.upload, wish.place.clone());
        let mut tries = 0;
        let fault = loop {
            match self.complete_now(volume, key, wish.clone()).await {
                Ok(receipt) => return Ok(receipt),
                // A part that was sent twice came for the second time just now.
                Err(fault) if is_outdated(&fault) && tries < TRIES_MAX => tries += 1,
                Err(fault) => break fault,
            }
            if let Some(receipt) = self.completed(volume, key, upload, place.as_ref()).await? {
                return Ok(receipt);
            }
        };
        // It was completed before this began, or meanwhile: a client asks another node as soon as its own is gone, and the commit
        // of that one may still be under way.
        self.completed(volume, key, upload, place.as_ref()).await?.ok_or(fault)
    }

    async fn complete_now(
        self: &Arc<Core>,
        volume: &Arc<Volume>,
        key: &Key,
        wish: Completion,
    ) -> Result<Receipt> {
        let Completion { upload: id, choice, condition, finish, place } = wish;
        let (row, row_seq) = self.upload_row(volume, key.as_bytes(), id).await?;
        let parts = self.all_parts(id).await?;
        let chosen = choose(&parts, &choice)?;
        let mut properties = Properties::decode(&row.properties)?;
        let version = clock::mint();
        let crc64 = combine(chosen.iter().map(|part| (part.crc64, part.size)));
        if let Some(crc64) = crc64 {
            check_whole(&finish, crc64)?;
        }
        properties.checksums = finish.checksums.clone();
        let sums = match properties.announced.take() {
            None => None,
            Some(kind) => part_sums(kind, &chosen)?,
        };
        let user = crate::publish::user().or(properties.more.user.take());
        let past = crate::versions::locked_by(properties.more.lock.take().as_ref());
        properties.more = More { parts: sums, user, ..More::default() };
        if place.is_some() {
            // What said which shard it is has done its work, and names of this kind are ours in the lake.
            properties.attributes.meta.retain(|(name, _)| !name.starts_with("stoker-"));
        }
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
        if holders.is_empty() {
            // Somebody has to owe the drain of a file without bytes, too.
            holders = self.rings.holders([0]);
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
            layout: runs.rows_layout(),
            holders,
            drain: Core::drain_of(volume),
            lake: None,
            source: None,
            dirty_since_ms: now_ms,
            publishes: 0,
            name_record: None,
            properties: properties.encode()?,
            home: self.node.0,
            links: None,
            past,
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
            let on_drives: Vec<ChunkRun> =
                runs.runs().iter().filter(|run| !run.is_spilled()).copied().collect();
            let again = self.secure(volume, &on_drives, &file.holders).await?.ok_or_else(|| gone(fault))?;
            (file.holders, sessions) = (again.holders(), again.sessions());
            keeps.lock().unwrap().push(again);
        }
        file.home = self.home_among(&file.holders);
        // The name first (R6), on a drive; then the transaction that makes it true.
        let seq = self.seq_now().await;
        let upload_parts = part_sizes(&chosen);
        let cut = Cut { runs: Some(runs.runs()), upload_parts: &upload_parts };
        let mut record = name_record::put(volume.id, key.as_bytes(), &file, &properties, cut, seq);
        if let Some(place) = &place {
            record = name_record::of_set(record, place.set, place.number);
        }
        let left = self.leave_record(volume, version, &record, Keepers::Holders(&file.holders)).await?;
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
            since_ms: self.expiry.stamp_ms(),
        };
        change.writes.push(Write::Put(keys::completed(id), completed.encode()));
        let checksums = properties.checksums.clone();
        let answer = AnswerRow {
            etag: file.etag.clone(),
            size: file.size,
            crc64,
            properties: Properties { checksums, ..Properties::default() }.encode()?,
            since_ms: completed.since_ms,
        };
        change.writes.push(Write::Put(keys::answered(id), answer.encode()));
        let job = Job {
            row: file,
            runs,
            upload_parts,
            condition,
            append: false,
            base: None,
            has_layout: false,
            checks: change.checks,
            writes: change.writes,
            sessions,
            keeps,
            has_marks: true,
            shard: None,
            keeps_links: false,
            link: None,
            pins: Default::default(),
        };
        let published = match &place {
            None => self.publish(volume, key.as_bytes(), job).await,
            Some(place) => self.add_shard(volume, key.as_bytes(), place, job).await,
        };
        match &published {
            Err(fault) if !fault.is_unknown() => self.retract(version, left).await?,
            _ => drop(left),
        }
        self.garbage.notify_one();
        let receipt = published?;
        self.note_publish(volume.id, &receipt, receipt.size);
        Ok(receipt)
    }

    /// The receipt of an upload that was completed already, also if what it became was replaced or deleted since.
    async fn completed(
        &self,
        volume: &Arc<Volume>,
        key: &Key,
        upload: VersionId,
        place: Option<&ShardPlace>,
    ) -> Result<Option<Receipt>> {
        let asked = [&keys::completed(upload)[..], &keys::answered(upload)];
        let mut rows = self.catalog.get(&asked).await.map_err(error::catalog)?;
        let (answer, row) = (rows.pop().flatten(), rows.pop().flatten());
        let row = row.as_ref().map(CompletedRow::of).transpose().map_err(error::catalog)?;
        let Some(row) = row.filter(|row| row.volume == volume.id.0 && row.key == key.as_bytes()) else {
            return Ok(None);
        };
        if let Some(place) = place {
            return self.shard_receipt(volume, key.as_bytes(), place, VersionId(row.version)).await;
        }
        let located = self.names.lookup(volume.id, key.as_bytes()).await.map_err(error::catalog)?;
        let located = located.filter(|located| located.file.version == row.version);
        if let Some(at) = located {
            return Core::receipt(volume, key.as_bytes(), &at.file, at.seq).map(Some);
        }
        let Some(answer) = answer else { return Ok(None) };
        let (seq, answer) = (answer.seq, AnswerRow::of(&answer).map_err(error::catalog)?);
        let kept = Properties::decode(&answer.properties)?.checksums;
        // No copies and nobody who holds it: where that version is now, if it is anywhere, is not known here.
        Ok(Some(Receipt {
            volume: volume.name.clone(),
            key: String::from_utf8_lossy(key.as_bytes()).into_owned(),
            version: VersionId(row.version),
            size: answer.size,
            etag: answer.etag,
            checksums: checksums(answer.crc64, kept),
            class: volume.policy.class,
            copies: 0,
            holders: Vec::new(),
            seq,
            drain: DrainState::Never,
            lake: None,
            lake_etag: None,
            version_id: None,
        }))
    }
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
        if !is_known_as(part, &wish.etag) {
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

/// The checksums of this kind that the parts came with.
fn part_sums(kind: ChecksumKind, parts: &[&PartRow]) -> Result<Option<PartSums>> {
    let mut sums = Vec::with_capacity(parts.len());
    for part in parts {
        let of_part = part_info(0, part)?.checksums;
        sums.push(of_part.into_iter().find(|sum| sum.kind == kind));
    }
    Ok(PartSums::of(kind, sums.iter().map(Option::as_ref)))
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
