//! Multipart uploads, but for the parts themselves.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{
    Checksum, ChecksumKind, Condition, ErrorKind, Finish, Key, PartChoice, PartInfo, Receipt, SetState,
    ShardUpload, Store, StoreError, Subject, UploadId, UploadInfo,
};

use crate::access::{self, Intent};
use crate::hot::attributes;
use crate::hot::checksum;
use crate::hot::condition::{bare_etag, write_condition};
use crate::hot::put::add_receipt;
use crate::refusal::{Code, Refusal, Result};
use crate::sets::{self, ShardMark};
use crate::target::key_of;

use super::listing::{Spelling, limit};
use super::seam::{Caller, Operations, owner, timestamp};
use super::whole::whole_checksum;

/// Most parts or uploads in one answer.
const PAGE_MAX: usize = 1000;
/// Parts of an upload, as in S3.
const PARTS_MAX: usize = 10_000;
/// A completion that takes longer than this gets its 200 early, and the truth in the body.
const COMPLETE_QUIET_MAX: Duration = Duration::from_secs(5);

pub(super) async fn create_multipart_upload(
    ops: &Operations,
    caller: &Caller,
    input: CreateMultipartUploadInput,
) -> Result<S3Response<CreateMultipartUploadOutput>> {
    access::check_key(caller.access(), Intent::Write, &input.bucket, input.key.as_bytes())?;
    let attributes = attributes::of_headers(caller.headers(), caller.access())?;
    let kind = caller.header("x-amz-checksum-algorithm").map(checksum::kind_named).transpose()?;
    let kind_type = checksum_type(kind, caller.header("x-amz-checksum-type"))?;
    let key = key_of(input.key)?;
    if let Some(mark) = ShardMark::take(&mut attributes.clone())? {
        // Whoever is refused now has not sent the parts yet.
        let set = mark.set(ops.store.as_ref(), &input.bucket).await?;
        let info = ops.store.set_status(&input.bucket, set).await?.info;
        if info.state != SetState::Open {
            return Err(Refusal::new(Code::OperationAborted, "The checkpoint set takes no more shards."));
        }
    }
    let info = ops.store.upload_create(&input.bucket, &key, attributes, kind).await?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(key.to_string()),
        upload_id: Some(info.upload.0),
        checksum_algorithm: kind.map(|kind| ChecksumAlgorithm::from_static(checksum::name_of(kind))),
        checksum_type: kind_type.map(ChecksumType::from_static),
        ..CreateMultipartUploadOutput::default()
    }))
}

/// Whether the checksum of the whole will be one of the bytes or one of the parts' checksums.
fn checksum_type(kind: Option<ChecksumKind>, wanted: Option<&str>) -> Result<Option<&'static str>> {
    let invalid = || {
        Refusal::new(
            Code::InvalidRequest,
            "The checksum type cannot be used with the checksum algorithm of the upload.",
        )
    };
    Ok(match (kind, wanted) {
        (None, None) => None,
        (None, Some(_)) => return Err(invalid()),
        (Some(ChecksumKind::Crc64Nvme), None | Some("FULL_OBJECT")) => Some("FULL_OBJECT"),
        (Some(ChecksumKind::Crc32 | ChecksumKind::Crc32c), Some("FULL_OBJECT")) => Some("FULL_OBJECT"),
        (Some(ChecksumKind::Crc64Nvme), _) => return Err(invalid()),
        (Some(_), None | Some("COMPOSITE")) => Some("COMPOSITE"),
        (Some(_), Some(_)) => return Err(invalid()),
    })
}

pub(super) async fn complete_multipart_upload(
    ops: &Operations,
    caller: &Caller,
    input: CompleteMultipartUploadInput,
) -> Result<S3Response<CompleteMultipartUploadOutput>> {
    access::check_key(caller.access(), Intent::Write, &input.bucket, input.key.as_bytes())?;
    let choices = choices(input.multipart_upload)?;
    let completion = Completion {
        store: Arc::clone(&ops.store),
        volume: input.bucket,
        key: key_of(input.key)?,
        upload: UploadId(input.upload_id),
        choices,
        condition: write_condition(caller.headers())?,
        given: checksum::of_headers(caller.headers())?,
        is_full: caller.header("x-amz-checksum-type") == Some("FULL_OBJECT"),
        size: input.mpu_object_size.map(|size| u64::try_from(size).unwrap_or(u64::MAX)),
        writer: sets::writer_of(caller.access_key()),
    };
    // Goes on if the client hangs up: the outcome is the store's, not the connection's.
    let mut running = tokio::spawn(completion.run());
    match tokio::time::timeout(COMPLETE_QUIET_MAX, &mut running).await {
        Ok(joined) => {
            let receipt = joined.unwrap_or_else(|_| Err(broken()))?;
            let mut headers = HeaderMap::new();
            add_receipt(&mut headers, &receipt)?;
            headers.remove(http::header::ETAG);
            Ok(S3Response::with_headers(output(&receipt), headers))
        }
        Err(_) => {
            let rest = async move { Ok(output(&running.await.unwrap_or_else(|_| Err(broken()))?)) };
            let output = CompleteMultipartUploadOutput {
                future: Some(Box::pin(rest)),
                ..CompleteMultipartUploadOutput::default()
            };
            Ok(S3Response::new(output))
        }
    }
}

fn broken() -> Refusal {
    Refusal::new(Code::InternalError, "The completion was broken off. Please try again.")
}

fn choices(upload: Option<CompletedMultipartUpload>) -> Result<Vec<PartChoice>> {
    let parts = upload.and_then(|upload| upload.parts).unwrap_or_default();
    if parts.is_empty() || parts.len() > PARTS_MAX {
        return Err(Refusal::new(
            Code::MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema: 1 to 10000 parts.",
        ));
    }
    parts.into_iter().map(choice).collect()
}

fn choice(part: CompletedPart) -> Result<PartChoice> {
    let number = part.part_number.and_then(|number| u32::try_from(number).ok());
    let etag = part.e_tag.map(ETag::into_value);
    let (Some(number), Some(etag)) = (number, etag) else {
        return Err(Refusal::new(Code::MalformedXML, "A part needs a PartNumber and an ETag."));
    };
    let sums = [
        (ChecksumKind::Crc32, part.checksum_crc32),
        (ChecksumKind::Crc32c, part.checksum_crc32c),
        (ChecksumKind::Crc64Nvme, part.checksum_crc64nvme),
        (ChecksumKind::Sha1, part.checksum_sha1),
        (ChecksumKind::Sha256, part.checksum_sha256),
    ];
    let given = sums.into_iter().find_map(|(kind, text)| text.map(|text| checksum::parse(kind, &text)));
    Ok(PartChoice { number, etag: bare_etag(&etag).to_owned(), checksum: given.transpose()? })
}

/// A completion that no longer needs its request.
struct Completion {
    store: Arc<dyn Store>,
    volume: String,
    key: Key,
    upload: UploadId,
    choices: Vec<PartChoice>,
    condition: Condition,
    given: Option<Checksum>,
    is_full: bool,
    size: Option<u64>,
    /// Who completes it, for people.
    writer: String,
}

impl Completion {
    async fn run(self) -> Result<Receipt> {
        let (mut info, parts) = match self.parts().await {
            Ok(found) => found,
            // Completed before, perhaps, by a request whose answer was lost: the store knows.
            Err(fault) if (fault.kind, fault.subject) == (ErrorKind::NotFound, Subject::Upload) => {
                let finish = Finish { checksums: self.given.into_iter().collect(), etag: None };
                let completed = self
                    .store
                    .upload_complete(
                        &self.volume,
                        &self.key,
                        &self.upload,
                        self.choices,
                        self.condition,
                        finish,
                    )
                    .await;
                return Ok(completed?);
            }
            Err(fault) => return Err(fault.into()),
        };
        let mark = ShardMark::take(&mut info.attributes)?;
        let chosen = chosen(&parts, &self.choices);
        if let (Some(size), Some(chosen)) = (self.size, &chosen)
            && chosen.iter().map(|part| part.size).sum::<u64>() != size
        {
            return Err(Refusal::new(
                Code::InvalidRequest,
                "The provided 'x-amz-mp-object-size' header does not match what was computed.",
            ));
        }
        let kind = info.checksum.or(self.given.as_ref().map(|given| given.kind));
        let whole = chosen.zip(kind).and_then(|(chosen, kind)| {
            whole_checksum(kind, self.is_full || kind == ChecksumKind::Crc64Nvme, &chosen)
        });
        if let (Some(given), Some(whole)) = (&self.given, &whole)
            && given.value != whole.value
        {
            return Err(Refusal::new(
                Code::BadDigest,
                format!(
                    "The {} you specified did not match the calculated checksum.",
                    checksum::name_of(given.kind)
                ),
            ));
        }
        let finish = Finish { checksums: whole.or(self.given).into_iter().collect(), etag: None };
        if let Some(mark) = mark {
            if !self.condition.is_empty() {
                return Err(Refusal::new(
                    Code::NotImplemented,
                    "A shard of a checkpoint set cannot have conditions.",
                ));
            }
            let set = mark.set(self.store.as_ref(), &self.volume).await?;
            let shard = ShardUpload {
                number: mark.number(),
                writer: self.writer,
                upload: self.upload,
                parts: self.choices,
                finish,
            };
            return Ok(self.store.set_shard_complete(&self.volume, &self.key, set, shard).await?);
        }
        let completed = self
            .store
            .upload_complete(&self.volume, &self.key, &self.upload, self.choices, self.condition, finish)
            .await;
        Ok(completed?)
    }

    /// The upload and all its parts.
    async fn parts(&self) -> Result<(UploadInfo, Vec<PartInfo>), StoreError> {
        let mut parts: Vec<PartInfo> = Vec::new();
        loop {
            let after = parts.last().map_or(0, |last| last.number);
            let page =
                self.store.upload_parts(&self.volume, &self.key, &self.upload, after, PAGE_MAX).await?;
            let done = !page.more || page.parts.is_empty();
            parts.extend(page.parts);
            if done || parts.len() > PARTS_MAX {
                return Ok((page.upload, parts));
            }
        }
    }
}

/// The parts that were chosen; none if one is missing, which the store will say better.
fn chosen<'p>(parts: &'p [PartInfo], choices: &[PartChoice]) -> Option<Vec<&'p PartInfo>> {
    let find = |choice: &PartChoice| {
        let at = parts.binary_search_by_key(&choice.number, |part| part.number).ok()?;
        Some(&parts[at]).filter(|part| part.etag == choice.etag)
    };
    choices.iter().map(find).collect()
}

fn output(receipt: &Receipt) -> CompleteMultipartUploadOutput {
    let shown = checksum::shown(&receipt.checksums);
    let sum = |kind| shown.filter(|sum| sum.kind == kind).map(checksum::text_of);
    CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", receipt.volume, receipt.key)),
        bucket: Some(receipt.volume.clone()),
        key: Some(receipt.key.clone()),
        e_tag: Some(ETag::Strong(receipt.etag.clone())),
        checksum_crc32: sum(ChecksumKind::Crc32),
        checksum_crc32c: sum(ChecksumKind::Crc32c),
        checksum_crc64nvme: sum(ChecksumKind::Crc64Nvme),
        checksum_sha1: sum(ChecksumKind::Sha1),
        checksum_sha256: sum(ChecksumKind::Sha256),
        checksum_type: shown.map(|sum| ChecksumType::from_static(checksum::type_of(sum))),
        ..CompleteMultipartUploadOutput::default()
    }
}

pub(super) async fn abort_multipart_upload(
    ops: &Operations,
    caller: &Caller,
    input: AbortMultipartUploadInput,
) -> Result<S3Response<AbortMultipartUploadOutput>> {
    access::check_key(caller.access(), Intent::Write, &input.bucket, input.key.as_bytes())?;
    ops.store.upload_abort(&input.bucket, &key_of(input.key)?, &UploadId(input.upload_id)).await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

pub(super) async fn list_parts(
    ops: &Operations,
    caller: &Caller,
    input: ListPartsInput,
) -> Result<S3Response<ListPartsOutput>> {
    access::check_key(caller.access(), Intent::Read, &input.bucket, input.key.as_bytes())?;
    let limit = limit("max-parts", input.max_parts, PAGE_MAX)?;
    let marker = input.part_number_marker.unwrap_or(0).max(0);
    let (key, upload) = (key_of(input.key)?, UploadId(input.upload_id));
    let page = ops.store.upload_parts(&input.bucket, &key, &upload, marker as u32, limit.max(1)).await?;
    let kind = page.upload.checksum;
    let more = limit > 0 && page.more;
    let parts: Vec<Part> = page.parts.iter().take(limit).map(|part| listed(part, kind)).collect();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(key.to_string()),
        upload_id: Some(upload.0),
        owner: Some(owner()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: kind.map(|kind| ChecksumAlgorithm::from_static(checksum::name_of(kind))),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(parts.last().and_then(|part| part.part_number).unwrap_or(0)),
        max_parts: Some(limit as i32),
        is_truncated: Some(more),
        parts: Some(parts),
        ..ListPartsOutput::default()
    }))
}

fn listed(part: &PartInfo, kind: Option<ChecksumKind>) -> Part {
    let sum = |wanted| {
        let fits = |sum: &&Checksum| sum.kind == wanted && kind == Some(wanted);
        part.checksums.iter().find(fits).map(checksum::text_of)
    };
    Part {
        part_number: i32::try_from(part.number).ok(),
        e_tag: Some(ETag::Strong(part.etag.clone())),
        size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
        last_modified: Some(timestamp(part.modified_ms)),
        checksum_crc32: sum(ChecksumKind::Crc32),
        checksum_crc32c: sum(ChecksumKind::Crc32c),
        checksum_crc64nvme: sum(ChecksumKind::Crc64Nvme),
        checksum_sha1: sum(ChecksumKind::Sha1),
        checksum_sha256: sum(ChecksumKind::Sha256),
    }
}

pub(super) async fn list_multipart_uploads(
    ops: &Operations,
    caller: &Caller,
    input: ListMultipartUploadsInput,
) -> Result<S3Response<ListMultipartUploadsOutput>> {
    let prefix = input.prefix.unwrap_or_default();
    access::check_key(caller.access(), Intent::Read, &input.bucket, prefix.as_bytes())?;
    let spelling = Spelling::of(input.encoding_type.as_ref())?;
    let limit = limit("max-uploads", input.max_uploads, PAGE_MAX)?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let marker = input.key_marker.clone().filter(|marker| !marker.is_empty());
    let upload_marker = input.upload_id_marker.clone().filter(|marker| !marker.is_empty());
    let mut after = marker.map(|marker| (marker.into_bytes(), upload_marker.map(UploadId)));

    let (mut uploads, mut prefixes, mut more) = (Vec::new(), Vec::new(), false);
    let mut last: Option<(Vec<u8>, Option<UploadId>)> = None;
    'pages: loop {
        let room = limit - uploads.len() - prefixes.len();
        let page = ops.store.uploads(&input.bucket, prefix.as_bytes(), after.take(), room.max(1)).await?;
        for info in page.uploads {
            if uploads.len() + prefixes.len() == limit {
                more = limit > 0;
                break 'pages;
            }
            let key = info.key.as_bytes();
            if let Some(group) = group_of(key, prefix.len(), delimiter.as_deref()) {
                // Behind everything that starts so: keys are UTF-8, and no UTF-8 starts with this byte.
                let behind = [group, &[0xff]].concat();
                prefixes.push(CommonPrefix { prefix: Some(spelling.name(group)) });
                last = Some((behind.clone(), None));
                after = Some((behind, None));
                continue 'pages;
            }
            last = Some((key.to_vec(), Some(info.upload.clone())));
            uploads.push(upload(info, spelling));
        }
        if !page.more {
            break;
        }
        after = last.clone();
    }
    let (next_key, next_upload) = last.filter(|_| more).unzip();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        common_prefixes: Some(prefixes),
        delimiter: spelling.text(delimiter),
        encoding_type: input.encoding_type,
        is_truncated: Some(more),
        key_marker: spelling.text(Some(input.key_marker.unwrap_or_default())),
        max_uploads: Some(limit as i32),
        next_key_marker: next_key.map(|key| spelling.name(&key)),
        next_upload_id_marker: next_upload.flatten().map(|upload| upload.0),
        prefix: spelling.text(Some(prefix)),
        upload_id_marker: Some(input.upload_id_marker.unwrap_or_default()),
        uploads: Some(uploads),
        ..ListMultipartUploadsOutput::default()
    }))
}

/// The common prefix that a key is shown as.
fn group_of<'k>(key: &'k [u8], prefix_len: usize, delimiter: Option<&str>) -> Option<&'k [u8]> {
    let delimiter = delimiter?.as_bytes();
    let rest = key.get(prefix_len..)?;
    let at = rest.windows(delimiter.len()).position(|window| window == delimiter)?;
    Some(&key[..prefix_len + at + delimiter.len()])
}

fn upload(info: UploadInfo, spelling: Spelling) -> MultipartUpload {
    MultipartUpload {
        key: Some(spelling.name(info.key.as_bytes())),
        upload_id: Some(info.upload.0),
        initiated: Some(timestamp(info.begun_ms)),
        owner: Some(owner()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: info.checksum.map(|kind| ChecksumAlgorithm::from_static(checksum::name_of(kind))),
        ..MultipartUpload::default()
    }
}
