//! Web pages of other origins. The browser asks before it sends, without a signature, so this comes before who asks.

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode};

use crate::answer::{self, Answer};
use crate::refusal::{Code, Refusal, Result};

const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE];
const METHODS_TEXT: HeaderValue = HeaderValue::from_static("GET, HEAD, PUT, POST, DELETE");
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "ETag, Accept-Ranges, Content-Range, Content-Length, Last-Modified, x-amz-request-id, x-amz-checksum-crc32, \
     x-amz-checksum-crc32c, x-amz-checksum-crc64nvme, x-amz-checksum-sha1, x-amz-checksum-sha256, x-amz-checksum-type, \
     x-amz-mp-parts-count, x-amz-tagging-count, x-stoker-receipt",
);
const AGE: HeaderValue = HeaderValue::from_static("3600");

/// The origin of a request, if it may use the gateway.
pub(crate) fn allowed_origin(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let allowed = origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes());
    allowed.then(|| origin.clone())
}

/// Answers the browser's question.
pub(crate) fn preflight(origins: &[String], headers: &HeaderMap) -> Result<Answer> {
    let forbidden = || {
        Refusal::new(
            Code::AccessForbidden,
            "CORSResponse: This CORS request is not allowed. This is usually because the evaluation of Origin, request \
             method / Access-Control-Request-Method or Access-Control-Request-Headers are not allowed.",
        )
    };
    if !headers.contains_key(header::ORIGIN) {
        return Err(Refusal::new(
            Code::InvalidRequest,
            "Insufficient information. Origin request header needed.",
        ));
    }
    let origin = allowed_origin(origins, headers).ok_or_else(forbidden)?;
    let method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD).ok_or_else(forbidden)?;
    if !METHODS.iter().any(|allowed| allowed.as_str().as_bytes() == method.as_bytes()) {
        return Err(forbidden());
    }
    let mut answer = answer::bare(StatusCode::OK);
    add(answer.headers_mut(), origin);
    answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS_TEXT);
    answer.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, AGE);
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    Ok(answer)
}

/// Lets the page of an allowed origin see the answer.
pub(crate) fn add(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(origins: &[&str], pairs: &[(&'static str, &'static str)]) -> Result<Answer> {
        let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), HeaderValue::from_static(value)))
            .collect();
        preflight(&origins, &headers)
    }

    const ORIGIN: (&str, &str) = ("origin", "https://a.example");
    const PUT: (&str, &str) = ("access-control-request-method", "PUT");

    #[test]
    fn allowed_origins_get_an_answer() {
        for origins in [&["*"][..], &["https://b.example", "https://a.example"]] {
            let answer =
                ask(origins, &[ORIGIN, PUT, ("access-control-request-headers", "x-amz-date")]).unwrap();
            assert_eq!(answer.headers()["access-control-allow-origin"], "https://a.example");
            assert_eq!(answer.headers()["access-control-allow-headers"], "x-amz-date");
        }
    }

    #[test]
    fn others_are_refused() {
        for (origins, pairs, code) in [
            (&[][..], &[ORIGIN, PUT][..], Code::AccessForbidden),
            (&["https://b.example"], &[ORIGIN, PUT], Code::AccessForbidden),
            (&["*"], &[ORIGIN], Code::AccessForbidden),
            (&["*"], &[ORIGIN, ("access-control-request-method", "TRACE")], Code::AccessForbidden),
            (&["*"], &[PUT], Code::InvalidRequest),
        ] {
            assert_eq!(ask(origins, pairs).err().unwrap().code, code);
        }
    }
}
