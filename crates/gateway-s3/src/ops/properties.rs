//! Tags and attributes of files.

use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{AttributesChange, ChecksumKind, FileInfo, Key};

use crate::hot::attributes::check_tags;
use crate::hot::checksum;
use crate::hot::get::part_checksums;
use crate::refusal::{Code, Refusal, Result};
use crate::target::key_of;
use crate::versions::{key_of_version, not_of_marker};

use super::listing::limit;
use super::seam::{Caller, Operations, timestamp};

/// Most parts in one answer.
const PARTS_MAX: usize = 1000;

/// Gives the id of the version.
async fn set_tags(
    caller: &Caller,
    volume: &str,
    key: &Key,
    tags: Vec<(String, String)>,
) -> Result<Option<String>> {
    let change = AttributesChange { tags: Some(tags), ..AttributesChange::default() };
    let info = caller.store().set_attributes(volume, key, change).await?;
    Ok(info.past.map(|version| version.id))
}

pub(super) async fn get_object_tagging(
    _: &Operations,
    caller: &Caller,
    input: GetObjectTaggingInput,
) -> Result<S3Response<GetObjectTaggingOutput>> {
    let version = input.version_id.as_deref();
    let key = key_of_version(&key_of(input.key)?, version)?;
    let info = caller.store().stat(&input.bucket, &key).await?;
    if let Some(version) = info.past.as_ref().filter(|version| version.is_marker) {
        return Err(not_of_marker(version));
    }
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    let mut tags = info.attributes.tags;
    // As S3 does.
    tags.sort_unstable();
    let tag_set = tags.into_iter().map(tag).collect();
    let version_id = info.past.map(|version| version.id);
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id }))
}

pub(super) async fn put_object_tagging(
    _: &Operations,
    caller: &Caller,
    input: PutObjectTaggingInput,
) -> Result<S3Response<PutObjectTaggingOutput>> {
    let version = input.version_id.as_deref();
    let tag = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    let tags: Vec<_> = input.tagging.tag_set.into_iter().map(tag).collect();
    check_tags(&tags)?;
    let key = key_of_version(&key_of(input.key)?, version)?;
    let version_id = set_tags(caller, &input.bucket, &key, tags).await?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
}

pub(super) async fn delete_object_tagging(
    _: &Operations,
    caller: &Caller,
    input: DeleteObjectTaggingInput,
) -> Result<S3Response<DeleteObjectTaggingOutput>> {
    let version = input.version_id.as_deref();
    let key = key_of_version(&key_of(input.key)?, version)?;
    let version_id = set_tags(caller, &input.bucket, &key, Vec::new()).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id }))
}

pub(super) async fn get_object_attributes(
    _: &Operations,
    caller: &Caller,
    input: GetObjectAttributesInput,
) -> Result<S3Response<GetObjectAttributesOutput>> {
    let version = input.version_id.as_deref();
    let wanted: Vec<String> = caller
        .headers()
        .get_all("x-amz-object-attributes")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    if wanted.is_empty() {
        return Err(Refusal::new(Code::InvalidRequest, "The header x-amz-object-attributes is missing."));
    }
    let key = key_of_version(&key_of(input.key)?, version)?;
    let info = caller.store().stat(&input.bucket, &key).await?;
    if let Some(version) = info.past.as_ref().filter(|version| version.is_marker) {
        return Err(not_of_marker(version));
    }
    let mut output = GetObjectAttributesOutput {
        last_modified: Some(timestamp(info.modified_ms)),
        version_id: info.past.as_ref().map(|version| version.id.clone()),
        ..Default::default()
    };
    let sums = match wanted.iter().any(|name| name == "ObjectParts") && !info.part_sizes.is_empty() {
        true => part_checksums(caller.store(), &input.bucket, &info).await?,
        false => Vec::new(),
    };
    for name in &wanted {
        match name.as_str() {
            "ETag" => output.e_tag = Some(ETag::Strong(info.etag.clone())),
            "ObjectSize" => output.object_size = Some(i64::try_from(info.size).unwrap_or(i64::MAX)),
            "StorageClass" => output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD)),
            "Checksum" => output.checksum = checksum_of(&info),
            "ObjectParts" => {
                output.object_parts =
                    parts_of(&info, &sums, input.max_parts, input.part_number_marker.unwrap_or(0))?;
            }
            _ => {
                return Err(Refusal::new(Code::InvalidArgument, "Invalid attribute name specified.")
                    .with("ArgumentName", "x-amz-object-attributes")
                    .with("ArgumentValue", name));
            }
        }
    }
    Ok(S3Response::new(output))
}

fn checksum_of(info: &FileInfo) -> Option<Checksum> {
    let shown = checksum::shown(&info.checksums)?;
    let sum = |kind| Some(shown).filter(|sum| sum.kind == kind).map(checksum::text_of);
    Some(Checksum {
        checksum_crc32: sum(ChecksumKind::Crc32),
        checksum_crc32c: sum(ChecksumKind::Crc32c),
        checksum_crc64nvme: sum(ChecksumKind::Crc64Nvme),
        checksum_sha1: sum(ChecksumKind::Sha1),
        checksum_sha256: sum(ChecksumKind::Sha256),
        checksum_type: Some(ChecksumType::from_static(checksum::type_of(shown))),
    })
}

fn parts_of(
    info: &FileInfo,
    sums: &[stoker_store::Checksum],
    max_parts: Option<i32>,
    marker: i32,
) -> Result<Option<GetObjectAttributesParts>> {
    if info.part_sizes.is_empty() {
        return Ok(None);
    }
    let limit = limit("max-parts", max_parts, PARTS_MAX)?;
    let after = usize::try_from(marker).unwrap_or(0);
    let part = |(index, size): (usize, &u64)| {
        let sum = |kind| sums.get(index).filter(|sum| sum.kind == kind).map(checksum::text_of);
        ObjectPart {
            part_number: i32::try_from(index + 1).ok(),
            size: i64::try_from(*size).ok(),
            checksum_crc32: sum(ChecksumKind::Crc32),
            checksum_crc32c: sum(ChecksumKind::Crc32c),
            checksum_crc64nvme: sum(ChecksumKind::Crc64Nvme),
            checksum_sha1: sum(ChecksumKind::Sha1),
            checksum_sha256: sum(ChecksumKind::Sha256),
        }
    };
    let parts: Vec<ObjectPart> =
        info.part_sizes.iter().enumerate().skip(after).take(limit).map(part).collect();
    let last = after + parts.len();
    Ok(Some(GetObjectAttributesParts {
        is_truncated: Some(last < info.part_sizes.len()),
        max_parts: Some(limit as i32),
        next_part_number_marker: i32::try_from(last).ok(),
        part_number_marker: Some(marker),
        parts: Some(parts),
        total_parts_count: i32::try_from(info.part_sizes.len()).ok(),
    }))
}
