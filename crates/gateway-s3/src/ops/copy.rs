//! CopyObject and UploadPartCopy, by reference.

use http::HeaderMap;
use s3s::S3Response;
use s3s::dto::{
    ChecksumType, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, ETag, Timestamp,
    UploadPartCopyInput, UploadPartCopyOutput,
};
use stoker_store::{Condition, CopyRequest, FileInfo, Key, PartSource, UploadId};

use crate::clock;
use crate::hot::attributes;
use crate::hot::checksum;
use crate::hot::condition::{ReadCondition, Verdict, failed, parse_etags, write_condition};
use crate::hot::put::{add_receipt, part_number};
use crate::hot::range::Range;
use crate::refusal::{Code, Refusal, Result};
use crate::sets::ShardMark;
use crate::target::key_of;
use crate::versions::check_lockable;

use super::copy_source::CopySource;
use super::seam::{Caller, Operations};

/// A source that was found, may be read, and fulfils its conditions.
struct Source {
    volume: String,
    key: Key,
    info: FileInfo,
}

impl Source {
    async fn find(caller: &Caller) -> Result<Source> {
        let CopySource { volume, key } = CopySource::of(caller.headers())?;
        attributes::refuse_customer_key(caller.headers())?;
        let info = caller.store().stat(&volume, &key).await?;
        if info.past.as_ref().is_some_and(|version| version.is_marker) {
            let message =
                "The source of a copy request may not specifically refer to a delete marker by version id.";
            return Err(Refusal::new(Code::InvalidRequest, message));
        }
        let condition = source_condition(caller);
        match condition.judge(&info.etag, info.modified_ms) {
            Verdict::Proceed => {}
            verdict => return Err(failed(format!("x-amz-copy-source-{}", condition.header_of(verdict)))),
        }
        Ok(Source { volume, key, info })
    }

    /// Holds the copy to the version that was looked at.
    fn condition(&self) -> Condition {
        Condition { if_match: Some(vec![self.info.etag.clone()]), ..Condition::default() }
    }
}

fn source_condition(caller: &Caller) -> ReadCondition {
    let text = |name: &str| caller.header(&format!("x-amz-copy-source-{name}"));
    let date = |name: &str| text(name).and_then(|text| httpdate::parse_http_date(text).ok());
    ReadCondition {
        if_match: text("if-match").map(parse_etags),
        if_none_match: text("if-none-match").map(parse_etags),
        if_modified_since: date("if-modified-since"),
        if_unmodified_since: date("if-unmodified-since"),
    }
}

/// `COPY` or `REPLACE`.
fn replaces(caller: &Caller, header: &'static str) -> Result<bool> {
    match caller.header(header) {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => {
            Err(Refusal::new(Code::InvalidArgument, format!("Unknown {header}."))
                .with("ArgumentName", header))
        }
    }
}

pub(super) async fn copy_object(
    _: &Operations,
    caller: &Caller,
    input: CopyObjectInput,
) -> Result<S3Response<CopyObjectOutput>> {
    let replaces_meta = replaces(caller, "x-amz-metadata-directive")?;
    let replaces_tags = replaces(caller, "x-amz-tagging-directive")?;
    // Also refuses what a copy cannot do.
    let given = attributes::of_headers(caller.headers(), caller.access())?;
    ShardMark::refuse(&given)?;
    let condition = write_condition(caller.headers())?;
    let source = Source::find(caller).await?;
    let to = key_of(input.key)?;
    check_lockable(caller.store(), &input.bucket, given.lock.as_ref()).await?;
    // Another class is a change, though none is kept here: tools move objects between classes in this way.
    let changes = replaces_meta || caller.header("x-amz-storage-class").is_some();
    if source.volume == input.bucket && source.key == to && !changes {
        return Err(Refusal::new(
            Code::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's \
             metadata, storage class, website redirect location or encryption attributes.",
        ));
    }
    let source_version = source.info.past.as_ref().map(|version| version.id.clone());
    let kept = source.info.attributes.clone();
    let tags = if replaces_tags { given.tags.clone() } else { kept.tags.clone() };
    let base = if replaces_meta { given.clone() } else { kept };
    let request = CopyRequest {
        from_condition: source.condition(),
        from_volume: source.volume,
        from: source.key,
        to_volume: input.bucket,
        to,
        condition,
        attributes: Some(stoker_store::Attributes { tags, owner: given.owner, lock: given.lock, ..base }),
    };
    let receipt = caller.store().copy(request).await?;
    let shown = checksum::shown(&receipt.checksums);
    let sum = |kind| shown.filter(|sum| sum.kind == kind).map(checksum::text_of);
    let result = CopyObjectResult {
        e_tag: Some(ETag::Strong(receipt.etag.clone())),
        last_modified: Some(Timestamp::from(clock::wall())),
        checksum_type: shown.map(|sum| ChecksumType::from_static(checksum::type_of(sum))),
        checksum_crc32: sum(stoker_store::ChecksumKind::Crc32),
        checksum_crc32c: sum(stoker_store::ChecksumKind::Crc32c),
        checksum_crc64nvme: sum(stoker_store::ChecksumKind::Crc64Nvme),
        checksum_sha1: sum(stoker_store::ChecksumKind::Sha1),
        checksum_sha256: sum(stoker_store::ChecksumKind::Sha256),
    };
    let mut headers = HeaderMap::new();
    add_receipt(&mut headers, &receipt)?;
    headers.remove(http::header::ETAG);
    let copied = source_version;
    Ok(S3Response::with_headers(
        CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: copied,
            ..CopyObjectOutput::default()
        },
        headers,
    ))
}

pub(super) async fn upload_part_copy(
    _: &Operations,
    caller: &Caller,
    input: UploadPartCopyInput,
) -> Result<S3Response<UploadPartCopyOutput>> {
    let number = part_number(&input.part_number.to_string())?;
    let source = Source::find(caller).await?;
    let range = match caller.header("x-amz-copy-source-range") {
        None => None,
        Some(text) => Some(source_range(text, source.info.size)?),
    };
    let copy_source_version_id = source.info.past.as_ref().map(|version| version.id.clone());
    let part = PartSource { condition: source.condition(), volume: source.volume, key: source.key, range };
    let (key, upload) = (key_of(input.key)?, UploadId(input.upload_id));
    let receipt = caller.store().upload_part_copy(&input.bucket, &key, &upload, number, part).await?;
    let result = CopyPartResult {
        e_tag: Some(ETag::Strong(receipt.etag)),
        last_modified: Some(Timestamp::from(clock::wall())),
        ..CopyPartResult::default()
    };
    let copy_part_result = Some(result);
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result,
        copy_source_version_id,
        ..UploadPartCopyOutput::default()
    }))
}

/// Both ends must be given and lie inside, unlike with a read.
fn source_range(text: &str, size: u64) -> Result<(u64, u64)> {
    let invalid = || {
        Refusal::new(
            Code::InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the \
             zero-based offsets of the first and last bytes to copy.",
        )
        .with("ArgumentName", "x-amz-copy-source-range")
        .with("ArgumentValue", text)
    };
    let last =
        text.rsplit_once('-').and_then(|(_, last)| last.trim().parse::<u64>().ok()).ok_or_else(invalid)?;
    match Range::parse(Some(text), size) {
        Range::Part(start, end) if end == last.saturating_add(1) => Ok((start, end)),
        Range::Part(..) | Range::Unsatisfiable => Err(Refusal::new(
            Code::InvalidArgument,
            format!("Range specified is not valid for source object of size: {size}"),
        )),
        Range::Whole => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ranges_lie_inside() {
        assert_eq!(source_range("bytes=0-9", 10).unwrap(), (0, 10));
        assert_eq!(source_range("bytes=5-5", 10).unwrap(), (5, 6));
        for bad in ["bytes=0-10", "bytes=10-11", "bytes=0-", "bytes=-1", "0-5", "bytes=0-1,2-3", ""] {
            assert_eq!(source_range(bad, 10).unwrap_err().code, Code::InvalidArgument, "{bad}");
        }
    }
}
