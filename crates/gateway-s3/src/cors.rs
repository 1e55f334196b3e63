//! Web pages of other origins. The browser asks before it sends, without a signature, so this comes before who asks.

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode};

use crate::answer::{self, Answer};
use crate::refusal::{Code, Refusal, Result};

/// What a page may ask for.
pub(crate) const METHODS: [Method; 5] =
    [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE];
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

/// One rule of a bucket.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) origins: Vec<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) headers: Vec<String>,
    pub(crate) exposed: Vec<String>,
    pub(crate) age_s: Option<i32>,
}

impl Rule {
    fn allows(&self, origin: &str, method: &str, wanted: &[String]) -> bool {
        self.origins.iter().any(|pattern| fits(pattern, origin))
            && self.methods.iter().any(|allowed| allowed == method)
            && wanted
                .iter()
                .all(|name| self.headers.iter().any(|pattern| fits(&pattern.to_ascii_lowercase(), name)))
    }

    fn add(&self, headers: &mut HeaderMap, origin: &str) {
        let is_open = self.origins.iter().any(|pattern| pattern == "*");
        let mut insert = |name, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, if is_open { "*" } else { origin });
        insert(header::ACCESS_CONTROL_ALLOW_METHODS, &self.methods.join(", "));
        if !self.exposed.is_empty() {
            insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, &self.exposed.join(", "));
        }
        if let Some(age_s) = self.age_s {
            insert(header::ACCESS_CONTROL_MAX_AGE, &age_s.to_string());
        }
        if !is_open {
            insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        }
        insert(header::VARY, "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
    }
}

/// Whether a name is what a pattern with at most one `*` means.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// Answers the browser's question by the rules of a bucket; none if no rule fits.
pub(crate) fn preflight_by(rules: &[Rule], headers: &HeaderMap) -> Option<Answer> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN)?;
    let method = text(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    let wanted = text(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let names: Vec<String> = wanted
        .unwrap_or_default()
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    let rule = rules.iter().find(|rule| rule.allows(origin, method, &names))?;
    let mut answer = answer::bare(StatusCode::OK);
    rule.add(answer.headers_mut(), origin);
    if !names.is_empty()
        && let Ok(value) = HeaderValue::from_str(&names.join(", "))
    {
        answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, value);
    }
    Some(answer)
}

/// Lets a page see the answer, if a rule of the bucket lets it ask.
pub(crate) fn add_by(rules: &[Rule], method: &Method, asked: &HeaderMap, headers: &mut HeaderMap) {
    let origin = asked.get(header::ORIGIN).and_then(|value| value.to_str().ok());
    let Some(origin) = origin else { return };
    if let Some(rule) = rules.iter().find(|rule| rule.allows(origin, method.as_str(), &[])) {
        rule.add(headers, origin);
    }
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

    #[test]
    fn rules_of_a_bucket_have_patterns() {
        for (pattern, name, expected) in [
            ("*", "https://a.test", true),
            ("https://a.test", "https://a.test", true),
            ("https://*.test", "https://a.b.test", true),
            ("https://*.test", "http://a.test", false),
            ("x-amz-*", "x-amz-date", true),
            ("ab*ba", "aba", false),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
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
