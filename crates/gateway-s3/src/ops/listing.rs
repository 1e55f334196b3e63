//! ListObjects, both versions.

use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{FileInfo, ListEntry, ListPage, ListRequest, VersionEntry, VersionsPage, VersionsRequest};

use crate::hot::checksum;
use crate::percent::{self, Keep};
use crate::refusal::{Code, Refusal, Result};

use super::seam::{Caller, Operations, owner, timestamp};
use super::token;

/// Most entries in one answer.
const KEYS_MAX: usize = 1000;

/// How names are written into the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    Plain,
    Url,
}

impl Spelling {
    pub(super) fn of(encoding_type: Option<&EncodingType>) -> Result<Spelling> {
        match encoding_type.map(EncodingType::as_str) {
            None | Some("") => Ok(Spelling::Plain),
            Some("url") => Ok(Spelling::Url),
            Some(_) => Err(invalid("encoding-type", "Invalid Encoding Method specified in Request.")),
        }
    }

    pub(super) fn name(self, name: &[u8]) -> String {
        match self {
            Spelling::Plain => String::from_utf8_lossy(name).into_owned(),
            Spelling::Url => percent::encoded(name, Keep::Slash),
        }
    }

    pub(super) fn text(self, text: Option<String>) -> Option<String> {
        text.map(|text| self.name(text.as_bytes()))
    }
}

/// A limit as S3 takes it: not negative, and more than the most means the most.
pub(super) fn limit(name: &'static str, wanted: Option<i32>, most: usize) -> Result<usize> {
    match wanted {
        None => Ok(most),
        Some(wanted) => {
            let wanted = usize::try_from(wanted)
                .map_err(|_| invalid(name, "Argument must be an integer between 0 and 2147483647."))?;
            Ok(wanted.min(most))
        }
    }
}

pub(super) fn invalid(name: &'static str, message: &'static str) -> Refusal {
    Refusal::new(Code::InvalidArgument, message).with("ArgumentName", name)
}

/// One page; an empty one costs nothing but the look at the volume.
async fn page(caller: &Caller, volume: &str, request: ListRequest) -> Result<ListPage> {
    if request.limit == 0 {
        caller.store().volume(volume).await?;
        return Ok(ListPage::default());
    }
    Ok(caller.store().list(volume, request).await?)
}

fn object(info: FileInfo, spelling: Spelling, with_owner: bool) -> Object {
    let shown = checksum::shown(&info.checksums);
    let kinds = shown.map(|sum| vec![ChecksumAlgorithm::from_static(checksum::name_of(sum.kind))]);
    Object {
        checksum_type: shown.map(|sum| ChecksumType::from_static(checksum::type_of(sum))),
        checksum_algorithm: kinds,
        e_tag: Some(ETag::Strong(info.etag)),
        key: Some(spelling.name(info.key.as_bytes())),
        last_modified: Some(timestamp(info.modified_ms)),
        owner: with_owner.then(owner),
        size: Some(i64::try_from(info.size).unwrap_or(i64::MAX)),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        ..Object::default()
    }
}

fn split(page: ListPage, spelling: Spelling, with_owner: bool) -> (Vec<Object>, Vec<CommonPrefix>) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for entry in page.entries {
        match entry {
            ListEntry::File(info) => objects.push(object(*info, spelling, with_owner)),
            ListEntry::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(spelling.name(&prefix)) }),
        }
    }
    (objects, prefixes)
}

pub(super) async fn list_objects(
    _: &Operations,
    caller: &Caller,
    input: ListObjectsInput,
) -> Result<S3Response<ListObjectsOutput>> {
    let prefix = input.prefix.unwrap_or_default();
    let spelling = Spelling::of(input.encoding_type.as_ref())?;
    let limit = limit("max-keys", input.max_keys, KEYS_MAX)?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let request = ListRequest {
        prefix: prefix.clone().into_bytes(),
        delimiter: delimiter.clone().map(String::into_bytes),
        after: input.marker.clone().filter(|marker| !marker.is_empty()).map(String::into_bytes),
        limit,
    };
    let page = page(caller, &input.bucket, request).await?;
    let more = page.more;
    // Without a delimiter the last key is the marker, and S3 does not repeat it.
    let next =
        page.entries.last().filter(|_| more && delimiter.is_some()).map(|last| spelling.name(last.name()));
    let (contents, common_prefixes) = split(page, spelling, true);
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: spelling.text(Some(prefix)),
        marker: spelling.text(Some(input.marker.unwrap_or_default())),
        max_keys: Some(limit as i32),
        is_truncated: Some(more),
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        delimiter: spelling.text(delimiter),
        next_marker: next,
        encoding_type: input.encoding_type,
        ..ListObjectsOutput::default()
    }))
}

/// Versions and markers. In a bucket that keeps none every object is its one version.
pub(super) async fn list_object_versions(
    _: &Operations,
    caller: &Caller,
    input: ListObjectVersionsInput,
) -> Result<S3Response<ListObjectVersionsOutput>> {
    let prefix = input.prefix.unwrap_or_default();
    let spelling = Spelling::of(input.encoding_type.as_ref())?;
    let limit = limit("max-keys", input.max_keys, KEYS_MAX)?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    let after = input.key_marker.clone().filter(|marker| !marker.is_empty());
    let after_version = input.version_id_marker.clone().filter(|marker| !marker.is_empty());
    if after_version.is_some() && after.is_none() {
        return Err(invalid(
            "version-id-marker",
            "A version-id marker cannot be specified without a key marker.",
        ));
    }
    let request = VersionsRequest {
        prefix: prefix.clone().into_bytes(),
        delimiter: delimiter.clone().map(String::into_bytes),
        after: after.map(String::into_bytes),
        after_version,
        limit,
    };
    let page = match limit {
        0 => {
            caller.store().volume(&input.bucket).await?;
            VersionsPage::default()
        }
        _ => caller.store().versions(&input.bucket, request).await?,
    };
    let more = page.more;
    let (next_key, next_version) = match page.entries.last().filter(|_| more) {
        Some(VersionEntry::Version { info, version, .. }) => {
            (Some(spelling.name(info.key.as_bytes())), Some(version.id.clone()))
        }
        Some(VersionEntry::Prefix(prefix)) => (Some(spelling.name(prefix)), None),
        None => (None, None),
    };
    let (mut versions, mut markers, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
    for entry in page.entries {
        match entry {
            VersionEntry::Prefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(spelling.name(&prefix)) })
            }
            VersionEntry::Version { info, version, is_latest } if version.is_marker => {
                markers.push(DeleteMarkerEntry {
                    is_latest: Some(is_latest),
                    key: Some(spelling.name(info.key.as_bytes())),
                    last_modified: Some(timestamp(info.modified_ms)),
                    owner: Some(owner()),
                    version_id: Some(version.id),
                });
            }
            VersionEntry::Version { info, version, is_latest } => {
                versions.push(shown(object(*info, spelling, true), version.id, is_latest));
            }
        }
    }
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(input.bucket),
        prefix: spelling.text(Some(prefix)),
        key_marker: spelling.text(Some(input.key_marker.unwrap_or_default())),
        version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
        max_keys: Some(limit as i32),
        is_truncated: Some(more),
        versions: Some(versions),
        delete_markers: Some(markers),
        common_prefixes: Some(prefixes),
        delimiter: spelling.text(delimiter),
        next_key_marker: next_key,
        next_version_id_marker: next_version,
        encoding_type: input.encoding_type,
        ..ListObjectVersionsOutput::default()
    }))
}

fn shown(object: Object, id: String, is_latest: bool) -> ObjectVersion {
    ObjectVersion {
        checksum_algorithm: object.checksum_algorithm,
        checksum_type: object.checksum_type,
        e_tag: object.e_tag,
        is_latest: Some(is_latest),
        key: object.key,
        last_modified: object.last_modified,
        owner: object.owner,
        size: object.size,
        storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
        version_id: Some(id),
        ..ObjectVersion::default()
    }
}

pub(super) async fn list_objects_v2(
    _: &Operations,
    caller: &Caller,
    input: ListObjectsV2Input,
) -> Result<S3Response<ListObjectsV2Output>> {
    let prefix = input.prefix.unwrap_or_default();
    let spelling = Spelling::of(input.encoding_type.as_ref())?;
    let limit = limit("max-keys", input.max_keys, KEYS_MAX)?;
    let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
    // An empty token is none: clients that go from page to page begin with it.
    let after = match input.continuation_token.as_ref().filter(|token| !token.is_empty()) {
        Some(text) => Some(token::decode(&input.bucket, text)?),
        None => input.start_after.clone().filter(|after| !after.is_empty()).map(String::into_bytes),
    };
    let request = ListRequest {
        prefix: prefix.clone().into_bytes(),
        delimiter: delimiter.clone().map(String::into_bytes),
        after,
        limit,
    };
    let page = page(caller, &input.bucket, request).await?;
    let more = page.more;
    let next = page.entries.last().filter(|_| more).map(|last| token::encode(&input.bucket, last.name()));
    let count = page.entries.len();
    let (contents, common_prefixes) = split(page, spelling, input.fetch_owner == Some(true));
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: spelling.text(Some(prefix)),
        max_keys: Some(limit as i32),
        key_count: Some(count as i32),
        continuation_token: input.continuation_token,
        is_truncated: Some(more),
        next_continuation_token: next,
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        delimiter: spelling.text(delimiter),
        encoding_type: input.encoding_type,
        start_after: spelling.text(input.start_after),
        ..ListObjectsV2Output::default()
    }))
}
