//! From the answers of an S3 server to errors that say what to do.

use http::{HeaderMap, StatusCode};

use super::xml::Element;
use crate::error::{LakeError, LakeErrorCode, LakeErrorKind};

/// What an error answer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fault {
    pub status: u16,
    /// Like `NoSuchKey`; empty if the answer has no body, as with HEAD.
    pub code: String,
    pub message: String,
    /// The region that the server names.
    pub region: Option<String>,
}

/// Where a fault happened, for its words.
pub(super) struct Place<'a> {
    pub bucket: &'a str,
    pub endpoint: &'a str,
    pub region: &'a str,
    pub access_key_id: Option<&'a str>,
}

impl Fault {
    pub fn new(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Fault {
        let header = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
        let mut fault =
            Fault { status: status.as_u16(), region: header.map(str::to_owned), ..Fault::default() };
        if let Some(error) = Element::parse(body) {
            fault.read(&error);
        }
        fault
    }

    /// A fault inside an answer that began as a success.
    pub fn inside(error: &Element) -> Fault {
        let mut fault = Fault { status: 500, ..Fault::default() };
        fault.read(error);
        fault
    }

    fn read(&mut self, error: &Element) {
        // Some servers wrap the error.
        let error = if error.name == "Error" { error } else { error.all("Error").next().unwrap_or(error) };
        self.code = error.text_of("Code").to_owned();
        self.message = error.text_of("Message").to_owned();
        if !error.text_of("Region").is_empty() {
            self.region = Some(error.text_of("Region").to_owned());
        }
    }

    /// What the caller should do.
    pub fn kind(&self) -> LakeErrorKind {
        use LakeErrorKind::*;
        match self.code.as_str() {
            "SlowDown"
            | "ServiceUnavailable"
            | "TooManyRequests"
            | "ConditionalRequestConflict"
            | "OperationAborted"
            | "RequestLimitExceeded"
            | "BandwidthLimitExceeded" => return Busy,
            "InternalError" | "RequestTimeout" => return Unavailable,
            "BadDigest"
            | "XAmzContentChecksumMismatch"
            | "XAmzContentSHA256Mismatch"
            | "InvalidDigest"
            | "IncompleteBody" => return Corrupt,
            "PreconditionFailed" => return Changed,
            "NoSuchKey" | "NoSuchBucket" | "NoSuchUpload" => return NotFound,
            "QuotaExceeded" | "XMinioStorageFull" | "InsufficientCapacity" | "StorageFull" => return Full,
            "AccessDenied"
            | "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "RequestTimeTooSkewed"
            | "AuthorizationHeaderMalformed"
            | "PermanentRedirect"
            | "AccountProblem"
            | "InvalidSecurity"
            | "NotSignedUp"
            | "TokenRefreshRequired"
            | "IllegalLocationConstraintException" => {
                return Denied;
            }
            _ => {}
        }
        match self.status {
            301 | 401 | 403 => Denied,
            404 => NotFound,
            408 | 307 | 500 | 502 | 504 => Unavailable,
            409 | 429 | 503 => Busy,
            412 | 304 => Changed,
            507 => Full,
            400..=499 | 501 => Invalid,
            _ => Unavailable,
        }
    }

    /// The whole error.
    pub fn error(&self, action: &str, place: &Place<'_>) -> LakeError {
        let code = match self.code.as_str() {
            "NoSuchKey" => LakeErrorCode::NoSuchKey,
            "NoSuchUpload" => LakeErrorCode::NoSuchUpload,
            "NoSuchBucket" => LakeErrorCode::NoSuchBucket,
            _ => LakeErrorCode::Unspecified,
        };
        LakeError::new(self.kind(), format!("cannot {action}: {}", self.words(place))).with_code(code)
    }

    fn words(&self, place: &Place<'_>) -> String {
        let Place { bucket, endpoint, region, .. } = place;
        let key = place.access_key_id.unwrap_or("without credentials");
        match (self.code.as_str(), &self.region) {
            ("NoSuchBucket", _) => {
                format!("there is no bucket `{bucket}` at {endpoint}; make it, or correct the lake's url")
            }
            ("InvalidAccessKeyId", _) => {
                format!("{endpoint} does not know the access key `{key}`; check AWS_ACCESS_KEY_ID")
            }
            ("SignatureDoesNotMatch", _) => {
                format!("the secret of the access key `{key}` is wrong; check AWS_SECRET_ACCESS_KEY")
            }
            ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => {
                "the session token has expired or is wrong; renew AWS_SESSION_TOKEN".to_owned()
            }
            ("RequestTimeTooSkewed", _) => "the clock of this machine is wrong; set it (NTP)".to_owned(),
            (_, Some(right)) if self.kind() == LakeErrorKind::Denied && right != region => {
                format!(
                    "the bucket `{bucket}` is in the region `{right}`, not `{region}`; set region={right}"
                )
            }
            ("PermanentRedirect" | "AuthorizationHeaderMalformed", _) => {
                format!(
                    "`{region}` is not the region of the bucket `{bucket}`; set its region: {}",
                    self.message
                )
            }
            ("AccessDenied", _) => format!(
                "the access key `{key}` has no permission for this in the bucket `{bucket}`; extend its policy"
            ),
            ("", _) if self.kind() == LakeErrorKind::Denied => format!(
                "the server answered {} and no more; check credentials, region and the policy of the bucket `{bucket}`",
                self.status
            ),
            ("", _) => format!("the server answered {}", self.status),
            (code, _) => format!("{code} ({}): {}", self.status, self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, kind: LakeErrorKind, hint: &str) {
        let mut headers = HeaderMap::new();
        if status == 301 {
            headers.insert("x-amz-bucket-region", "eu-north-1".parse().unwrap());
        }
        let fault = Fault::new(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes());
        let place = Place {
            bucket: "box",
            endpoint: "https://s3.test",
            region: "us-east-1",
            access_key_id: Some("AKIA"),
        };
        let error = fault.error("read `k`", &place);
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(hint), "{error}");
    }

    fn code(code: &str) -> String {
        format!("<Error><Code>{code}</Code><Message>why</Message></Error>")
    }

    #[test]
    fn errors_say_what_to_do() {
        use LakeErrorKind::*;
        check(404, &code("NoSuchBucket"), NotFound, "no bucket `box`");
        check(404, &code("NoSuchKey"), NotFound, "NoSuchKey");
        check(404, "", NotFound, "404");
        check(403, &code("InvalidAccessKeyId"), Denied, "does not know the access key `AKIA`");
        check(403, &code("SignatureDoesNotMatch"), Denied, "AWS_SECRET_ACCESS_KEY");
        check(403, &code("AccessDenied"), Denied, "policy");
        check(403, &code("RequestTimeTooSkewed"), Denied, "clock");
        check(400, &code("ExpiredToken"), Denied, "AWS_SESSION_TOKEN");
        check(403, "", Denied, "credentials, region");
        check(301, "", Denied, "set region=eu-north-1");
        let malformed = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting</Message><Region>eu-west-1</Region></Error>";
        check(400, malformed, Denied, "set region=eu-west-1");
        check(503, &code("SlowDown"), Busy, "SlowDown");
        check(429, "", Busy, "429");
        check(500, &code("InternalError"), Unavailable, "why");
        check(400, &code("BadDigest"), Corrupt, "why");
        check(400, &code("EntityTooSmall"), Invalid, "why");
        check(412, "", Changed, "412");
        check(507, "", Full, "507");
        check(418, "<html>not xml<br></html>", Invalid, "418");
    }
}
