//! From the errors of the parts to those of the door.

pub use stoker_host::error::catalog;
use stoker_lake::{LakeError, LakeErrorKind};
use stoker_ring::{ErrorKind as RingKind, RingError};
use stoker_schema::names::{Exceeded, Refusal};
use stoker_store::{ErrorKind, StoreError, Subject};

/// An error of a ring.
pub fn ring(error: RingError) -> StoreError {
    let kind = match error.kind {
        RingKind::NotFound => ErrorKind::NotFound,
        RingKind::Invalid => ErrorKind::Invalid,
        RingKind::Full => ErrorKind::Full,
        RingKind::Corrupt => ErrorKind::Corrupt,
        RingKind::Poisoned | RingKind::Locked | RingKind::Foreign | RingKind::Io => ErrorKind::Unavailable,
        RingKind::Closed => ErrorKind::Closed,
    };
    StoreError::new(kind, format!("ring: {}", error.message))
}

/// The same for a drive that is to be opened: one that somebody else has will be theirs when it is tried again, too.
pub fn opening(error: RingError) -> StoreError {
    let is_taken = matches!(error.kind, RingKind::Locked | RingKind::Foreign);
    let error = ring(error);
    if is_taken { StoreError { kind: ErrorKind::Conflict, ..error } } else { error }
}

/// An error of a lake.
pub fn lake(error: LakeError) -> StoreError {
    let kind = match error.kind {
        LakeErrorKind::NotFound => ErrorKind::NotFound,
        LakeErrorKind::Changed => ErrorKind::Conflict,
        LakeErrorKind::Busy | LakeErrorKind::Unavailable => ErrorKind::Unavailable,
        LakeErrorKind::Denied => ErrorKind::Denied,
        LakeErrorKind::Invalid => ErrorKind::Invalid,
        LakeErrorKind::Corrupt => ErrorKind::Corrupt,
        LakeErrorKind::Full => ErrorKind::Full,
    };
    StoreError::about(kind, Subject::Lake, format!("lake: {}", error.message))
}

/// A change of names that was not made.
pub fn refusal(refusal: Refusal) -> StoreError {
    match refusal {
        Refusal::Catalog(error) => catalog(error),
        Refusal::Guard(_) => StoreError::new(
            ErrorKind::Unavailable,
            "this node's session was ended or its volume or drive is gone; nothing was published",
        ),
        Refusal::Contended => {
            StoreError::new(ErrorKind::Conflict, "too many others change this name at once; try again")
        }
        Refusal::NotFound => StoreError::new(ErrorKind::NotFound, "there is no such key"),
        Refusal::Exists => StoreError::new(ErrorKind::Conflict, "the target exists already"),
        Refusal::TooMany => StoreError::about(
            ErrorKind::Full,
            Subject::Links,
            "the file has as many names as a file can have",
        ),
        Refusal::Conflict(why) => StoreError::new(ErrorKind::Conflict, why),
        Refusal::Invalid(why) => StoreError::new(ErrorKind::Invalid, why),
        Refusal::Quota(exceeded) => quota(&exceeded),
        Refusal::Apart => StoreError::about(
            ErrorKind::Invalid,
            Subject::Quota,
            "a directory cannot be moved into, out of or between projects, which count their files; move its files one by one",
        ),
        Refusal::Locked => StoreError::about(
            ErrorKind::Denied,
            Subject::Lock,
            "the version is locked: it stays until its retention and its legal hold are over",
        ),
        Refusal::Caller(error) => match error.downcast::<StoreError>() {
            Ok(error) => *error,
            Err(_) => StoreError::new(ErrorKind::Invalid, "refused"),
        },
    }
}

/// A quota that does not allow what was to be written.
pub fn quota(exceeded: &Exceeded) -> StoreError {
    let Exceeded { account, is_bytes, limit } = exceeded;
    let whose = account.as_ref().map_or("the volume".to_owned(), ToString::to_string);
    let what = if *is_bytes { "bytes" } else { "files" };
    let message = format!(
        "{whose} has a quota of {limit} {what}, and this would be more; delete something, or ask who runs the cluster for a larger one"
    );
    StoreError::about(ErrorKind::Full, Subject::Quota, message)
}

/// Wraps an error of the door so that it passes through the catalog's retry loop.
pub fn refuse(error: StoreError) -> Refusal {
    Refusal::Caller(Box::new(error))
}
