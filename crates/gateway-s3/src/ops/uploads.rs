//! Multipart uploads, but for the parts themselves and for their end.

use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{Checksum, ChecksumKind, PartInfo, SetState, UploadId, UploadInfo};

use crate::hot::attributes;
use crate::hot::checksum;
use crate::refusal::{Code, Refusal, Result};
use crate::sets::ShardMark;
use crate::target::key_of;
use crate::versions::check_lockable;

use super::listing::{Spelling, limit};
use super::seam::{Caller, Operations, owner, timestamp};

const FULL_OBJECT: &str = "FULL_OBJECT";
const COMPOSITE: &str = "COMPOSITE";
/// Most parts or uploads in one answer.
const PAGE_MAX: usize = 1000;

pub(super) async fn create_multipart_upload(
    _: &Operations,
    caller: &Caller,
    input: CreateMultipartUploadInput,
) -> Result<S3Response<CreateMultipartUploadOutput>> {
    let attributes = attributes::of_headers(caller.headers(), caller.access())?;
    let kind = caller.header("x-amz-checksum-algorithm").map(checksum::kind_named).transpose()?;
    let kind_type = checksum_type(kind, caller.header("x-amz-checksum-type"))?;
    let key = key_of(input.key)?;
    check_lockable(caller.store(), &input.bucket, attributes.lock.as_ref()).await?;
    if let Some(mark) = ShardMark::take(&mut attributes.clone())? {
        // Whoever is refused now has not sent the parts yet.
        let set = mark.set(caller.store(), &input.bucket).await?;
        let info = caller.store().set_status(&input.bucket, set).await?.info;
        if info.state != SetState::Open {
            return Err(Refusal::new(Code::OperationAborted, "The checkpoint set takes no more shards."));
        }
    }
    let info = match kind.filter(|_| kind_type == Some(FULL_OBJECT)) {
        Some(kind) => caller.store().upload_create_full(&input.bucket, &key, attributes, kind).await?,
        None => caller.store().upload_create(&input.bucket, &key, attributes, kind).await?,
    };
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
        (Some(ChecksumKind::Crc64Nvme), None | Some(FULL_OBJECT)) => Some(FULL_OBJECT),
        (Some(ChecksumKind::Crc32 | ChecksumKind::Crc32c), Some(FULL_OBJECT)) => Some(FULL_OBJECT),
        (Some(ChecksumKind::Crc64Nvme), _) => return Err(invalid()),
        (Some(_), None | Some(COMPOSITE)) => Some(COMPOSITE),
        (Some(_), Some(_)) => return Err(invalid()),
    })
}

/// Whether the checksum of an upload will be one of all bytes.
fn type_of(info: &UploadInfo) -> Option<ChecksumType> {
    let is_full = info.is_full || info.checksum == Some(ChecksumKind::Crc64Nvme);
    info.checksum.map(|_| ChecksumType::from_static(if is_full { FULL_OBJECT } else { COMPOSITE }))
}

/// Whoever may begin uploads is the owner.
fn initiator() -> Initiator {
    let Owner { display_name, id } = owner();
    Initiator { display_name, id }
}

pub(super) async fn abort_multipart_upload(
    _: &Operations,
    caller: &Caller,
    input: AbortMultipartUploadInput,
) -> Result<S3Response<AbortMultipartUploadOutput>> {
    caller.store().upload_abort(&input.bucket, &key_of(input.key)?, &UploadId(input.upload_id)).await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

pub(super) async fn list_parts(
    _: &Operations,
    caller: &Caller,
    input: ListPartsInput,
) -> Result<S3Response<ListPartsOutput>> {
    let limit = limit("max-parts", input.max_parts, PAGE_MAX)?;
    let marker = input.part_number_marker.unwrap_or(0).max(0);
    let (key, upload) = (key_of(input.key)?, UploadId(input.upload_id));
    let page = caller.store().upload_parts(&input.bucket, &key, &upload, marker as u32, limit.max(1)).await?;
    let (kind, checksum_type) = (page.upload.checksum, type_of(&page.upload));
    let more = limit > 0 && page.more;
    let parts: Vec<Part> = page.parts.iter().take(limit).map(|part| listed(part, kind)).collect();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(key.to_string()),
        upload_id: Some(upload.0),
        owner: Some(owner()),
        initiator: Some(initiator()),
        checksum_type,
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
    _: &Operations,
    caller: &Caller,
    input: ListMultipartUploadsInput,
) -> Result<S3Response<ListMultipartUploadsOutput>> {
    let prefix = input.prefix.unwrap_or_default();
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
        let page =
            caller.store().uploads(&input.bucket, prefix.as_bytes(), after.take(), room.max(1)).await?;
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
        checksum_type: type_of(&info),
        initiator: Some(initiator()),
        key: Some(spelling.name(info.key.as_bytes())),
        upload_id: Some(info.upload.0),
        initiated: Some(timestamp(info.begun_ms)),
        owner: Some(owner()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: info.checksum.map(|kind| ChecksumAlgorithm::from_static(checksum::name_of(kind))),
    }
}
