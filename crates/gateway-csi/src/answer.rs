//! Errors of the door as codes of gRPC, and the calls that end in them.

use std::future::Future;

use stoker_store::{ErrorKind, StoreError, Subject};
use tonic::{Code, Status};

/// What a call gives.
pub type Answer<T> = Result<T, Status>;

/// The one table from kinds to codes.
pub fn fault(error: StoreError) -> Status {
    Status::new(code(error.kind, error.subject), error.message)
}

fn code(kind: ErrorKind, subject: Subject) -> Code {
    match (kind, subject) {
        (ErrorKind::NotFound, _) => Code::NotFound,
        (ErrorKind::Conflict, Subject::Volume) => Code::AlreadyExists,
        (ErrorKind::Conflict, _) => Code::Aborted,
        (ErrorKind::Full, _) => Code::ResourceExhausted,
        (ErrorKind::Unavailable | ErrorKind::Closed, _) => Code::Unavailable,
        (ErrorKind::Denied, _) => Code::PermissionDenied,
        (ErrorKind::Invalid, _) => Code::InvalidArgument,
        (ErrorKind::Corrupt, _) => Code::DataLoss,
    }
}

/// True if the door says that something is not there.
pub fn is_missing(error: &StoreError) -> bool {
    error.kind == ErrorKind::NotFound
}

/// Carries a change to its end, also if the caller leaves: nothing stays half made because of a deadline.
pub async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Answer<T>> + Send + 'static,
) -> Answer<T> {
    tokio::spawn(change)
        .await
        .unwrap_or_else(|error| Err(Status::internal(format!("the call ended: {error}"))))
}

/// Work that blocks a thread.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Status::internal(format!("the call ended: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_codes() {
        for (kind, subject, expect) in [
            (ErrorKind::NotFound, Subject::Volume, Code::NotFound),
            (ErrorKind::Conflict, Subject::Volume, Code::AlreadyExists),
            (ErrorKind::Conflict, Subject::Condition, Code::Aborted),
            (ErrorKind::Full, Subject::Quota, Code::ResourceExhausted),
            (ErrorKind::Unavailable, Subject::Catalog, Code::Unavailable),
            (ErrorKind::Closed, Subject::Node, Code::Unavailable),
            (ErrorKind::Denied, Subject::Key, Code::PermissionDenied),
            (ErrorKind::Invalid, Subject::Key, Code::InvalidArgument),
            (ErrorKind::Corrupt, Subject::Chunk, Code::DataLoss),
        ] {
            assert_eq!(code(kind, subject), expect, "{kind:?} {subject:?}");
        }
    }
}
