//! Conditions of requests: `If-Match` and its kin.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};
use stoker_store::{Condition, FileInfo};

use crate::clock;
use crate::refusal::{Code, Refusal, Result};

/// What the conditions of a read lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Go ahead.
    Proceed,
    /// 304.
    NotModified,
    /// 412.
    Failed,
}

/// The conditions of a read. An etag wins over a date of the same direction, as S3 and HTTP have it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReadCondition {
    /// `If-Match`.
    pub(crate) if_match: Option<Vec<String>>,
    /// `If-None-Match`.
    pub(crate) if_none_match: Option<Vec<String>>,
    /// `If-Modified-Since`.
    pub(crate) if_modified_since: Option<SystemTime>,
    /// `If-Unmodified-Since`.
    pub(crate) if_unmodified_since: Option<SystemTime>,
}

impl ReadCondition {
    /// Reads the headers. Dates that are none are ignored.
    pub(crate) fn of(headers: &HeaderMap) -> ReadCondition {
        let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        let date = |name| text(name).and_then(|value| httpdate::parse_http_date(value).ok());
        ReadCondition {
            if_match: text(IF_MATCH).map(parse_etags),
            if_none_match: text(IF_NONE_MATCH).map(parse_etags),
            if_modified_since: date(IF_MODIFIED_SINCE),
            if_unmodified_since: date(IF_UNMODIFIED_SINCE),
        }
    }

    /// The header that a verdict is about.
    pub(crate) fn header_of(&self, verdict: Verdict) -> &'static str {
        match (verdict, &self.if_match, &self.if_none_match) {
            (Verdict::NotModified, _, Some(_)) => "If-None-Match",
            (Verdict::NotModified, _, None) => "If-Modified-Since",
            (_, Some(_), _) => "If-Match",
            (_, None, _) => "If-Unmodified-Since",
        }
    }

    /// Judges a file.
    pub(crate) fn judge(&self, etag: &str, modified_ms: u64) -> Verdict {
        let named = |etags: &[String]| etags.iter().any(|want| want == "*" || want == etag);
        // Dates on the wire have whole seconds.
        let modified = clock::from_unix_ms(modified_ms / 1000 * 1000);
        match (&self.if_match, self.if_unmodified_since) {
            (Some(etags), _) if !named(etags) => return Verdict::Failed,
            (None, Some(date)) if modified > date => return Verdict::Failed,
            _ => {}
        }
        match (&self.if_none_match, self.if_modified_since) {
            (Some(etags), _) if named(etags) => Verdict::NotModified,
            (None, Some(date)) if modified <= date => Verdict::NotModified,
            _ => Verdict::Proceed,
        }
    }
}

/// Whether a `Range` counts: with `If-Range` only if the file is still the one that is meant.
pub(crate) fn range_counts(headers: &HeaderMap, info: &FileInfo) -> bool {
    let Some(value) = headers.get(IF_RANGE).and_then(|value| value.to_str().ok()) else {
        return true;
    };
    match httpdate::parse_http_date(value) {
        Ok(date) => date + Duration::from_secs(1) > clock::from_unix_ms(info.modified_ms),
        Err(_) => parse_etags(value).contains(&info.etag),
    }
}

/// The answer to a condition that does not hold.
pub(crate) fn failed(header: impl Into<String>) -> Refusal {
    Refusal::new(Code::PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
        .with("Condition", header)
}

/// The same for a write, of which the store said that its condition does not hold.
pub(crate) fn write_failed(headers: &HeaderMap) -> Refusal {
    failed(if headers.contains_key(IF_NONE_MATCH) { "If-None-Match" } else { "If-Match" })
}

/// The condition of a write: `If-Match` with an etag, or `If-None-Match: *`.
pub(crate) fn write_condition(headers: &HeaderMap) -> Result<Condition> {
    let text = |name: http::HeaderName| headers.get(&name).map(|value| value.to_str().unwrap_or_default());
    for (name, header) in
        [("If-Modified-Since", IF_MODIFIED_SINCE), ("If-Unmodified-Since", IF_UNMODIFIED_SINCE)]
    {
        if headers.contains_key(&header) {
            return Err(not_implemented(name));
        }
    }
    let if_none_match = match text(IF_NONE_MATCH) {
        None => None,
        Some("*") => Some(vec!["*".to_owned()]),
        Some(_) => return Err(not_implemented("If-None-Match with an etag")),
    };
    Ok(Condition { if_match: text(IF_MATCH).map(parse_etags), if_none_match })
}

fn not_implemented(what: &str) -> Refusal {
    Refusal::new(Code::NotImplemented, format!("{what} is not implemented for writes.")).with("Header", what)
}

/// Etags of a list, without quotes and weakness.
pub(crate) fn parse_etags(text: &str) -> Vec<String> {
    text.split(',').map(|etag| bare_etag(etag).to_owned()).filter(|etag| !etag.is_empty()).collect()
}

/// An etag without its quotes.
pub(crate) fn bare_etag(etag: &str) -> &str {
    let etag = etag.trim();
    let etag = etag.strip_prefix("W/").unwrap_or(etag);
    etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODIFIED: &str = "Fri, 24 May 2013 00:00:00 GMT";
    const EARLIER: &str = "Thu, 23 May 2013 00:00:00 GMT";
    const LATER: &str = "Sat, 25 May 2013 00:00:00 GMT";
    /// Half a second behind [`MODIFIED`], which must not matter.
    const MODIFIED_MS: u64 = 1_369_353_600_500;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn reads_are_judged_in_s3s_order() {
        use Verdict::*;
        for (pairs, expected) in [
            (&[][..], Proceed),
            (&[("if-match", "\"e\"")], Proceed),
            (&[("if-match", "e")], Proceed),
            (&[("if-match", "\"x\", \"e\"")], Proceed),
            (&[("if-match", "*")], Proceed),
            (&[("if-match", "\"x\"")], Failed),
            (&[("if-none-match", "\"e\"")], NotModified),
            (&[("if-none-match", "W/\"e\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"x\"")], Proceed),
            (&[("if-modified-since", EARLIER)], Proceed),
            (&[("if-modified-since", MODIFIED)], NotModified),
            (&[("if-modified-since", LATER)], NotModified),
            (&[("if-unmodified-since", EARLIER)], Failed),
            (&[("if-unmodified-since", MODIFIED)], Proceed),
            (&[("if-modified-since", "nonsense")], Proceed),
            (&[("if-match", "\"e\""), ("if-unmodified-since", EARLIER)], Proceed),
            (&[("if-match", "\"x\""), ("if-unmodified-since", LATER)], Failed),
            (&[("if-none-match", "\"x\""), ("if-modified-since", LATER)], Proceed),
            (&[("if-none-match", "\"e\""), ("if-modified-since", EARLIER)], NotModified),
            (&[("if-match", "\"x\""), ("if-none-match", "\"e\"")], Failed),
        ] {
            assert_eq!(ReadCondition::of(&headers(pairs)).judge("e", MODIFIED_MS), expected, "{pairs:?}");
        }
    }

    #[test]
    fn writes_take_two_conditions() {
        let absent = write_condition(&headers(&[("if-none-match", "*")])).unwrap();
        assert_eq!(absent, Condition::absent());
        let same = write_condition(&headers(&[("if-match", "\"e\"")])).unwrap();
        assert_eq!(same.if_match, Some(vec!["e".to_owned()]));
        for bad in [("if-none-match", "\"e\""), ("if-modified-since", MODIFIED)] {
            assert_eq!(write_condition(&headers(&[bad])).unwrap_err().code, Code::NotImplemented);
        }
    }
}
