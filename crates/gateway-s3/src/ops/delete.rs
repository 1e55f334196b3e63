//! DeleteObject and DeleteObjects.

use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{Condition, Keeps, NULL_VERSION, VersionDelete, VersionDeleted};

use crate::hot::condition::parse_etags;
use crate::refusal::{Code, Refusal, Result};
use crate::target::key_of;
use crate::versions::versioning;

use super::seam::{Caller, Operations};

/// Most keys in one request.
const KEYS_MAX: usize = 1000;

/// Whether the holder of a key that may bypass it asks for that.
fn bypasses(caller: &Caller) -> bool {
    caller.header("x-amz-bypass-governance-retention").is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

/// Deletes one by one. In a bucket that never kept versions an object is its one version, and is deleted as ever.
async fn delete(
    caller: &Caller,
    volume: &str,
    wishes: Vec<VersionDelete>,
) -> Result<Vec<Result<VersionDeleted>>> {
    let store = caller.store();
    if versioning(store, volume).await?.keeps != Keeps::Nothing {
        let answers = store.delete_versions(volume, wishes).await?;
        return Ok(answers.into_iter().map(|answer| answer.map_err(Refusal::from)).collect());
    }
    let (mut plain, mut places) = (Vec::new(), Vec::new());
    for wish in wishes {
        match wish.version.as_deref() {
            None | Some(NULL_VERSION) => {
                places.push(Ok(wish.version));
                plain.push((wish.key, wish.condition));
            }
            Some(_) => {
                places.push(Err(Refusal::new(Code::NoSuchVersion, "The specified version does not exist.")))
            }
        }
    }
    let answers = if plain.is_empty() { Vec::new() } else { store.delete(volume, plain).await? };
    let mut answers = answers.into_iter();
    let answer = |place: Result<Option<String>>| -> Result<VersionDeleted> {
        let version = place?;
        let existed = answers.next().transpose()?.unwrap_or_default();
        Ok(VersionDeleted { existed, version, is_marker: false })
    };
    Ok(places.into_iter().map(answer).collect())
}

fn not_implemented() -> Refusal {
    Refusal::new(Code::NotImplemented, "Conditions on time or size are not implemented for deletes.")
}

/// A key that is not there is deleted already.
pub(super) async fn delete_object(
    _: &Operations,
    caller: &Caller,
    input: DeleteObjectInput,
) -> Result<S3Response<DeleteObjectOutput>> {
    if caller.header("x-amz-if-match-last-modified-time").is_some()
        || caller.header("x-amz-if-match-size").is_some()
    {
        return Err(not_implemented());
    }
    let condition =
        Condition { if_match: caller.header("if-match").map(parse_etags), ..Condition::default() };
    let key = key_of(input.key)?;
    let version = input.version_id.filter(|id| !id.is_empty());
    let wish = VersionDelete { key, version, condition, bypass: bypasses(caller) };
    let mut output = DeleteObjectOutput::default();
    for answer in delete(caller, &input.bucket, vec![wish]).await? {
        let deleted = answer?;
        output.version_id = deleted.version;
        output.delete_marker = deleted.is_marker.then_some(true);
    }
    Ok(S3Response::new(output))
}

pub(super) async fn delete_objects(
    _: &Operations,
    caller: &Caller,
    input: DeleteObjectsInput,
) -> Result<S3Response<DeleteObjectsOutput>> {
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > KEYS_MAX {
        return Err(Refusal::new(
            Code::MalformedXML,
            "The XML you provided was not well-formed or did not validate against our published schema: 1 to 1000 keys.",
        ));
    }
    let quiet = input.delete.quiet == Some(true);
    let (mut deleted, mut errors, mut wanted, mut names) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for object in objects {
        let named = (object.key.clone(), object.version_id.clone());
        match wish(object, bypasses(caller)) {
            Ok(wish) => {
                wanted.push(wish);
                names.push(named);
            }
            Err(refusal) => errors.push(error(named, &refusal)),
        }
    }
    if wanted.is_empty() {
        caller.store().volume(&input.bucket).await?;
    } else {
        let answers = delete(caller, &input.bucket, wanted).await?;
        for (named, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(_) if quiet => {}
                Ok(done) => deleted.push(told(named, done)),
                Err(refusal) => errors.push(error(named, &refusal)),
            }
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        ..DeleteObjectsOutput::default()
    }))
}

/// What is said of a key that was deleted, or of a version.
fn told((key, version): (String, Option<String>), done: VersionDeleted) -> DeletedObject {
    let marker = done.version.filter(|_| done.is_marker);
    DeletedObject {
        key: Some(key),
        version_id: version.filter(|id| !id.is_empty()),
        delete_marker: done.is_marker.then_some(true),
        delete_marker_version_id: marker,
    }
}

fn wish(object: ObjectIdentifier, bypass: bool) -> Result<VersionDelete> {
    if object.last_modified_time.is_some() || object.size.is_some() {
        return Err(not_implemented());
    }
    let if_match = object.e_tag.map(|etag| vec![etag.into_value()]);
    let condition = Condition { if_match, ..Condition::default() };
    let version = object.version_id.filter(|id| !id.is_empty());
    Ok(VersionDelete { key: key_of(object.key)?, version, condition, bypass })
}

fn error((key, version_id): (String, Option<String>), refusal: &Refusal) -> Error {
    Error {
        code: Some(refusal.code.name().to_owned()),
        key: Some(key),
        message: Some(refusal.message.clone().into_owned()),
        version_id,
    }
}
