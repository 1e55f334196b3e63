//! How STS says no: AWS's codes, and the tables that lead to them.

use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use stoker_oidc::Rejected;
use stoker_store::{ErrorKind, StoreError};

use super::answer::document;
use crate::answer::{self, Answer};
use crate::refusal::{self, Refusal};
use crate::xml;

/// A code of STS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Code {
    AccessDenied,
    ExpiredToken,
    ExpiredTokenException,
    IdpCommunicationError,
    IncompleteSignature,
    InternalFailure,
    InvalidAction,
    InvalidClientTokenId,
    InvalidIdentityToken,
    MalformedPolicyDocument,
    MissingAction,
    MissingAuthenticationToken,
    ServiceUnavailable,
    SignatureDoesNotMatch,
    ValidationError,
}

impl Code {
    /// As AWS spells it.
    pub(super) fn name(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status that goes with it.
    pub(super) fn status(self) -> StatusCode {
        self.row().1
    }

    fn row(self) -> (&'static str, StatusCode) {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        const NO: StatusCode = StatusCode::FORBIDDEN;
        match self {
            Code::AccessDenied => ("AccessDenied", NO),
            Code::ExpiredToken => ("ExpiredToken", NO),
            Code::ExpiredTokenException => ("ExpiredTokenException", BAD),
            Code::IdpCommunicationError => ("IDPCommunicationError", BAD),
            Code::IncompleteSignature => ("IncompleteSignature", BAD),
            Code::InternalFailure => ("InternalFailure", StatusCode::INTERNAL_SERVER_ERROR),
            Code::InvalidAction => ("InvalidAction", BAD),
            Code::InvalidClientTokenId => ("InvalidClientTokenId", NO),
            Code::InvalidIdentityToken => ("InvalidIdentityToken", BAD),
            Code::MalformedPolicyDocument => ("MalformedPolicyDocument", BAD),
            Code::MissingAction => ("MissingAction", BAD),
            Code::MissingAuthenticationToken => ("MissingAuthenticationToken", NO),
            Code::ServiceUnavailable => ("ServiceUnavailable", StatusCode::SERVICE_UNAVAILABLE),
            Code::SignatureDoesNotMatch => ("SignatureDoesNotMatch", NO),
            Code::ValidationError => ("ValidationError", BAD),
        }
    }
}

/// An answer that is no.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) message: String,
}

pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into() }
    }

    /// The answer.
    pub(super) fn answer(&self, request_id: &str) -> Answer {
        let status = self.code.status();
        let mut out = document("ErrorResponse");
        out.push_str("<Error>");
        xml::push_element(&mut out, "Type", if status.is_server_error() { "Receiver" } else { "Sender" });
        xml::push_element(&mut out, "Code", self.code.name());
        xml::push_element(&mut out, "Message", &self.message);
        out.push_str("</Error>");
        xml::push_element(&mut out, "RequestId", request_id);
        out.push_str("</ErrorResponse>");
        let mut answer = answer::xml(status, out);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<Rejected> for Fault {
    fn from(rejected: Rejected) -> Fault {
        let code = match &rejected {
            Rejected::Invalid(_) | Rejected::Claim(_) => Code::InvalidIdentityToken,
            Rejected::Expired(_) => Code::ExpiredTokenException,
            Rejected::Denied(_) => Code::AccessDenied,
            Rejected::Unreachable(_) => Code::IdpCommunicationError,
        };
        Fault::new(code, format!("{}: {rejected}", head(code)))
    }
}

fn head(code: Code) -> &'static str {
    match code {
        Code::AccessDenied => "Not authorized to perform sts:AssumeRoleWithWebIdentity",
        Code::ExpiredTokenException => "Token expired",
        Code::IdpCommunicationError => "The identity provider could not be reached",
        _ => "The web identity token is not taken",
    }
}

/// What checks signatures speaks the codes of S3.
impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        use refusal::Code as S3;
        let code = match refusal.code {
            S3::InvalidAccessKeyId | S3::InvalidToken => Code::InvalidClientTokenId,
            S3::ExpiredToken => Code::ExpiredToken,
            S3::SignatureDoesNotMatch | S3::RequestTimeTooSkewed | S3::XAmzContentSHA256Mismatch => {
                Code::SignatureDoesNotMatch
            }
            // The only one of these that is about who asks is that nobody signed.
            S3::AccessDenied => Code::MissingAuthenticationToken,
            S3::AuthorizationHeaderMalformed | S3::AuthorizationQueryParametersError | S3::InvalidRequest => {
                Code::IncompleteSignature
            }
            S3::ServiceUnavailable | S3::SlowDown => Code::ServiceUnavailable,
            S3::InternalError => Code::InternalFailure,
            _ => Code::ValidationError,
        };
        let message = match code {
            Code::InvalidClientTokenId => "The security token included in the request is invalid.".to_owned(),
            Code::ExpiredToken => "The security token included in the request is expired.".to_owned(),
            _ => refusal.message.into_owned(),
        };
        Fault::new(code, message)
    }
}

impl From<StoreError> for Fault {
    fn from(fault: StoreError) -> Fault {
        let code = match fault.kind {
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Full => Code::ServiceUnavailable,
            ErrorKind::Denied => Code::AccessDenied,
            ErrorKind::Invalid => Code::ValidationError,
            ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Corrupt => Code::InternalFailure,
        };
        Fault::new(code, fault.message)
    }
}
