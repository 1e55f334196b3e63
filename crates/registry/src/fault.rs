//! How the registry says no, in the words of its specification.

use http::StatusCode;
use stoker_store::{ErrorKind, StoreError};

/// Why something is not given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
}

impl Fault {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Fault {
        Fault { status, code, message: message.into() }
    }

    /// The upstream or what it says is not as it should be.
    pub fn upstream(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::BAD_GATEWAY, "UNKNOWN", message)
    }

    pub fn unknown(code: &'static str) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, code, "the upstream does not have it")
    }

    /// The document of the specification.
    pub fn body(&self) -> String {
        let error = serde_json::json!({"code": self.code, "message": self.message});
        serde_json::json!({ "errors": [error] }).to_string()
    }
}

impl From<StoreError> for Fault {
    fn from(fault: StoreError) -> Fault {
        let status = match fault.kind {
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Conflict => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Fault::new(status, "UNKNOWN", fault.message)
    }
}
