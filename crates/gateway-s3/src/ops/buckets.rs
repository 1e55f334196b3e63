//! Buckets are volumes.

use std::time::Duration;

use http::HeaderMap;
use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{
    ErrorKind, Keeps, LOCK_SETTING, ListRequest, Subject, VERSIONING_SETTING, VersionsRequest, VolumeOptions,
};
use tokio::time::Instant;

use crate::refusal::{Code, Refusal, Result};
use crate::versions::versioning;

use super::configured::{BUCKET_OWNER_ENFORCED, NOT_OTHERWISE_OWNED};
use super::seam::{Caller, Operations, owner, timestamp};
use super::token;

/// Most buckets in one answer.
const BUCKETS_MAX: usize = 10_000;
/// How long a deletion waits for the lake to confirm the deletes of keys that are gone already.
const DELETE_PATIENCE: Duration = Duration::from_secs(10);
/// Uploads that are aborted at once.
const UPLOADS_PAGE: usize = 1000;
/// How often it looks.
const DELETE_PAUSE: Duration = Duration::from_millis(200);

pub(super) async fn list_buckets(
    _: &Operations,
    caller: &Caller,
    input: ListBucketsInput,
) -> Result<S3Response<ListBucketsOutput>> {
    let after = input.continuation_token.as_deref().map(|token| token::decode("", token)).transpose()?;
    let limit =
        usize::try_from(input.max_buckets.unwrap_or(BUCKETS_MAX as i32)).unwrap_or(0).clamp(1, BUCKETS_MAX);
    let mut volumes = caller.store().volumes().await?;
    volumes.retain(|volume| {
        input.prefix.as_deref().is_none_or(|prefix| volume.name.starts_with(prefix))
            && after.as_deref().is_none_or(|after| volume.name.as_bytes() > after)
    });
    let more = volumes.len() > limit;
    volumes.truncate(limit);
    let next = volumes.last().filter(|_| more).map(|last| token::encode("", last.name.as_bytes()));
    let buckets = volumes
        .into_iter()
        .map(|volume| Bucket {
            name: Some(volume.name),
            creation_date: Some(timestamp(volume.created_ms)),
            ..Bucket::default()
        })
        .collect();
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets),
        continuation_token: next,
        owner: Some(owner()),
        prefix: input.prefix,
    }))
}

pub(super) async fn create_bucket(
    ops: &Operations,
    caller: &Caller,
    input: CreateBucketInput,
) -> Result<S3Response<CreateBucketOutput>> {
    if input.acl.as_ref().is_some_and(|acl| acl.as_str() != "private") {
        return Err(Refusal::new(Code::AccessControlListNotSupported, "The bucket does not allow ACLs."));
    }
    // Each part between dots is a name of its own where buckets are hosts. Volumes that others made may have such names.
    if input.bucket.contains(".-") || input.bucket.contains("-.") {
        return Err(Refusal::new(Code::InvalidBucketName, "The specified bucket is not valid.")
            .with("BucketName", input.bucket));
    }
    let ownership = input.object_ownership.as_ref().map(|ownership| ownership.as_str());
    if ownership.is_some_and(|ownership| ownership != BUCKET_OWNER_ENFORCED) {
        return Err(Refusal::new(Code::NotImplemented, NOT_OTHERWISE_OWNED));
    }
    let constraint = input.create_bucket_configuration.and_then(|config| config.location_constraint);
    if let Some(constraint) = constraint
        && !constraint.as_str().is_empty()
        && ![ops.region.as_str(), caller.region()].contains(&constraint.as_str())
    {
        return Err(Refusal::new(
            Code::IllegalLocationConstraintException,
            format!(
                "The {} location constraint is incompatible with the region {} that this request was sent to.",
                constraint.as_str(),
                ops.region
            ),
        ));
    }
    // Many clients create before each upload: the common answer must not depend on what else a creation would find.
    if caller.store().volume(&input.bucket).await.is_ok() {
        return Err(Refusal::new(
            Code::BucketAlreadyOwnedByYou,
            "Your previous request to create the named bucket succeeded and you already own it.",
        ));
    }
    caller.store().volume_create(&input.bucket, VolumeOptions::default()).await?;
    if input.object_lock_enabled_for_bucket == Some(true)
        && let Err(fault) = lock(caller, &input.bucket).await
    {
        // Nobody gets a bucket whose objects can go, who wanted another one.
        caller.store().volume_delete(&input.bucket).await?;
        return Err(fault.into());
    }
    if ownership.is_some() {
        let document = format!(
            "<OwnershipControls xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Rule><ObjectOwnership>{BUCKET_OWNER_ENFORCED}\
             </ObjectOwnership></Rule></OwnershipControls>"
        );
        caller.store().set_volume_setting(&input.bucket, "ownership", Some(document.into_bytes())).await?;
    }
    Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{}", input.bucket)) }))
}

/// A new bucket keeps versions, and they can be locked.
async fn lock(caller: &Caller, volume: &str) -> stoker_store::Result<()> {
    let store = caller.store();
    store.set_volume_setting(volume, VERSIONING_SETTING, Some(b"enabled".to_vec())).await?;
    store.set_volume_setting(volume, LOCK_SETTING, Some(b"lock".to_vec())).await
}

pub(super) async fn delete_bucket(
    _: &Operations,
    caller: &Caller,
    input: DeleteBucketInput,
) -> Result<S3Response<DeleteBucketOutput>> {
    let deadline = Instant::now() + DELETE_PATIENCE;
    loop {
        match caller.store().volume_delete(&input.bucket).await {
            Ok(()) => return Ok(S3Response::new(DeleteBucketOutput::default())),
            Err(fault) if fault.subject != Subject::VolumeContents || Instant::now() >= deadline => {
                return Err(fault.into());
            }
            Err(fault) if !looks_empty(caller, &input.bucket).await? => return Err(fault.into()),
            // Uploads that nobody finished keep no bucket of S3.
            Err(_) if abort_uploads(caller, &input.bucket).await? => {}
            Err(_) => tokio::time::sleep(DELETE_PAUSE).await,
        }
    }
}

/// Whether a client would call the volume empty, though deletes may still be on their way to the lake.
async fn looks_empty(caller: &Caller, volume: &str) -> Result<bool> {
    let page = caller.store().list(volume, ListRequest { limit: 1, ..ListRequest::default() }).await?;
    if !page.entries.is_empty() || versioning(caller.store(), volume).await?.keeps == Keeps::Nothing {
        return Ok(page.entries.is_empty());
    }
    let request = VersionsRequest { limit: 1, ..VersionsRequest::default() };
    Ok(caller.store().versions(volume, request).await?.entries.is_empty())
}

/// Aborts uploads of a volume that is to go; false if there were none.
async fn abort_uploads(caller: &Caller, volume: &str) -> Result<bool> {
    let page = caller.store().uploads(volume, b"", None, UPLOADS_PAGE).await?;
    for info in &page.uploads {
        match caller.store().upload_abort(volume, &info.key, &info.upload).await {
            // Somebody else was faster.
            Err(fault) if fault.kind == ErrorKind::NotFound => {}
            aborted => aborted?,
        }
    }
    Ok(!page.uploads.is_empty())
}

pub(super) async fn head_bucket(
    ops: &Operations,
    caller: &Caller,
    input: HeadBucketInput,
) -> Result<S3Response<HeadBucketOutput>> {
    caller.store().volume(&input.bucket).await?;
    let mut headers = HeaderMap::new();
    if let Ok(region) = ops.region.parse() {
        headers.insert("x-amz-bucket-region", region);
    }
    Ok(S3Response::with_headers(HeadBucketOutput::default(), headers))
}

pub(super) async fn get_bucket_location(
    ops: &Operations,
    caller: &Caller,
    input: GetBucketLocationInput,
) -> Result<S3Response<GetBucketLocationOutput>> {
    caller.store().volume(&input.bucket).await?;
    // S3's first region has no name here.
    let region = Some(ops.region.clone()).filter(|region| region != "us-east-1");
    let location_constraint = region.map(BucketLocationConstraint::from);
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
}

pub(super) async fn get_bucket_versioning(
    _: &Operations,
    caller: &Caller,
    input: GetBucketVersioningInput,
) -> Result<S3Response<GetBucketVersioningOutput>> {
    caller.store().volume(&input.bucket).await?;
    let status = match versioning(caller.store(), &input.bucket).await?.keeps {
        Keeps::Nothing => None,
        Keeps::Versions => Some(BucketVersioningStatus::from_static(BucketVersioningStatus::ENABLED)),
        Keeps::Last => Some(BucketVersioningStatus::from_static(BucketVersioningStatus::SUSPENDED)),
    };
    Ok(S3Response::new(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() }))
}
