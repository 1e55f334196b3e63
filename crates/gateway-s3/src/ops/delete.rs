//! DeleteObject and DeleteObjects.

use s3s::S3Response;
use s3s::dto::*;
use stoker_store::{Condition, Key};

use crate::hot::condition::parse_etags;
use crate::refusal::{Code, Refusal, Result};
use crate::target::key_of;

use super::seam::{Caller, Operations};

/// Most keys in one request.
const KEYS_MAX: usize = 1000;

fn check_version(version: Option<&str>) -> Result<()> {
    match version {
        None | Some("" | "null") => Ok(()),
        Some(_) => Err(Refusal::new(Code::NoSuchVersion, "The specified version does not exist.")),
    }
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
    check_version(input.version_id.as_deref())?;
    if caller.header("x-amz-if-match-last-modified-time").is_some()
        || caller.header("x-amz-if-match-size").is_some()
    {
        return Err(not_implemented());
    }
    let condition =
        Condition { if_match: caller.header("if-match").map(parse_etags), ..Condition::default() };
    let key = key_of(input.key)?;
    let answers = caller.store().delete(&input.bucket, vec![(key, condition)]).await?;
    for answer in answers {
        answer?;
    }
    Ok(S3Response::new(DeleteObjectOutput::default()))
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
        let name = object.key.clone();
        match wish(object) {
            Ok(wish) => {
                wanted.push(wish);
                names.push(name);
            }
            Err(refusal) => errors.push(error(name, &refusal)),
        }
    }
    if wanted.is_empty() {
        caller.store().volume(&input.bucket).await?;
    } else {
        let answers = caller.store().delete(&input.bucket, wanted).await?;
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(_) if quiet => {}
                Ok(_) => deleted.push(DeletedObject { key: Some(name), ..DeletedObject::default() }),
                Err(fault) => errors.push(error(name, &Refusal::from(fault))),
            }
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        ..DeleteObjectsOutput::default()
    }))
}

fn wish(object: ObjectIdentifier) -> Result<(Key, Condition)> {
    check_version(object.version_id.as_deref())?;
    if object.last_modified_time.is_some() || object.size.is_some() {
        return Err(not_implemented());
    }
    let if_match = object.e_tag.map(|etag| vec![etag.into_value()]);
    Ok((key_of(object.key)?, Condition { if_match, ..Condition::default() }))
}

fn error(key: String, refusal: &Refusal) -> Error {
    Error {
        code: Some(refusal.code.name().to_owned()),
        key: Some(key),
        message: Some(refusal.message.clone().into_owned()),
        ..Error::default()
    }
}
