//! How the API says no: a status, a kind for programs, words and a hint for people.

use http::StatusCode;
use serde_json::{Value, json};
use stoker_store::{ErrorKind, StoreError};

/// An error of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub status: StatusCode,
    pub kind: &'static str,
    pub error: String,
    pub hint: String,
    /// After how many seconds it may be tried again, if that is known.
    pub retry_after_s: Option<u64>,
}

impl Fault {
    fn new(status: StatusCode, kind: &'static str, error: impl Into<String>, hint: &str) -> Fault {
        Fault { status, kind, error: error.into(), hint: hint.to_owned(), retry_after_s: None }
    }

    /// The request makes no sense.
    pub fn invalid(error: impl Into<String>) -> Fault {
        Fault::new(StatusCode::BAD_REQUEST, "invalid", error, "see /api/v1/openapi.json for what is taken")
    }

    /// There is no such thing.
    pub fn not_found(error: impl Into<String>, hint: &str) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, "not_found", error, hint)
    }

    /// Nobody knows the caller.
    pub fn unknown_caller(error: &str, hint: &str) -> Fault {
        Fault::new(StatusCode::UNAUTHORIZED, "unauthorized", error, hint)
    }

    /// The session is over.
    pub fn expired() -> Fault {
        Fault::new(StatusCode::UNAUTHORIZED, "expired", "this session expired", "log in again")
    }

    /// The caller may not do this.
    pub fn denied(error: impl Into<String>, hint: &str) -> Fault {
        Fault::new(StatusCode::FORBIDDEN, "denied", error, hint)
    }

    /// Another method is meant.
    pub fn method(allowed: &str) -> Fault {
        Fault::new(StatusCode::METHOD_NOT_ALLOWED, "method", format!("this path takes {allowed}"), "")
    }

    /// The body is too long.
    pub fn too_long(bytes_max: usize) -> Fault {
        let error = format!("a body has at most {bytes_max} bytes");
        Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "too_long", error, "")
    }

    /// The body is no JSON by its own word.
    pub fn not_json() -> Fault {
        let error = "a body has to be `Content-Type: application/json`";
        Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", error, "")
    }

    /// Too many requests.
    pub fn too_many(retry_after_s: u64) -> Fault {
        let error = format!("too many requests from this address; try again in {retry_after_s} s");
        let fault = Fault::new(StatusCode::TOO_MANY_REQUESTS, "too_many", error, "ask less often");
        Fault { retry_after_s: Some(retry_after_s), ..fault }
    }

    /// Too many changes are under way, whoever asked for them.
    pub fn too_many_changes() -> Fault {
        let error = "too many changes are under way on this node; try again in 1 s";
        let hint = "/api/v1/audit tells which ended";
        let fault = Fault::new(StatusCode::TOO_MANY_REQUESTS, "too_many", error, hint);
        Fault { retry_after_s: Some(1), ..fault }
    }

    /// The node cannot answer now.
    pub fn unavailable(error: impl Into<String>) -> Fault {
        let hint = "try again; if it lasts, look at the node's log";
        Fault::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error, hint)
    }

    /// The same as an object.
    pub fn value(&self) -> Value {
        json!({ "error": self.error, "kind": self.kind, "hint": self.hint })
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        let (status, kind, hint) = match error.kind {
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found", "check the name"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict", "look again, then decide"),
            ErrorKind::Full => (StatusCode::SERVICE_UNAVAILABLE, "full", "wait until something has drained"),
            ErrorKind::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "try again; if it lasts, look at the node")
            }
            ErrorKind::Denied => (StatusCode::FORBIDDEN, "denied", "check what this is allowed to"),
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid", "correct the request"),
            ErrorKind::Corrupt => {
                (StatusCode::INTERNAL_SERVER_ERROR, "corrupt", "stored bytes are damaged: act now")
            }
            ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, "closed", "the node stops: ask another"),
        };
        Fault::new(status, kind, error.message, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_the_door_has_its_status() {
        for (kind, status) in [
            (ErrorKind::NotFound, 404),
            (ErrorKind::Conflict, 409),
            (ErrorKind::Full, 503),
            (ErrorKind::Unavailable, 503),
            (ErrorKind::Denied, 403),
            (ErrorKind::Invalid, 400),
            (ErrorKind::Corrupt, 500),
            (ErrorKind::Closed, 503),
        ] {
            let fault = Fault::from(StoreError::new(kind, "words"));
            assert_eq!((fault.status.as_u16(), fault.error.as_str()), (status, "words"), "{kind:?}");
            assert!(!fault.hint.is_empty());
        }
    }
}
