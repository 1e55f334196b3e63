//! From a request to its answer.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH,
    RANGE,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use stoker_store::File;

use crate::digest::Digest;
use crate::fault::Fault;
use crate::fetch::Fetcher;
use crate::name::Asked;
use crate::shelf::{Kind, media_type};
use crate::stats::add;

/// Bytes that are asked of a file at once.
const READ_LEN: u64 = 1 << 20;
const JSON: &str = "application/json";
/// Longest name of an upstream in a query.
const NAMESPACE_LEN_MAX: usize = 255;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Answers one request.
pub(crate) async fn answer(fetcher: &Arc<Fetcher>, request: &Request<Incoming>) -> Response<Body> {
    let mut answer = match find(fetcher, request).await {
        Ok(answer) => answer,
        Err(fault) => {
            let mut answer = text(fault.status, JSON, fault.body());
            if fault.status == StatusCode::METHOD_NOT_ALLOWED {
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            answer
        }
    };
    if request.method() == Method::HEAD {
        *answer.body_mut() = empty();
    }
    let version = HeaderValue::from_static("registry/2.0");
    answer.headers_mut().insert("docker-distribution-api-version", version);
    answer
}

async fn find(fetcher: &Arc<Fetcher>, request: &Request<Incoming>) -> Result<Response<Body>, Fault> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Fault::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "UNSUPPORTED",
            "images are read here, and not written",
        ));
    }
    let asked = Asked::parse(request.uri().path()).map_err(|(code, words)| {
        let status = if code == "UNSUPPORTED" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
        Fault::new(status, code, words)
    })?;
    let query = request.uri().query().unwrap_or("");
    let at = fetcher.upstream(namespace(query).as_deref())?;
    match asked {
        Asked::Base => Ok(text(StatusCode::OK, JSON, "{}".to_owned())),
        Asked::Tags(name) => {
            let tags = fetcher.tags(at, &name, &page(query)).await?;
            Ok(text(StatusCode::OK, JSON, tags))
        }
        Asked::Manifest(name, reference) => {
            let (file, digest) = fetcher.manifest(at, &name, &reference).await?;
            Ok(content(fetcher, request, file, &digest))
        }
        Asked::Blob(name, digest) => {
            let file = fetcher.by_digest(at, &name, Kind::Blob, &digest).await?;
            Ok(content(fetcher, request, file, &digest))
        }
    }
}

/// The registry that a client means, where it says so: `ns` of containerd.
fn namespace(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("ns="))?;
    let value = value.replace("%3A", ":").replace("%3a", ":");
    Some(value).filter(|value| (1..=NAMESPACE_LEN_MAX).contains(&value.len()))
}

/// What a query says of pages of tags, with nothing else.
fn page(query: &str) -> String {
    let is_plain = |value: &str| {
        value.len() <= 128 && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let wanted = query.split('&').filter(|pair| {
        pair.split_once('=').is_some_and(|(name, value)| matches!(name, "n" | "last") && is_plain(value))
    });
    match wanted.collect::<Vec<_>>().join("&") {
        none if none.is_empty() => none,
        some => format!("?{some}"),
    }
}

/// A file, or the range of it that was asked for.
fn content(
    fetcher: &Arc<Fetcher>,
    request: &Request<Incoming>,
    file: Box<dyn File>,
    digest: &Digest,
) -> Response<Body> {
    let (size, kind) = (file.info().size, media_type(file.info()).to_owned());
    let tag = format!("\"{digest}\"");
    let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let mut builder = Response::builder()
        .header(CONTENT_TYPE, kind)
        .header("docker-content-digest", digest.to_string())
        .header(ETAG, &tag)
        .header(ACCEPT_RANGES, "bytes");
    if header(IF_NONE_MATCH).is_some_and(|known| known.split(',').any(|one| one.trim() == tag)) {
        return built(builder.status(StatusCode::NOT_MODIFIED).body(empty()));
    }
    let (start, end) = match header(RANGE).map(|text| range(text, size)) {
        None | Some(Wanted::All) => (0, size),
        Some(Wanted::Part(start, end)) => {
            builder = builder
                .status(StatusCode::PARTIAL_CONTENT)
                .header(CONTENT_RANGE, format!("bytes {start}-{}/{size}", end - 1));
            (start, end)
        }
        Some(Wanted::Nothing) => {
            let builder = builder.status(StatusCode::RANGE_NOT_SATISFIABLE);
            return built(builder.header(CONTENT_RANGE, format!("bytes */{size}")).body(empty()));
        }
    };
    built(builder.header(CONTENT_LENGTH, end - start).body(bytes_of(fetcher.clone(), file, start, end)))
}

/// The bytes of a file, read as they are sent.
fn bytes_of(fetcher: Arc<Fetcher>, file: Box<dyn File>, start: u64, end: u64) -> Body {
    let pieces = stream::try_unfold((fetcher, file, start), move |(fetcher, file, at)| async move {
        if at >= end {
            return Ok(None);
        }
        let bytes = file.read(at, (end - at).min(READ_LEN) as usize).await.map_err(io::Error::other)?;
        if bytes.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let next = at + bytes.len() as u64;
        add(&fetcher.stats.sent_bytes, bytes.len() as u64);
        Ok(Some((Frame::data(bytes), (fetcher, file, next))))
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// What a header asks for.
#[derive(PartialEq, Eq, Debug)]
enum Wanted {
    /// No range that is understood.
    All,
    /// From here to before there.
    Part(u64, u64),
    /// What is not there.
    Nothing,
}

fn range(text: &str, size: u64) -> Wanted {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::All;
    };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last && first < size => {
            Wanted::Part(first, last.saturating_add(1).min(size))
        }
        (Ok(first), Err(_)) if last.is_empty() && first < size => Wanted::Part(first, size),
        (Err(_), Ok(count)) if first.is_empty() && count > 0 && size > 0 => {
            Wanted::Part(size.saturating_sub(count), size)
        }
        (Ok(first), _) if first >= size => Wanted::Nothing,
        _ => Wanted::All,
    }
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let body: Bytes = body.into();
    let builder =
        Response::builder().status(status).header(CONTENT_TYPE, kind).header(CONTENT_LENGTH, body.len());
    built(builder.body(Full::new(body).map_err(|never| match never {}).boxed_unsync()))
}

fn empty() -> Body {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

/// A header of content that came from elsewhere may be none after all.
fn built(answer: Result<Response<Body>, http::Error>) -> Response<Body> {
    answer.unwrap_or_else(|_| {
        let mut answer = Response::new(empty());
        *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        answer
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        for (text, expect) in [
            ("bytes=0-0", Wanted::Part(0, 1)),
            ("bytes=3-", Wanted::Part(3, 10)),
            ("bytes=3-99", Wanted::Part(3, 10)),
            ("bytes=-4", Wanted::Part(6, 10)),
            ("bytes=-99", Wanted::Part(0, 10)),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=0-18446744073709551615", Wanted::Part(0, 10)),
            ("bytes=5-3", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("bytes=-0", Wanted::All),
            ("bytes=-", Wanted::All),
            ("lines=0-1", Wanted::All),
            ("", Wanted::All),
        ] {
            assert_eq!(range(text, 10), expect, "{text}");
        }
        assert_eq!(range("bytes=0-", 0), Wanted::Nothing);
    }

    #[test]
    fn queries_are_read() {
        assert_eq!(namespace("ns=docker.io&x=y").as_deref(), Some("docker.io"));
        assert_eq!(namespace("ns=127.0.0.1%3A5000").as_deref(), Some("127.0.0.1:5000"));
        assert_eq!(namespace("ns="), None);
        assert_eq!(page("n=10&last=3.2&ns=a&x=../.."), "?n=10&last=3.2");
        assert_eq!(page("n=a%2fb&last"), "");
    }
}
