//! How the gateway says no: S3's codes, and the one table that leads from the door's errors to them.

use std::borrow::Cow;

use http::StatusCode;
use stoker_store::{ErrorKind, StoreError, Subject};

use crate::xml;

macro_rules! codes {
    ($($name:ident $status:literal,)*) => {
        /// A code of S3.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub(crate) enum Code { $($name,)* }

        impl Code {
            /// The code as S3 spells it.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name),)* }
            }

            /// The HTTP status that goes with it.
            pub(crate) fn status(self) -> StatusCode {
                let status: u16 = match self { $(Code::$name => $status,)* };
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    };
}

codes! {
    AccessControlListNotSupported 400,
    AccessDenied 403,
    AccessForbidden 403,
    AuthorizationHeaderMalformed 400,
    AuthorizationQueryParametersError 400,
    BadDigest 400,
    BucketAlreadyOwnedByYou 409,
    BucketNotEmpty 409,
    EntityTooLarge 400,
    EntityTooSmall 400,
    ExpiredToken 400,
    IllegalLocationConstraintException 400,
    IllegalVersioningConfigurationException 400,
    IncompleteBody 400,
    InternalError 500,
    InvalidAccessKeyId 403,
    InvalidArgument 400,
    InvalidBucketName 400,
    InvalidBucketState 409,
    InvalidDigest 400,
    InvalidObjectState 403,
    InvalidPart 400,
    InvalidPartNumber 416,
    InvalidPartOrder 400,
    InvalidPolicyDocument 400,
    InvalidRange 416,
    InvalidRequest 400,
    InvalidRetentionPeriod 400,
    InvalidStorageClass 400,
    InvalidTag 400,
    InvalidToken 400,
    InvalidURI 400,
    KeyTooLongError 400,
    MalformedPOSTRequest 400,
    MalformedPolicy 400,
    MalformedXML 400,
    MaxMessageLengthExceeded 400,
    MetadataTooLarge 400,
    MethodNotAllowed 405,
    MissingContentLength 411,
    NoSuchBucket 404,
    NoSuchBucketPolicy 404,
    NoSuchCORSConfiguration 404,
    NoSuchConfiguration 404,
    NoSuchKey 404,
    NoSuchLifecycleConfiguration 404,
    NoSuchObjectLockConfiguration 404,
    NoSuchPublicAccessBlockConfiguration 404,
    NoSuchTagSet 404,
    NoSuchUpload 404,
    NoSuchVersion 404,
    NoSuchWebsiteConfiguration 404,
    NotImplemented 501,
    ObjectLockConfigurationNotFoundError 404,
    OperationAborted 409,
    OwnershipControlsNotFoundError 404,
    PreconditionFailed 412,
    QuotaExceeded 403,
    ReplicationConfigurationNotFoundError 404,
    RequestTimeTooSkewed 403,
    RequestTimeout 400,
    ServerSideEncryptionConfigurationNotFoundError 404,
    ServiceUnavailable 503,
    SignatureDoesNotMatch 403,
    SlowDown 503,
    XAmzContentSHA256Mismatch 400,
}

/// An answer that is no.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// S3's code.
    pub(crate) code: Code,
    /// For a person.
    pub(crate) message: Cow<'static, str>,
    /// More elements of the XML body, such as `Region`.
    pub(crate) details: Vec<(&'static str, String)>,
    /// Headers of the answer.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// Result of what the gateway does for a request.
pub(crate) type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    /// Says no.
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal { code, message: message.into(), details: Vec::new(), headers: Vec::new() }
    }

    /// Adds an element to the XML body.
    pub(crate) fn with(mut self, name: &'static str, text: impl Into<String>) -> Refusal {
        self.details.push((name, text.into()));
        self
    }

    /// Adds a header to the answer.
    pub(crate) fn with_header(mut self, name: &'static str, text: impl Into<String>) -> Refusal {
        self.headers.push((name, text.into()));
        self
    }

    /// The XML body.
    pub(crate) fn to_xml(&self, resource: &str, request_id: &str) -> String {
        let mut out = String::with_capacity(256);
        out.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
        xml::push_element(&mut out, "Code", self.code.name());
        xml::push_element(&mut out, "Message", &self.message);
        for (name, text) in &self.details {
            xml::push_element(&mut out, name, text);
        }
        xml::push_element(&mut out, "Resource", resource);
        xml::push_element(&mut out, "RequestId", request_id);
        out.push_str("</Error>");
        out
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::new(code_of(error.kind, error.subject), error.message)
    }
}

impl From<Refusal> for s3s::S3Error {
    fn from(refusal: Refusal) -> s3s::S3Error {
        let code = s3s::S3ErrorCode::from_bytes(refusal.code.name().as_bytes())
            .unwrap_or(s3s::S3ErrorCode::InternalError);
        let mut error = s3s::S3Error::with_message(code, refusal.message);
        error.set_status_code(refusal.code.status());
        error
    }
}

/// The table: what the door said, in S3's words.
pub(crate) fn code_of(kind: ErrorKind, subject: Subject) -> Code {
    match (kind, subject) {
        (ErrorKind::NotFound | ErrorKind::Denied, Subject::AccessKey) => Code::InvalidAccessKeyId,
        (ErrorKind::NotFound, Subject::Volume | Subject::VolumeContents) => Code::NoSuchBucket,
        (ErrorKind::NotFound | ErrorKind::Invalid, Subject::Upload) => Code::NoSuchUpload,
        (ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Invalid, Subject::Part) => Code::InvalidPart,
        (ErrorKind::NotFound, Subject::Version) => Code::NoSuchVersion,
        (ErrorKind::NotFound, _) => Code::NoSuchKey,
        (ErrorKind::Conflict | ErrorKind::Invalid, Subject::PartOrder) => Code::InvalidPartOrder,
        (ErrorKind::Conflict | ErrorKind::Invalid, Subject::PartSize) => Code::EntityTooSmall,
        (ErrorKind::Conflict | ErrorKind::Invalid, Subject::Checksum) => Code::BadDigest,
        (ErrorKind::Conflict, Subject::Condition) => Code::PreconditionFailed,
        (ErrorKind::Conflict, Subject::Volume) => Code::BucketAlreadyOwnedByYou,
        (ErrorKind::Conflict, Subject::VolumeContents) => Code::BucketNotEmpty,
        (ErrorKind::Conflict, _) => Code::OperationAborted,
        (ErrorKind::Full | ErrorKind::Invalid, Subject::Size) => Code::EntityTooLarge,
        (ErrorKind::Full, Subject::Quota) => Code::QuotaExceeded,
        (ErrorKind::Full, _) => Code::SlowDown,
        (ErrorKind::Unavailable | ErrorKind::Closed, _) => Code::ServiceUnavailable,
        (ErrorKind::Denied, _) => Code::AccessDenied,
        (ErrorKind::Invalid, Subject::Volume) => Code::InvalidBucketName,
        (ErrorKind::Invalid, Subject::Lock | Subject::Version) => Code::InvalidRequest,
        (ErrorKind::Invalid, _) => Code::InvalidArgument,
        (ErrorKind::Corrupt, _) => Code::InternalError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ErrorKind; 8] = [
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::Full,
        ErrorKind::Unavailable,
        ErrorKind::Denied,
        ErrorKind::Invalid,
        ErrorKind::Corrupt,
        ErrorKind::Closed,
    ];

    const SUBJECTS: [Subject; 16] = [
        Subject::Key,
        Subject::Volume,
        Subject::VolumeContents,
        Subject::Upload,
        Subject::Part,
        Subject::PartOrder,
        Subject::PartSize,
        Subject::Condition,
        Subject::Checksum,
        Subject::Size,
        Subject::Quota,
        Subject::Lake,
        Subject::AccessKey,
        Subject::Set,
        Subject::Version,
        Subject::Lock,
    ];

    #[test]
    fn the_table_is_the_golden_one() {
        let mut table = String::new();
        for kind in KINDS {
            for subject in SUBJECTS {
                let code = code_of(kind, subject);
                table.push_str(&format!(
                    "{kind:?} {subject:?}: {} {}\n",
                    code.status().as_u16(),
                    code.name()
                ));
            }
        }
        assert_eq!(table, include_str!("refusal.golden"));
    }

    #[test]
    fn s3s_says_the_same() {
        for kind in KINDS {
            for subject in SUBJECTS {
                let refusal = Refusal::from(StoreError::about(kind, subject, "words"));
                let error = s3s::S3Error::from(refusal.clone());
                assert_eq!(error.code().as_str(), refusal.code.name());
                assert_eq!(error.status_code(), Some(refusal.code.status()));
                assert_eq!(error.message(), Some("words"));
            }
        }
    }

    #[test]
    fn the_body_is_xml() {
        let refusal = Refusal::new(Code::NoSuchKey, "no <such> key").with("Key", "a&b");
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code>\
            <Message>no &lt;such&gt; key</Message><Key>a&amp;b</Key><Resource>/v/a&amp;b</Resource>\
            <RequestId>1F</RequestId></Error>";
        assert_eq!(refusal.to_xml("/v/a&b", "1F"), expected);
    }
}
